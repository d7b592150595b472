"""`qkvlab runs`: what was trained and kept. A run goes by its folder's name, or a pattern such as 'shakespeare-*'."""

import json
import sys
import webbrowser
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qkvlab.training.runs import Run

BARS = "▁▂▃▄▅▆▇█"
out_option = click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the runs. [default: $QKVLAB_RUNS, else your data folder]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("runs", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, show, overlay and delete training runs; with nothing more, list them."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_command)


@command.command("list")
@out_option
@json_option
def list_command(out: Path | None, as_json: bool) -> None:
    """All runs, oldest first."""
    from qkvlab.training.runs import list_runs, runs_dir

    problems: list[str] = []
    runs = list_runs(out, problems)
    if as_json:
        click.echo(json.dumps([_facts(run) for run in runs], indent=1))
    elif runs:
        rows = []
        for run in runs:
            loss = "" if run.val_loss is None else f"{run.val_loss:.4f}"
            steps = f"{len(run.records)} / {run.config.steps}"
            rows.append((run.name, steps, loss, f"{run.seconds:.1f}", run.status))
        print_table(("run", "steps", "validation", "s", ""), rows)
    else:
        click.echo(f"No runs in {runs_dir(out)}. `qkvlab train text` makes some.")
    for problem in problems:
        click.echo(problem, err=True)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1) -> None:
    """The first columns, and one without a name, to the left; the others, which are numbers, to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number >= left and name else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False)
    console.width = console.width if console.is_terminal else 120  # a file has room
    console.print(table)


@command.command("show")
@click.argument("name")
@out_option
@json_option
def show(name: str, out: Path | None, as_json: bool) -> None:
    """One run: settings, course and end."""
    for run in _named((name,), out):
        if as_json:
            click.echo(json.dumps(_facts(run) | {"records": [vars(r) for r in run.records]}, indent=1))
            continue
        click.echo(f"{run.name}\n  {run.message}")
        if run.records:
            click.echo(f"  training    {sparkline([r.loss for r in run.records])}  {run.records[-1].loss:.4f}")
        if run.val_loss is not None:
            click.echo(f"  validation  {_validation_line(run)}")
        if run.val_accuracy is not None:
            click.echo(f"  accuracy    {run.val_accuracy:.1%}")
        for title, values in (("settings", run.config.settings()), ("made", run.made)):
            click.echo(f"  {title}: " + ", ".join(f"{k}={v}" for k, v in values.items()))
        click.echo(f"  {run.folder}")


@command.command("overlay", short_help="Validation curves of several runs in one figure.")
@click.argument("names", nargs=-1)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page that needs no network.")
@click.option("--open", "open_it", is_flag=True, help="Open that page in the browser.")
@out_option
@json_option
def overlay(names: tuple[str, ...], html: Path | None, open_it: bool, out: Path | None, as_json: bool) -> None:
    """Validation curves of several runs, seeds joined to bands: in the terminal, or with --html as a page."""
    from qkvlab.training.runs import labels

    runs = [run for run in _named(names or ("*",), out) if run.val_loss is not None]
    if not runs:
        raise click.UsageError("none of these runs has been evaluated yet")
    arms = labels(runs)
    if as_json:
        curves = [{"run": run.name, "arm": arm, **_points(run)} for run, arm in zip(runs, arms, strict=True)]
        click.echo(json.dumps(curves, indent=1))
        return
    if len(several := sorted({run.config.task for run in runs})) > 1:
        raise click.UsageError(
            f"losses on {', '.join(several)} do not compare: name runs of one task, as '{several[0]}-*'"
        )
    if html is None and not open_it:
        low = min(min(_points(run)["val_loss"]) for run in runs)
        high = max(max(_points(run)["val_loss"]) for run in runs)
        for run in runs:
            click.echo(f"{_validation_line(run, low, high)}  {run.name}{_unless_done(run)}")
        return
    html = html or Path("overlay.html")
    try:
        html.write_text(_page(runs, arms), encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--html {html} cannot be written ({error.strerror or error})") from None
    click.echo(f"Written: {html}")
    if open_it:
        webbrowser.open(html.resolve().as_uri())


@command.command("delete")
@click.argument("names", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@out_option
@json_option
def delete(names: tuple[str, ...], yes: bool, out: Path | None, as_json: bool) -> None:
    """Delete runs: their checkpoints and records."""
    from qkvlab.training.runs import RunError, delete_run, runs_dir

    folders: dict[Path, str] = {}  # and what to say about each
    there = {config.parent.name: config.parent for config in runs_dir(out).glob("*/config.json")}
    for name in names:
        if name in there:  # by its full name a damaged run can go too
            folders[there[name]] = ""
        else:
            folders |= {run.folder: f"  {len(run.records)} steps, {run.status}" for run in _named((name,), out)}
    if not yes:
        for folder, facts in folders.items():
            click.echo(f"{folder.name}{facts}", err=True)
        if not click.confirm(f"Delete {'this run' if len(folders) == 1 else f'these {len(folders)} runs'}?", err=True):
            click.echo("Nothing was deleted.", err=True)
            sys.exit(1)
    for folder in folders:
        try:
            delete_run(folder)
        except (OSError, RunError) as error:
            raise click.ClickException(f"{folder} could not be deleted: {error}") from None
    gone = [folder.name for folder in folders]
    click.echo(json.dumps(gone) if as_json else f"Deleted: {', '.join(gone)}")


def _named(names: tuple[str, ...], out: Path | None) -> "list[Run]":
    """The runs these names or patterns mean, each once. A name that means none is a usage error."""
    from qkvlab.training.runs import list_runs, runs_dir

    problems: list[str] = []
    runs = list_runs(out, problems)
    for name in names:
        if not any(fnmatch(run.name, name) for run in runs):
            there = "".join(f"\n{problem}" for problem in problems)
            raise click.UsageError(f"no run {name!r} in {runs_dir(out)}; `qkvlab runs list` shows what is there{there}")
    return [run for run in runs if any(fnmatch(run.name, name) for name in names)]


def _facts(run: "Run") -> dict[str, Any]:
    names = ("name", "status", "message", "val_loss", "val_accuracy", "seconds", "made")
    facts = {name: getattr(run, name) for name in names}
    return facts | {"folder": str(run.folder), "steps": len(run.records), "config": run.config.as_dict()}


def _points(run: "Run") -> dict[str, list[Any]]:
    points = [(r.step, r.val_loss) for r in run.records if r.val_loss is not None]
    return {"step": [step for step, _ in points], "val_loss": [loss for _, loss in points]}


def _unless_done(run: "Run") -> str:
    return "" if run.status == "done" else f" ({run.status})"


def _validation_line(run: "Run", low: float | None = None, high: float | None = None) -> str:
    return f"{sparkline(_points(run)['val_loss'], low=low, high=high)}  {run.val_loss:.4f}"


def sparkline(values: list[float], width: int = 40, low: float | None = None, high: float | None = None) -> str:
    """The values as a row of at most `width` bars, the mean of neighbours in each; `low` and `high` set the scale."""
    import numpy as np

    means = [part.mean() for part in np.array_split(values, min(width, len(values)))]
    low, high = min(means) if low is None else low, max(means) if high is None else high
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round(min(max(v - low, 0) * scale, len(BARS) - 1))] for v in means)


def _page(runs: "list[Run]", arms: list[str]) -> str:
    """The curves as a page that holds plotly itself; seeds of one arm that ran equally far become one band."""
    from qkvlab.show.figures import Curve, loss_figure

    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run, arm in zip(runs, arms, strict=True):
        groups.setdefault((arm, run.status == "diverged", *_points(run)["step"]), []).append(run)
    variants = [group[0].config.model.variant for group in groups.values()]
    curves = []
    for (arm, diverged, *steps), group in groups.items():
        slug = group[0].config.model.variant
        label = arm + (_unless_done(group[0]) if len(group) == 1 else f", {len(group)} seeds")
        losses = [_points(run)["val_loss"] for run in group]
        curves.append(Curve(label, steps, losses, slug if variants.count(slug) == 1 else "", diverged=diverged))
    unit = runs[0].made.get("unit", "nats")
    figure = loss_figure(curves, y_title=f"validation loss, {unit}", height=520)
    return figure.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False, "responsive": True})
