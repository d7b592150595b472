"""What every test may rely on: one thread, no network, nothing read from or written to the user's own folders."""

import ipaddress
import os
import signal
import socket

import pytest

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # before torch is imported; two processes of one thread each share two cores
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a script ignores Ctrl-C
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("QKVLAB_DATA", None)


def _is_here(host: object) -> bool:
    if host in (None, "", b"", "localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host)).is_loopback
    except ValueError:
        return False


@pytest.fixture(scope="session", autouse=True)
def _no_network():
    """Refuse every connection and look-up that would leave this machine, at once and by name."""
    real = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex")}
    look_up = socket.getaddrinfo

    def guarded(method):
        def call(self, address, *rest):
            if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address[0]):
                raise OSError(f"tests have no network: refused {address}")
            return method(self, address, *rest)

        return call

    def guarded_look_up(host, *rest, **more):
        if not _is_here(host):
            raise socket.gaierror(socket.EAI_NONAME, f"tests have no network: refused to look up {host}")
        return look_up(host, *rest, **more)

    patch = pytest.MonkeyPatch()
    for name, method in real.items():
        patch.setattr(socket.socket, name, guarded(method))
    patch.setattr(socket, "getaddrinfo", guarded_look_up)
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory):
    """Runs and marimo's settings go to, and come from, a folder of this session."""
    patch = pytest.MonkeyPatch()
    home = tmp_path_factory.mktemp("home")
    patch.setenv("QKVLAB_RUNS", str(home / "runs"))
    patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    patch.setenv("XDG_STATE_HOME", str(home / "state"))
    yield
    patch.undo()


def pytest_collection_modifyitems(items):
    """With `--dist loadgroup` a file stays in one process, and all browser tests share one, its server and browser."""
    for item in items:
        browser = "browser" in item.path.parts
        item.add_marker(pytest.mark.xdist_group("browser" if browser else str(item.path)))
