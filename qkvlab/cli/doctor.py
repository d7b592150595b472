"""`qkvlab doctor`: one line a check, OK, WARN or FAIL, with what to do. Exit code 1 when a check fails."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import click

from qkvlab.cli.serve import lab_files, labs_dir

GB = 1e9
TESTED = ((3, 11), (3, 13))  # the Pythons that constraints.txt was resolved for, first and last


class Check(NamedTuple):
    state: Literal["OK", "WARN", "FAIL"]
    name: str
    found: str
    todo: str = ""


def python() -> Check:
    """The interpreter: old ones cannot run qkvlab, newer ones than tested probably can."""
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    first, last = (".".join(map(str, version)) for version in TESTED)
    if sys.version_info < TESTED[0]:
        return Check("FAIL", "Python", found, f"install Python {first} to {last}")
    if sys.version_info[:2] > TESTED[1]:
        return Check("WARN", "Python", found, f"tried with {first} to {last}; take one of these if something breaks")
    return Check("OK", "Python", found)


def constraints() -> dict[str, str]:
    """The tested version of each package on this platform, by normalised name, from constraints.txt.

    Empty when the file is neither beside the labs (wheel) nor in the checkout.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    folder = labs_dir()
    path = next((p for p in (folder / "constraints.txt", folder.parent / "constraints.txt") if p.is_file()), None)
    pins: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path else ():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate():
                pins[canonicalize_name(pin.name)] = next(iter(pin.specifier)).version
    return pins


def packages() -> Iterator[Check]:
    """Installed packages: those qkvlab needs against their ranges, all against the tested versions."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    found = [(package.metadata["Name"], package.version) for package in importlib.metadata.distributions()]
    installed: dict[str, str] = {canonicalize_name(name): v for name, v in reversed(found) if name}  # the first counts
    needs = [Requirement(line) for line in importlib.metadata.requires("qkvlab") or ()]
    missing = [
        f"{need.name}{need.specifier} (found {version or 'none'})"
        for need, version in ((need, installed.get(canonicalize_name(need.name))) for need in needs)
        if need.marker is None or need.marker.evaluate({"extra": ""})
        if version is None or not need.specifier.contains(version, prereleases=True)
    ]
    if missing:
        yield Check("FAIL", "Packages", "not as required: " + ", ".join(missing), "install qkvlab again, as in README")

    pins = constraints()
    if not pins:
        yield Check("WARN", "Versions", "constraints.txt is not there to compare with", "install qkvlab again")
        return
    present = sorted(set(pins) & set(installed))
    other = [
        f"{name} {installed[name]} (tested {pins[name]})"
        for name in present
        if Version(installed[name]).public != Version(pins[name]).public  # a build such as +cpu is the same version
    ]
    if other:
        todo = "if something breaks: pip install -c constraints.txt, as in README"
        yield Check("WARN", "Versions", f"{len(other)} of {len(present)} untested: {', '.join(other)}", todo)
    else:
        yield Check("OK", "Versions", f"{len(present)} packages, each as tested")


def threads() -> Check:
    """How many threads a training takes here."""
    import torch

    cores, used = os.cpu_count() or 1, torch.get_num_threads()
    found = f"torch takes {used} of {cores} here; the labs take {os.environ.get('QKVLAB_THREADS') or 1}"
    if used > cores:
        return Check("WARN", "Threads", found, f"set OMP_NUM_THREADS to {cores} or less")
    return Check("OK", "Threads", found)


def device() -> Iterator[Check]:
    """Where `device="auto"` trains, and whether there is memory for it."""
    import psutil
    import torch

    memory = psutil.virtual_memory()
    found = f"{memory.available / GB:.1f} of {memory.total / GB:.1f} GB free"
    if memory.available < 1.5 * GB:
        yield Check("WARN", "Memory", found, "close other programs: a lab that trains takes about 1 GB")
    else:
        yield Check("OK", "Memory", found)
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        found = f"{torch.cuda.get_device_name()}, {free / GB:.1f} of {total / GB:.1f} GB free"
        if free < 1 * GB:
            yield Check("WARN", "Device", found, "another program holds the GPU: stop it, or train with --device cpu")
        else:
            yield Check("OK", "Device", found)
    elif torch.backends.mps.is_available():
        yield Check("OK", "Device", "Apple GPU (mps), which shares the memory above")
    else:
        yield Check("OK", "Device", "CPU; enough for every lab")


def labs() -> Check:
    """The notebooks themselves."""
    try:
        return Check("OK", "Labs", f"{len(lab_files(labs_dir()))} in {labs_dir()}")
    except click.ClickException as error:
        return Check("FAIL", "Labs", error.message, "install qkvlab again")


def data() -> Iterator[Check]:
    """Every data file against its sha256; what only a download brings may be absent."""
    from qkvlab.tasks import sources

    rows = sources.inventory()
    right = [row for row in rows if row["state"] == "ok"]
    later = [row["name"] for row in rows if row["state"] == "not fetched"]
    for row in rows:
        if row["state"] not in ("ok", "not fetched"):
            yield Check("FAIL", "Data", row["name"] + " is " + row["state"], row["message"])
    note = f"; not fetched, and not needed: {', '.join(later)}" if later else ""
    size = sum(row["bytes"] or 0 for row in right)
    if right:
        yield Check("OK", "Data", f"{len(right)} files, {size / 1e6:.0f} MB, each with the right sha256{note}")


def disk() -> Check:
    """Room for training runs, in the folder where they go."""
    from qkvlab.training.runs import runs_dir

    folder = Path(runs_dir())
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if not there.is_dir():
        return Check("FAIL", "Disk", f"{there} is a file", "set QKVLAB_RUNS to a folder of yours")
    free = shutil.disk_usage(there).free
    found = f"{free / GB:.1f} GB free for runs in {folder}"
    if not os.access(there, os.W_OK):
        return Check("FAIL", "Disk", f"{there} cannot be written", "set QKVLAB_RUNS to a folder of yours")
    if free < 0.1 * GB:
        return Check("FAIL", "Disk", found, "make room, or set QKVLAB_RUNS to a folder on another disk")
    if free < 1 * GB:
        return Check("WARN", "Disk", found, "a run takes 2 to 20 MB; make room before long trainings")
    return Check("OK", "Disk", found)


def find_chromium() -> str | None:
    """The Chromium or Chrome that browser tests drive: $CHROMIUM, a system one, or one that playwright installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    places = [
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        *(f"{os.environ.get(v)}/Google/Chrome/Application/chrome.exe" for v in ("PROGRAMFILES", "LOCALAPPDATA")),
    ]
    candidates = [os.environ.get("CHROMIUM"), *map(shutil.which, names), *places]
    found = next((path for path in candidates if path and Path(path).is_file()), None)
    if found is None:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            own = playwright.chromium.executable_path
        found = own if Path(own).is_file() else None
    return found


def browser() -> Check:
    """Whether `pytest` can run the browser tests. Readers need none of this: any browser of theirs will do."""
    if importlib.util.find_spec("playwright") is None:
        todo = "only for developers: pip install -c constraints.txt -e '.[test]'"
        return Check("WARN", "Browser tests", "playwright is not installed", todo)
    found = find_chromium()
    if found is None:
        todo = "only for developers: apt install chromium, or playwright install chromium, or set CHROMIUM"
        return Check("WARN", "Browser tests", "no Chromium found, so pytest skips them", todo)
    return Check("OK", "Browser tests", found)


CHECKS: tuple[Callable[[], Check | Iterator[Check]], ...] = (
    python, packages, threads, device, labs, data, disk, browser,
)  # fmt: skip


def examine() -> Iterator[Check]:
    """Every check in turn. One that cannot be made is itself a FAIL, and the others go on."""
    for check in CHECKS:
        try:
            result = check()
            yield from [result] if isinstance(result, Check) else result
        except Exception as error:  # a broken installation raises anything, and the doctor must survive it
            yield Check("FAIL", check.__name__.capitalize(), f"{type(error).__name__}: {error}", "install qkvlab again")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as a JSON list.")
def command(as_json: bool) -> None:
    """Check this machine: one line a check, with what to do."""
    results = []
    for result in examine():
        results.append(result)
        if not as_json:
            colour = {"OK": "green", "WARN": "yellow", "FAIL": "red"}[result.state]
            click.echo(f"{click.style(f'{result.state:4}', fg=colour)}  {result.name}: {result.found}")
            if result.todo:
                click.echo(f"      {result.todo}")
    if as_json:
        click.echo(json.dumps([result._asdict() for result in results], indent=2))
    raise SystemExit(any(result.state == "FAIL" for result in results))
