"""Shipped runs: what lies in data/runs is complete and true, and `qkvlab reproduce` can say no."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy import stats

from qkvlab.cli.reproduce import command
from qkvlab.tasks import DataError
from qkvlab.training import experiments, shipped
from qkvlab.training.experiments import EXPERIMENTS, ladder
from qkvlab.training.shipped import shipped_names

TINY = replace(
    EXPERIMENTS["without-queries"],
    name="tiny",
    settings={"task": "copy", "length": 4, "steps": 50, "batch": 8, "eval_every": 25, "device": "cpu",
              "width": 16, "layers": 1, "heads": 1},
    scale_steps=10,
    arms={"qkv": "", "identity-q": "", "qkv:mlp=3.5": "qkv"},
    seeds=(1, 2),
    lrs=(4e-3, 8e-3),
    scales=(1.0,),
)  # fmt: skip


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """An experiment of a second, data that starts empty, and the command line."""
    monkeypatch.setitem(experiments.EXPERIMENTS, "tiny", TINY)
    monkeypatch.setattr(experiments, "cost", lambda *_: {})  # measured in the shipped record alone
    monkeypatch.setattr(experiments, "QUICK", 25)
    monkeypatch.setattr(shipped, "data_dir", lambda: tmp_path)
    monkeypatch.setenv("QKVLAB_RUNS", str(tmp_path / "work"))
    shipped.shipped.cache_clear()
    yield lambda *words: CliRunner().invoke(command, [*words])
    shipped.shipped.cache_clear()


def test_write_then_repeat_then_a_changed_record(lab, tmp_path):
    assert lab("tiny").exit_code == 2  # nothing shipped yet
    made = lab("tiny", "--write", str(tmp_path / "runs"))
    assert made.exit_code == 0, made.output
    path = tmp_path / "runs" / "tiny" / "record.json"
    record = json.loads(path.read_text())
    assert sorted(p.name for p in path.parent.iterdir()) == ["identity-q.safetensors", "qkv.safetensors", "record.json"]

    again = lab("tiny", "--json")
    assert again.exit_code == 0, again.output
    rows = json.loads(again.output)["runs"]
    assert len(rows) == 6 and all(row["again"] == row["shipped"] for row in rows)  # same machine: the same bits
    assert lab("tiny", "--quick").exit_code == 0

    record["runs"][-1]["val_loss"] += 2 * TINY.band
    path.write_text(json.dumps(record))
    shipped.shipped.cache_clear()
    changed = lab("tiny")
    assert changed.exit_code == 1 and "5 of 6 runs" in changed.output and "DIFFERS" in changed.output

    path.write_text("{")
    shipped.shipped.cache_clear()
    with pytest.raises(DataError, match="record.json is damaged"):
        shipped.shipped("tiny")


def test_an_interrupted_experiment_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "cost", lambda *_: {})
    whole = experiments.write(TINY, tmp_path / "a", tmp_path / "out_a", lambda row: None)
    said = []

    def interrupt(row):
        said.append(row)
        if len(said) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiments.write(TINY, tmp_path / "b", tmp_path / "out_b", interrupt)
    done = {p: p.stat().st_mtime_ns for p in (tmp_path / "b").glob("*/result.json")}
    parts = experiments.write(TINY, tmp_path / "b", tmp_path / "out_b", lambda row: None)
    assert len(done) == 7 and all(p.stat().st_mtime_ns == at for p, at in done.items())
    a, b = (json.loads((p / "record.json").read_text()) for p in (whole, parts))
    losses = lambda record: [(r["arm"], r["seed"], r["val_loss"], r["curve"]) for r in record["runs"]]
    assert losses(a) == losses(b) and a["chosen"] == b["chosen"]


def test_a_confirmation_takes_what_was_chosen_and_tunes_nothing(lab, tmp_path, monkeypatch):
    again = replace(TINY, name="again", seeds=(3,), tuned_by="tiny", weights=())
    monkeypatch.setitem(experiments.EXPERIMENTS, "again", again)
    for name in ("tiny", "again"):
        made = lab(name, "--write", str(tmp_path / "runs"))
        assert made.exit_code == 0, made.output
    first, second = (json.loads((tmp_path / "runs" / name / "record.json").read_text()) for name in ("tiny", "again"))
    assert second["chosen"] == first["chosen"] and first["tuning"] and not second["tuning"]
    assert [(run["seed"], run["lr"]) for run in second["runs"]] == [
        (3, first["chosen"][arm]["lr"]) for arm in TINY.arms
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "no experiment is called 'nothing': there are without-queries"),
        (["without-queries", "--quick", "--write", "x"], "choose one"),
        (["without-queries", "--threads", "0"], "'--threads': 0 is not in the range"),
    ],
)
def test_wrong_requests_are_code_2(words, message):
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2 and message in result.output


def test_the_ladder_goes_on_past_an_end_and_survives_divergence():
    asked = []

    def loss(value):
        asked.append(value)
        return None if value > 8 else abs(np.log2(value) - 3)  # best at 8, diverges beyond

    assert ladder((1.0, 2.0), loss) == 8.0 or asked == [1.0, 2.0, 4.0, 8.0]
    assert ladder((2.0, 4.0, 8.0), loss) == 8.0 and asked[-1] == 16.0


# What is shipped


def test_all_shipped_runs_together_are_below_ten_megabytes():
    files = [p for p in (shipped.data_dir() / "runs").rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 10_000_000


@pytest.fixture(params=shipped_names())
def run(request):
    return shipped.shipped(request.param)


def test_a_shipped_run_says_who_made_it_and_how(run):
    made = run.provenance
    assert made["command"] == f"qkvlab reproduce {run.name} --write data/runs"
    assert (
        len(made["commit"]) == 40
        and made["machine"]
        and made["date"][:2] == "20"
        and set(made["versions"]) >= {"torch"}
    )
    assert not re.search(r'"(/|~|[A-Z]:)', json.dumps(run.record))  # no path of the machine that made it
    assert run.record["experiment"]["band"] > 0


def test_shipped_arms_have_the_same_seeds_none_of_them_the_tuning_seed(run):
    assert len(run.seeds) >= 3
    for arm in run.arms:
        assert [r["seed"] for r in run.record["runs"] if r["arm"] == arm] == list(run.seeds)
        tuned = shipped.shipped(run.record["experiment"].get("tuned_by") or run.name)
        if tuned.name != run.name:
            assert run.chosen == tuned.chosen and not run.tuning and not set(run.seeds) & set(tuned.seeds)
        trials = [t for t in tuned.tuning if t["arm"] == arm]
        assert not {t["seed"] for t in trials} & set(run.seeds)
        full = [t for t in trials if t["steps"] == run.config(arm).steps and t["val_loss"]]
        best = min(full, key=lambda t: t["val_loss"])
        assert {"lr": best["lr"], "logit_scale": best["logit_scale"]} == run.chosen[arm]
        assert min(t["lr"] for t in full) < best["lr"] < max(t["lr"] for t in full)  # both neighbours are worse


def test_the_shipped_table_is_the_paired_t_interval(run):
    first, *others = run.table()
    reference = run.final(run.arms[0])
    assert first.label == run.arms[0] and first.mean == pytest.approx(reference.mean())
    for row in others:
        difference = run.final(row.label) - reference
        low, high = stats.ttest_1samp(difference, 0).confidence_interval(0.95)
        assert row.difference == pytest.approx(difference.mean())
        assert row.interval == pytest.approx((high - low) / 2, rel=1e-3)


def test_shipped_curves_end_where_the_runs_end(run):
    for arm in run.arms:
        steps, losses = run.curve(arm)
        assert steps[-1] == run.config(arm).steps and losses.shape == (len(run.seeds), len(steps))
        assert np.all(np.abs(losses[:, -1] - run.final(arm)) < 0.1)  # a sample of the whole validation part
        assert np.all(losses[:, -1] < losses[:, 0])


def test_shipped_weights_have_the_loss_the_record_says(run):
    for arm in run.record["experiment"]["weights"]:
        model, config = run.model(arm), run.config(arm)
        x, y = shipped.tasks.load(config.task, tokens=config.tokens).validation(config.model.context, 200)
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
        assert loss == pytest.approx(run.final(arm)[0], abs=0.06)  # 200 of some 1,500 windows, weights in float16
        assert not torch.is_grad_enabled() or not model.training
    with pytest.raises(ValueError, match="ships no weights of 'qkv:mlp=3.5'"):
        run.model("qkv:mlp=3.5")
    with pytest.raises(ValueError, match="has no arm 'tie-kv'"):
        run.curve("tie-kv")


def test_an_unknown_shipped_run_is_refused():
    with pytest.raises(ValueError, match="no shipped run is called 'x'"):
        shipped.shipped("x")


@pytest.mark.parametrize("content", ["[]", "null", "{", '{"configs": {}}'])
def test_a_damaged_record_is_named(content, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "data_dir", lambda: tmp_path)
    (tmp_path / "runs" / "broken").mkdir(parents=True)
    (tmp_path / "runs" / "broken" / "record.json").write_text(content)
    shipped.shipped.cache_clear()
    with pytest.raises(DataError, match=r"broken.record\.json is damaged .*git checkout"):
        shipped.shipped("broken")
    shipped.shipped.cache_clear()
