"""Type a command, wait until its page answers, press Ctrl-C, and see that it ends cleanly with no process left.

With --lab NAME.py the lab's page is opened as a browser does, and every cell has to run without an error; that needs
the `websockets` of the environment which runs this script.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("command")
parser.add_argument("--page", default=r'"mode":\s*"gallery"', help="what the page has in it, a regular expression")
parser.add_argument("--lab")
parser.add_argument("--minutes", type=float, default=10)
args = parser.parse_args()

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a script ignores Ctrl-C
begin = time.monotonic()
process = subprocess.Popen(
    ["bash", "-c", args.command],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    start_new_session=True,  # a group of its own, as a terminal gives it: Ctrl-C goes to all of it
    env=os.environ | {"PYTHONUNBUFFERED": "1"},
)
late = threading.Timer(60 * args.minutes, os.killpg, (process.pid, signal.SIGKILL))
late.daemon = True
late.start()


def group() -> list[str]:
    """The processes of the command that are still there."""
    rows = subprocess.run(["ps", "-e", "-o", "pid=,sid=,args="], capture_output=True, text=True, check=True).stdout
    return [row for row in rows.splitlines() if row.split()[1] == str(process.pid)]


def give_up(message: str) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    sys.exit(message)


address = None
for line in process.stdout:
    print("   |", line, end="")
    found = re.search(r"http://127\.0\.0\.1:\d+\S*", line)
    if found:
        address = found[0]
        break
if address is None:
    sys.exit(f"the command ended without an address (exit code {process.wait()})")

with urllib.request.urlopen(address, timeout=60) as answer:
    page = answer.read().decode()
if not re.search(args.page, page):
    give_up(f"what answers has no {args.page}")
print(f"the page answers after {time.monotonic() - begin:.0f} s")

if args.lab:
    from websockets.sync.client import connect

    with urllib.request.urlopen(f"{address}/?file={args.lab}", timeout=60) as answer:
        if args.lab.removesuffix(".py") not in answer.read().decode():
            give_up(f"{args.lab} does not answer")
    cells = 0
    with connect(f"ws{address[4:]}/ws?session_id=s_ci&file={args.lab}", max_size=None) as socket:
        for message in socket:
            text = message if isinstance(message, str) else message.decode()
            if "application/vnd.marimo+error" in text:
                give_up(f"a cell of {args.lab} fails: {text[:2000]}")
            cells += '"status":"running"' in text.replace(" ", "")
            if '"op":"completed-run"' in text.replace(" ", ""):
                break
    if cells < 5:
        give_up(f"only {cells} cells of {args.lab} ran")
    print(f"{args.lab}: {cells} cells ran")

os.killpg(process.pid, signal.SIGINT)
try:
    rest = process.communicate(timeout=30)[0]
except subprocess.TimeoutExpired:
    give_up("Ctrl-C does not end it within 30 s")
print("".join(f"   | {line}\n" for line in rest.splitlines()), end="")
time.sleep(1)
if left := group():
    give_up("left behind:\n" + "\n".join(left))
if process.returncode or "Traceback" in rest:
    sys.exit(f"it ended with exit code {process.returncode}")
print("Ctrl-C ended it, and nothing is left")
