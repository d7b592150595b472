"""The command line: one verb a module, `qkvlab.cli.<verb>`, each with a click command named `command`.

A verb's module is imported when the verb is used, so `qkvlab --help` takes no longer than click. No verb means `serve`.
Exit codes: 0 done; 1 the answer is no, or something failed on the way; 2 the request is wrong.
"""

import importlib
import sys
from typing import Any

import click

from qkvlab import __version__

VERBS = {  # and the line --help shows
    "serve": "Open the labs in the browser (what plain `qkvlab` does).",
    "jupyter": "The labs as Jupyter notebooks; --lab opens them in JupyterLab.",
    "train": "Train variants side by side and compare them.",
    "runs": "List, show, overlay and delete training runs.",
    "verify": "Recompute the exact statements of the course.",
    "reproduce": "Repeat a shipped run and compare.",
    "data": "What data there is; fetch more.",
    "doctor": "Check this machine.",
}


class Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return importlib.import_module(f"qkvlab.cli.{name}").command if name in VERBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*VERBS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h", "--version")):
            args = ["serve", *args]  # `qkvlab --edit` is `qkvlab serve --edit`
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """What a verb does not handle of data, runs and the disk is one line here, never a traceback."""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # where the locale has no "±"
        try:
            return super().invoke(ctx)
        except (OSError, ValueError) as error:
            from qkvlab.tasks import DataError
            from qkvlab.training.checkpoint import RunError

            if isinstance(error, BrokenPipeError) or not isinstance(error, OSError | DataError | RunError):
                raise
            raise click.ClickException(str(error)) from None


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qkvlab")
def main() -> None:
    """Which of the query, key and value projections does attention need? A course and a laboratory."""
