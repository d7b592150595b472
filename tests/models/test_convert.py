"""Weights go to numpy and back without loss, and are refused whole when one does not fit."""

import numpy as np
import pytest
import torch

from qkvlab.models import convert
from qkvlab.models.transformer import GPT, ModelConfig, ViT
from qkvlab.models.variants import VARIANTS


def small(**options):
    return ModelConfig(**{"layers": 2, "heads": 2, "width": 8, "context": 17, "bias": True} | options)


@pytest.mark.parametrize("slug", [*VARIANTS, "qkv+mqa"])
def test_round_trip(slug):
    model, other = (GPT(small(variant=slug, tied=False), 7) for _ in range(2))
    model.init_weights(4)
    convert.from_numpy(other, convert.to_numpy(model))
    for (name, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_orientation_and_names_are_those_of_the_papers():
    model = ViT(small(causal=False, variant="tie-qk+pos2d", norm_embedding=True, mlp=2))
    weights = convert.to_numpy(model)
    assert set(weights) == {
        *("embed", "embed.bias", "position", "cls", "norm_e.gain", "norm_e.bias", "norm_f.gain", "norm_f.bias"),
        *("readout", "readout.bias"),
        *(f"{layer}.{name}.{part}" for layer in (0, 1) for name in ("norm_1", "norm_2") for part in ("gain", "bias")),
        *(f"{layer}.W_{m}" for layer in (0, 1) for m in "KVO12"),
        *(f"{layer}.b_{m}" for layer in (0, 1) for m in "KVO12"),
        *(f"{layer}.pos2d{end}" for layer in (0, 1) for end in ("", "_bias")),
    }
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        torch.from_numpy(x.double().numpy() @ weights["0.W_1"] + weights["0.b_1"]),
        model.blocks[0].mlp.W_1(x).double(),
        rtol=1e-5,
        atol=1e-6,
    )
    assert all(w.dtype == np.float64 for w in weights.values())
    weights["0.W_K"][:] = 0
    assert model.blocks[0].attention.W_K.weight.abs().max().item() > 0  # copies, not views


def test_weights_that_do_not_fit_change_nothing():
    model = GPT(small(variant="identity-q"), 7)
    before = convert.to_numpy(model)
    with pytest.raises(ValueError, match=r"missing \[\], not in the model \['0.W_Q', '0.b_Q'"):
        convert.from_numpy(model, convert.to_numpy(GPT(small(), 7)))
    wrong = {name: w + 1 for name, w in before.items()} | {"1.W_2": np.zeros((8, 32))}
    with pytest.raises(ValueError, match=r"1.W_2 has shape \(8, 32\), the model wants \(32, 8\)"):
        convert.from_numpy(model, wrong)
    after = convert.to_numpy(model)
    assert all(np.array_equal(before[name], after[name]) for name in before)
