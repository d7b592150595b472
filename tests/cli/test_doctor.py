import json
import shutil
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from qkvlab.cli import doctor, main


def run(*args):
    return CliRunner().invoke(main, ["doctor", *args])


def checks():
    return {row["name"]: row for row in json.loads(run("--json").output)}


@pytest.fixture(scope="module")
def here():
    return checks()


def test_json_and_text_say_the_same(here):
    rows = json.loads(run("--json").output)
    names = {row["name"] for row in rows}
    assert {"Python", "Threads", "Memory", "Device", "Labs", "Data", "Disk", "Browser tests"} <= names
    lines = [line for line in run().output.splitlines() if not line.startswith("      ")]
    assert [line.split(": ")[0].split(maxsplit=1) for line in lines] == [[r["state"], r["name"]] for r in rows]
    assert all(row["todo"] for row in rows if row["state"] != "OK")


def test_exit_code_says_whether_a_check_failed(here):
    assert run().exit_code == any(row["state"] == "FAIL" for row in here.values())


def test_data_of_this_checkout_is_whole(here):
    assert here["Data"]["state"] == "OK", here["Data"]


def test_a_damaged_data_file_fails_by_name(tmp_path, monkeypatch):
    (tmp_path / "digits8x8.npz").write_bytes(b"not these bytes")
    monkeypatch.setenv("QKVLAB_DATA", str(tmp_path))
    result = run()
    assert result.exit_code == 1
    assert "FAIL  Data: digits8x8.npz" in result.output and "sha256" in result.output


def test_versions_are_compared_on_their_public_part(monkeypatch):
    import importlib.metadata as metadata

    dists = [SimpleNamespace(metadata={"Name": name}, version=version) for name, version in
             [("torch", "2.13.0+cpu"), ("Markdown_It.py", "9"), ("numpy", "2.4.6")]]  # fmt: skip
    monkeypatch.setattr(metadata, "distributions", lambda: dists)
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy>=2.0", "scipy; extra == 'test'"])
    monkeypatch.setattr(doctor, "constraints", lambda: {"torch": "2.13.0", "markdown-it-py": "4.3.0", "numpy": "2.4.6"})
    (row,) = doctor.packages()
    assert row.state == "WARN" and row.found == "1 of 3 untested: markdown-it-py 9 (tested 4.3.0)"


def test_a_package_that_is_missing_or_too_old_fails(monkeypatch):
    import importlib.metadata as metadata

    dists = [SimpleNamespace(metadata={"Name": "numpy"}, version="1.26")]
    monkeypatch.setattr(metadata, "distributions", lambda: dists)
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy>=2.0", "torch>=2.9"])
    first = next(iter(doctor.packages()))
    assert (
        first.state == "FAIL" and "numpy>=2.0 (found 1.26)" in first.found and "torch>=2.9 (found none)" in first.found
    )


@pytest.mark.parametrize("free, state", [(50e9, "OK"), (5e8, "WARN"), (5e7, "FAIL")])
def test_disk(free, state, monkeypatch, tmp_path):
    monkeypatch.setenv("QKVLAB_RUNS", str(tmp_path / "not" / "yet" / "there"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    row = doctor.disk()
    assert row.state == state and str(tmp_path) in row.found
    assert not list(tmp_path.iterdir()), "a check changes nothing"


def test_a_file_where_runs_should_go(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QKVLAB_RUNS", str(tmp_path / "file"))
    row = doctor.disk()
    assert row.state == "FAIL" and "is a file" in row.found


@pytest.mark.parametrize("version, state", [((3, 10, 9), "FAIL"), ((3, 12, 1), "OK"), ((3, 15, 0), "WARN")])
def test_python(version, state, monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", version)
    assert doctor.python().state == state


def test_no_browser_is_a_warning_for_developers(monkeypatch):
    monkeypatch.setattr(doctor, "find_chromium", lambda: None)
    row = doctor.browser()
    assert row.state == "WARN" and "developers" in row.todo and "CHROMIUM" in row.todo


def test_a_browser_alone_runs_no_browser_test(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "find_chromium", lambda: "/usr/bin/chromium")
    row = doctor.browser()
    assert row.state == "WARN" and row.found == "playwright is not installed"


def test_a_check_that_breaks_fails_and_the_others_go_on(monkeypatch):
    def torch():
        raise OSError("libtorch is broken")

    monkeypatch.setattr(doctor, "CHECKS", (torch, doctor.python))
    broken, python = doctor.examine()
    assert (broken.state, broken.name, broken.found) == ("FAIL", "Torch", "OSError: libtorch is broken")
    assert (python.state, python.name) == ("OK", "Python")
