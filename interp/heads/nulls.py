"""What a score would be if there were nothing to find: nulls for behaviour and effects.

    pooled     the same score on re-initialised models of the same shapes, pooled over components
    rows       decodability when rows (sequences) of the latent are permuted against predictions
    swaps      a paired difference in decodability when each row's two versions are exchanged
    signs      a mean paired difference when each row's sign is flipped at random

Permutations move whole rows, so dependence between positions of a row is kept. p is
(1 + #{null ≥ score}) / (1 + draws), or a normal tail for scores that sum over many rows and lie
beyond nearly all draws. A score beyond its null is not yet a mechanism: re-initialised models are
a weak opponent for any trained one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtr
from torch import Tensor

__all__ = [
    "DRAWS",
    "Null",
    "accuracy_null",
    "balanced_accuracy",
    "bootstrap_interval",
    "correlation_interval",
    "correlation_squared",
    "decodability_null",
    "from_draws",
    "others_moments",
    "rows_null",
    "signs_null",
    "swaps_null",
]

DRAWS = 1000
_FEW = 10

Predictions = Float[np.ndarray, "row pos"]
Classes = Float[np.ndarray, "class"]


@dataclass(frozen=True)
class Null:
    """Mean and standard deviation under the null, and the score's one-sided p against it."""

    mean: float
    std: float
    p: float


def from_draws(
    score: float, draws: Float[np.ndarray, "draw"], *, normal_tail: bool = False
) -> Null:
    """The null that ``draws`` are, and how far up in it ``score`` is.

    Args:
        score: What was measured.
        draws: The same under the null.
        normal_tail: For sums over many rows: where fewer than ten draws reach the score, take p
            from the normal distribution of the draws' mean and spread, so that p is not bounded
            by the number of draws (a hundred heads need p far below 1/1000).

    Returns:
        p is NaN where the score or a draw is not finite.
    """
    reached = int((draws >= score).sum())
    mean, std = float(draws.mean()), float(draws.std())
    if not (np.isfinite(score) and np.isfinite(draws).all()):
        return Null(mean, std, float("nan"))
    if normal_tail and reached < _FEW and std > 0:
        return Null(mean, std, float(ndtr((mean - score) / std)))
    return Null(mean, std, (1 + reached) / (1 + len(draws)))


def decodability_null(
    predicted: Predictions, actual: Predictions, *, seed: int, draws: int = DRAWS
) -> Null:
    """The null of :func:`correlation_squared` when the rows of ``actual`` are permuted.

    The tail is that of the correlation itself, which is close to normal, not of its square.
    """
    centred = predicted - predicted.mean(), actual - actual.mean()
    product, *sizes = _sums(*centred).sum(0).tolist()
    size = float(np.sqrt(sizes[0] * sizes[1]))
    found = rows_null(predicted, actual, seed=seed, draws=draws)
    squares = found.clip(min=0) ** 2
    p = from_draws(product / size, found, normal_tail=True).p if size > 0 else 1.0
    return Null(float(squares.mean()), float(squares.std()), p)


def correlation_squared(predicted: Predictions, actual: Predictions) -> float:
    """Squared correlation over all rows and positions; 0 where it is negative or undefined."""
    centred = predicted - predicted.mean(), actual - actual.mean()
    return float(_squared(*(_sums(*centred).sum(0)).tolist()))


def balanced_accuracy(
    predicted: Predictions, actual: Predictions, *, classes: Classes | None = None
) -> float:
    """Mean over classes of the share found, rescaled: 0 at chance, 1 without a mistake; 0 where
    there is one class only. ``classes`` are those that count; all of ``actual`` by default."""
    classes = np.unique(actual) if classes is None else classes
    if len(classes) < 2:
        return 0.0
    found = np.mean([(predicted[actual == c] == c).mean() for c in classes])
    return float((found - 1 / len(classes)) / (1 - 1 / len(classes)))


def accuracy_null(
    predicted: Predictions, actual: Predictions, *, classes: Classes | None = None
) -> Null:
    """The null of :func:`balanced_accuracy` when the rows of ``actual`` are permuted; its mean,
    variance and normal tail are exact moments, not draws."""
    classes = np.unique(actual) if classes is None else classes
    if len(classes) < 2:
        return Null(0.0, 0.0, 1.0)
    paired = np.zeros((len(actual), len(actual)))
    for c in classes:
        share = (actual == c) / (np.count_nonzero(actual == c) * len(classes))
        paired += (predicted == c).astype(float) @ share.T
    mean, variance = (float(v) for v in others_moments(torch.from_numpy(paired)[..., None]))
    chance = 1 / len(classes)
    std = float(np.sqrt(variance))
    excess = float(np.trace(paired)) - mean
    p = float(ndtr(-excess / std)) if std > 0 else 1.0
    return Null((mean - chance) / (1 - chance), std / (1 - chance), p)


def rows_null(
    predicted: Predictions, actual: Predictions, *, seed: int, draws: int = DRAWS
) -> Float[np.ndarray, "draw"]:
    """Correlations with the rows of ``actual`` permuted."""
    rng = np.random.default_rng(seed)
    predicted, actual = predicted - predicted.mean(), actual - actual.mean()
    products = predicted @ actual.T
    size = float(np.sqrt((predicted**2).sum() * (actual**2).sum())) or 1.0
    rows = np.arange(len(products))
    return np.array([products[rows, rng.permutation(rows)].sum() / size for _ in range(draws)])


def swaps_null(
    first: Predictions, second: Predictions, actual: Predictions, *, seed: int, draws: int = DRAWS
) -> Float[np.ndarray, "draw"]:
    """Difference in :func:`correlation_squared` with the two predictions of each row exchanged
    at random; both are scaled to unit variance first."""
    rng = np.random.default_rng(seed)
    actual = actual - actual.mean()
    one, two = (_sums(_standard(predicted), actual) for predicted in (first, second))
    swap = rng.random((draws, len(actual))) < 0.5
    mixed = swap @ two + ~swap @ one, swap @ one + ~swap @ two
    left, right = (np.array([_squared(*sums) for sums in side.tolist()]) for side in mixed)
    return left - right


def signs_null(
    differences: Float[np.ndarray, "row"], *, seed: int, draws: int = DRAWS
) -> Float[np.ndarray, "draw"]:
    """The mean of paired differences when each row's sign is random."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(draws, len(differences)))
    return signs @ differences / len(differences)


def others_moments(
    paired: Float[Tensor, "row other score"],
) -> tuple[Float[Tensor, "score"], Float[Tensor, "score"]]:
    """Mean and variance of Σ_r paired[r, π(r)] when rows are paired with other rows at random.

    Over uniformly random permutations π the moments are exact (Hoeffding's combinatorial statistic;
    the variance is Σ d²/(n − 1), d being doubly centred), and a sum over many rows is close to
    normal, so the tail needs no draws. A permutation keeps a row in its place once in n times;
    with this taken out, distances from the observed sum grow by n/(n − 1), and the mean is that of
    the pairs off the diagonal.
    """
    rows, own = len(paired), torch.diagonal(paired, dim1=0, dim2=1).sum(-1)
    if rows < 2:
        return own, torch.zeros_like(own)
    by_row, by_other = paired.mean(1, keepdim=True), paired.mean(0, keepdim=True)
    centred = paired - by_row - by_other + by_row.mean(0, keepdim=True)
    variance = centred.square().sum((0, 1)) / (rows - 1)
    return (paired.sum((0, 1)) - own) / (rows - 1), variance * (rows / (rows - 1)) ** 2


def bootstrap_interval(
    values: Float[np.ndarray, "row score"],
    *,
    seed: int,
    resamples: int = DRAWS,
    level: float = 0.95,
) -> tuple[Float[np.ndarray, "score"], Float[np.ndarray, "score"]]:
    """Percentile intervals of the mean over rows, rows drawn with replacement."""
    rows = len(values)
    counts = np.random.default_rng(seed).multinomial(rows, np.full(rows, 1 / rows), size=resamples)
    low, high = np.quantile(counts @ values / rows, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def correlation_interval(
    predicted: Predictions,
    actual: Predictions,
    *,
    than: Predictions | None = None,
    seed: int,
    resamples: int = DRAWS,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile interval of :func:`correlation_squared`, rows drawn with replacement, or of how
    much more it is than that of other predictions."""
    rows = len(actual)
    counts = np.random.default_rng(seed).multinomial(rows, np.full(rows, 1 / rows), size=resamples)
    actual = actual - actual.mean()

    def drawn(values: Predictions) -> Float[np.ndarray, "resample"]:
        sums = counts @ _sums(values - values.mean(), actual)
        return np.array([_squared(*one) for one in sums.tolist()])

    found = drawn(predicted) - (0.0 if than is None else drawn(than))
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _standard(values: Predictions) -> Predictions:
    return (values - values.mean()) / (values.std() or 1.0)


def _sums(predicted: Predictions, actual: Predictions) -> Float[np.ndarray, "row 3"]:
    """Per row: Σ predicted·actual, Σ predicted², Σ actual²."""
    return np.stack(
        [(predicted * actual).sum(1), (predicted**2).sum(1), (actual**2).sum(1)], axis=1
    )


def _squared(product: float, first: float, second: float) -> float:
    size = first * second
    return max(product, 0.0) ** 2 / size if size > 0 else 0.0
