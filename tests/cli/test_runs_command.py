import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from qkvlab.cli import main
from qkvlab.cli.runs import sparkline
from qkvlab.training.runs import list_runs


def runs(*args, out=None, text=None):
    return CliRunner().invoke(main, ["runs", *map(str, args), *(["--out", str(out)] if out else [])], input=text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    small = "--width 16 --layers 1 --heads 2 --batch 4 --length 6 --steps 6 --eval-every 2 --device cpu".split()  # noqa: SIM905
    for task, variants, seeds in (("reverse", "qkv,tie-kv", "2"), ("sort", "qkv", "1")):
        args = ["train", task, "--variants", variants, "--seeds", seeds, *small, "--out", str(out)]
        assert CliRunner().invoke(main, args).exit_code == 0
    return out


@pytest.fixture
def copy(trained, tmp_path):
    for run in trained.iterdir():
        (tmp_path / run.name).mkdir()
        for file in run.iterdir():
            (tmp_path / run.name / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_list(trained, tmp_path):
    shown = runs("list", out=trained).output
    facts = json.loads(runs("list", "--json", out=trained).stdout)
    assert len(facts) == 5
    for fact in facts:
        assert fact["name"] in shown and f"{fact['val_loss']:.4f}" in shown and fact["status"] == "done"
    empty = runs("list", out=tmp_path / "none")
    assert (
        empty.exit_code == 0
        and "No runs" in empty.output
        and json.loads(runs("list", "--json", out=tmp_path).stdout) == []
    )


def test_show(trained):
    name = next(trained.glob("reverse-tie-kv-s1-*")).name
    shown = runs("show", name, out=trained)
    assert (
        shown.exit_code == 0 and "variant=tie-kv" in shown.output and "accuracy" in shown.output and "▁" in shown.output
    )
    facts = json.loads(runs("show", name, "--json", out=trained).stdout)
    assert [r["step"] for r in facts["records"]] == [1, 2, 3, 4, 5, 6] and facts["config"]["seed"] == 1


def test_overlay_in_the_terminal(trained):
    shown = runs("overlay", "reverse-*", out=trained)
    assert shown.exit_code == 0 and len(shown.output.splitlines()) == 4
    assert all(any(c in line for c in "▁▂▃▄▅▆▇█") for line in shown.output.splitlines())
    curves = json.loads(runs("overlay", "--json", out=trained).stdout)
    assert all(curve["step"] == [2, 4, 6] for curve in curves)
    mixed = runs("overlay", out=trained)
    assert mixed.exit_code == 2 and "reverse, sort do not compare" in mixed.output


def test_overlay_as_a_page_asks_for_nothing(trained, tmp_path):
    page = tmp_path / "page.html"
    assert runs("overlay", "reverse-*", "--html", page, out=trained).exit_code == 0
    html = page.read_text(encoding="utf-8")
    asked = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            asked.extend((tag, name, value) for name, value in attrs if name in ("src", "href"))

    Tags().feed(html)
    assert asked == [] and html.count("<script") >= 2
    assert "qkv, 2 seeds" in html and "tie-kv, 2 seeds" in html
    refused = runs("overlay", "reverse-*", "--html", tmp_path / "no" / "page.html", out=trained)
    assert refused.exit_code == 2 and "cannot be written" in refused.output


def test_delete_asks(copy):
    refused = runs("delete", "reverse-*", out=copy, text="n\n")
    assert refused.exit_code == 1 and "Nothing was deleted" in refused.output and len(list_runs(copy)) == 5
    assert runs("delete", "reverse-*", out=copy, text="y\n").exit_code == 0
    assert [run.config.task for run in list_runs(copy)] == ["sort"]
    (name,) = json.loads(runs("delete", "sort-*", "--yes", "--json", out=copy).stdout)
    assert name.startswith("sort-qkv") and list(Path(copy).iterdir()) == []


def test_a_damaged_run_can_be_deleted_by_name_and_is_named_in_the_list(copy):
    damaged = next(copy.glob("sort-*"))
    (damaged / "records.jsonl").write_text("{}\n{}\n")
    listed = runs("list", out=copy)
    assert listed.exit_code == 0 and str(damaged / "records.jsonl") in listed.stderr
    assert runs("delete", damaged.name, "--yes", out=copy).exit_code == 0 and not damaged.exists()


def test_only_runs_of_the_folder_are_deleted(copy):
    run, model = next(copy.glob("sort-*")), copy / "a-model"
    for folder in (copy / "inner", model):
        folder.mkdir()
    for name in (f"../{run.name}", f"../inner/../{run.name}", str(run), ".", ".."):
        assert runs("delete", name, "--yes", out=copy / "inner").exit_code == 2
    (model / "config.json").write_text('{"architectures": []}')  # another program's
    done = runs("delete", "a-model", "--yes", out=copy)
    assert done.exit_code == 1 and "not the config.json of a run" in done.stderr
    assert len(list_runs(copy)) == 5 and (model / "config.json").exists()


@pytest.mark.parametrize("how", ["[]", "{", '{"status": "[/b]", "message": 7}'])
def test_how_a_run_ended_may_be_damaged(copy, how):
    damaged = next(copy.glob("sort-*"))
    (damaged / "status.json").write_text(how)
    assert damaged.name in runs("list", out=copy).stdout and runs("show", damaged.name, out=copy).exit_code == 0
    small = "--width 16 --layers 1 --heads 2 --batch 4 --length 6 --steps 6 --eval-every 2 --device cpu".split()  # noqa: SIM905
    again = CliRunner().invoke(main, ["train", "sort", "--variants", "qkv", *small, "--out", str(copy)])
    assert again.exception is None or isinstance(again.exception, SystemExit), again.exception


@pytest.mark.parametrize("verb", ["show", "overlay", "delete"])
def test_a_name_that_is_not_there_is_refused(trained, verb):
    done = runs(verb, "nothing-*", out=trained)
    assert done.exit_code == 2 and "no run 'nothing-*'" in done.output


def test_sparklines():
    assert sparkline([0, 7, 3.5]) == "▁█▅" or sparkline([0, 7, 3.5]) == "▁█▄"
    assert sparkline([1.0]) == "▁" and sparkline([2, 2]) == "▁▁"
    assert len(sparkline(list(range(1000)))) == 40 and sparkline(list(range(1000)))[-1] == "█"
    assert sparkline([1, 2], low=0, high=4) == "▃▅" or sparkline([1, 2], low=0, high=4) == "▃▄"
