"""GPT, ViT and Encoder: three ends on one stack of blocks.

A block is x <- x + Attention(norm(x)), x <- x + MLP(norm(x)); `ModelConfig` says which skips and norms there are.
Shapes: B batch, T tokens, d width, H heads.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .attention import Linear
from .config import ModelConfig

if TYPE_CHECKING:
    from .cache import KVCache

__all__ = ["GPT", "MLP", "Block", "Encoder", "ModelConfig", "Transformer", "ViT", "count_parameters", "drop"]


class Embedding(nn.Embedding):
    """`nn.Embedding` that draws nothing when made, like `Linear`."""

    def reset_parameters(self) -> None:
        pass


class MLP(nn.Module):
    """(B, T, d) -> (B, T, d): W_2 act(W_1 x)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.activation = config.activation
        self.W_1 = Linear(config.width, config.hidden, config.bias)
        self.W_2 = Linear(config.hidden, config.width, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.W_1(x)  # (B, T, hidden)
        if self.activation == "relu2":
            # relu(h)^2 and its derivative 2 relu(h), in a third of the time that autograd takes to mask a gradient
            r = F.relu(h.detach())
            return self.W_2(r * (2 * h - r))  # (B, T, d)
        return self.W_2(F.gelu(h) if self.activation == "gelu" else F.relu(h))  # (B, T, d)


class Block(nn.Module):
    """Attention and MLP with their norms and skips: (B, T, d) -> (B, T, d)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.skip_attention = config.skips in ("both", "attention")
        self.skip_mlp = config.skips in ("both", "mlp")
        self.dropout = config.dropout
        self.norm_1 = config.make_norm()
        self.attention = config.attention()
        self.norm_2 = config.make_norm()
        self.mlp = MLP(config)

    def forward(self, x: Tensor, generator: torch.Generator | None = None, cache=None) -> Tensor:
        """`generator` draws the dropout masks (None: no dropout); `cache` is this layer's LayerCache."""
        a = drop(self.attention(self.norm_1(x), cache), self.dropout, generator)
        x = x + a if self.skip_attention else a  # (B, T, d)
        m = drop(self.mlp(self.norm_2(x)), self.dropout, generator)
        return x + m if self.skip_mlp else m  # (B, T, d)


def drop(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """Dropout whose mask comes from `generator`; None is no dropout. (`F.dropout` knows the global generator only.)"""
    if generator is None:
        return x
    return x * torch.empty_like(x).bernoulli_(1 - p, generator=generator).div_(1 - p)


class Transformer(nn.Module):
    """The stack that GPT, ViT and Encoder share. They add `embedded` (their input as (B, T, d)) and the read-out."""

    looked_up: tuple[str, ...] = ("embed", "position")  # tables of which one row is used at a time

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self._generator: torch.Generator | None = None
        d = config.width
        self.position = Embedding(config.context, d) if config.positions == "learned" else None
        self.norm_e = config.make_norm() if config.norm_embedding else nn.Identity()
        self.blocks = nn.ModuleList(Block(config) for _ in range(1 if config.shared_layers else config.layers))
        self.norm_f = config.make_norm()

    @property
    def generator(self) -> torch.Generator:
        """The generator of the dropout masks, on the model's device. Seed it to fix the masks of what follows."""
        device = next(self.parameters()).device
        if self._generator is None or self._generator.device != device:
            self._generator = torch.Generator(device)
        return self._generator

    def layers(self) -> Iterator[Block]:
        """The blocks in the order of use; under shared_layers the same one `config.layers` times."""
        for i in range(self.config.layers):
            yield cast(Block, self.blocks[i % len(self.blocks)])

    def embedded(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def add_positions(self, x: Tensor, first: int = 0) -> Tensor:
        """x (B, T, d) plus the learned positions first .. first+T-1, normalised when the config says so."""
        T = x.shape[1]
        if first + T > self.config.context:
            raise ValueError(f"a sequence of {first + T} tokens, but context={self.config.context} is the most allowed")
        if self.position is not None:
            x = x + self.position.weight[first : first + T]
        return self.norm_e(x)

    def hidden(self, x: Tensor, cache: "KVCache | None" = None) -> Tensor:
        """The stream after the last norm, (B, T, d). `x` is what `embedded` returns."""
        generator = self.generator if self.training and self.config.dropout else None
        x = drop(x, self.config.dropout, generator)
        for i, block in enumerate(self.layers()):
            x = block(x, generator, None if cache is None else cache.layers[i])
        return self.norm_f(x)

    def capped(self, z: Tensor) -> Tensor:
        return self.config.softcap * torch.tanh(z / self.config.softcap) if self.config.softcap else z

    @torch.no_grad()
    def maps(self, x: Tensor) -> list[Tensor]:
        """The attention weights of each layer, (B, H, T, T), for an input of `forward`, without dropout or gradient."""
        maps = []
        x = self.embedded(x)
        for block in self.layers():
            maps.append(block.attention.map(block.norm_1(x)))
            x = block(x)
        return maps

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Draw every parameter from its own generator, keyed by (seed, name).

        So equally named parameters of equal shape are equal in all variants, and adding a matrix changes no other.
        "normal": standard deviation `init_std`, times 1/sqrt(2*layers) for W_O and W_2 when `init_depth_scaled`.
        "uniform": +-sqrt(3/fan_in), which keeps the spread of the input; the fan-in of an embedding is 1, since one row
        is looked up (d when the read-out is tied to it); W_O, W_2 and an untied read-out start at zero.
        Both: biases 0, gains 1, the 2-D term's weights 0.02 N(0, 1) as in paper B. Drawn on the CPU, so a seed gives
        the same values on any device. Parameters on the meta device are left alone.
        """
        config = self.config
        std = 0.554 / math.sqrt(config.width) if config.init_std is None else config.init_std
        for name, p in self.named_parameters():
            if p.is_meta:
                continue
            owner, leaf = ("", *name.split("."))[-2:]
            residual = owner in ("W_O", "W_2")
            if leaf in ("bias", "pos2d_bias"):
                p.zero_()
            elif owner.startswith("norm"):
                p.fill_(1)
            elif config.init == "uniform" and (residual or owner == "readout"):
                p.zero_()
            else:
                key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
                draw = torch.Generator("cpu").manual_seed(int.from_bytes(key[:7], "little"))
                value = torch.empty(p.shape, dtype=torch.float32, device="cpu")
                if leaf == "pos2d":
                    value.normal_(0, 0.02, generator=draw)
                elif config.init == "uniform":
                    bound = math.sqrt(3 / (1 if owner in self.looked_up or leaf == "cls" else p.shape[-1]))
                    value.uniform_(-bound, bound, generator=draw)
                else:
                    scaled = residual and config.init_depth_scaled
                    value.normal_(0, std / math.sqrt(2 * config.layers) if scaled else std, generator=draw)
                p.copy_(value)


class GPT(Transformer):
    """Language model: token ids (B, T), int64, to logits (B, T, vocab) for the next token."""

    def __init__(self, config: ModelConfig, vocab: int):
        super().__init__(config)
        self.embed = Embedding(vocab, config.width)
        self.readout = None if config.tied else Linear(config.width, vocab, bias=False)
        self.looked_up = () if config.tied else self.looked_up
        self.init_weights(0)

    def embedded(self, x: Tensor, first: int = 0) -> Tensor:
        return self.add_positions(self.embed(x), first)  # (B, T, d)

    def forward(self, ids: Tensor, cache: "KVCache | None" = None) -> Tensor:
        """With a cache, `ids` are the tokens after those the cache has seen, and the cache takes them in."""
        x = self.hidden(self.embedded(ids, 0 if cache is None else cache.length), cache)  # (B, T, d)
        return self.capped(F.linear(x, self.embed.weight if self.readout is None else self.readout.weight))


class ViT(Transformer):
    """Image classifier: (B, C, image, image) to logits (B, classes).

    The tokens are the patches in reading order, with pool="cls" a CLS token first; `config.context` becomes their
    number. Raises ValueError when the patches do not tile the image, or for a causal CLS token, which would see nothing
    but itself.
    """

    looked_up = ("position",)

    def __init__(
        self,
        config: ModelConfig,
        image: int = 28,
        patch: int = 7,
        channels: int = 1,
        classes: int = 10,
        pool: str = "cls",
    ):
        if patch < 1 or image < patch or image % patch:
            raise ValueError(f"patch={patch} does not tile image={image}: allowed are the divisors of {image}")
        if pool not in ("cls", "mean"):
            raise ValueError(f"pool={pool!r}: allowed are cls, mean")
        if pool == "cls" and config.causal:
            raise ValueError("pool='cls' with causal=True: the CLS token comes first and would see only itself")
        tokens = (image // patch) ** 2 + (pool == "cls")
        super().__init__(replace(config, context=tokens))
        self.patch, self.pool, self.shape = patch, pool, (channels, image, image)
        self.embed = Linear(channels * patch * patch, config.width, config.bias)
        self.cls = nn.Parameter(torch.empty(config.width)) if pool == "cls" else None
        self.readout = Linear(config.width, classes, config.bias)
        self.init_weights(0)

    def embedded(self, x: Tensor) -> Tensor:
        if x.shape[1:] != self.shape:  # another shape may have as many patches, at other places
            raise ValueError(f"images of shape {tuple(x.shape)}: allowed is (B, {', '.join(map(str, self.shape))})")
        x = self.embed(F.unfold(x, self.patch, stride=self.patch).mT)  # (B, T, C*patch*patch) -> (B, T, d)
        if self.cls is not None:
            x = torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)
        return self.add_positions(x)  # (B, T, d)

    def forward(self, images: Tensor) -> Tensor:
        x = self.hidden(self.embedded(images))  # (B, T, d)
        return self.capped(self.readout(x.mean(1) if self.cls is None else x[:, 0]))


class Encoder(Transformer):
    """One class for each token: ids (B, T) or features (B, T, vocab) to logits (B, T, classes).

    Lists with positions; sets with positions="none", where permuting the elements permutes the answers.
    """

    def __init__(self, config: ModelConfig, vocab: int, classes: int):
        super().__init__(config)
        self.embed = Embedding(vocab, config.width)
        self.readout = Linear(config.width, classes, config.bias)
        self.init_weights(0)

    def embedded(self, x: Tensor) -> Tensor:
        return self.add_positions(x @ self.embed.weight if x.is_floating_point() else self.embed(x))  # (B, T, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.capped(self.readout(self.hidden(self.embedded(x))))


def count_parameters(model: nn.Module, embeddings: bool = False) -> int:
    """Parameters of the blocks and norms; with `embeddings` also those of the two ends. Each counts once."""
    ends = ("embed", "position", "cls", "readout")
    return sum(p.numel() for name, p in model.named_parameters() if embeddings or name.split(".")[0] not in ends)
