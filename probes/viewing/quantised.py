"""Numbers in one byte each, with the error that costs.

    code  = round((x − low) / step)         0 … 255
    x     ≈ low + code · step               off by step/2 at most

Attention that is a share of one always has low = 0 and step = 1/255, so that codes of different
heads compare; other numbers have the range of their own values. A page of 144 heads on 60 rows of
64 tokens holds 18 million such numbers: in four bytes each nobody would open it. Do not compute
with them: what is measured is measured on the numbers as the model gave them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Quantised", "quantised"]

_CODES = 255
_SLACK = 1e-6
"""How far above one a share may lie by rounding."""


@dataclass(frozen=True)
class Quantised:
    """Numbers as codes.

    Attributes:
        codes: Of the numbers' shape.
        low: What code 0 stands for.
        step: Between codes.
        error: The largest |number − what its code stands for|, as found; step/2 or less, but for
            rounding.
    """

    codes: NDArray[np.uint8]
    low: float
    step: float
    error: float

    def values(self) -> NDArray[np.float64]:
        """What the codes stand for."""
        found: NDArray[np.float64] = self.low + self.codes.astype(np.float64) * self.step
        return found


def quantised(values: NDArray[np.floating], *, shares: bool = False) -> Quantised:
    """Numbers in one byte each.

    Args:
        values: Finite; of any shape.
        shares: Whether they are shares of one: where all lie between 0 and 1, the codes' range is
            that and not the values' own.
    """
    exact: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    low, high = (float(exact.min()), float(exact.max())) if exact.size else (0.0, 0.0)
    if shares and low >= 0 and high <= 1 + _SLACK:
        low, high = 0.0, 1.0
    step = (high - low) / _CODES
    scaled = (exact - low) / (step or 1.0)
    codes = np.clip(np.rint(scaled), 0, _CODES).astype(np.uint8)
    error = float(np.abs(low + codes * step - exact).max(initial=0.0))
    return Quantised(codes, low, step, error)
