"""Exercises that answer at once, hints one by one, a folded solution; and predictions that are kept and compared.

The exercises of lab NN are in `sheets/NN.toml`; a lab shows one with two cells:

    first = exercises.ask("02-which-side")          # the question and its field
    exercises.reply(first)                          # in the next cell: the verdict

An answer is a choice (`kind = "choice"`), an order of lines ("order", typed as letters) or a formula ("formula": a
number, a matrix, or an expression in the names of the exercise). A formula is read by `evaluate`, a small parser of
numbers, matrices and a few functions; nothing that a reader types is ever run as Python, so a class can share a server.
"""

import ast
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qkvlab.theory.reference import softmax

SHEETS = Path(__file__).parent / "sheets"
LETTERS = "ABCDEFGHIJ"


class AnswerError(ValueError):
    """What was typed cannot be read; the text says what and what to write instead."""


@dataclass(frozen=True)
class Verdict:
    state: Literal["not tried", "not yet", "right"]
    message: str


@dataclass(frozen=True)
class Exercise:
    """One question. `wrong` lists typical wrong answers, each with what to say to whoever gives it."""

    key: str  # "02-which-side": the lab first
    title: str
    kind: Literal["choice", "order", "formula"]
    question: str  # markdown
    answer: str  # an option; letters; an expression
    right: str  # said to a right answer
    wrong: tuple[tuple[str, str], ...]  # (answer, message)
    solution: str  # markdown
    hints: tuple[str, ...]
    options: tuple[str, ...] = ()  # choice: the options; order: the lines, as shown
    names: Mapping[str, Any] = field(default_factory=dict)  # formula: name -> [rows, columns] (drawn) or a number
    tolerance: float = 1e-6  # formula: relative
    placeholder: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d\d-[a-z0-9-]+", self.key):
            raise ValueError(f"exercise key {self.key!r}: two digits of the lab, then words, as in '02-which-side'")
        if self.kind not in ("choice", "order", "formula"):
            raise ValueError(f"exercise {self.key}: kind {self.kind!r} is not one of choice, order, formula")
        if len(self.wrong) < 2 or not self.hints:
            raise ValueError(f"exercise {self.key}: at least two wrong answers with a message each, and a hint")
        if self.kind == "choice" and set(self.options) != {self.answer, *(given for given, _ in self.wrong)}:
            raise ValueError(f"exercise {self.key}: each option is either the answer or has a message of its own")

    def check(self, given: object) -> Verdict:
        """The verdict on what the reader gave: None or blank is "not tried", all else "not yet" or "right"."""
        text = "" if given is None else str(given).strip()
        if not text:
            return Verdict("not tried", "Not tried yet.")
        try:
            if self._same(text, self.answer):
                return Verdict("right", self.right)
            for typical, message in self.wrong:
                if self._same(text, typical):
                    return Verdict("not yet", message)
            return Verdict("not yet", self._otherwise(text))
        except AnswerError as problem:
            return Verdict("not yet", str(problem))

    def _same(self, given: str, target: str) -> bool:
        if self.kind == "choice":
            return given == target
        if self.kind == "order":
            return _letters(given, self.options) == _letters(target, self.options)
        found, wanted = self._value(given), self._value(target)
        return found.shape == wanted.shape and np.abs(found - wanted).max() <= self.tolerance * np.abs(wanted).max()

    def _value(self, text: str) -> np.ndarray:
        rng = np.random.default_rng(len(self.key))
        names = {n: rng.standard_normal(v) if isinstance(v, list) else float(v) for n, v in self.names.items()}
        return np.asarray(evaluate(text, names))

    def _otherwise(self, text: str) -> str:
        if self.kind == "order":
            pairs = zip(_letters(text, self.options), _letters(self.answer, self.options), strict=True)
            return f"Not yet. In their place: {sum(a == b for a, b in pairs)} of {len(self.options)} lines."
        if self.kind == "formula":
            found, wanted = self._value(text).shape, self._value(self.answer).shape
            if found != wanted:
                return f"This is {_shape(found)}, and the answer is {_shape(wanted)}. Check the shapes first."
            if not self.names:
                return "Not yet. The number is another one; the hints below lead to it."
            shape = "The shape is right, the values are not" if wanted else "This gives another number"
            return f"{shape}. Try it with small numbers on paper, or open a hint."
        return "Not yet. Open a hint below."


@functools.cache
def exercises() -> dict[str, Exercise]:
    """All exercises of the course by key, read from the sheets. ValueError names the sheet that cannot be read."""
    found: dict[str, Exercise] = {}
    for sheet in sorted(SHEETS.glob("*.toml")):
        try:
            for entry in tomllib.loads(sheet.read_text(encoding="utf-8"))["exercise"]:
                entry["wrong"] = tuple((w["answer"], w["says"]) for w in entry["wrong"])
                entry |= {name: tuple(entry[name]) for name in ("hints", "options") if name in entry}
                exercise = Exercise(**entry)
                if exercise.key in found or exercise.key[:2] != sheet.stem:
                    raise ValueError(f"key {exercise.key!r} is used twice or belongs to another sheet")
                found[exercise.key] = exercise
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"exercise sheet {sheet.name}: {problem}") from problem
    return found


# ---------------------------------------------------------------- reading an answer


def evaluate(text: str, names: Mapping[str, np.ndarray | float] | None = None) -> np.ndarray | float:
    """The value of an expression: numbers, `names`, [[1, 2], [3, 4]], + - * / ** @ .T and inv exp sqrt log softmax.

    `*` and `/` scale, `@` multiplies matrices, "25 %" is 0.25. Raises AnswerError with a sentence for the reader.
    """
    if len(text) > 200:
        raise AnswerError("This is longer than 200 characters. The answer is shorter.")
    text = text.replace("^", "**").replace("−", "-").replace("·", "*").replace("×", "*").replace("Θ", "Theta")
    text = re.sub(r"\s*%$", "/100", text.strip().removesuffix("."))
    text = re.sub(r"(?<![\d.,])([1-9]\d{0,2}(?:,\d{3})+)(?![\d,])", lambda m: m[0].replace(",", ""), text)  # 589,824
    text = re.sub(r"^([-+]?\d+),(\d+)$", r"\1.\2", text)  # 0,25
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)\s*(?![eE][-+]?\d)(?=[A-Za-z(])", r"\1*", text)  # 4d, 2(a + b)
    try:
        tree = ast.parse(text, mode="eval")
        with np.errstate(all="ignore"):
            value = _walk(tree.body, names or {})
    except (SyntaxError, RecursionError, MemoryError):
        raise AnswerError("This does not read as one formula. Is a bracket open, or an operator missing?") from None
    except np.linalg.LinAlgError:
        raise AnswerError("inv() needs a square matrix that has an inverse; this one has none.") from None
    if not np.all(np.isfinite(value)):
        raise AnswerError("This comes to infinity, or divides by zero.")
    return value


FUNCTIONS: dict[str, Any] = {
    "inv": np.linalg.inv, "exp": np.exp, "sqrt": np.sqrt, "log": np.log, "softmax": softmax,
}  # fmt: skip
ONLY = "Only + - * / ** @ .T and functions are understood here."


def _walk(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """The value: an array, or numpy's float, which has a shape too."""
    match node:
        case ast.Constant(value=float() | int() as value) if not isinstance(value, bool):
            return np.float64(value)
        case ast.Constant():
            raise AnswerError("Only numbers, names and formulas, please.")
        case ast.Name(id=name):
            if name in names:
                return np.asarray(names[name])
            allowed = ", ".join(names) or "none: a number is asked for"
            raise AnswerError(f"The name {name} is not known here. Names to use: {allowed}.")
        case ast.List(elts=items) | ast.Tuple(elts=items):
            rows = [_walk(item, names) for item in items]
            if not rows or len({row.shape for row in rows}) > 1 or rows[0].ndim > 1:
                raise AnswerError("A matrix is a list of rows of equal length, as in [[1, 2], [3, 4]].")
            return np.stack(rows)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _walk(operand, names)
            return -value if isinstance(sign, ast.USub) else value
        case ast.Attribute(value=inner, attr="T"):
            return _walk(inner, names).T
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in FUNCTIONS:
            value = _walk(inner, names)
            if name in ("inv", "softmax") and (value.ndim != 2 or (name == "inv" and len(set(value.shape)) > 1)):
                needed = "a square matrix" if name == "inv" else "a matrix"
                raise AnswerError(f"{name}() needs {needed}; this is {_shape(value.shape)}.")
            return FUNCTIONS[name](value)
        case ast.Call():
            raise AnswerError(f"Functions to use, each of one argument: {', '.join(FUNCTIONS)}.")
        case ast.BinOp(left=left, op=op, right=right):
            return _combine(_walk(left, names), op, _walk(right, names))
    raise AnswerError(ONLY)


def _combine(a: Any, op: ast.operator, b: Any) -> Any:
    match op:
        case ast.MatMult():
            if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
                raise AnswerError(f"@ cannot multiply {_shape(a.shape)} by {_shape(b.shape)}.")
            return a @ b
        case ast.Mult():
            if a.ndim and b.ndim:
                raise AnswerError("* multiplies by a number. Write @ between two matrices.")
            return a * b
        case ast.Div():
            if b.ndim:
                raise AnswerError("One cannot divide by a matrix. Multiply by inv(...), on the side you mean.")
            return a / b
        case ast.Pow():
            if a.ndim or b.ndim:
                raise AnswerError(
                    "Powers (** or ^) are for numbers. The inverse of a matrix is inv(...), its transpose .T."
                )
            return a**b
        case ast.Add() | ast.Sub():
            if a.shape != b.shape and a.ndim and b.ndim:
                raise AnswerError(f"{_shape(a.shape)} and {_shape(b.shape)} cannot be added.")
            return a + b if isinstance(op, ast.Add) else a - b
    raise AnswerError(ONLY)


def _shape(shape: tuple[int, ...]) -> str:
    return {0: "a number", 1: f"a row of {shape[0] if shape else 0}"}.get(len(shape), " × ".join(map(str, shape)))


def _letters(text: str, lines: tuple[str, ...]) -> str:
    letters = re.sub(r"[\s,;>→-]", "", text).upper()
    if sorted(letters) != sorted(LETTERS[: len(lines)]):
        raise AnswerError(f"Type each of the letters {LETTERS[: len(lines)]} once, in your order.")
    return letters


# ---------------------------------------------------------------- showing it in a lab


def ask(key: str) -> Any:
    """Question, field, and folded one in the other hints and solution: one marimo element, its value {key: answer}."""
    import marimo as mo

    from qkvlab.course.labs import prose

    exercise = exercises()[key]
    question = exercise.question
    if exercise.kind == "choice":
        answer_field: Any = mo.ui.radio(list(exercise.options))
    else:
        if exercise.kind == "order":
            question += "\n\n" + "\n".join(f"- **{a}** {b}" for a, b in zip(LETTERS, exercise.options, strict=False))
        answer_field = mo.ui.text(placeholder=exercise.placeholder or "your answer, then Enter", full_width=True)
    folded = f"<details><summary>Solution</summary>{prose(exercise.solution).text}</details>"
    for number, hint in reversed(list(enumerate(exercise.hints, 1))):
        title = f"Hint {number} of {len(exercise.hints)}"
        folded = f"<details><summary>{title}</summary>{prose(hint).text}{folded}</details>"
    head = prose(f"**{exercise.title}**\n\n{question}").text
    head, folded = (part.replace("{", "{{").replace("}", "}}") for part in (head, folded))
    return mo.Html(f'<div class="exercise">{head}{{{key}}}{folded}</div>').batch(**{key: answer_field})


def reply(element: Any) -> Any:
    """The verdict on what stands in an `ask` element, in a cell of its own: hints that are open stay open."""
    import marimo as mo

    from qkvlab.course.labs import box

    (key, given), *_ = element.value.items()
    verdict = exercises()[key].check(given)
    if verdict.state == "not tried":
        return mo.Html(f'<p class="exercise-blank">{verdict.message}</p>')
    kind, word = ("verdict-right", "Right") if verdict.state == "right" else ("verdict-noise", "Not yet")
    return box(f"verdict {kind}", f"**{word}.** {verdict.message.removeprefix(word).lstrip(' .:')}")


def predict(question: str, options: list[str]) -> Any:
    """A question to commit to before the answer is on the page: a marimo radio, nothing chosen."""
    import marimo as mo

    return mo.ui.radio(options, label=f"**Predict first.** {question}")


def compare(guess: Any, truth: str, because: str) -> Any:
    """At the end of a lab: what the reader predicted (a `predict` element), what it turned out to be, and why."""
    from qkvlab.course.labs import box

    if truth not in guess.options:
        raise ValueError(f"truth {truth!r} is none of the options {list(guess.options)}")
    if guess.value is None:
        return box("verdict", f"You made no prediction at the start. It turned out: **{truth}**. {because}")
    if guess.value == truth:
        return box("verdict verdict-right", f"You predicted **{truth}**, and so it is. {because}")
    return box("verdict verdict-noise", f"You predicted **{guess.value}**. It turned out: **{truth}**. {because}")
