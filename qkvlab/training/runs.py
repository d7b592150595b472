"""Runs on disk, and what several of them say together.

`<runs dir>/<run id>/` holds one run (checkpoint.py says which files). The id is made from the settings, so the same
settings lead to the same folder: asking for a run again takes it up, or finds it done.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkvlab.tasks.sources import user_dir
from qkvlab.training import checkpoint as disk
from qkvlab.training.checkpoint import Record, RunError
from qkvlab.training.trainer import RunConfig

__all__ = ["Arm", "Run", "RunError", "delete_run", "labels", "list_runs", "load_run", "run_id", "runs_dir", "summary"]


def runs_dir(out: str | Path | None = None) -> Path:
    """Where runs are kept: `out`, else $QKVLAB_RUNS, else this user's data folder. Raises RunError without a home."""
    given = out or os.environ.get("QKVLAB_RUNS")
    folder = user_dir("~/Library/Application Support", "XDG_DATA_HOME", "~/.local/share") / "runs"
    folder = Path(os.path.expanduser(given)) if given else folder
    if folder.parts[:1] and folder.parts[0].startswith("~"):
        raise RunError(f"no home folder is known for {out or '~'}: name a folder by --out or $QKVLAB_RUNS")
    return folder


def run_id(config: RunConfig) -> str:
    """A folder name that equal settings share: task, variant, seed, and a hash of what is not a default."""
    plain = RunConfig().settings()
    special = {name: value for name, value in config.settings().items() if value != plain[name]}
    digest = hashlib.sha256(json.dumps(special, sort_keys=True).encode()).hexdigest()[:8]
    return f"{config.task}-{config.model.variant}-s{config.seed}-{digest}"


@dataclass(frozen=True)
class Run:
    """One run as it lies on disk. `made`: date, versions, device, unit, and parameters (without embeddings)."""

    folder: Path
    config: RunConfig
    records: list[Record]
    status: str  # the trainer's, or "unfinished": it is running, or was killed
    message: str
    made: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def val_loss(self) -> float | None:
        """The last validation loss; None before the first."""
        return next((r.val_loss for r in reversed(self.records) if r.val_loss is not None), None)

    @property
    def val_accuracy(self) -> float | None:
        return next((r.val_accuracy for r in reversed(self.records) if r.val_accuracy is not None), None)

    @property
    def seconds(self) -> float:
        return self.records[-1].seconds if self.records else 0.0


def load_run(folder: str | Path) -> Run:
    """Raises RunError when there is no run in the folder or its files are damaged. Weights are not read."""
    folder = Path(folder)
    if not (folder / disk.CONFIG).is_file():
        raise RunError(f"{folder} holds no run ({disk.CONFIG} is not there)")
    values, made = disk.read_config(folder / disk.CONFIG)
    try:
        config = RunConfig.from_dict(values)
    except ValueError as error:
        raise RunError(f"{folder / disk.CONFIG}: {error}") from None
    records = disk.read_records(folder / disk.RECORDS)
    status, message = "unfinished", f"Unfinished at step {len(records)} of {config.steps}."
    if len(records) == config.steps:
        status, message = "done", f"Done: {config.steps} steps."
    with contextlib.suppress(RunError, LookupError, TypeError):  # a note on the end: without it the run is still whole
        end = disk.read_json(folder / disk.STATUS)
        status, message = str(end["status"]), str(end["message"])
    return Run(folder, config, records, status, message, made)


def list_runs(root: str | Path | None = None, problems: list[str] | None = None) -> list[Run]:
    """The runs in a folder (default: `runs_dir()`), oldest first. Damaged ones are left out and named in `problems`."""
    runs = []
    for config in runs_dir(root).glob(f"*/{disk.CONFIG}"):
        try:
            runs.append((config.stat().st_mtime, config, load_run(config.parent)))
        except FileNotFoundError:  # deleted at this moment
            pass
        except (RunError, OSError) as error:
            if problems is not None:
                problems.append(str(error))
    return [run for *_, run in sorted(runs, key=lambda r: r[:2])]


def delete_run(folder: str | Path) -> None:
    """Delete a run's files, and the folder unless it holds others. Raises RunError where there is no run."""
    folder = Path(folder)
    if not (folder / disk.CONFIG).is_file():
        raise RunError(f"{folder} holds no run ({disk.CONFIG} is not there): nothing was deleted")
    if not (folder / disk.RECORDS).exists():  # other programs have a config.json too
        disk.read_config(folder / disk.CONFIG)
    files = (disk.CHECKPOINT, disk.RECORDS, disk.STATUS, disk.CONFIG)
    for path in (*folder.glob(".*.tmp"), *(folder / name for name in files)):
        path.unlink(missing_ok=True)  # config.json last: a half deleted run can be deleted again
    if not any(folder.iterdir()):
        folder.rmdir()


def labels(runs: Sequence[Run]) -> list[str]:
    """A short name for each run's arm: the variant, and the settings (but the seed) in which its runs differ."""
    names = []
    for run in runs:
        same = [r.config.settings() for r in runs if r.config.model.variant == run.config.model.variant]
        differ = [f"{k}={v}" for k, v in run.config.settings().items() if k != "seed" and any(s[k] != v for s in same)]
        names.append(":".join([run.config.model.variant, *differ]))
    return names


@dataclass(frozen=True)
class Arm:
    """The runs of one arm over seeds. Losses are the last validation losses of the runs that are done."""

    label: str
    seeds: int  # runs that are done
    failed: int  # runs that are not
    mean: float | None
    spread: float | None  # standard deviation over seeds; None below two
    difference: float | None  # mean over common seeds of this arm minus the first
    interval: float | None  # difference +- interval covers the true one with 95 %, by Student's t; None below two seeds
    accuracy: float | None  # mean, where outputs are classes
    parameters: int | None  # without embeddings
    seconds: float | None  # mean time of training
    unit: str


def summary(runs: Sequence[Run], names: Sequence[str] | None = None) -> list[Arm]:
    """One row an arm, in order of appearance; the first is what the others are compared with, seed by seed.

    `names` gives each run's arm; without it, runs are of one arm when only their seeds differ.
    """
    groups: dict[str, list[Run]] = {}
    for run, name in zip(runs, names or labels(runs), strict=True):
        groups.setdefault(name, []).append(run)
    arms = []
    reference: dict[int, float] | None = None
    for name, group in groups.items():
        done = [run for run in group if run.status == "done" and run.val_loss is not None]
        loss = {run.config.seed: run.val_loss for run in done if run.val_loss is not None}
        difference = interval = None
        if reference is None:
            reference = loss
        elif common := [loss[seed] - reference[seed] for seed in loss if seed in reference]:
            difference = statistics.fmean(common)
            if len(common) > 1:
                interval = t_quantile(len(common) - 1) * statistics.stdev(common) / math.sqrt(len(common))
        accuracies = [run.val_accuracy for run in done if run.val_accuracy is not None]
        arms.append(
            Arm(
                label=name,
                seeds=len(done),
                failed=len(group) - len(done),
                mean=statistics.fmean(loss.values()) if loss else None,
                spread=statistics.stdev(loss.values()) if len(loss) > 1 else None,
                difference=difference,
                interval=interval,
                accuracy=statistics.fmean(accuracies) if accuracies else None,
                parameters=group[0].made.get("parameters"),
                seconds=statistics.fmean(run.seconds for run in done) if done else None,
                unit=group[0].made.get("unit", "nats"),
            )
        )
    return arms


@functools.cache
def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: where the area under its density, from 0 on, reaches 0.475."""
    t = np.linspace(0, 13, 2**17)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    density = np.exp(log_scale - (freedom + 1) / 2 * np.log1p(t * t / freedom))
    area = np.cumsum(density[1:] + density[:-1]) / 2 * t[1]
    return float(np.interp(0.475, area, t[1:]))
