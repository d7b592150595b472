"""Weights of a torch model as float64 numpy arrays in the papers' orientation, and back.

`nn.Linear` stores the transpose of what the papers write, so every matrix but the tables is turned over on the way.
"""

import re
from dataclasses import fields

import numpy as np
import torch

from ..theory import reference
from .transformer import Transformer, ViT
from .variants import variant

_INSIDE = re.compile(r"blocks\.(\d+)\.(?:attention\.|mlp\.)?(.+)")


def _rename(name: str) -> str:
    """blocks.3.attention.W_Q.weight -> 3.W_Q, blocks.3.mlp.W_1.bias -> 3.b_1, norm_f.weight -> norm_f.gain, ..."""
    inside = _INSIDE.fullmatch(name)
    prefix, rest = (f"{inside[1]}.", inside[2]) if inside else ("", name)
    if rest.startswith("norm"):
        return prefix + rest.replace(".weight", ".gain")
    if rest.startswith("W_"):
        return prefix + rest.replace(".weight", "") if rest.endswith(".weight") else f"{prefix}b_{rest[2]}"
    return prefix + rest.removesuffix(".weight")


def _turned(model: Transformer, name: str) -> bool:
    """Whether the parameter is the weight of an `nn.Linear`."""
    owner, _, leaf = name.rpartition(".")
    return leaf == "weight" and isinstance(model.get_submodule(owner), torch.nn.Linear)


def to_numpy(model: Transformer) -> reference.Weights:
    """The model's parameters under the names and in the orientation of `theory.reference`, float64, copies."""
    out = {}
    for name, p in model.named_parameters():
        value = p.detach().cpu().to(torch.float64)
        out[_rename(name)] = (value.mT if _turned(model, name) else value).numpy().copy()
    return out


@torch.no_grad()
def from_numpy(model: Transformer, weights: reference.Weights) -> None:
    """Fill the model with `weights`, rounded to its own precision. ValueError when a name or a shape does not fit."""
    names = {_rename(name): name for name, _ in model.named_parameters()}
    if names.keys() != weights.keys():
        missing, extra = sorted(names.keys() - weights.keys()), sorted(weights.keys() - names.keys())
        raise ValueError(f"the weights do not fit the model: missing {missing}, not in the model {extra}")
    parameters = dict(model.named_parameters())
    values = {}
    for short, name in names.items():
        value = np.asarray(weights[short])
        values[name] = value.T if _turned(model, name) else value
        if values[name].shape != tuple(parameters[name].shape):
            turned = tuple(parameters[name].shape)[:: -1 if _turned(model, name) else 1]
            raise ValueError(f"{short} has shape {value.shape}, the model wants {turned}")
    for name, value in values.items():  # only now, so that a refused set of weights changes nothing
        parameters[name].copy_(torch.from_numpy(np.array(value, dtype=np.float64)))


def net(model: Transformer) -> reference.Net:
    """The rest of the model, what its weights do not say, for `theory.reference`."""
    config = model.config
    known = vars(config) | vars(variant(config.variant))
    shared = {field.name: known[field.name] for field in fields(reference.Net) if field.name in known}
    shared["rope_base"] = config.rope_base if config.positions == "rope" else 0.0
    if isinstance(model, ViT):
        shared |= {"patch": model.patch, "pool": model.pool}
    return reference.Net(**shared)
