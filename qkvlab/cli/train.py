"""`qkvlab train`: arms side by side, over seeds, then one table.

    qkvlab train text --variants qkv,identity-q --recipe fast --steps 400 --seeds 3

An arm is a variant with what is changed about it: `identity-q:mlp=4.5:logit_scale=2`. All arms of one seed see the same
batches and start from the same values, so differences are taken seed by seed.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qkvlab.training.runs import Arm

TASKS = "text (or shakespeare), sotu, tinyshakespeare; mnist, fashion, digits; reverse, sort, sub, swap, copy"


@click.command("train", epilog=f"Tasks: {TASKS}.")
@click.argument("task")
@click.option(
    "--variants", default="qkv,identity-q", show_default=True, help="Arms, with commas; the first is compared with."
)
@click.option("--recipe", default="fast", show_default=True, help="fast | paper")
@click.option("--steps", type=int, help="Optimiser steps. [default: the recipe's]")
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs an arm: seeds 0, 1 ...")
@click.option("--data", help="For the task text: a file, folder or hub id in place of Shakespeare.")
@click.option("--tokens", help="Text: char | bpe512 | bpe1024 | gpt2")
@click.option("--length", type=int, help="Lists: items.")
@click.option("--out", help="Folder for the runs. [default: see `qkvlab runs list`]")
@click.option("--width", type=int)
@click.option("--layers", type=int)
@click.option("--heads", type=int)
@click.option("--context", type=int, help="Text: tokens a row.")
@click.option("--batch", type=int, help="Rows a step.")
@click.option("--lr", type=float, help="Peak learning rate of AdamW. (Muon's is the arm setting lr_matrix.)")
@click.option("--weight-decay", type=float)
@click.option("--dropout", type=float)
@click.option("--eval-every", type=int, help="Steps between evaluations and checkpoints.")
@click.option("--device", default="auto", show_default=True, help="auto | cpu | cuda | cuda:N | mps")
@click.option("--dtype", help="float32 | bfloat16 (on CUDA)")
@click.option(
    "--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="CPU threads; more help wide models."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
def command(
    task: str, variants: str, recipe: str, seeds: int, out: str | None, threads: int, as_json: bool, **settings: Any
) -> None:
    """Train the arms on TASK and compare them. Interrupted, the same command goes on where it was.

    Exit code 0 when every run is done, 1 when one is not, 2 when the request is wrong.
    """
    import numpy as np
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from qkvlab import tasks
    from qkvlab.training.recipes import parse_arm
    from qkvlab.training.recipes import recipe as prescribe
    from qkvlab.training.runs import run_id, runs_dir
    from qkvlab.training.trainer import Trainer, build_model, resolve_device

    torch.set_num_threads(threads)
    # A scheduler's end is a Ctrl-C: what was done is kept.
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    click.get_current_context().call_on_close(lambda: signal.signal(signal.SIGTERM, former))
    settings = {name: value for name, value in settings.items() if value is not None}
    settings["task"] = "shakespeare" if task == "text" else task
    if os.path.exists(data := settings.get("data", "")):  # a path must be found again from any folder
        settings["data"] = str(Path(data).resolve())
    text = settings["task"] not in tasks.LISTS + tasks.IMAGES
    if not text:  # there every item sees every other
        settings["causal"] = False
    plan = []  # one seed after the other, so that an interruption leaves all arms equally far
    try:
        if out == "":
            raise ValueError("--out is empty: name a folder, or leave it out")
        root = runs_dir(out)
        pieces = re.split(r",(?!\s*[\d.])", variants)  # the comma of betas=0.9,0.95 is before a number
        if not (arms := list(dict.fromkeys(arm.strip() for arm in pieces if arm.strip()))):
            raise ValueError(f"--variants {variants!r} names no arm")
        for seed in range(seeds):
            for arm in arms:
                slug, changed = parse_arm(arm)
                if changed.get("causal") and not text:
                    raise ValueError(f"arm {arm!r}: causal=True is for text; in {task} every item sees every other")
                plan.append((arm, prescribe(recipe, slug, **{"seed": seed, **settings, **changed})))
        for _, config in plan[: len(arms)]:  # what cannot be is said before anything is trained
            resolve_device(config.device, config.dtype)
            loaded = tasks.load(config.task, tokens=config.tokens, data=config.data, length=config.length)
            loaded.batch(np.random.default_rng(0), 1, config.model.context)
            loaded.validation(config.model.context, config.eval_rows)
            with torch.device("meta"):
                build_model(config, loaded)
        for option, used in (("context", text), ("length", task in tasks.LISTS)):
            if option in settings and not used:
                raise ValueError(f"--{option} means nothing for the task {task}: leave it out")
        _check_writable(root)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    ended: list[dict[str, Any]] = []
    console = Console(stderr=True)
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "{task.fields[loss]}"
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        whole = bars.add_task(f"{len(plan)} runs", total=sum(config.steps for _, config in plan), loss="")
        for arm, config in plan:
            run = {"arm": arm, "seed": config.seed, "folder": str(root / run_id(config)), "status": "", "message": ""}
            ended.append(run)
            bar = bars.add_task(f"{arm}, seed {config.seed}", total=config.steps, loss="")
            trainer = None
            try:
                trainer = Trainer(config, root / run_id(config))
                before = trainer.step
                bars.advance(whole, before)
                for record in trainer:
                    bars.update(bar, completed=record.step, loss=f"loss {record.loss:.3f}")
                    bars.advance(whole)
                    if record.val_loss is not None and not console.is_terminal:  # a log, which has no bars
                        at = f"{arm}, seed {config.seed}: step {record.step} of {config.steps}"
                        click.echo(f"{at}, validation {record.val_loss:.4f}", err=True)
                run |= {"status": trainer.status, "message": trainer.message, "new_steps": trainer.step - before}
            except KeyboardInterrupt:  # while setting up, or between two steps
                if trainer:
                    trainer.stop()
                message = trainer.message if trainer else "Interrupted before the first step."
                run |= {"status": "interrupted", "message": message}
            except MemoryError as error:
                run |= {"status": "out of memory", "message": str(error)}
            except (ValueError, OSError) as error:  # a damaged run, data that cannot be read on
                run |= {"status": "failed", "message": str(error)}
            bars.remove_task(bar)
            if run["status"] in ("interrupted", "disk full"):
                break
            bars.advance(whole, config.steps - (trainer.step if trainer else 0))
    _report(ended, root, len(plan), as_json)
    if len(ended) < len(plan) or any(run["status"] != "done" for run in ended):
        sys.exit(1)


def _check_writable(root: Path) -> None:
    """Raises ValueError where no run can be kept."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise ValueError(f"--out {root} cannot be written ({error.strerror or error}): choose another folder") from None


def _report(ended: list[dict[str, Any]], root: Path, planned: int, as_json: bool) -> None:
    """The summary table, and a sentence on every run that is not done."""
    from qkvlab.training.runs import RunError, load_run, summary

    there, loaded = [], []
    for run in ended:
        with contextlib.suppress(RunError):  # it failed, and its message says so
            loaded.append(load_run(run["folder"]))
            there.append(run)
    arms = summary(loaded, [run["arm"] for run in there])
    if as_json:
        for run, on_disk in zip(there, loaded, strict=True):
            run |= {"val_loss": on_disk.val_loss, "val_accuracy": on_disk.val_accuracy, "seconds": on_disk.seconds}
        answer = {"runs": ended, "planned": planned, "summary": [vars(arm) for arm in arms]}
        click.echo(json.dumps(answer, indent=1))
        return
    if arms:
        _show(arms)
        click.echo(f"loss: {arms[0].unit}, on the validation rows; mean ± standard deviation over seeds.")
    if any(arm.interval is not None for arm in arms):
        click.echo("difference: from the first arm, paired by seed; mean ± 95 % t-interval.")
    elif 1 < planned == len(arms):
        click.echo("One seed shows no spread: ask for --seeds 3 before you believe a difference.")
    for run in ended:
        if run["status"] != "done":
            click.echo(f"{run['arm']}, seed {run['seed']}: {run['status']}. {run['message']}")
    old = sum(run.get("new_steps") == 0 and run["status"] == "done" for run in ended)
    if old:
        click.echo(f"{old} of {planned} runs were done before and were not repeated.")
    click.echo(f"The runs are in {root}")
    if ended and ended[-1]["status"] in ("interrupted", "disk full"):
        click.echo(f"To go on where this stopped: qkvlab {shlex.join(sys.argv[1:])}")


def _show(arms: Sequence["Arm"]) -> None:
    """One row an arm: loss with its spread over seeds, paired difference with its interval, accuracy, size, time."""
    from qkvlab.cli.runs import print_table

    accuracy = ["accuracy"] if any(arm.accuracy is not None for arm in arms) else []
    number = lambda value, form: "" if value is None else format(value, form)
    plus_minus = lambda value, form: "" if value is None else f" ± {value:{form}}"
    rows = []
    for arm in arms:
        cells = [arm.label, str(arm.seeds) if not arm.failed else f"{arm.seeds} of {arm.seeds + arm.failed}"]
        cells.append(number(arm.mean, ".4f") + plus_minus(arm.spread, ".4f"))
        cells.append(number(arm.difference, "+.4f") + plus_minus(arm.interval, ".4f"))
        cells += [number(arm.accuracy, ".1%") for _ in accuracy]
        rows.append([*cells, number(arm.parameters, ",d"), number(arm.seconds, ".1f")])
    print_table(["arm", "seeds", "loss", "difference", *accuracy, "parameters", "s a run"], rows)
