"""The shipped experiments: what each one trains, how it is tuned, and how it is written down.

`qkvlab reproduce NAME` repeats one; with `--write` it makes the record that lies in data/runs/NAME. Every run is kept
in a work folder as it goes, so an interrupted experiment goes on where it stopped.
"""

import json
import math
import platform
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F

from qkvlab import __version__
from qkvlab.models.transformer import count_parameters
from qkvlab.training import checkpoint as disk
from qkvlab.training.recipes import parse_arm, recipe
from qkvlab.training.shipped import shipped
from qkvlab.training.trainer import RunConfig, Trainer

CURVE = 25  # steps whose training losses make one point of a shipped curve
QUICK = 100  # steps that `--quick` repeats


@dataclass(frozen=True)
class Experiment:
    """Arms trained with one recipe on one text, each with its own tuned learning rate, on the same paired seeds.

    Tuning, on a seed that is not reported and in annealed runs: first the logit scale at the first learning rate, in
    runs of `scale_steps`, then the learning rate at the best scale, in runs of full length, because shorter ones prefer
    a higher rate. Each is a ladder of factor 2 that goes on while its end is the best. An arm that names another in
    `arms` takes that arm's scale and tunes its learning rate alone. With `tuned_by` nothing is tuned: rates and
    scales are those that the shipped experiment of that name chose, so that new seeds confirm or refute it.
    """

    name: str
    question: str
    recipe: str
    arms: dict[str, str]  # arm -> the arm whose logit scale it takes, or ""; the first arm is the reference
    settings: dict[str, Any]
    seeds: tuple[int, ...]
    tuning_seed: int
    scale_steps: int
    lrs: tuple[float, ...]  # the first is where the scale is tuned
    scales: tuple[float, ...]
    weights: tuple[str, ...]  # arms whose weights, of the first seed, are shipped
    band: float  # nats within which a repeated run agrees
    tuned_by: str = ""

    @property
    def reference(self) -> str:
        return next(iter(self.arms))


WITHOUT_QUERIES = Experiment(
    name="without-queries",
    question="Does a small GPT need W_Q? The four arms of paper A on Shakespeare.",
    recipe="paper",
    arms={"qkv": "", "identity-q": "", "identity-q:mlp=4.5": "identity-q", "qkv:mlp=3.5": "qkv"},
    settings={
        "task": "shakespeare",
        "steps": 1500,
        "batch": 8,
        "eval_every": 125,
        "eval_rows": 128,
        "device": "cpu",
    },
    seeds=(1, 2, 3, 4, 5),
    tuning_seed=0,
    scale_steps=500,
    lrs=(2e-3, 1e-3),
    scales=(0.5, 1.0, 2.0, 4.0),  # paper A halves it: the lab shows what that does at this width
    weights=("qkv", "identity-q"),
    band=0.03,
)
EXPERIMENTS = {
    e.name: e
    for e in (
        WITHOUT_QUERIES,
        replace(  # its tuning was changed after some of its seeds had been seen: new seeds, nothing left to choose
            WITHOUT_QUERIES,
            name="without-queries-fresh",
            question="The four arms once more on eight new seeds, with everything fixed beforehand.",
            seeds=(11, 12, 13, 14, 15, 16, 17, 18),
            weights=(),
            tuned_by="without-queries",
        ),
    )
}


def config(experiment: Experiment, arm: str, seed: int, lr: float, logit_scale: float) -> RunConfig:
    """The run of one arm and seed."""
    slug, overrides = parse_arm(arm)
    settings = {**experiment.settings, **overrides, "seed": seed, "lr": lr, "logit_scale": logit_scale}
    return recipe(experiment.recipe, slug, **settings)


def train(experiment: Experiment, arm: str, seed: int, lr: float, logit_scale: float, folder: Path) -> dict[str, Any]:
    """Train one run to its end, or read the result of one that has ended: its losses as plain JSON.

    `val_loss` is over the whole validation part and None where the run diverged; the points of `curve` are on the
    trainer's smaller fixed sample.
    """
    steps = experiment.settings["steps"]
    run = folder / f"{arm}-lr{lr:g}-scale{logit_scale:g}-steps{steps}-seed{seed}".replace(":", "_").replace("=", "")
    if (run / "result.json").exists():
        return disk.read_json(run / "result.json")
    trainer = Trainer(config(experiment, arm, seed, lr, logit_scale), run)
    for _ in trainer:
        pass
    if trainer.status not in ("done", "diverged"):
        raise RuntimeError(trainer.message)
    done, records = trainer.status == "done", trainer.records
    points = [r for r in records if r.val_loss is not None]
    result = {
        "arm": arm, "seed": seed, "lr": lr, "logit_scale": logit_scale, "status": trainer.status,
        "parameters": trainer.parameters, "seconds": round(trainer.seconds, 2),
        "val_loss": round(whole_validation(trainer), 5) if done else None,
        "curve": {
            "train_step": [r.step for r in records[CURVE - 1 :: CURVE]],
            "train_loss": [
                round(statistics.fmean(r.loss for r in records[i : i + CURVE]), 4)
                for i in range(0, len(records) - CURVE + 1, CURVE)
            ],
            "val_step": [r.step for r in points],
            "val_loss": [round(r.val_loss, 4) for r in points if r.val_loss is not None],
        },
    }  # fmt: skip
    if done and arm in experiment.weights and seed == experiment.seeds[0]:
        half = {name: t.half().contiguous() for name, t in trainer.model.state_dict().items()}
        safetensors.torch.save_file(half, run / "weights.safetensors")
    disk.write_json(run / "result.json", result)
    (run / disk.CHECKPOINT).unlink(missing_ok=True)
    return result


@torch.no_grad()
def whole_validation(trainer: Trainer) -> float:
    """Mean loss over every window of the validation part."""
    x, y = trainer.task.validation(trainer.config.model.context, 10**9)
    trainer.model.eval()
    total = sum(
        F.cross_entropy(trainer.model(a).flatten(0, 1), b.flatten(), reduction="sum").item()
        for a, b in zip(x.split(64), y.split(64), strict=True)
    )
    trainer.model.train()
    return total / y.numel()


def ladder(values: tuple[float, ...], loss: Callable[[float], float | None], more: int = 2) -> float:
    """The value of least loss on a ladder of factor 2; it goes on, `more` times at most, while its end is the best."""
    losses = {v: loss(v) for v in values}
    best = lambda: min(losses, key=lambda v: math.inf if losses[v] is None else losses[v])  # type: ignore[arg-type, return-value]
    for _ in range(more):
        at = best()
        beyond = at * 2 if at == max(losses) else at / 2 if at == min(losses) else None
        if beyond is None:
            break
        losses[beyond] = loss(beyond)
    return best()


def tune(experiment: Experiment, folder: Path, say: Callable[[dict], None]) -> tuple[dict, list[dict]]:
    """{arm: {"lr", "logit_scale"}} and every trial made to find it."""
    if experiment.tuned_by:
        return shipped(experiment.tuned_by).chosen, []
    trials: list[dict[str, Any]] = []
    chosen: dict[str, dict[str, float]] = {}
    shorter = replace(experiment, settings=experiment.settings | {"steps": experiment.scale_steps})

    def trial(stage: Experiment, arm: str, lr: float, scale: float) -> float | None:
        result = train(stage, arm, stage.tuning_seed, lr, scale, folder)
        row = {key: result[key] for key in ("arm", "seed", "lr", "logit_scale", "val_loss", "status")}
        trials.append(row | {"steps": stage.settings["steps"]})
        say(trials[-1])
        return result["val_loss"]

    for arm, like in experiment.arms.items():
        if like:
            scale = chosen[like]["logit_scale"]
        else:
            scale = ladder(experiment.scales, partial(trial, shorter, arm, experiment.lrs[0]))
        lr = ladder(experiment.lrs, lambda v, arm=arm, scale=scale: trial(experiment, arm, v, scale))  # type: ignore[misc]
        chosen[arm] = {"lr": lr, "logit_scale": scale}
    return chosen, trials


def write(experiment: Experiment, folder: Path, out: Path, say: Callable[[dict], None]) -> Path:
    """Tune, train every arm on every seed, and write the shipped record to `out`/NAME. Resumes from `folder`.

    The record is there, with the seeds so far, whenever a seed is through all arms.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = out / experiment.name
    target.mkdir(parents=True, exist_ok=True)
    provenance = _once(folder / "provenance.json", lambda: _provenance(experiment))
    chosen, trials = tune(experiment, folder, say)
    record = {
        "name": experiment.name,
        "question": experiment.question,
        "provenance": provenance,
        "experiment": asdict(experiment),
        "tuning": trials,
        "chosen": chosen,
        "cost": _once(folder / "cost.json", lambda: cost(experiment, chosen)),
        "configs": {arm: config(experiment, arm, 0, **chosen[arm]).as_dict() for arm in experiment.arms},
    }
    runs: list[dict[str, Any]] = []
    for seed in experiment.seeds:
        for arm in experiment.arms:
            runs.append(train(experiment, arm, seed, **chosen[arm], folder=folder))  # type: ignore[arg-type]
            say({key: value for key, value in runs[-1].items() if key != "curve"})
        for source in folder.glob("*/weights.safetensors"):
            arm = disk.read_json(source.parent / "result.json")["arm"]
            disk.write_atomic(target / f"{arm.replace(':', '_')}.safetensors", source.read_bytes())
        line = json.dumps(record | {"runs": runs}, separators=(",", ":"))
        disk.write_atomic(target / "record.json", f"{line}\n".encode())
    return target


def cost(experiment: Experiment, chosen: dict, rounds: int = 30, steps: int = 5) -> dict[str, dict[str, float]]:
    """For each arm the median milliseconds of a step and the bytes of optimiser state, arms measured in turn."""
    endless = lambda run: replace(run, steps=10**6, eval_every=10**6)
    trainers = {arm: Trainer(endless(config(experiment, arm, 0, **chosen[arm]))) for arm in experiment.arms}
    for trainer in trainers.values():
        for _ in range(steps):
            next(trainer)
    taken: dict[str, list[float]] = {arm: [] for arm in trainers}
    for _ in range(rounds):
        for arm, trainer in trainers.items():
            before = trainer.seconds
            for _ in range(steps):
                next(trainer)
            taken[arm].append((trainer.seconds - before) / steps * 1000)
    return {
        arm: {
            "step_ms": round(statistics.median(taken[arm]), 2),
            "step_ms_best": round(min(taken[arm]), 2),
            "optimiser_bytes": sum(t.nbytes for t in trainer.optimiser.state_dict().values()),
            "parameters": trainer.parameters,
            "all_parameters": count_parameters(trainer.model, embeddings=True),
        }
        for arm, trainer in trainers.items()
    }


def check(experiment: Experiment, shipped: dict, folder: Path, quick: bool, say: Callable[[dict], None]) -> list[dict]:
    """Repeat the shipped runs, or with `quick` the first QUICK steps of each arm's first seed, and compare.

    A row for each run: what was shipped, what came out, whether they are within the band. Raises RuntimeError with a
    readable sentence when a run cannot end.
    """
    rows = []
    for run in shipped["runs"]:
        arm, seed = run["arm"], run["seed"]
        if quick and seed != experiment.seeds[0]:
            continue
        if quick:
            trainer = Trainer(config(experiment, arm, seed, run["lr"], run["logit_scale"]))
            losses = [next(trainer).loss for _ in range(QUICK)]
            what = f"training loss, steps {QUICK - CURVE + 1}-{QUICK}"
            theirs = run["curve"]["train_loss"][QUICK // CURVE - 1]
            ours = statistics.fmean(losses[-CURVE:])
        else:
            again = train(experiment, arm, seed, run["lr"], run["logit_scale"], folder)
            what, theirs, ours = "validation loss", run["val_loss"], again["val_loss"]
        same = theirs is ours if None in (theirs, ours) else abs(theirs - ours) <= experiment.band
        rows.append({"arm": arm, "seed": seed, "what": what, "shipped": theirs, "again": ours, "agrees": same})
        say(rows[-1])
    return rows


def _once(path: Path, make: Callable[[], dict]) -> dict[str, Any]:
    """What `make` made the first time: a resumed experiment keeps telling when and by what code it began."""
    if not path.exists():
        disk.write_json(path, make())
    return disk.read_json(path)


def _provenance(experiment: Experiment) -> dict[str, Any]:
    return {
        "command": f"qkvlab reproduce {experiment.name} --write data/runs",
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{_processor()}, {torch.get_num_threads()} thread(s), {platform.system()}",
        "versions": {"qkvlab": __version__, "python": platform.python_version(), "torch": torch.__version__},
    }


def _commit() -> str:
    try:
        head = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
