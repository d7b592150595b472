"""Runs a lab in Jupyter as marimo would: a control moves, and the cells that read it run again, in place.

    from qkvlab.show import twin

    twin.start()                # in the first cell; every cell after it is watched
    twin.move("layer", 4)       # what a reader does at a control, for tests: a number, an option, True for a button

The cells use marimo's own objects. marimo's compiler says what a cell reads and defines; what is here is the rest: the
order, `mo.stop`, a view of each cell (`CellView`, drawn by twin.js) in which marimo's custom elements have become
ipywidgets and Plotly figures. Private parts of marimo are used in this module only, so marimo is pinned.
"""

import ast
import asyncio
import builtins
import gzip
import io
import json
import re
import signal
import threading
import time
import traceback
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import date
from html import escape, unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anywidget
import ipywidgets as w
import marimo as mo
import marimo._runtime.output._output as marimo_output
import plotly.graph_objects as go
import plotly.io
import plotly.offline
import traitlets
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.getipython import get_ipython
from IPython.display import display
from marimo._ast.cell import CellImpl
from marimo._ast.compiler import compile_cell
from marimo._ast.variables import demangle_locals_in_text
from marimo._output import formatting
from marimo._output.formatters.plotly_formatters import PlotlyFormatter
from marimo._plugins.ui._core.ui_element import UIElement
from marimo._runtime.control_flow import MarimoStopError
from marimo._runtime.dataflow import topological_sort, transitive_closure

from qkvlab.show import page as address

HERE = Path(__file__).parent


# ---------------------------------------------------------------- marimo's controls as ipywidgets
# Each is made from the element's arguments `a`, its value `v` as marimo's page would send it, and what all have. Its
# `back` turns what a reader names (an option, a step) into the widget's value; without one that is the value.


def _slider(a: Any, v: Any, plain: Any) -> Any:
    several, steps = isinstance(v, (list, tuple)), a["steps"]
    plain |= {"continuous_update": not a["debounce"], "orientation": a["orientation"]}
    plain["readout"] = bool(a["show-value"] or a.get("include-input"))
    if steps:
        kind = w.SelectionRangeSlider if several else w.SelectionSlider
        made: Any = kind(options=[(f"{step:g}", i) for i, step in enumerate(steps)], index=v, **plain)
        made.back = (lambda given: tuple(map(steps.index, given))) if several else steps.index
        return made
    step = a.get("step") or 1
    if all(isinstance(n, int) for n in [a["start"], a["stop"], step, *(v if several else [v])]):
        kind = w.IntRangeSlider if several else w.IntSlider
    else:
        kind = w.FloatRangeSlider if several else w.FloatSlider
        plain["readout_format"] = f".{max(len(f'{n}'.partition('.')[2]) for n in (step, a['start']))}f"
    return kind(min=a["start"], max=a["stop"], step=step, value=v, **plain)


def _number(a: Any, v: Any, plain: Any) -> Any:
    low, high = (end if a.get(name) is None else a[name] for name, end in (("start", -1e15), ("stop", 1e15)))
    return w.BoundedFloatText(v or 0, min=low, max=high, step=a.get("step") or 1, **plain)


def _dropdown(a: Any, v: Any, plain: Any) -> Any:
    none: list[tuple[str, list[str]]] = [("--", [])] if a["allow-select-none"] or not v else []
    made: Any = w.Dropdown(options=[*none, *((name, [name]) for name in a["options"])], value=v, **plain)
    made.back = lambda name: [] if name is None else [name]
    return made


def _text(a: Any, v: Any, plain: Any) -> Any:
    kind = w.Textarea if a.get("kind") is None else w.Text
    return kind(v, placeholder=a.get("placeholder") or "", continuous_update=not a["debounce"], **plain)


def _date(a: Any, v: Any, plain: Any) -> Any:
    day = date.fromisoformat
    return w.DatePicker(value=day(v), min=day(a["start"]), max=day(a["stop"]), **plain)


def _button(a: Any, v: Any, plain: Any) -> Any:
    style = {"success": "success", "warn": "warning", "danger": "danger"}.get(a.get("kind"), "")
    return w.Button(button_style=style, tooltip=a.get("tooltip") or "", **plain)


def _tabs(a: Any, v: Any, plain: Any) -> Any:
    names = [_words(label) for label in a["tabs"]]
    made: Any = w.ToggleButtons(options=[(name, str(i)) for i, name in enumerate(names)], value=v or "0", **plain)
    made.back = lambda name: str(names.index(name))
    return made


# marimo's component -> what makes its ipywidget (None: it needs none, its content is shown as it is)
MAPPED: dict[str, Callable[[Any, Any, Any], Any] | None] = {
    "marimo-slider": _slider,
    "marimo-range-slider": _slider,
    "marimo-number": _number,
    "marimo-dropdown": _dropdown,
    "marimo-multiselect": lambda a, v, plain: w.SelectMultiple(options=a["options"], value=v, rows=5, **plain),
    "marimo-radio": lambda a, v, plain: w.RadioButtons(options=a["options"], value=v, **plain),
    "marimo-checkbox": lambda a, v, plain: w.Checkbox(v, indent=False, **plain),
    "marimo-switch": lambda a, v, plain: w.Checkbox(v, indent=False, **plain),
    "marimo-text": _text,
    "marimo-text-area": _text,
    "marimo-date": _date,
    "marimo-button": _button,
    "marimo-form": lambda a, v, plain: w.Button(**plain | {"description": a["submit-button-label"]}),
    "marimo-tabs": _tabs,
    "marimo-dict": None,
    "marimo-table": None,
    "marimo-plotly": None,
    "marimo-anywidget": None,
}


def _sent(value: Any) -> Any:
    """The value of an ipywidget as marimo's page would send it."""
    if isinstance(value, tuple):
        return [_sent(one) for one in value]
    if isinstance(value, date):
        return value.isoformat()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _words(html: str) -> str:
    """HTML as plain words, formulas as TeX."""
    html = re.sub(r"</(div|p|pre|li|tr|h\d|figure)>", "\n", html)
    return unescape(re.sub(r"<[^>]*>|\|\|[()\[\]]", "", html)).strip()


# ---------------------------------------------------------------- a value as HTML with slots

TAG = re.compile(r"<(marimo-[\w-]+)([^>]*)>")  # marimo writes no > inside of an attribute


SHOWABLE = (mo.Html, w.Widget, go.Figure)


class Shown:
    """A value as HTML that a notebook can show: `out`, with an empty div for each widget and each of `figures`."""

    def __init__(self, page: "Page"):
        self.page, self.out = page, ""
        self.figures: dict[str, Any] = {}  # number -> figure, config

    def add(self, value: Any) -> None:
        """The value of a cell, whatever it is."""
        inside = list(value.values()) if type(value) is dict else value if type(value) in (list, tuple) else []
        if isinstance(value, SHOWABLE):
            self.out += self.html(mo.as_html(value).text)
        elif any(isinstance(one, SHOWABLE) for one in inside):
            self.out += self.html(mo.vstack(inside).text)
        elif value is not None:
            self.bundle(self.page.shell.display_formatter.format(value)[0])

    def bundle(self, data: Mapping[str, Any]) -> None:
        """What IPython's formatters made of a value: the richest of it."""
        image = next((kind for kind in data if kind.startswith("image/")), "")
        if view := data.get("application/vnd.jupyter.widget-view+json"):
            self.out += _slot(view["model_id"])
        elif figure := data.get("application/vnd.plotly.v1+json"):
            self.out += self.figure(figure, figure.get("config"))
        elif html := data.get("text/html"):
            self.out += self.html(html)
        elif image:
            svg = image == "image/svg+xml"
            self.out += data[image] if svg else f'<img alt="" src="data:{image};base64,{data[image].strip()}">'
        elif text := data.get("text/markdown", data.get("text/latex")):
            self.out += self.html(mo.md(text).text)
        elif "text/plain" in data:
            self.out += f"<pre>{escape(data['text/plain'])}</pre>"

    def figure(self, figure: Any, config: Any) -> str:
        number = str(len(self.figures))
        self.figures[number] = {"figure": figure, "config": config or {}}
        return f'<div data-figure="{number}"></div>'

    def html(self, text: str) -> str:
        """HTML with marimo's elements translated."""
        out, at = "", 0
        while tag := TAG.search(text, at):
            depth, attributes = 1, {k: unescape(v) for k, v in re.findall(r"([\w-]+)='([^']*)'", tag[2])}
            for end in re.finditer(rf"<(/?){tag[1]}\b[^>]*>", text[tag.end() :]):
                depth += -1 if end[1] else 1
                if not depth:
                    break
            out += text[at : tag.start()] + self.tag(tag[1], attributes, text[tag.end() : tag.end() + end.start()])
            at = tag.end() + end.end()
        return out + text[at:]

    def tag(self, name: str, attributes: dict[str, str], inner: str) -> str:
        """One of marimo's custom elements."""
        given = {k.removeprefix("data-"): json.loads(v) for k, v in attributes.items() if k.startswith("data-")}
        match name:
            case "marimo-ui-element":
                element = self.page.elements.get(attributes["object-id"])
                return self.element(element, inner) if element is not None else ""
            case "marimo-tex":
                tex = inner.strip()  # ||(...||), or ||[...||] where it stands alone
                return f'<span class="tex">\\{tex[2:-3]}\\{tex[-1:]}</span>'
            case "marimo-widget":
                return _slot(attributes["id"])
            case "marimo-plotly":
                return self.figure(given["figure"], given.get("config"))
            case "marimo-table":
                return self.table(json.loads(given["data"]) if isinstance(given["data"], str) else given["data"])
            case "marimo-callout-output":
                return f'<div class="twin-callout twin-{given["kind"]}" role="note">{self.html(given["html"])}</div>'
            case "marimo-accordion":
                parts = zip(given["labels"], _divs(self.html(inner)), strict=True)
                folds = (f"<details><summary>{self.html(label)}</summary>{part}</details>" for label, part in parts)
                return f'<div class="twin-accordion">{"".join(folds)}</div>'
            case "marimo-sidebar" | "marimo-outline":
                return ""
        return self.html(inner) or f'<p class="twin-note">{escape(name)} cannot be shown here.</p>'

    def table(self, rows: list[dict[str, Any]]) -> str:
        def cell(value: Any) -> str:  # what is more than words has come as HTML
            rich = isinstance(value, dict) and value.get("mimetype") in ("text/html", "text/markdown")
            return self.html(value["data"]) if rich else escape(str(value))

        head = "".join(f"<th>{escape(str(name))}</th>" for name in (rows[0] if rows else {}))
        body = "".join("<tr>" + "".join(f"<td>{cell(v)}</td>" for v in row.values()) + "</tr>" for row in rows)
        return f'<span class="prose"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></span>'

    def element(self, element: Any, inner: str) -> str:
        """An element of marimo's: its control with its label, or its content."""
        name, args = element._args.component_name, element._args.args
        label = self.html(mo.md(element._args.label).text) if element._args.label else ""
        if name == "marimo-anywidget":
            return _slot(self.page.watched(element))
        if isinstance(element, (mo.ui.array, mo.ui.dictionary)):
            return f"<div>{label}{''.join(self.html(child.text) for child in _inside(element).values())}</div>"
        if not MAPPED.get(name):
            return self.html(inner)
        control = _slot(self.page.control(element).model_id)
        if name == "marimo-form":
            return f'<div class="twin-form">{label}{self.html(element.element.text)}{control}</div>'
        if name == "marimo-tabs":
            for i, part in enumerate(element._children):
                hidden = " hidden" * (i != int(element._value_frontend or 0))
                control += f"<div{hidden}>{self.html(part.text)}</div>"
        label = f'<span class="twin-label">{label}</span>' if label and name != "marimo-button" else ""
        wide = " twin-wide" * bool(args.get("full-width"))
        return f'<div class="twin-control {name.replace("marimo", "twin")}{wide}">{label}{control}</div>'


def _slot(model_id: str) -> str:
    return f'<div data-slot="{model_id}"></div>'


def _divs(html: str) -> list[str]:
    """The <div>s that stand side by side in HTML."""
    parts, depth, start = [], 0, 0
    for tag in re.finditer(r"<(/?)div\b[^>]*>", html):
        start = tag.start() if not depth else start
        depth += -1 if tag[1] else 1
        if not depth:
            parts.append(html[start : tag.end()])
    return parts


def _inside(element: Any) -> dict[str, Any]:
    """The elements inside of an array, a dictionary, a batch or a form, by key."""
    children = getattr(getattr(element, "element", element), "elements", {})
    return dict(children) if isinstance(children, Mapping) else {str(i): child for i, child in enumerate(children)}


class CellView(w.DOMWidget):
    """What a cell shows: a core widget, so that it opens at once; twin.js fills it, and changes it in place."""

    _view_module = traitlets.Unicode("@jupyter-widgets/base").tag(sync=True)
    _view_module_version = traitlets.Unicode("2.0.0").tag(sync=True)
    _view_name = traitlets.Unicode("DOMWidgetView").tag(sync=True)

    html = traitlets.Unicode("").tag(sync=True)
    figures: Any = traitlets.Dict().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        name = uuid.uuid4().hex
        super().__init__(model_id=name, _dom_classes=["qkv-cell", f"qkv-id-{name}"], **traits)

    def _repr_mimebundle_(self, **given: Any) -> dict[str, Any]:
        return super()._repr_mimebundle_(**given) | {"text/plain": _words(self.html)}  # for a page without widgets


class Library(anywidget.AnyWidget):
    """What all views need once: plotly.js, packed, and the style sheet: that of the labs, and what twins need more."""

    _esm = (HERE / "twin.js").read_text(encoding="utf-8")
    _css = ""

    plotly = traitlets.Bytes(b"").tag(sync=True)

    @classmethod
    def load(cls) -> "Library":
        folders = HERE.parent / "_notebooks", HERE.parents[1] / "notebooks"  # of the wheel, of the checkout
        css = next(folder / "lab.css" for folder in folders if folder.is_dir()).read_text(encoding="utf-8")
        for old, new in (("#App", "&"), (":root", "&"), (".dark {", '[data-jp-theme-light="false"] & {')):
            css = css.replace(old, new)
        css = re.sub(r"(font-size: [^;]*?)([\d.]+)rem", r"\1calc(\2 * var(--jp-content-font-size1, 1rem))", css)
        cls._css = f":is(.qkv-twin, .jp-MarkdownOutput) {{{css}}}\n{(HERE / 'twin.css').read_text(encoding='utf-8')}"
        return cls(plotly=gzip.compress(plotly.offline.get_plotlyjs().encode(), 5))


# ---------------------------------------------------------------- the cells


@dataclass(eq=False)
class Cell:
    impl: CellImpl
    view: Any = None  # a CellView, once there is something to see
    elements: list[Any] = field(default_factory=list)  # made in its last run, and held until the next
    state: str = ""  # ran, stopped (by mo.stop), failed, or not run: waits (for names), skipped, blocked (by a failure)
    claimed: int = 0  # when it was last run by hand: of two cells that define a name, the later owns it
    taken: str = ""  # the names it took over from another cell
    raised: bool = False  # the notebook shows an error of it, which no re-run can take away
    seconds: float = 0.0
    last: tuple[str, list[Any], Any, BaseException | None] = ("", [], None, None)  # prints, displays, value, error


class Page:
    """The cells of a notebook, and the passes over them."""

    def __init__(self, shell: Any):
        self.shell, self.names = shell, shell.user_ns
        self.cells: dict[str, Cell] = {}
        self.elements: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self.controls: dict[str, Any] = {}  # id of an element -> its ipywidget
        self.pending: dict[str, Any] = {}  # id of a form -> what its fields say, not yet submitted
        self.heard: dict[str, list[Any]] = {}  # model id of an anywidget -> the elements around it
        self.gone: list[w.Widget] = []  # controls of cells that run again
        self.running: Cell | None = None
        self.by_hand: Cell | None = None  # run by the reader, and its view not yet on the page
        self.asked: Any = None  # what IPython is about to run
        self.error: BaseException | None = None
        self.queue: deque[Any] = deque()  # what the page has done and is not yet dealt with
        self.loop = _loop()
        self.left: set[str] = set()  # readers of a cell that reacts no more
        self.runs: list[str] = []  # every run so far, for tests
        self.clock = 0

    # ---- who needs whom

    def owners(self) -> dict[str, str]:
        """Name -> the cell that owns it."""
        return {n: k for k, cell in sorted(self.cells.items(), key=lambda kc: kc[1].claimed) for n in cell.impl.defs}

    def graph(self) -> Any:
        """The cells as marimo's algorithms want them."""
        owners = self.owners()
        parents = {k: {owners[n] for n in c.impl.refs if owners.get(n, k) != k} for k, c in self.cells.items()}
        children = {k: {child for child in parents if k in parents[child]} for k in self.cells}
        return SimpleNamespace(cells=self.cells, parents=parents, children=children, owners=owners)

    def missing(self, cell: Cell) -> list[str]:
        return sorted(n for n in cell.impl.refs if n not in self.names and not hasattr(builtins, n))

    # ---- passes

    def go(self) -> None:
        """The reader runs a cell: new, edited or as it was."""
        (key, impl), before = self.next, self.owners()
        roots = {key} | self.graph().children.get(key, set())
        if key in self.cells:
            self.forget(key, before)
        self.by_hand = cell = self.cells.setdefault(key, Cell(impl))
        cell.impl, cell.claimed, cell.raised = impl, self.clock, False
        cell.taken = ", ".join(sorted(n for n in impl.defs if before.get(n, key) != key))
        after = self.owners()  # an edit may give a name back to a cell before
        self.run_pass(roots | {after[n] for n, k in before.items() if k == key and n in after})
        if self.error is not None:
            self.shell.showtraceback((type(self.error), self.error, self.error.__traceback__), tb_offset=0)

    def run_pass(self, roots: set[str], moved: bool = False) -> None:
        """Run cells and all that depends on them, each once, in order.

        After a move marimo asks only whether a cell above has stopped in this pass; at first, whether it has ever.
        """
        graph: Any = self.graph()
        reached: Any = transitive_closure(graph, roots)  # type: ignore[arg-type]
        order = topological_sort(graph, reached)
        for key in reached:
            self.forget(key, graph.owners)
        left = reached - set(order)
        ring = [self.cells[k].impl for k in left if k in transitive_closure(graph, set(graph.children[k]))]
        circle = sorted({name for one in ring for other in ring for name in one.defs & other.refs})
        for key in left:
            self.rest(self.cells[key], "blocked", f"Not run: {_code(circle)} need each other in a circle.")
        for key in order:
            cell = self.cells[key]
            names = self.missing(cell)
            above = {self.cells[k].state for k in graph.parents[key] if k in reached or not moved}
            above |= {self.cells[graph.owners[name]].state for name in names if name in graph.owners}
            if isinstance(self.error, KeyboardInterrupt):
                self.rest(cell, "blocked", "Not run: interrupted.")
            elif above & {"failed", "blocked"}:
                self.rest(cell, "blocked", "Not run: a cell that it needs has failed.")
            elif above & {"stopped", "skipped"}:
                self.rest(cell, "skipped")
            elif names:
                known = all(name in graph.owners for name in names)
                why = "the cell that defines it waits, too" if known else "no cell run so far defines it"
                own = next((_advice(cell, name) for name in names if name in cell.impl.defs), "")
                self.rest(cell, "waits", own or f"Waits for {_code(names)}: {why}.")
            else:
                self.run(key, cell, graph.owners)
        for widget in self.gone:  # only now, so that nothing flickers
            for part in (widget.style, widget.layout, widget):
                part.close()
        self.gone.clear()

    def forget(self, key: str, owners: dict[str, str]) -> None:
        """Take away what a cell has defined."""
        cell = self.cells[key]
        for name in cell.impl.defs | cell.impl.temporaries:
            if owners.get(name, key) == key:
                self.names.pop(name, None)
        self.gone += [self.controls.pop(e._id) for e in cell.elements if e._id in self.controls]
        for element in cell.elements:
            self.pending.pop(element._id, None)

    def run(self, key: str, cell: Cell, owners: dict[str, str]) -> None:
        """Run one cell and show what came of it."""
        foreign = {n: self.names[n] for n in cell.impl.defs if owners[n] != key and n in self.names}
        value, error, start, hand = None, None, time.perf_counter(), cell is self.by_hand
        shown = _Displays()
        shown.prints = prints = _Prints(self, cell)
        outside = self.running, self.divert({"publish": shown.publish, "clear_output": shown.clear_output})
        if cell.view and cell.seconds > 0.4:
            cell.view.busy = True
        cell.elements, cell.state, self.running = [], "ran", cell
        try:
            with redirect_stdout(prints), redirect_stderr(prints):  # type: ignore[type-var]
                if cell.impl.body is not None and cell.impl.last_expr is not None:
                    exec(cell.impl.body, self.names)
                    value = eval(cell.impl.last_expr, self.names)
        except MarimoStopError as stop:
            value, cell.state = stop.output, "stopped"
        except BaseException as problem:
            error, cell.state = problem, "failed"
            if isinstance(problem, NameError):  # marimo's inner name of a private one
                problem.args = (demangle_locals_in_text(str(problem)),)
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this line of ours
        self.running = outside[0]
        self.divert(outside[1])
        for name in cell.impl.defs:  # of those that another cell owns, its value or none
            if owners[name] != key:
                self.names.pop(name, None)
        self.names.update(foreign)
        self.runs.append(key)
        cell.seconds = time.perf_counter() - start
        if error is not None and (hand or isinstance(error, KeyboardInterrupt)):
            self.error, cell.raised = error, hand
        cell.last = (prints.text, shown.outputs, value, None if hand else error)
        self.show(cell, _advice(cell, demangle_locals_in_text(getattr(error, "name", None) or "")))

    def divert(self, to: dict[str, Any]) -> dict[str, Any]:
        """What is displayed goes there, until the next call; gives back where it went.

        The shell keeps its publisher: messages that come in another thread meanwhile are dealt with through it.
        """
        own = vars(self.shell.display_pub)
        before = {name: own.pop(name) for name in ("publish", "clear_output") if name in own}
        own.update(to)
        return before

    def rest(self, cell: Cell, state: str, told: str = "") -> None:
        """A cell that does not run in this pass."""
        cell.state, cell.last = state, ("", [], None, None)
        self.show(cell, told)

    def show(self, cell: Cell, told: str = "") -> None:
        """Put what a cell has to show on the page; only what has changed is sent."""
        prints, displays, value, error = cell.last
        shown = Shown(self)
        prints = re.sub(r"\S*__marimo__cell_\w+\.py:(\d+)", r"line \1", prints)  # of a warning
        shown.out = prints and f'<pre class="twin-printed">{escape(prints)}</pre>'
        try:
            for output in displays:
                shown.bundle(output["data"])
            shown.add(value)
        except Exception as problem:  # a value that cannot be shown
            error = error or problem
        if error is not None:
            said = str(traceback.TracebackException.from_exception(error))  # even where its __str__ fails
            lines = demangle_locals_in_text("".join(traceback.format_exception(error)))
            lines = re.sub(r'File "[^"]*__marimo__cell_[^"]*"', "in a cell", lines)
            shown.out += (
                f'<div class="twin-error" role="alert"><b>{type(error).__name__}</b>: {escape(said)}'
                f"<details><summary>Traceback</summary><pre>{escape(lines)}</pre></details></div>"
            )
        if cell.taken:
            told = f"{_code(cell.taken.split(', '))} was defined by a cell before; from now on by this one. {told}"
        if cell.raised and cell.state == "ran":
            told = f"The error above is of an earlier run. {told}"
        shown.out += told and f'<p class="twin-note">{told}</p>'
        new = {"figures": shown.figures, "html": shown.out, "busy": False}
        if cell.view is None:
            cell.view = CellView(**new)
        else:
            with cell.view.hold_sync():
                for name, content in new.items():
                    setattr(cell.view, name, content)
        if cell is self.by_hand:
            self.by_hand, inside = None, self.divert({})
            display(cell.view)
            self.divert(inside)

    # ---- controls

    def control(self, element: Any) -> Any:
        """The ipywidget of an element, made when it is first shown or moved."""
        if element._id not in self.controls:
            args, label = element._args.args, element._args.label
            plain = {"description": _words(mo.md(label).text) if label else "", "disabled": bool(args.get("disabled"))}
            widget = MAPPED[element._args.component_name](args, element._value_frontend, plain)  # type: ignore[misc]
            if isinstance(widget, w.Button):
                widget.on_click(lambda _: self.soon(self.pressed, element))
            else:
                widget.observe(lambda change: self.soon(self.moved, element, _sent(change.new)), "value")
            self.controls[element._id] = widget
        return self.controls[element._id]

    def soon(self, do: Callable[..., None], element: Any, *value: Any) -> None:
        """Do it in the kernel's main thread, where an interrupt reaches it. JupyterLab's messages come in another."""
        if self.loop is None or threading.current_thread() is threading.main_thread():
            do(element, *value)
        else:
            self.queue.append((do, element, value))
            self.loop.call_soon_threadsafe(self.flush)

    def flush(self) -> None:
        """What has come meanwhile: of several moves of one control, the last."""
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # between messages ipykernel has it ignored
        try:
            while self.queue:
                do, element, value = self.queue.popleft()
                if do == self.pressed or not (self.queue and self.queue[0][:2] == (do, element)):
                    do(element, *value)
        except KeyboardInterrupt:  # between two cells; let go, it would end the kernel
            self.queue.clear()
        finally:
            signal.signal(signal.SIGINT, handler)

    def pressed(self, element: Any) -> None:
        if isinstance(element, mo.ui.form):
            self.moved(element, self.pending.get(element._id, element.element._value_frontend))
        else:
            self.moved(element, (element._value_frontend or 0) + 1)

    def moved(self, element: Any, value: Any) -> None:
        """What marimo's kernel does when its page says that a control has moved."""
        while element._lens is not None:
            value, element = {element._lens.key: value}, self.elements[element._lens.parent_id]
        for form in list(self.elements.values()):
            if isinstance(form, mo.ui.form) and form.element is element:
                self.pending[form._id] = _merged(self.pending.get(form._id, element._value_frontend), value)
                return
        try:
            element._update(value)
        except Exception:  # of the reader's own on_change
            self.shell.showtraceback()
        self.changed(element)

    def changed(self, element: Any) -> None:
        """Run the cells that read an element, and what depends on them."""
        self.error, owners = None, self.owners()
        names = {n for n, value in list(self.names.items()) if self.holds(value, element)}
        self.run_pass({k for k, c in self.cells.items() for n in names & c.impl.refs if owners.get(n) != k}, moved=True)
        element._on_update_completion()
        for cell in self.cells.values() if isinstance(element, mo.ui.tabs) else ():
            if cell.view and self.control(element).model_id in cell.view.html:
                self.show(cell)

    def holds(self, value: Any, element: Any) -> bool:
        """Whether a value is that element, or one inside of it."""
        while isinstance(value, UIElement) and value is not element:
            value = value._lens and self.elements.get(value._lens.parent_id)
        return value is element

    def watched(self, element: Any) -> str:
        """The model of a `mo.ui.anywidget`, whose readers run when the page sets one of its traits."""
        widget = element.widget
        known = self.heard.setdefault(widget.model_id, [])
        if all(other is not element for other in known):
            known.append(element)
        if "set_state" not in vars(widget):
            plain = widget.set_state

            def set_state(state: Any) -> None:
                plain(state)
                for other in known:
                    self.soon(self.changed, other)

            widget.set_state = set_state
        return widget.model_id

    # ---- IPython

    def before(self, info: Any) -> None:
        self.asked, self.error, self.by_hand = info, None, None

    def visit(self, node: ast.Module) -> ast.Module:
        """The AST transformer: instead of the cell, IPython runs a call of `go`."""
        info, self.asked = self.asked, None
        if info is None or re.search(r"\btwin\.start\(", info.raw_cell):
            return node
        self.clock += 1
        try:
            impl = compile_cell(info.raw_cell, cell_id=f"n{self.clock}")  # type: ignore[arg-type]
        except Exception:
            impl = None
        if impl is None or impl.is_coroutine():
            print("This cell has a magic, an await or an import of *: it runs as it stands, and does not react.")
            if info.cell_id in self.cells:  # what it was before must not run any more
                self.left |= self.graph().children[info.cell_id]
                self.forget(info.cell_id, self.owners())
                del self.cells[info.cell_id]
            return node
        key = info.cell_id or f"~{self.clock}"
        for other, cell in self.cells.items() if not info.cell_id else ():  # nbclient does not say which cell it runs
            if other[0] == "~" and (cell.impl.code == impl.code or (cell.impl.defs and cell.impl.defs <= impl.defs)):
                key = other
        self.next = (key, impl)
        if impl.body is not None:  # tracebacks call it by its number, as they call any cell
            numbers = getattr(self.shell.compile, "_filename_map", {"": 0})
            numbers[impl.body.co_filename] = max(numbers.values())
        return ast.parse("__import__('qkvlab.show.twin').show.twin.page.go()")

    def after(self, result: Any) -> None:
        if self.error is not None and result.error_in_exec is None:
            result.error_in_exec = self.error
        fed = {k for k, cell in self.cells.items() if cell.state == "waits" and not self.missing(cell)}
        left, self.left = self.left & set(self.cells), set()
        self.run_pass(fed | left)


def _loop() -> Any:
    """The event loop of the kernel's main thread, in which its cells run."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _advice(cell: Cell, name: str) -> str:
    """What to do about a name that a cell did not find, where the error alone does not tell."""
    if name in cell.impl.defs:
        return f"This cell reads {_code([name])} before it defines it: give what it makes another name."
    if name.startswith("_") and not name.endswith("__"):
        return f"{_code([name])} is seen by the cell that defines it only, as every name that begins with _ is."
    return ""


def _code(names: list[str]) -> str:
    return ", ".join(f"<code>{name}</code>" for name in names)


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {k: _merged(old.get(k), v) for k, v in new.items()}


class _Displays(CapturingDisplayPublisher):
    """What a running cell displays; a handle of `display` changes it in place, `clear_output` takes it away."""

    prints: Any

    def publish(self, data: Any, *given: Any, transient: Any = None, update: bool = False, **more: Any) -> None:
        old = [output for output in self.outputs if update and output["transient"] == transient]
        for output in old:
            output["data"] = data
        if not old:
            super().publish(data, *given, transient=transient, update=update, **more)

    def clear_output(self, wait: bool = False) -> None:
        self.outputs.clear()
        self.prints.text = ""


class _Prints(io.TextIOBase):
    """What a running cell prints, put on the page now and then while it runs."""

    def __init__(self, page: Page, cell: Cell):
        self.page, self.cell, self.text, self.sent = page, cell, "", time.perf_counter()

    def write(self, text: str) -> int:
        self.text = (self.text + text)[-100_000:]
        if "\r" in text:  # a line that is written over
            self.text = re.sub(r"[^\n]*\r(?!\n)", "", self.text)
        if time.perf_counter() - self.sent > 0.3:
            self.cell.last, self.sent = (self.text, [], None, None), time.perf_counter()
            self.page.show(self.cell)
        return len(text)


# ---------------------------------------------------------------- what a notebook calls

page: Page = None  # type: ignore[assignment]
_plain_initialize = UIElement._initialize


def _initialize(self: Any, args: Any) -> None:
    """marimo's, and the page knows the element from now on."""
    _plain_initialize(self, args)
    page.elements[self._id] = self
    if page.running is not None:
        page.running.elements.append(self)


def _append(value: Any) -> None:
    """Of a `mo.status.spinner`: what it says stands in its cell until the cell has run."""
    if page.running is not None:
        page.running.last = ("", [], None, None)
        page.show(page.running, f"{escape(getattr(value, 'title', None) or 'Running')} …")


def _figure_html(figure: Any) -> Any:
    return "text/html", PlotlyFormatter.render_plotly_dict(json.loads(plotly.io.to_json(figure))).text


def start() -> None:
    """Watch every cell that is run from now on, and show the library that the views draw with."""
    global page
    shell: Any = get_ipython()
    if shell is None:
        raise RuntimeError("twin.start() belongs in a notebook: there is no IPython here")
    address.jupyter = True  # what labs say of their page is now said of a notebook
    if page is None or page.shell is not shell:
        page = Page(shell)
        shell.ast_transformers.append(page)
        shell.events.register("pre_run_cell", page.before)
        shell.events.register("post_run_cell", page.after)
    # With formatters of ours marimo does without its own for other packages, which take Jupyter's comms and displays.
    formatting.formatter(w.Widget)(lambda v: ("text/html", f"<marimo-widget id='{v.model_id}'></marimo-widget>"))  # type: ignore
    formatting.formatter(go.Figure)(_figure_html)
    UIElement._initialize = _initialize  # type: ignore[assignment, method-assign]
    marimo_output.append = _append  # type: ignore[assignment]
    plotly.io.renderers.default = "plotly_mimetype"  # of fig.show(); others bring plotly.js along
    display(Library.load())


def waiting() -> dict[str, list[str]]:
    """First line of each cell that waits -> the names it waits for."""
    waits = [cell for cell in page.cells.values() if cell.state == "waits"]
    return {cell.impl.code.strip().split("\n")[0]: page.missing(cell) for cell in waits}


def move(name: str, value: Any = True) -> None:
    """Do at the control bound to `name` what a reader would; "models.m1" is a control inside of `models`.

    `value` as marimo has it: a number, the name of an option, True for a button. Raises ValueError when that is none.
    """
    first, *inner = name.split(".")
    element = page.names.get(first)
    for key in inner:
        element = _inside(element).get(key)
    if not isinstance(element, UIElement) or not MAPPED.get(element._args.component_name):
        raise ValueError(f"{name!r} is {type(element).__name__}, not a control")
    widget = page.control(element)
    if isinstance(widget, w.Button):
        widget.click()
    else:
        widget.value = widget.back(value) if hasattr(widget, "back") else value
