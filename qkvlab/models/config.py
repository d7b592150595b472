"""ModelConfig: every choice that defines a network, checked by name. (`transformer.py` passes it on.)"""

import math
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
import torch.nn as nn

from .attention import EPSILON, Attention
from .variants import POS2D_CHANNELS, variant

_LARGEST = {"layers": 1000, "heads": 2**16, "width": 2**22, "context": 2**24, "pos2d_channels": 2**16}
_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a word", type(None): "None"}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def check_types(config: Any) -> None:
    """Raises ValueError for a field of a dataclass whose value is not of its annotated type."""
    for name, hint in _hints(config.__class__).items():  # type: ignore[arg-type]
        value = getattr(config, name)
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                raise ValueError(f"{name}={value!r}: allowed are {', '.join(get_args(hint))}")
            continue
        kinds = get_args(hint) if isinstance(hint, UnionType) else (get_origin(hint) or hint,)
        whole = float in kinds and isinstance(value, int)
        if not (isinstance(value, kinds) or whole) or (isinstance(value, bool) and bool not in kinds):
            allowed = " or ".join(_WORDS.get(kind, kind.__name__) for kind in kinds)
            raise ValueError(f"{name}={value!r}: allowed is {allowed}")


@dataclass(frozen=True)
class ModelConfig:
    """Everything that defines a network but its two ends.

    Checked when made: ValueError names the field, its value and what is allowed.
    """

    variant: str = "qkv"  # a slug of variants.py
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64  # the longest sequence
    mlp: float = 4.0  # hidden units: round(mlp * width)
    activation: Literal["gelu", "relu", "relu2"] = "gelu"  # relu2 is squared ReLU
    norm: Literal["layer", "rms", "none"] = "layer"  # before each sub-block and the read-out
    norm_gain: bool = True  # norms have a learned gain (and with `bias` LayerNorm has a bias)
    norm_embedding: bool = False  # normalise the embedding too
    skips: Literal["both", "attention", "mlp", "none"] = "both"
    positions: Literal["learned", "rope", "none"] = "learned"
    rope_base: float = 10000.0
    causal: bool = True
    logit_scale: float = 1.0  # the effective scale is logit_scale / sqrt(d_h), on every path
    qk_norm: bool = False  # RMSNorm without gain on queries and keys per head, before RoPE
    softcap: float = 0.0  # read-out logits c tanh(z/c); 0 is off
    tied: bool = True  # GPT: the read-out is the token embedding
    shared_layers: bool = False  # one block used `layers` times
    bias: bool = False
    dropout: float = 0.0  # after the embedding and on what each sub-block adds; masks from model.generator
    init: Literal["normal", "uniform"] = "normal"  # see Transformer.init_weights
    init_std: float | None = None  # None: 0.554/sqrt(width), GPT-2 small's 0.02 * sqrt(768) at every width
    init_depth_scaled: bool = True  # W_O and W_2 start smaller by 1/sqrt(2*layers)
    pos2d_channels: int = POS2D_CHANNELS  # m of the 2-D positional term

    def __post_init__(self) -> None:
        check_types(self)
        for field, most in _LARGEST.items():
            if not 1 <= getattr(self, field) <= most:
                raise ValueError(f"{field}={getattr(self, field)!r}: allowed is a whole number from 1 to {most}")
        for field in ("mlp", "rope_base", "init_std"):
            if getattr(self, field) is not None and not 0 < getattr(self, field) < math.inf:
                raise ValueError(f"{field}={getattr(self, field)!r}: allowed is a number above 0")
        if not 0.5 < self.mlp * self.width < 2**26:
            raise ValueError(f"mlp={self.mlp!r}: at width={self.width} it leaves no hidden unit, or {2**26} or more")
        if not 0 <= self.softcap < math.inf:
            raise ValueError(f"softcap={self.softcap!r}: allowed is 0 (off) or a number above 0")
        if not math.isfinite(self.logit_scale):
            raise ValueError(f"logit_scale={self.logit_scale!r}: allowed is any finite number")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout!r}: allowed is a number from 0 to below 1")
        if self.norm_embedding and self.norm == "none":
            raise ValueError("norm_embedding=True with norm='none': choose norm='layer' or 'rms'")
        with torch.device("meta"):  # the module itself refuses what cannot be, by name
            self.attention()

    @property
    def hidden(self) -> int:
        return round(self.mlp * self.width)

    def attention(self) -> Attention:
        return Attention(
            self.width,
            self.heads,
            variant(self.variant),
            causal=self.causal,
            context=self.context,
            logit_scale=self.logit_scale,
            rope_base=self.rope_base if self.positions == "rope" else 0.0,
            qk_norm=self.qk_norm,
            bias=self.bias,
            channels=self.pos2d_channels,
        )

    def make_norm(self) -> nn.Module:
        if self.norm == "layer":
            return nn.LayerNorm(self.width, EPSILON, elementwise_affine=self.norm_gain, bias=self.bias)
        if self.norm == "rms":
            return nn.RMSNorm(self.width, EPSILON, elementwise_affine=self.norm_gain)
        return nn.Identity()
