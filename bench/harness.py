"""What every bench shares: workers in their own processes, rounds in turn, medians, one table.

A worker is a module run as `python -m MODULE ARGUMENT...` with one thread; its last line of output is JSON. Each side
of a comparison gets its own process, so neither warms the other's caches, and the sides take turns within a round, so
that a noisy machine disturbs both alike.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def worker(module: str, *arguments: object) -> Any:
    """Run a worker to its end and return what its last line says. Raises RuntimeError with its output when it fails."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=os.environ | ONE_THREAD | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(
            f"{module} {' '.join(map(str, arguments))} failed:\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}"
        )
    return json.loads(run.stdout.strip().splitlines()[-1])


def interleave(sides: dict[str, Callable[[int], Any]], rounds: int) -> dict[str, list[Any]]:
    """Call the sides in turn, `rounds` times, every second round in reverse; what each returned, in order."""
    got: dict[str, list[Any]] = {name: [] for name in sides}
    for i in range(rounds):
        for name in list(sides)[:: 1 if i % 2 == 0 else -1]:
            got[name].append(sides[name](i))
            print(f"  round {i + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
    return got


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of ours/theirs."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of words in aligned columns; the first row is the head, the first column is left-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    line = lambda row: "  ".join(
        c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
    )
    return "\n".join([line(rows[0]), "  ".join("-" * w for w in widths), *map(line, rows[1:])])


def machine() -> str:
    """One line about where this was measured, load included."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    load = f", load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores" if hasattr(os, "getloadavg") else ""
    return f"{cpu}, {platform.system()}, Python {platform.python_version()}, one thread{load}"


def move_slider(page: Any, frames: list[int], slider: Any, turn: int, moves: int, rest: float) -> tuple[float, float]:
    """Median milliseconds until the page says `window.repaint`, and median bytes the server sent, of so many moves.

    Right in one turn and left in the next, with `rest` milliseconds after each for what follows the figure.
    """
    page.bring_to_front()
    slider.focus()
    taken, sent = [], []
    for move in range(moves):
        before = sum(frames)
        slider.press("ArrowLeft" if turn % 2 else "ArrowRight")
        page.wait_for_function("window.repaint")
        page.wait_for_timeout(rest)
        if move:  # the first after another page was in front does not count
            taken.append(page.evaluate("window.repaint"))
            sent.append(sum(frames) - before)
    return statistics.median(taken), statistics.median(sent)
