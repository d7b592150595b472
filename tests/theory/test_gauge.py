"""Changes of basis and measures, against numpy, torch and PyTorch's own attention."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from qkvlab.theory import gauge, measure


@settings(deadline=None, max_examples=30)
@given(power=st.floats(0, 8), n=st.integers(2, 12), seed=st.integers(0, 99))
def test_a_basis_has_its_condition_number_and_size(power, n, seed):
    theta = gauge.basis(10**power, n, seed)
    assert np.linalg.cond(theta) == pytest.approx(10**power, rel=1e-6)
    assert np.linalg.norm(theta) == pytest.approx(np.sqrt(n))


def test_a_basis_of_condition_one_is_a_rotation():
    theta = gauge.basis(1, 6)
    np.testing.assert_allclose(theta @ theta.T, np.eye(6), atol=1e-14)


@pytest.mark.parametrize(("kappa", "n"), [(0.5, 4), (2, 1), (1, 0)])
def test_a_basis_that_cannot_be_is_refused(kappa, n):
    with pytest.raises(ValueError, match="kappa"):
        gauge.basis(kappa, n)


@settings(deadline=None, max_examples=30)
@given(
    power=st.floats(0, 4),
    heads=st.sampled_from([1, 2, 4]),
    causal=st.booleans(),
    seed=st.integers(0, 999),
)
def test_the_lemma_on_torchs_own_attention(power, heads, causal, seed):
    rng = np.random.default_rng(seed)
    T, d = 7, 8
    x, weights = rng.standard_normal((T, d)), rng.standard_normal((3, d, d))
    biases, shift, theta = rng.standard_normal((3, d)), rng.standard_normal(d), gauge.basis(10**power, d, seed)

    def attend(stream, ws, bs):
        q, k, v = (
            torch.tensor(stream @ w + b).reshape(T, heads, d // heads).transpose(0, 1)
            for w, b in zip(ws, bs, strict=True)
        )
        return scaled_dot_product_attention(q, k, v, is_causal=causal).numpy()

    new_w = [gauge.read(theta, w) for w in weights]
    new_b = [gauge.read_bias(theta, w, b, shift) for w, b in zip(weights, biases, strict=True)]
    error = measure.relative_error(attend(x @ theta + shift, new_w, new_b), attend(x, weights, biases))
    assert error < 1e-12 * 10**power
    if power > 0.5:  # a rotation can be so small a change that nothing is learned from leaving it out
        assert measure.relative_error(attend(x @ theta + shift, weights, biases), attend(x, weights, biases)) > 1e-6


def test_what_writes_arrives_in_the_new_basis():
    rng = np.random.default_rng(1)
    theta, w, b, y = gauge.basis(5, 4), rng.standard_normal((3, 4)), rng.standard_normal(4), rng.standard_normal((6, 3))
    np.testing.assert_allclose(y @ gauge.write(theta, w) + gauge.write(theta, b), (y @ w + b) @ theta, atol=1e-14)


@pytest.mark.parametrize(
    ("theta", "weight", "words"),
    [
        (np.ones((2, 3)), np.ones((2, 2)), r"square matrix, this one has shape \(2, 3\)"),
        (np.ones((3, 3)), np.ones((3, 3)), "singular"),
        (np.eye(3), np.ones((2, 3)), "2 rows cannot read a stream of width 3"),
    ],
)
def test_what_is_no_change_of_basis_is_refused(theta, weight, words):
    with pytest.raises(ValueError, match=words):
        gauge.read(theta, weight)


def test_what_does_not_fit_cannot_write():
    with pytest.raises(ValueError, match="width 2 cannot write to a stream of width 3"):
        gauge.write(np.eye(3), np.ones((4, 2)))


@settings(deadline=None, max_examples=200)
@given(st.floats(width=32, allow_nan=False))
@example(float(np.float32(1.00390625)))  # a tie
@example(3.3895314e38)  # rounds up to infinity
def test_rounding_is_torchs_rounding(value):
    for name, dtype in (("float64", torch.float64), ("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        expected = torch.tensor([value, -value], dtype=torch.float64).to(torch.float32 if name != "float64" else dtype)
        found = measure.round_to([value, -value], name)
        np.testing.assert_array_equal(found, expected.to(dtype).to(torch.float64).numpy())


def test_rounding_knows_its_precisions():
    assert np.isnan(measure.round_to(np.nan, "bfloat16"))
    assert measure.round_to(np.float64(1) / 3, "bfloat16").shape == ()
    for name, unit in measure.PRECISIONS.items():
        assert float(measure.round_to(1 + unit, name)) == 1 + unit  # the next number after 1
        assert float(measure.round_to(1 + unit / 2, name)) == 1  # and nothing between
    with pytest.raises(ValueError, match="float64, float32, bfloat16"):
        measure.round_to(1.0, "float16")


def test_relative_error_by_hand():
    assert measure.relative_error([1.0, 4.5], [1.0, 5.0]) == pytest.approx(0.1)
    assert measure.relative_error([np.nan], [1.0]) == np.inf
    with pytest.raises(ValueError, match="shapes differ"):
        measure.relative_error([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="not zero"):
        measure.relative_error([1.0], [0.0])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 999), st.integers(1, 6), st.integers(1, 6))
def test_condition_is_numpys(seed, m, n):
    matrix = np.random.default_rng(seed).standard_normal((m, n))
    assert measure.condition(matrix) == pytest.approx(np.linalg.cond(matrix))
    assert measure.condition(np.zeros((m, n))) == np.inf


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 999), st.integers(2, 6))
def test_symmetry_of_known_maps(seed, n):
    a = np.random.default_rng(seed).standard_normal((n, n))
    even, odd = a + a.T, a - a.T
    np.testing.assert_allclose(measure.symmetry(np.stack([even, odd])), [1, -1], atol=1e-12)
    share = (np.sum(even**2) - np.sum(odd**2)) / (np.sum(even**2) + np.sum(odd**2))
    assert measure.symmetry(a) == pytest.approx(share)
    assert measure.symmetry(np.zeros((n, n))) == 1
    with pytest.raises(ValueError, match="square"):
        measure.symmetry(a[1:])
