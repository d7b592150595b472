"""Five tasks on lists of digits: REVERSE, SORT, SUB, SWAP, COPY (paper B, section 4.1; PAPERS' definitions).

A list over {0..9} goes in, a list of equal length comes out, and every position is a 10-way classification. 10,000
lists train and 2,000 test, as in the authors' re-implementation; the same lists for all five tasks, so tasks compare.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

TRAIN, TEST, SEED = 10_000, 2_000, 2026

RULES: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # (N, T) -> (N, T)
    "reverse": lambda x: x[:, ::-1],
    "sort": lambda x: np.sort(x, axis=1),
    "sub": lambda x: 9 - x,
    "swap": lambda x: np.roll(x, x.shape[1] // 2, axis=1),
    "copy": lambda x: x,
}


@lru_cache(maxsize=16)
def lists(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Training (10000, T) and test (2000, T) lists of digits, uint8, from a fixed seed.

    No test list is a training list, except below length 4, where the 10**length lists there are do not suffice.
    """
    rng = np.random.default_rng([SEED, length])
    train = rng.integers(0, 10, (TRAIN, length), dtype=np.uint8)
    seen = {row.tobytes() for row in train} if length >= 4 else set()
    test = np.empty((0, length), np.uint8)
    while len(test) < TEST:
        drawn = rng.integers(0, 10, (TEST, length), dtype=np.uint8)
        test = np.concatenate([test, drawn[[row.tobytes() not in seen for row in drawn]]])
    return train, test[:TEST]


class ListTask:
    """One of the five tasks at one length. x and y are (rows, length) int64 digits; every position is scored.

    Raises ValueError for an unknown name, a length below 1, or SWAP with an odd length.
    """

    kind: Literal["lists"] = "lists"
    inputs = outputs = 10
    unit = "nats per digit"

    def __init__(self, name: str, length: int = 16):
        if name not in RULES:
            raise ValueError(f"list task {name!r} is unknown; there are: {', '.join(RULES)}")
        if not 1 <= length <= 1024:
            raise ValueError(f"length={length}: allowed is a list of 1 to 1024 digits")
        if name == "swap" and length % 2:
            raise ValueError(
                f"length={length}: swap exchanges two halves and needs an even length, such as {length + 1}"
            )
        self.name, self.length = name, length
        self._train, self._test = ((x, np.ascontiguousarray(RULES[name](x))) for x in lists(length))

    def batch(self, rng: np.random.Generator, size: int, context: int = 0) -> tuple[Tensor, Tensor]:
        """`size` training lists drawn with replacement and their answers, (size, length) each."""
        rows = rng.integers(0, TRAIN, size)
        return _tensors(self._train[0][rows], self._train[1][rows])

    def validation(self, context: int = 0, limit: int = TEST) -> tuple[Tensor, Tensor]:
        """The first `limit` of the 2,000 test lists and their answers."""
        return _tensors(self._test[0][:limit], self._test[1][:limit])


def _tensors(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
