"""Runs a lab in Jupyter as marimo would: a control moves, and the cells that read it run again, in place.

    from qkvlab.show import twin

    twin.start()                # in the first cell; every cell after it is watched
    twin.move("layer", 4)       # what a reader does at a control, for tests: a number, an option, True for a button

The cells use marimo's own objects. marimo's compiler says what a cell reads and defines; what is here is the rest: the
order, `mo.stop`, a view of each cell (`CellView`, drawn by twin.js) in which marimo's custom elements have become
ipywidgets and Plotly figures. Private parts of marimo are used in this module only, so marimo is pinned.
"""

import ast
import builtins
import gzip
import io
import json
import re
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import date, datetime
from html import escape, unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anywidget
import comm
import ipywidgets as w
import marimo as mo
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
from marimo._output.formatters import formatters
from marimo._plugins.ui._core.ui_element import UIElement
from marimo._runtime.control_flow import MarimoStopError
from marimo._runtime.dataflow import topological_sort, transitive_closure

HERE = Path(__file__).parent


# ---------------------------------------------------------------- marimo's controls as ipywidgets


@dataclass(eq=False)
class Control:
    """The ipywidget of an element; `front` turns its value into what marimo's page would send, `back` a reader's."""

    widget: w.Widget
    front: Callable[[Any], Any] = lambda value: value
    back: Callable[[Any], Any] = lambda value: value
    trait: str = "value"


def _number(value: Any) -> Any:
    """A number as JSON would carry it: 600.0 is 600."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _slider(args: dict[str, Any], value: Any, plain: dict[str, Any]) -> Control:
    plain |= {"continuous_update": not args["debounce"], "orientation": args["orientation"]}
    plain["readout"] = bool(args["show-value"] or args["include-input"])
    several = isinstance(value, (list, tuple))
    if args["steps"]:
        options = [(f"{step:g}", i) for i, step in enumerate(args["steps"])]
        if several:
            made = w.SelectionRangeSlider(options=options, index=[int(v) for v in value], **plain)
            return Control(made, list, lambda given: [args["steps"].index(v) for v in given])
        return Control(w.SelectionSlider(options=options, value=int(value), **plain), back=args["steps"].index)
    numbers = [args["start"], args["stop"], *(value if several else [value])]
    step = args.get("step") or 1
    whole = all(isinstance(n, int) for n in [*numbers, step])
    kind = (w.IntRangeSlider if whole else w.FloatRangeSlider) if several else (w.IntSlider if whole else w.FloatSlider)
    if not whole:
        plain["readout_format"] = f".{max(len(f'{n}'.partition('.')[2]) for n in (step, args['start']))}f"
    return Control(
        kind(min=args["start"], max=args["stop"], step=step, value=value, **plain), list if several else _number
    )


def _entry(args: dict[str, Any], value: Any, plain: dict[str, Any]) -> Control:
    start, stop = args.get("start"), args.get("stop")
    low, high = -1e15 if start is None else start, 1e15 if stop is None else stop
    made = w.BoundedFloatText(value or 0, min=low, max=high, step=args.get("step") or 1, **plain)
    return Control(made, _number)


def _choice(kind: type) -> Callable[..., Control]:
    def make(args: dict[str, Any], value: Any, plain: dict[str, Any]) -> Control:
        options = [(name, name) for name in args["options"]]
        chosen = (value[0] if value else None) if kind is w.Dropdown else value
        if kind is w.Dropdown and (args["allow-select-none"] or chosen is None):
            options = [("--", None), *options]
        made = kind(options=options, value=chosen, **plain)
        return Control(made, (lambda key: [] if key is None else [key]) if kind is w.Dropdown else lambda key: key)

    return make


def _tick(args: dict[str, Any], value: Any, plain: dict[str, Any]) -> Control:
    return Control(w.Checkbox(value, indent=False, **plain))


def _text(kind: type) -> Callable[..., Control]:
    def make(args: dict[str, Any], value: Any, plain: dict[str, Any]) -> Control:
        made = w.Password if args.get("kind") == "password" else kind
        later = {} if made is w.Password else {"continuous_update": not args.get("debounce", True)}
        return Control(made(value=value, placeholder=args.get("placeholder") or "", **later, **plain))

    return make


def _many(args: dict[str, Any], value: Any, plain: dict[str, Any]) -> Control:
    made = w.SelectMultiple(options=list(args["options"]), value=list(value), **plain)
    made.rows = min(6, len(args["options"]))
    return Control(made, list)


def _button(args: dict[str, Any], value: Any, plain: dict[str, Any]) -> Control:
    style = {"success": "success", "warn": "warning", "danger": "danger"}.get(args.get("kind", ""), "")
    return Control(w.Button(button_style=style, tooltip=args.get("tooltip") or "", **plain), trait="")


def _form(args: dict[str, Any], value: Any, plain: dict[str, Any]) -> Control:
    plain["description"] = args["submit-button-label"]
    return Control(w.Button(button_style="primary", **plain), trait="")


def _day(kind: type, parse: Callable[[str], Any]) -> Callable[..., Control]:
    def make(args: dict[str, Any], value: Any, plain: dict[str, Any]) -> Control:
        bounds = {n: parse(args[k]) for n, k in (("min", "start"), ("max", "stop")) if args.get(k)}
        made = kind(value=parse(value) if value else None, **bounds, **plain)
        return Control(made, lambda day: day and day.isoformat())

    return make


def _tabs(args: dict[str, Any], value: Any, plain: dict[str, Any]) -> Control:
    names = [_words(label) for label in args["tabs"]]
    made = w.ToggleButtons(options=[(n, str(i)) for i, n in enumerate(names)], value=value or "0", **plain)
    return Control(made, back=lambda name: str(names.index(name)))


# marimo's component -> what makes its ipywidget (None: it needs none, its content stands for it)
MAPPED: dict[str, Callable[[dict[str, Any], Any, dict[str, Any]], Control] | None] = {
    "marimo-slider": _slider,
    "marimo-range-slider": _slider,
    "marimo-number": _entry,
    "marimo-dropdown": _choice(w.Dropdown),
    "marimo-radio": _choice(w.RadioButtons),
    "marimo-multiselect": _many,
    "marimo-checkbox": _tick,
    "marimo-switch": _tick,
    "marimo-text": _text(w.Text),
    "marimo-text-area": _text(w.Textarea),
    "marimo-button": _button,
    "marimo-form": _form,
    "marimo-date": _day(w.DatePicker, date.fromisoformat),
    "marimo-datetime": _day(w.NaiveDatetimePicker, datetime.fromisoformat),
    "marimo-tabs": _tabs,
    "marimo-dict": None,
    "marimo-array": None,
    "marimo-plotly": None,
    "marimo-anywidget": None,
    "marimo-table": None,
    "marimo-accordion": None,
    "marimo-callout-output": None,
    "marimo-tex": None,
    "marimo-sidebar": None,
    "marimo-outline": None,
}


def _words(html: str) -> str:
    """HTML as plain words, formulas as TeX without its delimiters."""
    return unescape(re.sub(r"<[^>]*>|\|\|[()\[\]]|\\[()\[\]]", "", html)).strip()


# ---------------------------------------------------------------- a value as HTML with slots

TAG = re.compile(r"<(marimo-[\w-]+)([^>]*)>")  # marimo writes no > inside of an attribute
UNSEEN = ("marimo-sidebar", "marimo-outline")


class Shown:
    """A value as HTML that a notebook can show: `out`. `slots` and `figures` say which model or figure goes where."""

    def __init__(self, page: "Page"):
        self.page, self.out = page, ""
        self.slots: dict[str, str] = {}  # data-slot -> id of a widget
        self.figures: dict[str, Any] = {}  # data-figure -> figure and its settings

    def add(self, value: Any) -> None:
        """A value of a cell, whatever it is."""
        if isinstance(value, mo.Html):
            self.out += self.html(value.text)
        elif isinstance(value, w.Widget):
            self.out += self.slot(value)
        elif isinstance(value, go.Figure):
            self.out += self.figure(json.loads(plotly.io.to_json(value)), {"responsive": True})
        elif hasattr(value, "_mime_"):
            self.bundle(dict([value._mime_()]))
        elif value is not None:
            self.bundle(self.page.shell.display_formatter.format(value)[0])

    def bundle(self, data: Mapping[str, Any]) -> None:
        """What IPython's formatters made of a value, the richest of it."""
        image = next((kind for kind in data if kind.startswith("image/")), "")
        if view := data.get("application/vnd.jupyter.widget-view+json"):
            self.out += self.slot(w.Widget.widgets[view["model_id"]])
        elif figure := data.get("application/vnd.plotly.v1+json"):
            self.out += self.figure(figure, figure.get("config") or {})
        elif "text/html" in data:
            self.out += self.html(data["text/html"])
        elif "text/markdown" in data or "text/latex" in data:
            self.out += self.html(mo.md(data.get("text/markdown") or data["text/latex"]).text)
        elif image == "image/svg+xml":
            self.out += data[image]
        elif image:
            self.out += f'<img alt="" src="data:{image};base64,{data[image].strip()}">'
        elif data.get("text/plain"):
            self.out += f"<pre>{escape(data['text/plain'])}</pre>"

    def slot(self, widget: w.Widget) -> str:
        self.slots[widget.model_id] = widget.model_id
        return f'<div data-slot="{widget.model_id}"></div>'

    def figure(self, figure: dict[str, Any], config: dict[str, Any]) -> str:
        key = str(len(self.figures))
        self.figures[key] = {"data": figure["data"], "layout": figure.get("layout", {}), "config": config}
        return f'<div data-figure="{key}"></div>'

    def html(self, text: str) -> str:
        """HTML with marimo's elements translated."""
        out, at = "", 0
        while tag := TAG.search(text, at):
            name, depth, end = tag[1], 1, tag.end()
            for other in re.finditer(rf"<(/?){name}\b[^>]*>", text[tag.end() :]):
                depth += -1 if other[1] else 1
                if not depth:
                    break
            else:
                raise ValueError(f"<{name}> is never closed")
            inner, end = text[tag.end() : tag.end() + other.start()], tag.end() + other.end()
            attributes = {k: unescape(v) for k, v in re.findall(r"([\w-]+)='([^']*)'", tag[2])}
            out += text[at : tag.start()] + self.tag(name, attributes, inner)
            at = end
        # the address of a lab in marimo's gallery becomes the notebook beside this one
        rest = r'href="\?file=[^"]*?(\w+)\.py[^"]*"( target="_self")?'
        return out + re.sub(rest, r'href="\1.ipynb" target="_blank"', text[at:])

    def tag(self, name: str, attributes: dict[str, str], inner: str) -> str:
        """One of marimo's custom elements."""
        given = {k.removeprefix("data-"): json.loads(v) for k, v in attributes.items() if k.startswith("data-")}
        if name in UNSEEN:
            return ""
        if name == "marimo-ui-element":
            element = self.page.elements.get(attributes["object-id"])
            return self.element(element, inner) if element is not None else ""
        if name == "marimo-tex":
            inner = re.sub(r"^\|\|([(\[])|\|\|([)\]])$", r"\\\1\2", inner.strip())
            return f'<span class="tex">{inner}</span>'
        if name == "marimo-plotly":
            return self.figure(given["figure"], given.get("config") or {})
        if name == "marimo-callout-output":
            return f'<div class="twin-callout twin-{given["kind"]}" role="note">{self.html(given["html"])}</div>'
        if name == "marimo-accordion":
            parts = zip(given["labels"], _children(self.html(inner)), strict=True)
            folds = (f"<details><summary>{self.html(label)}</summary>{part}</details>" for label, part in parts)
            return f'<div class="twin-accordion">{"".join(folds)}</div>'
        return self.html(inner) or f'<p class="twin-note">{escape(name)} cannot be shown here.</p>'

    def element(self, element: Any, inner: str) -> str:
        """An element of marimo's: its control with its label, or its content."""
        name, args = element._args.component_name, element._args.args
        label = self.html(mo.md(element._args.label).text) if element._args.label else ""
        if name == "marimo-anywidget":
            return self.slot(self.page.watched(element))
        if name == "marimo-plotly":
            return self.figure(args["figure"], args.get("config") or {})
        if isinstance(element, mo.ui.array | mo.ui.dictionary):
            elements: Any = element.elements
            children = elements.values() if isinstance(elements, Mapping) else elements
            return f'<div class="twin-stack">{label}{"".join(self.html(child.text) for child in children)}</div>'
        if name == "marimo-table":
            return label + _table(args)
        if not MAPPED.get(name):
            return self.html(re.sub(r"^<[^>]*>|<[^>]*>$", "", inner))  # a batch: its own HTML holds its children
        control = self.slot(self.page.control(element).widget)
        kind = name.removeprefix("marimo-") + " twin-wide" * bool(args.get("full-width"))
        if name == "marimo-form":
            return f'<div class="twin-form">{label}{self.html(element.element.text)}{control}</div>'
        if name == "marimo-tabs":
            chosen = int(element._value_frontend or 0)
            control += "".join(
                f"<div{' hidden' * (i != chosen)}>{self.html(part.text)}</div>"
                for i, part in enumerate(element._children)
            )
        label = f'<span class="twin-label">{label}</span>' if label and name != "marimo-button" else ""
        return f'<div class="twin-control twin-{kind}">{label}{control}</div>'


def _children(html: str) -> list[str]:
    """The <div>s that stand side by side in HTML."""
    parts, depth, start = [], 0, 0
    for tag in re.finditer(r"<(/?)div\b[^>]*>", html):
        start = tag.start() if not depth else start
        depth += -1 if tag[1] else 1
        if not depth:
            parts.append(html[start : tag.end()])
    return parts


def _table(args: dict[str, Any]) -> str:
    rows = json.loads(args["data"]) if isinstance(args["data"], str) else args["data"]
    names = list(rows[0]) if rows else []
    head = "".join(f"<th>{escape(str(n))}</th>" for n in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(row[n]))}</td>" for n in names) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class CellView(anywidget.AnyWidget):
    """What a cell shows, drawn by twin.js, and redrawn in place."""

    _esm = (HERE / "twin.js").read_text(encoding="utf-8")

    html = traitlets.Unicode("").tag(sync=True)
    slots: Any = traitlets.Dict().tag(sync=True)
    figures: Any = traitlets.Dict().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)


class Library(anywidget.AnyWidget):
    """What all views need once: plotly.js, packed, and the style sheet."""

    _esm = CellView._esm
    _css = ""

    plotly = traitlets.Bytes(b"").tag(sync=True)

    @classmethod
    def load(cls) -> "Library":
        package = HERE.parent
        folder = package / "_notebooks" if (package / "_notebooks").is_dir() else package.parent / "notebooks"
        looks = (folder / "lab.css").read_text(encoding="utf-8")
        for old, new in (("#App", "&"), (":root", "&"), (".dark {", '[data-jp-theme-light="false"] & {')):
            looks = looks.replace(old, new)
        cls._css = f":is(.qkv-twin, .jp-MarkdownOutput) {{{looks}}}\n" + (HERE / "twin.css").read_text(encoding="utf-8")
        return cls(plotly=gzip.compress(plotly.offline.get_plotlyjs().encode(), 5))


# ---------------------------------------------------------------- the cells


@dataclass(eq=False)
class Cell:
    impl: CellImpl
    view: CellView = field(default_factory=CellView)
    elements: list[Any] = field(default_factory=list)  # made in its last run; held, as marimo's page would
    state: str = "new"  # ran | waits | stopped | failed | skipped
    claimed: int = 0  # when it was last run by hand: of two cells that define a name, the later owns it
    told: str = ""  # what its view says below its value
    raised: bool = False  # its notebook output shows an error, which no re-run can take away
    seconds: float = 0.0
    last: tuple[str, list[Any], Any, BaseException | None] = ("", [], None, None)  # prints, displays, value, error


class Page:
    """The cells of a notebook, and the passes over them."""

    def __init__(self, shell: Any):
        self.shell, self.names = shell, shell.user_ns
        self.cells: dict[str, Cell] = {}
        self.elements: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self.controls: dict[str, Control] = {}
        self.pending: dict[str, Any] = {}  # of each form: what its fields say, not yet submitted
        self.heard: dict[str, list[Any]] = {}  # of each anywidget: the elements around it
        self.gone: list[w.Widget] = []
        self.running: Cell | None = None
        self.asked: Any = None  # the cell that IPython is about to run
        self.error: BaseException | None = None
        self.clock = 0
        self.runs: list[str] = []  # every run so far, for tests

    # ---- who needs whom

    def owners(self) -> dict[str, str]:
        """Name -> the cell that owns it."""
        ordered = sorted(self.cells, key=lambda key: self.cells[key].claimed)
        return {name: key for key in ordered for name in self.cells[key].impl.defs}

    def graph(self) -> Any:
        """The cells as marimo's algorithms want them."""
        owners = self.owners()
        parents = {
            key: {owners[name] for name in cell.impl.refs if owners.get(name, key) != key}
            for key, cell in self.cells.items()
        }
        children: dict[str, set[str]] = {key: set() for key in self.cells}
        for key, above in parents.items():
            for parent in above:
                children[parent].add(key)
        return SimpleNamespace(cells=self.cells, parents=parents, children=children, owners=owners)

    def missing(self, cell: Cell) -> list[str]:
        return sorted(n for n in cell.impl.refs if n not in self.names and not hasattr(builtins, n))

    # ---- passes

    def go(self) -> None:
        """The reader runs a cell: new, edited or as it was."""
        key, impl = self.next
        cell = self.cells.get(key) or Cell(impl)
        children = set(self.graph().children.get(key, ()))
        if key in self.cells:
            self.forget(key, self.owners())
        owners = self.owners()
        twice = sorted(n for n in impl.defs if owners.get(n, key) != key)
        if cell.impl.code != impl.code:
            cell.impl = impl
        self.cells[key], cell.claimed, cell.raised = cell, self.clock, False
        given_back = {k for n, k in self.owners().items() if owners.get(n) == key != k}  # an edit left a name to it
        cell.told = f"Defined by a cell before, and by this one from now on: {', '.join(twice)}." if twice else ""
        display(cell.view)
        self.run_pass({key} | children | given_back, hand=key)
        if self.error is not None:
            self.shell.showtraceback((type(self.error), self.error, self.error.__traceback__), tb_offset=0)

    def run_pass(self, roots: set[str], hand: str = "") -> None:
        """Run cells and all that depends on them, each once, in order."""
        graph = self.graph()
        reached = transitive_closure(graph, roots)  # type: ignore[arg-type]
        order = topological_sort(graph, reached)  # type: ignore[arg-type]
        for key in reached:
            self.forget(key, graph.owners)
        for key in reached - set(order):
            self.cycle(key, graph, reached)
        for key in order:
            cell = self.cells[key]
            above = [self.cells[parent] for parent in graph.parents[key]]
            missing = self.missing(cell)
            if any(parent.state in ("stopped", "skipped") for parent in above):
                self.rest(cell, "skipped")
            elif any(parent.state in ("failed", "blocked") for parent in above):
                self.rest(cell, "blocked", "Not run: a cell that it needs has failed.")
            elif missing:
                known = all(name in graph.owners for name in missing)
                why = "its cell waits, too" if known else "no cell run so far defines it"
                self.rest(cell, "waits", f"Waits for {', '.join(f'<code>{n}</code>' for n in missing)}: {why}.")
            else:
                self.run(key, cell, graph.owners, key == hand)
        gone, self.gone = self.gone, []
        for widget in gone:
            widget.close()

    def run(self, key: str, cell: Cell, owners: dict[str, str], by_hand: bool) -> None:
        """Run one cell and show what came of it."""
        foreign = {n: self.names[n] for n in cell.impl.defs if owners[n] != key and n in self.names}
        publisher, shown, prints = self.shell.display_pub, CapturingDisplayPublisher(), _Prints(cell.view)
        value, error, outer, start = None, None, self.running, time.perf_counter()
        cell.elements, self.running, cell.state, self.shell.display_pub = [], cell, "ran", shown
        if cell.seconds > 0.4:
            cell.view.busy = True
        try:
            with redirect_stdout(prints), redirect_stderr(prints):  # type: ignore[type-var]
                if cell.impl.body is not None and cell.impl.last_expr is not None:
                    exec(cell.impl.body, self.names)
                    value = eval(cell.impl.last_expr, self.names)
        except MarimoStopError as stop:
            value, cell.state = stop.output, "stopped"
        except BaseException as problem:
            error, cell.state = problem, "failed"
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this line of ours
        finally:
            self.running, self.shell.display_pub = outer, publisher
        self.names.update(foreign)
        self.runs.append(key)
        cell.seconds = time.perf_counter() - start
        if error is not None and by_hand:
            self.error, cell.raised = error, True
        cell.last = (prints.text, shown.outputs, value, None if by_hand else error)
        self.show(cell)

    def show(self, cell: Cell) -> None:
        """Send a cell's view what has changed."""
        text, outputs, value, error = cell.last
        shown = Shown(self)
        if text:
            shown.out += f'<pre class="twin-printed">{escape(text)}</pre>'
        try:
            for output in outputs:
                shown.bundle(output["data"])
            shown.add(value)
        except Exception as problem:  # a value that cannot be shown
            error = error or problem
        if error is not None:
            lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            shown.out += (
                f'<div class="twin-error" role="alert"><b>{type(error).__name__}</b>: {escape(str(error))}'
                f"<details><summary>Traceback</summary><pre>{escape(demangle_locals_in_text(lines))}</pre></details></div>"
            )
        told = cell.told or ("The message above is of an earlier run." if cell.raised and cell.state == "ran" else "")
        shown.out += f'<p class="twin-note">{told}</p>' if told else ""
        with cell.view.hold_sync():
            cell.view.slots, cell.view.figures = shown.slots, shown.figures
            cell.view.html, cell.view.busy = shown.out, False

    def rest(self, cell: Cell, state: str, told: str = "") -> None:
        """A cell that does not run in this pass."""
        cell.state, cell.last, was = state, ("", [], None, None), cell.told
        cell.told = told or was
        self.show(cell)
        cell.told = was

    def cycle(self, key: str, graph: Any, reached: Any) -> None:
        ring = [self.cells[k].impl for k in reached if k in transitive_closure(graph, graph.children[k])]
        names = sorted({name for one in ring for other in ring for name in one.defs & other.refs})
        told = f"Not run: {', '.join(f'<code>{n}</code>' for n in names)} need each other in a circle."
        self.rest(self.cells[key], "blocked", told)

    def forget(self, key: str, owners: dict[str, str]) -> None:
        """Take away what a cell has defined; its controls go when the pass is over, so that nothing flickers."""
        cell = self.cells[key]
        for name in cell.impl.defs | cell.impl.temporaries:
            if owners.get(name, key) == key:
                self.names.pop(name, None)
        self.gone += [c.widget for e in cell.elements if (c := self.controls.pop(e._id, None))]

    # ---- controls

    def control(self, element: Any) -> Control:
        """The ipywidget of an element, made when it is first shown or moved."""
        if element._id not in self.controls:
            name, args = element._args.component_name, element._args.args
            plain = {"description": _words(mo.md(element._args.label).text) if element._args.label else ""}
            plain |= {"disabled": bool(args.get("disabled"))}  # type: ignore[dict-item]
            control = MAPPED[name](args, element._value_frontend, plain)  # type: ignore[misc]
            if isinstance(control.widget, w.Button):
                control.widget.on_click(lambda _: self.pressed(element))
            else:
                control.widget.observe(lambda change: self.moved(element, control.front(change.new)), control.trait)
            self.controls[element._id] = control
        return self.controls[element._id]

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
        self.changed(element, lambda: element._update(value))

    def changed(self, element: Any, update: Callable[[], None] = lambda: None) -> None:
        """Update an element, run the cells that read it and what depends on them."""
        try:
            update()
        except Exception:  # of the reader's own on_change
            self.shell.showtraceback()
        owners, names = self.owners(), {n for n, v in list(self.names.items()) if self.holds(v, element)}
        roots = {k for k, c in self.cells.items() for n in names & c.impl.refs if owners.get(n) != k}
        self.run_pass(roots)
        element._on_update_completion()
        if isinstance(element, mo.ui.tabs):
            for cell in self.cells.values():
                if self.control(element).widget.model_id in cell.view.slots:
                    self.show(cell)

    def holds(self, value: Any, element: Any) -> bool:
        """Whether a value is that element, or one inside of it."""
        while isinstance(value, UIElement) and value is not element:
            value = value._lens and self.elements.get(value._lens.parent_id)
        return value is element

    def watched(self, element: Any) -> w.Widget:
        """The widget of a `mo.ui.anywidget`, after which its readers run when the page sets one of its traits."""
        widget = element.widget
        if all(known is not element for known in self.heard.setdefault(widget.model_id, [])):
            self.heard[widget.model_id].append(element)
        if "set_state" not in vars(widget):
            plain = widget.set_state

            def set_state(state: Any) -> None:
                plain(state)
                for known in list(self.heard[widget.model_id]):
                    self.changed(known)

            widget.set_state = set_state
        return widget

    # ---- IPython

    def before(self, info: Any) -> None:
        self.asked, self.error = info, None

    def visit(self, node: ast.Module) -> ast.Module:
        """The AST transformer: instead of the cell, IPython runs a call of `go`."""
        info, self.asked = self.asked, None
        if info is None or re.search(r"\btwin\.start\(", info.raw_cell):
            return node
        try:
            impl = compile_cell(info.raw_cell, cell_id=f"n{self.clock}")  # type: ignore[arg-type]
        except Exception:
            impl = None
        if impl is None or impl.is_coroutine():
            print("This cell has a magic, an await or an error of syntax: it runs as it stands, and does not react.")
            return node
        self.clock += 1
        self.next = (info.cell_id or self.like(impl), impl)
        return ast.parse("__import__('qkvlab.show.twin').show.twin.page.go()")

    def like(self, impl: CellImpl) -> str:
        """The cell of that code or those names, where the front end does not say which cell it runs."""
        for key, cell in self.cells.items():
            if key.startswith("~") and (cell.impl.code == impl.code or cell.impl.defs & impl.defs):
                return key
        return f"~{self.clock}"

    def after(self, result: Any) -> None:
        if self.error is not None:
            result.error_in_exec = self.error
        self.run_pass({k for k, cell in self.cells.items() if cell.state == "waits" and not self.missing(cell)})


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {k: _merged(old.get(k), v) for k, v in new.items()}


class _Prints(io.TextIOBase):
    """What a running cell prints, shown now and then while it runs."""

    def __init__(self, view: CellView):
        self.view, self.text, self.sent = view, "", time.perf_counter()

    def write(self, text: str) -> int:
        self.text = re.sub(r"[^\n]*\r(?!\n)", "", self.text + text)
        if time.perf_counter() - self.sent > 0.3:
            self.view.html, self.sent = f'<pre class="twin-printed">{escape(self.text)}</pre>', time.perf_counter()
        return len(text)


# ---------------------------------------------------------------- what a notebook calls

page: Page = None  # type: ignore[assignment]


def start() -> None:
    """Watch every cell that is run from now on, and show the library that the views draw with."""
    global page
    shell: Any = get_ipython()
    if shell is None:
        raise RuntimeError("twin.start() belongs in a notebook: there is no IPython here")
    if page is None or page.shell is not shell:
        page = Page(shell)
        shell.ast_transformers.append(page)
        shell.events.register("pre_run_cell", page.before)
        shell.events.register("post_run_cell", page.after)
    # marimo registers its formatters at the first need, and with them its own comms: Jupyter keeps Jupyter's
    jupyters = comm.create_comm, plotly.io.renderers.default
    formatters.register_formatters()
    comm.create_comm, plotly.io.renderers.default = jupyters
    w.Widget.on_widget_constructed(None)
    UIElement._initialize = _initialize  # type: ignore[assignment, method-assign]
    display(Library.load())


_plain_initialize = UIElement._initialize


def _initialize(self: Any, args: Any) -> None:
    _plain_initialize(self, args)
    if page is not None:
        page.elements[self._id] = self
        if page.running is not None:
            page.running.elements.append(self)


def waiting() -> dict[str, list[str]]:
    """First line of each cell that waits -> the names it waits for."""
    waits = [cell for cell in page.cells.values() if cell.state == "waits"]
    return {cell.impl.code.strip().split("\n")[0]: page.missing(cell) for cell in waits}


def move(name: str, value: Any = True) -> None:
    """Do at the control bound to `name` ("models.m1": inside of a batch) what a reader would. Or ValueError."""
    first, *inner = name.split(".")
    element = page.names.get(first)
    for key in inner:
        element = getattr(element, "element", element)
        element = element.elements[int(key) if isinstance(element, mo.ui.array) else key]  # type: ignore[union-attr]
    if not isinstance(element, UIElement):
        raise ValueError(f"{name!r} is {type(element).__name__}, not a control")
    control = page.control(element)
    if isinstance(control.widget, w.Button):
        control.widget.click()
    else:
        control.widget.value = control.back(value)
