"""`qkvlab` and `qkvlab serve`: the labs in marimo's gallery, or with --edit in its editor, until Ctrl-C.

marimo's own command line does the serving, in this process; this module finds the labs, a free port and sensible
settings. marimo takes its project settings (theme, automatic running) from the `pyproject.toml` nearest to the labs:
the repository's own, of which the wheel holds a copy beside them.
"""

import contextlib
import functools
import ipaddress
import os
import secrets
import shutil
import socket
import sys
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import qkvlab

FIRST_PORT = 2718  # marimo's own, so that bookmarks agree


def labs_dir() -> Path:
    """The folder of the labs: the wheel's copy when installed from one, else the checkout's `notebooks/`."""
    package = Path(qkvlab.__file__).parent
    shipped = package / "_notebooks"
    return shipped if shipped.is_dir() else package.parent / "notebooks"


def lab_files(folder: Path) -> list[Path]:
    """The labs in `folder`, `NN_name.py`, in order. Raises `click.ClickException` when there are none."""
    labs = sorted(folder.glob("[0-9][0-9]_*.py"))
    if not labs:
        raise click.ClickException(f"no labs (NN_name.py) in {folder}: install qkvlab again, as in README")
    return labs


def editable_labs(folder: Path) -> Path:
    """A folder where the labs may be edited: the checkout's own, or a copy in the current folder for a wheel.

    A copy made earlier keeps its edits; only files it lacks are added.
    """
    if folder.name != "_notebooks":
        return folder
    copy = Path.cwd() / "qkvlab-labs"
    add = lambda source, target: target if Path(target).exists() else shutil.copyfile(source, target)
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__*"), copy_function=add, dirs_exist_ok=True)
    return copy


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        if os.name != "nt":  # on Windows this flag would allow a port that is in use
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, TypeError, UnicodeError):  # the last two for a name that no host can have
            return False
        return True


def choose_port(host: str, port: int | None) -> int:
    """`port` itself if it is free, else an error that says so; without one, the first free port from 2718 on."""
    if not _is_free(host, 0):
        raise click.UsageError(f"--host {host!r} is not an address of this machine: leave it out, or take 0.0.0.0")
    for candidate in [port] if port else range(FIRST_PORT, FIRST_PORT + 200):
        if _is_free(host, candidate):
            return candidate
    if port:
        raise click.UsageError(f"port {port} on {host} is taken or not allowed; give another, or leave --port out")
    raise click.UsageError(f"no free port on {host} from {FIRST_PORT} to {FIRST_PORT + 199}; give one with --port")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _can_show_browser() -> bool:
    """Whether opening a browser shows a window (a server's text browser would take the terminal instead)."""
    shown = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME")
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in shown)


def _draw(title: str) -> str:
    """The picture on a gallery card: the badge of attention as it is, and the lab's number. SVG, either theme."""
    from qkvlab.show.badge import badge_svg

    number = f'<text x="1110" y="460" text-anchor="end" font-size="340" fill="#888">{title.split()[0]}</text>'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 630" font-family="system-ui, sans-serif">'
        f'<g transform="translate(80 325)">{badge_svg("qkv", 140)}</g>{number}</svg>'
    )


def _name_gallery_cards() -> None:
    """Let the gallery name its cards as the course does, instead of by file name.

    marimo would take names from a script header of each lab: a second place for what `course.labs` already says.
    """
    from marimo._metadata import opengraph

    from qkvlab.course import labs

    def describe(path: str) -> opengraph.OpenGraphConfig | None:
        try:
            lab = labs.find(Path(path).stem)
        except ValueError:
            return None
        return opengraph.OpenGraphConfig(title=f"{lab.number:02d} {lab.title}", description=lab.question)

    def picture(title: str) -> opengraph.OpenGraphImage:
        return opengraph.OpenGraphImage(_draw(title).encode(), "image/svg+xml")

    opengraph.read_opengraph_from_file = describe  # type: ignore[assignment]
    opengraph.DEFAULT_OPENGRAPH_PLACEHOLDER_IMAGE_GENERATOR = picture  # type: ignore[assignment]


def _steady_parsing() -> None:
    """Repeat a parse that CPython fails when threads parse at once.

    It counts nesting in one place for all threads, so a page opened while another lab runs may end in "SystemError:
    AST constructor recursion depth mismatch" (python/cpython#106905): 5 of 150 pages on Python 3.11.7, none with this.
    """
    import ast

    from marimo._ast import compiler, transformers

    def steady(parse: Callable[..., Any]) -> Callable[..., Any]:
        def again(*args: Any, tries: int = 20, **kwargs: Any) -> Any:
            try:
                return parse(*args, **kwargs)
            except SystemError as error:
                if not tries or "recursion depth mismatch" not in str(error):
                    raise
            return again(*args, tries=tries - 1, **kwargs)

        return again

    ast.parse = steady(ast.parse)
    compiler.ast_compile = steady(compiler.ast_compile)
    transformers.compile = steady(compile)  # type: ignore[attr-defined]


def _work_once() -> None:
    """Spare what marimo finds out anew for every page or every move of a slider, though it stays while labs are served.

    For a page it parses the lab twice and compiles all cells in search of those that are nothing but `mo.md`, before it
    compiles them to run: 0.1 to 0.2 s of the processor. For a move it asks all packages for plug-ins: 4 ms.
    """
    from marimo._ast import parse
    from marimo._entrypoints import registry
    from marimo._runtime.runtime import Kernel

    parse.parse_notebook = functools.lru_cache(parse.parse_notebook)
    registry.get_entry_points = functools.cache(registry.get_entry_points)  # type: ignore[assignment]
    Kernel._handle_markdown_cells_on_instantiate = lambda self, requests: None  # type: ignore[assignment, method-assign]


def _until_up(url: str, then: Callable[[], None]) -> None:
    """Call `then` once the server at `url` answers; give up after a minute."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this machine
    for _ in range(300):
        try:
            opener.open(f"{url}/health", timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return then()


def _end_trainings(patience: float = 10) -> None:
    """Wait for trainings to see that their pages are gone: Python aborts when it ends while a thread is inside torch.

    One that does not end is cut off: a run on disk is whole at every moment.
    """
    until = time.monotonic() + patience
    running = [thread for thread in threading.enumerate() if thread.name == "qkvlab training"]
    if running:
        click.echo("Saving what is being trained ...")
    for thread in running:
        thread.join(max(0, until - time.monotonic()))
    if any(thread.is_alive() for thread in running):
        click.echo("Stopped.")
        sys.stdout.flush()
        os._exit(0)


@click.command("serve")
@click.option("--edit", is_flag=True, help="Open the labs in marimo's editor, code and all.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to serve on; a free one when left out.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve on.")
@click.option("--password", envvar="QKVLAB_PASSWORD", help="Ask readers for this (or set QKVLAB_PASSWORD).")
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
@click.option(
    "--threads", type=click.IntRange(1, 1024), envvar="QKVLAB_THREADS", help="Threads of torch and numpy. [default: 1]"
)
def command(
    edit: bool, port: int | None, host: str, password: str | None, no_browser: bool, threads: int | None
) -> None:
    """Serve the labs in a browser until Ctrl-C."""
    if not is_loopback(host) and not password:
        raise click.UsageError(
            f"--host {host} can be reached from other machines, and whoever opens a lab there makes this one compute: "
            "add --password (or set QKVLAB_PASSWORD)"
        )
    folder = labs_dir()
    lab_files(folder)  # refuse before anything is copied
    labs = lab_files(editable_labs(folder) if edit else folder)
    choose_port(host, port)  # refuse now, not after the imports

    # Before numpy and torch are imported, and once: all sessions share the process. Models of these sizes train
    # fastest with one thread each, several times faster than with two on a busy machine.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads or os.environ.get(name, 1))

    from marimo._cli.cli import main as marimo

    _name_gallery_cards()
    _steady_parsing()
    if not edit:
        _work_once()

    port = choose_port(host, port)  # late, so that nobody takes it in the meantime
    token = secrets.token_urlsafe(16) if edit and not password else ""
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    page = f"{url}?access_token={token}" if token else url
    terminal = sys.stdout

    def ready() -> None:
        what = f"Editing the labs in {labs[0].parent}" if edit else f"{len(labs)} labs"
        click.echo(f"{what}: {page}\nCtrl-C stops the server.", file=terminal)
        if not no_browser and _can_show_browser():
            webbrowser.open(page)

    local = url if is_loopback(host) else f"http://127.0.0.1:{port}" if host == "0.0.0.0" else url
    threading.Thread(target=_until_up, args=(local, ready), daemon=True).start()

    args = ["--yes", "edit" if edit else "run", "--headless", "--no-sandbox", "--host", host, "--port", str(port)]
    args += ["--token", "--token-password", password or token] if password or token else ["--no-token"]
    args += ["--skip-update-check", str(labs[0].parent)] if edit else map(str, labs)
    # marimo's own greeting speaks of editing; its --quiet cuts the shutdown short.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            marimo(args, prog_name="marimo", standalone_mode=False)
        except SystemExit as end:  # what the server raises when it cannot start, after saying why
            raise click.ClickException(f"nothing is served on {host}:{port}; try again, or another --port") from end
    _end_trainings()
    click.echo("Stopped.")
