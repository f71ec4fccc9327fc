"""Is a quantity linearly decodable from an activation?

A *real* latent is decoded by ridge regression (features standardised, penalty chosen by
leave-one-out inside each training fold) and scored by the squared correlation of *held-out*
predictions with the latent. A *categorical* one (binary too) is decoded by logistic regression and
scored by balanced accuracy, rescaled so that chance is 0 and no mistake is 1. Folds are made of
whole rows (sequences): positions of one row are never on both sides, nor are rows of one group
(equal rows; :mod:`probes.activations`).

The kind depends on the latent's type, not on the sample. Integer and boolean types hold *names*
(tokens, labels, indices), which have no order: classes. Floating types hold quantities (counts,
lags, contents); if they have only two values, these are classes, too. A class that some training
fold would lack cannot be learned there and is left out of fitting and scoring; the result says how
many were.

A decodable quantity is present, not necessarily used; a quantity that is not *linearly* decodable
may still be there (see :mod:`probes.controls`).

The ridge regression chooses its penalty by leave-one-out, in closed form:

    w_α = (XᵀX + αI)⁻¹ Xᵀy,     X the standardised features, y the centred latent
    α minimises Σ_i ((y_i − ŷ_i) / (1 − h_i))²,     h_i = 1/n + x_iᵀ (XᵀX + αI)⁻¹ x_i

(y_i − ŷ_i)/(1 − h_i) is the error at sample i of the fit without i. One eigendecomposition, of XᵀX
or of XXᵀ, whichever is smaller, serves all penalties. The result equals scikit-learn's ``RidgeCV``
after a ``StandardScaler``, without their checks of arguments, which take most of the time for small
activations.

Not for weighted samples, nor for several latents at once. The penalty is chosen for prediction: a
coefficient says nothing about what a model uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from interp.errors import Problems
from interp.stats.nulls import balanced_accuracy, correlation_squared

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

_PENALTIES = np.logspace(-4, 4, 9)
_ROUNDING = float(np.finfo(np.float64).eps)

Samples = Float[np.ndarray, "sample feature"]
Values = Float[np.ndarray, " sample"]


class Ridge:
    """The linear probe of real latents: ridge regression on standardised features.

    Attributes:
        penalty: The penalty that :meth:`fit` chose.
    """

    def fit(self, x: Samples, y: Values) -> Ridge:
        """Fit the probe to samples, and return it.

        Args:
            x: Features ``[sample, feature]``.
            y: The latent's values ``[sample]``.
        """
        x = x.astype(np.float64)
        mean, variance = x.mean(0), x.var(0)
        constant = variance <= len(x) * _ROUNDING * variance + (len(x) * mean * _ROUNDING) ** 2
        scale = np.where(constant, 1.0, np.sqrt(variance))
        standard = (x - mean) / scale
        centre = float(y.mean())
        self.penalty, w = _best(standard, y - centre)
        self._w = w / scale
        self._constant = centre - float(mean @ self._w)
        return self

    def predict(self, x: Samples) -> Values:
        """Return the predicted latent for each sample."""
        found: Values = x @ self._w + self._constant
        return found


def _best(x: Samples, y: Values) -> tuple[float, Float[np.ndarray, " feature"]]:
    """Return the penalty with the least leave-one-out error, and its coefficients."""
    samples, features = x.shape
    if features <= samples:
        values, axes = np.linalg.eigh(x.T @ x)
        along = x @ axes  # each sample along the principal axes
    else:
        values, samples_along = np.linalg.eigh(x @ x.T)
        along = samples_along * np.sqrt(np.maximum(values, 0.0))
    weights = 1.0 / (np.maximum(values, 0.0)[:, None] + _PENALTIES)
    read = along.T @ y
    missed = y[:, None] - along @ (weights * read[:, None])
    influence = 1.0 / samples + np.square(along) @ weights
    error = np.square(missed / np.maximum(1.0 - influence, _ROUNDING)).mean(0)
    at = int(error.argmin())
    if features <= samples:
        return float(_PENALTIES[at]), axes @ (weights[:, at] * read)
    return float(_PENALTIES[at]), x.T @ (samples_along @ (weights[:, at] * (samples_along.T @ y)))


Kind = Literal["real", "categorical"]
FOLDS = 5
"""Number of folds of rows in cross-validation."""
PENALTY = 1e-6
"""Ridge penalty, per sample and on standardised features, of the fit that gives a latent's
direction."""

Features = Float[np.ndarray, "row pos feature"]
Latent = Float[np.ndarray, "row pos"]


Groups = Int[np.ndarray, " row"]


@runtime_checkable
class Probe(Protocol):
    """A regressor or a classifier: :class:`Ridge`, or one of scikit-learn's."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> Any:
        """Fit the probe to samples, ``[sample, feature]`` and ``[sample]``."""

    def predict(self, x: np.ndarray) -> Any:
        """Return the predicted values, or classes, of samples."""


@dataclass(frozen=True)
class Decoding:
    """How well a latent can be decoded from activations.

    Attributes:
        score: For a regressor, the squared correlation of held-out predictions with the latent, in
            [0, 1]. For a classifier, rescaled balanced accuracy: at most 1, 0 at chance or if fewer
            than two classes are left.
        predicted: The held-out predictions ``[row, pos]``; NaN where nothing could be learned, and
            outside the first fold if its score was too low for the others to be fitted.
        classes: The classes that were learned and scored; None for a regressor.
        dropped: The number of classes that were left out because too few groups of rows have them.
    """

    score: float
    predicted: Latent
    classes: Float[np.ndarray, " class"] | None = None
    dropped: int = 0


def logistic() -> Pipeline:
    """Return the linear probe of categorical latents: standardisation, then logistic regression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=300))


def kind_of(latent: np.ndarray) -> Kind:
    """Return ``categorical`` for integer and boolean types, which hold names, and for two values;
    else ``real``.

    Args:
        latent: The latent's values, in the type that the task gave them.
    """
    if latent.dtype.kind in "iub":
        return "categorical"
    return "categorical" if len(np.unique(latent[np.isfinite(latent)])) == 2 else "real"


def probe_for(kind: Kind) -> Probe:
    """Return the linear probe for a kind of latents."""
    return Ridge() if kind == "real" else logistic()


def fit_copy(
    probe: Probe, x: Float[np.ndarray, "sample feature"], y: Float[np.ndarray, " sample"]
) -> Probe:
    """Return a copy of a probe that is fitted to samples; the probe itself is not changed."""
    if isinstance(probe, Ridge):
        return Ridge().fit(x, y)
    from sklearn.base import clone

    found: Probe = clone(probe).fit(x, y)
    return found


def classifies(probe: Probe) -> bool:
    """Return whether a probe is a classifier; otherwise it is a regressor."""
    if isinstance(probe, Ridge):
        return False
    from sklearn.base import is_classifier

    return bool(is_classifier(probe))


def decode(
    features: Features,
    latent: Latent,
    *,
    probe: Probe | None = None,
    groups: Groups | None = None,
    least: float = 0.0,
) -> Decoding:
    """Measure by cross-validation how well a latent can be decoded.

    Args:
        features: Activations at the sampled positions of each row.
        latent: The latent's values there, ``[row, sample]``.
        probe: A scikit-learn regressor or classifier; :class:`Ridge` by default.
        groups: A number for each row; rows with the same number are in the same fold. By default
            each row is a group: give those of :class:`probes.activations.SampledPositions` if rows
            can be equal.
        least: The r² on the first fold below which a regressor is not fitted to the other folds;
            the score is then the first fold's.

    Raises:
        ArgumentError: for values that are not finite, or groups that do not fill all folds.
    """
    rows, positions, _ = features.shape
    groups = np.arange(rows) if groups is None else groups
    _check(features, latent, groups)
    probe = Ridge() if probe is None else probe
    x, y, fold = features.reshape(rows * positions, -1), latent.ravel(), folds_of(groups)
    fold, kept = np.repeat(fold, positions), np.ones(latent.size, dtype=bool)
    if not classifies(probe):
        predicted = np.full_like(y, np.nan)
        for held, values in _fold_predictions(probe, x, y, fold, kept):
            predicted[held] = values
            if least > 0 and fold[held][0] == 0:
                first = correlation_squared(values[:, None], y[held][:, None])
                if first < least:
                    return Decoding(first, predicted.reshape(latent.shape))
        whole = predicted.reshape(latent.shape)
        return Decoding(correlation_squared(whole, latent), whole)
    classes, dropped = _learnable(latent, groups)
    if len(classes) < 2:
        return Decoding(0.0, np.full(latent.shape, np.nan), classes, dropped)
    names, which = np.unique(y, return_inverse=True)  # scikit-learn takes no fractions for classes
    found = np.zeros_like(y)
    for held, values in _fold_predictions(probe, x, which.astype(float), fold, np.isin(y, classes)):
        found[held] = values
    predicted = names[found.astype(int)].reshape(latent.shape)
    score = balanced_accuracy(predicted, latent, classes=classes)
    return Decoding(score, predicted, classes, dropped)


def folds_of(groups: Groups) -> Groups:
    """Return the fold of each row: its group's number modulo :data:`FOLDS`."""
    return groups % FOLDS


def _check(features: Features, latent: Latent, groups: Groups) -> None:
    problems, distinct = Problems("decode"), len(np.unique(folds_of(groups)))
    need = problems.need
    for name, values in (("features", features), ("latent", latent)):
        strange = int(np.count_nonzero(~np.isfinite(values)))
        need(not strange, name, "must be finite", f"{strange} that are not", "mend or mask them")
    rule = f"must hold distinct ones for {FOLDS} folds"
    need(distinct == FOLDS, "rows", rule, distinct, "give more rows")
    problems.raise_if_any()


def _learnable(latent: Latent, groups: Groups) -> tuple[Float[np.ndarray, " class"], int]:
    """Return the classes that every training fold has, and the number of other classes.

    These are the classes in at least as many groups as there are folds, and in at least two folds.
    """
    names, which = np.unique(latent, return_inverse=True)
    there = np.unique(np.stack([which.ravel(), np.repeat(groups, latent.shape[1])], 1), axis=0)
    held = np.bincount(there[:, 0])
    spread = np.bincount(np.unique(there[:, 0] * FOLDS + folds_of(there[:, 1])) // FOLDS)
    classes = names[(held >= FOLDS) & (spread >= 2)]
    return classes, len(names) - len(classes)


def _fold_predictions(
    probe: Probe,
    x: Float[np.ndarray, "sample feature"],
    y: Float[np.ndarray, " sample"],
    fold: Int[np.ndarray, " sample"],
    kept: Bool[np.ndarray, " sample"],
) -> Iterator[tuple[Bool[np.ndarray, " sample"], Float[np.ndarray, " held"]]]:
    """Yield the samples of each fold, and their predictions by a probe fitted on the kept samples
    of the other folds."""
    for number in np.unique(fold):
        held = fold == number
        seen = kept & ~held
        yield held, fit_copy(probe, x[seen], y[seen]).predict(x[held])


def direction(features: Features, latent: Latent) -> Float[np.ndarray, " feature"]:
    """Return the vector w for which ⟨w, activation⟩ + constant predicts the latent, fitted on all
    rows.

    A fixed small penalty keeps w away from directions in which the activations do not vary.
    """
    rows, positions, _ = features.shape
    from sklearn import linear_model
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    standard = scaler.fit_transform(features.reshape(rows * positions, -1))
    line = linear_model.Ridge(alpha=PENALTY * len(standard)).fit(standard, latent.reshape(-1))
    coefficients: Float[np.ndarray, " feature"] = line.coef_ / scaler.scale_
    return coefficients
