"""The error of the best sums found for each number of heads, and how much of it is rounding.

Each row is a sum fitted *for* its precision: in float32 another trade between fit and rounding is
best than in float64. Errors are certificates, fit and worst-case rounding together, for |x| ≤ 1.
More heads can only help; where the search found a worse sum with more heads, the table says what it
found, not what exists. None of this says what training reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.fits.sums import PRECISIONS, fit_sum
from prooflens.proofs import Positions, phi_values
from prooflens.tasks import MemoryKernel

__all__ = ["error_curves", "fit_panels"]

_KINDS: tuple[Positions, ...] = ("lin", "log")


def error_curves(
    targets: Sequence[int | str],
    heads: Sequence[int],
    *,
    done: Callable[[], None] | None = None,
) -> pd.DataFrame:
    """A table with one row per target, position function, number of heads and precision.

    Columns: ``target`` (a lag or a kernel's text), ``positions``, ``heads``, ``precision``,
    ``fit_error``, ``rounding_error``, ``error`` (their sum).

    Args:
        targets: Lags of at least 1, or kernels as texts.
        heads: The numbers of heads to try, each at least 1.
        done: Called after every row, such as to advance a progress bar.

    Raises:
        ArgumentError: for what :func:`~analyses.fits.sums.fit_sum` refuses.
    """
    rows = []
    for target, kind, h, name in product(targets, _KINDS, heads, PRECISIONS):
        fit = fit_sum(target, h, positions=kind, unit_roundoff=PRECISIONS[name])
        rows.append((target, kind, h, name, fit.fit_error, fit.rounding_error, fit.error))
        if done is not None:
            done()
    columns = ["target", "positions", "heads", "precision", "fit_error", "rounding_error", "error"]
    return pd.DataFrame(rows, columns=columns)


def fit_panels(
    kernels: Sequence[str], heads: int, *, lags: int = 40
) -> list[tuple[str, NDArray[np.float64], dict[str, NDArray[np.float64]]]]:
    """(text, ρ ``[lag]``, legend → fit ``[lag]``) of each kernel, fitted by lin and by log heads.

    Raises:
        ArgumentError: for what :func:`~analyses.fits.sums.fit_sum` refuses.
    """
    s = np.arange(lags, dtype=np.float64)
    panels = []
    for text in kernels:
        held = {}
        for kind in _KINDS:
            fit = fit_sum(text, heads, positions=kind)
            values = np.exp(-np.outer(phi_values(kind, s), fit.slopes)) @ fit.coefficients
            held[f"{kind}, {heads} heads (ℓ1 error {fit.error:.2g})"] = values
        panels.append((text, MemoryKernel.parse(text).values(s), held))
    return panels
