"""`Live`: training behind a page. It runs the trainers of several models in one plain thread and feeds the two widgets.

    panel, grid = TrainingPanel("lab"), AttentionGrid()
    live = Live([recipe("paper", "qkv"), recipe("paper", "identity-q")], panel, grid, probe="To be")

From then on the panel's buttons drive it. The models take their steps in turn (lockstep), so their curves compare step
by step, and configs that differ only in their seed are one curve with a band.

A page can vanish at any time, so the thread looks, between two steps and while it waits, whether its owner (the kernel
thread that made it) still lives; if not it saves and ends. One owner trains one run at a time: a newer run stops the
older. A process trains `SLOTS.room` runs at a time, the others wait in line and are told their place.
"""

import json
import os
import re
import secrets
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkvlab import tasks
from qkvlab.models.attention import Attention
from qkvlab.models.variants import variant
from qkvlab.show import page
from qkvlab.show.grid import AttentionGrid, face
from qkvlab.show.panel import TrainingPanel
from qkvlab.theory.measure import circuit_symmetry
from qkvlab.training.trainer import RunConfig, Trainer

CURVES_SHARE, MAPS_SHARE = 0.009, 0.017  # of the training time: what drawing may cost the thread
SAVED_FOR = 7 * 24 * 3600  # seconds that the run of a page is kept
RUN_ID = re.compile(r"[0-9a-f]{16}")

# status -> what the first button says, and which commands make sense
OFFERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ready": ("Train", ("play", "step")),
    "starting": ("Train", ("stop",)),
    "waiting": ("Train", ("stop", "reset")),
    "running": ("Pause", ("pause", "stop", "reset", "pin")),
    "paused": ("Resume", ("play", "step", "stop", "reset", "pin")),
    "saved": ("Resume", ("play", "step", "reset", "pin")),
    "stopped": ("Resume", ("play", "step", "reset", "pin")),
    "done": ("Train again", ("play", "reset", "pin")),
    "diverged": ("Train again", ("play", "reset", "pin")),
    "out of memory": ("Try again", ("play", "reset", "pin")),
    "disk full": ("Try again", ("play", "reset", "pin")),
    "interrupted": ("Resume", ("play", "reset", "pin")),
    "error": ("Try again", ("play", "reset")),
}
BUSY = ("starting", "waiting", "running")
UNFINISHED = (*BUSY, "paused", "saved", "stopped")
BROKEN = ("out of memory", "disk full", "interrupted", "error")  # Try again takes up what is on disk


class Slots:
    """Room for a number of trainings at a time; the others wait in line."""

    def __init__(self, room: int):
        self.room = room
        self._line: list[object] = []  # those inside, then those waiting, in order of arrival
        self._moved = threading.Condition()

    def enter(self, who: object, waiting: Callable[[int], None], gone: Callable[[], bool]) -> bool:
        """Wait for room, at once for who is inside; False when `gone()` says so first. `waiting` is told the place."""
        told = 0
        with self._moved:
            if who not in self._line:
                self._line.append(who)
            while not gone():
                place = self._line.index(who) - self.room + 1  # in line, from 1
                if place <= 0:
                    return True
                if place != told:
                    waiting(place)
                told = place
                self._moved.wait(0.5)
        self.leave(who)
        return False

    def leave(self, who: object) -> None:
        with self._moved:
            if who in self._line:
                self._line.remove(who)
                self._moved.notify_all()


SLOTS = Slots(int(os.environ.get("QKVLAB_TRAININGS") or max(2, min(8, (os.cpu_count() or 2) // 2))))
_running: "set[Live]" = set()  # every run of this process whose thread lives; each has its owner


class _Feed:
    """When to draw: not more often than every `least` seconds, and for at most `share` of the training time."""

    def __init__(self, share: float, least: float):
        self.share, self.least = share, least
        self.spent = self.cost = self.last = 0.0

    def due(self, trained: float) -> bool:
        return time.perf_counter() - self.last >= self.least and self.spent + self.cost <= self.share * trained

    def count(self, start: float) -> None:
        self.last = time.perf_counter()
        self.cost = self.last - start
        self.spent += self.cost


def _band(values: list[float]) -> list[float]:
    """Mean, lowest and highest; NaN where there are none."""
    return [sum(values) / len(values), min(values), max(values)] if values else [float("nan")] * 3


def arms(configs: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """The configs in groups that differ in nothing but their seed, in order of appearance."""
    groups: dict[RunConfig, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(replace(config, seed=0), []).append(config)
    return list(groups.values())


WORDS = {"mlp": "MLP ×{:g}", "logit_scale": "scale {:g}", "weight_decay": "decay {:g}", "lr": "rate {:g}"}
PLAIN = {"mlp": 4.0, "logit_scale": 1.0}  # values that go without saying


def faces(configs: Sequence[RunConfig]) -> list[dict[str, str]]:
    """Badge, label, colour and dash of each config: the label says where it differs from the others."""
    rows = [{k: v for k, v in c.settings().items() if k not in ("variant", "seed")} for c in configs]
    differ = [name for name in rows[0] if any(row[name] != rows[0][name] for row in rows)]
    found: list[dict[str, str]] = []
    for config, row in zip(configs, rows, strict=True):
        v = variant(config.model.variant)
        notes = [WORDS.get(n, n + " {}").format(row[n]) for n in differ if n not in PLAIN or row[n] != PLAIN[n]]
        dashes = [v.dash, *(d for d in ("dot", "dash", "longdashdot", "longdash") if d != v.dash)]
        used = sum(other["colour"] == v.colour for other in found)
        found.append(face(v.slug, ", ".join([v.label, *notes]), dash=dashes[used % len(dashes)]))
    return found


@torch.no_grad()
def head_symmetry(model: torch.nn.Module) -> np.ndarray:
    """(L, H): how symmetric each head's W_Q^h W_K^hT is, 1 when the two are tied, about 0 when they are unrelated.

    It is taken from the weights: under a causal mask the map itself cannot be symmetric.
    """
    rows = []
    for block in model.layers():  # type: ignore[operator]
        attention: Attention = block.attention
        eye = torch.eye(attention.heads * attention.d_h).to(attention.W_O.weight)
        q, k, _ = attention.project(torch.stack([eye, 0 * eye]))  # (2, H, d, d_h): I W_Q + b_Q, then b_Q alone
        k = k.repeat_interleave(attention.heads // attention.kv_heads, 1)
        rows.append(circuit_symmetry((q[0] - q[1]).cpu(), (k[0] - k[1]).cpu()))
    return np.stack(rows)


class Live:
    """The run that a panel's buttons drive. Make it in the kernel thread (a cell, or a button's handler).

    configs: one for each model and seed. grid: shows the maps of the first seed of two of the models, for `probe` (a
    text; other tasks show their first validation example). runs_dir: where the run is kept as it goes, None: nowhere.
    When the run pauses, ends or is thrown away, the panel's `moment` changes.

    Made while the panel's run is unfinished, it waits until that one is reset. `panel.controller` is the one in charge.

    `with live.hold():` keeps the models still while you read them. Status words are the keys of OFFERS.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        panel: TrainingPanel,
        grid: AttentionGrid | None = None,
        runs_dir: Path | str | None = None,
        *,
        probe: str | None = None,
    ):
        if not configs:
            raise ValueError("no model to train: choose at least one")
        if len({c.steps for c in configs}) > 1:
            raise ValueError("models that are compared take the same number of steps")
        self.panel, self.grid, self.probe = panel, grid, probe
        self.home = None if runs_dir is None else Path(runs_dir) / "pages"
        self.arms = arms(configs)
        self.steps, self.seeds = configs[0].steps, max(map(len, self.arms))
        self.faces = faces([group[0] for group in self.arms])
        # in Jupyter a cell or a button may run in a thread that ends with the page, while the kernel lives on
        self.owner = threading.main_thread() if page.jupyter else threading.current_thread()
        self.status = "ready"
        self.successor: Live | None = None  # made while this one is unfinished: takes over on reset
        self.run_id = secrets.token_hex(8)
        self.folder: Path | None = None  # where the run is kept
        self.unsaved = ""  # why it is not
        self.trainers: list[list[Trainer]] = []
        self.rows: list[list[float]] = []
        self.validation: list[list[float]] = []
        self.train_seconds = 0.0  # of the thread: steps with their evaluation
        self._step, self._turn, self._wake = threading.RLock(), threading.RLock(), threading.Condition()
        self._want = "pause"  # play | pause | stop | drop
        self._singles = 0
        self._thread: threading.Thread | None = None
        self._curves, self._maps = _Feed(CURVES_SHARE, 0.08), _Feed(MAPS_SHARE, 0.25)
        self._sent = self._sent_validation = 0
        self._seconds_a_round = 0.0
        old: Any = panel.controller
        if old is None or old.status not in UNFINISHED or not old.owner.is_alive():
            self._ready(keep=old is not None and bool(panel.arms and old.rows))
        elif old.arms != self.arms:
            old.successor = self
            old._say(old.status, "You changed the settings. They count from the next run: press Reset, then Train.")
        else:
            old.successor, old.probe = None, probe
            old._say(old.status, "" if old.status == "running" else f"At step {old.step} of {old.steps}.")

    @property
    def step(self) -> int:
        return len(self.rows)

    @property
    def listener_seconds(self) -> float:
        """Of the thread: drawing."""
        return self._curves.spent + self._maps.spent

    @property
    def _watched(self) -> bool:
        return self.panel.controller is self and self.owner.is_alive()

    # ---------------------------------------------------------------- the buttons (kernel thread)

    def command(self, name: str) -> None:
        """What the panel's buttons call: play, pause, step, stop, reset, pin."""
        if name not in OFFERS[self.status][1]:
            return
        if name == "pin":
            with self.hold():
                if self.rows:
                    self.panel.say(self._array())
                self.panel.pin()
        elif name == "reset":
            self.close("drop")
            (self.successor or self._again())._ready()
        elif name == "play" and self.status in ("done", "diverged", "error"):
            live = self.successor or self._again()  # settings that were changed meanwhile count now
            live._ready(keep=True)
            live._go("play")
        else:
            self._go("pause" if name == "step" else name, single=name == "step")

    def take_up(self, run_id: str) -> None:
        """Offer the run of that id, which this browser tab trained before it was reloaded. Ignores an unknown id."""
        if self.home is None or self.panel.controller is not self or self.status != "ready":
            return
        if not RUN_ID.fullmatch(run_id):  # it comes from a browser and becomes a path
            return
        for live in _running.copy():  # the page that was reloaded may go on for a while: two never train one run
            if live.run_id == run_id:
                live.close("stop")
        try:
            about = json.loads((self.home / run_id / "page.json").read_text())
            live = self._again([RunConfig.from_dict(values) for values in about["configs"]])
        except (OSError, ValueError, TypeError, KeyError):
            return
        live.run_id, live.folder, live.successor = run_id, self.home / run_id, self
        live._go("pause")

    def close(self, how: str = "stop") -> None:
        """End the thread and wait for it: "stop" keeps the run on disk, "drop" deletes it."""
        with self._wake:
            self._want = how
            self._wake.notify_all()
        if self._thread:
            self._thread.join(10)
        if how == "drop":
            self._quit()
            self.status = "ready"
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)

    def show_probe(self, text: str) -> None:
        """Show the maps for another text. Raises ValueError when the vocabulary lacks one of its characters."""
        with self.hold():
            if self.trainers:
                self._probe_input(self.trainers[0][0], text)
            self.probe = text
            self._chosen()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """No step is taken meanwhile. It waits for one step at most, because the next one queues behind, at `_turn`."""
        with self._turn, self._step:
            yield

    def models(self) -> list[tuple[str, Trainer]]:
        """Label and first trainer of each model; empty before the first step. Use them under `hold()`."""
        return [(f["label"], group[0]) for f, group in zip(self.faces, self.trainers, strict=False)]

    def _again(self, configs: Sequence[RunConfig] | None = None) -> "Live":
        """A new run on the same page."""
        configs = configs or [config for group in self.arms for config in group]
        return Live(configs, self.panel, self.grid, self.home and self.home.parent, probe=self.probe)

    def _all(self) -> list[Trainer]:
        return [trainer for group in self.trainers for trainer in group]

    def _ready(self, keep: bool = False) -> None:
        """Show these settings as what Train would start; `keep` leaves the curves of the run before in place."""
        self.panel.controller = self
        count = f"{len(self.arms)} model{'s' * (len(self.arms) > 1)}"
        count += f" × {self.seeds} seeds" if self.seeds > 1 else ""
        text = f"{count}, {self.steps} steps each." + (" The curves are of the run before." if keep else "")
        if not keep:
            self.panel.begin(arms=self.faces, total=self.steps, seeds=self.seeds, run_id="")
            if self.grid is not None:
                self.grid.begin(self.faces, "The maps appear with the first step.")
        self._say("ready", text)

    def _go(self, want: str, single: bool = False) -> None:
        with self._wake:
            self._want = want
            self._singles = self._singles + 1 if single else 0
            self._wake.notify_all()
        if self._thread and self.status not in (*BUSY, "paused", "saved"):
            self._thread.join(5)  # it has said how it ended and is about to
        if self._thread is None or not self._thread.is_alive():
            for live in _running.copy():
                if live.owner is self.owner and live is not self:
                    live.close()
            _running.add(self)
            self._thread = threading.Thread(target=self._work, name="qkvlab training", daemon=True)
            self._thread.start()

    # ---------------------------------------------------------------- the thread

    def _gone(self) -> bool:
        return not self.owner.is_alive() or self._want in ("stop", "drop")

    def _work(self) -> None:
        try:
            status, message = self._train()
            if self.owner.is_alive() and self._want != "drop":
                self._settle(status, message)
            else:
                self._quit()
        finally:
            _running.discard(self)

    def _train(self) -> tuple[str, str]:
        """Until it is over: how it ended, in a word and a sentence."""
        try:
            if not self.trainers:
                self._build()
            while not self._gone():
                ends = {t.status for t in self._all()}
                if not ends & {"ready", "running"} or ends & set(BROKEN):
                    break
                if self._want == "pause" and not self._singles:
                    SLOTS.leave(self)
                    self._rest()
                elif SLOTS.enter(self, self._in_line, self._gone):
                    single = self._want == "pause"
                    if not single and self.status != "running":
                        self._say("running", "")
                    self._round()
                    if single:
                        with self._wake:
                            self._singles = max(0, self._singles - 1)
                        self._draw_curves()
                        self._draw_maps()
            return self._verdict()
        except MemoryError as error:
            text = str(error) or "Out of memory"
            return "out of memory", f"{text}. A smaller width, or fewer models at a time, need less."
        except ValueError as error:  # settings, data or a folder that cannot be: the text says what to do
            return "error", str(error)
        except OSError as error:
            text = error.strerror or str(error)
            return "disk full", f"The run could not be kept: {text}. Free some space, then try again."
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return "error", f"{type(error).__name__}: {error}. The program's window has the details."
        finally:
            SLOTS.leave(self)

    def _build(self) -> None:
        """Make the trainers, from their checkpoints where the run has been kept."""
        self._say("starting", "Reading the data and drawing the weights.")
        kept = self.folder is not None
        if self.home and not kept and not self.unsaved:
            try:
                self.folder = self._new_folder(self.home)
            except OSError as error:
                self.unsaved = f" Not kept on disk: {error.strerror or error}."
        task: Any = None
        made: list[list[Trainer]] = [[] for _ in self.arms]
        for a, config in ((a, config) for a, group in enumerate(self.arms) for config in group):
            if self._gone():
                return
            task = task or tasks.load(config.task, tokens=config.tokens, data=config.data, length=config.length)
            name = f"{a}-{config.model.variant}-s{config.seed}"
            made[a].append(Trainer(config, self.folder and self.folder / name, task=task))
        with self.hold():
            self.trainers, self.rows, self.validation = made, [], []
            self._means = dict.fromkeys(self._all(), 0.0)
            for _ in range(min(t.step for t in self._all())):
                self._note()
            self._sent, self._sent_validation = len(self.rows), len(self.validation)
            self.panel.begin(
                arms=self.faces, total=self.steps, seeds=self.seeds, unit=task.unit, rows=self._array(),
                run_id=self.run_id if self.folder else "", validation=self.validation, ended=self._ended(),
            )  # fmt: skip
            if self.grid is not None:
                self.grid.begin(self.faces)
                self.grid.on_choose = self._chosen
            self._draw_maps(keep=True)
        if kept and self._want == "pause" and self.step < self.steps:
            self.status = "saved"

    def _new_folder(self, home: Path) -> Path:
        """Make a folder for this run; delete what pages left here long ago."""
        running = {live.run_id for live in _running.copy()}
        for old in home.iterdir() if home.is_dir() else ():
            if RUN_ID.fullmatch(old.name) and old.name not in running and time.time() - old.stat().st_mtime > SAVED_FOR:
                shutil.rmtree(old, ignore_errors=True)
        folder = home / self.run_id
        folder.mkdir(parents=True)
        configs = [config.as_dict() for group in self.arms for config in group]
        (folder / "page.json").write_text(json.dumps({"configs": configs}))
        return folder

    def _note(self) -> None:
        """One more row of the curves, of the trainers that have taken that step."""
        index, weight = len(self.rows), 1 / max(8, self.steps / 40)  # running mean over the last fortieth of the run
        row: list[float] = [index + 1]
        for a, group in enumerate(self.trainers):
            there = [t for t in group if len(t.records) > index]
            for t in there:
                self._means[t] += weight * (t.records[index].loss - self._means[t])
            row += _band([self._means[t] / (1 - (1 - weight) ** (index + 1)) for t in there])  # exact from the start
            if scored := [v for t in there if (v := t.records[index].val_loss) is not None]:
                self.validation.append([a, index + 1, *_band(scored)])
        self.rows.append(row)

    def _round(self) -> None:
        """One step of every model that is not ahead, then the widgets, if it is time."""
        start = time.perf_counter()
        with self._turn:
            pass
        with self._step:
            step = min(t.step for t in self._all() if t.status in ("ready", "running"))
            for t in self._all():  # after a crash checkpoints may lie some steps apart: who is ahead waits
                if t.step == step:
                    next(t, None)
            pace = time.perf_counter() - start
            self.train_seconds += pace
            self._seconds_a_round = self._seconds_a_round * 0.9 + pace * 0.1 if self._seconds_a_round else pace
            if any(len(t.records) > self.step for t in self._all()):
                self._note()
            if self._curves.due(self.train_seconds):
                self._draw_curves()
            if self._maps.due(self.train_seconds):
                self._draw_maps()

    def _rest(self) -> None:
        """Save, say so, and wait for a button; look now and then whether the page is still there."""
        with self.hold():
            self._save()
            self._settle("saved" if self.status == "saved" else "paused", "")
        with self._wake:
            while self._want == "pause" and not self._singles and self.owner.is_alive():
                self._wake.wait(0.5)

    def _save(self) -> None:
        for trainer in self._all():
            if trainer.status == "running":
                trainer.save()

    def _verdict(self) -> tuple[str, str]:
        """How it ended, in a word and a sentence, out of the trainers' own words."""
        if self._gone():
            with self.hold():
                self._save()
            return "stopped", ""
        groups = zip(self.faces, self.trainers, strict=True)
        ends = [(t.status, t.message, f["label"]) for f, group in groups for t in group]
        for status, message, label in ends:
            if status in BROKEN:
                return status, f"{label}: {message}"
        if diverged := [(message, label) for status, message, label in ends if status == "diverged"]:
            message, label = diverged[0]
            more = f" ({len(diverged)} of {len(ends)} runs.)" if len(ends) > 1 else ""
            return ("diverged" if len(diverged) == len(ends) else "done"), f"{label} diverged. {message}{more}"
        return "done", ""

    def _quit(self) -> None:
        for trainer in self._all():
            with suppress(OSError):
                trainer.stop()
        self.trainers = []

    # ---------------------------------------------------------------- what the widgets are told

    def _array(self, first: int = 0) -> np.ndarray:
        return np.asarray(self.rows[first:], np.float32).reshape(-1, 1 + 3 * len(self.arms))

    def _say(self, status: str, message: str, **traits: Any) -> None:
        self.status = status
        if not self._watched:
            return
        primary, can = OFFERS[status]
        if status not in BUSY:
            traits["moment"] = f"{status} {self.run_id} {self.step}"
        self.panel.say(status=status, message=message + self.unsaved, primary=primary, can=list(can), **traits)

    def _in_line(self, place: int) -> None:
        self._say("waiting", f"Others are training on this machine. You are number {place} in line.")

    def _ended(self) -> list[list[Any]]:
        """Arm, step and name of what diverged."""
        groups = enumerate(zip(self.faces, self.trainers, strict=False))
        diverged = [(a, f["label"], t) for a, (f, group) in groups for t in group if t.status == "diverged"]
        return [[a, t.step, f"{label}, seed {t.config.seed}"] for a, label, t in diverged]

    def _settle(self, status: str, message: str) -> None:
        """Everything a fresh view needs, after the last step before a rest or an end."""
        where = f"At step {self.step} of {self.steps}."
        changed = self.successor is not None and self.successor.arms != self.arms
        words = {
            "paused": f"{where} Step takes one step of each model.",
            "saved": f"{where} This run was here before the page was loaded anew. Resume goes on, Reset begins anew.",
            "stopped": f"{where} Resume goes on from here.",
            "done": f"All {self.steps} steps taken." + " Train again takes the settings of this page." * changed,
        }
        with self.hold():
            if self._sent < len(self.rows):
                self._draw_curves()
            start = time.perf_counter()
            kept = {"rows": self._array(), "validation": list(self.validation), "ended": self._ended()}
            kept["finding"] = self.finding()
            if status in BROKEN:
                self._quit()
            self._draw_maps(keep=True)
            self._say(status, message or words.get(status, ""), **(kept if self.rows else {}))
            self._curves.count(start)

    def finding(self) -> str:
        """The curves in a sentence: validation loss of each model, and the differences to the first, seed by seed."""
        last: list[dict[int, tuple[int, float]]] = []  # of each model: seed -> step and validation loss
        for group in self.trainers:
            records = [(t.config.seed, r) for t in group if t.status != "diverged" for r in t.records]
            last.append({seed: (r.step, r.val_loss) for seed, r in records if r.val_loss is not None})
        if not last or not all(last):
            return ""
        parts = []
        for f, found in zip(self.faces, last, strict=True):
            text = f"{f['label']} {np.mean([loss for _, loss in found.values()]):.3f}"
            pairs = [found[seed][1] - last[0][seed][1] for seed in found if seed in last[0]]
            if found is not last[0] and pairs:
                spread = f", from {min(pairs):+.3f} to {max(pairs):+.3f}" if len(pairs) > 1 else ""
                text += f" ({np.mean(pairs):+.3f}{spread})"
            parts.append(text)
        step = min(step for found in last for step, _ in found.values())
        one = "One seed: a difference below about 0.05 can be chance."
        seeds = one if self.seeds == 1 else f"{self.seeds} seeds, paired."
        unit = self.trainers[0][0].task.unit
        return f"Validation loss after {step} steps, {unit}: {'; '.join(parts)}. " + (seeds if len(last) > 1 else "")

    def _draw_curves(self) -> None:
        start = time.perf_counter()
        if self._watched:
            left = self._seconds_a_round * (self.steps - self.step)
            self.panel.tick(
                self._array(self._sent), self.validation[self._sent_validation :],
                epoch=self.panel.epoch, ended=self._ended(), step=self.step, left=left,
                rate=1 / self._seconds_a_round if self._seconds_a_round else 0,
            )  # fmt: skip
        self._sent, self._sent_validation = len(self.rows), len(self.validation)
        self._curves.count(start)

    def _chosen(self) -> None:
        with self.hold():
            if self.trainers:
                self._draw_maps(keep=self.status != "running")

    def _draw_maps(self, keep: bool = False) -> None:
        if self.grid is None or not self.trainers or not self._watched:
            return
        start = time.perf_counter()
        trainers = [self.trainers[i][0] for i in self.grid.shown()]
        try:
            x, tokens = self._probe_input(trainers[0], self.probe)
        except ValueError as problem:
            self.grid.note = str(problem)
            return
        self.grid.show(
            [torch.cat(t.maps(x)).float().cpu().numpy() for t in trainers],  # L of (1, H, T, T) -> (L, H, T, T)
            tokens, causal=trainers[0].model.config.causal, symmetry=[head_symmetry(t.model) for t in trainers],
            step=self.step, keep=keep,
        )  # fmt: skip
        self._maps.count(start)

    @staticmethod
    def _probe_input(trainer: Trainer, text: str | None) -> tuple[Tensor, list[str]]:
        task: Any = trainer.task
        if task.kind == "text":
            ids = task.encode(text or "To be, or not to be")[: trainer.config.model.context]
            if not ids:
                raise ValueError("the text is empty: give at least one character")
            return torch.tensor([ids]), [task.token_label(i) for i in ids]
        x, _ = task.validation(trainer.config.model.context, 1)
        if task.kind == "lists":
            return x[:1], [str(v) for v in x[0].tolist()]
        side = task.image // trainer.model.patch
        cls = ["CLS"] if trainer.config.pool == "cls" else []
        return x[:1], cls + [f"row {i + 1}, column {j + 1}" for i in range(side) for j in range(side)]
