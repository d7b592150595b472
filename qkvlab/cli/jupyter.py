"""`qkvlab jupyter`: the labs as Jupyter notebooks, written, checked, or opened in JupyterLab."""

from __future__ import annotations

import os
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from qkvlab.cli.serve import _can_show_browser, choose_port, lab_files, labs_dir

INSTALL = "pip install -c constraints.txt -e '.[jupyter]'   (from a wheel: pip install jupyterlab)"


@click.command("jupyter")
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the notebooks.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a notebook is not what its lab makes.")
@click.option("--lab", is_flag=True, help="Then open them in JupyterLab, until Ctrl-C.")
@click.option("--port", type=click.IntRange(1, 65535), help="JupyterLab's port; a free one when left out.")
@click.option("--no-browser", is_flag=True, help="Print JupyterLab's address and open nothing.")
def command(
    names: tuple[str, ...], out: Path | None, check: bool, lab: bool, port: int | None, no_browser: bool
) -> None:
    """Make the Jupyter notebook of each lab, or of those named (01, three_projections).

    They go to `notebooks/jupyter`, or when qkvlab comes from a wheel to `qkvlab-labs/jupyter` in the current folder.
    One that you edited is left as it is: delete it, and it is made anew.
    """
    if check and lab:
        raise click.UsageError("--check writes nothing and --lab opens what is written: give one of them")
    if lab and not find_spec("jupyterlab"):
        raise click.UsageError(f"JupyterLab is not installed: {INSTALL}")
    if lab:
        choose_port("127.0.0.1", port)  # say so now, not after the imports
    folder = labs_dir()
    known = {name: path for path in lab_files(folder) for name in (path.stem, path.stem[:2], path.stem[3:])}
    if missing := set(names) - known.keys():
        there = ", ".join(path.stem for path in lab_files(folder))
        raise click.UsageError(f"no lab {', '.join(sorted(missing))}; there are {there}")
    chosen = sorted({known[name] for name in names or known})
    out = out or (Path("qkvlab-labs") if folder.name == "_notebooks" else folder) / "jupyter"

    from qkvlab.course import jupyter

    wrong = 0
    for path in chosen:
        twin = out / f"{path.stem}.ipynb"
        try:
            found = (jupyter.state if check else jupyter.write)(twin, jupyter.convert(folder / path.name))
        except jupyter.ConversionError as error:
            raise click.ClickException(str(error)) from None
        wrong += found == "edited" or (check and found != "current")
        if found == "edited":
            click.echo(f"{twin}: edited, so left as it is; delete it to have it made anew", err=True)
        elif check and found != "current":
            click.echo(f"{twin}: {found}; `qkvlab jupyter` makes it anew", err=True)
    if lab:
        return serve(out, chosen[0].stem, port, no_browser)
    click.echo(f"{len(chosen) - wrong} of {len(chosen)} notebooks in {out} are what their labs make")
    raise SystemExit(wrong > 0)


def serve(folder: Path, first: str, port: int | None, no_browser: bool) -> None:
    """JupyterLab on `folder`, for this machine only and asking the network for nothing, until Ctrl-C."""
    from jupyterlab.labapp import LabApp

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # for the kernels, as `qkvlab serve` has it
    token = secrets.token_urlsafe(16)
    start = f"/lab/tree/{first}.ipynb"
    settings = {
        "ServerApp.root_dir": folder.resolve(),
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": choose_port("127.0.0.1", port),
        "ServerApp.port_retries": 0,
        "ServerApp.open_browser": not no_browser and _can_show_browser(),
        "ServerApp.answer_yes": True,  # one Ctrl-C ends it
        "ServerApp.allow_root": True,  # in a container; it is reached from this machine only, with a token
        "ServerApp.log_level": "ERROR",
        "LabApp.log_level": "ERROR",
        "IdentityProvider.token": token,
        "LabApp.default_url": start,
        "LabApp.extension_manager": "readonly",
    }
    server = LabApp.initialize_server([f"--{name}={value}" for name, value in settings.items()])
    server.web_app.settings["page_config_hook"] = _without_news
    address = f"http://127.0.0.1:{server.port}{start}?token={token}"
    server.io_loop.add_callback(click.echo, f"JupyterLab on {folder}: {address}\nCtrl-C stops it.")  # once it listens
    server.start()
    click.echo("Stopped.")


def _without_news(_handler: object, config: dict[str, Any]) -> dict[str, Any]:
    """JupyterLab's page without the part that asks whether to fetch news, and fetches whether there is a newer one."""
    return config | {
        "disabledExtensions": [*config["disabledExtensions"], "@jupyterlab/apputils-extension:announcements"]
    }
