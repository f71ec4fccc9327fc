"""Where every head looks on some rows, from patterns that are seen once: shares of attention by
class of key with their nulls, how alike attention is on different rows, and how much a head raises
the tokens that it attends to.

    AttentionMass      shares by class (:mod:`interp.attention.attention_to_keys`)
    Alike, Copying     :mod:`interp.attention.behaviour`

A :class:`Looks` is told of rows, some at a time, from a model's clean pass or from a store, and
holds no row.
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
    """The share of a head's attention that goes to some keys, compared with a null.

    Attributes:
        score: The share.
        effect: By how much it exceeds the null's.
        p: The p-value of the excess.
        low, high: The interval of the excess.
    """

    score: float
    effect: float
    p: float
    low: float
    high: float

    def test(self, name: str, floor: float) -> Test:
        """The test that the share is at least the floor, and more than the null gives."""
        null = self.score - self.effect
        return Test(name, self.score, floor, self.p, null + self.low, null + self.high)

    def beyond(self, name: str, floor: float) -> Test:
        """The test that the excess over the null reaches the floor."""
        return Test(name, self.effect, floor, self.p, self.low, self.high)


NO_KEYS = Share(0.0, 0.0, 1.0, nan, nan)
"""The share of a key set in which no query has a key, such as its own where that is masked."""


def hooks_to_read(model: Any, *, behaviour: bool) -> list[str]:
    """The hooks whose activations :class:`Looks` reads during a model's pass."""
    layers = range(model.cfg.n_layers)
    known = model.hook_dict
    names = [Site(layer, "pattern").name for layer in layers]
    if behaviour:
        names += [*(output_site(model, layer, 0).name for layer in layers), SCALE]
        names += [post_scale(layer) for layer in layers]
    return [name for name in names if name in known]


def single_lags(window: int) -> tuple[str, ...]:
    """The names of the key sets with a single key within the window."""
    return ("own", "previous", *(f"lag {s}" for s in range(2, window)))


class Looks:
    """Where heads attend on the rows of one kind, added up batch by batch.

    Args:
        window: Positions that count as local, the query's own included.
        model: The model, to measure how much heads raise the tokens they attend to
            (:class:`Copying`); None to leave this out.
        behaviour: Whether to compare attention between rows too.
    """

    def __init__(self, window: int, *, model: Any = None, behaviour: bool = False) -> None:
        self._window, self._mass = window, AttentionMass()
        self._alike = Alike() if behaviour else None
        self._copying = Copying(model) if model is not None else None

    def add(self, rows: Rows, counted: Bool[Tensor, "row pos"]) -> None:
        """Add some rows.

        Args:
            rows: The rows, with their attention patterns.
            counted: True for the queries that count for shares.
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
        """A head table of everything that was measured."""
        more = [one.table() for one in (self._alike, self._copying) if one is not None]
        return pd.concat([self._mass.table(), *more], ignore_index=True)


def shares_of(table: pd.DataFrame, null: str) -> dict[tuple[int, int, str], Share]:
    """(layer, head, key set) → its share, against the null ``positions`` or ``tokens``."""
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
