"""What becomes of a lab in its Jupyter twin: cells, markdown, and everything that is refused."""

import importlib.util
import json
import re
import textwrap
from collections import Counter
from pathlib import Path

import marimo as mo
import nbformat
import pytest

from qkvlab.course import jupyter, labs
from qkvlab.show import page

FOLDER = Path(__file__).parents[2] / "notebooks"
SETUP = "import marimo as mo\nfrom qkvlab.course import labs\nfrom qkvlab.show import figures, page"


def cell(code, how="app.cell", head="def _():"):
    return f"@{how}\n{head}\n{textwrap.indent(code, '    ')}\n    return\n"


@pytest.fixture
def write(tmp_path):
    def put(*cells, setup=SETUP):
        path = tmp_path / "07_small.py"
        path.write_text(
            'import marimo\n\n__generated_with = "0.25.2"\napp = marimo.App()\n\n'
            f"with app.setup:\n{textwrap.indent(setup, '    ')}\n\n\n"
            + "\n\n".join(one if one.startswith(("@", "app.", "assert")) else cell(one) for one in cells)
            + '\n\nif __name__ == "__main__":\n    app.run()\n',
            encoding="utf-8",
        )
        return path

    return put


@pytest.fixture
def twin(write):
    """The cells of a twin after the three that all have: what to run, the start, the setup."""

    def make(*cells, **more):
        notebook = nbformat.reads(jupyter.convert(write(*cells, **more)), as_version=4)
        nbformat.validate(notebook)
        return notebook.cells[3:]

    return make


def sources(cells, kind="code"):
    assert {one.cell_type for one in cells} <= {kind}
    return [one.source for one in cells]


# ---------------------------------------------------------------- the file


def test_begins_with_what_to_run_and_names_its_source(write):
    notebook = nbformat.reads(jupyter.convert(write("x = 1")), as_version=4)
    first, start, setup, last = notebook.cells
    assert first.cell_type == "markdown" and "Run All Cells" in first.source and "notebooks/07_small.py" in first.source
    assert start.source == "from qkvlab.show import twin\n\ntwin.start()"
    assert (setup.source, last.source) == (SETUP, "x = 1")
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.qkvlab.source == "notebooks/07_small.py"
    assert notebook.metadata.qkvlab.marimo == mo.__version__


def test_the_same_lab_gives_the_same_bytes_and_nothing_of_the_machine(write):
    path = write("x = 1", "x", "x")
    text = jupyter.convert(path)
    assert jupyter.convert(path) == text
    assert str(path.parent) not in text and text.endswith("}\n") and "\r" not in text
    ids = [one["id"] for one in json.loads(text)["cells"]]
    assert len(set(ids)) == len(ids), "two equal cells"
    path = write("y = 2", "x = 1", "x", "x")
    more = [one["id"] for one in json.loads(jupyter.convert(path))["cells"]]
    assert set(more) > set(ids), "the ids of cells do not change with a new neighbour"


def test_cells_keep_their_code_their_order_and_whether_it_is_hidden(twin):
    shown = 'rate = mo.ui.slider(1, 5, label="rate")  # a comment stays\nrate'
    made = twin(
        cell("# first a comment\nprint(twice(rate.value))", how="app.cell(hide_code=True)", head="def _(rate, twice):"),
        shown,
        '@app.function\ndef twice(x):\n    """Double."""\n    return 2 * x\n',
        "@app.class_definition\nclass Pair:\n    a = 1\n",
        "if rate.value:\n    y = 2",
        "",
    )
    assert sources(made) == [
        "# first a comment\nprint(twice(rate.value))",
        shown,
        'def twice(x):\n    """Double."""\n    return 2 * x',
        "class Pair:\n    a = 1",
        "if rate.value:\n    y = 2",
    ]
    assert [one.metadata.get("jupyter", {}) for one in made] == [{"source_hidden": True}, {}, {}, {}, {}]
    assert all(one.outputs == [] and one.execution_count is None for one in made)


def test_show_code_goes_and_what_it_showed_stays(twin):
    made = twin("x = 1\n\nmo.show_code()", "mo.show_code(\n    mo.md(str(x))\n)", "mo.show_code()\ny = x")
    assert sources(made) == ["x = 1", "mo.md(str(x))", "y = x"]


def test_what_show_code_showed_stays_one_expression(twin):
    made = twin(
        "mo.show_code(\n    # why\n    1 +\n    2,\n)", "mo.show_code(\n    1\n    - 2\n)", "mo.show_code(\n[\n1])"
    )
    assert [eval(one) for one in sources(made)] == [3, -1, [1]]


def test_a_line_that_only_python_does_not_break_stays_whole(twin):
    code = "x = 'a\u2028b\x85c\x0cd'"
    assert sources(twin(f"@app.cell\ndef _():\n    {code}\n    return\n")) == [code]


def test_the_outline_is_left_to_jupyterlab(twin):
    assert twin('labs.outline("change_of_basis")') == []


# ---------------------------------------------------------------- markdown cells


def test_prose_is_markdown_with_its_formulas_links_and_terms(twin):
    code = r"""labs.prose(r'''
## Title

Take $X\WQ$ of ((three_projections)), [[head|heads]]; ((vision)).

$$ \Th^{-1}\WK $$
''')"""
    (made,) = sources(twin(code), "markdown")
    q, k, theta = (labs.MATRICES[name] for name in ("Q", "K", "theta"))
    assert made.split("\n\n") == [
        "## Title",
        f"Take $X{q}$ of [01 Three projections](01_three_projections.ipynb), "
        f'<abbr title="{labs.GLOSSARY["head"]}">heads</abbr>; 13 Vision (coming).',
        f"$$ {theta}^{{-1}}{k} $$",
    ]
    assert not page.jupyter, "only while the twin is made"


def test_a_lab_may_say_something_else_in_its_twin(twin):
    assert sources(twin('labs.prose("The menu.", twin="The three dots.")'), "markdown") == ["The three dots."]


def test_plain_markdown_stays_as_it_is(twin):
    made = twin(
        'mo.md("""\n    # A\n\n    - $a_1$ and *b*\n""")', "mo.md(f\"{1 + 1} is {labs.link('start_here', x=2)}\")"
    )
    assert sources(made, "markdown") == ["# A\n\n- $a_1$ and *b*", "2 is 00_start_here.ipynb"]


def test_a_box_is_a_quotation_and_no_mark_of_it_gets_into_a_formula(twin):
    code = r"""labs.box("claim", r'''
**Claim.** For $a
= b$:

$$ \begin{aligned}
& a \\
& b
\end{aligned} $$

- end
''')"""
    assert sources(twin(code), "markdown") == [
        "> **Claim.** For $a = b$:\n>\n> $$ \\begin{aligned} & a \\\\ & b \\end{aligned} $$\n>\n> - end"
    ]


def test_a_stack_of_prose_is_one_cell(twin):
    made = twin('mo.vstack([mo.md("## A"), labs.box("limit", "B"), labs.prose("C")], gap=0)')
    assert sources(made, "markdown") == ["## A\n\n> B\n\nC"]


def test_head_foot_and_map_are_plain_markdown(twin):
    head, foot, around = sources(
        twin('labs.header("three_projections")', 'labs.footer("three_projections")', "labs.course_map()"), "markdown"
    )
    assert "\n# Three projections\n" in head and "\n- compute one attention head by hand" in head
    assert re.findall(r"\]\((.*?)\)", foot) == ["00_start_here.ipynb", "02_change_of_basis.ipynb"]
    assert re.findall(r"\]\((.*?)\)", around) == [f"{lab.stem}.ipynb" for lab in labs.LABS[1:] if lab.written]
    for text in (head, foot, around):
        assert "<div" not in text and "<p" not in text and "<nav" not in text


@pytest.mark.parametrize(
    "code",
    [
        "mo.md(f'{mo.ui.slider(0, 9)} a')",
        "mo.md(str(labs.LABS))",
        'labs.prose(f"{width} wide")',
        'mo.vstack([labs.prose("a"), figure])',
    ],
)
def test_prose_that_must_be_computed_stays_code(twin, code):
    assert sources(twin("width = 3\nfigure = mo.Html('')", code))[1] == code


def formulas(html):
    return Counter(" ".join(tex.split()) for tex in re.findall(r"<marimo-tex[^>]*>(.*?)</marimo-tex>", html, re.S))


@pytest.mark.parametrize("name", ["01_three_projections", "02_change_of_basis"])
def test_every_formula_of_the_markdown_cells_is_one_of_the_marimo_page(name):
    path = FOLDER / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"formulas_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outputs, _ = module.app.run()
    page_has = formulas("\n".join(mo.as_html(one).text for one in outputs if one is not None))
    cells = json.loads(jupyter.convert(path))["cells"]
    twin_has = formulas(
        "\n".join(mo.md("".join(one["source"])).text for one in cells if one["cell_type"] == "markdown")
    )
    assert twin_has and twin_has <= page_has


# ---------------------------------------------------------------- what is mapped and what is refused


@pytest.mark.parametrize("name", sorted(jupyter.USABLE))
def test_what_is_mapped_passes_by_its_name_in_marimo(twin, name):
    code = "mo.show_code(1)" if name == "mo.show_code" else f"x = {name}()"
    code = "x = mo.ui.table(1, selection=None, pagination=False)" if name == "mo.ui.table" else code
    assert sources(twin(code)) == ["1" if name == "mo.show_code" else code]
    value = mo
    for part in name.split(".")[1:]:
        value = getattr(value, part)


def test_the_controls_that_labs_live_on_are_mapped():
    for name in (
        *(
            "anywidget",
            "array",
            "batch",
            "button",
            "checkbox",
            "dictionary",
            "dropdown",
            "form",
            "multiselect",
            "number",
        ),
        *("plotly", "radio", "range_slider", "run_button", "slider", "switch", "table", "tabs", "text", "text_area"),
    ):
        assert f"mo.ui.{name}" in jupyter.USABLE
    assert "mo.ui.refresh" not in jupyter.USABLE and "mo.ui.chat" not in jupyter.USABLE


@pytest.mark.parametrize(
    ("code", "construct", "instead"),
    [
        ("get, put = mo.state(0)  # here", "mo.state", "a value that a cell computes"),
        ("x = 1\nmo.lazy(x)  # here", "mo.lazy", "mo.ui.run_button and mo.stop"),
        ("mo.ui.refresh()  # here", "mo.ui.refresh", "anywidget"),
        ("y = mo.sql('select 1')  # here", "mo.sql", "numpy"),
        ("mo.query_params()  # here", "mo.query_params", "page.number"),
        ("if mo.running_in_notebook():  # here\n    pass", "mo.running_in_notebook", "page.jupyter"),
        ("mo.output.append(1)  # here", "mo.output", "last expression"),
        ("mo.sidebar([mo.outline()])  # here", "mo.sidebar", "labs.outline"),
        ("mo.mermaid('graph')  # here", "mo.mermaid", "mo.callout"),
        ("mo.status.progress_bar([1])  # here", "mo.status.progress_bar", "mo.status.spinner"),
        ("mo.ui.chat(None)  # here", "mo.ui.chat", "mo.ui.slider"),
        ("mo.ui.dropdown(\n    ['a'],\n    searchable=True,\n)", "searchable= of mo.ui.dropdown", "without"),
        ("mo.ui.text(kind='email')  # here", "kind= of mo.ui.text", "without"),
        ("mo.accordion({'a': 1}, lazy=True)  # here", "lazy= of mo.accordion", "without"),
        ("mo.callout('a', 'info', 'Title')  # here", "title= of mo.callout", "without"),
        ("mo.ui.slider(*settings)  # here", "mo.ui.slider with arguments that cannot be seen", "names each"),
        ("mo.ui.slider(**settings)  # here", "mo.ui.slider with arguments that cannot be seen", "names each"),
        ("make = mo.ui.slider  # here", "mo.ui.slider with arguments that cannot be seen", "names each"),
        ("mo.ui.table([1])  # here", "a mo.ui.table to choose", "selection=None"),
        ("mo.ui.table([1], selection='single')  # here", "a mo.ui.table to choose", "selection=None"),
        ("from marimo import md  # here", "`from marimo import md`", "import marimo as mo"),
        ("import marimo as m  # here", "`import marimo as m`", "import marimo as mo"),
        ("import marimo  # here", "`import marimo`", "import marimo as mo"),
        ("from marimo.ui import slider  # here", "`from marimo.ui import slider`", "import marimo as mo"),
        ("ui = mo.ui  # here", "mo.ui", "anywidget"),
        ("m = mo  # here", "`mo` by itself", "mo.name"),
        ("import asyncio\nawait asyncio.sleep(0)  # above", "await at the top of a cell", "thread"),
        ("twin = 1  # here", "the name `twin`", "another"),
        ("x = 1; mo.show_code()", "mo.show_code within", "line of its own"),
        ("mo.show_code(1); x = 1", "mo.show_code within", "line of its own"),
        ("f = mo.ui.text().form(validate=bool)  # here", "validate= of .form(...)", "without"),
        ("mo.md('a').callout(title='b')  # here", "title= of .callout(...)", "without"),
        ("x = (mo.show_code(), 1)", "mo.show_code within an expression", "line of its own"),
        ('mo.md("""\n/// note\nRead\n///\n""")', "`/// note`", "labs.box"),
        ('mo.md("::lucide:star::")', "`::lucide:star::`", "plain markdown"),
        ("figure = mo.ui.plotly(1)\nfigure.value  # here", "what is selected in a figure, `figure.value`", "a control"),
    ],
)  # fmt: skip
def test_what_a_twin_could_not_do_is_refused_with_its_line_and_a_way_out(write, code, construct, instead):
    path = write("a = 1", cell(code, head="async def _():" if "await" in code else "def _():"))
    with pytest.raises(jupyter.ConversionError) as caught:
        jupyter.convert(path)
    message = str(caught.value)
    name, line, refused, way_out = re.fullmatch(
        r"(\S+), line (\d+): a Jupyter twin has no place for (.*); use (.*)", message, re.S
    ).groups()
    assert name == path.name and refused.startswith(construct) and instead in way_out
    text = path.read_text().splitlines()
    wanted = next((n for n, row in enumerate(text, 1) if row.endswith("# here")), None)
    near = next(n for n, row in enumerate(text, 1) if row.strip() == code.splitlines()[0])
    assert int(line) in ({wanted} if wanted else {near - 1, near}), text[int(line) - 1]


def test_a_selection_read_in_another_cell_is_refused_there(write):
    path = write("figure = mo.ui.plotly(1)\nfigure", cell("a = 1\nfigure.ranges", head="def _(figure):"))
    line = path.read_text().splitlines().index("    figure.ranges") + 1
    with pytest.raises(jupyter.ConversionError, match=rf"line {line}: .*selected in a figure"):
        jupyter.convert(path)
    jupyter.convert(write("figure = mo.ui.plotly(1)\nfigure", "other.value"))


@pytest.mark.parametrize(
    ("whole", "construct"),
    [
        (cell("a = 1", how="app.cell(disabled=True)"), "a cell with disabled="),
        (cell("a = 1", how="app.cell(column=1)"), "a cell with column="),
        ('app._unparsable_cell("a b", name="_")\n', "a cell that does not parse"),
        ("assert True\n", "code outside the cells"),
    ],
)
def test_cells_that_a_twin_could_not_have_are_refused(write, whole, construct):
    with pytest.raises(jupyter.ConversionError, match=rf"07_small\.py, line \d+: .*{re.escape(construct)}"):
        jupyter.convert(write("b = 1", whole))


def test_what_is_no_lab_is_refused(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("print(1)\n")
    with pytest.raises(jupyter.ConversionError, match="no marimo notebook"):
        jupyter.convert(path)


@pytest.mark.parametrize("bad", [b"\xef\xbb\xbf", b"# \xe9\n"])
def test_a_file_that_is_not_plain_utf_8_is_refused(write, bad):
    path = write("x = 1")
    path.write_bytes(bad + path.read_bytes())
    with pytest.raises(jupyter.ConversionError, match="line 1: .*UTF-8"):
        jupyter.convert(path)


def test_prose_that_fails_is_told_with_its_line(write):
    path = write("mo.md(f'{1 / 0}')")
    line = path.read_text().splitlines().index("    mo.md(f'{1 / 0}')") + 1
    with pytest.raises(jupyter.ConversionError, match=rf"line {line}: ZeroDivisionError: division by zero"):
        jupyter.convert(path)


def test_an_unknown_term_is_told_with_its_line(write):
    path = write('labs.prose("[[sofmax]]")')
    line = path.read_text().splitlines().index('    labs.prose("[[sofmax]]")') + 1
    with pytest.raises(jupyter.ConversionError, match=rf"line {line}: 'sofmax' is not in the glossary"):
        jupyter.convert(path)
    assert not page.jupyter


# ---------------------------------------------------------------- on disk


def test_an_edited_notebook_is_never_overwritten_and_one_that_only_ran_is(write, tmp_path):
    fresh, path = jupyter.convert(write("x = 1")), tmp_path / "jupyter" / "07_small.ipynb"
    assert jupyter.state(path, fresh) == "missing"
    assert jupyter.write(path, fresh) == "missing" and path.read_text() == fresh
    newer = jupyter.convert(write("x = 2"))
    assert (jupyter.state(path, fresh), jupyter.state(path, newer)) == ("current", "stale")

    ran = nbformat.reads(fresh, as_version=4)
    ran.cells[-1].outputs = [nbformat.v4.new_output("stream", text="hello")]
    nbformat.write(ran, path)
    assert jupyter.state(path, fresh) == "stale"
    assert jupyter.write(path, newer) == "stale" and path.read_text() == newer

    mine = nbformat.reads(newer, as_version=4)
    mine.cells.append(nbformat.v4.new_code_cell("mine = 1"))
    for text in (nbformat.writes(mine), newer.replace("x = 2", "x = 3"), "{}", "not json"):
        path.write_text(text)
        assert jupyter.state(path, newer) == jupyter.write(path, newer) == "edited"
        assert path.read_text() == text
