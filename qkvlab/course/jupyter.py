"""Jupyter twins: a lab, `notebooks/NN_name.py`, written as `notebooks/jupyter/NN_name.ipynb`.

The lab stays the source. Its cells become code cells, unchanged, in the order of the file; cells of nothing but
constant prose become markdown cells; `qkvlab.show.twin`, which the first code cell starts, makes the page live. What a
twin could not do is refused here, with file, line and what to write instead, so that nothing is lost in silence. A twin
has no outputs, no widget state, and nothing that depends on the machine or the day.
"""

import ast
import hashlib
import inspect
import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

import marimo as mo
from marimo._ast.compiler import compile_cell
from marimo._ast.load import get_notebook_status
from marimo._ast.parse import all_violations_soft
from marimo._schemas.serialization import ClassCell, FunctionCell, UnparsableCell

import qkvlab
from qkvlab.course import labs
from qkvlab.show import page, twin

FIRST = (
    "***Run › Run All Cells* brings this page to life; then scroll up again.** "
    "(`qkvlab jupyter` made it from `notebooks/{}`.)"
)
START = "from qkvlab.show import twin\n\ntwin.start()"
PROSE = {"mo.md", *(f"labs.{name}" for name in ("prose", "box", "header", "footer", "course_map"))}

# What a lab may use of marimo itself; of mo.ui it is what `twin.MAPPED` has, and what is a widget already.
USABLE = {
    *("mo.Html", "mo.accordion", "mo.as_html", "mo.callout", "mo.center", "mo.hstack", "mo.left", "mo.md", "mo.right"),
    *("mo.show_code", "mo.status.spinner", "mo.stop", "mo.vstack", "mo.ui.anywidget", "mo.ui.plotly"),
    *(f"mo.ui.{name}" for name in mo.ui.__all__ if getattr(getattr(mo.ui, name), "_name", None) in twin.MAPPED),
}
LOST = {  # keyword arguments that a twin would lose
    "mo.accordion": ("lazy", "expanded"),
    "mo.callout": ("title",),
    "mo.ui.date": ("start", "stop"),
    "mo.ui.button": ("keyboard_shortcut",),
    "mo.ui.dropdown": ("searchable",),
    "mo.ui.form": ("validate", "clear_on_submit", "show_clear_button", "submit_button_tooltip", "loading"),
    "mo.ui.multiselect": ("max_selections",),
    "mo.ui.plotly": ("on_change", "label", "renderer_name"),
    "mo.ui.radio": ("inline",),
    "mo.ui.run_button": ("keyboard_shortcut",),
    "mo.ui.tabs": ("lazy", "orientation"),
    "mo.ui.text": ("kind", "max_length"),
    "mo.ui.text_area": ("max_length", "rows"),
}
INSTEAD = {
    "mo.state": "a value that a cell computes from the controls, or an object that a cell makes and others change",
    "mo.lazy": "to compute it at once, or behind a mo.ui.run_button and mo.stop",
    "mo.ui.refresh": "an anywidget that moves by itself, as TrainingPanel does",
    "mo.sql": "numpy, or datasets",
    "mo.query_params": "page.number, page.choice, page.switch and page.keep",
    "mo.running_in_notebook": "page.jupyter, or labs.prose(..., twin=...) where only the text differs",
    "mo.output": "the last expression of a cell",
    **dict.fromkeys(("mo.outline", "mo.sidebar"), "labs.outline, in a cell of its own"),
}


class ConversionError(ValueError):
    """A lab has what its twin could not do. The text names file, line, construct, and what to write instead."""


def convert(path: Path) -> str:
    """The twin of the lab at `path`: the text of an .ipynb file. Raises ConversionError."""
    lab = _Lab(path)
    cells = [_cell("markdown", FIRST.format(path.name)), _cell("code", START)]
    for code, tree, hidden in lab.cells:
        lab.check(code, tree)
        prose = lab.prose(tree)
        if prose is not None:
            cells.append(_cell("markdown", prose))
        elif code and _called(tree) != "labs.outline":
            cells.append(_cell("code", code, hidden))
    seen: list[str] = []
    for made in cells:  # an id keeps when cells come or go around it
        seen.append(_digest([made])[:12])
        made["id"] = f"{seen[-1]}-{seen.count(seen[-1])}"
    metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "qkvlab": {
            "source": f"notebooks/{path.name}",
            "sha256": hashlib.sha256(lab.source.encode()).hexdigest(),
            "qkvlab": qkvlab.__version__,
            "marimo": mo.__version__,
            "cells": _digest(cells),
        },
    }
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


State = Literal["missing", "current", "stale", "edited"]


def state(path: Path, fresh: str) -> State:
    """How the twin on disk stands to `fresh`, what `convert` gives: "edited" when a reader changed or added a cell."""
    if not path.exists():
        return "missing"
    text = path.read_text(encoding="utf-8")
    if text == fresh:
        return "current"
    try:
        found = json.loads(text)
        return "stale" if found["metadata"]["qkvlab"]["cells"] == _digest(found["cells"]) else "edited"
    except (KeyError, TypeError, ValueError):
        return "edited"


def write(path: Path, fresh: str) -> State:
    """Put a twin on disk, except where a reader edited the one that is there. Returns how that one stood."""
    found = state(path, fresh)
    if found in ("missing", "stale"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fresh, encoding="utf-8", newline="\n")
    return found


def _cell(kind: str, text: str, hidden: bool = False) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell | {"metadata": {"jupyter": {"source_hidden": True}}} if hidden else cell


def _digest(cells: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps([[c["cell_type"], "".join(c["source"])] for c in cells]).encode()).hexdigest()


def _path(node: ast.AST) -> str:
    """ "mo.ui.slider" for that expression; "" for what is more than names and dots."""
    if isinstance(node, ast.Attribute):
        owner = _path(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _source(code: str, node: ast.expr) -> str:
    """The text of an expression as a statement: in parentheses where those of the call around it held it together."""
    text = ast.get_source_segment(code, node) or ""
    try:
        alone = ast.dump(ast.parse(text)) == ast.dump(ast.Module([ast.Expr(node)], []))
    except SyntaxError:
        alone = False
    return text if alone else f"(\n{text}\n)"


def _called(tree: ast.Module) -> str:
    """What a cell of one call calls: "labs.outline"."""
    only = tree.body[0] if len(tree.body) == 1 else None
    return _path(only.value.func) if isinstance(only, ast.Expr) and isinstance(only.value, ast.Call) else ""


class _Lab:
    """The cells of one lab as marimo parses them: code, tree with the lines of the file, whether the code is hidden."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            self.source = path.read_text(encoding="utf-8")
            parsed = get_notebook_status(str(path)).notebook
        except (SyntaxError, UnicodeDecodeError):  # Latin-1, or a byte order mark
            self.refuse(1, "what marimo cannot read", "UTF-8 without a byte order mark")
        if parsed is None or not parsed.valid:
            self.refuse(1, "what is no marimo notebook", "a file that marimo wrote")
        if not all_violations_soft(parsed.violations):
            self.refuse(parsed.violations[0].lineno, "code outside the cells", "a cell, or app.setup")
        self.cells: list[tuple[str, ast.Module, bool]] = []
        places = [node for node in ast.parse(self.source).body if _is_cell(node)]
        for cell, place in zip(parsed.cells, cast(list[Any], places), strict=True):
            if isinstance(cell, UnparsableCell):
                self.refuse(place.lineno, "a cell that does not parse", "Python")
            for option, value in cell.options.items():
                if value and option not in ("hide_code", "name"):
                    self.refuse(place.lineno, f"a cell with {option}=", "a plain cell")
            tree = ast.parse(cell.code)
            code = self.without_show_code(cell.code, tree, place.lineno)
            if tree.body:
                first = place if isinstance(cell, FunctionCell | ClassCell) else place.body[0]
                ast.increment_lineno(tree, first.lineno - tree.body[0].lineno)
            self.cells.append((code, tree, bool(cell.options.get("hide_code"))))
        bound = [node for _, tree, _ in self.cells for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        self.plots = {  # the names of figures that could tell what is selected in them
            _path(name)
            for node in bound
            if isinstance(node.value, ast.Call) and _path(node.value.func) == "mo.ui.plotly"
            for name in node.targets
            if _path(name)
        }

    def refuse(self, line: int, construct: str, instead: str) -> NoReturn:
        raise ConversionError(f"{self.name}, line {line}: a Jupyter twin has no place for {construct}; use {instead}")

    def without_show_code(self, code: str, tree: ast.Module, line: int) -> str:
        """A twin's code is there to be read, so `mo.show_code()` goes, and of `mo.show_code(x)` the x stays."""
        lines, left = code.split("\n"), sum(_path(node) == "mo.show_code" for node in ast.walk(tree))
        for node in reversed(tree.body):
            match node:
                case ast.Expr(value=ast.Call(func=function, args=args)) if _path(function) == "mo.show_code":
                    first, last = node.lineno - 1, cast(int, node.end_lineno)
                    beside = lines[first].encode()[: node.col_offset] or lines[last - 1].encode()[node.end_col_offset :]
                    if beside.strip() and not beside.strip().startswith(b"#"):
                        continue
                    lines[first:last] = [_source(code, args[0])] if args else []
                    left -= 1
        if left:
            self.refuse(line, "mo.show_code within an expression", "mo.show_code(...) as a line of its own")
        return "\n".join(lines).strip()

    def prose(self, tree: ast.Module) -> str | None:
        """The markdown of a cell of nothing but constant prose, made by the functions that the lab calls; else None."""
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if not names <= {"labs", "mo"} or _called(tree) not in PROSE | {"mo.vstack"}:
            return None
        call = cast(ast.Call, cast(ast.Expr, tree.body[0]).value)
        stack = _called(tree) == "mo.vstack"
        parts = call.args[0].elts if stack and isinstance(call.args[0], ast.List) else [call]
        if any(not isinstance(part, ast.Call) or _path(part.func) not in PROSE for part in parts):
            return None
        page.jupyter, before = True, page.jupyter
        try:
            made = [eval(compile(ast.Expression(part), "", "eval"), {"labs": labs, "mo": mo}) for part in parts]
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ConversionError(f"{self.name}, line {call.lineno}: {kind}{error}") from error
        finally:
            page.jupyter = before
        text = "\n\n".join(one._repr_markdown_() for one in made)
        if "<marimo-" in text:  # a control or a figure among the words
            return None
        if found := re.search(r"^///.*|::\w+:.*", text, re.MULTILINE):
            self.refuse(call.lineno, f"`{found[0]}`, which only marimo reads", "plain markdown, or labs.box")
        return text

    def check(self, code: str, tree: ast.Module) -> None:
        """Refuse what a twin could not do."""
        calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        seen: set[int] = set()  # the inner parts of a.b.c, which come after it
        for node in ast.walk(tree):
            line, text = getattr(node, "lineno", 1), f"`{ast.unparse(node)}`" if isinstance(node, ast.stmt) else ""
            match node:
                case ast.Import(names=names):
                    for name in names:
                        if name.name.split(".")[0] == "marimo" and (name.name, name.asname) != ("marimo", "mo"):
                            self.refuse(line, text, "`import marimo as mo`")
                case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "marimo":
                    self.refuse(line, text, "`import marimo as mo`, and mo.name at its place")
                case ast.Call(func=ast.Attribute(attr="form" | "callout" as method) as function, keywords=keywords):
                    of = "mo.callout" if method == "callout" else "mo.ui.form"
                    for word in keywords:
                        if word.arg in LOST[of] and not _path(function).startswith("mo."):
                            self.refuse(line, f"{word.arg}= of .{method}(...)", "the call without it")
                case ast.Name(id="mo") if id(node) not in seen:
                    self.refuse(line, "`mo` by itself", "mo.name at its place, which can be looked up")
                case ast.Attribute(value=value, attr=attr):
                    if id(node) not in seen and _path(node).startswith("mo."):
                        self.check_marimo(_path(node), calls.get(id(node)), line)
                    if _path(value) in self.plots and attr in ("value", "points", "ranges", "indices"):
                        self.refuse(line, f"what is selected in a figure, `{_path(node)}`", "a control")
                    seen.add(id(value))
        begin = tree.body[0].lineno if tree.body else 1
        try:
            compiled = compile_cell(code, cell_id=cast(Any, self.name))
        except SyntaxError as error:
            self.refuse(begin, f"a cell that does not compile ({error.msg})", "Python")
        if compiled.is_coroutine():
            self.refuse(begin, "await at the top of a cell", "what waits by itself, or a thread")
        if "twin" in compiled.defs:
            self.refuse(begin, "the name `twin`", "another: the first cell of a twin takes this one")

    def check_marimo(self, path: str, call: ast.Call | None, line: int) -> None:
        """Refuse a name of marimo, or a keyword argument of it, that a twin has not."""
        path = ".".join(path.split(".")[: 3 if path.startswith(("mo.ui.", "mo.status.")) else 2])
        if path not in USABLE:
            self.refuse(line, path, INSTEAD.get(path) or f"an anywidget, or one of {', '.join(sorted(USABLE))}")
        keywords: dict[str | None, ast.expr] = {}
        if call:
            names = inspect.signature(attrgetter(path.removeprefix("mo."))(mo)).parameters
            keywords.update(zip(names, call.args, strict=False))
            keywords.update((word.arg, word.value) for word in call.keywords)
        unseen = call is None or None in keywords or any(isinstance(one, ast.Starred) for one in call.args)
        if path.startswith("mo.ui.") and unseen:
            self.refuse(line, f"{path} with arguments that cannot be seen", f"a call {path}(...) that names each")
        for name in sorted(set(LOST.get(path, ())) & keywords.keys()):
            self.refuse(line, f"{name}= of {path}", "the call without it")
        if path == "mo.ui.table":  # drawn as a plain table
            said = {name: ast.unparse(value) for name, value in keywords.items() if name not in ("data", "label")}
            if said != {"selection": "None", "pagination": "False"}:
                self.refuse(line, "a mo.ui.table to choose, sort or leaf in", "selection=None, pagination=False")


def _is_cell(node: ast.stmt) -> bool:
    """Whether marimo makes a cell of a statement of the file."""
    kinds = (ast.With, ast.AsyncWith, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return isinstance(node, kinds) or (isinstance(node, ast.Expr) and "._unparsable_cell(" in ast.unparse(node))
