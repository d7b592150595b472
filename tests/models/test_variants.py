"""Variants: the arithmetic of paper B's tables and of the circuits, and refusals that name what is impossible."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, jacrev

from qkvlab.models.attention import Attention
from qkvlab.models.variants import VARIANTS, Variant, variant

SHARED = ["qkv+gqa2", "qkv+mqa", "tie-kv+gqa2", "tie-kv+mqa", "identity-q+gqa2", "identity-q+tie-kv+gqa2"]

# PAPERS' table at d=8, d_h=2: attention parameters, circuit dimension, cache numbers a token and layer.
TABLE = {
    "qkv": (256, 224, 16),
    "tie-kv": (192, 176, 8),
    "tie-qk": (192, 172, 16),
    "tie-qkv": (128, 124, 8),
    "identity-q": (192, 176, 16),
    "identity-v": (192, 176, 16),
    "identity-q+tie-kv": (128, 128, 8),
    "identity-q+identity-v": (128, 128, 16),
    "qkv+gqa2": (192, 176, 8),
    "tie-kv+gqa2": (160, 152, 4),
    "identity-q+gqa2": (128, 120, 8),
    "identity-q+tie-kv+gqa2": (96, 96, 4),
    "qkv+mqa": (160, 152, 4),
    "tie-kv+mqa": (144, 140, 2),
}


@pytest.mark.parametrize("slug", TABLE)
def test_arithmetic_of_the_table(slug):
    v = variant(slug)
    assert (v.parameters(8, 4), v.circuit_dimension(8, 4), v.cache_numbers(8, 4)) == TABLE[slug]


class Circuits(nn.Module):
    """Weights to circuits: W_Q^h W_K^hT and W_V^h W_O^h of every query head, read off what `project` does to X = I."""

    def __init__(self, slug: str, d: int, heads: int, seed: int):
        super().__init__()
        self.attention = Attention(d, heads, variant(slug), causal=True, context=d).double()
        rng = torch.Generator().manual_seed(seed)
        for p in self.attention.parameters():
            p.data.normal_(generator=rng)

    def forward(self):
        att = self.attention
        W_O = att.W_O.weight.T.unflatten(0, (att.heads, att.d_h))  # (H, d_h, d)
        q, k, v = (
            t[0].repeat_interleave(att.heads // t.shape[1], 0)
            for t in att.project(torch.eye(len(W_O[0, 0])).double()[None])
        )
        return torch.cat([(q @ k.mT).flatten(), (v @ W_O).flatten()])


@pytest.mark.parametrize("slug", [*VARIANTS, *SHARED, "identity-q+identity-k", "tie-qk+identity-v"])
@pytest.mark.parametrize(("d", "heads"), [(8, 4), (6, 2), (12, 4)])
def test_circuit_dimension_is_the_rank_of_the_jacobian(slug, d, heads):
    if slug == "qkv+gqa2" and heads == 2:
        slug = "qkv"
    model = Circuits(slug, d, heads, seed=1)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    rows = [j.flatten(1) for j in jacrev(lambda p: functional_call(model, p, ()))(parameters).values()]
    singular = np.linalg.svd(torch.cat(rows, 1).numpy(), compute_uv=False)
    assert (singular > 1e-9 * singular[0]).sum() == variant(slug).circuit_dimension(d, heads)


@pytest.mark.parametrize("slug", [*VARIANTS, *SHARED, "tie-qk+pos2d", "tie-kv+gqa2+pos2d", "identity-q+identity-k"])
def test_slug_names_the_variant_and_back(slug):
    v = variant(slug)
    assert v.slug == slug and variant(v.slug) == v


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["own", "identity", "key"]),
    st.sampled_from(["own", "identity"]),
    st.sampled_from(["own", "identity", "key"]),
    st.sampled_from([None, 1, 2, 4]),
    st.booleans(),
    st.sampled_from([(16, 4), (24, 4), (32, 8)]),
    st.booleans(),
)
def test_every_variant_is_refused_or_counts_right(query, key, value, kv_heads, pos2d, size, bias):
    """Whatever three words say: a ValueError, or a module with exactly the parameters the arithmetic promises."""
    try:
        v = Variant(query, key, value, kv_heads, pos2d)
    except ValueError as error:
        assert kv_heads is not None or key == "identity", error
        return
    assert variant(v.slug) == v
    module = Attention(*size, v, causal=False, context=8, bias=bias)
    assert sum(p.numel() for p in module.parameters()) == v.parameters(*size, bias=bias)
    q, k, val = module.project(torch.zeros(1, 3, size[0]))
    stored = {id(t): t.numel() // 3 for t in (k, val)}
    assert sum(stored.values()) == v.cache_numbers(*size)
    assert (q is k) == (query == "key" or query == key == "identity")
    assert v.circuit_dimension(*size) <= v.parameters(*size)


@pytest.mark.parametrize(
    ("slug", "says"),
    [
        ("identity-k+gqa2", "W_K=I"),
        ("identity-v+mqa", "W_V=I"),
        ("tie-qk+gqa2", "Q=K"),
        ("tie-qkv+mqa", "Q=K"),
        ("identity-k+tie-kv", "value='identity'"),
        ("tie-qk+identity-k", "query='identity'"),
        ("identity-q+tie-qk", "a second time"),
        ("qkv+gqa2+mqa", "a second time"),
        ("gqa2", "begins with one of qkv"),
        ("qkv+gqa0", "gqaN"),
        ("Q-K=V", "tie-kv"),
        ("", "identity-q"),
    ],
)
def test_impossible_and_unknown_slugs_are_refused_by_name(slug, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        variant(slug)


def test_heads_that_do_not_fit_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"kv_heads=3 does not divide heads=4: allowed are 1, 2, 4"):
        variant("qkv+gqa3").parameters(16, 4)
    with pytest.raises(ValueError, match=r"width=10, heads=4"):
        variant("qkv").cache_numbers(10, 4)
    with pytest.raises(ValueError, match=r"kv_heads=0"):
        Variant(kv_heads=0)
    with pytest.raises(ValueError, match=r"query='keys': allowed are own, identity, key"):
        Variant(query="keys")  # type: ignore[arg-type]


def test_variants_and_reference_need_no_torch():
    """They run in a browser too."""
    code = "import sys, qkvlab.models.variants, qkvlab.theory.reference; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_the_papers_use():
    spelled = {s: variant(s).paper for s in ("qkv", "tie-kv", "tie-qk", "tie-qkv", "tie-qk+pos2d", "identity-q+tie-kv")}
    assert list(spelled.values()) == ["QKV", "Q-K=V", "Q=K-V", "Q=K=V", "(Q=K-V)+", ""]
    assert [variant(s).paper for s in ("qkv+gqa4", "qkv+mqa", "tie-kv+gqa4", "tie-kv+mqa")] == [
        "GQA-4",
        "MQA",
        "Q-GQA-4",
        "Q-MQA",
    ]
    assert variant("tie-qk+pos2d").label == "(Q=K, V)+" and variant("tie-kv+mqa").label == "Q, K=V, 1 K/V head"


def test_no_two_families_look_alike():
    looks = {(variant(s).colour, variant(s).dash) for s in VARIANTS}
    assert len(looks) == len({c for c, _ in looks}) == len(VARIANTS) and variant("qkv").colour == "#7f7f7f"
    family = [variant(s) for s in ("tie-kv", "tie-kv+gqa2", "tie-kv+mqa", "tie-kv+pos2d")]
    assert len({v.dash for v in family}) == 4 and len({v.colour for v in family}) == 1
