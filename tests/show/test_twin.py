"""The runtime of the Jupyter twins, in an IPython shell of its own.

The oracle of the values is marimo's own kernel, which runs the same cells in a thread. Which cells have to run again is
known from how a notebook was made, not from any graph.
"""

import asyncio
import gzip
import importlib.util
import queue
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from types import SimpleNamespace

import comm
import IPython.display
import ipywidgets as w
import marimo as mo
import plotly.io
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from ipywidgets.widgets.widget import _instances
from marimo._config.config import DEFAULT_CONFIG
from marimo._messaging.types import KernelStreams, NoopStream
from marimo._plugins.ui._core.ui_element import UIElement
from marimo._runtime.commands import AppMetadata, ExecuteCellCommand, UpdateUIElementCommand
from marimo._runtime.kernel_lifecycle import KernelArgs, kernel_session
from marimo._session.model import SessionMode
from traitlets.config import Config

from qkvlab.show import page as address
from qkvlab.show import twin
from qkvlab.show.figures import CONFIG
from qkvlab.show.panel import TrainingPanel


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.setattr(plotly.io.renderers, "default", plotly.io.renderers.default)
        kept = (UIElement, "_initialize"), (address, "jupyter"), (twin, "page"), (twin.marimo_output, "append")
        for owner, name in kept:
            patch.setattr(owner, name, getattr(owner, name))
        # what marimo puts in place of Jupyter's in a process that has shown a page, as other tests have
        spec = importlib.util.find_spec("IPython.core.display_functions")
        jupyters = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(jupyters)
        for module in (IPython.display, IPython.core.display_functions):
            for name in ("display", "update_display"):
                patch.setattr(module, name, getattr(jupyters, name))
        patch.setattr(comm, "create_comm", comm._create_comm)
        constructed = w.Widget._widget_construction_callback
        w.Widget.on_widget_constructed(None)
        settings = Config()
        settings.HistoryManager.enabled = False
        made = InteractiveShell.instance(config=settings)
        made.run_cell("from qkvlab.show import twin\ntwin.start()").raise_error()
        yield made
        w.Widget.on_widget_constructed(constructed)
        InteractiveShell.clear_instance()


@pytest.fixture
def notebook(shell):
    """Runs cells in a shell that knows none yet: `notebook(code)` is what the cell came to, as `Cell`."""
    return empty(shell)


def empty(shell):
    shell.reset(new_session=False)
    twin.page.__init__(shell)
    run(shell, "import marimo as mo")
    return lambda code, **more: run(shell, code, **more)


def run(shell, code, cell_id=None, fails=False):
    result = shell.run_cell(code, cell_id=cell_id)
    assert fails or result.success, result.error_before_exec or result.error_in_exec
    return next((cell for cell in twin.page.cells.values() if cell.impl.code == code), None)


def text(cell):
    return re.sub(r"<[^>]*>", "", cell.view.html).strip()


def slots(cell):
    return re.findall(r'data-slot="(\w+)"', cell.view.html)


def value(name):
    return twin.page.names[name].value


# ---------------------------------------------------------------- what is mapped


@pytest.mark.parametrize(
    "made, kind, first, moved, then",
    [
        ("slider(0, 9, value=3)", w.IntSlider, 3, 5, 5),
        ("slider(0, 9, step=.5, value=3)", w.FloatSlider, 3.0, 4.5, 4.5),
        ("slider(steps=[.25, 1, 8], value=1)", w.SelectionSlider, 1.0, 8, 8.0),
        ("range_slider(0, 9, value=[2, 5])", w.IntRangeSlider, [2, 5], (3, 4), [3, 4]),
        ("range_slider(0, 9, step=.5, value=[2, 5])", w.FloatRangeSlider, [2, 5], (3.5, 4), [3.5, 4]),
        ("range_slider(steps=[1, 10, 100], value=[1, 10])", w.SelectionRangeSlider, [1, 10], (10, 100), [10, 100]),
        ("number(1, 8, value=2)", w.BoundedFloatText, 2, 3, 3),
        ("number(0, 1, step=.1, value=.5)", w.BoundedFloatText, 0.5, 0.7, 0.7),
        ("number()", w.BoundedFloatText, None, -3, -3),
        ("dropdown(['a', 'b'], value='a')", w.Dropdown, "a", "b", "b"),
        ("dropdown({'a': 1, 'b': 2})", w.Dropdown, None, "b", 2),
        ("dropdown(['a', 'b'], value='a', allow_select_none=True)", w.Dropdown, "a", None, None),
        ("multiselect(['a', 'b', 'c'], value=['a'])", w.SelectMultiple, ["a"], ("b", "c"), ["b", "c"]),
        ("radio(['a', 'b'])", w.RadioButtons, None, "b", "b"),
        ("radio({'a': 1, 'b': 2}, value='a')", w.RadioButtons, 1, "b", 2),
        ("checkbox(True)", w.Checkbox, True, False, False),
        ("switch(False)", w.Checkbox, False, True, True),
        ("text('x')", w.Text, "x", "y", "y"),
        ("text_area('x')", w.Textarea, "x", "y\nz", "y\nz"),
        ("date(value='2025-02-01')", w.DatePicker, date(2025, 2, 1), date(2024, 2, 29), date(2024, 2, 29)),
        ("button(value=0, on_click=lambda v: v + 1)", w.Button, 0, True, 1),
        ("tabs({'One': 'first', 'Two': 'second'})", w.ToggleButtons, "One", "Two", "Two"),
    ],
)
def test_a_control_shows_and_sends_what_marimo_has(notebook, made, kind, first, moved, then):
    control = notebook(f"c = mo.ui.{made}\nc")
    reader = notebook("seen = c.value")
    element = twin.page.names["c"]
    widget = twin.page.control(element)
    assert type(widget) is kind and slots(control) == [widget.model_id]
    assert f'data-slot="{widget.model_id}"' in control.view.html
    assert twin.page.names["seen"] == first and type(twin.page.names["seen"]) is type(first)
    twin.move("c", moved)
    assert twin.page.names["seen"] == then and type(twin.page.names["seen"]) is type(then)
    assert reader.state == "ran"


def test_a_control_keeps_its_range_label_debounce_and_width(notebook):
    cell = notebook(
        "c = mo.ui.slider(2, 8, step=2, value=4, label='logit scale $W_Q$', debounce=True, show_value=True)\nc"
    )
    widget = twin.page.control(twin.page.names["c"])
    assert (widget.min, widget.max, widget.step, widget.continuous_update, widget.readout) == (2, 8, 2, False, True)
    assert widget.description == "logit scale W_Q" and r'<span class="tex">\(W_Q\)</span>' in cell.view.html
    notebook("d = mo.ui.slider(0, .25, step=.05, value=0.1)")
    widget = twin.page.control(twin.page.names["d"])
    assert widget.continuous_update and not widget.readout and widget.readout_format == ".2f"
    notebook("day = mo.ui.date(start='2024-01-01', stop='2024-12-31')")
    assert twin.page.control(twin.page.names["day"]).max == date(2024, 12, 31)
    assert "twin-wide" in notebook("t = mo.ui.text(full_width=True, placeholder='here', disabled=True)\nt").view.html
    widget = twin.page.control(twin.page.names["t"])
    assert widget.placeholder == "here" and widget.disabled and not widget.continuous_update


def test_a_run_button_is_true_in_its_pass_only(notebook):
    notebook("go = mo.ui.run_button(label='Go')\ngo")
    cell = notebook("mo.stop(not go.value, mo.md('not yet'))\nruns = [go.value]")
    below = notebook("len(runs)")
    assert (cell.state, text(cell), below.state, text(below)) == ("stopped", "not yet", "skipped", "")
    twin.move("go")
    assert twin.page.names["runs"] == [True] and text(below) == "1" and value("go") is False


def test_children_of_a_batch_move_it_and_its_on_change_hears(notebook):
    notebook("said = []")
    cell = notebook(
        "b = mo.Html('<div>{who} and {yes}</div>').batch("
        "who=mo.ui.text(on_change=said.append), yes=mo.ui.checkbox(label='sure'))\nb"
    )
    below = notebook("b.value")
    assert cell.view.html.startswith("<div>") and " and " in cell.view.html and len(slots(cell)) == 2
    twin.move("b.who", "Ada")
    twin.move("b.yes", True)
    assert text(below) == "{&#x27;who&#x27;: &#x27;Ada&#x27;, &#x27;yes&#x27;: True}"
    assert twin.page.names["said"] == ["Ada"]


def test_arrays_dictionaries_and_forms(notebook):
    notebook("a = mo.ui.array([mo.ui.slider(0, 9), mo.ui.slider(0, 9)])\na")
    notebook("d = mo.ui.dictionary({'p': mo.ui.number(0, 9), 'q': mo.ui.switch()})\nd")
    form = notebook(
        "f = mo.md('{x}{y}').batch(x=mo.ui.slider(0, 9), y=mo.ui.text('old')).form(submit_button_label='Send')\nf"
    )
    notebook("seen = a.value, d.value, f.value")
    twin.move("a.1", 4)
    twin.move("d.q", True)
    twin.move("f.x", 7)
    assert twin.page.names["seen"] == ([0, 4], {"p": 0, "q": True}, None)
    assert len(slots(form)) == 3
    twin.move("f")
    assert twin.page.names["seen"][2] == {"x": 7, "y": "old"}


def test_tabs_show_the_chosen_part(notebook):
    cell = notebook("t = mo.ui.tabs({'One': mo.md('first'), 'Two': mo.ui.slider(0, 3)})\nt")
    assert re.search(r"<div><span.*first.*</div><div hidden>.*data-slot", cell.view.html)
    twin.move("t", "Two")
    assert re.search(r"<div hidden><span.*first.*</div><div>.*data-slot", cell.view.html)


def test_folds_callouts_tables_and_formulas(notebook):
    notebook("s = mo.ui.slider(0, 3)")
    folds = notebook("mo.accordion({'A **b**': mo.vstack([mo.md('in $x^2$'), s]), 'C': mo.md('more')})").view
    assert re.findall(r"<summary>.*?</summary>", folds.html)[1].count("C") == 1 and folds.html.count("<details>") == 2
    assert re.search(r"<details>.*<strong>b</strong>.*<div>.*\\\(x\^2\\\).*data-slot.*</div></details>", folds.html)
    assert 'class="twin-callout twin-warn"' in notebook("mo.callout(mo.md('careful'), kind='warn')").view.html
    table = notebook("mo.ui.table([{'n': 1, 'w': '<b>'}, {'n': 2, 'w': 'y'}], selection=None)").view.html
    assert "<th>n</th><th>w</th>" in table and "<td>1</td><td>&lt;b&gt;</td>" in table
    assert r'<span class="tex">\[||y||\]</span>' in notebook("mo.md('$$||y||$$')").view.html
    assert "marimo-" not in folds.html + table + notebook("mo.sidebar([mo.md('x'), mo.outline()])").view.html


def test_a_table_and_a_list_show_what_is_in_them(notebook):
    notebook("s = mo.ui.slider(0, 3)")
    table = notebook("mo.ui.table([{'f': mo.md('$x$'), 'c': s}], selection=None, pagination=False)")
    assert r'<span class="tex">\(x\)</span>' in table.view.html and "mimetype" not in table.view.html
    for code in ("[mo.md('$x$'), s]", "{'f': mo.md('$x$'), 'c': s}", "mo.md('$x$'), s"):
        cell = notebook(code)
        assert r'<span class="tex">\(x\)</span>' in cell.view.html and slots(cell) == slots(table)
    assert notebook("[1, 'a'], ").view.html == "<pre>([1, &#x27;a&#x27;],)</pre>"


def test_a_figure_that_shows_itself_brings_no_library_of_its_own(notebook):
    cell = notebook("import plotly.graph_objects as go\ngo.Figure([go.Scatter(y=[1])]).show()")
    assert cell.view.html == '<div data-figure="0"></div>' and cell.view.figures["0"]["figure"]["data"]


def test_figures_of_all_kinds_get_a_place(notebook):
    notebook("import plotly.graph_objects as go\nfrom qkvlab.show import figures")
    plain = notebook("go.Figure([go.Scatter(x=[1, 2], y=[3, 4])])").view
    assert plain.html == '<div data-figure="0"></div>' and plain.figures["0"]["figure"]["data"][0]["x"] == [1, 2]
    notebook("m = [figures.map_figure([(n, [[1, 0], [0, 1]])]) for n in 'ab']")
    shown = notebook("mo.vstack([figures.show(m[0], 'words'), m[1]])").view
    assert list(shown.figures) == ["0", "1"] and shown.figures["0"]["config"] == CONFIG
    assert 'aria-label="words"' in shown.html and "marimo-plotly" not in shown.html


def test_other_values_are_shown_as_ipython_shows_them(notebook):
    notebook("class Rich(dict):\n    def _repr_mimebundle_(self, **_): return dict(self)")
    assert notebook("[1, '<x>']").view.html == "<pre>[1, &#x27;&lt;x&gt;&#x27;]</pre>"
    assert notebook("Rich({'text/plain': 'no', 'text/html': '<i>yes</i>'})").view.html == "<i>yes</i>"
    assert 'src="data:image/png;base64,QUJD"' in notebook("Rich({'image/png': 'QUJD'})").view.html
    assert "<em>em</em>" in notebook("Rich({'text/markdown': '*em*'})").view.html
    assert text(notebook("None")) == "" and notebook("class Bad:\n    __repr__ = None\nBad()").view.html == ""
    notebook("import ipywidgets\nown = ipywidgets.IntSlider()")
    for code in ("own", "mo.vstack([mo.md('x'), own])", "from IPython.display import display\ndisplay(own)"):
        assert slots(notebook(code)) == [twin.page.names["own"].model_id]


def test_an_anywidget_runs_its_readers_when_the_page_sets_a_trait_and_not_when_the_kernel_does(notebook):
    twin.page.names["TrainingPanel"] = TrainingPanel
    cell = notebook("panel = TrainingPanel('x')\nview = mo.ui.anywidget(panel)\nview")
    notebook("heard = view.value['heard']")
    panel = twin.page.names["panel"]
    assert slots(cell) == [panel.model_id] and type(panel.comm).__module__.startswith("comm")
    before = list(twin.page.runs)
    panel.moment = "paused"
    assert twin.page.runs == before
    panel.set_state({"heard": "paused"})
    assert twin.page.names["heard"] == "paused" and len(twin.page.runs) == len(before) + 1


# ---------------------------------------------------------------- the rules


def test_a_cell_waits_for_names_and_runs_once_when_they_are_there(notebook):
    first = notebook("print(f(2))\nf(2) + k")
    notebook("def f(x): return g(x) * 2")
    assert twin.waiting() == {"print(f(2))": ["f", "k"], "def f(x): return g(x) * 2": ["g"]}
    assert text(first) == "Waits for f, k: no cell run so far defines it."
    notebook("def g(x): return x + 1")
    notebook("k = 1")
    assert twin.waiting() == {} and text(first) == "6\n7" and len(set(twin.page.runs)) == len(twin.page.runs)


def test_a_cell_that_a_magic_fed_is_served_too(notebook):
    first = notebook("later + 1")
    notebook("%xmode Plain\nlater = 4")
    assert text(first) == "5" and list(twin.page.cells) == ["~1", "~2"]


def test_an_error_by_hand_is_raised_stops_what_depends_on_it_and_heals(notebook, capsys):
    notebook("s = mo.ui.slider(0, 3)")
    assert notebook("q = 1 / s.value", fails=True).state == "failed"
    assert "ZeroDivisionError" in capsys.readouterr().out
    below, apart = notebook("q + 1"), notebook("s.value")
    assert text(below) == "Not run: a cell that it needs has failed."
    twin.move("s", 2)
    assert text(below) == "1.5" and text(apart) == "2"
    assert "The error above is of an earlier run." in [text(c) for c in twin.page.cells.values()]
    twin.move("s", 0)
    shown = next(c.view.html for c in twin.page.cells.values() if c.state == "failed")
    assert "<b>ZeroDivisionError</b>: division by zero" in shown and "1 / s.value" in shown and "twin.py" not in shown
    assert (
        text(below) == "Not run: a cell that it needs has failed." and text(apart) == "0" and "q" not in twin.page.names
    )


def test_a_failing_run_by_hand_fails_for_the_front_end_too(shell, notebook, capsys):
    result = shell.run_cell("1 / 0", store_history=True)
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert f"In[{result.execution_count}]" in re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)
    assert shell.run_cell("2").success


def test_mo_stop_takes_names_away_and_gives_them_back(notebook):
    notebook("s = mo.ui.slider(0, 9)")
    gate = notebook("mo.stop(s.value < 5, 'too small')\nq = s.value")
    below, last = notebook("r = q + 1"), notebook("r")
    assert [c.state for c in (gate, below, last)] == ["stopped", "skipped", "skipped"] and text(
        gate
    ) == "&#x27;too small&#x27;"
    twin.move("s", 7)
    assert text(last) == "8"
    twin.move("s", 1)
    assert text(last) == "" and {"q", "r"} & set(twin.page.names) == set()


def test_an_edited_cell_replaces_its_old_version(notebook):
    notebook("a = 1\nold = 2", cell_id="A")
    users = notebook("a * 10", cell_id="B"), notebook("old", cell_id="C")
    new = notebook("a = 5", cell_id="A")
    assert text(users[0]) == "50" and text(users[1]) == "Waits for old: no cell run so far defines it."
    assert "old" not in twin.page.names and len(twin.page.cells) == 4
    assert notebook("a = 6").view is not new.view  # without an id of the front end: a new cell


def test_without_ids_a_cell_is_known_by_its_names(notebook):
    notebook("a = 1\nb = 2")
    notebook("a + b")
    notebook("b = 3\na = 4")
    assert [text(c) for c in twin.page.cells.values()] == ["", "", "7"][-len(twin.page.cells) :]
    assert len(twin.page.cells) == 3


def test_without_ids_a_cell_that_shares_a_name_does_not_take_another_away(notebook):
    notebook("for i in range(3):\n    total = i")
    reader = notebook("total")
    notebook("for i in range(9):\n    pass")
    notebook("for i in range(9):\n    other = i")
    assert reader.state == "ran" and text(reader) == "2" and twin.page.names["total"] == 2


def test_private_names_belong_to_their_cell(notebook):
    notebook("_x = 1\nf = lambda: _x")
    notebook("_x = 2\ng = lambda: _x")
    assert text(notebook("f(), g()")) == "(1, 2)"


def test_a_name_that_two_cells_define_belongs_to_the_later(notebook):
    notebook("s = mo.ui.slider(0, 9)", cell_id="S")
    notebook("x = s.value", cell_id="A")
    reader = notebook("x", cell_id="B")
    later = notebook("x = 100", cell_id="C")
    assert text(reader) == "100" and "x was defined by a cell before" in text(later)
    twin.move("s", 3)
    assert text(reader) == "100" and twin.page.names["x"] == 100
    notebook("y = 100", cell_id="C")
    assert text(reader) == "3"


def test_a_name_whose_cell_waits_is_not_given_by_a_cell_that_lost_it(notebook):
    notebook("s = mo.ui.slider(0, 9)")
    notebook("x = s.value", cell_id="A")
    reader, owner = notebook("x", cell_id="B"), notebook("x = nothing", cell_id="C")
    twin.move("s", 3)
    assert owner.state == "waits" and "x" not in twin.page.names and reader.state == "waits"


def test_a_circle_is_named_and_does_not_loop(notebook):
    cells = notebook("a = b + 1"), notebook("b = a + 1")
    below = notebook("b")
    assert {text(c) for c in cells} == {"Not run: a, b need each other in a circle."} and below.state == "blocked"
    notebook("a = 1")
    assert [c.state for c in (*cells, below)] == ["blocked", "ran", "ran"] or text(below) == "2"


def test_magics_awaits_and_syntax_errors_run_as_ordinary_cells(notebook, capsys):
    for code in ("%time z = 1", "import asyncio\nawait asyncio.sleep(0)"):
        assert notebook(code) is None
        assert "runs as it stands" in capsys.readouterr().out
    assert notebook("x = = 1", fails=True) is None and "SyntaxError" in "".join(capsys.readouterr())
    assert twin.page.names["z"] == 1


def test_a_cell_that_became_a_magic_does_not_run_as_it_was(notebook):
    notebook("s = mo.ui.slider(0, 9)")
    notebook("x = s.value\ngone = 1", cell_id="A")
    readers = notebook("x + 1"), notebook("gone")
    notebook("%time x = 70", cell_id="A")
    assert text(readers[0]) == "71" and text(readers[1]) == "Waits for gone: no cell run so far defines it."
    twin.move("s", 3)
    assert twin.page.names["x"] == 70
    notebook("x = s.value\ngone = 2", cell_id="A")
    assert [text(c) for c in readers] == ["4", "2"]


def test_a_name_read_before_its_own_cell_defines_it_is_told(notebook):
    notebook("x = 1")
    for code in ("x = x + 1", "x += 1"):
        cell = notebook(code, fails=True)
        assert "This cell reads x before it defines it: give what it makes another name." in text(cell)


def test_a_private_name_of_another_cell_is_told_and_called_as_it_was_written(notebook, capsys):
    notebook("_x = 1")
    cell = notebook("_x", fails=True)
    assert text(cell).startswith("_x is seen by the cell that defines it only")
    said = capsys.readouterr().out
    assert "name '_x' is not defined" in said and "_cell_" not in said


def test_an_error_that_cannot_say_what_it_is_stops_nothing(notebook):
    notebook("class Odd(Exception):\n    def __str__(self): return 1 / 0\ns = mo.ui.slider(0, 9)")
    cell, apart = notebook("if s.value: raise Odd"), notebook("s.value")
    twin.move("s", 2)
    assert "<b>Odd</b>" in cell.view.html and text(apart) == "2"


def test_a_warning_names_a_line_and_no_file(notebook):
    cell = notebook("import sys\nprint(f'{sys._getframe().f_code.co_filename}:2: UserWarning: careful')")
    assert text(cell).startswith("line 2: UserWarning: careful")


def test_displays_are_updated_and_cleared_in_place(notebook):
    cell = notebook("handle = display('one', display_id=True)\ndisplay('two')\nhandle.update('three')")
    assert cell.view.html == "<pre>&#x27;three&#x27;</pre><pre>&#x27;two&#x27;</pre>"
    cell = notebook(
        "from IPython.display import clear_output, display\n"
        "for i in range(3):\n    clear_output(wait=True)\n    print(i)\n    display(i)"
    )
    assert text(cell) == "2\n2"


def test_prints_and_displays_are_shown_in_the_view(notebook):
    notebook("s = mo.ui.slider(0, 9)")
    cell = notebook(
        "from IPython.display import HTML, display\nprint('at', s.value)\ndisplay(HTML('<i>shown</i>'))\n'end'"
    )
    twin.move("s", 4)
    assert re.fullmatch(r"<pre [^>]*>at 4\n</pre><i>shown</i><pre>&#x27;end&#x27;</pre>", cell.view.html)
    assert text(notebook("print('10 %\\r20 %')")) == "20 %"


def test_a_spinner_says_what_runs_until_it_has_run(notebook):
    notebook("go = mo.ui.run_button(label='go')")
    cell = notebook("mo.stop(not go.value)\nwith mo.status.spinner('Timing steps'):\n    done = 7\nf'took {done}'")
    heard = []
    cell.view.observe(lambda change: heard.append(change.new), "html")
    twin.move("go")
    assert len(heard) == 2 and "Timing steps …" in heard[0] and "took 7" in heard[1] and "Timing" not in heard[1]


def test_only_what_depends_on_a_control_runs_and_only_what_changed_is_sent(notebook):
    notebook("s = mo.ui.slider(0, 9)\nt = mo.ui.slider(0, 9)")
    parity, other = notebook("s.value % 2"), notebook("t.value")
    heard = []
    parity.view.observe(lambda change: heard.append(change.name), ["html", "figures"])
    before = len(twin.page.runs)
    twin.move("s", 2)
    assert len(twin.page.runs) == before + 1 and heard == []
    twin.move("s", 3)
    assert heard == ["html"] and text(parity) == "1" and text(other) == "0"


def test_a_control_made_anew_starts_anew_and_its_old_widget_is_closed(notebook):
    notebook("n = mo.ui.slider(1, 9, value=2)")
    cell = notebook("c = mo.ui.slider(0, n.value, value=1)\nc")
    old = twin.page.control(twin.page.names["c"])
    twin.move("c", 2)
    twin.move("n", 5)
    new = twin.page.control(twin.page.names["c"])
    assert (value("c"), new.max, slots(cell)) == (1, 5, [new.model_id])
    assert old.comm is old.layout.comm is old.style.comm is None


def test_moves_leave_nothing_behind(notebook):
    notebook("n = mo.ui.slider(0, 99)\nn")
    notebook("f = mo.md('{x}').batch(x=mo.ui.slider(0, n.value + 1)).form()\nf")
    notebook("t = mo.ui.tabs({'a': n, 'b': mo.ui.text(str(n.value))})\nt")
    counts = []
    for i in range(1, 6):
        twin.move("f.x", 1)
        twin.move("n", i)
        counts.append((len(_instances), len(twin.page.controls), len(twin.page.pending)))
    assert len(set(counts)) == 1


def test_a_broken_on_change_breaks_nothing_else(notebook, capsys):
    notebook("s = mo.ui.slider(0, 9, on_change=lambda v: 1 / 0)")
    cell = notebook("s.value")
    twin.move("s", 2)
    assert text(cell) == "2" and "ZeroDivisionError" in capsys.readouterr().out


def test_a_running_cell_leaves_the_shell_its_publisher(shell, notebook):
    """ipykernel sets the parent of a message on it, also for those that come in another thread meanwhile."""
    cell = notebook(
        "import IPython\nfrom IPython.display import display\ndisplay(1)\np = IPython.get_ipython().display_pub"
    )
    assert twin.page.names["p"] is shell.display_pub and text(cell) == "1"
    assert not {"publish", "clear_output"} & set(vars(shell.display_pub))


def test_what_comes_in_another_thread_waits_for_the_main_one(notebook):
    notebook("import threading\ns = mo.ui.slider(0, 9)\ngo = mo.ui.run_button()")
    notebook("where = threading.current_thread().name, s.value, go.value")
    called = []
    twin.page.loop = SimpleNamespace(call_soon_threadsafe=called.append)
    before = len(twin.page.runs)

    def drag():
        for n in (1, 2, 3):
            twin.move("s", n)
        twin.move("go")

    thread = threading.Thread(target=drag)
    thread.start()
    thread.join()
    assert len(twin.page.runs) == before and called == [twin.page.flush] * 4
    called[0]()
    assert twin.page.names["where"] == ("MainThread", 3, True) and len(twin.page.runs) == before + 2


def test_an_interrupted_pass_stops_there(notebook):
    notebook("s = mo.ui.slider(0, 9)")
    notebook("if s.value: raise KeyboardInterrupt\nx = 1")
    apart = notebook("s.value + 1")
    twin.move("s", 2)
    assert text(apart) == "Not run: interrupted."
    twin.move("s", 0)
    assert text(apart) == "1"


def test_an_interrupt_between_two_cells_does_not_end_the_kernel_and_no_click_is_lost(notebook):
    done = []

    def note(*given):
        done.append(given)
        if given == ("interrupted",):
            raise KeyboardInterrupt

    notebook("b = mo.ui.button(value=0, on_click=lambda v: v + 1)")
    element = twin.page.names["b"]
    twin.page.queue.extend([(twin.page.pressed, element, ())] * 2 + [(note, 1, (5,)), (note, 1, (6,))])
    twin.page.flush()
    assert value("b") == 2 and done == [(1, 6)]
    twin.page.queue.extend([(note, "interrupted", ()), (note, "after", ())])
    twin.page.flush()
    assert not twin.page.queue and done[-1] == ("interrupted",)


def test_move_says_what_is_no_control(notebook):
    notebook("b = mo.md('{x}').batch(x=mo.ui.text())\nn = 3")
    for name in ("n", "b", "b.y", "nothing"):
        with pytest.raises(ValueError, match=re.escape(repr(name))):
            twin.move(name)


def test_the_library_brings_plotly_and_the_looks_of_the_labs(shell):
    library = twin.Library.load()
    assert b"plotly.js v" in gzip.decompress(library.plotly)[:40]
    css = library._css
    assert css.startswith(":is(.qkv-twin, .jp-MarkdownOutput) {") and ".claim" in css and "#App" not in css
    assert "url(" not in css and "@import" not in css


def test_a_view_has_words_for_a_page_without_widgets(notebook):
    cell = notebook("mo.Html('<p>so <b>much</b></p>' + mo.md('$x^2$').text)")
    assert cell.view._repr_mimebundle_()["text/plain"] == r"so much" + "\n" + r"\(x^2\)"


def test_outside_of_ipython_start_says_so(monkeypatch):
    monkeypatch.setattr(twin, "get_ipython", lambda: None)
    with pytest.raises(RuntimeError, match="in a notebook"):
        twin.start()


# ---------------------------------------------------------------- the same as marimo

CONTROLS = {  # how a control is made, and the values a reader may give it: for `move`, and as marimo's page sends them
    "mo.ui.slider(0, 9, value={})": [(n, n) for n in range(10)],
    "mo.ui.switch({} > 4)": [(False, False), (True, True)],
    "mo.ui.dropdown({{str(n): n for n in range(10)}}, value=str({}))": [(str(n), [str(n)]) for n in range(10)],
    "mo.ui.number(0, 9, value={})": [(n, n) for n in range(10)],
    "mo.md('{{x}}').batch(x=mo.ui.slider(0, 9, value={}))": [(n, {"x": n}) for n in range(10)],
}


@st.composite
def notebooks(draw):
    """Cells in a random order, and for each the names it defines and reads; then moves of the controls.

    Cell i reads cells before it only, so there is no circle, but the cells stand in any order on the page.
    """
    cells, kinds = [], {}
    for i in range(draw(st.integers(2, 7))):
        sources = draw(st.lists(st.sampled_from(range(i)), unique=True, max_size=2)) if i else []
        terms = [f"n{j}.value" + "['x']" * ("batch" in kinds[j]) if j in kinds else f"n{j}" for j in sources]
        terms = [str(draw(st.integers(0, 5))), *(f"int({term} or 0)" for term in terms)]
        lines = [f"_own = ({' + '.join(terms)}) % 10"]
        if draw(st.booleans()) or i == 0:
            kinds[i] = draw(st.sampled_from(list(CONTROLS)))
            lines.append(f"n{i} = {kinds[i].format('_own')}")
        else:
            lines.append(f"n{i} = _own")
        if i and draw(st.integers(0, 3)) == 0:  # some cells stop, before or after they have defined their name
            lines.insert(draw(st.integers(1, 2)), f"mo.stop(_own < {draw(st.integers(1, 6))})")
        cells.append(("\n".join(lines), {f"n{j}" for j in sources}))
    order = draw(st.permutations(range(len(cells))))
    moved = st.sampled_from(sorted(kinds)).flatmap(lambda i: st.tuples(st.just(i), st.sampled_from(CONTROLS[kinds[i]])))
    return cells, order, [(i, kinds[i], given) for i, given in draw(st.lists(moved, max_size=4))]


def in_marimo(cells, order, moves):
    """Values of the names after the first run and after each move, by marimo's own kernel."""
    streams = KernelStreams(stream=NoopStream(), stdout=None, stderr=None, stdin=None)
    about = AppMetadata(query_params={}, cli_args={}, app_config=mo.App()._config)
    session = KernelArgs(
        **{name: queue.Queue() for name in ("control_queue", "set_ui_element_queue")},
        **{"streams": streams, "app_metadata": about, "user_config": DEFAULT_CONFIG, "mode": SessionMode.RUN},
        **{"debugger": None, "configs": {}, "virtual_file_storage": None},
    )

    async def drive(kernel):
        start = [ExecuteCellCommand(cell_id="m", code="import marimo as mo")]
        await kernel.run([*start, *(ExecuteCellCommand(cell_id=f"c{i}", code=cells[i][0]) for i in order)])
        yield kernel.globals
        for i, _, (_, sent) in moves:
            element = kernel.globals.get(f"n{i}")
            if element is not None and element._value_frontend != sent:
                command = UpdateUIElementCommand(object_ids=[element._id], values=[sent])
                await kernel.set_ui_element_value(command, notify_frontend=False)
            yield kernel.globals

    async def collect(kernel):
        return [values(names, len(cells)) async for names in drive(kernel)]

    with kernel_session(session) as (kernel, _):
        return asyncio.run(collect(kernel))


def values(names, count):
    found = {f"n{i}": names[f"n{i}"] for i in range(count) if f"n{i}" in names}
    return {name: v.value if isinstance(v, UIElement) else v for name, v in found.items()}


@settings(deadline=None, max_examples=60)
@given(made=notebooks())
def test_after_any_moves_a_twin_has_the_values_that_marimo_has(shell, made):
    cells, order, moves = made
    with ThreadPoolExecutor(1) as other:  # a thread, for marimo's context is the thread's
        expected = other.submit(in_marimo, cells, order, moves).result()
    empty(shell)
    for i in order:
        run(shell, cells[i][0], cell_id=f"c{i}")
    assert values(twin.page.names, len(cells)) == expected[0]
    assert len(set(twin.page.runs)) == len(twin.page.runs), "a cell ran twice before any move"

    readers = {i: {j for j, (_, reads) in enumerate(cells) if f"n{i}" in reads} for i in range(len(cells))}
    for (i, kind, (moved, sent)), after in zip(moves, expected[1:], strict=True):
        element = twin.page.names.get(f"n{i}")
        assume(element is not None or f"n{i}" not in after)
        before = len(twin.page.runs)
        stays = element is None or element._value_frontend == sent
        if element is not None:
            twin.move(f"n{i}.x" if "batch" in kind else f"n{i}", moved)
        assert values(twin.page.names, len(cells)) == after
        ran = twin.page.runs[before:]
        below = set() if stays else closure(readers, i)
        stopped = {j for j in below if twin.page.cells[f"c{j}"].state == "stopped"}
        skipped = set().union(*(closure(readers, j) for j in stopped))
        unfed = {j for j in below if any(name not in twin.page.names for name in cells[j][1])}
        assert sorted(ran) == sorted(f"c{j}" for j in below - skipped - unfed)


def closure(readers, start):
    """All that reads it, directly or not."""
    found, new = set(), {start}
    while new := {j for i in new for j in readers[i]} - found:
        found |= new
    return found
