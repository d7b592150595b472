"""`python -m bench.text --peer DIR`: nanoGPT's CPU recipe against ours on tiny Shakespeare.

DIR is a checkout of github.com/karpathy/nanoGPT; its own train.py runs unchanged. Two questions, one table:

1. Milliseconds of an iteration of the same shape with the same optimiser. Target: ours at most 1.05 of the peer's.
2. Training seconds until `fast`, at equal parameters, reaches the loss the peer ends with. Target: at most a third.

Both are scored on the same first 50,000 characters of the validation part, in windows of 64; time spent on evaluation
is excluded on both sides. The clock decides; CPU time stands beside it, because on a busy machine the clock counts the
others' work too. `qkvlab data get tinyshakespeare` fetches the text.
"""

import argparse
import json
import os
import pickle
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.harness import interleave, machine, median_ratio, table, worker
from qkvlab.tasks import text
from qkvlab.training.recipes import recipe
from qkvlab.training.trainer import Trainer

SCORED = 50_000  # validation characters
CONTEXT = 64
SHAPE = {"layers": 4, "heads": 4, "width": 128, "context": CONTEXT}
RECIPE = [  # nanoGPT's README, "I only have a macbook", without its evaluations
    "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1",
    "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128", "--max_iters={n}",
    "--lr_decay_iters={n}", "--dropout=0.0", "--eval_interval={n}",
]  # fmt: skip


def corpus() -> tuple[str, str]:
    """Training and validation text; raises DataError when tiny Shakespeare is not on this machine."""
    return text.split("tinyshakespeare", text.read("tinyshakespeare"))


@torch.no_grad()
def score(logits: Callable[[Tensor], Tensor], ids: list[int]) -> float:
    """Mean cross-entropy of characters 1 ... SCORED given those before them in their window of CONTEXT."""
    x, y = torch.tensor(ids[:SCORED]), torch.tensor(ids[1 : SCORED + 1])
    windows = [(a[None], b) for a, b in zip(x.split(CONTEXT), y.split(CONTEXT), strict=True)]
    whole = [w for w in windows if w[0].shape[1] == CONTEXT]
    total = 0.0
    for i in range(0, len(whole), 64):
        a, b = torch.cat([w[0] for w in whole[i : i + 64]]), torch.cat([w[1] for w in whole[i : i + 64]])
        total += F.cross_entropy(logits(a).flatten(0, 1), b, reduction="sum").item()
    for a, b in windows[len(whole) :]:
        total += F.cross_entropy(logits(a).flatten(0, 1), b, reduction="sum").item()
    return total / SCORED


# Workers: each runs in its own process and prints JSON


def run_peer(peer: Path, iterations: int, seed: int) -> dict[str, Any]:
    """The peer's train.py as its README runs it, a seed added to the one it sets, timed at its own clock calls."""
    train, valid = corpus()
    alphabet = sorted(set(train + valid))
    code = {c: i for i, c in enumerate(alphabet)}
    marks: list[
        tuple[float, float]
    ] = []  # wall and CPU, at each time.time() of train.py: one before the loop, one an iteration
    wall, seeded = time.time, torch.manual_seed

    def clock() -> float:
        if sys._getframe(1).f_globals.get("__file__", "").endswith("train.py"):
            marks.append((wall(), time.process_time()))
        return wall()

    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("train", train), ("val", valid)):
            np.array([code[c] for c in part], dtype=np.uint16).tofile(Path(folder) / f"{name}.bin")
        (Path(folder) / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(alphabet)}))
        arguments = [a.format(n=iterations) for a in RECIPE]
        sys.argv = ["train.py", *arguments, f"--dataset={folder}", f"--out_dir={folder}"]
        sys.path.insert(0, str(peer))
        time.time, torch.manual_seed = clock, lambda value: seeded(value + seed)
        try:
            runpy.run_path("train.py", run_name="__main__")
        finally:
            time.time, torch.manual_seed = wall, seeded
        kept = torch.load(Path(folder) / "ckpt.pt", weights_only=False)
    from model import GPT, GPTConfig  # type: ignore[import-not-found]  # the peer's

    model = GPT(GPTConfig(**kept["model_args"]))
    model.load_state_dict(kept["model"])
    model.eval()
    # train.py evaluates before its first and before its last iteration: those two are left out
    taken = np.diff(np.array(marks), axis=0)[1:iterations]  # (iterations - 1, 2)
    total = taken.sum(0) * iterations / len(taken)
    return {
        "loss": score(lambda x: model(x, x)[0], [code[c] for c in valid]),
        "seconds": total[0],
        "cpu_seconds": total[1],
        "ms": statistics.median(taken[10:, 0]) * 1e3,
        "cpu_ms": statistics.median(taken[10:, 1]) * 1e3,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def run_same(iterations: int, seed: int) -> dict[str, Any]:
    """Our trainer on the peer's shape with the peer's optimiser."""
    settings = {"batch": 12, "lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1, "warmup": 100, "clip": 1.0}
    never = {"eval_every": 10**9, "device": "cpu"}
    trainer = Trainer(recipe("paper", task="tinyshakespeare", steps=2000, seed=seed, **SHAPE, **settings, **never))
    taken = []
    for _ in range(iterations):
        wall, cpu = time.perf_counter(), time.process_time()
        next(trainer)
        taken.append((time.perf_counter() - wall, time.process_time() - cpu))
    wall, cpu = (statistics.median(side) * 1e3 for side in zip(*taken[10:], strict=True))
    return {"ms": wall, "cpu_ms": cpu, "parameters": _parameters(trainer)}


def run_fast(seed: int, settings: str) -> dict[str, Any]:
    """`fast` to its end: in its second half the scored loss every tenth step, and the training time until then."""
    config = recipe(
        "fast", task="tinyshakespeare", seed=seed, eval_every=10**9, device="cpu", **SHAPE, **json.loads(settings)
    )
    trainer = Trainer(config)
    ids = trainer.task.encode(corpus()[1])  # type: ignore[attr-defined]
    points, cpu = [], 0.0
    for _ in range(config.steps):
        before = time.process_time()
        next(trainer)
        cpu += time.process_time() - before
        if trainer.step > config.steps / 2 and (trainer.step % 10 == 0 or trainer.step == config.steps):
            trainer.model.eval()
            points.append((trainer.step, score(trainer.model, ids), trainer.seconds, cpu))
            trainer.model.train()
    return {"points": points, "parameters": _parameters(trainer)}


def _parameters(trainer: Trainer) -> int:
    return sum(p.numel() for p in trainer.model.parameters())


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.text", description="nanoGPT's CPU recipe against ours on tiny Shakespeare."
    )
    parser.add_argument("--peer", required=True, type=Path, metavar="DIR", help="a checkout of nanoGPT")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=2000, help="of the peer's recipe")
    parser.add_argument("--fast", default='{"steps": 190}', metavar="JSON", help="settings of `fast`")
    options = parser.parse_args()
    peer = options.peer.resolve()
    if not (peer / "train.py").is_file():
        parser.error(f"{peer} holds no train.py: git clone https://github.com/karpathy/nanoGPT")
    corpus()

    me = "bench.text"
    steps = interleave(
        {
            "peer, 120 iterations": lambda i: worker(me, "peer", peer, 120, i),
            "ours, 120 iterations": lambda i: worker(me, "same", 120, i),
        },
        options.seeds + 2,
    )
    runs = interleave(
        {
            "peer, whole run": lambda i: worker(me, "peer", peer, options.iterations, i),
            "ours, fast": lambda i: worker(me, "fast", i, options.fast),
        },
        options.seeds,
    )
    theirs, ours = runs.values()

    rows = [["seed", "peer's loss", "peer s", "ours: reached at", "loss", "s", "wall ratio", "CPU ratio", "final loss"]]
    walls, cpus = [], []
    for seed, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        hit = next((p for p in b["points"] if p[1] <= a["loss"]), None)
        walls.append(hit[2] / a["seconds"] if hit else float("inf"))
        cpus.append(hit[3] / a["cpu_seconds"] if hit else float("inf"))
        reached = [f"step {hit[0]}", f"{hit[1]:.4f}", f"{hit[2]:.1f}"] if hit else ["not reached", "", ""]
        ends = [f"{walls[-1]:.3f}", f"{cpus[-1]:.3f}", f"{b['points'][-1][1]:.4f}"]
        rows.append([str(seed), f"{a['loss']:.4f}", f"{a['seconds']:.1f}", *reached, *ends])
    sizes = ours[0]["parameters"] / theirs[0]["parameters"]
    summary = [["medians of rounds in turn", "ours", "peer", "ratio", "target"]]
    same = {}
    for key, what in (("ms", "ms an iteration, same shape and optimiser"), ("cpu_ms", "... in CPU time")):
        their_ms, our_ms = ([run[key] for run in side] for side in steps.values())
        same[key] = median_ratio(our_ms, their_ms)
        both = [f"{statistics.median(side):.2f}" for side in (our_ms, their_ms)]
        summary.append([what, *both, f"{same[key]:.3f}", "<= 1.05" if key == "ms" else ""])
    fraction = statistics.median(walls)
    summary += [
        ["seconds to the peer's final loss", "", "", f"{fraction:.3f}", "<= 0.333"],
        ["... in CPU time", "", "", f"{statistics.median(cpus):.3f}", ""],
        ["parameters", f"{ours[0]['parameters']:,}", f"{theirs[0]['parameters']:,}", f"{sizes:.3f}", "0.9 to 1.1"],
    ]
    print(f"{machine()}\n{table(rows)}\n\n{table(summary)}")
    return 0 if same["ms"] <= 1.05 and fraction <= 1 / 3 and 0.9 <= sizes <= 1.1 else 1


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("peer", "same", "fast"):
        torch.set_num_threads(1)
        kind, *rest = sys.argv[1:]
        if kind == "peer":
            folder = Path(rest[0])
            os.chdir(folder)  # train.py reads its configurator from where it stands
            result = run_peer(folder, int(rest[1]), int(rest[2]))
        else:
            result = run_same(int(rest[0]), int(rest[1])) if kind == "same" else run_fast(int(rest[0]), rest[1])
        print(json.dumps(result))
    else:
        sys.exit(main())
