"""Where heads attend, by lag, and which lag a *signed combination* of heads selects.

    mass_h(s)   = mean over scored t of pattern_h(t, t−s) / Σ_j pattern_h(t, j)
    kernel_h(s) = mean over scored t of pattern_h(t, t−s) · u_h(t−s) · u(t−s)

u_h(j) is what head h would write along a residual direction if it attended to j alone, less its
mean (a constant carries nothing), and u the unit-variance signal that the heads share (the first
principal component of the u_h). Σ_h kernel_h is the kernel of the combination, signed so that its
peak is positive: a constructed memory's heads all attend most to lag 0, and only their sum selects
lag T (`memory` §1.4). ``concentration`` is the share |K(T)| / Σ_s |K(s)|.

Where the location depends on content, a mean over positions hides where each query looked:
``kernel_by_offset`` aligns each query at its own lag t_i and gives the kernel over s − t_i. In
deeper layers a key holds more than its own token: there ``kernel_by_regression`` regresses what a
head writes along w on the contents x_{t−s} themselves, all lags at once, which asks what arrives
rather than where the head looked.

Lags run over the past: this is not for attention that looks both ways. A concentrated pattern says
what *can* be read from a head; only an intervention says that it is.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

__all__ = [
    "concentration",
    "kernel_by_lag",
    "kernel_by_offset",
    "kernel_by_regression",
    "mass_by_lag",
]

Pattern = Float[np.ndarray, "row head query key"]
Mask = Bool[np.ndarray, "row query"]
ByLag = Float[np.ndarray, "head lag"]


def mass_by_lag(pattern: Pattern, mask: Mask) -> ByLag:
    """Mean share of attention at every lag from 0 on."""
    total = pattern.sum(-1, keepdims=True)
    share = np.divide(pattern, total, out=np.zeros_like(pattern), where=total > 0)
    return _mean_by_lag(share, mask)


def kernel_by_lag(pattern: Pattern, values: Float[np.ndarray, "row key head"], mask: Mask) -> ByLag:
    """Each head's signed kernel along one residual direction.

    Args:
        pattern: Attention, normalised or not.
        values: ⟨w, v_j W_O⟩: what each head would write along w from each key.
        mask: Scored queries.
    """
    return _peak_up(_mean_by_lag(_weighted(pattern, values), mask))


def kernel_by_offset(
    pattern: Pattern,
    values: Float[np.ndarray, "row key head"],
    mask: Mask,
    lags: Float[np.ndarray, "row query"],
) -> Float[np.ndarray, "head offset"]:
    """Each head's signed kernel over s − t_i, for locations that depend on content.

    Args:
        pattern, values, mask: As for :func:`kernel_by_lag`.
        lags: t_i of each query; queries whose lag is no whole number do not count.

    Returns:
        Offsets −(n − 1) … n − 1 for n positions; index n − 1 is the location itself.
    """
    n = pattern.shape[-1]
    place = np.arange(n)
    lag = place[:, None] - place
    offset = lag - lags[..., None]
    counted = (lag >= 0) & mask[..., None] & (lags == np.round(lags))[..., None]
    counted &= np.abs(offset) < n
    at = offset[counted].astype(int) + n - 1
    seen = np.bincount(at, minlength=2 * n - 1)
    weighted = np.moveaxis(_weighted(pattern, values), 1, 0)
    sums = [np.bincount(at, weights=head[counted], minlength=2 * n - 1) for head in weighted]
    return _peak_up(np.stack(sums) / np.maximum(seen, 1))


def kernel_by_regression(
    written: Float[np.ndarray, "row pos head"],
    contents: Float[np.ndarray, "row pos"],
    mask: Mask,
    lags: int,
) -> ByLag:
    """What each head writes along a direction, as a linear function of the last contents.

    Least squares with an intercept over scored positions that have all the lags; what depends on
    contents in other ways, or on older ones, is not in the kernel.

    Args:
        written: ⟨w, what the head writes⟩ at each position.
        contents: x_t, whose past the memories are.
        mask: Scored positions.
        lags: Lags 0 … lags − 1 are the regressors.
    """
    n = contents.shape[1]
    counted = mask & (np.arange(n) >= lags - 1)
    past = np.stack([np.roll(contents, s, axis=1) for s in range(lags)], axis=-1)[counted]
    outputs = written[counted]
    slopes = np.linalg.lstsq(past - past.mean(0), outputs - outputs.mean(0), rcond=None)[0]
    return _peak_up(np.ascontiguousarray(slopes.T))


def concentration(kernel: Float[np.ndarray, "lag"], lag: int) -> float:
    """|K(lag)| / Σ_s |K(s)|; 0 for a kernel that is zero."""
    size = float(np.abs(kernel).sum())
    return float(abs(kernel[lag])) / size if size > 0 else 0.0


def _weighted(pattern: Pattern, values: Float[np.ndarray, "row key head"]) -> Pattern:
    """pattern · u_h · u at every key."""
    values = values - values.mean(axis=(0, 1))
    signal = _shared_signal(values)
    return pattern * np.moveaxis(values * signal[..., None], -1, 1)[:, :, None, :]


def _peak_up(kernel: Float[np.ndarray, "head lag"]) -> Float[np.ndarray, "head lag"]:
    """Signed so that the heads' sum has its peak upwards."""
    together = kernel.sum(0)
    return kernel * (np.sign(together[np.abs(together).argmax()]) or 1.0)


def _mean_by_lag(by_key: NDArray[np.floating], mask: Mask) -> ByLag:
    """Mean over scored queries that have the lag; queries without it do not count."""
    n = by_key.shape[-1]
    means = []
    for lag in range(n):
        diagonal = np.diagonal(by_key, -lag, axis1=-2, axis2=-1)  # [row, head, n - lag]
        scored = mask[:, lag:].astype(by_key.dtype)
        means.append(np.einsum("rht,rt->h", diagonal, scored) / max(scored.sum(), 1))
    return np.stack(means, axis=-1)


def _shared_signal(values: Float[np.ndarray, "row key head"]) -> Float[np.ndarray, "row key"]:
    """The first principal component of the heads' values, of mean square one."""
    scale = np.abs(values).max(axis=(0, 1))
    columns = (values / np.where(scale > 0, scale, 1)).reshape(-1, values.shape[-1])
    _, axes = np.linalg.eigh(columns.T @ columns)
    signal = columns @ axes[:, -1]
    signal = signal / (np.sqrt((signal**2).mean()) or 1.0)
    return signal.reshape(values.shape[:2])
