"""Changes of basis of the residual stream (paper A, section 3).

Row vectors, as in the papers: the stream X is n x d, a matrix that reads it is d x anything, Q = X W_Q + b_Q.
A new basis is an invertible d x d matrix Theta, and with biases also a translation t of length d: the stream becomes
X Theta + t. Whatever *reads* the stream undoes the change, whatever *writes* to it takes part in it:

    read:   (X Theta + t) (Theta^-1 W) + (b - t Theta^-1 W)  =  X W + b
    write:  (Y W + b) Theta  =  Y (W Theta) + b Theta

Lemma 3.1 is the first line for W_Q, W_K and W_V together: attention sees nothing of X but these three products. With
Theta = W_Q and t = b_Q query matrix and query bias are gone: write them as identity and zero, do not compute them.
`torch.nn.Linear` stores the transpose: W there is `weight.T`.
"""

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["basis", "read", "read_bias", "write"]


def basis(kappa: float, n: int, seed: int = 0) -> np.ndarray:
    """An invertible n x n matrix with condition number `kappa` and Frobenius norm sqrt(n).

    Left and right singular vectors are random rotations, singular values fall geometrically by the factor `kappa`.
    The norm is that of the identity, so that the size of a change does not grow with `kappa`; `kappa` = 1 is a
    rotation. Equal seeds give equal singular vectors for every `kappa`.

    Raises ValueError unless `kappa` >= 1 and `n` >= 1 (a 1 x 1 matrix has condition number 1).
    """
    if n < 1 or kappa < 1 or (n == 1 and kappa > 1):
        raise ValueError(f"basis(kappa={kappa}, n={n}): kappa >= 1 and n >= 1 (n >= 2 when kappa > 1)")
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    singular = np.geomspace(1, 1 / kappa, n) if n > 1 else np.ones(1)
    return (left * (singular * np.sqrt(n) / np.linalg.norm(singular))) @ right


def read(theta: ArrayLike, weight: ArrayLike) -> np.ndarray:
    """Theta^-1 W: the weight that reads from X Theta what `weight` (d x m) reads from X.

    Raises ValueError when `theta` is not square, does not fit, or has no inverse.
    """
    theta, weight = _square(theta), np.asarray(weight)
    if weight.shape[0] != len(theta):
        raise ValueError(f"a weight with {weight.shape[0]} rows cannot read a stream of width {len(theta)}")
    try:
        return np.linalg.solve(theta, weight)
    except np.linalg.LinAlgError:
        raise ValueError("theta is singular: a basis needs an inverse") from None


def read_bias(theta: ArrayLike, weight: ArrayLike, bias: ArrayLike, shift: ArrayLike) -> np.ndarray:
    """b - t Theta^-1 W: the bias that goes with `read` when the stream also moves by `shift` (t, length d)."""
    return np.asarray(bias) - np.asarray(shift) @ read(theta, weight)


def write(theta: ArrayLike, weight: ArrayLike) -> np.ndarray:
    """W Theta: the weight (m x d), bias (d) or stream (n x d) whose values arrive in the new basis."""
    theta, weight = _square(theta), np.asarray(weight)
    if weight.shape[-1] != len(theta):
        raise ValueError(f"something of width {weight.shape[-1]} cannot write to a stream of width {len(theta)}")
    return weight @ theta


def _square(theta: ArrayLike) -> np.ndarray:
    theta = np.asarray(theta)
    if theta.ndim != 2 or theta.shape[0] != theta.shape[1]:
        raise ValueError(f"a change of basis is a square matrix, this one has shape {theta.shape}")
    return theta
