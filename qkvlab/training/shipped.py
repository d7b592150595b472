"""The runs that come with qkvlab: `shipped("without-queries")` reads what `qkvlab reproduce` has written.

A record holds the curves of every run, the tuning that came before, what a step costs, and who made it when with what.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch.nn as nn

from qkvlab import tasks
from qkvlab.tasks.sources import DataError, data_dir
from qkvlab.training.checkpoint import Record
from qkvlab.training.runs import Arm, Run, summary
from qkvlab.training.trainer import RunConfig, build_model


def shipped_names() -> list[str]:
    """The names `shipped` knows."""
    return sorted(path.parent.name for path in (data_dir() / "runs").glob("*/record.json"))


@functools.lru_cache(maxsize=8)
def shipped(name: str) -> "ShippedRun":
    """The shipped experiment of that name. Raises ValueError naming those there are, DataError for a damaged file."""
    path = data_dir() / "runs" / name / "record.json"
    if name not in shipped_names():
        raise ValueError(f"no shipped run is called {name!r}: there are {', '.join(shipped_names()) or 'none'}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if absent := {"question", "provenance", "configs", "runs", "tuning", "chosen", "cost"}.difference(record):
            raise ValueError(f"it has no {', '.join(sorted(absent))}")
        return ShippedRun(name, record, path.parent)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}): restore it with `git checkout data/runs/{name}`") from None


@dataclass(frozen=True)
class ShippedRun:
    """One experiment. `record` is the JSON as written; the rest reads it. The first arm is the reference."""

    name: str
    record: dict[str, Any]
    folder: Path

    @property
    def question(self) -> str:
        return self.record["question"]

    @property
    def provenance(self) -> dict[str, Any]:
        """command, commit, date, machine, versions (of qkvlab, python, torch), seeds."""
        return self.record["provenance"] | {"seeds": self.seeds}

    @property
    def arms(self) -> tuple[str, ...]:
        """As on the command line: "qkv", "identity-q", "identity-q:mlp=4.5", ..."""
        return tuple(self.record["configs"])

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(run["seed"] for run in self.record["runs"]))

    @property
    def tuning(self) -> list[dict[str, Any]]:
        """Every trial made to tune: arm, seed, lr, logit_scale, val_loss (None: diverged), status."""
        return self.record["tuning"]

    @property
    def chosen(self) -> dict[str, dict[str, float]]:
        """What tuning chose for each arm: {"lr", "logit_scale"}."""
        return self.record["chosen"]

    @property
    def cost(self) -> dict[str, dict[str, float]]:
        """For each arm step_ms (median), step_ms_best, optimiser_bytes, parameters (no embeddings), all_parameters."""
        return self.record["cost"]

    def config(self, arm: str, seed: int | None = None) -> RunConfig:
        """The settings of a run; those of the first seed unless another is named."""
        values = self.record["configs"][self._known(arm)]
        return RunConfig.from_dict(values | {"seed": self.seeds[0] if seed is None else seed})

    def curve(self, arm: str, kind: str = "val") -> tuple[np.ndarray, np.ndarray]:
        """Steps (n,) and losses (seeds, n). "val": on a fixed sample of validation rows; "train": means of 25 steps.

        A run that diverged is NaN from there on.
        """
        curves = [run["curve"] for run in self._runs(arm)]
        steps = max((curve[f"{kind}_step"] for curve in curves), key=len)
        losses = np.full((len(curves), len(steps)), np.nan)
        for row, curve in zip(losses, curves, strict=True):
            row[: len(curve[f"{kind}_loss"])] = curve[f"{kind}_loss"]
        return np.array(steps), losses

    def final(self, arm: str) -> np.ndarray:
        """Loss over the whole validation part after the last step, one for each seed; NaN for a run that diverged."""
        return np.array([np.nan if run["val_loss"] is None else run["val_loss"] for run in self._runs(arm)])

    def table(self) -> list[Arm]:
        """A row for each arm: mean, spread, and the paired difference from the first arm with its 95 % interval."""
        runs, names = [], []
        for arm in self.arms:
            for run in self._runs(arm):
                loss = run["val_loss"]
                end = Record(self.config(arm).steps, loss or 0.0, run["lr"], 0.0, run["seconds"], loss)
                made = {"parameters": run["parameters"], "unit": tasks.load(self.config(arm).task).unit}
                runs.append(Run(self.folder, self.config(arm, run["seed"]), [end], run["status"], "", made))
                names.append(arm)
        return summary(runs, names)

    def model(self, arm: str) -> nn.Module:
        """The trained model of the first seed, in evaluation mode (weights rounded to float16 when they were shipped).

        Raises ValueError for an arm whose weights are not shipped.
        """
        path = self.folder / f"{self._known(arm).replace(':', '_')}.safetensors"
        if not path.is_file():
            there = sorted(p.stem for p in self.folder.glob("*.safetensors"))
            raise ValueError(f"{self.name} ships no weights of {arm!r}: there are {', '.join(there) or 'none'}")
        config = self.config(arm)
        model = build_model(config, tasks.load(config.task, tokens=config.tokens))
        model.load_state_dict({k: t.float() for k, t in safetensors.torch.load_file(path).items()})
        return model.eval()

    def _known(self, arm: str) -> str:
        if arm not in self.arms:
            raise ValueError(f"{self.name} has no arm {arm!r}: there are {', '.join(self.arms)}")
        return arm

    def _runs(self, arm: str) -> list[dict[str, Any]]:
        return [run for run in self.record["runs"] if run["arm"] == self._known(arm)]
