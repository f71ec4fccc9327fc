"""Ridge regression whose penalty is chosen by leaving one sample out, in closed form.

    w_α = (XᵀX + αI)⁻¹ Xᵀy,     X the standardised features, y the centred latent
    α minimises Σ_i ((y_i − ŷ_i) / (1 − h_i))²,     h_i = 1/n + x_iᵀ (XᵀX + αI)⁻¹ x_i

(y_i − ŷ_i)/(1 − h_i) is the error at sample i of the fit without i. One eigendecomposition, of XᵀX
or of XXᵀ, whichever is smaller, serves all penalties. It equals scikit-learn's ``RidgeCV`` behind a
``StandardScaler``, without the time that these spend on checking what they are given, which for
small activations is nearly all of it.

Not for samples whose weights differ, nor for several latents at once. The penalty is chosen for
prediction: a coefficient says nothing about what a model uses.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

__all__ = ["Ridge"]

_PENALTIES = np.logspace(-4, 4, 9)
_ROUNDING = float(np.finfo(np.float64).eps)

Samples = Float[np.ndarray, "sample feature"]
Values = Float[np.ndarray, " sample"]


class Ridge:
    """A line through standardised features: the linear probe of real latents.

    Attributes:
        penalty: The penalty that :meth:`fit` chose.
    """

    def fit(self, x: Samples, y: Values) -> Ridge:
        """Fit to samples.

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
        """The latent that the fitted line predicts for each sample."""
        found: Values = x @ self._w + self._constant
        return found


def _best(x: Samples, y: Values) -> tuple[float, Float[np.ndarray, " feature"]]:
    """The penalty with the least leave-one-out error, and its coefficients."""
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
