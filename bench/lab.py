"""A JupyterLab of its own on a folder, without network or news, and its notebooks in a browser: for bench and tests."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.harness import ROOT

TWINS = ROOT / "notebooks" / "jupyter"
SETTINGS = {  # the theme follows the browser's colour scheme
    "notification": {"fetchNews": "false", "checkForUpdates": False},
    "themes": {"adaptive-theme": True},
}

# In the page: the notebook in front, its kernel ready; and whether all that was asked to run has run.
READY = """async () => {
  await jupyterapp.restored;
  const {context, sessionContext} = jupyterapp.shell.currentWidget;
  await context.ready;
  await sessionContext.ready;
  await sessionContext.session.kernel.info;
}"""
COUNTS = (
    "() => Math.max(0, ...jupyterapp.shell.currentWidget.content.widgets.map((cell) => cell.model.executionCount ?? 0))"
)
DONE = """(before) => {
  const {content, sessionContext} = jupyterapp.shell.currentWidget;
  const code = content.widgets.map((cell) => cell.model).filter((cell) => cell.type === 'code');
  return sessionContext.session.kernel.status === 'idle'
    && code.every((cell) => cell.executionCount > before && cell.executionState === 'idle');
}"""


def serve(folder: Path, home: Path) -> tuple[subprocess.Popen, str]:
    """Start JupyterLab on `folder`, with all that it reads and writes of its own in `home`; its process and address.

    No token: it answers this machine alone. Raises RuntimeError with what it said when it does not start.
    """
    for name, values in SETTINGS.items():
        file = home / "settings" / "@jupyterlab" / "apputils-extension" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {
        "JUPYTER_CONFIG_DIR": home / "config",
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": home / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
        "IPYTHONDIR": home / "ipython",
    }
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
             f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=",
             f"--ServerApp.root_dir={folder}", "--LabApp.extension_manager=readonly",
             "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.expose_app_in_browser=True"],
            env=os.environ | {name: str(place) for name, place in own.items()}, stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/api/status", timeout=5):
                return process, address
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab does not start: {(home / 'log').read_text()[-2000:]}")


def stop(process: subprocess.Popen) -> bool:
    """End JupyterLab and its kernels; whether it went by itself."""
    process.terminate()
    try:
        process.wait(30)
        return True
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


def ready(page: Any) -> None:
    """Wait until the notebook of that page is there and its kernel answers."""
    page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.sessionContext")
    page.evaluate(READY)


def open_notebook(page: Any, address: str, name: str) -> None:
    """Show a notebook in a workspace of its own."""
    page.goto(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb?reset")
    ready(page)


def run_all(page: Any) -> None:
    """*Run*, *Run All Cells*, and wait until all have run."""
    before = page.evaluate(COUNTS)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(DONE, arg=before)


def close(page: Any) -> None:
    """End the notebook's kernel, and the page."""
    page.evaluate("jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.close()
