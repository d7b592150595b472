"""Tests for a machine with a CUDA device: numpy, torch, safetensors and pytest suffice, no data file is read.

pytest tests/gpu                             on a CUDA device; without one all are deselected, and pytest says so
QKVLAB_TEST_DEVICE=cpu pytest tests/gpu      the same bodies elsewhere (bfloat16 excepted), to know that they work
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

DEVICE = os.environ.get("QKVLAB_TEST_DEVICE") or ("cuda" if torch.cuda.is_available() else "")
REASON = "tests/gpu: no CUDA device here, its tests are deselected (QKVLAB_TEST_DEVICE=cpu runs them on the CPU)"


def pytest_collection_modifyitems(config, items):
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    if not DEVICE and ours:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]
        config.stash[_deselected] = len(ours)


_deselected = pytest.StashKey[int]()


def pytest_terminal_summary(terminalreporter, config):
    if config.stash.get(_deselected, 0):
        terminalreporter.write_line(REASON)


class Letters:
    """A text of nothing: letters of which each is likely followed by the next. No files, no tokenizer."""

    name, kind, inputs, outputs, unit = "letters", "text", 32, 32, "nats per letter"

    def batch(self, rng, size, context):
        steps = rng.choice([1, 2, 5], p=[0.8, 0.1, 0.1], size=(size, context + 1))
        ids = torch.from_numpy(steps.cumsum(1) % 32)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def validation(self, context, limit):
        return self.batch(np.random.default_rng(12345), limit, context)


class Stripes:
    """Images of stripes whose direction and width are the class."""

    name, kind, inputs, outputs, unit, image = "stripes", "images", 1, 4, "nats per image", 28

    def batch(self, rng, size, context):
        y = rng.integers(0, 4, size)
        grid = np.indices((28, 28)) + rng.integers(0, 8, (size, 1, 1, 1))  # (size, 2, 28, 28)
        line = grid[np.arange(size), y % 2] // np.where(y < 2, 2, 4)[:, None, None] % 2
        return torch.from_numpy(line[:, None].astype(np.float32)), torch.from_numpy(y)

    def validation(self, context, limit):
        return self.batch(np.random.default_rng(12345), limit, context)


@pytest.fixture(scope="session")
def device():
    return DEVICE


@pytest.fixture(params=["GPT", "ViT"])
def task(request):
    return Letters() if request.param == "GPT" else Stripes()
