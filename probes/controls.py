"""What a linear probe alone cannot say: controls.

*Nonlinear control.* A linear probe reads f after an FFN and not before. Did the FFN compute f, or
did it receive f in a form that a line cannot read? If a small network reads f from the FFN's
input, everything f needs is there, and what the FFN adds is the form: it is the readout. If it
cannot, the input does not determine f, and the FFN is not where f comes from.
"""

from __future__ import annotations

import warnings

from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from probes.linear import Decoding, Features, Latent, decode

__all__ = ["decode_nonlinearly", "network"]

_HIDDEN = (64,)
_PASSES = 200


def network(seed: int = 0) -> Pipeline:
    """A network with one hidden layer, trained with early stopping."""
    regressor = MLPRegressor(
        hidden_layer_sizes=_HIDDEN,
        learning_rate_init=1e-2,
        max_iter=_PASSES,
        early_stopping=True,
        random_state=seed,
    )
    return make_pipeline(StandardScaler(), regressor)


def decode_nonlinearly(features: Features, latent: Latent, *, seed: int = 0) -> Decoding:
    """As :func:`probes.linear.decode`, with :func:`network` for a probe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return decode(features, latent, probe=network(seed))
