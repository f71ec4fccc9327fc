"""Curves of errors, and what a steep kernel leaves."""

import numpy as np
import pytest

from analyses.fits.curves import error_curves, fit_panels
from analyses.fits.sums import lags_beyond
from interp.tasks.memory.kernels import MemoryKernel


def test_curves_have_a_row_for_everything_and_count_it() -> None:
    counted: list[int] = []
    table = error_curves(["exponential(0.5)"], [1], done=lambda: counted.append(1))
    assert len(table) == len(counted) == 4
    assert np.allclose(table["fit_error"] + table["rounding_error"], table["error"])
    lin = table[table["positions"] == "lin"].set_index("precision")["error"]
    assert lin["float64"] < lin["float32"] < 1e-2


def test_panels_hold_the_kernel_and_both_fits() -> None:
    ((title, values, fits),) = fit_panels(["exponential(0.5)"], 1, lags=5)
    assert title == "exponential(0.5)"
    assert np.allclose(values, MemoryKernel.parse(title).values(np.arange(5.0)))
    lin = next(held for name, held in fits.items() if name.startswith("lin"))
    assert np.abs(lin - values).max() < 0.05


@pytest.mark.parametrize("power", ["40", "1e4", "1e308"])
def test_what_a_steep_kernel_leaves_is_nothing(power: str) -> None:
    """Above its scale it is 0; the rest that is bounded then is e to the minus a huge number."""
    assert lags_beyond(MemoryKernel.parse(f"light(6, {power})"), 20_000) == 0.0
