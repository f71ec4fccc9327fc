"""Where every head attends on some rows, in one pass over the attention patterns: the share of
attention on each key set with its nulls, how similar attention is on different rows, and how much a
head raises the logits of the tokens that it attends to.

    AttentionMass      shares of attention (:mod:`interp.attention.attention_to_keys`)
    Alike, Copying     :mod:`interp.attention.behaviour`

A :class:`Looks` is given rows in batches, from a model's clean pass or from a store, and keeps none
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from interp.attention.attention_to_keys import AttentionMass
from interp.attention.behaviour import SCALE, Alike, Copying
from interp.attention.key_sets import positional_key_sets, token_key_sets
from interp.attribution.unembedding import post_scale
from interp.hooks.site import Site, output_site
from interp.store.rows import Rows, mask_from_patterns
from probes.roles.decision import Test


@dataclass(frozen=True)
class Share:
    """The share of a head's attention that goes to a key set, or another score, compared with a
    null.

    Attributes:
        score: The share.
        effect: By how much it exceeds the null's mean.
        p: The p-value of the excess.
        low, high: The 95 % interval of the excess.
    """

    score: float
    effect: float
    p: float
    low: float
    high: float

    def test(self, name: str, floor: float) -> Test:
        """Make the test that the share is at least the floor; its p-value is that of the excess
        over the null."""
        null = self.score - self.effect
        return Test(name, self.score, floor, self.p, null + self.low, null + self.high)

    def beyond(self, name: str, floor: float) -> Test:
        """Make the test that the excess over the null is at least the floor."""
        return Test(name, self.effect, floor, self.p, self.low, self.high)


NO_KEYS = Share(0.0, 0.0, 1.0, nan, nan)
"""Share of attention to a key set that is empty for every query, such as the query's own position
in a model that masks it: 0, with p = 1."""


def hooks_to_read(model: Any, *, behaviour: bool) -> list[str]:
    """Return the names of the hooks whose activations :class:`Looks` reads during a model's pass.

    Args:
        model: The model.
        behaviour: Whether to include the heads' outputs and the norms' scales, beside the attention
            patterns.
    """
    layers = range(model.cfg.n_layers)
    known = model.hook_dict
    names = [Site(layer, "pattern").name for layer in layers]
    if behaviour:
        names += [*(output_site(model, layer, 0).name for layer in layers), SCALE]
        names += [post_scale(layer) for layer in layers]
    return [name for name in names if name in known]


def single_lags(window: int) -> tuple[str, ...]:
    """Return the names of the key sets with one key each, within the window: ``own``, ``previous``,
    ``lag 2`` and so on."""
    return ("own", "previous", *(f"lag {s}" for s in range(2, window)))


class Looks:
    """Measure where heads attend on the rows of one kind, batch by batch.

    Args:
        window: How many positions count as local, the query's own included.
        model: The model, to measure how much heads raise the logits of the tokens they attend to
            (:class:`Copying`); None to leave this out.
        behaviour: Whether to compare attention between rows too.
    """

    def __init__(self, window: int, *, model: Any = None, behaviour: bool = False) -> None:
        self._window, self._mass = window, AttentionMass()
        self._alike = Alike() if behaviour else None
        self._copying = Copying(model) if model is not None else None

    def add(self, rows: Rows, counted: Bool[Tensor, "row pos"]) -> None:
        """Add a batch of rows to the measurement.

        Args:
            rows: The rows, with their attention patterns.
            counted: True for the queries over which shares are averaged.
        """
        hooks = {n: v for n, v in rows.activations.items() if n.endswith("attn.hook_pattern")}
        patterns = {Site.of(hook).layer: value for hook, value in hooks.items()}
        mass, seen = self._mass, rows.attention_mask or mask_from_patterns(patterns.values())
        mass.attention_mask = seen
        n = next(iter(patterns.values())).shape[-1]
        classes = positional_key_sets(len(rows), n, self._window, causal=seen.causal)
        lag = torch.arange(n)[:, None] - torch.arange(n)
        for s in range(2, self._window):
            classes[f"lag {s}"] = (lag == s).expand(len(rows), -1, -1)
        tokens = rows.inputs.ndim == 2
        contents = token_key_sets(rows.inputs, causal=seen.causal) if tokens else {}
        mass.add(patterns, classes, contents, counted, rows.heads)
        if self._alike is not None:
            self._alike.add(rows)
        if self._copying is not None:
            self._copying.add(rows)

    def table(self) -> pd.DataFrame:
        """Return the head table of everything that was measured."""
        more = [one.table() for one in (self._alike, self._copying) if one is not None]
        return pd.concat([self._mass.table(), *more], ignore_index=True)


def shares_of(table: pd.DataFrame, null: str) -> dict[tuple[int, int, str], Share]:
    """Look up every head's share of attention on every key set, compared with one null.

    Args:
        table: A head table.
        null: The null: ``positions`` or ``tokens``.

    Returns:
        (layer, head, key set) → the share.
    """
    return _by_head(table[(table["metric"] == "attention_mass") & (table["null"] == null)])


def scores_of(table: pd.DataFrame, metric: str) -> dict[tuple[int, int, str], Share]:
    """Look up every head's score of a metric that is compared with only one null.

    Args:
        table: A head table, with one row per head and metric.
        metric: ``copying`` or ``positional``. ``attention_mass`` has two nulls: see
            :func:`shares_of`.

    Returns:
        (layer, head, target) → the score, its excess over the null mean, the p-value, and the
        95 % interval of the excess. The target is ``""``, because these metrics have no key set.
        A head whose score is NaN gets :data:`NO_KEYS`.
    """
    return _by_head(table[table["metric"] == metric])


def _by_head(rows: pd.DataFrame) -> dict[tuple[int, int, str], Share]:
    columns: Sequence[str] = ["layer", "head", "target", "score", "effect", "p", "low", "high"]
    return {
        (layer, head, target): NO_KEYS if isnan(numbers[0]) else Share(*numbers)
        for layer, head, target, *numbers in rows[columns].itertuples(index=False, name=None)
    }
