"""Where the bytes are, and whether they are the right ones.

A file is looked for in `$QKVLAB_DATA`, in the data that came with qkvlab, and in the user's cache. The first one found
counts, and its sha256 is checked on first use in each process: a wrong one is refused, never passed over or mended.
Nothing here writes to disk except `download`, which runs only when somebody asks for it.
"""

import glob
import gzip
import hashlib
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple


class DataError(ValueError):
    """Data that is missing, damaged, unreadable or out of reach. The text names it and says what to do."""


Piece = tuple[str, bool]  # some text, and whether its document ends with it
TEXT, ROWS = (".txt", ".text", ".txt.gz"), {".parquet": "parquet", ".jsonl": "json"}


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
    "bpe1024.tiktoken": Shipped("9b6a0d5f0eddab0f15d805194b5c77b01524472094cddcc2139ad52d28343260", 13_966),
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
    wheel = package / "_data"
    return wheel if wheel.is_dir() else package.parent / "data"


def user_dir(mac: str, variable: str, other: str) -> Path:
    """A folder of this user by the custom of the platform; it need not exist, and starts with ~ where no home is known.

    On Windows it is the local application data, on a Mac `mac`, elsewhere what the `variable` says, or `other`.
    """
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        base = mac if sys.platform == "darwin" else os.environ.get(variable) or other
    return Path(os.path.expanduser(base)) / "qkvlab"  # unlike Path's, no error where there is no home


def cache_dir() -> Path:
    """The folder downloads go to."""
    return user_dir("~/Library/Caches", "XDG_CACHE_HOME", "~/.cache")


def folders() -> list[Path]:
    """The folders searched, in order."""
    own = os.environ.get("QKVLAB_DATA")
    return [*([Path(os.path.expanduser(own))] if own else []), data_dir(), cache_dir()]


def find(name: str) -> Path | None:
    """The first file of that name, unverified; None where there is none."""
    return next((p for folder in folders() if os.path.isfile(p := folder / name)), None)


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


def documents(data: str) -> Callable[[], Iterator[Piece]]:
    """The documents of a corpus of your own, as a function that starts reading it from the beginning.

    `data` is a text file (UTF-8, plain or .gz; one document), a Parquet or JSON lines file (each row one document: the
    column `text`, or the only column of text), a folder of these in the order of their names, or a hub id
    `owner/name` or `owner/name:configuration` (its split `train`). Nothing is read or held beyond what is asked for.

    Parquet, JSON lines and the hub go through `datasets`. Text does not need it, and would lose its line ends there.
    Raises DataError, here or while reading, with what was found and what to do.
    """
    place = os.path.expanduser(data)
    path = Path(place)
    if os.path.isfile(place):  # False, not an error, for a name that is too long or a folder that is closed
        return partial(_file, path)
    if os.path.isdir(place):
        files = sorted(p for p in path.rglob("*") if p.is_file() and p.name.lower().endswith((*TEXT, *ROWS)))
        if not files:
            scripts = " A data set script (.py) is never run." if any(path.glob("*.py")) else ""
            raise DataError(f"the folder {path} holds no file named {', '.join((*TEXT, *ROWS))}.{scripts}")
        return lambda: chain.from_iterable(_file(p) for p in files)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(:[\w.-]+)?", data) and not data.lower().endswith(
        (*TEXT, *ROWS, ".gz", ".py")
    ):
        return partial(_hub, data)
    raise DataError(f"there is no file or folder {data!r}, and it is no hub id, which looks like owner/name")


def _file(path: Path) -> Iterator[Piece]:
    builder = ROWS.get(path.suffix.lower())
    if builder:
        return _rows(str(path), builder, data_files=glob.escape(str(path.resolve())))
    return _text(path)


def _text(path: Path, size: int = 1 << 20) -> Iterator[Piece]:
    try:
        compressed = path.suffix.lower() == ".gz"
        with gzip.open(path, "rt", encoding="utf-8-sig") if compressed else path.open(encoding="utf-8-sig") as file:
            text = file.read(size)
            if path.suffix == ".py" and "GeneratorBasedBuilder" in text:
                raise DataError(f"{path} is a data set script, which is never run: give the text or Parquet it reads")
            while text:
                following = file.read(size)
                yield text, not following
                text = following
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not text in UTF-8 ({error.reason}, byte {error.start}): convert it first"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read, or is cut short: {error}") from error


def _hub(data: str) -> Iterator[Piece]:
    id, _, config = data.partition(":")
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("HF_DATASETS_OFFLINE") or "0"
    if offline.upper() not in ("1", "TRUE", "YES", "ON"):
        _reach(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), data)
    return (yield from _rows(data, id, name=config or None))


def _reach(hub: str, data: str) -> None:
    """One quick look whether the hub answers, because `datasets` takes 23 s to give up."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        urlopen(Request(hub, method="HEAD"), timeout=5).close()
    except HTTPError:
        pass  # it answered
    except (OSError, ValueError, HTTPException) as error:
        raise DataError(
            f"{data!r}: there is no such file here, and the hub {hub} cannot be reached ({error}). What to do: check "
            "the path or the network; with HF_HUB_OFFLINE=1 a copy already in the hub's cache is used."
        ) from error


def _rows(label: str, builder: str, **where: str | None) -> Iterator[Piece]:
    import datasets  # 0.75 s and 140 MB, so only here

    try:
        rows = datasets.load_dataset(builder, split="train", streaming=True, **where)
        column = None
        for row in rows:
            if column is None:
                texts = [name for name, value in row.items() if isinstance(value, str)]
                texts = ["text"] if "text" in row else texts
                if len(texts) != 1:
                    raise DataError(
                        f"{label} has no column `text` and not exactly one column of text; it has {list(row)}"
                    )
                column = texts[0]
            if not isinstance(text := row.get(column) or "", str):
                raise DataError(f"{label}: its column {column!r} holds {text!r}, which is not text")
            if text:
                yield text, True
    except DataError:
        raise
    except Exception as error:  # pyarrow, fsspec, httpx and datasets raise a dozen unrelated types
        kind, reason = type(error).__name__, str(error).strip().split("\n")[0]
        if "scripts are no longer supported" in reason:
            advice = "It is a data set script, which is never run: choose one stored as Parquet"
        elif isinstance(error, ConnectionError):
            advice = "There is no copy in the hub's cache, so this needs the network, and HF_HUB_OFFLINE unset"
        else:
            advice = "Check its name, and that it is whole"
        raise DataError(f"{label!r} cannot be read as text ({kind}: {reason}). {advice}.") from error
