"""Is a quantity linearly decodable from an activation?

A *real* latent: ridge regression (scikit-learn, features standardised, penalty chosen by
generalised cross-validation inside each training fold), judged by the squared correlation of
*held-out* predictions with the latent. A *categorical* one (binary too): logistic regression,
judged by balanced accuracy, rescaled so that chance is 0 and no mistake is 1. Folds are made of
whole rows (sequences): positions of one row never stand on both sides.

A decodable quantity is present, not necessarily used; what is not *linearly* decodable may still
be there (see :mod:`probes.controls`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, is_classifier
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from interp.heads.nulls import balanced_accuracy, correlation_squared

__all__ = [
    "PENALTY",
    "Decoding",
    "Kind",
    "decode",
    "direction",
    "kind_of",
    "logistic",
    "probe_for",
    "ridge",
]

Kind = Literal["real", "categorical"]
FOLDS = 5
_MOST_CLASSES = 16
_PENALTIES = np.logspace(-4, 4, 9)
PENALTY = 1e-6
"""Of a direction: on standardised features, for each sample."""

Features = Float[np.ndarray, "row pos feature"]
Latent = Float[np.ndarray, "row pos"]


@dataclass(frozen=True)
class Decoding:
    """How well a latent can be read.

    Attributes:
        score: Squared correlation of held-out predictions with the latent, in [0, 1]; of a
            classifier, rescaled balanced accuracy, at most 1 and 0 at chance.
        predicted: The held-out predictions ``[row, pos]``.
    """

    score: float
    predicted: Latent


def ridge() -> Pipeline:
    """The linear probe: standardise, then ridge with its penalty chosen on the training rows."""
    return make_pipeline(StandardScaler(), RidgeCV(alphas=_PENALTIES))


def logistic() -> Pipeline:
    """The linear probe of classes: standardise, then logistic regression."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=300))


def kind_of(latent: Latent) -> Kind:
    """``categorical`` for 2 to 16 whole numbers, each there often enough for every fold to see it;
    ``real`` for anything else."""
    values, counts = np.unique(latent, return_counts=True)
    whole = bool((values == np.round(values)).all())
    few = 2 <= len(values) <= _MOST_CLASSES and int(counts.min()) >= 4 * FOLDS
    return "categorical" if whole and few else "real"


def probe_for(kind: Kind) -> Pipeline:
    """The linear probe of a kind of latent."""
    return ridge() if kind == "real" else logistic()


def decode(features: Features, latent: Latent, *, probe: BaseEstimator | None = None) -> Decoding:
    """Cross-validated decoding of a latent.

    Args:
        features: Activations at the sampled positions of each row.
        latent: Its values there.
        probe: A scikit-learn regressor or classifier; :func:`ridge` by default.
    """
    rows, positions, _ = features.shape
    groups = np.repeat(np.arange(rows), positions)
    probe = ridge() if probe is None else probe
    predicted = cross_val_predict(
        probe,
        features.reshape(rows * positions, -1),
        latent.reshape(-1),
        groups=groups,
        cv=GroupKFold(FOLDS),
    ).reshape(rows, positions)
    score = balanced_accuracy if is_classifier(probe) else correlation_squared
    return Decoding(score(predicted, latent), predicted)


def direction(features: Features, latent: Latent) -> Float[np.ndarray, "feature"]:
    """The vector w for which ⟨w, activation⟩ + constant predicts the latent on all rows.

    A fixed small penalty keeps w away from directions in which the activations do not vary.
    """
    rows, positions, _ = features.shape
    scaler = StandardScaler()
    standard = scaler.fit_transform(features.reshape(rows * positions, -1))
    fitted = Ridge(alpha=PENALTY * len(standard)).fit(standard, latent.reshape(-1))
    coefficients: Float[np.ndarray, "feature"] = fitted.coef_ / scaler.scale_
    return coefficients
