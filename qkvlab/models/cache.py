"""A key/value cache that stores only what the variant needs, and generation with it.

The cache keeps what `Attention.project` names: keys before QK-norm and RoPE, and values unless they are the keys. So
K=V halves it, with RoPE too: rotation happens on reading.
"""

import torch
from torch import Tensor

from .transformer import GPT


class LayerCache:
    """Keys and values (B, G, S, d_h) of the S tokens one layer has seen; `values` stays None where V is K."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, G, T, d_h) of new tokens, return all. Tied values come as the same tensor."""
        tied = v is k
        self.keys = k if self.keys is None else torch.cat([self.keys, k], dim=2)  # (B, G, S+T, d_h)
        if tied:
            return self.keys, self.keys
        self.values = v if self.values is None else torch.cat([self.values, v], dim=2)
        return self.keys, self.values


class KVCache:
    """One LayerCache for each layer of `model`. Pass it to `model(ids, cache)` with only the new tokens."""

    def __init__(self, model: GPT):
        if not model.config.causal:
            raise ValueError("a cache needs causal=True: without a mask a new token changes every earlier output")
        self.layers = [LayerCache() for _ in range(model.config.layers)]

    @property
    def length(self) -> int:
        """Tokens seen."""
        keys = self.layers[-1].keys
        return 0 if keys is None else keys.shape[2]

    def numbers(self) -> int:
        """Numbers stored, all layers, sequences and tokens together: each takes `Variant.cache_numbers`."""
        return sum(t.numel() for c in self.layers for t in (c.keys, c.values) if t is not None)


@torch.no_grad()
def generate(
    model: GPT,
    ids: Tensor,
    n: int,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    cache: bool = True,
) -> Tensor:
    """Continue ids (B, T), T >= 1, by n tokens: (B, T + n), int64. Temperature 0 takes the likeliest token.

    The draws come from `generator` (None: a fresh one with seed 0), never from the global one. Past `config.context`
    the window slides: each further token re-reads the last `context` tokens from the start, without a cache, since
    their positions and everything computed from a dropped token have changed. So a cache never changes the result.
    """
    if ids.ndim != 2 or ids.shape[1] < 1:
        raise ValueError(f"ids of shape {tuple(ids.shape)}: allowed is (B, T) with at least one token to continue")
    if n < 0:
        raise ValueError(f"n={n}: allowed is a whole number from 0")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature={temperature!r}: allowed is 0 (the likeliest token) or a number above 0")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    context, training = model.config.context, model.training
    model.eval()
    try:
        store = KVCache(model) if cache and model.config.causal else None
        for _ in range(n):
            if store is not None and ids.shape[1] <= context:
                logits = model(ids[:, store.length :], store)[:, -1]  # (B, vocab)
            else:
                logits = model(ids[:, -context:])[:, -1]
            if not logits.isfinite().all():
                raise ValueError("the model's logits are not finite, so there is no next token: has its run diverged?")
            if temperature < 1e-30:  # float32 cannot divide by less
                new = logits.argmax(-1, keepdim=True)
            else:
                below = logits.float() - logits.float().amax(-1, keepdim=True)  # no overflow to infinity above
                weights = (below / temperature).softmax(-1).to(generator.device)
                new = torch.multinomial(weights, 1, generator=generator).to(ids.device)
            ids = torch.cat([ids, new], dim=1)
    finally:
        model.train(training)
    return ids
