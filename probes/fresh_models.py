"""A model as it would be without training: fresh weights in the same architecture.

    with a spec      the spec's own initialisation, with another seed for each model
    without one      the entries of each weight matrix are shuffled: if weights are drawn alike,
                     this is another draw; vectors (gains and biases) are kept

The scores of fresh models are those of a head when there is nothing to find. They share the
architecture and, without a spec, the sizes of the trained weights. A trained model differs from
them in every way, so a score beyond theirs says that a head is not as it was initialised, not what
it does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from interp.models.init import fresh_weights, initialize
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

_DRAWS, _FEWEST_DRAWS = 1000, 100
_NUMBERS = 2**30
"""Largest number of weights that are drawn for one null, except that at least 100 models are drawn.
It bounds time."""
_APART = 1000
"""How far the first seed of fresh models is from the given seed. The given seed may be the one that
the model itself was initialised with."""


def draws_of(model: Any) -> int:
    """Return how many models with fresh random weights to draw for a null distribution.

    1000, and fewer for models of more than a million weights, down to 100 from about ten million.
    """
    weights = max(1, sum(weight.numel() for weight in model.parameters()))
    return min(_DRAWS, max(_FEWEST_DRAWS, _NUMBERS // weights))


def fresh_models(model: Any, count: int, *, seed: int = 0) -> Iterator[Any]:
    """Yield models with the architecture of ``model`` and fresh weights.

    Args:
        model: A hooked model, which is not changed.
        count: The number of fresh models.
        seed: Seed of the weights.

    Yields:
        The same object each time, with other weights: use one before asking for the next.
    """
    spec = getattr(model, "spec", None)
    if spec is not None:
        fresh = SequenceTransformer(spec).eval()
        for number in range(count):
            initialize(fresh, seed + _APART + number)
            yield fresh
        return
    fresh = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed + _APART)
    for _ in range(count):
        for weight in (p.data for p in fresh.parameters() if p.ndim > 1):
            order = torch.randperm(weight.numel(), generator=generator)
            weight.copy_(weight.flatten()[order].view_as(weight))
        yield fresh


def stacked_models(
    spec: TransformerSpec, count: int, *, at_once: int, seed: int = 0
) -> Iterator[dict[str, Tensor]]:
    """Yield the weights of :func:`fresh_models` with a spec, stacked over many models.

    One pass can then run them all (``torch.func.functional_call`` under ``vmap``).

    Args:
        spec: The architecture.
        count: The number of models.
        at_once: The number of models in a stack.
        seed: Seed of the weights.

    Yields:
        Name → the weights, ``[model, …]``.
    """
    seeds = range(seed + _APART, seed + _APART + count)
    yield from fresh_weights(SequenceTransformer(spec), seeds, at_once)
