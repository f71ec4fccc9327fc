import pytest

from analyses.fits.phase import bits_needed, heads_needed, phase_table
from analyses.fits.sums import PRECISIONS, fit_sum, floor
from interp.errors import ArgumentError


@pytest.mark.slow
def test_fewest_heads_reach_the_error_and_fewer_do_not() -> None:
    heads, error = heads_needed(2, 0.1, positions="lin", unit_roundoff=PRECISIONS["float64"])
    assert heads == 3
    assert error == fit_sum(2, 3).error <= 0.1
    assert min(fit_sum(2, h).error for h in (1, 2)) > 0.1


def test_heads_are_not_found_for_two_reasons() -> None:
    heads, bound = heads_needed(8, 0.1, positions="lin", unit_roundoff=PRECISIONS["float32"])
    assert heads is None
    assert bound > 0.1
    found = heads_needed(2, 0.1, positions="lin", unit_roundoff=PRECISIONS["float64"], most=2)
    assert found[0] is None
    assert found[1] > 0.1


@pytest.mark.slow
def test_bits_bracket_the_floor() -> None:
    impossible, possible = bits_needed(1, 0.1, positions="lin")
    assert possible is not None
    assert impossible < possible <= impossible + 4
    assert floor(1, unit_roundoff=2.0**-impossible)[1] > 0.1
    assert floor(1, unit_roundoff=2.0 ** -(impossible + 1))[1] <= 0.1
    assert floor(1, unit_roundoff=2.0**-possible)[0] <= 0.1
    assert floor(1, unit_roundoff=2.0 ** -(possible - 1))[0] > 0.1


@pytest.mark.slow
def test_table_holds_what_the_functions_say() -> None:
    rows = []
    table = phase_table([1], positions=["lin"], most=3, done=lambda: rows.append(1))
    assert list(table["precision"]) == ["float64", "float32"]
    assert list(table["heads"]) == [2, 2]
    assert set(table["status"]) == {"found"}
    for column, bits in zip(
        ("impossible_bits", "possible_bits"), bits_needed(1, 0.1, positions="lin"), strict=True
    ):
        assert list(table[column]) == [bits] * 2
    assert len(rows) == 2


def test_bad_arguments_are_refused_together() -> None:
    with pytest.raises(ArgumentError, match=r"epsilon must be between 0 and 1.*precisions must be"):
        phase_table([1], epsilon=2.0, precisions=["float16"])
