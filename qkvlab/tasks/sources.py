"""Where the bytes are, and whether they are the right ones.

A file is looked for in `$QKVLAB_DATA`, in the data that came with qkvlab, and in the user's cache. The first one found
counts, and its sha256 is checked on first use in each process: a wrong one is refused, never passed over or mended.
Nothing here writes to disk except `download`, which runs only when somebody asks for it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import NamedTuple


class DataError(ValueError):
    """Data that is missing, damaged, unreadable or out of reach. The text names it and says what to do."""


class Shipped(NamedTuple):
    sha256: str
    size: int  # bytes
    url: str = ""  # where `download` fetches it; empty for what comes with qkvlab


FILES = {
    "shakespeare_gutenberg_9plays.txt": Shipped(
        "e5d3745cf1811571a42ac5d94c7d333138d2714bfef1a3823df9bcad38d4d2c4", 1_256_721
    ),
    "sotu_1900_2021.txt.gz": Shipped("d8c83fb5a32a229a85f54336a8e90fadb339955c510b4a03110bf5ae11e3a0ba", 1_802_320),
    "mnist_10k.npz": Shipped("c03d6af810269a0b25ef8e8971f521767d52b05849e4fd977d6ca9528003c0b3", 1_650_884),
    "fashion_mnist_12k.npz": Shipped("7aaa4126698a66a289657dfe8a06c6a9a605d407f42145bed6debfd9bdf729c8", 5_276_856),
    "digits8x8.npz": Shipped("6f801551877abf69fbf3711373bb642a18dc933430a3385cd6febc235225ea6f", 45_374),
    "gpt2_vocab.bpe": Shipped("1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5", 456_318),
    "bpe1024.tiktoken": Shipped("0704faac12239d255e2f72b4f5641d3e8abf6fecfa807b620140ef7033a8d6aa", 10_582),
    "minilm_l6_attention_fp16.npz": Shipped(
        "674ccc7cf5cfd06970bcba6fc049df3d014d4f80f47682fa5c7259ee0c839aef", 6_747_873
    ),
    "tinyshakespeare.txt": Shipped(
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        1_115_394,
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    ),
}

_verified: dict[Path, tuple[int, int]] = {}  # path -> (size, mtime) at the time its hash was found right


def data_dir() -> Path:
    """The data that came with qkvlab: the repository's `data/`, or the copy inside an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    tree = package.parent / "data"
    return tree if (tree / "README.md").is_file() or not (package / "_data").is_dir() else package / "_data"


def cache_dir() -> Path:
    """The folder downloads go to, by the custom of the platform. It need not exist."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "qkvlab"


def folders() -> list[Path]:
    """The folders searched, in order."""
    own = os.environ.get("QKVLAB_DATA")
    return [*([Path(own).expanduser()] if own else []), data_dir(), cache_dir()]


def find(name: str) -> Path | None:
    """The first file of that name, unverified; None where there is none."""
    return next((p for folder in folders() if (p := folder / name).is_file()), None)


def path_of(name: str) -> Path:
    """The verified path of a file in `FILES`.

    Raises DataError when the file is missing, unreadable or not the expected bytes.
    """
    expected, path = FILES[name], find(name)
    remedy = (
        f"fetch it with `qkvlab data get {name.split('.')[0]}`, or put it into a folder named by $QKVLAB_DATA"
        if expected.url
        else f"restore it with `git checkout data/{name}`, or install qkvlab again"
    )
    if path is None:
        searched = ", ".join(str(folder / name) for folder in folders())
        raise DataError(
            f"{name} is not on this machine: expected sha256 {expected.sha256}, found none. Looked for {searched}. "
            f"What to do: {remedy}."
        )
    try:
        stat = path.stat()
        if _verified.get(path) == (stat.st_size, stat.st_mtime_ns):
            return path
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{name} cannot be read at {path}: {error}. What to do: {remedy}.") from error
    if found != expected.sha256:
        raise DataError(
            f"{name} is not the expected file: expected sha256 {expected.sha256} ({expected.size:,} bytes), "
            f"found {found} ({stat.st_size:,} bytes) at {path}. It was left as it is. "
            f"What to do: move that file away, then {remedy}."
        )
    _verified[path] = (stat.st_size, stat.st_mtime_ns)
    return path


def inventory() -> list[dict]:
    """One row for each known file: name, path (None when absent), size in bytes, state and what is wrong with it."""
    rows = []
    for name, expected in FILES.items():
        path, state, message = find(name), "ok", ""
        try:
            path_of(name)
        except DataError as error:
            message = str(error)
            state = "wrong" if path else "not fetched" if expected.url else "missing"
        size = path.stat().st_size if path else None
        rows.append({"name": name, "path": path and str(path), "bytes": size, "state": state, "message": message})
    return rows


def download(name: str, progress: bool = False) -> Path:
    """Fetch a file that has a URL into the user's cache, unless it is already there and right.

    Raises DataError when it cannot be had or is not the expected bytes; then nothing is left on disk.
    """
    import pooch  # an optional comfort on a training box, so only here

    expected, folder = FILES[name], cache_dir()
    if find(name):
        return path_of(name)
    known = folder.is_dir()
    try:
        pooch.get_logger().setLevel("WARNING")
        pooch.create(
            folder,
            base_url="",
            registry={name: f"sha256:{expected.sha256}"},
            urls={name: expected.url},
            retry_if_failed=1,
        ).fetch(name, downloader=pooch.HTTPDownloader(progressbar=progress, timeout=20))
    except (OSError, ValueError) as error:  # requests' exceptions are OSErrors; pooch's hash error is a ValueError
        if not known and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise DataError(
            f"{name} could not be fetched from {expected.url}: {error}. Nothing was kept. What to do: try again with a "
            f"network, or put the file (sha256 {expected.sha256}) into a folder named by $QKVLAB_DATA."
        ) from error
    return path_of(name)
