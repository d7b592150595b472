import gzip
import hashlib
import http.server
import shutil
import socket
import threading
from types import SimpleNamespace

import pytest

from qkvlab.tasks import DataError, load, sources

HERE = [name for name, f in sources.FILES.items() if not f.url]


@pytest.mark.parametrize("name", HERE)
def test_each_file_is_the_registered_one_and_its_readme_says_so(name, cache):
    path, expected = sources.path_of(name), sources.FILES[name]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == expected.sha256 and path.stat().st_size == expected.size
    readme = (sources.data_dir() / "README.md").read_text("utf-8")
    assert f"{expected.sha256}  {name}" in readme and f"| `{name}` | {expected.size:,} |" in readme


def test_line_ends_are_never_converted():
    assert "* -text" in (sources.data_dir() / ".gitattributes").read_text()


@pytest.fixture
def mine(tmp_path, monkeypatch, cache):
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("QKVLAB_DATA", str(folder))
    return folder


def contents(folder):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("damage", [lambda b: b[:1000], lambda b: b[:-1] + b"!", lambda b: b"", lambda b: b + b"\n"])
def test_a_wrong_file_is_refused_and_left_alone(mine, tmp_path, damage):
    bad = damage((sources.data_dir() / "digits8x8.npz").read_bytes())
    (mine / "digits8x8.npz").write_bytes(bad)
    before = contents(tmp_path)
    with pytest.raises(DataError) as error:
        load("digits")
    message = str(error.value)
    for part in (
        "digits8x8.npz",
        sources.FILES["digits8x8.npz"].sha256,
        hashlib.sha256(bad).hexdigest(),
        str(mine),
        "git",
    ):
        assert part in message
    assert contents(tmp_path) == before


def test_a_missing_file_says_where_it_was_sought_and_how_to_get_it(cache, tmp_path):
    with pytest.raises(DataError) as error:
        load("tinyshakespeare")
    for part in (
        "tinyshakespeare.txt",
        "86c4e6aa",
        str(cache),
        str(sources.data_dir()),
        "qkvlab data get tinyshakespeare",
    ):
        assert part in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_shipped_file_that_is_gone(monkeypatch, tmp_path, cache):
    monkeypatch.setattr(sources, "data_dir", lambda: tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"mnist_10k.npz is not on this machine.*git checkout data/mnist_10k.npz"):
        load("mnist")


def test_the_users_folder_comes_first_then_ours_then_the_cache(mine, cache):
    cache.mkdir()
    shutil.copy(sources.data_dir() / "digits8x8.npz", cache)
    assert sources.path_of("digits8x8.npz").parent == sources.data_dir()
    shutil.copy(cache / "digits8x8.npz", mine)
    assert sources.path_of("digits8x8.npz").parent == mine


def test_a_file_is_hashed_once_and_again_when_it_changed(mine, monkeypatch):
    count = []
    real = hashlib.file_digest
    monkeypatch.setattr(sources.hashlib, "file_digest", lambda *a: count.append(1) or real(*a))
    shutil.copy(sources.data_dir() / "digits8x8.npz", mine)
    for _ in range(3):
        sources.path_of("digits8x8.npz")
    assert len(count) == 1
    (mine / "digits8x8.npz").write_bytes(b"other")
    with pytest.raises(DataError):
        load("digits")


def test_the_cache_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    found = {}
    for platform in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sources.sys, "platform", platform)
        found[platform] = sources.cache_dir()
    assert found["linux"] == tmp_path / "xdg" / "qkvlab" and found["win32"] == tmp_path / "local" / "qkvlab"
    assert found["darwin"].parts[-3:] == ("Library", "Caches", "qkvlab")


# ------------------------------------------------------------------------------------------------------------ download
GOOD = b"To be, or not to be\n" * 100


@pytest.fixture
def server(monkeypatch, cache):
    """A server on this machine that answers with `.body`, or `.status`; tinyshakespeare is sought there."""
    state = SimpleNamespace(body=GOOD, status=200, length=None, asked=0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            state.asked += 1
            self.send_response(state.status)
            self.send_header("Content-Length", str(state.length or len(state.body)))
            self.end_headers()
            self.wfile.write(state.body)

        def log_message(self, *args):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
    state.url = f"http://127.0.0.1:{httpd.server_port}/input.txt"
    listed(monkeypatch, state.url)
    yield state
    httpd.shutdown()
    httpd.server_close()


def listed(monkeypatch, url):
    import pooch.core

    monkeypatch.setattr(pooch.core, "time", SimpleNamespace(sleep=lambda s: None))  # it waits a second between tries
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    entry = sources.Shipped(hashlib.sha256(GOOD).hexdigest(), len(GOOD), url)
    monkeypatch.setitem(sources.FILES, "tinyshakespeare.txt", entry)


def test_a_download_is_kept_and_not_asked_for_twice(server, cache):
    path = sources.download("tinyshakespeare.txt")
    assert path == cache / "tinyshakespeare.txt" and path.read_bytes() == GOOD
    assert sources.download("tinyshakespeare.txt") == path and server.asked == 1
    assert [p.name for p in cache.iterdir()] == ["tinyshakespeare.txt"]
    assert load("tinyshakespeare").decode(load("tinyshakespeare").encode("To be")) == "To be"


def test_what_is_here_is_neither_fetched_nor_replaced(server, mine, cache):
    (mine / "tinyshakespeare.txt").write_bytes(GOOD)
    assert sources.download("tinyshakespeare.txt").parent == mine
    (mine / "tinyshakespeare.txt").write_bytes(b"other")
    with pytest.raises(DataError, match="left as it is"):
        sources.download("tinyshakespeare.txt")
    assert server.asked == 0 and (mine / "tinyshakespeare.txt").read_bytes() == b"other" and not cache.exists()


@pytest.mark.parametrize(
    "change", [{"body": GOOD[:-1] + b"?"}, {"body": b""}, {"status": 404}, {"body": GOOD[:50], "length": 2000}]
)
def test_a_wrong_answer_leaves_nothing(server, cache, tmp_path, change):
    vars(server).update(change)
    with pytest.raises(DataError) as error:
        sources.download("tinyshakespeare.txt")
    for part in ("tinyshakespeare.txt", server.url, sources.FILES["tinyshakespeare.txt"].sha256, "Nothing was kept"):
        assert part in str(error.value)
    if change.get("body") == GOOD[:-1] + b"?":
        assert hashlib.sha256(change["body"]).hexdigest() in str(error.value)
    assert server.asked == 2 and list(tmp_path.iterdir()) == []


def test_without_a_network_nothing_is_left(monkeypatch, cache, tmp_path):
    listed(monkeypatch, f"http://127.0.0.1:{closed_port()}/input.txt")
    with pytest.raises(DataError, match="could not be fetched"):
        sources.download("tinyshakespeare.txt")
    assert list(tmp_path.iterdir()) == []


def closed_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_loading_never_fetches(server):
    with pytest.raises(DataError, match="qkvlab data get"):
        load("tinyshakespeare")
    assert server.asked == 0


def test_inventory_tells_right_wrong_and_absent(mine):
    (mine / "digits8x8.npz").write_bytes(gzip.compress(b"no"))
    rows = {r["name"]: r for r in sources.inventory()}
    assert rows["digits8x8.npz"]["state"] == "wrong" and "digits8x8.npz" in rows["digits8x8.npz"]["message"]
    assert rows["tinyshakespeare.txt"]["state"] == "not fetched" and rows["mnist_10k.npz"]["state"] == "ok"
    assert rows["mnist_10k.npz"]["bytes"] == 1_650_884


def test_an_installed_wheel_has_its_own_copy(monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "__file__", str(tmp_path / "site-packages" / "qkvlab" / "tasks" / "sources.py"))
    assert sources.data_dir() == (tmp_path / "site-packages" / "data").resolve()
    (tmp_path / "site-packages" / "qkvlab" / "_data").mkdir(parents=True)
    assert sources.data_dir() == (tmp_path / "site-packages" / "qkvlab" / "_data").resolve()
