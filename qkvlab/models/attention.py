"""Multi-head attention whose query, key and value projections may each be learned, tied to the keys, or absent.

One module serves every variant of both papers. `project` is the variant (which matrices exist, which are tied), `place`
adds what depends on positions (QK-norm, RoPE), `mix` is the softmax average (scale, mask, 2-D term). Row vectors as in
the papers: Q = X W_Q, while `nn.Linear` stores the transpose.

Shapes: B batch, T tokens, d width, H query heads, G key/value heads, d_h = d/H. With a cache there are T queries for S
keys, the queries being the last T of the S tokens.
"""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .variants import POS2D_CHANNELS, Variant

if TYPE_CHECKING:
    from .cache import LayerCache

EPSILON = 1e-5  # of every norm here, QK-norm included


class Linear(nn.Linear):
    """`nn.Linear` that draws nothing when made: `init_weights` fills it, without the global generator."""

    def reset_parameters(self) -> None:
        pass


class Attention(nn.Module):
    """Self-attention over x of shape (B, T, d); returns (B, T, d).

    The scores are (logit_scale / sqrt(d_h)) q.k on every path. `rope_base` 0 is no RoPE; `context` bounds T with RoPE.
    W_Q, W_K and W_V are None where the variant has no such matrix: a tied matrix is absent, not aliased.

    Raises ValueError when the heads do not divide the width, the key/value heads not the heads, when RoPE meets an odd
    d_h, when the 2-D term meets a causal mask, or when its channels are not an even number.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        d: int,
        heads: int,
        variant: Variant,
        *,
        causal: bool,
        context: int,
        logit_scale: float = 1.0,
        rope_base: float = 0.0,
        qk_norm: bool = False,
        bias: bool = False,
        channels: int = POS2D_CHANNELS,
    ):
        super().__init__()
        self.variant, self.heads, self.kv_heads, self.d_h = variant, heads, variant.groups(d, heads), d // heads
        self.causal, self.context, self.qk_norm, self.rope_base = causal, context, qk_norm, rope_base
        self.scale = logit_scale / math.sqrt(self.d_h)
        if rope_base and self.d_h % 2:
            raise ValueError(f"positions='rope' turns pairs of coordinates, so d_h={self.d_h} must be even")
        if variant.pos2d and causal:
            raise ValueError(f"variant {variant.slug!r} with causal=True: the 2-D term is for causal=False only")
        if variant.pos2d and (channels < 2 or channels % 2):
            raise ValueError(f"pos2d_channels={channels}: half serve rows, half columns, so allowed are 2, 4, 6, ...")
        d_kv = self.kv_heads * self.d_h
        self.W_Q = Linear(d, d, bias) if variant.query == "own" else None
        self.W_K = Linear(d, d_kv, bias) if variant.key == "own" else None
        self.W_V = Linear(d, d_kv, bias) if variant.value == "own" else None
        self.W_O = Linear(d, d, bias)
        self.pos2d = nn.Parameter(torch.empty(channels)) if variant.pos2d else None
        self.pos2d_bias = nn.Parameter(torch.empty(1)) if variant.pos2d else None
        if rope_base:
            self.register_buffer("cos", torch.empty(context, self.d_h), persistent=False)
            self.register_buffer("sin", torch.empty(context, self.d_h), persistent=False)
        self.fill_tables()

    def _apply(self, fn, recurse=True):
        """Every change of device or dtype passes here: compute the tables again, at the new precision."""
        super()._apply(fn, recurse)
        self.fill_tables()
        return self

    def fill_tables(self) -> None:
        """Compute the RoPE tables, cos and sin of t * base^(-2i/d_h), in float64 before rounding."""
        if not self.rope_base or self.cos.is_meta:
            return
        t, i = (torch.arange(n, dtype=torch.float64, device="cpu") for n in (self.context, self.d_h // 2))
        angles = torch.outer(t, self.rope_base ** (-2 * i / self.d_h))  # (T, d_h/2)
        self.cos.copy_(torch.cat([angles.cos(), angles.cos()], -1).to(self.cos.dtype))  # (T, d_h)
        self.sin.copy_(torch.cat([-angles.sin(), angles.sin()], -1).to(self.sin.dtype))  # with the sign `_placed` needs

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The variant: queries (B, H, T, d_h), keys and values (B, G, T, d_h).

        A tied role is the same tensor, not a copy. Keys and values are what a cache stores: before QK-norm and RoPE.
        """
        as_keys = ("key", "identity") if self.variant.key == "identity" else ("key",)
        q = k = v = self._split(x if self.W_K is None else self.W_K(x), self.kv_heads)  # (B, G, T, d_h)
        if self.variant.query not in as_keys:
            q = self._split(x if self.W_Q is None else self.W_Q(x), self.heads)  # (B, H, T, d_h)
        if self.variant.value not in as_keys:
            v = self._split(x if self.W_V is None else self.W_V(x), self.kv_heads)  # (B, G, T, d_h)
        return q, k, v

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        B, T, width = x.shape
        return x.view(B, T, heads, width // heads).transpose(1, 2)  # (B, T, heads*d_h) -> (B, heads, T, d_h)

    def place(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """QK-norm, then RoPE. The queries are the last T of the S positions."""
        if not (self.qk_norm or self.rope_base):
            return q, k
        S, T = k.shape[2], q.shape[2]
        same = q is k
        k = self._placed(k, 0, S)
        return (k if same else self._placed(q, S - T, S)), k

    def _placed(self, x: Tensor, first: int, end: int) -> Tensor:
        if self.qk_norm:
            x = F.rms_norm(x, (self.d_h,), eps=EPSILON)
        if self.rope_base:
            # (a, b) -> (a cos - b sin, b cos + a sin), a and b the two halves of a head's coordinates
            x = (x * self.cos[first:end] + x.roll(self.d_h // 2, -1) * self.sin[first:end]).type_as(x)
        return x

    def bias2d(self, T: int) -> tuple[Tensor, Tensor]:
        """The 2-D term, paper B's appendix A.2 in its authors' own re-implementation: temperature () and bias (T, T).

        The T x T scores are copied to m channels, a fixed sinusoidal P of (m, T, T) is added (half the channels depend
        on the row, half on the column), and a 1x1 convolution (`pos2d` of m weights w, `pos2d_bias`) collapses the
        channels. By linearity that is sum(w) * scores + w.P + bias, which is what is computed here.
        """
        assert self.pos2d is not None and self.pos2d_bias is not None
        half = len(self.pos2d) // 2
        phi = sinusoids(T, half).to(self.pos2d)  # (T, m/2)
        rows, columns = phi @ self.pos2d[:half], phi @ self.pos2d[half:]  # (T,) each
        return self.pos2d.sum(), rows[:, None] + columns[None, :] + self.pos2d_bias  # (), (T, T)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(scale q k^T) v with the module's mask: (B, H, T, d_h)."""
        T, S = q.shape[2], k.shape[2]
        mask = None
        if self.pos2d is not None:
            temperature, mask = self.bias2d(T)
            q = q * temperature
            mask = mask.to(q.dtype)
        elif self.causal and 1 < T < S:
            mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=self.causal and T == S and T > 1,
            scale=self.scale,
            enable_gqa=self.kv_heads < self.heads,
        )

    def forward(self, x: Tensor, cache: "LayerCache | None" = None) -> Tensor:
        q, k, v = self.project(x)
        if cache is not None:
            k, v = cache.extend(k, v)
        q, k = self.place(q, k)
        y = self.mix(q, k, v)  # (B, H, T, d_h)
        return self.W_O(y.transpose(1, 2).flatten(2))  # (B, T, d)

    def map(self, x: Tensor) -> Tensor:
        """The weights `mix` used, (B, H, T, T), rows query, columns key: recomputed, as SDPA does not return them."""
        q, k, _ = self.project(x)
        q, k = self.place(q, k)
        T = q.shape[2]
        scores = self.scale * q @ k.repeat_interleave(self.heads // self.kv_heads, dim=1).mT  # (B, H, T, T)
        if self.pos2d is not None:
            temperature, bias = self.bias2d(T)
            scores = temperature * scores + bias
        if self.causal:
            future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        return scores.softmax(-1)


def sinusoids(T: int, channels: int) -> Tensor:
    """Fixed features of a position, (T, channels): sin and cos in turn, rates 10000^(-2k/channels)."""
    t, c = (torch.arange(n, dtype=torch.float64, device="cpu") for n in (T, channels))
    angles = torch.outer(t, 10000.0 ** (-2 * (c // 2) / channels))  # (T, channels)
    return torch.where(c % 2 == 0, angles.sin(), angles.cos())
