"""Lab 02 says what is so: its numbers against torch, against the model's own maps and against the theory."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from qkvlab.course.exercises import exercises

PATH = Path(__file__).parents[2] / "notebooks" / "02_change_of_basis.py"


@pytest.fixture(scope="module")
def lab():
    spec = importlib.util.spec_from_file_location("lab_02", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(lab, **values):
    """The lab with controls set: all text on the page, and what its cells define."""
    cells = {
        ("which", "power", "line"): ("random", 1, 1),
        ("heads", "causal", "rope", "forgotten"): ("2", True, False, "none"),
        ("stretch",): (4,),
        ("erased", "head", "layer", "precision"): ("W_Q", 1, 3, "float64"),
        ("guess",): (None,),
        **{(name,): ({key: None},) for name, key in EXERCISES.items()},
    }
    options = ["nothing: every digit agrees", "rounding: 12 digits agree", "a little: 3 digits agree"]
    defs = {}
    for names, defaults in cells.items():
        if set(names) & set(values):
            for name, default in zip(names, defaults, strict=True):
                defs[name] = SimpleNamespace(value=values.get(name, default), options=options)
    outputs, found = lab.app.run(defs=defs)
    return " ".join(output.text for output in outputs if hasattr(output, "text")), found


EXERCISES = {
    "side": "02-which-side",
    "layout": "02-torch-layout",
    "digits": "02-digits-left",
    "bias": "02-bias",
    "surgery": "02-surgery",
}


@pytest.fixture(scope="module")
def page(lab):
    return run(lab)


def states(text):
    return re.findall(r'class="state state-(\w+)"', text)


def test_as_it_opens(page):
    text, found = page
    assert found["error"] < 1e-14
    assert text.count('class="proof-line') == 1 and "5 more lines" in text
    assert text.count("Not tried yet") == len(EXERCISES)
    assert "You made no prediction" in text


def test_its_attention_is_torchs(page):
    attend = page[1]["attend"]
    q, k, v = np.random.default_rng(0).standard_normal((3, 5, 12))
    heads = [torch.tensor(m).reshape(5, 3, 4).transpose(0, 1) for m in (q, k, v)]
    for causal in (False, True):
        expected = scaled_dot_product_attention(*heads, is_causal=causal).transpose(0, 1).reshape(5, 12)
        np.testing.assert_allclose(attend(q, k, v, 3, causal)[2], expected.numpy(), atol=1e-14)


def test_rope_sees_distances_alone(lab):
    """The score of two rotated vectors depends on how far apart they stand, and on nothing else."""
    q, k = np.random.default_rng(0).standard_normal((2, 1, 1, 8))
    scores = (lab.rotate(np.repeat(q, 9, 1)) @ lab.rotate(np.repeat(k, 9, 1)).swapaxes(1, 2))[0]
    for distance in range(-8, 9):
        np.testing.assert_allclose(np.diag(scores, distance), np.diag(scores, distance)[0], atol=1e-12)
    assert np.ptp(scores[0]) > 0.1


@pytest.mark.parametrize("name", ["Q", "K", "V"])
def test_the_trained_model_without_a_matrix(page, lab, name):
    """Its maps are those the model itself computed, up to the half precision of the file, and no digit moves."""
    attend, products, erase, trained = (page[1][f] for f in ("attend", "products", "erase", "trained"))
    _, x, w = trained(4, 0)
    _, maps, output = attend(*products(x, w), 12)
    np.testing.assert_allclose(maps, lab.MODEL.sentences[0].maps[4], atol=2e-3)
    new = erase(w, name)
    assert new[name] is None
    _, maps_after, output_after = attend(*products(x @ w[name] + w[name.lower()], new), 12)
    np.testing.assert_allclose(maps_after, maps, atol=1e-10)
    np.testing.assert_allclose(output_after, output, atol=1e-9)


def test_bases_the_proof_can_be_shown_for(lab):
    text, found = run(lab, which="W_K", line=6, power=3)
    np.testing.assert_allclose(found["new_W"]["W_K"], np.eye(8), atol=1e-12)
    assert text.count('class="proof-line') == 6 and text.count("proof-line now") == 1


def test_rounding_grows_with_the_condition_number(lab):
    text, found = run(lab, stretch=8)
    assert 1e-13 < found["here"]["float64"] < 1e-5 and "10^{8}" in text
    growth = np.log10(found["errors"]["float64"].mean(axis=0))
    slope = np.polyfit(found["powers"][6:], growth[6:], 1)[0]  # from 10^3 on
    assert 0.8 < slope < 1.2  # one digit for each power of ten
    for name, first in (("float64", 1e-15), ("float32", 1e-7), ("bfloat16", 1e-2)):
        assert first / 20 < found["errors"][name][:, 0].mean() < first * 20


def test_heads_mask_and_positions_make_no_difference(lab):
    for inside in ({"heads": "4"}, {"causal": False}, {"rope": True}, {"rope": True, "heads": "1", "causal": False}):
        assert run(lab, **inside)[1]["error"] < 1e-13


@pytest.mark.parametrize("name", ["W_Q", "W_K", "W_V"])
def test_a_forgotten_matrix_breaks_it(lab, name):
    text, found = run(lab, forgotten=name, precision="bfloat16")
    assert found["error"] > 0.05
    assert (np.abs(found["new_map"] - found["old_map"]).max() > 0.05) == (name != "W_V")
    assert ("The maps still agree" in text) == (name == "W_V")
    assert "fails: no digit left" in text


def test_which_basis_lives_with_which_neighbour(page):
    table = next(part for part in re.findall(r"<table>.*?</table>", page[0], re.S) if "permutation" in part)
    rows = [states(row) for row in re.findall(r"<tr>.*?</tr>", table, re.S)][1:]
    E, F = "exact", "fails"
    assert rows == [  # any, rotation, permutation
        [E, E, E],  # attention
        [E, E, E],  # with a skip
        [E, E, E],  # an MLP
        [F, E, E],  # RMSNorm
        [F, F, E],  # LayerNorm
        [F, E, E],  # tied read-out
        [F, F, E],  # ReLU on the stream
        [F, F, F],  # two bases and two skips
    ]


def test_predictions_are_kept_and_compared(lab):
    text, _ = run(
        lab, guess="rounding: 12 digits agree", **{n: {k: exercises()[k].answer} for n, k in EXERCISES.items()}
    )
    assert "and so it is" in text
    assert text.count("Right.") == len(EXERCISES) and "Not tried yet" not in text
    text, _ = run(lab, guess="a little: 3 digits agree", side={"02-which-side": "W_K @ inv(Theta)"})
    assert "You predicted" in text and "It turned out" in text
    assert "Not yet." in text
