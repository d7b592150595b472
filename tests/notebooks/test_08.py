"""Lab 08 says what is so: its counts against the model, its readings against the record, its gated cells really run."""

import importlib.util
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from qkvlab.course.exercises import exercises
from qkvlab.models.variants import variant
from qkvlab.training.shipped import shipped

PATH = Path(__file__).parents[2] / "notebooks" / "08_train_without_queries.py"
EXERCISES = {"ask_saved": "08-saved", "ask_mlp": "08-mlp", "ask_scale": "08-scale", "ask_paired": "08-paired"}
GUESSES = [
    "clearly worse: more than 0.1 nats",
    "a little worse: 0.01 to 0.1 nats",
    "the same: within 0.01 nats",
    "better: by more than 0.01 nats",
]


@pytest.fixture(scope="module")
def lab():
    spec = importlib.util.spec_from_file_location("lab_08", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def value(what, **more):
    return SimpleNamespace(value=what, **more)


def run(lab, **values):
    """The lab with controls set: all text on the page, and what its cells define."""
    settings = {
        "recipe_name": "paper", "scale": 1.0, "steps": 10, "seeds": 1, "everywhere": False, "decay": 0.1, "width": 16,
        "heads": 2, "device": "cpu", "size": "as set here",
    }  # fmt: skip
    defs = {}
    if set(settings) & set(values):
        defs = {name: value(values.get(name, default), options=["cpu"]) for name, default in settings.items()}
        defs["SIZES"] = {"as set here": {}}
    if "models" in values:
        arms = ["qkv", "identity-q", "identity-q:mlp=4.5", "qkv:mlp=3.5"]
        defs["ARMS"] = dict.fromkeys(arms, "")
        defs["models"] = value({arm: arm in values["models"] for arm in arms})
    if {"d_check", "sigma_check"} & set(values):
        defs["d_check"] = value(values.get("d_check", 128))
        defs["sigma_check"] = value(values.get("sigma_check", "0.554/√d, as in this course"))
    for name in ("prompt", "measure_here"):
        if name in values:
            defs[name] = value(values[name])
    if "guess" in values:
        defs["guess"], defs["GUESSES"] = value(values["guess"], options=GUESSES), GUESSES
    for name, key in EXERCISES.items():
        if name in values:
            defs[name] = value({key: values[name]})
    outputs, found = lab.app.run(defs=defs)
    return " ".join(output.text for output in outputs if hasattr(output, "text")), found


@pytest.fixture(scope="module")
def page(lab):
    return run(lab)


def test_as_it_opens(page):
    text, found = page
    assert found["panel"].status == "ready" and found["panel"].controller.steps == 600
    assert [arm["label"] for arm in found["panel"].arms] == ["Q, K, V", "W_Q=I"]
    assert text.count("Not tried yet") == len(EXERCISES) and "You made no prediction" in text
    assert "appears here when a run pauses" in text and "here" not in found


@pytest.mark.parametrize("d", [64, 768])
def test_the_spread_is_the_closed_form(lab, d):
    """LayerNorm's output has variance 1, so a query's standard deviation is sigma sqrt(d) with a matrix, 1 without."""
    text, found = run(lab, d_check=d, sigma_check="0.02, as in GPT-2")
    assert found["with_q"][0] == pytest.approx(0.02 * np.sqrt(d), rel=0.06)
    assert found["without_q"][0] == pytest.approx(1, rel=0.01)
    assert ("½ fits" in text) == (d == 768)


def test_the_counts_are_the_variants(lab):
    text, _ = run(lab, d_check=64)
    table = next(t for t in re.findall(r"<table>.*?</table>", text, re.S) if "optimiser memory (AdamW)" in t)
    counts = [int(n.replace(",", "")) for n in re.findall(r">([\d,]{6,})<", table)]
    norms = 4 * 2 * 64 + 64
    assert counts == [
        4 * (variant(slug).parameters(64, 4) + round(2 * mlp * 64 * 64)) + norms
        for slug, mlp in (("qkv", 4), ("identity-q", 4), ("identity-q", 4.5), ("qkv", 3.5))
    ]
    assert counts[0] == counts[2] and counts[1] == counts[3]


def test_the_readings_are_the_records(page):
    text, found = page
    run_, table = shipped("without-queries-fresh"), found["table"]
    for arm in run_.arms[1:]:
        pairs = run_.final(arm) - run_.final("qkv")
        assert table[arm].difference == pytest.approx(pairs.mean()) and f"{pairs.mean():+.4f}\u00a0±" in text
    tried = [loss for _, loss in found["ladders"]["identity-q"]]  # by rising scale, from paper A's on
    assert f"<strong>{tried[0] - min(tried):.3f}</strong>" in text
    null = max(abs(a - b) for a in run_.final("qkv") for b in run_.final("qkv"))
    assert f"<strong>{null:.4f}</strong>" in text
    for number in (3.016, 3.018, 3.004, 3.026):  # paper A's table
        assert f"{number}<" in text or f"{number} " in text


def test_train_runs_and_the_models_write(lab):
    """The run button, the training and the cells behind them: pressed, not skipped."""
    _, found = run(lab, steps=10, models=["qkv", "identity-q", "qkv:mlp=3.5"], seeds=2, scale=2.0)
    panel = found["panel"]
    assert [arm["label"] for arm in panel.arms] == ["Q, K, V", "W_Q=I, scale 2", "Q, K, V, MLP ×3.5"]
    panel._receive(panel, {"command": "play"}, [])
    end = time.monotonic() + 60
    while panel.status not in ("done", "error"):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert panel.status == "done", panel.message
    assert found["grid"].about["tokens"] == [c.replace(" ", "␣") for c in "To be, or not to be, that is"]
    live = panel.controller
    assert all(len(t.records) == 10 for group in live.trainers for t in group) and "2 seeds, paired" in panel.finding
    text, _ = lab.app.run(
        defs={
            "panel": panel,
            "grid": found["grid"],
            "panel_view": value(None),
            "configs": found["configs"],
            "problem": "",
        }
        | {"attached": True}
    )
    text = " ".join(o.text for o in text if hasattr(o, "text"))
    assert text.count("after 10 steps") == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 18, "heads": 4}, "width"),
        ({"width": None}, "a number is missing"),
        ({"models": []}, "at least one model"),
    ],
)
def test_settings_that_cannot_be_are_named(lab, settings, words):
    text, found = run(lab, **{"steps": 10, **settings})
    assert words in found["problem"] and "Nothing is lost" in text and found["configs"] == []


def test_a_text_with_unknown_characters_is_named(lab):
    text, found = run(lab, prompt="日本")
    assert "U+65E5" in text and found["text"].startswith("To be")
    text, found = run(lab, prompt="")
    assert "at least one character" in text


def test_fast_comes_with_a_warning(lab, page):
    assert "hides what this lab asks" in run(lab, recipe_name="fast")[0] and "hides what this" not in page[0]


def test_a_step_can_be_measured_here(lab):
    _, found = run(lab, measure_here=True)
    assert set(found["here"]) == set(shipped("without-queries").arms)
    saved = found["here"]["qkv"]["optimiser_bytes"] - found["here"]["identity-q"]["optimiser_bytes"]
    config = shipped("without-queries").config("qkv").model
    gone = 2 * 4 * config.layers * config.width**2  # two float32 numbers for each parameter
    assert saved == gone + 4 * config.layers  # and the step counter of each matrix


def test_predictions_are_kept_and_compared(lab):
    gap = (shipped("without-queries-fresh").final("identity-q") - shipped("without-queries-fresh").final("qkv")).mean()
    truth = GUESSES[0 if gap > 0.1 else 1 if gap > 0.01 else 2 if gap >= -0.01 else 3]
    text, _ = run(lab, guess=truth, **{name: exercises()[key].answer for name, key in EXERCISES.items()})
    assert "and so it is" in text and text.count("Right.") == len(EXERCISES)
    text, _ = run(lab, guess=GUESSES[0] if truth != GUESSES[0] else GUESSES[3], ask_mlp="5")
    assert "It turned out" in text and "twice what" in text
