"""What holds for every notebook. What a lab's gates hide is opened by that lab's own test."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from qkvlab.course.labs import LABS, find

FOLDER = Path(__file__).parents[2] / "notebooks"
LABS_HERE = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
each = pytest.mark.parametrize("path", LABS_HERE, ids=lambda path: path.stem)


def load(path):
    spec = importlib.util.spec_from_file_location(f"lab_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_course_knows_exactly_these_notebooks():
    assert [path.stem for path in LABS_HERE] == [lab.stem for lab in LABS if lab.written]


def test_marimo_finds_nothing_to_complain_about():
    done = subprocess.run(
        [sys.executable, "-m", "marimo", "check", "--strict", "--format", "json", *map(str, LABS_HERE)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["summary"]["total_files"] == len(LABS_HERE)


@each
def test_it_runs_from_top_to_bottom(path):
    outputs, definitions = load(path).app.run()
    assert any(output is not None for output in outputs) and definitions


@each
def test_its_frame_is_the_courses(path):
    app = load(path).app
    lab = find(path.stem)
    config = app._config
    assert config.app_title.endswith(lab.title)
    assert config.css_file == "lab.css" and config.html_head_file == "head.html"
    calls = {
        node.func.attr: node.args[0].value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("outline", "header", "footer")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert calls == dict.fromkeys(("outline", "header", "footer"), lab.slug)
