import pytest

from qkvlab.training.recipes import recipe


@pytest.fixture
def tiny():
    """A run of milliseconds: settings over a small base. Dropout is on, so that its generator counts in every test."""

    def make(name="paper", variant="qkv", **settings):
        base = {"task": "reverse", "length": 6, "layers": 1, "heads": 2, "width": 16, "batch": 4, "dropout": 0.2}
        base |= {"steps": 8, "eval_every": 3, "eval_rows": 8, "device": "cpu"}
        return recipe(name, variant, **(base | settings))

    return make
