"""One real Chromium on one real gallery, as `qkvlab` serves it.

Both last for a module: while playwright runs, nothing else in the process has an event loop, and IPython wants one.
`open_page(path)` gives a page; when the test ends, every error in its console and every request that left this machine
fails it. Without a Chromium these tests are skipped, or fail where QKVLAB_REQUIRE_BROWSER is set.
"""

import os
import socket
import subprocess
import sys
from urllib.parse import urlparse

import psutil
import pytest

from qkvlab.cli.doctor import find_chromium

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PATIENCE = 60_000  # milliseconds; a busy machine with software rendering is slow, not wrong


@pytest.fixture(scope="module")
def browser():
    path = find_chromium()
    if path is None:
        if os.environ.get("QKVLAB_REQUIRE_BROWSER"):
            pytest.fail("no Chromium found, and QKVLAB_REQUIRE_BROWSER is set")
        pytest.skip("no Chromium found: apt install chromium, or playwright install chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


def serve(*args):
    """Start `qkvlab` on a free port; its process and its address, once it answers and the port is really its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "qkvlab", "--no-browser", "--port", str(port), *args],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    first = process.stdout.readline()
    address = f"http://127.0.0.1:{port}"
    owned = [c.laddr.port for c in psutil.Process(process.pid).net_connections("tcp") if c.status == "LISTEN"]
    if address not in first or owned != [port]:
        process.kill()
        pytest.fail(f"qkvlab does not serve on {port}: {first}{process.communicate()[0]}")
    return process, address


@pytest.fixture(scope="module")
def gallery(browser):
    """The address of a gallery that all tests of a module share."""
    process, address = serve()
    yield address
    process.terminate()
    try:
        process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        pytest.fail("the gallery did not end within 20 s of SIGTERM")


@pytest.fixture
def open_page(browser, gallery):
    """`open_page("/?file=02_change_of_basis.py", width=400, scheme="dark")`: a new page with a store of its own."""
    contexts, errors, strangers = [], [], []

    def open_(path="/", width=1280, height=900, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)

        def watch(page):
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))

        def note(request):
            if urlparse(request.url).hostname not in ("127.0.0.1", "localhost", None):
                strangers.append(request.url)

        context.on("page", watch)
        context.on("request", note)
        page = context.new_page()
        page.goto(gallery + path)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not errors, "errors in the console"
    assert not strangers, "requests that left this machine"
