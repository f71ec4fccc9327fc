"""Shares of a sum's variance, computed in one pass over batches of rows, and their null.

With c a part, y the value, both less their means over all scored positions, and zero elsewhere,

    share   Σ c·y / Σ y²            over rows r and positions t: Cov(c, y) / Var(y)
    null    y of row r is that of row π(r), π a random permutation of all rows. With the position
            means c̄_t, ȳ_t over the n rows,
                mean of Σ c·y      n Σ_t c̄_t ȳ_t
                variance           Σ_{r,s} (Σ_t (c_rt − c̄_t)(y_st − ȳ_t))² / (n − 1)
    effect  share − null mean: the covariance within positions, so what depends on the position
            alone, the same in every row, counts for nothing

All are functions of sums over rows: of values ``[part, pos]`` and of their products
``[part, pos, pos]``, which is the memory taken. Values are counted from the means of the first
batch, so that large means cost no digits. Rows of different lengths meet where both are scored.

A resample of rows is centred by its own means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.stats.bootstrap import interval_of
from interp.stats.p_values import Null, from_moments

__all__ = ["VarianceExplained"]

_CONSTANT = 1e-24
"""A value counts as constant up to this ratio of variance to mean square (float64 rounding)."""

_FIXED = 1e-12
"""A value counts as the same in every row if no more than this share of its variance lies within
positions."""


class VarianceExplained:
    """Running sums of the products of parts and, as the last entry, of the value they add up to.

    Args:
        labels: The parts' labels.
        length: Positions of the longest row.
        resamples: Number of bootstrap resamples.
    """

    def __init__(self, labels: Sequence[str], length: int, resamples: int) -> None:
        self.labels, count = tuple(labels), len(labels) + 1
        self._shift: Tensor | None = None
        self._rows, self._scored = 0, 0.0
        self._first, self._counted = _zeros(count, length), _zeros(length)
        self._second, self._crossed = _zeros(2, count, length, length)
        self._both = _zeros(length, length)
        self._products, self._squares, self._energy = _zeros(3, count)
        self._drawn_first, self._drawn_products = _zeros(2, resamples, count)
        self._drawn_scored = _zeros(resamples, 1)

    def add(
        self,
        parts: Float[Tensor, "part row pos"],
        value: Float[Tensor, "row pos"],
        mask: Bool[Tensor, "row pos"],
        counts: Float[Tensor, "resample row"],
    ) -> None:
        """Add some rows of one length, each with at least one scored position."""
        every, scored = torch.cat((parts, value[None])).double(), mask.double()
        if self._shift is None:
            self._shift = (every * scored).sum((1, 2), keepdim=True) / scored.sum()
        values = (every - self._shift) * scored
        products = (values * values[-1]).sum(2)
        n = mask.shape[1]
        self._rows += len(mask)
        self._scored += float(scored.sum())
        self._first[:, :n] += values.sum(1)
        self._counted[:n] += scored.sum(0)
        self._second[:, :n, :n] += torch.einsum("prt,pru->ptu", values, values)
        self._crossed[:, :n, :n] += torch.einsum("prt,ru->ptu", values, scored)
        self._both[:n, :n] += scored.T @ scored
        self._products += products.sum(1)
        self._squares += values.square().sum((1, 2))
        self._energy += (every * scored).square().sum((1, 2))
        self._drawn_first += counts @ values.sum(2).T
        self._drawn_products += counts @ products.T
        self._drawn_scored += counts @ scored.sum(1, keepdim=True)

    def results(self) -> Iterator[tuple[str, float, Null, tuple[float, float]]]:
        """Yield each part's label, share, null (two-sided p) and interval of the effect.

        Numbers are NaN where the value is constant.
        """
        mean = self._first.sum(1) / self._scored
        constant = self._squares - self._scored * mean**2 <= _CONSTANT * self._energy
        size = self._products[-1] - self._scored * mean[-1] ** 2
        if constant[-1]:
            size = torch.full_like(size, torch.nan)
        varying = (~constant[:-1]).double()
        product = (self._products - self._scored * mean * mean[-1])[:-1] * varying
        expected, variance = self._moments(mean)
        found = torch.stack((product, expected * varying, variance.clamp_min(0).sqrt() * varying))
        low, high = interval_of((self._draws() * varying).numpy())
        for index, (score, null, std) in enumerate((found / size).T.tolist()):
            against = from_moments(score, null, std, name="rows", tail="two-sided")
            interval = float(low[index]) - null, float(high[index]) - null
            yield self.labels[index], score, against, interval

    def _moments(self, mean: Float[Tensor, " part"]) -> tuple[Tensor, Tensor]:
        """Mean and variance of each part's product with the value of a randomly permuted row."""
        by_position = self._first - mean[:, None] * self._counted
        expected = by_position[:-1] @ by_position[-1] / self._rows
        value = self._inside(-1, mean, by_position)
        products = [
            (self._inside(part, mean, by_position) * value).sum()
            for part in range(len(self.labels))
        ]
        return expected, torch.stack(products) / (self._rows - 1)

    def _inside(
        self, part: int, mean: Float[Tensor, " part"], by_position: Float[Tensor, "part pos"]
    ) -> Float[Tensor, "pos pos"]:
        """The sum of products of a part with itself, position means removed; zero if all rows are
        alike."""
        crossed = self._crossed[part] + self._crossed[part].T
        found = self._second[part] - mean[part] * crossed + mean[part] ** 2 * self._both
        found = found - torch.outer(by_position[part], by_position[part]) / self._rows
        same = bool(found.trace() <= _FIXED * self._squares[part])
        return torch.zeros_like(found) if same else found

    def _draws(self) -> Float[Tensor, "resample part"]:
        """The shares on the resamples; NaN for a resample in which nothing varies."""
        first, scored = self._drawn_first, self._drawn_scored
        product = self._drawn_products - first * first[:, -1:] / scored
        size = product[:, -1:]
        flat = ~(size > _CONSTANT * self._energy[-1])
        return product[:, :-1] / torch.where(flat, torch.nan, size)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)
