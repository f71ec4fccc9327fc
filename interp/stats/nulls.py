"""Nulls for behaviour and effects: the distribution of a score if there were nothing to find.

    rows       decodability when rows (sequences) of the latent are permuted against predictions
    paired     a mean of paired differences whose expectation is 0 (Student's t)
    paired and targets
               a mean rise of the loss that is 0, or the same with other rows' targets
    swaps      a paired difference in decodability when each row's two versions are exchanged

Rows are what is drawn independently: permutations move whole rows and differences are taken row by
row, so dependence between positions of a row is kept. How p is computed from a null is in
:mod:`interp.stats.p_values`; the moments of permutations are exact, exchanged predictions are
sampled. A score beyond its null does not establish a mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtr, stdtr
from torch import Tensor

from interp.stats.bootstrap import row_interval
from interp.stats.p_values import LEAST_P, Null, from_draws, from_moments

DRAWS = 1000
_ROUNDING = 1e-6

Predictions = Float[np.ndarray, "row pos"]
Classes = Float[np.ndarray, " class"]


def paired_null(differences: Float[np.ndarray, " row"]) -> Null:
    """Return the null that paired differences have mean 0: Student's t, one-sided for a mean above
    0.

    If all differences are equal, there is no spread to test with: p is the least possible if they
    are above 0, else 1. For one difference alone p is 1.
    """
    count, mean = len(differences), float(differences.mean())
    if count < 2 or not np.isfinite(mean):
        return Null(0.0, 0.0, 1.0 if np.isfinite(mean) else float("nan"), "paired")
    error = float(differences.std(ddof=1)) / count**0.5
    p = float(stdtr(count - 1, -mean / error)) if error > 0 else float(mean <= 0)
    return Null(0.0, error, max(p, LEAST_P), "paired")


def need_null(blocks: Sequence[Float[np.ndarray, "_ _"]]) -> Null:
    """Return the null that a loss does not rise, or that it rises as much with other rows' targets.

    Any change of the output moves the loss, in either direction, even in an untrained model whose
    output has nothing to do with the targets. To call a component *needed for the targets*, two
    nulls must be rejected: that the mean rise is 0 (:func:`paired_null`), and that the rise is no
    larger than when the same outputs are scored against the targets of randomly permuted rows (a
    permutation test with exact moments). p is the larger of the two p-values, which is conservative
    if both nulls hold; mean and standard deviation are those of the first null.

    Args:
        blocks: For each block of rows a square array ``[row, other]``: the rise in the loss of
            ``row``'s output, scored against the targets of ``other``. The diagonal holds the rise
            with the row's own targets.
    """
    found = paired_null(np.concatenate([np.diagonal(rises) for rises in blocks]))
    moments = [others_moments(torch.from_numpy(rises)[..., None]) for rises in blocks]
    mean, variance = (float(sum(values)) for values in zip(*moments, strict=True))
    score = float(sum(np.trace(rises) for rises in blocks))
    least = permutations_least(max(map(len, blocks)))
    own = from_moments(score, mean, variance**0.5, least=least)
    return Null(found.mean, found.std, max(found.p, own.p), "paired and targets")


def decodability_null(predicted: Predictions, actual: Predictions) -> Null:
    """Return the null of :func:`correlation_squared` when the rows of ``actual`` are permuted.

    The moments of the correlation are exact, and p is its tail, which is close to normal; mean and
    standard deviation are those of its square, counted as zero where the correlation is negative.
    """
    predicted, actual = predicted - predicted.mean(), actual - actual.mean()
    size = float(np.sqrt((predicted**2).sum() * (actual**2).sum()))
    if not size > 0:
        return Null(0.0, 0.0, 1.0, "rows")
    paired = torch.from_numpy(predicted @ actual.T / size).double()
    mean, variance = (float(v) for v in others_moments(paired[..., None]))
    std = variance**0.5
    found = from_moments(float(paired.trace()), mean, std, least=permutations_least(len(paired)))
    if not std > 0:
        return Null(max(mean, 0.0) ** 2, 0.0, found.p, "rows")
    z, density = mean / std, float(np.exp(-0.5 * (mean / std) ** 2) / np.sqrt(2 * np.pi))
    below = float(ndtr(z))
    square = (mean**2 + variance) * below + mean * std * density
    fourth = (mean**4 + 6 * mean**2 * variance + 3 * variance**2) * below
    fourth += (mean**3 * std + 5 * mean * std**3) * density
    return Null(square, max(fourth - square**2, 0.0) ** 0.5, found.p, "rows")


def permutations_least(rows: int) -> float:
    """Return the smallest p that permutations of this many rows can give, 1/rows!."""
    return 1 / factorial(min(rows, 100))


def correlation_squared(predicted: Predictions, actual: Predictions) -> float:
    """Return the squared correlation over all rows and positions; 0 if it is negative or
    undefined."""
    centred = predicted - predicted.mean(), actual - actual.mean()
    return float(_r_squared(_sums(*centred).sum(0)))


def balanced_accuracy(
    predicted: Predictions, actual: Predictions, *, classes: Classes | None = None
) -> float:
    """Return the mean recall over classes, rescaled so that chance is 0 and no mistake is 1.

    It is 0 if there is one class only. ``classes`` are the classes that count; by default those of
    ``actual``. A class that ``actual`` does not have has no recall and does not count.
    """
    classes = _classes_of(actual, classes)
    if len(classes) < 2:
        return 0.0
    found = np.mean([(predicted[actual == c] == c).mean() for c in classes])
    return float((found - 1 / len(classes)) / (1 - 1 / len(classes)))


def accuracy_null(
    predicted: Predictions, actual: Predictions, *, classes: Classes | None = None
) -> Null:
    """Return the null of :func:`balanced_accuracy` when the rows of ``actual`` are permuted; its
    mean and variance are exact."""
    classes = _classes_of(actual, classes)
    if len(classes) < 2:
        return Null(0.0, 0.0, 1.0, "rows")
    paired = np.zeros((len(actual), len(actual)))
    for c in classes:
        share = (actual == c) / (np.count_nonzero(actual == c) * len(classes))
        paired += (predicted == c).astype(float) @ share.T
    mean, variance = (float(v) for v in others_moments(torch.from_numpy(paired)[..., None]))
    chance, std = 1 / len(classes), float(np.sqrt(variance))
    least = permutations_least(len(paired))
    p = from_moments(float(np.trace(paired)), mean, std, least=least).p
    return Null((mean - chance) / (1 - chance), std / (1 - chance), p, "rows")


def _classes_of(actual: Predictions, classes: Classes | None) -> Float[np.ndarray, " _"]:
    """Return the classes that ``actual`` has, of the given ones if there are any, ascending."""
    return np.unique(actual) if classes is None else np.intersect1d(classes, actual)


def swaps_null(
    first: Predictions, second: Predictions, actual: Predictions, *, seed: int, draws: int = DRAWS
) -> Null:
    """Return the null of how much better ``first`` predicts than ``second``
    (:func:`correlation_squared`) when the two predictions of each row are exchanged at random.

    Both are scaled to unit variance first, which changes neither score. A difference that rounding
    alone can cause counts as 0.
    """
    rng = np.random.default_rng(seed)
    actual = actual - actual.mean()
    one, two = (_sums(_standard(predicted), actual) for predicted in (first, second))
    swap = rng.random((draws, len(actual))) < 0.5
    mixed = _r_squared(swap @ two + ~swap @ one) - _r_squared(swap @ one + ~swap @ two)
    score = float(_r_squared(one.sum(0)) - _r_squared(two.sum(0)))
    return from_draws(score if abs(score) > _ROUNDING else 0.0, mixed, name="swaps")


def others_moments(
    paired: Float[Tensor, "row other score"],
) -> tuple[Float[Tensor, " score"], Float[Tensor, " score"]]:
    """Return mean and variance of Σ_r paired[r, π(r)] when rows are paired with other rows at
    random.

    Over uniformly random permutations π the moments are exact (Hoeffding's combinatorial statistic;
    the variance is Σ d²/(n − 1), d being doubly centred), and a sum over many rows is close to
    normal, so the tail needs no draws. A permutation leaves a row in its place with probability
    1/n. To correct for this, distances from the observed sum are multiplied by n/(n − 1), and the
    mean is that of the pairs off the diagonal.
    """
    rows, own = len(paired), torch.diagonal(paired, dim1=0, dim2=1).sum(-1)
    if rows < 2:
        return own, torch.zeros_like(own)
    by_row, by_other = paired.mean(1, keepdim=True), paired.mean(0, keepdim=True)
    centred = paired - by_row - by_other + by_row.mean(0, keepdim=True)
    variance = centred.square().sum((0, 1)) / (rows - 1)
    return (paired.sum((0, 1)) - own) / (rows - 1), variance * (rows / (rows - 1)) ** 2


def correlation_interval(
    predicted: Predictions, actual: Predictions, *, than: Predictions | None = None, seed: int
) -> tuple[float, float]:
    """Return the 95 % interval over rows of :func:`correlation_squared`.

    With ``than`` it is the interval of the difference from that of these other predictions.
    """
    actual = actual - actual.mean()
    sides = (predicted,) if than is None else (predicted, than)
    terms = np.stack([_sums(side - side.mean(), actual) for side in sides], axis=1)

    def more(drawn: Float[np.ndarray, "resample side 3"]) -> Float[np.ndarray, " resample"]:
        found = _r_squared(drawn)
        return found[:, 0] if than is None else found[:, 0] - found[:, 1]

    return row_interval(terms, more, seed=seed)


def _standard(values: Predictions) -> Predictions:
    return (values - values.mean()) / (values.std() or 1.0)


def _sums(predicted: Predictions, actual: Predictions) -> Float[np.ndarray, "row 3"]:
    """Return for each row: Σ predicted·actual, Σ predicted², Σ actual²."""
    return np.stack(
        [(predicted * actual).sum(1), (predicted**2).sum(1), (actual**2).sum(1)], axis=1
    )


def _r_squared(sums: Float[np.ndarray, "*draw 3"]) -> Float[np.ndarray, "*draw"]:
    """Return squared correlations from these sums; 0 if the correlation is negative or
    undefined."""
    product, size = np.maximum(sums[..., 0], 0.0), sums[..., 1] * sums[..., 2]
    return np.divide(product**2, size, out=np.zeros_like(product), where=size > 0)
