import json

import pytest
from click.testing import CliRunner

from qkvlab.cli.data import command
from qkvlab.tasks import DataError, sources


@pytest.fixture(autouse=True)
def nothing_of_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("QKVLAB_DATA", raising=False)
    monkeypatch.setattr(sources, "cache_dir", lambda: tmp_path / "cache")


def run(*words):
    return CliRunner().invoke(command, words)


def test_list_shows_every_file():
    done = run("list")
    assert done.exit_code == 0
    assert all(name in done.output for name in sources.FILES) and "qkvlab data get tinyshakespeare" in done.output


def test_no_verb_lists():
    assert run().output == run("list").output


def test_list_as_json():
    rows = json.loads(run("list", "--json").output)
    assert {r["name"]: r["state"] for r in rows} == {
        n: "not fetched" if f.url else "ok" for n, f in sources.FILES.items()
    }


def test_a_damaged_file_is_exit_code_1(monkeypatch, tmp_path):
    (tmp_path / "mnist_10k.npz").write_bytes(b"no")
    monkeypatch.setenv("QKVLAB_DATA", str(tmp_path))
    done = run("list")
    assert done.exit_code == 1 and "mnist_10k.npz is not the expected file" in done.output


def test_get(monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "download", lambda name, progress: tmp_path / name)
    assert json.loads(run("get", "tinyshakespeare", "--json").output)["path"] == str(tmp_path / "tinyshakespeare.txt")
    assert run("get", "enwik9").exit_code == 2

    def fails(name, progress):
        raise DataError("no network today")

    monkeypatch.setattr(sources, "download", fails)
    for words in (("get", "tinyshakespeare"), ("get", "tinyshakespeare", "--json")):
        done = run(*words)
        assert done.exit_code == 1 and "no network today" in done.output and "Traceback" not in done.output
