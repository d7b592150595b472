"""Labs 00 and 01: their gates opened, their numbers against what the course says elsewhere."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import marimo as mo
import numpy as np
import pytest

from qkvlab.course import minilm

FOLDER = Path(__file__).parents[2] / "notebooks"


def load(name):
    import importlib.util

    spec = importlib.util.spec_from_file_location(f"gated_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


def page(outputs):
    return "\n".join(mo.as_html(output).text for output in outputs if output is not None)


def put(**values):
    return {name: SimpleNamespace(value=value, text="") for name, value in values.items()}


CHOSEN = {"sentence": 1, "layer": 1, "head": 3, "temperature": 1.0, "mask": False}


def test_00_the_map_without_a_query_matrix_is_the_same_map():
    outputs, names = load("00_start_here").run()
    assert names["difference"] < 1e-12
    assert "cannot tell" not in page(outputs).split("Which has no query matrix")[0]


@pytest.mark.parametrize(("choice", "said"), [("I cannot tell", "Nobody can."), ("A has none", "one chance in two")])
def test_00_answers_every_guess(choice, said):
    answer = "The two maps differ by **2e-13**."
    outputs, _ = load("00_start_here").run(defs=put(guess=choice) | {"answer": answer})
    assert said in page(outputs) and "2e-13" in page(outputs)


def test_00_the_button_checks_the_machine_and_times_a_step():
    outputs, names = load("00_start_here").run(defs=put(look=True))
    assert {"Python", "Memory", "Data", "Disk"} <= {check.name for check in names["checks"]}
    assert names["milliseconds"] > 0 and "a training step" in page(outputs)


def test_01_is_what_the_model_computed_until_the_mask_changes():
    app = load("01_three_projections")
    _, names = app.run(defs=put(**CHOSEN | {"layer": 4, "head": 9}))
    reference = minilm.load().sentences[1].maps[3, 8]
    assert np.abs(names["A"] - reference).max() < 7e-4
    _, hot = app.run(defs=put(**CHOSEN | {"temperature": 5.0}))
    assert np.abs(hot["tempered"] - hot["A"]).max() > 0.1
    assert hot["tempered"].max(axis=1).mean() < hot["A"].max(axis=1).mean()
    _, masked = app.run(defs=put(**CHOSEN | {"mask": True}))
    assert (np.triu(masked["A"], 1) == 0).all()
    np.testing.assert_allclose(masked["A"].sum(axis=1), 1)


@pytest.mark.parametrize(
    ("place", "kappa", "holds"),
    [("inside", 0, True), ("inside", 6, True), ("inside", 12, True), ("alone", 1, False), ("across", 1, False)],
)
def test_01_the_gauge_holds_inside_a_head_and_nowhere_else(place, kappa, holds):
    outputs, names = load("01_three_projections").run(defs=put(place=place, log_kappa=kappa) | {"places": {}})
    assert names["holds"] is holds
    assert (names["map_gap"] > 0.01) is not holds
    assert ("exact up to rounding" if holds else ">fails<") in page(outputs)


def test_01_the_count_waits_for_a_prediction_and_then_agrees_with_the_claim():
    app = load("01_three_projections")
    _, names = app.run()
    assert "dead" not in names
    freedom = names["freedom"]
    guess = SimpleNamespace(value=next(iter(freedom)), options=list(freedom), text="")
    for width in (1, 4, 8):
        outputs, names = app.run(defs=put(small=width) | {"guess": guess, "freedom": freedom})
        assert names["dead"] == width**2 and len(names["singular"]) == 2 * 12 * width
    html = page(outputs)
    assert "the count agrees" in html and "You predicted" in html and "32 × 32" in html


def test_01_the_price_of_gpt2_small_is_the_published_one():
    """Wang and Wang (2025): over 1.1 million redundant directions in GPT-2 small."""
    outputs, names = load("01_three_projections").run()
    assert 12 * names["price"] == 1_179_648
    assert names["price"] == 2 * 768 * 64
    assert "98,304" in page(outputs)


def test_01_ties_make_scores_symmetric_and_weights_not():
    app = load("01_three_projections")
    for layer, head in ((1, 3), (3, 10), (5, 10)):
        _, names = app.run(defs=put(**CHOSEN | {"layer": layer, "head": head}))
        assert names["symmetry"][1] == pytest.approx(1) and names["symmetry"][0] < 0.95
        assert names["apart"] > 1e-3
    assert names["trained_circuits"].mean() > 10 * np.abs(names["random_circuits"]).mean()


def test_the_first_two_labs_do_not_wait_for_torch():
    code = (
        "import importlib.util, sys\n"
        "for path in sys.argv[1:]:\n"
        "    spec = importlib.util.spec_from_file_location('lab', path)\n"
        "    module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module); module.app.run()\n"
        "print('torch' in sys.modules)\n"
    )
    paths = [str(FOLDER / f"{name}.py") for name in ("00_start_here", "01_three_projections")]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, cwd=FOLDER.parent)
    assert done.stdout.strip() == "False", done.stderr
