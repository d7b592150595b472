"""The symmetry of a circuit, against the matrix itself."""

import numpy as np
import pytest

from qkvlab.theory import measure


def test_symmetry_of_a_circuit_without_forming_it():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 2, 7, 4))  # 3 layers, 2 heads, d = 7, d_h = 4
    formed = a @ b.swapaxes(-1, -2)
    np.testing.assert_allclose(measure.circuit_symmetry(a, b), measure.symmetry(formed), atol=1e-14)
    assert measure.circuit_symmetry(a, a) == pytest.approx(np.ones((3, 2)))
    assert measure.circuit_symmetry(0 * a[0, 0], b[0, 0]) == 1


def test_it_is_blind_to_what_the_circuit_does_not_feel():
    rng = np.random.default_rng(1)
    a, b, m = rng.standard_normal((7, 4)), rng.standard_normal((7, 4)), rng.standard_normal((4, 4))
    moved = measure.circuit_symmetry(a @ m, b @ np.linalg.inv(m).T)
    assert moved == pytest.approx(measure.circuit_symmetry(a, b), abs=1e-12)
    assert measure.circuit_symmetry(a @ m, b) != pytest.approx(measure.circuit_symmetry(a, b), abs=1e-3)


def test_two_shapes_make_no_circuit():
    with pytest.raises(ValueError, match=r"\(7, 4\) and \(7, 3\)"):
        measure.circuit_symmetry(np.ones((7, 4)), np.ones((7, 3)))
