import subprocess
import sys

import numpy as np
import pytest
import torch

from qkvlab.tasks import IMAGES, LISTS, TOKENS, load

NAMES = ("shakespeare", "text", "sotu", *IMAGES, *LISTS)


@pytest.mark.parametrize("name", NAMES)
def test_every_task_keeps_the_protocol_and_touches_nothing_global(name):
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    task = load(name)
    x, y = task.batch(np.random.default_rng(0), 3, 8)
    vx, vy = task.validation(8, 5)
    assert len(x) == len(y) == 3 and len(vx) == len(vy) == 5
    assert y.dtype == torch.int64 and y.min() >= 0 and y.max() < task.outputs
    assert task.kind in ("text", "lists", "images") and task.unit.startswith("nats per ")
    assert (np.random.get_state()[1] == numpy_state).all() and torch.equal(torch.get_rng_state(), torch_state)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ({"name": "shakespear"}, ["'shakespear'", "tinyshakespeare", "reverse", "mnist"]),
        ({"name": "text", "tokens": "bpe"}, ["'bpe'", *TOKENS]),
        ({"name": "sotu", "data": "x.txt"}, ["'x.txt'", "'text'", "'sotu'"]),
        ({"name": "mnist", "data": "x.txt"}, ["'x.txt'", "'mnist'"]),
    ],
)
def test_what_does_not_exist_is_named_with_what_does(call, names):
    with pytest.raises(ValueError) as error:
        load(**call)
    assert all(name in str(error.value) for name in names)


def test_heavy_packages_stay_out():
    code = """
import sys
from qkvlab.tasks import load
for name in ("shakespeare", "digits", "sort"): load(name)
load("text", tokens="gpt2").encode("Hello")
heavy = {"pooch", "datasets", "rich", "PIL", "tokenizers", "pandas", "marimo", "plotly", "requests"}
print(*sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
