"""Sums of exponentials and powers: closed forms, and the error on a row, against direct ones."""

import mpmath
import numpy as np
import pytest

from interp.proofs.lagfits import errors_so_far, tail


@pytest.mark.parametrize("start", [0, 3, 200])
def test_tails_equal_the_zeta_function_and_the_geometric_series(start: int) -> None:
    with mpmath.workdps(100):
        slopes = [mpmath.mpf(p) for p in (1.003, 1.5, 7.25, 20)]
        for p, found in zip(slopes, tail("log", slopes, start), strict=True):
            assert abs(found / mpmath.zeta(p, 1 + start) - 1) < 1e-24
        direct = mpmath.fsum(mpmath.exp(-mpmath.mpf(1.5) * s) for s in range(start, start + 60))
        assert abs(tail("lin", slopes, start)[1] / direct - 1) < 1e-20


@pytest.mark.parametrize("softmax", [False, True])
def test_the_error_on_a_row_is_that_of_a_slow_loop_although_its_terms_cancel(softmax: bool) -> None:
    """Two coefficients of 1e15 leave 0.3 of each other at lag 1; float64 keeps no digit of it."""
    slopes, a, wanted = [1.0, 1.0 + 2.0**-50], [1e15, -1e15], np.array([0.0, 1.0, 0.5, 0.0])
    with mpmath.workdps(60):
        p = [mpmath.mpf(v) for v in slopes]
        slow = []
        for t in range(4):
            error = mpmath.mpf(0)
            for s in range(t + 1):
                held = mpmath.mpf(0)
                for slope, factor in zip(p, a, strict=True):
                    so_far = sum(mpmath.exp(-slope * k) for k in range(t + 1))
                    settled = 1 / (1 - mpmath.exp(-slope)) / so_far if softmax else 1
                    held += factor * settled * mpmath.exp(-slope * s)
                error += abs(float(wanted[s]) - held)
            slow.append(float(error))
    found = errors_so_far("lin", slopes, a, wanted, softmax=softmax)
    assert found == pytest.approx(slow, rel=1e-14)
    assert (found > 0.1).any()
