"""`qkvlab data`: what data is here, whether it is whole, and fetching what does not come with qkvlab."""

import json
import sys

import click


@click.group("data", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show the data on this machine, or fetch what does not come with qkvlab; with nothing more, list it."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@command.command("list", short_help="Each file: where it is, its size, whether it is whole.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object for each file.")
def list_(as_json: bool) -> None:
    """List each file: where it is, its size, and whether its sha256 is right.

    Exit code 1 when a file that comes with qkvlab is missing or any file is wrong.
    """
    from qkvlab.tasks.sources import inventory

    rows = inventory()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        width = max(len(row["name"]) for row in rows)
        for row in rows:
            size = f"{row['bytes']:>11,}" if row["bytes"] is not None else f"{'-':>11}"
            click.echo(f"{row['name']:{width}}  {row['state']:11}  {size}  {row['path'] or ''}".rstrip())
        for row in rows:
            if row["message"]:
                click.echo(f"\n{row['message']}")
    if any(row["state"] in ("wrong", "missing") for row in rows):
        sys.exit(1)


@command.command("get", short_help="Fetch a file into your cache, checked by sha256.")
@click.argument("name", type=click.Choice(["tinyshakespeare"]))
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the name and the path.")
def get(name: str, as_json: bool) -> None:
    """Fetch a file into your cache, checked by sha256, unless it is here already. Exit code 1 when it cannot be had."""
    from qkvlab.tasks import DataError
    from qkvlab.tasks.sources import download

    try:
        path = download(f"{name}.txt", progress=sys.stderr.isatty())
    except DataError as error:
        click.echo(json.dumps({"name": name, "error": str(error)}) if as_json else str(error), err=not as_json)
        sys.exit(1)
    click.echo(json.dumps({"name": name, "path": str(path)}) if as_json else str(path))
