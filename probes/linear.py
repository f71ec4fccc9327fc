"""Is a quantity linearly decodable from an activation?

Ridge regression (scikit-learn, features standardised, penalty chosen by generalised
cross-validation inside each training fold) from activations to a latent, judged by the squared
correlation of *held-out* predictions with the latent. Folds are made of whole rows (sequences):
positions of one row never stand on both sides.

A decodable quantity is present, not necessarily used; what is not *linearly* decodable may still
be there (see :mod:`probes.controls`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from interp.heads.nulls import correlation_squared

__all__ = ["Decoding", "decode", "direction", "ridge"]

FOLDS = 5
_PENALTIES = np.logspace(-4, 4, 9)
_PENALTY = 1e-6

Features = Float[np.ndarray, "row pos feature"]
Latent = Float[np.ndarray, "row pos"]


@dataclass(frozen=True)
class Decoding:
    """How well a latent can be read.

    Attributes:
        score: Squared correlation of held-out predictions with the latent, in [0, 1].
        predicted: The held-out predictions ``[row, pos]``.
    """

    score: float
    predicted: Latent


def ridge() -> Pipeline:
    """The linear probe: standardise, then ridge with its penalty chosen on the training rows."""
    return make_pipeline(StandardScaler(), RidgeCV(alphas=_PENALTIES))


def decode(features: Features, latent: Latent, *, probe: BaseEstimator | None = None) -> Decoding:
    """Cross-validated decoding of a latent.

    Args:
        features: Activations at the sampled positions of each row.
        latent: Its values there.
        probe: A scikit-learn regressor; :func:`ridge` by default.
    """
    rows, positions, _ = features.shape
    groups = np.repeat(np.arange(rows), positions)
    predicted = cross_val_predict(
        ridge() if probe is None else probe,
        features.reshape(rows * positions, -1),
        latent.reshape(-1),
        groups=groups,
        cv=GroupKFold(FOLDS),
    ).reshape(rows, positions)
    return Decoding(correlation_squared(predicted, latent), predicted)


def direction(features: Features, latent: Latent) -> Float[np.ndarray, "feature"]:
    """The vector w for which ⟨w, activation⟩ + constant predicts the latent on all rows.

    A fixed small penalty keeps w away from directions in which the activations do not vary.
    """
    rows, positions, _ = features.shape
    scaler = StandardScaler()
    standard = scaler.fit_transform(features.reshape(rows * positions, -1))
    fitted = Ridge(alpha=_PENALTY * len(standard)).fit(standard, latent.reshape(-1))
    coefficients: Float[np.ndarray, "feature"] = fitted.coef_ / scaler.scale_
    return coefficients
