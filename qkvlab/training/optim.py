"""The two optimisers of the recipes: AdamW, and Muon for the block matrices with AdamW for the rest.

Muon (Jordan et al., 2024) replaces the gradient of a matrix by the nearest matrix with orthonormal rows or columns
before it steps. torch.optim.Muon does this one matrix at a time and in bfloat16; here all matrices of one shape are
stacked and orthogonalised together in float32, which is what makes it worth its time on a small model.
"""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn as nn
from torch import Tensor

if TYPE_CHECKING:
    from qkvlab.training.trainer import RunConfig

MATRICES = frozenset(("W_Q", "W_K", "W_V", "W_O", "W_1", "W_2"))
MOMENTUM = 0.9  # for runs of a few hundred steps; 0.95 forgets too slowly
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan's quintic: x -> a x + b x^3 + c x^5 on every singular value
STEPS = 3


def orthogonalise(stack: Tensor, steps: int = STEPS) -> Tensor:
    """Newton-Schulz on a stack (N, rows, columns), rows <= columns: U S V^T becomes U S' V^T, S' near 1.

    S' is within 0.68 and 1.21 for singular values from 2 % of the Frobenius norm up after 3 steps, from 0.2 % up
    after 5; smaller ones grow by 3.4 a step.
    Each step multiplies X by a polynomial in X X^T, so for a wide X it is cheaper to iterate on the small Gram matrix
    alone and multiply once at the end.
    """
    a, b, c = NEWTON_SCHULZ
    x = stack / torch.linalg.matrix_norm(stack, keepdim=True).clamp_min(1e-7)  # (N, r, c), spectral norm at most 1
    if x.shape[2] < 2 * x.shape[1]:
        for _ in range(steps):
            gram = torch.bmm(x, x.mT)  # (N, r, r)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x
    gram, product = torch.bmm(x, x.mT), None
    for step in range(steps):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # (N, r, r), a I + b G + c G^2 after the next line
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else torch.bmm(factor, product)
        if step < steps - 1:
            gram = torch.bmm(torch.bmm(factor, gram), factor)
    return x if product is None else torch.bmm(product, x)


class Muon:
    """Muon with Nesterov momentum and no decay; the step of a matrix is lr * sqrt(max(1, rows / columns)).

    `named` are (name, parameter) pairs of 2-D parameters; rows are outputs, as nn.Linear stores them.
    """

    def __init__(self, named: list[tuple[str, nn.Parameter]], lr: float):
        self.lr = lr
        shapes: dict[tuple[int, ...], list[tuple[str, nn.Parameter]]] = {}
        for name, p in named:
            shapes.setdefault(tuple(sorted(p.shape)), []).append((name, p))  # tall ones join the wide of their size
        self.groups = [([n for n, _ in g], [p for _, p in g]) for g in shapes.values()]
        self.momentum = [torch.stack([_wide(torch.zeros_like(p)) for p in params]) for _, params in self.groups]

    @torch.no_grad()
    def step(self, lr_scale: float = 1.0) -> None:
        """One step from the gradients in place; a parameter without gradient counts as gradient zero."""
        for (_, params), momentum in zip(self.groups, self.momentum, strict=True):
            grads = torch.stack([_wide(torch.zeros_like(p) if p.grad is None else p.grad) for p in params])
            momentum.lerp_(grads, 1 - MOMENTUM)
            updates = orthogonalise(grads.lerp_(momentum, MOMENTUM))
            for p, update in zip(params, updates, strict=True):
                rows, columns = p.shape
                lr = lr_scale * self.lr * math.sqrt(max(1.0, rows / columns))
                p.add_(update.mT if rows > columns else update, alpha=-lr)


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


class Optimiser:
    """What the trainer steps: AdamW, and Muon beside it when there is one."""

    def __init__(self, model: nn.Module, adamw: torch.optim.AdamW, muon: Muon | None):
        self.adamw, self.muon = adamw, muon
        self._base = [group["lr"] for group in adamw.param_groups]
        self._parameters = list(model.parameters())
        names = {p: name for name, p in model.named_parameters()}
        self._state: dict[str, Tensor] = {}  # the live tensors, by name
        for group in adamw.param_groups:
            for p in group["params"]:  # made now, not at AdamW's first step: a state always has the same keys
                slots = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                slots["step"] = torch.zeros((), device=p.device if group["fused"] else "cpu")
                adamw.state[p] = slots
                self._state |= {f"{names[p]}.{key}": value for key, value in slots.items()}
        for (group_names, _), momentum in zip(muon.groups, muon.momentum, strict=True) if muon else ():
            self._state |= {f"{n}.momentum": m for n, m in zip(group_names, momentum, strict=True)}

    def step(self, lr_scale: float = 1.0) -> None:
        """One step; every learning rate is multiplied by `lr_scale` (the schedule's value)."""
        for group, lr in zip(self.adamw.param_groups, self._base, strict=True):
            group["lr"] = lr * lr_scale
        self.adamw.step()
        if self.muon is not None:
            self.muon.step(lr_scale)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for p in self._parameters:
            p.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """All that is remembered, flat, as copies: `<parameter>.exp_avg`, `.exp_avg_sq`, `.step`, or `.momentum`."""
        return {key: value.clone(memory_format=torch.contiguous_format) for key, value in self._state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up a state: the next steps equal, bit for bit, those of the optimiser it came from.

        Raises ValueError, and changes nothing, when a slot is missing, unknown or of another shape.
        """
        if odd := sorted(state.keys() ^ self._state.keys()):
            verb = "is missing from" if odd[0] in self._state else "does not belong in"
            raise ValueError(f"{odd[0]} {verb} the optimiser state (one of {len(odd)}): it is of another run")
        for key, value in state.items():
            if value.shape != self._state[key].shape:
                raise ValueError(f"{key} has shape {tuple(value.shape)}, not {tuple(self._state[key].shape)}")
        for key, value in state.items():
            self._state[key].copy_(value)


def build_optimiser(model: nn.Module, config: "RunConfig") -> Optimiser:
    """The optimiser `config.optimiser` names, "adamw" or "muon", for this model.

    "adamw": every parameter, decay on all tensors with two or more dimensions, embeddings too (as paper A's code).
    "muon": W_Q, W_K, W_V, W_O, W_1, W_2 of the blocks, one by one, at `config.lr_matrix`; AdamW for the rest.
    """
    if config.optimiser not in ("adamw", "muon"):
        raise ValueError(f"optimiser={config.optimiser!r}: allowed are 'adamw' and 'muon'")
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrix = lambda name, p: config.optimiser == "muon" and p.ndim == 2 and not MATRICES.isdisjoint(name.split("."))
    rest = [(name, p) for name, p in named if not matrix(name, p)]
    groups = [
        {"params": [p for _, p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for _, p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = next(iter(model.parameters())).device.type in ("cpu", "cuda", "mps")
    adamw = torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=config.betas, fused=fused)
    matrices = [(name, p) for name, p in named if matrix(name, p)]
    return Optimiser(model, adamw, Muon(matrices, config.lr_matrix) if matrices else None)
