"""What a page of ours costs beside bare marimo. `python -m bench.page` prints one table; exit 1: a target is missed.

All pages come from one warm server and are opened in turn by one Chromium, which draws in software. The bare side is a
notebook with one slider and one Plotly figure: what the lab itself drew for these positions of its slider, read from a
file, so that nothing but marimo and Plotly is in it. It gets the labs' head, which keeps MathJax from being asked for.
A slider of a lab may move several figures, which the browser draws in one go; so a second bare notebook draws them all.

A first figure counts from the start of the navigation until its marks are in the document, a repaint from the key that
moves the slider until the marks are of new data, both by the page's own clock. The training is two small GPTs of the
`paper` recipe with both widgets; its page is open, then closed, while one run goes on.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import ROOT, interleave, machine, median_ratio, move_slider, table

MOVES = 5  # of a slider, right in one round and left in the next
SLIDERS = {  # lab -> label of a slider, words in the layout of a figure that follows it
    "01_three_projections": ("temperature", "temperature 1"),
    "02_change_of_basis": ("condition number, as", "relative error of the queries"),
}

BARE = """
import marimo

app = marimo.App(width="medium", html_head_file="head.html")


@app.cell
def _():
    import json
    from pathlib import Path

    import marimo as mo
    import plotly.graph_objects as go

    drawn = json.loads(Path(FILE).read_text())
    return drawn, go, mo


@app.cell
def _(drawn, mo):
    slider = mo.ui.slider(0, len(drawn) - 1, label="the slider", debounce=True)
    slider
    return (slider,)


"""
FIGURE = """
@app.cell
def _(drawn, go, mo, slider):
    mo.ui.plotly(go.Figure(drawn[slider.value][INDEX], skip_invalid=True))
    return

"""
RUN = """
if __name__ == "__main__":
    app.run()
"""

TRAINING = """
import marimo

app = marimo.App(width="medium", css_file="lab.css", html_head_file="head.html")


@app.cell
def _():
    import json
    import threading
    import time
    from pathlib import Path

    import marimo as mo

    from qkvlab.show.grid import AttentionGrid
    from qkvlab.show.live import Live
    from qkvlab.show.panel import TrainingPanel
    from qkvlab.training.recipes import recipe
    return AttentionGrid, Live, Path, TrainingPanel, json, mo, recipe, threading, time


@app.cell
def _(AttentionGrid, Live, Path, TrainingPanel, json, mo, recipe, threading, time):
    panel, grid = TrainingPanel("bench"), AttentionGrid()
    live = Live([recipe("paper", v, steps=100_000) for v in ("qkv", "identity-q")], panel, grid)
    updates = [0]

    def counting(method):
        def call(*args, **kwargs):
            updates[0] += 1
            return method(*args, **kwargs)
        return call

    panel.tick, grid.show = counting(panel.tick), counting(grid.show)

    def report():
        file, stop = Path(FILE), Path(FILE + ".stop")
        while not stop.exists():
            state = live.step, live.train_seconds, live.listener_seconds, updates[0]
            with file.open("a") as out:
                out.write(json.dumps([time.time(), *state]) + chr(10))
            time.sleep(0.1)
        live.close()

    live.command("play")
    threading.Thread(target=report, daemon=True).start()
    mo.vstack([panel, grid])
    return


if __name__ == "__main__":
    app.run()
"""

# In the page: `found(only)` names the data that the Plotly figures (whose layout mentions `only`) have drawn, empty as
# long as nothing is drawn. It runs in every frame, so it looks only where marimo puts a figure.
SCRIPT = """
const ids = new WeakMap();
let last = 0;
const id = (object) => { if (!ids.has(object)) ids.set(object, ++last); return ids.get(object); };
const plots = () => [...document.querySelectorAll('marimo-plotly')]
  .map((host) => host.shadowRoot?.querySelector('.js-plotly-plot')).filter((plot) => plot?.layout);
window.found = (only) => plots()
  .filter((plot) => !only || JSON.stringify(plot.layout).includes(only))
  .filter((plot) => plot.querySelector('.main-svg image, .main-svg .trace path'))
  .map((plot) => id(plot.data)).join(' ');
const plain = (key, value) => ArrayBuffer.isView(value) ? Array.from(value) : value;
window.drawn = () => plots()
  .map(({data, layout}) => [id(data), JSON.parse(JSON.stringify({data, layout}, plain))]);
window.look = () => found('') ? (window.first = performance.now()) : requestAnimationFrame(look);
requestAnimationFrame(look);
addEventListener('keydown', () => {
  const begin = performance.now(), only = window.only, before = found(only);
  window.repaint = null;
  const watch = () => {
    const now = found(only);
    if (now && now !== before) window.repaint = performance.now() - begin; else requestAnimationFrame(watch);
  };
  requestAnimationFrame(watch);
}, true);
"""


def serve(folder: Path) -> tuple[subprocess.Popen, str]:
    """A gallery of that folder in a process of its own, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "bench.page", "serve", str(folder)],
        cwd=ROOT,
        env=os.environ | {"QKVLAB_RUNS": str(folder / "runs")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    line = process.stdout.readline()
    if "http" not in line:
        raise RuntimeError(f"the server does not start: {line}")
    return process, line.split()[-1]


def size(payload: str | bytes) -> int:
    return len(payload if isinstance(payload, bytes) else payload.encode())


def bare(lab: str, which: str) -> str:
    """The name of a bare notebook: of the one figure ("1") or of "all" that follow the slider of that lab."""
    return f"9{list(SLIDERS).index(lab)}_bare_{which}"


class Steered(NamedTuple):
    page: Any
    frames: list[int]  # bytes of each message from the server
    slider: Any


class Bench:
    """One server and one browser; each method measures one thing once."""

    def __init__(self, browser: Any, address: str, folder: Path):
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.context.set_default_timeout(120_000)
        self.context.add_init_script(SCRIPT)
        self.address, self.folder = address, folder
        self.runs = 0
        self.steered: dict[str, Steered] = {}

    def first(self, name: str) -> float:
        """Seconds until the first figure of a page is drawn."""
        page = self.context.new_page()
        page.goto(f"{self.address}/?file={name}.py")
        page.wait_for_function("window.first")
        seconds = page.evaluate("window.first") / 1000
        page.close()
        return seconds

    def steer(self, name: str, label: str, only: str) -> None:
        """Open a page and keep it, to move the slider of that label and watch the figure that mentions `only`."""
        page, frames = self.context.new_page(), []
        page.on("websocket", lambda ws: ws.on("framereceived", lambda payload: frames.append(size(payload))))
        page.goto(f"{self.address}/?file={name}.py")
        slider = page.locator(f"marimo-slider[data-label*='{label}'] [role=slider]").first
        while not page.evaluate(f"found({only!r})"):  # a figure is drawn when it comes near
            slider.focus()
            page.wait_for_timeout(500)
        page.evaluate(f"window.only = {only!r}")
        page.wait_for_timeout(5000)
        self.steered[name] = Steered(page, frames, slider)

    def capture(self, name: str, only: str) -> int:
        """Write bare notebooks that draw what a lab draws as its slider moves; give the number of figures that follow.

        `<name>-1` has the figure that mentions `only`, `<name>-all` all that follow the slider.
        """
        page, _, slider = self.steered[name]
        slider.focus()
        shown = [page.evaluate("drawn()")]
        for key in ["ArrowRight"] * MOVES + ["ArrowLeft"] * MOVES:
            slider.press(key)
            page.wait_for_function("window.repaint")
            page.wait_for_timeout(1500)
            shown.append(page.evaluate("drawn()"))
        all_ = [k for k in range(len(shown[0])) if shown[0][k][0] != shown[1][k][0]]
        one = [k for k in all_ if only in json.dumps(shown[0][k][1]["layout"])]
        for which, figures in (("1", one), ("all", all_)):
            file = self.folder / f"{name}-{which}.json"
            file.write_text(json.dumps([[position[k][1] for k in figures] for position in shown[: MOVES + 1]]))
            cells = "".join(FIGURE.replace("INDEX", str(k)) for k in range(len(figures)))
            (self.folder / f"{bare(name, which)}.py").write_text(BARE.replace("FILE", repr(str(file))) + cells + RUN)
        return len(all_)

    def repaint(self, name: str, turn: int) -> tuple[float, float]:
        """Median milliseconds from key to other marks in the figure, and bytes the server sent for a move."""
        return move_slider(*self.steered[name], turn, MOVES, 1500)

    def training(self, seconds: float) -> dict[str, float]:
        """Steps per second with the page open and then closed, the listeners' share, and bytes an update."""
        self.runs += 1
        file = self.folder / f"training-{self.runs}.jsonl"
        (self.folder / "99_training.py").write_text(TRAINING.replace("FILE", repr(str(file))))
        page, frames = self.context.new_page(), []
        page.on("websocket", lambda ws: ws.on("framereceived", lambda payload: frames.append(size(payload))))
        page.goto(f"{self.address}/?file=99_training.py")

        def last() -> list[float]:
            return json.loads(file.read_text().splitlines()[-1]) if file.exists() else [0] * 5

        def phase() -> tuple[list[float], list[float], float]:
            begin, sent = last(), sum(frames)
            page.wait_for_timeout(1000 * seconds) if not page.is_closed() else time.sleep(seconds)
            return begin, last(), sum(frames) - sent

        while last()[1] < 10:
            page.wait_for_timeout(200)
        opened = phase()
        page.close()
        time.sleep(1)
        closed = phase()
        Path(f"{file}.stop").touch()
        pace = [(b[1] - a[1]) / (b[0] - a[0]) for a, b, _ in (opened, closed)]
        a, b, sent = opened
        drawing, training = b[3] - a[3], b[2] - a[2]
        return {
            "open": pace[0],
            "closed": pace[1],
            "share": drawing / (drawing + training),
            "updates": (b[4] - a[4]) / (b[0] - a[0]),
            "bytes": sent / max(1, b[4] - a[4]),
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10, help="of training with the page open, and again closed")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from qkvlab.cli.doctor import find_chromium

    labs = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.py"))
    med = statistics.median
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = Path(scratch) / "labs"
        shutil.copytree(ROOT / "notebooks", folder, ignore=shutil.ignore_patterns("__*", "jupyter"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        for name in (bare(lab, which) for lab in SLIDERS for which in ("1", "all")):
            (folder / f"{name}.py").write_text(BARE + RUN)  # the gallery takes what is there when it starts
        (folder / "99_training.py").write_text(TRAINING.replace("FILE", repr(str(folder / "unused"))))
        server, address = serve(folder)
        try:
            browser = playwright.chromium.launch(
                executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
            )
            bench = Bench(browser, address, folder)
            moves, follow = {}, {}
            for lab, (label, only) in SLIDERS.items():
                bench.steer(lab, label, only)
                follow[lab] = bench.capture(lab, only)
                names = (lab, bare(lab, "1"), bare(lab, "all"))
                for name in names[1:]:
                    bench.steer(name, "the slider", only)
                moves[lab] = interleave({n: lambda turn, n=n: bench.repaint(n, turn) for n in names}, options.rounds)
            for page, *_ in bench.steered.values():
                page.close()
            for name in labs:  # warm: imports on the server, scripts in the browser's store
                bench.first(name)
            plain = bare(next(iter(SLIDERS)), "1")
            firsts = interleave({n: lambda i, n=n: bench.first(n) for n in (plain, *labs)}, options.rounds)
            runs = [bench.training(options.seconds) for _ in range(options.rounds)]
            browser.close()
        finally:
            server.terminate()
            server.wait(30)

    theirs = firsts.pop(plain)
    rows = [["what, medians of rounds in turn", "ours", "bare", "difference or ratio", "target"]]
    later = {}
    for name, seconds in firsts.items():
        later[name] = med(a - b for a, b in zip(seconds, theirs, strict=True))
        what = f"first figure of {name}, s"
        rows.append([what, f"{med(seconds):.2f}", f"{med(theirs):.2f}", f"{later[name]:+.2f}", "<= +1.00"])
    slower = {}
    for lab, sides in moves.items():
        ours, one, all_ = sides.values()
        for what, side, target in (("", one, "<= 1.30"), (f", bare with all {follow[lab]} figures", all_, "")):
            ratio = median_ratio([ms for ms, _ in ours], [ms for ms, _ in side])
            slower[lab] = slower.get(lab, ratio)
            both = [f"{med(ms for ms, _ in pages):.0f}" for pages in (ours, side)]
            rows.append([f"repaint in {lab}{what}, ms", *both, f"{ratio:.2f}", target])
        both = [f"{med(sent for _, sent in side) / 1000:.0f}" for side in (ours, all_)]
        rows.append(["kB of such a move", *both, "", ""])
    share = med(run["share"] for run in runs)
    rows += [
        ["listeners' share of the training thread, %", f"{100 * share:.2f}", "", "", "<= 3.00"],
        ["steps a second, page open (ours) and closed", *(f"{med(r[k] for r in runs):.2f}" for k in ("open", "closed")),
         f"{median_ratio([r['open'] for r in runs], [r['closed'] for r in runs]):.2f}", ""],
        ["updates a second while training", f"{med(r['updates'] for r in runs):.1f}", "", "", ""],
        ["kB an update", f"{med(r['bytes'] for r in runs) / 1000:.1f}", "", "", ""],
    ]  # fmt: skip
    print(f"{machine()}\n{table(rows)}")
    return 0 if max(later.values()) <= 1 and max(slower.values()) <= 1.3 and share <= 0.03 else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        from qkvlab.cli import serve as verb

        folder_ = Path(sys.argv[2])
        verb.labs_dir = lambda: folder_
        verb.command(["--no-browser"])
    else:
        sys.exit(main())
