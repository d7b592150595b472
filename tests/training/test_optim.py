"""Muon against torch.optim.Muon and against the singular value decomposition; state that resumes bit for bit."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvlab.models.transformer import GPT, ModelConfig
from qkvlab.training.optim import MATRICES, MOMENTUM, NEWTON_SCHULZ, STEPS, Muon, build_optimiser, orthogonalise


def config(**changes):
    return SimpleNamespace(
        **({"optimiser": "muon", "lr": 0.01, "lr_matrix": 0.02, "betas": (0.9, 0.95), "weight_decay": 0.1} | changes)
    )


def gpt(**changes):
    model = GPT(ModelConfig(**({"layers": 2, "heads": 2, "width": 16, "context": 8} | changes)), 11)
    model.init_weights(3)
    return model


def train(model, optimiser, steps, start=0, scale=1.0):
    for step in range(start, start + steps):
        ids = torch.randint(0, 11, (4, 9), generator=torch.Generator().manual_seed(step))
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimiser.step(scale)


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(1, 3),
    rows=st.integers(1, 12),
    more=st.integers(0, 30),
    steps=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_newton_schulz_is_its_polynomial_on_the_singular_values(count, rows, more, steps, seed):
    stack = np.random.default_rng(seed).normal(size=(count, rows, rows + more))
    got = orthogonalise(torch.from_numpy(stack).float(), steps).numpy()
    for matrix, ours in zip(stack, got, strict=True):
        u, s, vt = np.linalg.svd(matrix / np.linalg.norm(matrix), full_matrices=False)
        a, b, c = NEWTON_SCHULZ
        for _ in range(steps):
            s = a * s + b * s**3 + c * s**5
        np.testing.assert_allclose(ours, u * s @ vt, atol=2e-4)  # float32, errors grow by up to a per step


@pytest.mark.parametrize("shape", [(64, 64), (32, 128)])
def test_enough_steps_come_near_the_orthogonal_factor(shape):
    u, _, vt = np.linalg.svd(np.random.default_rng(0).normal(size=shape), full_matrices=False)
    matrix = u * np.linspace(0.1, 1.0, shape[0]) @ vt  # condition number 10
    got = orthogonalise(torch.from_numpy(matrix).float()[None], 6)[0].double().numpy()
    # Jordan's coefficients hold each singular value between 0.68 and 1.21 instead of converging to 1
    assert np.linalg.norm(got - u @ vt, 2) < 0.33
    assert np.linalg.norm(matrix / np.linalg.norm(matrix) - u @ vt, 2) > 0.7  # where it started


@pytest.mark.parametrize("shape", [(24, 24), (48, 12), (12, 48)])
def test_muon_steps_like_torch(shape):
    start = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    ours = [torch.nn.Parameter(p.clone()) for p in start]
    theirs = [torch.nn.Parameter(p.clone()) for p in start]
    muon = Muon([(str(i), p) for i, p in enumerate(ours)], lr=0.05)
    reference = torch.optim.Muon(
        theirs,
        lr=0.05,
        weight_decay=0.0,
        momentum=MOMENTUM,
        nesterov=True,
        ns_coefficients=NEWTON_SCHULZ,
        ns_steps=STEPS,
    )
    for step in range(6):
        for i, (p, q) in enumerate(zip(ours, theirs, strict=True)):
            p.grad = torch.randn(shape, generator=torch.Generator().manual_seed(10 * step + i))
            q.grad = p.grad.clone()
        muon.step()
        reference.step()
    for p, q, p0 in zip(ours, theirs, start, strict=True):
        # torch iterates in bfloat16: 8 bits, 0.4 % a rounding, some ten roundings in a row
        assert (p - q).norm() < 0.03 * (q - p0).norm()


def test_muon_takes_the_block_matrices_and_adamw_the_rest():
    model = gpt(tied=False)
    optimiser = build_optimiser(model, config())
    taken = [name for names, _ in optimiser.muon.groups for name in names]
    assert sorted(taken) == sorted(f"blocks.{i}.{o}.{m}.weight" for i in (0, 1) for o, m in
                                   [("attention", "W_Q"), ("attention", "W_K"), ("attention", "W_V"),
                                    ("attention", "W_O"), ("mlp", "W_1"), ("mlp", "W_2")])  # fmt: skip
    rest = {name for name, _ in model.named_parameters()} - set(taken)
    assert {key.rpartition(".")[0] for key in optimiser.state_dict()} == rest | set(taken)
    assert all(MATRICES.isdisjoint(name.split(".")) for name in rest)
    assert build_optimiser(model, config(optimiser="adamw")).muon is None


def test_decay_is_on_tensors_with_two_dimensions_alone():
    model = gpt()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = build_optimiser(model, config(optimiser="adamw"))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step(0.5)
    for name, p in model.named_parameters():
        factor = 1 - 0.5 * 0.01 * 0.1 if p.ndim >= 2 else 1.0
        torch.testing.assert_close(p.detach(), before[name] * factor, rtol=1e-6, atol=0)


def test_adamw_steps_like_torch_with_the_scaled_rate():
    ours, theirs = gpt(), gpt()
    optimiser = build_optimiser(ours, config(optimiser="adamw", weight_decay=0.0))
    plain = torch.optim.AdamW(theirs.parameters(), lr=0.01 * 0.25, betas=(0.9, 0.95), weight_decay=0.0)
    adapter = SimpleNamespace(zero_grad=plain.zero_grad, step=lambda scale: plain.step())
    train(ours, optimiser, 4, scale=0.25)
    train(theirs, adapter, 4)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_state_resumes_bit_for_bit(name):
    whole, parts = gpt(), gpt()
    optimiser = build_optimiser(whole, config(optimiser=name))
    train(whole, optimiser, 6)
    first = build_optimiser(parts, config(optimiser=name))
    train(parts, first, 3)
    state = first.state_dict()
    second = build_optimiser(parts, config(optimiser=name))
    second.load_state_dict(state)
    train(parts, second, 3, start=3)
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), parts.parameters(), strict=True))
    assert not all(torch.equal(state[key], value) for key, value in second.state_dict().items())  # a copy, not a view


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    optimiser = build_optimiser(gpt(), config())
    before = optimiser.state_dict()
    bad = before | {"blocks.0.attention.W_Q.weight.momentum": torch.ones(3, 3)}
    with pytest.raises(
        ValueError, match=r"blocks\.0\.attention\.W_Q\.weight\.momentum has shape \(3, 3\), not \(16, 16\)"
    ):
        optimiser.load_state_dict(bad)
    with pytest.raises(ValueError, match=r"W_Q\.weight\.momentum is missing"):
        optimiser.load_state_dict({k: v for k, v in before.items() if "W_Q" not in k})
    with pytest.raises(ValueError, match=r"other\.step does not belong"):
        optimiser.load_state_dict(before | {"other.step": torch.tensor(1.0)})
    assert all(torch.equal(before[key], value) for key, value in optimiser.state_dict().items())


def test_an_unknown_optimiser_is_refused():
    with pytest.raises(ValueError, match="optimiser='sgd': allowed are 'adamw' and 'muon'"):
        build_optimiser(gpt(), config(optimiser="sgd"))
