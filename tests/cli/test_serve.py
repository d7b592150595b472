import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import click
import psutil
import pytest
from click.testing import CliRunner

from qkvlab.cli import main, serve


def test_a_checkout_serves_its_own_notebooks():
    folder = Path(__file__).parents[2] / "notebooks"
    assert serve.labs_dir() == folder
    assert [path.name for path in serve.lab_files(folder)] == sorted(
        path.name for path in folder.iterdir() if re.fullmatch(r"\d\d_\w+\.py", path.name)
    )


def test_no_labs_is_an_error_that_names_the_folder(tmp_path):
    (tmp_path / "helper.py").touch()
    with pytest.raises(click.ClickException, match=re.escape(str(tmp_path))):
        serve.lab_files(tmp_path)


def test_port_that_is_taken_is_refused_by_name():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["--port", str(port), "--no-browser"])
        assert result.exit_code == 2
        assert f"port {port} on 127.0.0.1 is taken" in result.output


def test_without_a_port_the_next_free_one_is_chosen(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(serve, "FIRST_PORT", port)
        assert serve.choose_port("127.0.0.1", None) > port


@pytest.mark.parametrize("host", ["192.0.2.7", "a..b", "ü" * 300])
def test_an_address_of_another_machine_is_refused_as_one(host, monkeypatch):
    asked = []
    free = serve._is_free
    monkeypatch.setattr(serve, "_is_free", lambda *a: asked.append(a) or free(*a))
    result = CliRunner().invoke(main, ["--host", host, "--password", "p", "--no-browser"])
    assert result.exit_code == 2 and "not an address of this machine" in result.output
    assert len(asked) == 1  # not each of 200 ports, which takes minutes where no name server answers


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_other_machines_need_a_password(host):
    result = CliRunner().invoke(main, ["--host", host, "--no-browser"])
    assert result.exit_code == 2
    assert host in result.output and "--password" in result.output and "other machines" in result.output


@pytest.mark.parametrize("host, mine", [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.9.9.9", True),
                                        ("0.0.0.0", False), ("192.0.2.7", False), ("example.org", False)])  # fmt: skip
def test_loopback(host, mine):
    assert serve.is_loopback(host) is mine


def test_a_wheels_labs_are_edited_as_a_copy_that_keeps_its_edits(tmp_path, monkeypatch):
    shipped = tmp_path / "site-packages" / "qkvlab" / "_notebooks"
    (shipped / "__pycache__").mkdir(parents=True)
    (shipped / "__pycache__" / "x.pyc").touch()
    for name in ("01_one.py", "pyproject.toml", "lab.css"):
        (shipped / name).write_text(f"shipped {name}")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    copy = serve.editable_labs(shipped)
    assert copy.parent == here
    assert sorted(path.name for path in copy.iterdir()) == ["01_one.py", "lab.css", "pyproject.toml"]
    (copy / "01_one.py").write_text("mine")
    (shipped / "02_two.py").write_text("newer")
    assert serve.editable_labs(shipped) == copy
    assert (copy / "01_one.py").read_text() == "mine" and (copy / "02_two.py").read_text() == "newer"
    assert serve.editable_labs(here) == here, "a checkout is edited in place"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`qkvlab` as a person starts it, in a folder of its own."""

    def __init__(self, cwd, *args):
        flags = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP} if os.name == "nt" else {}
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "qkvlab", *args, "--no-browser", "--port", str(free_port())],
            cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **flags,
        )  # fmt: skip
        first = self.process.stdout.readline()
        found = re.search(r"http://\S+", first)
        assert found, first + self.process.communicate(timeout=10)[0]
        self.url = found[0]

    def get(self, url=None):
        """Where a new browser ends up, and what it is shown there."""
        cookies = urllib.request.HTTPCookieProcessor()
        with urllib.request.build_opener(cookies).open(url or self.url, timeout=30) as answer:
            return answer.url, answer.read().decode()

    def stop(self, signal_number):
        """Send a signal; return what was printed, and any process left behind."""
        family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        self.process.send_signal(signal_number)
        output = self.process.communicate(timeout=30)[0]
        _, left = psutil.wait_procs(family, timeout=5)
        return output, left


@pytest.fixture
def start(tmp_path):
    servers = []

    def begin(*args):
        servers.append(Server(tmp_path, *args))
        return servers[-1]

    yield begin
    for server in servers:
        server.process.kill()
        server.process.wait()


posix = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


@posix
def test_the_gallery_answers_and_ctrl_c_leaves_nothing_behind(start, tmp_path):
    server = start()
    listening = [c.laddr for c in psutil.Process(server.process.pid).net_connections("tcp") if c.status == "LISTEN"]
    assert [f"http://{ip}:{port}" for ip, port in listening] == [server.url]
    _, page = server.get()
    assert '"theme": "system"' in page and "gallery" in page
    _, lab = server.get(server.url + "/?file=" + serve.lab_files(serve.labs_dir())[0].name)
    assert 'data-status="ready"' in lab, "the head that keeps MathJax from being asked for"
    output, left = server.stop(signal.SIGINT)
    assert server.process.returncode == 0 and not left
    assert output.strip().endswith("Stopped.") and "Traceback" not in output
    assert list(tmp_path.iterdir()) == []


@posix
def test_the_editor_asks_for_its_token_and_ends_on_sigterm(start):
    server = start("--edit")
    assert "access_token=" in server.url
    address, _ = server.get(server.url.split("?")[0])
    assert "/auth/login" in address
    address, page = server.get()
    assert "/auth/login" not in address and '"auto_instantiate": true' in page
    _, left = server.stop(signal.SIGTERM)
    assert not left


@posix
def test_a_password_is_asked_for_and_not_printed(start):
    server = start("--password", "open-sesame")
    assert "open-sesame" not in server.url
    assert "/auth/login" in server.get()[0]
    assert "/auth/login" not in server.get(server.url + "/?access_token=open-sesame")[0]


def test_a_parse_that_other_threads_disturb_is_repeated(monkeypatch):
    import ast

    from marimo._ast import compiler, transformers

    failures = [SystemError("AST constructor recursion depth mismatch (before=192, after=76)")] * 3

    def disturbed(source):
        if failures:
            raise failures.pop()
        return f"tree of {source}"

    monkeypatch.setattr(ast, "parse", disturbed)
    monkeypatch.setattr(compiler, "ast_compile", compiler.ast_compile)  # put back what the next line replaces
    monkeypatch.setattr(transformers, "compile", compile, raising=False)
    serve._steady_parsing()
    assert ast.parse("x") == "tree of x" and not failures
    assert compiler.module_compile("x = 1").body and transformers.compiled_ast([])
    failures.append(SystemError("something else"))
    with pytest.raises(SystemError, match="something else"):
        ast.parse("x")


@pytest.mark.parametrize("ends", [True, False])
def test_a_training_in_a_thread_does_not_spoil_the_end(ends):
    """Python aborts when it ends while a thread is inside torch; whether the thread ends in time or not, it may not."""
    code = f"""
import threading, time, torch
from qkvlab.cli import serve
stop = threading.Event()
def train():
    x = torch.randn(300, 300, requires_grad=True)
    while not stop.is_set():
        (x @ x).sum().backward()
threading.Thread(target=train, name="qkvlab training", daemon=True).start()
if {ends}:
    threading.Timer(0.3, stop.set).start()
serve._end_trainings(patience=20 if {ends} else 0.3)
assert {ends} and stop.is_set(), "an unending training is cut off"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Saving" in done.stdout


def test_help_names_every_option():
    text = CliRunner().invoke(main, ["serve", "--help"]).output
    for option in ("--edit", "--port", "--host", "--password", "--no-browser", "--threads"):
        assert option in text


def test_giving_up_on_a_server_that_never_answers_calls_nothing(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    called = []
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        serve._until_up(f"http://127.0.0.1:{silent.getsockname()[1]}", lambda: called.append(1))
    assert not called
