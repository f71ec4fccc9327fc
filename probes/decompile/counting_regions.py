"""Where a feed-forward network bends, as comparisons of counts.

At a position in state σ after n tokens, n_q of them of class q, the network's input is the average
of *class points* x_q = base_σ + o_q (BOS is a class with one token). As long as no ReLU changes
side, everything inside is affine in the input, so a neuron's pre-activation is the same average of
its values at the class points: its coefficients α_q, read exactly off the weights, in whatever
basis. :mod:`probes.decompile.counting_forms` turns them into whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from probes.decompile.counting_forms import IntegerComparison, integer_comparison
from probes.decompile.counting_network import Layer

__all__ = ["Bend", "Inputs", "bends", "outputs"]

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
        hidden: Which hidden layer, from 0.
        neuron: Which neuron.
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
        layer: Whose network it is.
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
