"""A trained model that fits in a lab: the attention of all-MiniLM-L6-v2 (BERT; 6 layers, d = 384, 12 heads of 32).

The weights, the hidden states at the input of each layer and the attention maps of the model itself, for two sentences;
all rounded to half precision (float16) in the file, float64 here. Source and licence: data/README.md.

Row vectors with a one appended: x = [h, 1], so that the bias is the last row of W and a head reads Q = X W_Q and
nothing else. W_Q, W_K, W_V (layers, heads, d+1, d_h); W_O (layers, heads, d_h, d).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from qkvlab.tasks.sources import path_of


@dataclass(frozen=True)
class Sentence:
    text: str
    tokens: tuple[str, ...]
    x: np.ndarray  # (layers, T, d+1): the input of each layer with a one appended
    maps: np.ndarray  # (layers, heads, T, T): the attention weights the model itself computed


@dataclass(frozen=True)
class MiniLM:
    W_Q: np.ndarray  # (layers, heads, d+1, d_h)
    W_K: np.ndarray
    W_V: np.ndarray
    W_O: np.ndarray  # (layers, heads, d_h, d)
    sentences: tuple[Sentence, ...]


@cache
def load() -> MiniLM:
    """Read and unpack the file, once in a process; DataError when it is missing or not the expected bytes."""
    with np.load(path_of("minilm_l6_attention_fp16.npz"), allow_pickle=False) as file:
        heads = int(file["n_heads"])
        projections = {}
        for m in "qkv":
            weight, bias = file[f"W{m}"].astype(np.float64), file[f"b{m}"].astype(np.float64)  # (L, out, in), (L, out)
            rows = np.concatenate([weight, bias[:, :, None]], axis=2)  # (L, out, d+1)
            projections[f"W_{m.upper()}"] = rows.reshape(len(rows), heads, -1, rows.shape[2]).swapaxes(2, 3)
        w_o = file["Wo"].astype(np.float64).swapaxes(1, 2)  # (L, in, out)
        sentences = []
        for i, text in enumerate(file["texts"]):
            hidden = file[f"hidden_{i}"].astype(np.float64)
            x = np.concatenate([hidden, np.ones((*hidden.shape[:2], 1))], axis=2)
            tokens = tuple(str(t) for t in file[f"tokens_{i}"])
            sentences.append(Sentence(str(text), tokens, x, file[f"attn_{i}"].astype(np.float64)))
        return MiniLM(**projections, W_O=w_o.reshape(len(w_o), heads, -1, w_o.shape[2]), sentences=tuple(sentences))
