"""Numbers that describe a matrix or a map, each from -1 to 1, from 0 to 1, or a plain ratio. numpy only."""

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["PRECISIONS", "circuit_symmetry", "condition", "relative_error", "round_to", "symmetry"]

PRECISIONS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}  # distance from 1 to the next number


def relative_error(found: ArrayLike, wanted: ArrayLike) -> float:
    """The largest difference, divided by the largest entry of `wanted`. Infinite when `found` is not finite.

    Raises ValueError when the shapes differ or `wanted` is zero.
    """
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if found.shape != wanted.shape:
        raise ValueError(f"shapes differ: {found.shape} and {wanted.shape}")
    scale = np.abs(wanted).max(initial=0.0)
    if not scale:
        raise ValueError("a relative error needs something that is not zero to compare with")
    error = np.abs(found - wanted).max() / scale
    return float(error) if np.isfinite(error) else float("inf")


def condition(matrix: ArrayLike) -> float:
    """Largest singular value over the smallest (2-norm); infinite when the smallest is zero."""
    singular = np.linalg.svd(np.asarray(matrix, np.float64), compute_uv=False)
    return float(singular[0] / singular[-1]) if singular[-1] > 0 else float("inf")


def symmetry(maps: ArrayLike) -> np.ndarray:
    """1 for a symmetric map, -1 for an antisymmetric one, about 0 for a random one: sum(A * A^T) / sum(A * A).

    maps (..., T, T) -> (...). With A = S + N (its two parts): (|S|^2 - |N|^2) / (|S|^2 + |N|^2).
    A zero map counts as symmetric.
    """
    maps = np.asarray(maps, np.float64)
    if maps.ndim < 2 or maps.shape[-1] != maps.shape[-2]:
        raise ValueError(f"only a square map has a symmetry, this one has shape {maps.shape}")
    size = (maps * maps).sum((-2, -1))
    return np.where(size > 0, (maps * np.swapaxes(maps, -2, -1)).sum((-2, -1)) / np.where(size > 0, size, 1), 1.0)


def circuit_symmetry(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """`symmetry` of the circuits A B^T without forming them: a and b (..., d, d_h) -> (...).

    sum(C * C^T) = tr(C C) = tr((B^T A)(B^T A)) and sum(C * C) = tr((A^T A)(B^T B)): products of d_h x d_h.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"the two matrices of a circuit have one shape, these have {a.shape} and {b.shape}")
    a_t, b_t = np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)
    mixed = b_t @ a
    size = ((a_t @ a) * (b_t @ b)).sum((-2, -1))
    return np.where(size > 0, (mixed * np.swapaxes(mixed, -1, -2)).sum((-2, -1)) / np.where(size > 0, size, 1), 1.0)


def round_to(values: ArrayLike, precision: str) -> np.ndarray:
    """`values` rounded to float64, float32 or bfloat16, to nearest with ties to even.

    numpy has no bfloat16: those numbers come back as float32 whose last 16 bits are zero, so a product of two of them
    is computed as a GPU does, from rounded factors with sums in float32. Round the result again to store it.
    Raises ValueError for any other name.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r}: one of {', '.join(PRECISIONS)}")
    if precision == "float64":
        return np.asarray(values, np.float64)
    single = np.asarray(values, np.float32)
    if precision == "float32":
        return single
    bits = np.atleast_1d(single).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isfinite(single), rounded.reshape(single.shape), single)
