"""Where heads attend, by lag, and which lag a *signed combination* of heads selects.

    mass_h(s)   = mean over scored t of pattern_h(t, t−s) / Σ_j pattern_h(t, j)
    kernel_h(s) = mean over scored t of pattern_h(t, t−s) · u_h(t−s) · u(t−s)

u_h(j) is what head h would write along a residual direction if it attended to j alone, less its
mean (a constant carries nothing), and u the unit-variance signal that the heads share (the first
principal component of the u_h). Σ_h kernel_h is the kernel of the combination, signed so that its
peak is positive: a constructed memory's heads all attend most to lag 0, and only their sum selects
lag T (`memory` §1.4). ``concentration`` is the share |K(T)| / Σ_s |K(s)|.

Lags run over the past: this is not for attention that looks both ways, nor for content-dependent
locations, where a mean over positions hides where each query looked. A concentrated pattern says
what *can* be read from a head; only an intervention says that it is.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

__all__ = ["concentration", "kernel_by_lag", "mass_by_lag"]

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
    values = values - values.mean(axis=(0, 1))
    signal = _shared_signal(values)
    weighted = pattern * np.moveaxis(values * signal[..., None], -1, 1)[:, :, None, :]
    kernel = _mean_by_lag(weighted, mask)
    together = kernel.sum(0)
    return kernel * (np.sign(together[np.abs(together).argmax()]) or 1.0)


def concentration(kernel: Float[np.ndarray, "lag"], lag: int) -> float:
    """|K(lag)| / Σ_s |K(s)|; 0 for a kernel that is zero."""
    size = float(np.abs(kernel).sum())
    return float(abs(kernel[lag])) / size if size > 0 else 0.0


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
