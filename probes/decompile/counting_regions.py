"""Where a feed-forward network bends, as comparisons of counts.

At a position in state σ after n tokens, n_q of them of class q, the network's input is the average
of *class points* x_q = base_σ + o_q (BOS is a class with one token). As long as no ReLU changes
side, everything inside is affine in the input, so a neuron's pre-activation is the same average of
its values at the class points: its coefficients α_q, read exactly off the weights, in whatever
basis. An integer comparison says them in whole numbers.

When a neuron is on, as a comparison of counts with whole numbers.

A neuron that reads averages over the prefix has the pre-activation Σ_q n_q α_q + α_0, up to the
factor 1 / (i + 1): n_q of the i tokens so far are of class q, and α_0 belongs to BOS. It is on
exactly if

    Σ_q k_q n_q ≥ θ,      k_q and θ whole,

when α = λ (k + ε) and no n with Σ n_q ≤ n can carry Σ ε_q n_q + α_0 / λ across a whole number.
That is checked, not assumed: the comparison returned is proved equivalent up to the length n. The
smallest λ⁻¹ that passes is taken. Weights that are no multiples of one scale, as in trained models,
have no such comparison unless n is small; None says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from probes.decompile.counting_network import Layer

_LARGEST = 400
_ROUNDING = 1e-9


@dataclass(frozen=True)
class IntegerComparison:
    """Σ_q weights[q] n_q ≥ threshold.

    Attributes:
        weights: One a class; the first that is not 0 is positive, and they share no divisor.
        threshold: θ.
        residual: Largest |ε_q|: how far the neuron's coefficients are from multiples of one scale.
    """

    weights: tuple[int, ...]
    threshold: int
    residual: float


def integer_comparison(
    alpha: Float[np.ndarray, " classes"], bos: float, longest: int
) -> IntegerComparison | None:
    """The comparison that tells whether Σ_q n_q α_q + α_0 > 0, or whether it does not.

    Args:
        alpha: α_q.
        bos: α_0.
        longest: n: the most tokens that are counted.

    Returns:
        None if the sum's sign is always the same, or no comparison could be proved.
    """
    size = float(np.abs(alpha).max(initial=0.0))
    noise = _ROUNDING * max(size, abs(bos))
    if size <= noise:
        return None
    low, high = bos + longest * min(0.0, alpha.min()), bos + longest * max(0.0, alpha.max())
    if low > noise or high <= noise:
        return None
    for multiple in range(1, _LARGEST + 1):
        scale = size / multiple
        weights = np.rint(alpha / scale)
        if np.abs(alpha / scale - weights).max() * longest > 2.0:
            continue
        scale = _fitted(alpha, weights) or scale
        off = alpha / scale - weights
        least, most = longest * min(0.0, off.min()), longest * max(0.0, off.max())
        threshold = int(np.floor(-bos / scale - least + _ROUNDING)) + 1
        if threshold - 1 <= -bos / scale - most + _ROUNDING:
            return _canonical(weights.astype(np.int64), threshold, float(np.abs(off).max()))
    return None


def _fitted(alpha: np.ndarray, weights: np.ndarray) -> float | None:
    """λ of α ≈ λ k + δ; None where k is the same for all classes."""
    centred = weights - weights.mean()
    spread = float(centred @ centred)
    return float(centred @ alpha) / spread if spread else None


def _canonical(weights: np.ndarray, threshold: int, residual: float) -> IntegerComparison:
    """The same comparison or its negation, in lowest terms and with a positive first weight."""
    if weights[np.flatnonzero(weights)[0]] < 0:
        weights, threshold = -weights, 1 - threshold
    divisor = int(np.gcd.reduce(weights))
    lowest = tuple(int(w) // divisor for w in weights)
    return IntegerComparison(lowest, -((-threshold) // divisor), residual)


_GRID, _NOISE = 1e8, 1e-10


@dataclass(frozen=True)
class Inputs:
    """What a layer's network can be given.

    Attributes:
        base: One row a state.
        points: o_q, one row a class; the last is BOS.
    """

    base: Float[np.ndarray, "state d"]
    points: Float[np.ndarray, "classes d"]

    def average(self, counts: Int[np.ndarray, "row classes"]) -> Float[np.ndarray, "row d"]:
        """What heads add after these numbers of tokens."""
        seen = counts @ self.points[:-1] + self.points[-1]
        return np.asarray(seen / (counts.sum(axis=1, keepdims=True) + 1.0))


@dataclass(frozen=True)
class Bend:
    """A comparison at which a neuron switches.

    Attributes:
        comparison: Over the classes.
        hidden: Number of the hidden layer, from 0.
        neuron: Number of the neuron in that layer.
    """

    comparison: IntegerComparison
    hidden: int
    neuron: int


def outputs(
    layer: Layer, base: Float[np.ndarray, "#row d"], average: Float[np.ndarray, "row d"]
) -> Float[np.ndarray, "row kept"]:
    """What later layers see of the stream after the layer, but for the averages in it."""
    post = base + average
    for hidden in layer.hidden:
        post = hidden.activate(post @ hidden.weight + hidden.bias)
    written = post @ layer.out if layer.hidden else np.zeros((len(average), 1))
    return np.asarray(base @ layer.keep + written + layer.out_bias)


def bends(
    layer: Layer,
    inputs: Inputs,
    state: int,
    counts: Int[np.ndarray, " classes"],
    longest: int,
    seen: set[bytes],
) -> Iterator[Bend]:
    """The comparisons at which neurons switch, in the region of one input.

    Args:
        layer: The layer whose network is looked at.
        inputs: Bases and class points.
        state: σ.
        counts: n: they say which side each earlier ReLU is on.
        longest: The most tokens that are counted.
        seen: Coefficients that were looked at already; they are left out, and new ones are added.
    """
    here = inputs.base[[state]] + inputs.average(counts[None])
    points = inputs.base[state] + inputs.points
    for number, hidden in enumerate(layer.hidden):
        before = points @ hidden.weight + hidden.bias
        sizes = np.abs(before).max(axis=0)
        grid = np.rint(before / np.where(sizes > 0, sizes, 1.0) * _GRID).astype(np.int64).T
        for neuron in np.flatnonzero(sizes > sizes.max(initial=0.0) * _NOISE):
            key, alpha = grid[neuron].tobytes(), before[:, neuron]
            if key in seen:
                continue
            seen.add(key)
            found = integer_comparison(alpha[:-1], float(alpha[-1]), longest)
            if found is not None:
                yield Bend(found, number, int(neuron))
        reached = here @ hidden.weight + hidden.bias
        post = hidden.activate(reached)
        if hidden.kind == "relu":
            points = before * (reached > 0)
        else:
            points = np.repeat(post, len(points), axis=0)
        here = post
