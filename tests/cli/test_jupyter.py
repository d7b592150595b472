import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from qkvlab.cli import jupyter as verb
from qkvlab.cli import main


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Labs of two small files, and an empty current folder."""
    labs = tmp_path / "notebooks"
    labs.mkdir()
    for name, text in (("00_one", "one"), ("03_two_words", "two")):
        (labs / f"{name}.py").write_text(
            'import marimo\n\n__generated_with = "0.25.2"\napp = marimo.App()\n\n'
            "with app.setup:\n    import marimo as mo\n\n\n"
            f'@app.cell\ndef _():\n    mo.md("{text}")\n    return\n\n\nif __name__ == "__main__":\n    app.run()\n'
        )
    monkeypatch.setattr(verb, "labs_dir", lambda: labs)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return labs


def run(*args):
    result = CliRunner().invoke(main, ["jupyter", *map(str, args)])
    return result.exit_code, result.output


def test_writes_beside_the_labs_and_checks_what_is_there(small):
    assert run("--check")[0] == 1 and not (small / "jupyter").exists()
    code, said = run()
    assert code == 0 and "2 of 2 notebooks" in said
    assert sorted(path.name for path in (small / "jupyter").iterdir()) == ["00_one.ipynb", "03_two_words.ipynb"]
    assert run("--check")[0] == 0
    lab = small / "00_one.py"
    lab.write_text(lab.read_text().replace('"one"', '"uno"'))
    code, said = run("--check")
    assert code == 1 and "00_one.ipynb: stale; `qkvlab jupyter` makes it anew" in said and "1 of 2" in said
    assert run()[0] == 0 and '"uno"' in (small / "jupyter" / "00_one.ipynb").read_text()
    assert run("--check")[0] == 0


@pytest.mark.parametrize("name", ["03", "two_words", "03_two_words"])
def test_only_those_named_and_where_one_wants_them(small, tmp_path, name):
    assert run(name, "--out", tmp_path / "out" / "deep")[0] == 0
    assert [path.name for path in (tmp_path / "out" / "deep").iterdir()] == ["03_two_words.ipynb"]
    assert not (small / "jupyter").exists()


def test_a_name_that_is_none_is_told_what_there_is(small):
    code, said = run("03", "4")
    assert code == 2 and "no lab 4; there are 00_one, 03_two_words" in said


def test_what_a_reader_changed_is_kept_and_told(small):
    run()
    mine = small / "jupyter" / "00_one.ipynb"
    mine.write_text(mine.read_text().replace('"one"', '"mine"'))
    for args in ((), ("--check",)):
        code, said = run(*args)
        assert (
            code == 1 and "00_one.ipynb: edited, so left as it is; delete it" in said and '"mine"' in mine.read_text()
        )
    mine.unlink()
    assert run()[0] == 0 and '"one"' in mine.read_text()


def test_a_construct_without_counterpart_ends_with_its_line_and_no_traceback(small):
    lab = small / "03_two_words.py"
    lab.write_text(lab.read_text().replace('mo.md("two")', "mo.mermaid('a')"))
    code, said = run()
    assert code == 1 and "03_two_words.py, line 12: a Jupyter twin has no place for mo.mermaid" in said


def test_from_a_wheel_they_go_to_the_current_folder(small, tmp_path, monkeypatch):
    shipped = shutil.copytree(small, tmp_path / "site-packages" / "qkvlab" / "_notebooks")
    monkeypatch.setattr(verb, "labs_dir", lambda: shipped)
    assert run()[0] == 0
    assert [path.name for path in Path("qkvlab-labs/jupyter").iterdir()] and not (shipped / "jupyter").exists()


def test_jupyterlab_is_asked_for_by_its_command(small, monkeypatch):
    monkeypatch.setattr(verb, "find_spec", lambda name: None)
    code, said = run("--lab")
    assert code == 2 and "pip install -c constraints.txt -e '.[jupyter]'" in said
    assert run("--lab", "--check")[0] == 2


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_jupyterlab_opens_on_the_twins_for_this_machine_alone_and_ends_at_ctrl_c(tmp_path):
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "JUPYTERLAB_WORKSPACES_DIR")
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "qkvlab", "jupyter", "08", "--lab", "--no-browser", "--out", "mine"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {name: str(tmp_path / name) for name in names},
    )  # fmt: skip
    try:
        first = server.stdout.readline()
        base, token = re.search(
            r"(http://127\.0\.0\.1:\d+)/lab/tree/08_train_without_queries.ipynb\?token=(\S+)", first
        ).groups()

        def ask(path, data=None, **headers):
            request = urllib.request.Request(base + path, data, headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.read().decode()

        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask("/api/contents")
        mine = {"Authorization": f"token {token}"}
        assert [one["name"] for one in json.loads(ask("/api/contents", **mine))["content"]] == [
            "08_train_without_queries.ipynb"
        ]
        page = ask("/lab/tree/08_train_without_queries.ipynb", **mine)
        assert "@jupyterlab/apputils-extension:announcements" in page, "JupyterLab would ask the network for its news"
        assert "python3" in json.loads(ask("/api/kernelspecs", **mine))["kernelspecs"]
        ask("/api/kernels", b'{"name": "python3"}', **mine)
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        assert len(family) > 1
        listening = {c.laddr.ip for c in family[0].net_connections("tcp") if c.status == "LISTEN"}
        assert listening == {"127.0.0.1"}
        server.send_signal(signal.SIGINT)
        rest = server.communicate(timeout=30)[0]
        assert server.returncode == 0 and "Stopped." in rest and "Traceback" not in rest
        assert not psutil.wait_procs(family, timeout=10)[1]
    finally:
        server.kill()
        server.wait()
