"""What a proof does step after step, and whether a trained model does the same.

A step is what one layer's heads do: where they look (a location, exchanged in their attention) and
what they fetch (a content, exchanged in their output). A model works as the proof does if

    every step has a layer whose heads hold all of the step's latents (:mod:`probes.locate`),
    and the layers stand in the order of the steps.

The heads of a layer may hold a latent one alone or all together, because proofs give a memory a
group of heads. An FFN, or a layer as a whole with its FFN, does not count: that the answer is
*somewhere* is true of every model that is right.

This judges kind and order. It says nothing of a latent that lies in a subspace of a component that
carries others too, and a model that fails it may still compute the same in a way not looked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

__all__ = ["Step", "layers_of_steps", "weakest"]

Step = tuple[tuple[str, str], ...]
"""Pairs of a latent and the circuit of heads that holds it, ``attention`` or ``output``."""


def layers_of_steps(table: pd.DataFrame, steps: Sequence[Step]) -> tuple[int, ...]:
    """Return the layers that carry out the proof's steps, one layer for each step and in order;
    ``()`` if there are none.

    Args:
        table: From :func:`probes.locate.locate`.
        steps: The steps of the proof, in order.
    """
    rows = _of_heads(table)
    held = rows[rows["verdict"] == "holds"]
    found: list[int] = []
    for step in steps:
        able = set.intersection(*(_layers(held, *pair) for pair in step))
        later = [layer for layer in able if not found or layer > found[-1]]
        if not later:
            return ()
        found.append(min(later))
    return tuple(found)


def weakest(table: pd.DataFrame, steps: Sequence[Step]) -> float:
    """Return how well the step's latent that is held least is held, as a share.

    Each latent is taken where heads hold it best. The result is NaN if some latent cannot be
    exchanged.
    """
    rows = _of_heads(table)
    pairs = [pair for step in steps for pair in step]
    shares = [_of(rows, *pair)["share"].max() for pair in pairs]
    return float(min(shares)) if all(share == share for share in shares) else float("nan")


def _of_heads(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of single heads, or of all heads of a layer, without those that include the
    layer's FFN."""
    whole = table["component"] == "L" + table["layer"].astype(str)
    return table[(table["heads"] != "") & ~whole]


def _of(rows: pd.DataFrame, latent: str, circuit: str) -> pd.DataFrame:
    return rows[(rows["latent"] == latent) & (rows["circuit"] == circuit)]


def _layers(held: pd.DataFrame, latent: str, circuit: str) -> set[int]:
    return {int(layer) for layer in _of(held, latent, circuit)["layer"]}
