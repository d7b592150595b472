"""One attention module against SDPA, nn.MultiheadAttention and formulas; its maps; its scale; its mask."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from qkvlab.models.attention import Attention
from qkvlab.models.variants import VARIANTS, variant

SHARED = ["qkv+gqa2", "qkv+mqa", "tie-kv+gqa2", "identity-q+mqa", "identity-q+tie-kv+gqa2"]
PLUS = ["qkv+pos2d", "tie-qk+pos2d", "tie-qkv+pos2d", "identity-q+pos2d", "tie-kv+gqa2+pos2d"]
CAUSAL = [*VARIANTS, *SHARED]


def make(slug, d=16, heads=4, seed=0, cls=Attention, **options):
    options = {"causal": "pos2d" not in slug, "context": 12} | options
    module = cls(d, heads, variant(slug), **options).double()
    for i, p in enumerate(module.parameters()):
        p.data.normal_(0, 0.5, generator=torch.Generator().manual_seed(100 * seed + i))
    return module


def noise(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_qkv_is_torchs_multihead_attention(bias, causal):
    ours, x = make("qkv", bias=bias, causal=causal), noise(3, 7, 16)
    theirs = nn.MultiheadAttention(16, 4, bias=bias, batch_first=True, dtype=torch.float64)
    parts = (ours.W_Q, ours.W_K, ours.W_V)
    theirs.in_proj_weight.data = torch.cat([p.weight for p in parts])
    theirs.out_proj.weight.data = ours.W_O.weight
    if bias:
        theirs.in_proj_bias.data, theirs.out_proj.bias.data = torch.cat([p.bias for p in parts]), ours.W_O.bias
    mask = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    y, weights = theirs(x, x, x, attn_mask=mask, average_attn_weights=False)
    torch.testing.assert_close(ours(x), y, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.map(x), weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("slug", CAUSAL)
@pytest.mark.parametrize("causal", [False, True])
def test_every_variant_is_sdpa_on_the_matrices_it_names(slug, causal):
    """An oracle with explicit matrices: absent ones are I, tied ones are the keys', shared heads are repeated."""
    att, x, v = make(slug, causal=causal), noise(2, 6, 16), variant(slug)
    eye = torch.eye(16, dtype=torch.float64)
    W_K = eye if v.key == "identity" else att.W_K.weight.T
    W_Q = {"own": att.W_Q and att.W_Q.weight.T, "identity": eye, "key": W_K}[v.query]
    W_V = {"own": att.W_V and att.W_V.weight.T, "identity": eye, "key": W_K}[v.value]
    heads = [(x @ W).unflatten(-1, (-1, 4)).transpose(1, 2) for W in (W_Q, W_K, W_V)]
    q, k, val = (h.repeat_interleave(4 // h.shape[1], 1) for h in heads)
    y = F.scaled_dot_product_attention(q, k, val, is_causal=causal)
    torch.testing.assert_close(att(x), y.transpose(1, 2).flatten(2) @ att.W_O.weight.T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"rope_base": 100.0}, {"qk_norm": True, "rope_base": 50.0, "bias": True}])
@pytest.mark.parametrize("slug", [*CAUSAL, *PLUS])
def test_maps_are_the_weights_that_sdpa_used(slug, options):
    """A V W_O, with the recomputed map A and the values of `project`, is the module's output."""
    att, x = make(slug, **options), noise(2, 9, 16)
    A, (_, _, v) = att.map(x), att.project(x)
    assert A.shape == (2, 4, 9, 9)
    torch.testing.assert_close(A.sum(-1), torch.ones(2, 4, 9).double())
    y = A @ v.repeat_interleave(4 // v.shape[1], 1)
    torch.testing.assert_close(att.W_O(y.transpose(1, 2).flatten(2)), att(x), rtol=0, atol=1e-12)


class Sharpened(Attention):
    """The same module with its queries, as placed, multiplied by three."""

    def place(self, q, k):
        q, k = super().place(q, k)
        return 3 * q, k


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "rope_base": 50.0}])
@pytest.mark.parametrize("slug", [*CAUSAL, *PLUS])
def test_logit_scale_reaches_sdpa_and_maps(slug, options):
    x = noise(2, 9, 16)
    scaled, sharpened = make(slug, logit_scale=3.0, **options), make(slug, cls=Sharpened, **options)
    torch.testing.assert_close(scaled(x), sharpened(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(scaled.map(x), sharpened.map(x), rtol=0, atol=1e-12)
    assert not torch.allclose(scaled(x), make(slug, **options)(x), atol=1e-3)
    assert scaled.scale == 3.0 / math.sqrt(4)


def test_without_sharing_or_rope_the_scores_of_tied_queries_are_symmetric():
    """And the map, row-softmaxed, is not symmetric but reversible: A_ij pi_i = A_ji pi_j (PAPERS B.1.4)."""
    att, x = make("tie-qk", causal=False), noise(1, 7, 16)
    q, k, _ = att.project(x)
    scores = att.scale * q @ k.mT
    pi = scores.exp().sum(-1)
    flow = pi[..., None] * att.map(x)
    torch.testing.assert_close(flow, flow.mT)
    assert not torch.allclose(att.map(x), att.map(x).mT, atol=1e-2)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(CAUSAL),
    st.sampled_from([{}, {"rope_base": 10000.0}, {"qk_norm": True}]),
    st.integers(1, 8),
    st.integers(0, 10**6),
)
def test_a_later_token_never_changes_an_earlier_output(slug, options, t, seed):
    att, x = make(slug, **options), noise(2, 9, 16, seed=seed)
    other = x.clone()
    other[:, t:] = noise(2, 9 - t, 16, seed=seed + 1)
    assert torch.equal(att(x)[:, :t], att(other)[:, :t])
    assert torch.equal(att.map(x)[:, :, :t], att.map(other)[:, :, :t])
    assert not torch.allclose(att(x)[:, t:], att(other)[:, t:])


def test_the_control_without_a_mask_does_change():
    att, x = make("qkv", causal=False), noise(2, 9, 16)
    other = x.clone()
    other[:, -1] += 1
    assert not torch.allclose(att(x)[:, 0], att(other)[:, 0], atol=1e-4)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 5), st.sampled_from([100.0, 10000.0]), st.sampled_from(["qkv", "identity-q", "qkv+mqa"]))
def test_rope_scores_depend_on_distance_alone(shift, base, slug):
    """Equal content at positions t and t+shift: the scores among them are equal."""
    att, x = make(slug, rope_base=base, causal=False), noise(1, 6, 16)
    q, k, _ = att.project(torch.cat([noise(1, shift, 16, seed=5), x], 1))
    q, k = att.place(q, k)
    far = q[..., shift:, :] @ k[..., shift:, :].mT
    q, k = att.place(*att.project(x)[:2])
    torch.testing.assert_close(far, q @ k.mT, rtol=0, atol=1e-11)


def test_the_2d_term_is_the_literal_convolution():
    """m copies of the scores, plus P, through nn.Conv2d with a 1x1 kernel; half of P's channels see the row alone."""
    att, x = make("tie-qk+pos2d", channels=8), noise(2, 5, 16)
    position, P = torch.arange(5.0).double(), torch.empty(8, 5, 5).double()
    for c in range(4):
        wave = (torch.sin, torch.cos)[c % 2](position * 10000.0 ** (-2 * (c // 2) / 4))
        P[c], P[4 + c] = wave[:, None].expand(5, 5), wave[None, :].expand(5, 5)
    q, k, _ = att.project(x)
    scores = (q @ k.mT / 2).flatten(0, 1)[:, None].expand(-1, 8, -1, -1)
    collapsed = F.conv2d(scores + P, att.pos2d.view(1, 8, 1, 1), att.pos2d_bias)
    torch.testing.assert_close(att.map(x), collapsed.view(2, 4, 5, 5).softmax(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("slug", [*PLUS, "tie-qkv", "qkv+gqa2"])
def test_gradients_flow_through_everything_the_map_depends_on(slug):
    """The gradients of the fused path are those of A V W_O written out, the 2-D term's scalars included."""
    att, x, grads = make(slug, causal=False), noise(2, 6, 16), []
    v = lambda: att.project(x)[2].repeat_interleave(4 // att.kv_heads, 1)
    for y in (att(x), att.W_O((att.map(x) @ v()).transpose(1, 2).flatten(2))):
        grads.append(torch.autograd.grad((y * noise(2, 6, 16, seed=9)).sum(), list(att.parameters())))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_a_tied_matrix_is_absent_and_a_tied_role_the_same_tensor():
    att = make("tie-qkv")
    q, k, v = att.project(noise(1, 3, 16))
    assert att.W_Q is None and att.W_V is None and q is k and v is k
    assert [name for name, _ in att.named_parameters()] == ["W_K.weight", "W_O.weight"]


def test_values_tied_to_keys_are_taken_before_norm_and_rotation():
    att, x = make("tie-kv", qk_norm=True, rope_base=100.0), noise(1, 5, 16)
    y = att.map(x) @ att._split(att.W_K(x), 4)
    torch.testing.assert_close(att(x), att.W_O(y.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("slug", "options", "says"),
    [
        ("tie-qk+pos2d", {"causal": True}, "causal=False only"),
        ("tie-qk+pos2d", {"channels": 5}, "2, 4, 6"),
        ("qkv", {"rope_base": 100.0, "d": 12}, "d_h=3"),
        ("qkv", {"d": 18}, "width=18, heads=4"),
        ("qkv+gqa3", {}, "kv_heads=3"),
    ],
)
def test_impossible_modules_are_refused_by_name(slug, options, says):
    with pytest.raises(ValueError, match=says):
        make(slug, **options)


def test_a_move_to_another_precision_computes_the_rotation_again():
    rounded, exact = make("qkv", rope_base=100.0), noise(1, 12, 16)
    fresh = rounded.float().double()
    angle = 11 * 100.0 ** (-2 / 4)
    assert abs(float(fresh.cos[11, 1]) - math.cos(angle)) < 1e-15
    assert fresh(exact).dtype == torch.float64
