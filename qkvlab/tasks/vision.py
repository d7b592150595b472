"""Small real images: handwritten digits 8x8, MNIST 28x28, Fashion-MNIST 28x28. One grey channel, ten classes."""

from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .sources import path_of

FILE = {"digits": "digits8x8.npz", "mnist": "mnist_10k.npz", "fashion": "fashion_mnist_12k.npz"}


class ImageTask:
    """Images (rows, 1, H, W) float32 in [0, 1] and their class (rows,) int64.

    Fixed splits in the order of the files: digits 1,437 + 360, MNIST 8,000 + 2,000,
    Fashion-MNIST 10,000 + 2,000. Pixels are kept as bytes and scaled as they are drawn, a quarter of the memory.
    """

    kind: Literal["images"] = "images"
    inputs, outputs = 1, 10
    unit = "nats per image"

    def __init__(self, name: str, path: Path):
        self.name = name
        with np.load(path) as file:
            if name == "fashion":
                train, valid = (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])
                self.classes = tuple(str(c) for c in file["classes"])
            else:
                x, y, cut = file["x"], file["y"], {"digits": 1437, "mnist": 8000}[name]
                train, valid = (x[:cut], y[:cut]), (x[cut:], y[cut:])
                self.classes = tuple("0123456789")
        self._scale = 16.0 if name == "digits" else 255.0
        self._train, self._valid = train, valid
        self.image: int = train[0].shape[-1]

    def batch(self, rng: np.random.Generator, size: int, context: int = 0) -> tuple[Tensor, Tensor]:
        """`size` training images drawn with replacement, and their classes."""
        rows = rng.integers(0, len(self._train[1]), size)
        return self._tensors(self._train[0][rows], self._train[1][rows])

    def validation(self, context: int = 0, limit: int = 2000) -> tuple[Tensor, Tensor]:
        """The first `limit` held-out images and their classes."""
        return self._tensors(self._valid[0][:limit], self._valid[1][:limit])

    def _tensors(self, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
        pixels = x[:, None].astype(np.float32) / np.float32(self._scale)
        return torch.from_numpy(pixels), torch.from_numpy(y.astype(np.int64))


@lru_cache(maxsize=4)
def _read(name: str, path: Path) -> ImageTask:
    return ImageTask(name, path)


def images(name: str) -> ImageTask:
    """The task `digits`, `mnist` or `fashion`. Raises DataError when its file is missing or damaged."""
    return _read(name, path_of(FILE[name]))
