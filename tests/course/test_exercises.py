"""Every exercise of every lab: blank is not tried, the solution passes, typical wrong answers get their own message."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvlab.course import exercises as module
from qkvlab.course.exercises import AnswerError, Exercise, ask, compare, evaluate, exercises, predict, reply
from qkvlab.course.labs import LABS
from qkvlab.models.variants import variant

EVERY = list(exercises().values())
each = pytest.mark.parametrize("exercise", EVERY, ids=[e.key for e in EVERY])


@each
def test_exercise_answers_as_it_should(exercise):
    for blank in (None, "", "  "):
        assert exercise.check(blank).state == "not tried"
    verdict = exercise.check(exercise.answer)
    assert (verdict.state, verdict.message) == ("right", exercise.right)
    verdicts = [exercise.check(wrong) for wrong, _ in exercise.wrong]
    assert [v.state for v in verdicts] == ["not yet"] * len(verdicts)
    assert [v.message for v in verdicts] == [says for _, says in exercise.wrong]  # none is taken for another
    assert len({v.message for v in verdicts}) == len(verdicts) >= 2


@each
def test_exercise_on_the_page(exercise):
    element = ask(exercise.key)
    assert element.value == {exercise.key: None if exercise.kind == "choice" else ""}
    assert element.text.count("<summary>") == len(exercise.hints) + 1  # hints, one in the other, then the solution
    assert element.text.index("Hint 1 of") < element.text.index("Solution")
    assert "{" + exercise.key + "}" not in element.text  # the field stands in its place
    for answer, word in ((None, "Not tried yet"), (exercise.answer, "Right."), (exercise.wrong[0][0], "Not yet.")):
        assert word in reply(SimpleNamespace(value={exercise.key: answer})).text


WITH_EXERCISES = [lab for lab in LABS if lab.written and lab.number not in (0, 17)]


@pytest.mark.parametrize("lab", WITH_EXERCISES, ids=lambda lab: lab.slug)
def test_each_lab_has_three_and_asks_them_all(lab):
    own = {e.key for e in EVERY if e.key.startswith(f"{lab.number:02d}")}
    assert len(own) >= 3
    notebook = Path(__file__).parents[2] / "notebooks" / f"{lab.stem}.py"
    assert own == set(re.findall(r'exercises\.ask\("([^"]+)"\)', notebook.read_text(encoding="utf-8")))


# ---------------------------------------------------------------- the solutions are true


def test_the_layout_of_torch():
    rng = np.random.default_rng(0)
    x, weight, theta = rng.standard_normal((5, 4)), rng.standard_normal((4, 4)), rng.standard_normal((4, 4))
    new = evaluate(exercises()["02-torch-layout"].answer, {"weight": weight, "Theta": theta})
    before, after = (
        torch.nn.functional.linear(torch.tensor(a), torch.tensor(b)) for a, b in ((x, weight), (x @ theta, new))
    )
    torch.testing.assert_close(after, before)


def test_the_bias_that_takes_the_shift_out():
    rng = np.random.default_rng(0)
    x, w, theta = rng.standard_normal((5, 4)), rng.standard_normal((4, 4)), rng.standard_normal((4, 4))
    t, b = rng.standard_normal((2, 1, 4))
    names = {"W_K": w, "Theta": theta, "t": t, "b_K": b}
    new_w, new_b = (evaluate(exercises()[key].answer, names) for key in ("02-which-side", "02-bias"))
    np.testing.assert_allclose((x @ theta + t) @ new_w + new_b, x @ w + b, atol=1e-12)


def test_the_freedom_of_a_head_is_the_rank_of_its_jacobian():
    for d, d_h in ((6, 2), (7, 3), (4, 4)):
        q, k = np.random.default_rng(0).standard_normal((2, d, d_h))
        directions = [np.outer(np.eye(d)[i], k[:, a]).ravel() for i in range(d) for a in range(d_h)]
        directions += [np.outer(q[:, a], np.eye(d)[i]).ravel() for i in range(d) for a in range(d_h)]
        expected = evaluate(exercises()["01-freedom"].answer, {"d": d, "d_h": d_h})
        assert np.linalg.matrix_rank(np.array(directions)) == expected


def test_the_parameters_of_a_layer():
    assert evaluate(exercises()["01-parameters"].answer) == variant("qkv").parameters(384, 12)


# ---------------------------------------------------------------- reading an answer

M = np.array([[2.0, 1.0], [1.0, 3.0]])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("25 %", 0.25),
        ("0,25", 0.25),
        ("589,824", 589824.0),
        ("0,125", 0.125),
        ("1e-3", 1e-3),
        ("2^3", 8),
        ("4d^2", 36),
        ("2(d + 1)", 8),
        ("−3·2", -6),
        ("sqrt(16)/2", 2),
        ("[[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
        ("M @ inv(M)", np.eye(2)),
        ("M.T - M", np.zeros((2, 2))),
        ("2M", 2 * M),
        ("softmax([[0, 0]])", [[0.5, 0.5]]),
    ],
)
def test_what_is_understood(text, value):
    np.testing.assert_allclose(evaluate(text, {"M": M, "d": 3.0}), value, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("M @", "does not read as one formula"),
        ("N", "The name N is not known here. Names to use: M, v."),
        ("M * M", "Write @ between"),
        ("M / M", r"inv\(...\)"),
        ("M ** -1", "inverse of a matrix is inv"),
        ("v @ M @ v", "cannot multiply 1 × 2 by 1 × 2"),
        ("M + v", "2 × 2 and 1 × 2 cannot be added"),
        ("inv([[1, 2], [2, 4]])", "has an inverse"),
        ("inv(v)", "inv.. needs a square matrix; this is 1 × 2"),
        ("softmax(3)", "needs a matrix; this is a number"),
        ("1 / 0", "divides by zero"),
        ("9 ** 9 ** 9", "infinity"),
        ("[[1, 2], [3]]", "rows of equal length"),
        ("x" * 201, "longer than 200"),
        ("'a'", "Only numbers"),
        ("True", "Only numbers"),
        ("M.shape", "Only"),
        ("M[0]", "Only"),
        ("M if v else M", "Only"),
        ("[x for x in M]", "Only"),
        ("(lambda: 1)()", "Functions to use"),
        ("__import__('os').system('true')", "Functions to use"),
        ("().__class__", "Only"),
        ("open('x')", "Functions to use"),
        ("inv(M, M)", "Functions to use"),
        ("inv(M=M)", "Functions to use"),
        ("M == M", "Only"),
        ("M and M", "Only"),
    ],
)
def test_what_is_not_understood_is_said_in_words(text, words):
    with pytest.raises(AnswerError, match=words):
        evaluate(text, {"M": M, "v": M[:1]})


PIECES = st.sampled_from([*"Mvd02+-*/@()[],%^×'_:= \n", "9e9", "**", ".T", "inv(", "exp(", "sqrt(", "log(", "softmax("])


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=12).map(" ".join)))
def test_whatever_is_typed_gets_an_answer(text):
    try:
        value = evaluate(text, {"M": M, "v": M[:1], "d": 3.0})
    except AnswerError as problem:
        assert str(problem).endswith((".", "?"))
    else:
        assert np.isfinite(value).all()
    for exercise in EVERY:
        assert exercise.check(text).message


def test_unforeseen_answers_hear_something_useful():
    side, order = exercises()["02-which-side"], exercises()["01-order"]
    assert "This is a number, and the answer is 4 × 4" in side.check("3").message
    assert "shape is right" in side.check("W_K + Theta").message
    assert "another number" in exercises()["01-freedom"].check("d").message
    assert "Names to use: W_K, Theta" in side.check("inv(theta) @ W_K").message
    assert "hints" in exercises()["02-digits-left"].check("5").message
    assert "3 of 6 lines" in order.check("F E B A D C").message
    assert "each of the letters ABCDEF once" in order.check("FEED").message
    assert order.check("f, e, c, a, b, d").state == "right"


# ---------------------------------------------------------------- predictions, and sheets that are wrong


def test_a_prediction_is_kept_and_compared():
    guess = predict("What is left?", ["nothing", "rounding"])
    assert guess.value is None and "Predict first" in guess.text
    assert "no prediction" in compare(guess, "rounding", "So it is.").text
    for value, words in (("rounding", "and so it is"), ("nothing", "It turned out")):
        text = compare(SimpleNamespace(value=value, options=guess.options), "rounding", "Because.").text
        assert words in text and "Because." in text
    with pytest.raises(ValueError, match="none of the options"):
        compare(guess, "much", "")


GOOD = {
    "key": "02-x",
    "title": "t",
    "kind": "choice",
    "question": "q",
    "answer": "a",
    "right": "r",
    "wrong": (("b", "1"), ("c", "2")),
    "solution": "s",
    "hints": ("h",),
    "options": ("a", "b", "c"),
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": "x"}, "two digits of the lab"),
        ({"kind": "essay"}, "choice, order, formula"),
        ({"wrong": (("b", "1"),)}, "at least two wrong answers"),
        ({"hints": ()}, "a hint"),
        ({"options": ("a", "b", "c", "d")}, "has a message of its own"),
    ],
)
def test_an_exercise_that_is_not_one_is_refused(change, words):
    Exercise(**GOOD)
    with pytest.raises(ValueError, match=words):
        Exercise(**{**GOOD, **change})


@pytest.mark.parametrize("sheet", ["[[exercise]]\nkey = '02-x'", "exercise = 3", "not toml", ""])
def test_a_sheet_that_cannot_be_read_is_named(sheet, tmp_path, monkeypatch):
    (tmp_path / "02.toml").write_text(sheet)
    monkeypatch.setattr(module, "SHEETS", tmp_path)
    with pytest.raises(ValueError, match=r"exercise sheet 02\.toml"):
        exercises.__wrapped__()
