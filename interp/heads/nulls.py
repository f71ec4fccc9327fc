"""What a score would be if there were nothing to find: nulls for behaviour and effects.

    pooled     the same score on re-initialised models of the same shapes, pooled over components
    rows       decodability when rows (sequences) of the latent are permuted against predictions
    swaps      a paired difference in decodability when each row's two versions are exchanged
    signs      a mean paired difference when each row's sign is flipped at random

Permutations move whole rows, so dependence between positions of a row is kept. p is
(1 + #{null ≥ score}) / (1 + draws): it cannot be smaller than 1/(1 + draws), however far out the
score is. A score beyond its null is not yet a mechanism: re-initialised models are a weak opponent
for any trained one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

__all__ = [
    "DRAWS",
    "Null",
    "correlation_squared",
    "from_draws",
    "rows_null",
    "signs_null",
    "swaps_null",
]

DRAWS = 1000

Predictions = Float[np.ndarray, "row pos"]


@dataclass(frozen=True)
class Null:
    """Mean and standard deviation under the null, and the score's one-sided p against it."""

    mean: float
    std: float
    p: float


def from_draws(score: float, draws: Float[np.ndarray, "draw"]) -> Null:
    """The null that ``draws`` are, and how far up in it ``score`` is."""
    p = (1 + int((draws >= score).sum())) / (1 + len(draws))
    return Null(float(draws.mean()), float(draws.std()), p)


def correlation_squared(predicted: Predictions, actual: Predictions) -> float:
    """Squared correlation over all rows and positions; 0 where it is negative or undefined."""
    centred = predicted - predicted.mean(), actual - actual.mean()
    return float(_squared(*(_sums(*centred).sum(0)).tolist()))


def rows_null(
    predicted: Predictions, actual: Predictions, *, seed: int, draws: int = DRAWS
) -> Float[np.ndarray, "draw"]:
    """:func:`correlation_squared` with the rows of ``actual`` permuted."""
    rng = np.random.default_rng(seed)
    predicted, actual = predicted - predicted.mean(), actual - actual.mean()
    products = predicted @ actual.T
    size = float((predicted**2).sum()), float((actual**2).sum())
    rows = np.arange(len(products))
    return np.array(
        [_squared(products[rows, rng.permutation(rows)].sum(), *size) for _ in range(draws)]
    )


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
