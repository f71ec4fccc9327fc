"""Measure which lag a *signed combination* of heads selects.

    kernel_h(s) = mean over scored t of pattern_h(t, t−s) · u_h(t−s) · u(t−s)

u_h(j) is what head h would write along a residual direction if it attended to j alone, minus its
mean (a constant carries no information), and u is the unit-variance signal that the heads share
(the first principal component of the u_h). Σ_h kernel_h is the kernel of the combination, signed so
that its peak is positive: a constructed memory's heads all attend most to lag 0, and only their sum
selects lag T (`memory` §1.4). ``concentration`` is the share |K(T)| / Σ_s |K(s)|.

If the location depends on content, a mean over positions hides where each query attended:
``kernel_by_offset`` aligns each query at its own lag t_i and returns the kernel over s − t_i.

Lags cover the past only, so this is not for bidirectional attention. In deeper layers a key holds
more than its own token. A concentrated kernel says what *can* be read from a head; only an
intervention shows that it is read.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

Pattern = Float[np.ndarray, "row head query key"]
Values = Float[np.ndarray, "row key head"]
Mask = Bool[np.ndarray, "row query"]
ByHead = Float[np.ndarray, "head row query key"]
ByOffset = Float[np.ndarray, "head offset"]


def kernel_by_offset(
    pattern: Pattern, values: Values, mask: Mask, lags: Float[np.ndarray, "row query"]
) -> ByOffset:
    """Compute each head's signed kernel over s − t_i, for locations that depend on content.

    Args:
        pattern: Attention ``[row, head, query, key]``, normalised or not.
        values: ⟨w, v_j W_O⟩ ``[row, key, head]``: what each head would write along w from each key.
        mask: The scored queries, ``[row, query]``.
        lags: The lag t_i of each query; queries whose lag is no whole number do not count. With
            zeros the kernel is over lags.

    Returns:
        ``[head, offset]`` for offsets −(n − 1) … n − 1 of n positions; index n − 1 is the location
        itself. It is 0 at offsets that no query has.
    """
    centred = values.astype(np.float64)
    centred = centred - centred.mean((0, 1))
    carried = np.moveaxis(centred * _common_value(centred)[..., None], -1, 0)
    sums, seen = _by_offset(np.moveaxis(pattern, 1, 0) * carried[:, :, None], mask, lags)
    return _peak_up(sums.sum(1) / np.maximum(seen.sum(0), 1.0))


def _common_value(centred: Values) -> Float[np.ndarray, "row key"]:
    """Return the signal that the heads' values share, with mean square one: their first principal
    component, after each head's values were divided by the largest of them."""
    flat = centred.reshape(-1, centred.shape[-1])
    scale = np.abs(flat).max(0)
    flat = flat / np.where(scale > 0, scale, 1.0)
    _, axes = np.linalg.eigh(flat.T @ flat / len(flat))
    found: NDArray[np.float64] = flat @ axes[:, -1]
    size = float(np.sqrt(np.square(found).mean()))
    return (found / (size or 1.0)).reshape(centred.shape[:2])


def concentration(kernel: Float[np.ndarray, " lag"], lag: int) -> float:
    """Return the share of the kernel at one lag, |K(lag)| / Σ_s |K(s)|; 0 for a zero kernel."""
    size = float(np.abs(kernel).sum())
    return float(abs(kernel[lag])) / size if size > 0 else 0.0


def _by_offset(
    by_head: ByHead, mask: Mask, lags: Float[np.ndarray, "row query"]
) -> tuple[NDArray[np.float64], ...]:
    """Return each head's sums over queries ``[head, row, offset]``, and the numbers of queries that
    have the offset, ``[row, offset]``."""
    rows, n = mask.shape
    wide, place = 2 * n - 1, np.arange(n)
    lag = place[:, None] - place
    offset = lag - lags[..., None]
    counted = (lag >= 0) & mask[..., None] & (lags == np.round(lags))[..., None]
    counted &= np.abs(offset) < n
    row = np.broadcast_to(np.arange(rows)[:, None, None], offset.shape)[counted]
    at = offset[counted].astype(int) + n - 1 + row * wide
    sums = [np.bincount(at, weights=h[counted], minlength=rows * wide) for h in by_head]
    seen = np.bincount(at, minlength=rows * wide).astype(np.float64)
    by_offset = np.array(sums, dtype=np.float64).reshape(-1, rows, wide)
    return by_offset, seen.reshape(rows, wide)


def _peak_up(kernel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the kernel, signed such that the largest peak of the heads' sum is positive."""
    together = kernel.sum(0)
    return kernel * (np.sign(together[np.abs(together).argmax()]) or 1.0)
