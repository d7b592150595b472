"""What a twin costs in JupyterLab beside a bare notebook there. `python -m bench.jupyter` prints one table.

One JupyterLab, one Chromium that draws in software, and a page for each notebook. The bare side is an ipywidgets slider
and one Plotly figure with the data that the twin drew at these positions of its slider, read from a file, so that
nothing is computed there. Its figure is a FigureWidget that gets only what changed, or a figure displayed anew in an
Output; the target counts from the faster of the two. The twin computes, and draws all figures that follow its slider.

A repaint counts from the key that moves the slider until the figure is drawn anew, by the page's own clock. *Run all*
counts from the command, with a fresh kernel, until the last figure changed. Exit 1: a repaint takes over 4 times.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from bench import lab as jupyterlab
from bench.harness import interleave, machine, median_ratio, move_slider, table
from bench.page import MOVES, SLIDERS, size

SIDES = ("FigureWidget", "Output")

BARE = """
import json

import ipywidgets
import plotly.graph_objects as go
from IPython.display import display

drawn = json.load(open(FILE))
slider = ipywidgets.IntSlider(0, 0, len(drawn) - 1, description="the slider", continuous_update=False)
slider
"""
FOLLOW = {
    "FigureWidget": """
import numpy as np


def changing(parts):
    return {k for part in parts for k in part if part[k] != parts[0].get(k)}


traces = [changing(parts) for parts in zip(*(f["data"] for f in drawn))]
layout = changing([f["layout"] for f in drawn])
array = lambda value: np.array(value) if isinstance(value, list) else value
moves = [
    ([{k: array(t[k]) for k in names} for t, names in zip(f["data"], traces)], {k: f["layout"][k] for k in layout})
    for f in drawn
]
figure = go.FigureWidget(go.Figure(drawn[0], skip_invalid=True))


def follow(change):
    data, rest = moves[slider.value]
    with figure.batch_update():
        for trace, new in zip(figure.data, data):
            trace.update(new)
        figure.layout.update(rest)


slider.observe(follow, "value")
figure
""",
    "Output": """
figures = [go.Figure(figure, skip_invalid=True) for figure in drawn]
output = ipywidgets.Output()


def follow(change):
    with output:
        output.clear_output(wait=True)
        display(figures[slider.value])


slider.observe(follow, "value")
follow(None)
output
""",
}

# In the page: `found(only)` says which figures (whose layout mentions `only`) have drawn marks, and how often each was
# drawn since it was first seen.
SCRIPT = """
const EVENTS = ['plotly_afterplot', 'plotly_restyle', 'plotly_relayout', 'plotly_update', 'plotly_react'];
const times = new Map();
window.figures = (only) => [...document.querySelectorAll('.js-plotly-plot')].filter(
  (node) => node.layout && (!only || JSON.stringify(node.layout).includes(only)));
window.found = (only) => figures(only).filter((node) => node.querySelector('.main-svg image, .main-svg .trace path'))
  .map((node) => {
    if (!times.has(node)) {
      times.set(node, [times.size, 0]);
      for (const event of EVENTS) node.on(event, () => { times.get(node)[1] += 1; });
    }
    return times.get(node).join();
  }).join(' ');
window.drawn = () => {
  const plain = (key, value) => ArrayBuffer.isView(value) ? Array.from(value) : value;
  return figures('').map((node) => JSON.parse(JSON.stringify({data: node.data, layout: node.layout}, plain)));
};
window.runAll = () => new Promise((resolve) => {
  const begin = performance.now();
  let before = found(''), last = 0, done = false;
  jupyterapp.commands.execute('notebook:run-all-cells').then(() => { done = true; });
  const watch = setInterval(() => {
    const now = found(''), elapsed = performance.now() - begin;
    if (now !== before) [before, last] = [now, elapsed];
    if (done && last && elapsed - last > 3000) { clearInterval(watch); resolve(last); }
  }, 100);
});
window.content = (only) => JSON.stringify(figures(only).map((node) => [node.data, node.layout.shapes]));
addEventListener('keydown', () => {
  const only = window.only, before = found(only), old = content(only), begin = performance.now();
  window.repaint = null;
  const watch = () => {
    const now = found(only);
    if (now && now !== before && content(only) !== old) window.repaint = performance.now() - begin;
    else requestAnimationFrame(watch);
  };
  requestAnimationFrame(watch);
}, true);
"""


class Steered(NamedTuple):
    page: Any
    frames: list[int]  # bytes of each message from the server
    slider: Any


class Bench:
    """One JupyterLab and one browser; each method measures one thing once."""

    def __init__(self, browser: Any, address: str, folder: Path):
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.context.set_default_timeout(120_000)
        self.context.add_init_script(SCRIPT)
        self.address, self.folder = address, folder
        self.steered: dict[str, Steered] = {}

    def fresh(self, name: str) -> tuple[Any, float]:
        """A new page of a notebook with a new kernel, and the seconds from *Run all* to its last figure."""
        page = self.context.new_page()
        jupyterlab.open_notebook(page, self.address, name)
        return page, page.evaluate("runAll()") / 1000

    def first(self, name: str) -> float:
        page, seconds = self.fresh(name)
        jupyterlab.close(page)
        return seconds

    def steer(self, name: str, label: str, only: str) -> None:
        """Open and run a notebook and keep it, to move the slider of that label and watch what mentions `only`."""
        frames: list[int] = []
        self.context.once(
            "page",
            lambda page: page.on(
                "websocket", lambda ws: ws.on("framereceived", lambda payload: frames.append(size(payload)))
            ),
        )
        page, _ = self.fresh(name)
        page.evaluate(f"window.only = {only!r}")
        control = ".twin-slider" if name in SLIDERS else ".widget-slider"
        slider = page.locator(control, has_text=label).locator(".noUi-handle")
        self.steered[name] = Steered(page, frames, slider)

    def capture(self, name: str, only: str) -> int:
        """Write bare notebooks of what a twin draws as its slider moves; give the number of figures that follow."""
        page, _, slider = self.steered[name]
        slider.focus()
        shown = [page.evaluate("drawn()")]
        for key in ["ArrowRight"] * MOVES + ["ArrowLeft"] * MOVES:
            slider.press(key)
            page.wait_for_function("window.repaint")
            page.wait_for_timeout(1000)
            shown.append(page.evaluate("drawn()"))
        follow = [k for k in range(len(shown[0])) if shown[0][k] != shown[1][k]]
        one = next(k for k in follow if only in json.dumps(shown[0][k]["layout"]))
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps([position[one] for position in shown[: MOVES + 1]]))
        for side in SIDES:
            cells = [BARE.replace("FILE", repr(str(file))), FOLLOW[side]]
            (self.folder / f"{bare(name, side)}.ipynb").write_text(json.dumps(notebook(cells)))
        return len(follow)

    def repaint(self, name: str, turn: int) -> tuple[float, float]:
        """Median milliseconds from the key until the figure is drawn anew, and bytes the server sent for a move."""
        return move_slider(*self.steered[name], turn, MOVES, 1000)


def bare(name: str, side: str) -> str:
    return f"bare_{name[:2]}_{side}"


def notebook(cells: list[str]) -> dict[str, Any]:
    """The JSON of a notebook with these code cells."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    code: dict[str, Any] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    listed = [code | {"id": f"cell-{i}", "source": cell.strip()} for i, cell in enumerate(cells)]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": listed}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.jupyter", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from qkvlab.cli.doctor import find_chromium

    med = statistics.median
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = Path(scratch) / "twins"
        shutil.copytree(jupyterlab.TWINS, folder)
        server, address = jupyterlab.serve(folder, Path(scratch) / "home")
        try:
            browser = playwright.chromium.launch(
                executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
            )
            bench = Bench(browser, address, folder)
            moves, follow, firsts = {}, {}, {}
            for name, (label, only) in SLIDERS.items():
                bench.steer(name, label, only)
                follow[name] = bench.capture(name, only)
                sides = {"twin": name, **{side: bare(name, side) for side in SIDES}}
                for side in SIDES:
                    bench.steer(sides[side], "the slider", only)
                moves[name] = interleave(
                    {s: lambda turn, n=n: bench.repaint(n, turn) for s, n in sides.items()}, options.rounds
                )
                for page, *_ in bench.steered.values():
                    jupyterlab.close(page)
                bench.steered.clear()
                firsts[name] = interleave(
                    {s: lambda _, n=n: bench.first(n) for s, n in sides.items()}, min(3, options.rounds)
                )
            browser.close()
        finally:
            jupyterlab.stop(server)

    rows = [["what, medians of rounds in turn", "twin", *SIDES, "twin by the faster", "target"]]
    missed = False
    for name, measured in moves.items():
        ms = {side: [taken for taken, _ in rounds] for side, rounds in measured.items()}
        faster = min(SIDES, key=lambda side: med(ms[side]))
        ratio = median_ratio(ms["twin"], ms[faster])
        missed |= ratio > 4
        many = f", all {follow[name]} figures that follow in the twin" if follow[name] > 1 else ""
        rows += [
            [f"repaint in {name}{many}, ms", *(f"{med(r):.0f}" for r in ms.values()), f"{ratio:.2f}", "<= 4.00"],
            ["kB of such a move", *(f"{med(sent for _, sent in r) / 1000:.0f}" for r in measured.values()), "", ""],
            ["Run all to the last figure, s", *(f"{med(r):.1f}" for r in firsts[name].values()), "", ""],
        ]
    print(f"{machine()}\n{table(rows)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
