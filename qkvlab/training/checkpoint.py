"""How a run lies on disk, so that no kill, full disk or second process can leave half of something.

config.json              what was asked for, and what made it
records.jsonl            one line a step, written whole just before each checkpoint
checkpoint.safetensors   weights, optimiser state, and in the metadata the step: one file, so that it cannot be half new
status.json              how the run ended, written when it did
"""

import json
import math
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

CONFIG, RECORDS, CHECKPOINT, STATUS = "config.json", "records.jsonl", "checkpoint.safetensors", "status.json"
Identity = tuple[int, int] | None


class RunError(ValueError):
    """A run's folder that cannot be used: the text names the file and says what to do. Nothing has been changed."""


@dataclass(frozen=True)
class Record:
    """One optimiser step.

    step: steps taken, from 1. loss: mean of the step's batch before the update, in the task's unit. lr: the learning
    rate used. grad_norm: of the whole gradient, before clipping. seconds: of training so far, evaluation and saving
    left out. val_loss, val_accuracy: after the update, on the fixed validation rows, on the steps that evaluate.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    seconds: float
    val_loss: float | None = None
    val_accuracy: float | None = None  # where outputs are classes


def identity(path: Path) -> Identity:
    """Which file lies there, None where there is none. One that is put in its place is another."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def write_atomic(path: Path, content: bytes, coming: Callable[[Identity], None] = lambda identity: None) -> None:
    """Replace the file in one step: whoever reads it, at any moment and after any crash, finds the old or the new.

    `coming` is told the new file's identity just before it takes the old one's place.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's files are private; a teacher's runs are read by the class
        coming(identity(Path(name)))
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name itself must survive a power cut
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def tidy(folder: Path) -> None:
    """Before a run goes on: remove how it ended last, and what a kill left half written more than a minute ago."""
    (folder / STATUS).unlink(missing_ok=True)
    for path in folder.glob(".*.tmp"):
        if time.time() - path.stat().st_mtime > 60:
            path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1) + "\n").encode())


def read_json(path: Path) -> Any:
    """Raises RunError when the file cannot be read or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}): delete the folder {path.parent} to start that run anew") from None


def read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings in a run's config.json, and what made it, as JSON. Raises RunError when they are not there."""
    values = read_json(path)
    if not isinstance(values, dict):
        values = {}
    config, made = values.get("config", {}), values.get("made", {})
    whole = isinstance(config, dict) and "model" in config and isinstance(made, dict)
    if not whole or not isinstance(made.get("parameters", 0), int):
        raise RunError(f"{path} is not the config.json of a run: choose another folder")
    return config, made


def record_line(record: Record) -> bytes:
    return json.dumps(vars(record)).encode() + b"\n"


def read_records(path: Path) -> list[Record]:
    """The records of steps 1, 2, ...; empty without a file. A last line cut short is left out.

    Raises RunError when the file cannot be read, or a line is not the record of its step.
    """
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None
    records: list[Record] = []
    for number, line in enumerate(lines[:-1], start=1):  # the last piece is empty, or a line without its end
        try:
            record = Record(**json.loads(line))
            needed = [value for name, value in vars(record).items() if value is not None or not name.startswith("val_")]
            if record.step != number or not all(map(math.isfinite, needed)):
                raise ValueError
        except (ValueError, TypeError, OverflowError, RecursionError):
            what = f"{path}, line {number}, is not the record of step {number}"
            raise RunError(f"{what}: delete {path.parent} to start anew") from None
        records.append(record)
    return records


def _checksum(tensors: dict[str, Tensor], about: str) -> str:
    """safetensors notices a file cut short but not a flipped bit; this does."""
    crc = zlib.crc32(about.encode())
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"


def write_checkpoint(
    path: Path, tensors: dict[str, Tensor], about: dict[str, Any], coming: Callable[[Identity], None]
) -> None:
    """`tensors` from any device; `about`, any JSON, travels in the metadata; `coming` as in `write_atomic`."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps(about)
    write_atomic(path, safetensors.torch.save(tensors, {"about": text, "crc32": _checksum(tensors, text)}), coming)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the CPU, and `about`. Raises RunError when a bit of it is not as it was written."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        about = json.loads(metadata["about"])
        if metadata["crc32"] != _checksum(tensors, metadata["about"]):
            raise ValueError("its checksum is another")
    except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
        raise RunError(
            f"{path} is damaged ({error}). Nothing was changed: delete that file to train from the start, "
            "or choose another folder"
        ) from None
    return tensors, about
