"""A transformer's forward pass in numpy float64, written to be read: what the torch models are tested against.

Row vectors as in the papers: a sequence is X of shape (T, d), Q = X W_Q, and head h owns columns h*d_h .. (h+1)*d_h.
One sequence, one head, one formula at a time; nothing is fused, batched or clever.

Weights are a flat dict of float64 arrays; `l` is the layer, a matrix is (in, out), what a network lacks is absent:
    embed (vocab, d) or, for images, (C*patch*patch, d) with embed.bias; position (T, d); cls (d); norm_e.gain/.bias (d)
    l.norm_1.gain/.bias  l.W_Q  l.W_K  l.W_V  l.W_O  l.b_Q ... l.b_O  l.pos2d (m)  l.pos2d_bias (1)
    l.norm_2.gain/.bias  l.W_1  l.W_2  l.b_1  l.b_2
    norm_f.gain/.bias (d); readout (d, outputs), readout.bias (without readout, the embedding is used: tied)
Under shared layers only layer 0 is there.
"""

import math
from dataclasses import dataclass

import numpy as np

EPSILON = 1e-5  # in every norm
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Net:
    """What the weights alone do not say. The fields mean what they mean in `ModelConfig` and `Variant`."""

    layers: int
    heads: int
    query: str = "own"  # own | identity | key
    key: str = "own"  # own | identity
    value: str = "own"  # own | identity | key
    kv_heads: int | None = None
    activation: str = "gelu"
    norm: str = "layer"
    norm_embedding: bool = False
    skips: str = "both"
    rope_base: float = 0.0  # 0: no RoPE
    causal: bool = True
    logit_scale: float = 1.0
    qk_norm: bool = False
    softcap: float = 0.0
    patch: int = 0  # side of an image patch; 0: the input is tokens
    pool: str = ""  # "cls" or "mean": one answer for the sequence; "": one for each token


def forward(net: Net, weights: Weights, x: np.ndarray) -> np.ndarray:
    """Logits: token ids (B, T) or features (B, T, vocab) -> (B, T, outputs); images (B, C, H, W) -> (B, outputs)."""
    return np.stack([_logits(net, weights, one) for one in x])


def maps(net: Net, weights: Weights, x: np.ndarray) -> list[np.ndarray]:
    """The attention weights of each layer, (B, H, T, T): row i says where token i looks."""
    per_sequence = []
    for one in x:
        found: list[np.ndarray] = []
        stream(net, weights, embed(net, weights, one), found)
        per_sequence.append(found)
    return [np.stack(layer) for layer in zip(*per_sequence, strict=True)]


def _logits(net: Net, weights: Weights, one: np.ndarray) -> np.ndarray:
    x = stream(net, weights, embed(net, weights, one))  # (T, d)
    if net.pool:
        x = x[0] if net.pool == "cls" else x.mean(axis=0)  # (d)
    readout = weights.get("readout", weights["embed"].T)  # (d, outputs)
    z = x @ readout + weights.get("readout.bias", 0.0)
    return net.softcap * np.tanh(z / net.softcap) if net.softcap else z


def embed(net: Net, weights: Weights, one: np.ndarray) -> np.ndarray:
    """One input as the stream's first state, (T, d): ids (T), features (T, vocab) or an image (C, H, W)."""
    if net.patch:
        C, height, width = one.shape
        p = net.patch
        patches = [
            one[:, i : i + p, j : j + p].reshape(C * p * p) for i in range(0, height, p) for j in range(0, width, p)
        ]
        x = np.stack(patches) @ weights["embed"] + weights.get("embed.bias", 0.0)
        if "cls" in weights:
            x = np.vstack([weights["cls"], x])
    elif np.issubdtype(one.dtype, np.integer):
        x = weights["embed"][one]
    else:
        x = one @ weights["embed"]
    if "position" in weights:
        x = x + weights["position"][: len(x)]
    return norm(net, weights, "norm_e", x) if net.norm_embedding else x


def stream(net: Net, weights: Weights, x: np.ndarray, found: list | None = None) -> np.ndarray:
    """All blocks and the last norm: (T, d) -> (T, d). Attention weights (H, T, T) are appended to `found`."""
    shared = not any(name.startswith("1.") for name in weights)
    for layer in range(net.layers):
        at = "0." if shared else f"{layer}."
        a = attention(net, weights, at, norm(net, weights, at + "norm_1", x), found)
        x = x + a if net.skips in ("both", "attention") else a
        m = mlp(net, weights, at, norm(net, weights, at + "norm_2", x))
        x = x + m if net.skips in ("both", "mlp") else m
    return norm(net, weights, "norm_f", x)


def norm(net: Net, weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    """LayerNorm, RMSNorm or nothing over the last axis, then gain and bias where there are any."""
    if net.norm == "none":
        return x
    if net.norm == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    return rms(x) * weights.get(name + ".gain", 1.0) + weights.get(name + ".bias", 0.0)


def rms(x: np.ndarray) -> np.ndarray:
    """x / sqrt(mean(x^2) + epsilon) over the last axis."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)


def mlp(net: Net, weights: Weights, at: str, x: np.ndarray) -> np.ndarray:
    """activation(x W_1 + b_1) W_2 + b_2."""
    h = x @ weights[at + "W_1"] + weights.get(at + "b_1", 0.0)
    if net.activation == "gelu":
        h = h * 0.5 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
    else:
        h = np.maximum(h, 0) ** (2 if net.activation == "relu2" else 1)
    return h @ weights[at + "W_2"] + weights.get(at + "b_2", 0.0)


def project(net: Net, weights: Weights, at: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The variant: queries (T, d), keys and values (T, G*d_h), each learned, the input itself, or the keys."""

    def role(source: str, letter: str, keys: np.ndarray | None) -> np.ndarray:
        if source == "own":
            return x @ weights[f"{at}W_{letter}"] + weights.get(f"{at}b_{letter}", 0.0)
        return x if keys is None or source == "identity" else keys

    k = role(net.key, "K", None)
    return role(net.query, "Q", k), k, role(net.value, "V", k)


def attention(net: Net, weights: Weights, at: str, x: np.ndarray, found: list | None = None) -> np.ndarray:
    """Multi-head attention of one sequence, (T, d) -> (T, d), one head after the other."""
    T, d = x.shape
    d_h = d // net.heads
    queries, keys, values = project(net, weights, at, x)
    outputs, weightings = [], []
    for h in range(net.heads):
        g = h * (net.kv_heads or net.heads) // net.heads  # the key/value head that query head h shares
        q, k, v = (y[:, i * d_h : (i + 1) * d_h] for y, i in ((queries, h), (keys, g), (values, g)))
        if net.qk_norm:
            q, k = rms(q), rms(k)
        if net.rope_base:
            q, k = rotate(q, net.rope_base), rotate(k, net.rope_base)
        scores = net.logit_scale / math.sqrt(d_h) * q @ k.T  # (T, T)
        if at + "pos2d" in weights:
            scores = two_d_term(scores, weights[at + "pos2d"], weights[at + "pos2d_bias"])
        if net.causal:
            scores = np.where(np.arange(T)[:, None] < np.arange(T)[None, :], -np.inf, scores)
        A = softmax(scores)
        weightings.append(A)
        outputs.append(A @ v)  # (T, d_h)
    if found is not None:
        found.append(np.stack(weightings))
    return np.concatenate(outputs, axis=1) @ weights[at + "W_O"] + weights.get(at + "b_O", 0.0)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Row by row: positive weights that sum to one."""
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rotate(x: np.ndarray, base: float) -> np.ndarray:
    """RoPE: at position t the pair of coordinates (i, i + d_h/2) of a head turns by the angle t * base^(-2i/d_h)."""
    T, d_h = x.shape
    out = np.empty_like(x)
    for i in range(d_h // 2):
        angle = np.arange(T) * base ** (-2 * i / d_h)
        a, b = x[:, i], x[:, i + d_h // 2]
        out[:, i] = a * np.cos(angle) - b * np.sin(angle)
        out[:, i + d_h // 2] = b * np.cos(angle) + a * np.sin(angle)
    return out


def two_d_term(scores: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Paper B's (X)+ as in its authors' code: m copies of the scores plus a fixed code P, then a 1x1 convolution.

    P has one channel for each weight: the first half depends on the row alone, the second on the column alone.
    """
    T, half = len(scores), len(w) // 2
    collapsed = np.zeros((T, T)) + b
    for channel, weight in enumerate(w):
        c = channel % half
        angle = np.arange(T) * 10000.0 ** (-2 * (c // 2) / half)
        wave = np.sin(angle) if c % 2 == 0 else np.cos(angle)
        P = wave[:, None] if channel < half else wave[None, :]
        collapsed = collapsed + weight * (scores + P)
    return collapsed
