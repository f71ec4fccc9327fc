"""Controls for linear probes: a nonlinear probe, a control task, baselines.

*Nonlinear control.* A linear probe decodes f after an FFN and not before. Did the FFN compute f, or
did it receive f in a form that is not linear? If a small network decodes f from the FFN's input,
everything f needs is there, and the FFN makes it linear: it is the readout. If it cannot, the input
does not determine f, and f does not come from the FFN.

*Control task.* Every kind of token (or every position) gets a fixed random label, drawn from the
latent's own values. Any probe strong enough to memorise tokens can learn it; *selectivity* is the
latent's score minus the control's.

*Baselines.* The same probe on the raw input at the position (one-hot tokens, and the position), and
on the same hook of a model with random weights: what the architecture alone provides.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from probes.linear import (
    Decoding,
    Features,
    Groups,
    Latent,
    decode,
)

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


_HIDDEN = (64,)
_PASSES = 200
_FEW_KINDS = 8


def network() -> Pipeline:
    """Return a neural network with one hidden layer as a probe, trained with early stopping."""
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regressor = MLPRegressor(
        hidden_layer_sizes=_HIDDEN,
        learning_rate_init=1e-2,
        max_iter=_PASSES,
        early_stopping=True,
        random_state=0,
    )
    return make_pipeline(StandardScaler(), regressor)


def decode_nonlinearly(
    features: Features, latent: Latent, *, groups: Groups | None = None, least: float = 0.0
) -> Decoding:
    """Decode a latent as :func:`probes.linear.decode` does, with :func:`network` as the probe."""
    from sklearn import config_context
    from sklearn.exceptions import ConvergenceWarning

    # the values are checked once, by decode, and not at each of thousands of steps
    unchecked = config_context(assume_finite=True, skip_parameter_validation=True)
    with warnings.catch_warnings(), unchecked:
        warnings.simplefilter("ignore", ConvergenceWarning)
        return decode(features, latent, probe=network(), groups=groups, least=least)


def control_latent(
    inputs: np.ndarray, latent: Latent, *, positions: np.ndarray | None = None, seed: int = 0
) -> Latent:
    """Make a control latent: each kind of input gets a label drawn at random from the latent's
    values.

    If there are fewer than eight kinds of input, each kind gets a label for each position, because
    any probe can learn a function of two tokens. If there are more kinds than an eighth of the
    samples (real values seldom occur twice), positions are labelled instead of inputs, unless only
    one position is sampled.

    Args:
        inputs: Tokens ``[row, pos]`` or values ``[row, pos, channel]`` at the sampled positions.
        latent: The latent from whose values labels are drawn.
        positions: The sampled positions, ``[row, sample]``, if rows are sampled at different ones.
        seed: Seed of the random labels.

    Returns:
        The labels, in the latent's shape.
    """
    flat = inputs.reshape(inputs.shape[0] * inputs.shape[1], -1)
    kinds, which = np.unique(flat, axis=0, return_inverse=True)
    place, places = _places(latent.shape, positions)
    if len(kinds) > latent.size / 8 and places > 1:
        which = place
    elif len(kinds) < _FEW_KINDS:
        which = which.ravel() * places + place
    labels = np.random.default_rng(seed).choice(latent.ravel(), int(which.max()) + 1)
    return labels[which.reshape(latent.shape)]


def _places(shape: tuple[int, ...], positions: np.ndarray | None) -> tuple[np.ndarray, int]:
    """Return the index of each sample's position among all sampled positions, and their number."""
    if positions is None:
        return np.tile(np.arange(shape[1]), shape[0]), shape[1]
    known, place = np.unique(positions, return_inverse=True)
    return place.ravel(), len(known)


def raw_input(
    inputs: np.ndarray, *, positions: np.ndarray | None = None, most: int = 512
) -> Features:
    """Return the raw input at each sampled position, and the position itself, as features for a
    probe.

    Tokens are one-hot, up to ``most`` different ones (rarer tokens share a column).

    Args:
        inputs: Tokens ``[row, sample]`` or values ``[row, sample, channel]``.
        positions: The sampled positions, ``[row, sample]``, if rows are sampled at different ones.
        most: The largest number of columns for tokens.
    """
    number, places = _places(inputs.shape, positions)
    place = np.eye(places)[number.reshape(inputs.shape[:2])]
    if inputs.ndim == 3:
        return np.concatenate((inputs.astype(np.float64), place), axis=-1)
    kinds, which, counts = np.unique(inputs, return_inverse=True, return_counts=True)
    rank = np.argsort(np.argsort(-counts, kind="stable"))
    columns = np.minimum(rank, most - 1)[which.reshape(inputs.shape)]
    return np.concatenate((np.eye(min(len(kinds), most))[columns], place), axis=-1)
