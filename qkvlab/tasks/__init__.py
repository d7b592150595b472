"""What is learned: text, lists of digits, images. `load` gives a `Task` by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from .sources import DataError

if TYPE_CHECKING:  # a page that only wants a file need not wait for torch
    from torch import Tensor

__all__ = ["IMAGES", "LISTS", "TEXTS", "TOKENS", "DataError", "Task", "load"]

TEXTS = ("shakespeare", "text", "sotu", "tinyshakespeare")
IMAGES = ("mnist", "fashion", "digits")
LISTS = ("reverse", "sort", "sub", "swap", "copy")
TOKENS = ("char", "bpe512", "bpe1024", "gpt2")


class Task(Protocol):
    """What a model is trained on. Everything random comes from the generator handed to `batch`."""

    name: str
    inputs: int  # vocabulary size; channels for images
    outputs: int  # vocabulary size, or classes
    unit: str  # of the loss, such as "nats per character"

    @property
    def kind(self) -> Literal["text", "lists", "images"]: ...

    def batch(self, rng: np.random.Generator, size: int, context: int) -> tuple[Tensor, Tensor]:
        """x and y on the CPU; y int64, -100 where nothing is scored. `context` counts for text alone."""
        ...

    def validation(self, context: int, limit: int) -> tuple[Tensor, Tensor]:
        """Fixed rows, disjoint from what `batch` draws from; at most `limit` of them."""
        ...


def load(name: str, *, tokens: str = "char", data: str | None = None, length: int = 16) -> Task:
    """The task of that name.

    `tokens` (char, bpe512, bpe1024, gpt2) counts for text, `length` for lists. `data` puts a text of your own in
    place of Shakespeare: a text or Parquet file, JSON lines, a folder of these, or a hub id `owner/name`.

    Raises ValueError for a name, tokens or length that does not exist, DataError (a ValueError) for the bytes.
    """
    if name in LISTS or name in IMAGES:
        if data is not None:
            raise ValueError(f"data={data!r}: only the task 'text' reads data of your own, not {name!r}")
        if name in LISTS:
            from .synthetic import ListTask

            return ListTask(name, length)
        from .vision import images

        return images(name)
    if name not in TEXTS:
        raise ValueError(f"task {name!r} is unknown; there are: {', '.join(TEXTS + IMAGES + LISTS)}")
    if tokens not in TOKENS:
        raise ValueError(f"tokens={tokens!r} is unknown; there are: {', '.join(TOKENS)}")
    from . import text

    if data is not None:
        if name not in ("text", "shakespeare"):
            raise ValueError(f"data={data!r} takes the place of Shakespeare: ask for the task 'text', not {name!r}")
        return text.own(data, tokens)
    return text.shipped("shakespeare" if name == "text" else name, tokens)
