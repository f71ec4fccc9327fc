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
deeper layers a key holds more than its own token: there ``RegressionSums`` regresses what a
head writes along w on the contents x_{t−s} themselves, all lags at once, which asks what arrives
rather than where the head looked.

All are sums over rows and are kept as such, batch by batch: :class:`ValueSums` (means and second
moments of the u_h, from which u follows), then :class:`KernelSums`, or :class:`RegressionSums`.
What they hold does not grow with rows; the functions on whole arrays are one batch of the same.

Lags run over the past: this is not for attention that looks both ways. A concentrated pattern says
what *can* be read from a head; only an intervention says that it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from interp.stats.bootstrap import RowCounts, RowMeans

Pattern = Float[np.ndarray, "row head query key"]
Values = Float[np.ndarray, "row key head"]
Mask = Bool[np.ndarray, "row query"]
ByHead = Float[np.ndarray, "head row query key"]
ByLag = Float[np.ndarray, "head lag"]
ByOffset = Float[np.ndarray, "head offset"]

_SINGULAR = 1e-12
"""A direction of the regressors counts as constant below this share of the largest variance."""


@dataclass(frozen=True)
class Signal:
    """What the heads' values have in common: u(j) = Σ_h weights_h (values_h(j) − mean_h).

    Attributes:
        mean: ``[head]``.
        weights: ``[head]``, such that u has mean square one.
        coefficients: ``[head]``, how much of u each head writes: the covariance of values and u.
    """

    mean: Float[np.ndarray, " head"]
    weights: Float[np.ndarray, " head"]
    coefficients: Float[np.ndarray, " head"]


class ValueSums:
    """Running moments of what each head would write along a direction, over all keys."""

    def __init__(self) -> None:
        self._shift: NDArray[np.float64] | None = None

    def add(self, values: Values) -> None:
        """Add the values ⟨w, v_j W_O⟩ of some rows."""
        flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
        if self._shift is None:  # large means then cost no digits
            self._shift = flat.mean(0)
            self._count, self._total = 0, np.zeros_like(self._shift)
            self._products = np.zeros((len(self._shift),) * 2)
            self._least, self._most = flat.min(0), flat.max(0)
        flat = flat - self._shift
        self._count += len(flat)
        self._total += flat.sum(0)
        self._products += flat.T @ flat
        self._least = np.minimum(self._least, flat.min(0) + self._shift)
        self._most = np.maximum(self._most, flat.max(0) + self._shift)

    def signal(self) -> Signal:
        """The signal that heads share: the first principal component of their scaled values.

        Each head's values are first divided by their largest distance from their mean.
        """
        if self._shift is None:
            return Signal(np.zeros(0), np.zeros(0), np.zeros(0))
        off = self._total / self._count
        mean = self._shift + off
        scale = np.maximum(self._most - mean, mean - self._least)
        scale = np.where(scale > 0, scale, 1.0)
        covariance = (self._products / self._count - np.outer(off, off)) / np.outer(scale, scale)
        _, axes = np.linalg.eigh(covariance)
        size = float(np.sqrt(max(axes[:, -1] @ covariance @ axes[:, -1], 0.0)))
        axis = axes[:, -1] / (size or 1.0)
        return Signal(mean, axis / scale, covariance @ axis * scale)


class KernelSums:
    """Running sums of pattern · u_h · u by the offset s − t_i from the location.

    Args:
        signal: The signal of all rows, from :meth:`ValueSums.signal`.
        length: Positions of the rows.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples of the rows; 0 for none.
    """

    def __init__(self, signal: Signal, length: int, *, seed: int = 0, resamples: int = 0) -> None:
        self.signal, self.length = signal, length
        self._counts = RowCounts(seed, resamples)
        self._sums = RowMeans((len(signal.mean), 2 * length - 1), resamples)

    def add(
        self,
        pattern: Pattern,
        values: Values,
        mask: Mask,
        lags: Float[np.ndarray, "row query"] | None = None,
    ) -> None:
        """Add some rows; see :func:`kernel_by_offset`. Without ``lags``, all lags are 0."""
        centred = values - self.signal.mean
        carried = np.moveaxis(centred * (centred @ self.signal.weights)[..., None], -1, 0)
        by_query = np.moveaxis(pattern, 1, 0)
        if lags is None:
            sums, seen = _by_lag(by_query, carried, mask)
        else:
            sums, seen = _by_offset(by_query * carried[:, :, None], mask, lags)
        self._sums.add(
            torch.from_numpy(np.moveaxis(sums, 0, 1)),
            torch.from_numpy(seen[:, None]),
            self._counts.draw(len(mask)),
        )

    @property
    def size(self) -> int:
        """How many numbers the sums take in memory; it does not grow with rows."""
        return self._sums.size

    def kernel(self) -> ByOffset:
        """Each head's signed kernel over offsets; 0 at offsets that no query has."""
        return _peak_up(np.nan_to_num(self._sums.scores()))

    def draws(self) -> Float[np.ndarray, "resample head offset"]:
        """The kernel on each bootstrap resample of the rows, its sign not fixed; the signal is
        kept."""
        return np.nan_to_num(self._sums.draws())


class RegressionSums:
    """Running moments of the contents x_{t−s} and of what heads write, for a regression.

    Args:
        lags: Lags 0 … lags − 1 are the regressors.
        heads: Number of heads.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples of the rows; 0 for none.
    """

    def __init__(self, lags: int, heads: int, *, seed: int = 0, resamples: int = 0) -> None:
        self.lags, wide = lags, 1 + lags + heads
        self._counts = RowCounts(seed, resamples)
        self._shift: NDArray[np.float64] | None = None
        self._products, self._drawn = np.zeros((wide, wide)), np.zeros((resamples, wide, wide))

    def add(
        self,
        written: Float[np.ndarray, "row pos head"],
        contents: Float[np.ndarray, "row pos"],
        mask: Mask,
    ) -> None:
        """Add some rows; see the class."""
        counted = (mask & (np.arange(contents.shape[1]) >= self.lags - 1)).astype(np.float64)
        past = np.stack([np.roll(contents, s, axis=1) for s in range(self.lags)], axis=-1)
        both = np.concatenate([past, written], axis=-1).astype(np.float64)
        if self._shift is None:
            self._shift = (both * counted[..., None]).sum((0, 1)) / max(counted.sum(), 1.0)
        known = np.concatenate([np.ones((*mask.shape, 1)), both - self._shift], axis=-1)
        products = np.einsum("rti,rt,rtj->rij", known, counted, known, optimize=True)
        self._products += products.sum(0)
        self._drawn += np.tensordot(self._counts.draw(len(mask)).numpy(), products, axes=1)

    @property
    def size(self) -> int:
        """How many numbers the sums take in memory; it does not grow with rows."""
        return self._products.size + self._drawn.size

    def kernel(self) -> ByLag:
        """Each head's regression slope at each lag ``[head, lag]``, with its sign."""
        return _peak_up(self._slopes(self._products))

    def draws(self) -> Float[np.ndarray, "resample head lag"]:
        """The regression slopes on each bootstrap resample of the rows, their sign not fixed."""
        return self._slopes(self._drawn)

    def _slopes(self, products: NDArray[np.float64]) -> NDArray[np.float64]:
        count = np.maximum(products[..., :1, :1], 1.0)
        centred = products - products[..., :, :1] * products[..., :1, :] / count
        past, rest = slice(1, 1 + self.lags), slice(1 + self.lags, None)
        inverse = np.linalg.pinv(centred[..., past, past], rcond=_SINGULAR, hermitian=True)
        slopes = np.swapaxes(inverse @ centred[..., past, rest], -1, -2)
        return np.ascontiguousarray(slopes)


def kernel_by_offset(
    pattern: Pattern, values: Values, mask: Mask, lags: Float[np.ndarray, "row query"]
) -> ByOffset:
    """Each head's signed kernel over s − t_i, for locations that depend on content.

    Args:
        pattern: Attention, normalised or not.
        values: ⟨w, v_j W_O⟩: what each head would write along w from each key.
        mask: Scored queries.
        lags: t_i of each query; queries whose lag is no whole number do not count.

    Returns:
        Offsets −(n − 1) … n − 1 for n positions; index n − 1 is the location itself.
    """
    moments = ValueSums()
    moments.add(values)
    sums = KernelSums(moments.signal(), pattern.shape[-1])
    sums.add(pattern, values, mask, lags)
    return sums.kernel()


def concentration(kernel: Float[np.ndarray, " lag"], lag: int) -> float:
    """The share of the kernel that lies at one lag, |K(lag)| / Σ_s |K(s)|; 0 for a zero kernel."""
    size = float(np.abs(kernel).sum())
    return float(abs(kernel[lag])) / size if size > 0 else 0.0


def _by_lag(
    by_query: ByHead, carried: Float[np.ndarray, "head row key"], mask: Mask
) -> tuple[NDArray[np.float64], ...]:
    """What :func:`_by_offset` gives where all lags are 0, of pattern and values apart: a view along
    the diagonals in place of an index for each query and key."""
    heads, rows, n, _ = by_query.shape
    skewed = np.zeros((heads, rows, n, 2 * n - 1))  # before the first key there is nothing
    np.multiply(by_query, carried[:, :, None], out=skewed[..., n - 1 :])
    if not mask.all():
        skewed *= mask[..., None]
    *outer, query, key = skewed.strides
    at_lag = np.lib.stride_tricks.as_strided(
        skewed[..., n - 1 :], (heads, rows, n, n), (*outer, query + key, -key), writeable=False
    )
    later = np.cumsum(mask[:, ::-1], axis=1)[:, ::-1].astype(np.float64)  # queries from each lag on
    past = [(0, 0), (n - 1, 0)]
    return np.pad(at_lag.sum(2), [(0, 0), *past]), np.pad(later, past)


def _by_offset(
    by_head: ByHead, mask: Mask, lags: Float[np.ndarray, "row query"]
) -> tuple[NDArray[np.float64], ...]:
    """Each head's sums over queries ``[head, row, offset]``, and how many queries have the offset,
    ``[row, offset]``."""
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
    """The kernel with its sign chosen so that the largest peak of the heads' sum is positive."""
    together = kernel.sum(0)
    return kernel * (np.sign(together[np.abs(together).argmax()]) or 1.0)
