"""The numpy forward pass against torch's own functions, against laws it must obey, and as oracle for every model."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvlab.models import convert
from qkvlab.models.transformer import GPT, Encoder, ModelConfig, ViT
from qkvlab.models.variants import VARIANTS
from qkvlab.theory import reference
from qkvlab.theory.reference import Net

CAUSAL = [*VARIANTS, "qkv+gqa2", "qkv+mqa", "tie-kv+gqa2", "tie-kv+mqa", "identity-q+mqa", "identity-q+tie-kv+gqa2"]
MORE = ["identity-q+identity-k", "identity-k+identity-v", "tie-qk+identity-v"]
PLUS = ["qkv+pos2d", "tie-qk+pos2d", "tie-qkv+pos2d", "identity-q+pos2d", "tie-kv+gqa2+pos2d"]


def config(**options):
    return ModelConfig(**{"layers": 2, "heads": 4, "width": 16, "context": 9, "init_std": 0.4} | options)


def shaken(model):
    """In float64, with gains and biases moved off 1 and 0 so that they matter."""
    model = model.double()
    for i, p in enumerate(model.parameters()):
        p.data += 0.1 * torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(i))
    return model


def check(model, x):
    weights, net = convert.to_numpy(model), convert.net(model)
    np.testing.assert_allclose(
        reference.forward(net, weights, x.numpy()), model(x).detach().numpy(), rtol=0, atol=1e-11
    )
    for ours, theirs in zip(reference.maps(net, weights, x.numpy()), model.maps(x), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-11)


def ids(*shape):
    return torch.randint(13, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("positions", ["learned", "rope", "none"])
@pytest.mark.parametrize("slug", [*CAUSAL, *MORE])
def test_gpt_of_every_variant(slug, positions):
    check(shaken(GPT(config(variant=slug, positions=positions), 13)), ids(2, 7))


@pytest.mark.parametrize("slug", [*CAUSAL, *PLUS])
def test_encoder_of_every_variant(slug):
    check(shaken(Encoder(config(variant=slug, causal=False, bias=True), 13, 5)), ids(2, 7))


@pytest.mark.parametrize("slug", ["qkv", "tie-qkv", "identity-q+mqa", "tie-qk+pos2d"])
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_vit(slug, pool):
    model = ViT(
        config(variant=slug, causal=False, pos2d_channels=50), image=8, patch=4, channels=3, classes=6, pool=pool
    )
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    check(shaken(model), x)


OPTIONS = [
    {"activation": "relu"},
    {"activation": "relu2", "mlp": 2.5},
    {"norm": "rms"},
    {"norm": "rms", "norm_gain": False, "norm_embedding": True},
    {"norm": "none"},
    {"norm_embedding": True, "bias": True},
    {"skips": "attention"},
    {"skips": "mlp", "norm": "none"},
    {"skips": "none"},
    {"positions": "rope", "rope_base": 100.0, "qk_norm": True},
    {"logit_scale": 2.0},
    {"softcap": 1.5},
    {"tied": False, "bias": True},
    {"shared_layers": True, "layers": 3},
    {"layers": 1},
    {"dropout": 0.0, "init": "uniform", "init_std": None},
    {"init_std": None, "init_depth_scaled": False},
]


@pytest.mark.parametrize("slug", ["qkv", "identity-q+tie-kv", "tie-kv+gqa2"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()))
def test_every_option(slug, options):
    check(shaken(GPT(config(variant=slug, **options), 13)), ids(2, 7))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_options_together(data):
    """Any mixture of options agrees; single options are above, this looks for interactions."""
    options = {
        "variant": data.draw(st.sampled_from(CAUSAL)),
        "activation": data.draw(st.sampled_from(["gelu", "relu", "relu2"])),
        "norm": data.draw(st.sampled_from(["layer", "rms", "none"])),
        "norm_gain": data.draw(st.booleans()),
        "skips": data.draw(st.sampled_from(["both", "attention", "mlp", "none"])),
        "positions": data.draw(st.sampled_from(["learned", "rope", "none"])),
        "causal": data.draw(st.booleans()),
        "qk_norm": data.draw(st.booleans()),
        "tied": data.draw(st.booleans()),
        "shared_layers": data.draw(st.booleans()),
        "bias": data.draw(st.booleans()),
        "softcap": data.draw(st.sampled_from([0.0, 5.0])),
        "init_std": 0.3,
    }
    check(shaken(GPT(config(**options), 13)), ids(1, 6))


# --- the pieces, against torch and against laws ---------------------------------------------------------------------


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def test_pieces_are_torchs_functions():
    x = noise(5, 8)
    t = torch.from_numpy(x)
    close = lambda a, b: np.testing.assert_allclose(a, b.numpy(), rtol=0, atol=1e-13)
    net = Net(layers=1, heads=1)
    close(reference.norm(net, {"n.gain": x[0], "n.bias": x[1]}, "n", x), F.layer_norm(t, (8,), t[0], t[1], 1e-5))
    close(reference.rms(x), F.rms_norm(t, (8,), eps=1e-5))
    close(reference.softmax(x), t.softmax(-1))
    eye = {"W_1": np.eye(8), "W_2": np.eye(8)}
    for name, f in (("gelu", F.gelu), ("relu", F.relu), ("relu2", lambda z: F.relu(z) ** 2)):
        close(reference.mlp(Net(layers=1, heads=1, activation=name), eye, "", x), f(t))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.sampled_from([2, 4, 8]), st.integers(0, 9), st.integers(0, 2**32 - 1))
def test_rotation_keeps_lengths_and_sees_distance_alone(T, d_h, shift, seed):
    x = np.random.default_rng(seed).standard_normal((T, d_h))
    r = reference.rotate(x, 10000.0)
    np.testing.assert_allclose((r**2).sum(-1), (x**2).sum(-1), rtol=1e-12)
    later = reference.rotate(np.vstack([np.zeros((shift, d_h)), x]), 10000.0)[shift:]
    np.testing.assert_allclose(later @ later.T, r @ r.T, rtol=0, atol=1e-11)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.sampled_from([2, 4, 10]), st.integers(0, 2**32 - 1))
def test_after_softmax_the_2d_term_is_a_temperature_and_a_key_bias(T, m, seed):
    """PAPERS B.1.5: what depends on the row alone, and the convolution's bias, vanish in the row softmax."""
    rng = np.random.default_rng(seed)
    scores, w, b = rng.standard_normal((T, T)), rng.standard_normal(m), rng.standard_normal(1)
    A = reference.softmax(reference.two_d_term(scores, w, b))
    only_columns = w.copy()
    only_columns[: m // 2] = 0
    key_bias = reference.two_d_term(np.zeros((T, T)), only_columns, np.zeros(1))[0]
    np.testing.assert_allclose(A, reference.softmax(w.sum() * scores + key_bias), rtol=0, atol=1e-13)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["qkv", "tie-kv", "tie-qk", "tie-qkv"]), st.booleans(), st.integers(0, 2**32 - 1))
def test_lemma_3_1_a_change_of_basis_of_the_input_is_undone_by_the_projections(slug, rope, seed):
    """Attn(X Theta; Theta^-1 W) = Attn(X; W), for every variant whose projections are all learned."""
    model = GPT(config(variant=slug, layers=1), 13).double()
    net = Net(**{**vars(convert.net(model)), "rope_base": 100.0 if rope else 0.0})
    weights, rng = convert.to_numpy(model), np.random.default_rng(seed)
    x, theta = rng.standard_normal((6, 16)), np.linalg.qr(rng.standard_normal((16, 16)))[0] * rng.uniform(0.5, 2, 16)
    moved = {n: np.linalg.solve(theta, w) if n[2:] in ("W_Q", "W_K", "W_V") else w for n, w in weights.items()}
    np.testing.assert_allclose(
        reference.attention(net, moved, "0.", x @ theta), reference.attention(net, weights, "0.", x), rtol=0, atol=1e-12
    )
