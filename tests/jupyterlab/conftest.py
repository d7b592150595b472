"""One real JupyterLab on a copy of the twins, and one Chromium.

`open_twin(name)` gives a page of a twin; when the test ends, every error in its console and every request that left
this machine fails it. Without a Chromium or JupyterLab these tests are skipped, or fail where QKVLAB_REQUIRE_BROWSER is
set. Both last for a module: see tests/browser.
"""

import importlib.util
import os
import shutil
from urllib.parse import urlparse

import pytest

from bench import lab
from qkvlab.cli.doctor import find_chromium

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PATIENCE = 120_000  # milliseconds; a busy machine with software rendering is slow, not wrong


@pytest.fixture(scope="module")
def browser():
    path = find_chromium()
    lacks = [
        *(["Chromium: apt install chromium, or playwright install chromium"] if path is None else []),
        *(["JupyterLab: pip install jupyterlab"] if not importlib.util.find_spec("jupyterlab") else []),
    ]
    if lacks:
        (pytest.fail if os.environ.get("QKVLAB_REQUIRE_BROWSER") else pytest.skip)(f"needs {' and '.join(lacks)}")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def jupyterlab(browser, tmp_path_factory):
    """The address of a JupyterLab that all tests of the module share; it serves a copy of the twins."""
    folder = tmp_path_factory.mktemp("jupyterlab")
    shutil.copytree(lab.TWINS, folder / "twins")
    process, address = lab.serve(folder / "twins", folder / "home")
    yield address
    assert lab.stop(process), "JupyterLab did not end within 30 s of SIGTERM"


@pytest.fixture
def open_twin(browser, jupyterlab):
    """`open_twin("02_change_of_basis", scheme="dark")`: a page of a twin, its kernel started, nothing run yet."""
    contexts, errors, strangers = [], [], []

    def note(request):
        if urlparse(request.url).hostname not in ("127.0.0.1", None) and not request.url.startswith("blob:"):
            strangers.append(request.url)

    def open_(name, width=1280, height=900, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        context.on("request", note)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        lab.open_notebook(page, jupyterlab, name)
        return page

    yield open_
    for context in contexts:
        for page in context.pages:
            lab.close(page)
        context.close()
    assert not errors, "errors in the console"
    assert not strangers, "requests that left this machine"
