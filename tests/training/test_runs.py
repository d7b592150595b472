import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from qkvlab.tasks import sources
from qkvlab.training.checkpoint import Record
from qkvlab.training.runs import (
    Run,
    RunError,
    delete_run,
    labels,
    list_runs,
    load_run,
    run_id,
    runs_dir,
    summary,
    t_quantile,
)
from qkvlab.training.trainer import RunConfig, Trainer


def made_up(variant, seed, loss, status="done", accuracy=None, **settings):
    config = RunConfig(seed=seed, **settings)
    config = replace(config, model=replace(config.model, variant=variant))
    records = [Record(1, 9.0, 1e-3, 1.0, 0.5), Record(2, 8.0, 1e-3, 1.0, 2.0, loss, accuracy)]
    return Run(Path(f"{variant}-{seed}"), config, records, status, "", {"parameters": 10, "unit": "nats"})


def test_quantiles_are_scipys():
    for freedom in range(1, 300):
        assert t_quantile(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-7)


def test_summary_is_scipys_paired_test():
    rng = np.random.default_rng(0)
    base, other = rng.normal(2, 0.1, 5), rng.normal(2.1, 0.1, 5)
    runs = [made_up(v, s, x) for v, xs in (("qkv", base), ("identity-q", other)) for s, x in enumerate(xs)]
    first, second = summary(runs)
    assert (first.label, second.label) == ("qkv", "identity-q")
    assert first.mean == pytest.approx(base.mean()) and first.spread == pytest.approx(base.std(ddof=1))
    assert first.difference is None and first.interval is None
    test = scipy.stats.ttest_rel(other, base)
    low, high = test.confidence_interval(0.95)
    assert second.difference == pytest.approx((low + high) / 2)
    assert second.interval == pytest.approx((high - low) / 2, rel=1e-7)
    assert (second.seeds, second.failed, second.seconds, second.parameters) == (5, 0, 2.0, 10)


def test_summary_pairs_by_seed_and_leaves_failed_runs_out():
    runs = [
        made_up("qkv", 0, 1.0), made_up("qkv", 1, 2.0), made_up("qkv", 2, 4.0), made_up("qkv", 3, 9.0, "diverged"),
        made_up("tie-kv", 2, 4.5), made_up("tie-kv", 0, 1.5), made_up("tie-kv", 1, 9.0, "diverged"),
        made_up("tie-kv", 3, 7.0),
        made_up("tie-qk", 0, 3.0, "unfinished"),
    ]  # fmt: skip
    qkv, tied, none = summary(runs)
    assert (qkv.seeds, qkv.failed, qkv.mean) == (3, 1, pytest.approx(7 / 3))
    assert (tied.seeds, tied.failed, tied.difference, tied.interval) == (3, 1, pytest.approx(0.5), pytest.approx(0))
    assert (none.seeds, none.failed, none.mean, none.spread, none.difference) == (0, 1, None, None, None)
    assert summary([]) == []


def test_accuracy_is_averaged_where_there_is_one():
    arm = summary([made_up("qkv", 0, 1.0, accuracy=0.5), made_up("qkv", 1, 1.0, accuracy=0.7)])[0]
    assert arm.accuracy == pytest.approx(0.6)
    assert json.loads(json.dumps(vars(arm)))["accuracy"] == arm.accuracy


def test_labels_say_what_differs_and_only_that():
    runs = [made_up("qkv", 0, 1.0), made_up("tie-kv", 0, 1.0, lr=0.1), made_up("tie-kv", 1, 1.0, lr=0.2)]
    assert labels(runs) == ["qkv", "tie-kv:lr=0.1", "tie-kv:lr=0.2"]
    assert [arm.label for arm in summary(runs)] == labels(runs)
    assert [arm.label for arm in summary(runs, ["a", "b", "b"])] == ["a", "b"]


def test_equal_settings_share_an_id(tiny):
    config = tiny()
    assert run_id(config) == run_id(replace(config, device="auto"))
    others = [tiny(seed=1), tiny(steps=9), tiny(variant="tie-kv"), tiny(width=18), tiny(task="sort")]
    assert len({run_id(c) for c in [config, *others]}) == 6
    assert run_id(config).startswith("reverse-qkv-s0-")


def test_an_id_outlives_new_settings(monkeypatch, tiny):
    before = run_id(tiny())
    settings = RunConfig.settings
    monkeypatch.setattr(RunConfig, "settings", lambda self: settings(self) | {"a_new_one": "its default"})
    assert run_id(tiny()) == before


def test_where_runs_are_kept(monkeypatch, tmp_path):
    assert runs_dir(tmp_path) == tmp_path
    monkeypatch.setenv("QKVLAB_RUNS", str(tmp_path / "mine"))
    assert runs_dir() == tmp_path / "mine" and runs_dir("here") == Path("here")
    monkeypatch.delenv("QKVLAB_RUNS")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    places = {"linux": ".local/share", "darwin": "Library/Application Support", "win32": "local"}
    for system, place in places.items():
        monkeypatch.setattr(sources.sys, "platform", system)
        assert runs_dir() == tmp_path / place / "qkvlab" / "runs"


def test_runs_are_listed_loaded_and_deleted(tiny, tmp_path):
    done, half, bare = (
        Trainer(tiny(), tmp_path / "a"),
        Trainer(tiny(seed=1), tmp_path / "b"),
        Trainer(tiny(), tmp_path / "c"),
    )
    list(done)
    list(itertools.islice(half, 4))
    assert bare.status == "ready"
    runs = {run.name: run for run in list_runs(tmp_path)}
    assert [runs[name].status for name in "abc"] == ["done", "unfinished", "unfinished"]
    assert runs["a"].config == tiny() and runs["a"].records == done.records
    assert runs["a"].val_loss == done.records[-1].val_loss and runs["a"].seconds == done.seconds
    assert runs["a"].made["parameters"] == done.parameters
    assert (len(runs["b"].records), runs["c"].val_loss, runs["c"].seconds) == (3, None, 0.0)
    half.stop()
    assert (
        load_run(tmp_path / "b").status == "interrupted" and "goes on from step 4" in load_run(tmp_path / "b").message
    )
    next(Trainer(tiny(seed=1), tmp_path / "b"))
    assert load_run(tmp_path / "b").status == "unfinished"  # it has gone on: how it ended before is no longer true

    (tmp_path / "a" / "notes.txt").write_text("mine")
    delete_run(tmp_path / "a")
    delete_run(tmp_path / "b")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["notes.txt"] and not (tmp_path / "b").exists()
    for folder in (tmp_path / "a", tmp_path / "b", tmp_path):
        with pytest.raises(RunError, match="holds no run"):
            delete_run(folder)
    assert (tmp_path / "c").exists() and (tmp_path / "a" / "notes.txt").exists()


@pytest.mark.parametrize("name", ["config.json", "records.jsonl"])
def test_a_damaged_run_is_named_and_the_others_are_listed(tiny, tmp_path, name):
    for folder in ("a", "b"):
        list(Trainer(tiny(), tmp_path / folder))
    (tmp_path / "a" / name).write_text("{}\n{}\n")
    problems = []
    assert [run.name for run in list_runs(tmp_path, problems)] == ["b"]
    assert len(problems) == 1 and str(tmp_path / "a" / name) in problems[0]
    with pytest.raises(RunError, match=name):
        load_run(tmp_path / "a")
    with pytest.raises(RunError, match="holds no run"):
        load_run(tmp_path / "nothing")
