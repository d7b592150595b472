"""`qkvlab reproduce`: repeat a shipped experiment and say whether it comes out the same."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import click


@click.command("reproduce")
@click.argument("name", required=False)
@click.option("--quick", is_flag=True, help="Repeat the beginning of each arm's first run: about a minute.")
@click.option(
    "--write", type=click.Path(path_type=Path), help="Tune and train anew, and write the record into a folder."
)
@click.option("--work", type=click.Path(path_type=Path), help="Keep unfinished runs here. [default: your data folder]")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, quick: bool, write: Path | None, work: Path | None, threads: int, as_json: bool) -> None:
    """Repeat the shipped experiment NAME and compare; without NAME, list what there is.

    Interrupted, the same command goes on where it was. Exit code 0 when all runs agree within the stated band, 1 when
    one does not, 2 when the request is wrong.
    """
    import torch

    from qkvlab.training.experiments import EXPERIMENTS, check
    from qkvlab.training.experiments import write as make
    from qkvlab.training.runs import runs_dir
    from qkvlab.training.shipped import shipped, shipped_names

    if name is None:
        _list(as_json)
        return
    if name not in EXPERIMENTS:
        raise click.UsageError(f"no experiment is called {name!r}: there are {', '.join(EXPERIMENTS)}")
    if quick and write is not None:
        raise click.UsageError("--quick compares and --write makes anew: choose one")
    if write is None and name not in shipped_names():
        raise click.UsageError(f"{name} has no shipped record to compare with; `--write data/runs` makes one")
    torch.set_num_threads(threads)
    experiment = EXPERIMENTS[name]
    folder = (work or runs_dir() / "reproduce") / (name if write is None else f"{name}-write")
    say = (lambda row: None) if as_json else _say
    try:
        if write is not None:
            click.echo(f"{make(experiment, folder, write, say) / 'record.json'}")
            return
        rows = check(experiment, shipped(name).record, folder, quick, say)
    except (RuntimeError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    for result in folder.glob("*/result.json"):  # the next repetition is a new one
        shutil.rmtree(result.parent)
    agree = all(row["agrees"] for row in rows)
    if as_json:
        click.echo(json.dumps({"name": name, "band": experiment.band, "agrees": agree, "runs": rows}, indent=1))
    else:
        count = sum(row["agrees"] for row in rows)
        verdict = "agrees" if agree else "does not agree"
        click.echo(f"{name} {verdict}: {count} of {len(rows)} runs within {experiment.band} nats of the shipped ones.")
    sys.exit(0 if agree else 1)


def _list(as_json: bool) -> None:
    from qkvlab.training.experiments import EXPERIMENTS
    from qkvlab.training.shipped import shipped, shipped_names

    there = set(shipped_names())
    rows = [
        {
            "name": e.name,
            "question": e.question,
            "arms": list(e.arms),
            "runs": len(e.arms) * len(e.seeds),
            "steps": e.settings["steps"],
            "shipped": shipped(e.name).provenance["date"][:10] if e.name in there else None,
        }
        for e in EXPERIMENTS.values()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        made = f"shipped {row['shipped']}" if row["shipped"] else "not shipped"
        click.echo(f"{row['name']}  {row['runs']} runs of {row['steps']} steps, {made}\n    {row['question']}")


def _say(row: dict[str, Any]) -> None:
    shown = lambda value: f"{value:.4f}" if isinstance(value, float) else "diverged" if value is None else str(value)
    if "agrees" in row:
        word = "agrees" if row["agrees"] else "DIFFERS"
        what = f"{row['what']}: shipped {shown(row['shipped'])}, again {shown(row['again'])}"
        click.echo(f"{row['arm']}, seed {row['seed']}: {what}, {word}")
    else:
        settings = f"lr {row['lr']:g}, scale {row['logit_scale']:g}"
        click.echo(f"{row['arm']}, seed {row['seed']}, {settings}: {shown(row['val_loss'])}")
