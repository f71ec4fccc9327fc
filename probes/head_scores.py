"""A user-defined score of every head, compared with a null: the same score without training.

    score(model, rows) → [layer, head]     any function of a hooked model; larger means more of it
    null                                   the same score in models with fresh weights
                                           (:mod:`probes.fresh_models`), pooled over a layer's heads
    p, q                                   p-value of a head's score under this null
                                           (:mod:`interp.stats.p_values`), and Benjamini–Hochberg
                                           over all heads of the model

Use it for a score that has no null of its own. If a null is possible that keeps more of the model
(permuted positions, other rows' tokens, random directions), that is the stronger test: fresh
weights differ from trained ones in everything, so a small p says that training made the score, not
that the score means what its name says. Nothing is ablated here: a score is not a role.

Installed packages add scores under the entry points ``prooflens.metrics``; ``prooflens inspect``
then measures them too (:func:`head_scores`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from interp.errors import ArgumentError, Problems
from interp.hooks.capture import evaluating
from interp.interventions.components import components
from interp.plugins import Registry
from interp.stats.head_table import head_table, score_row
from interp.stats.p_values import Null, from_draws
from interp.tasks.base import Batch
from probes.fresh_models import draws_of, fresh_models

_NULL, _FEWEST = "fresh weights", 20
Score = Callable[..., Any]
"""A function of a hooked model, or of a model and rows, that returns ``[layer, head]`` numbers."""

_ROWS_SHUFFLED = 8
"""Number of rows on which models without a spec are scored. Their fresh copies are run one after
another, which takes time for every row."""


def _problem(name: str, value: object) -> str:
    return "" if callable(value) else f"it must be a function, got {type(value).__name__}"


SCORES: Registry[Score] = Registry({}, "prooflens.metrics", _problem)
"""Name of each head score of installed packages → the score, a function of a model and rows."""


def null(
    score: Score,
    model: Any,
    rows: Batch | None = None,
    *,
    name: str = "",
    draws: int | None = None,
    two_sided: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare a user-defined head score with the same score in untrained models.

    Args:
        score: A function ``score(model)``, or ``score(model, rows)`` if rows are given, that
            returns ``[layer, head]`` numbers (a tensor, an array or nested lists).
        model: A hooked model; it is run in evaluation mode and not changed.
        rows: Rows for the score.
        name: The name of the score in the column ``metric``; the function's name by default.
        draws: The number of heads of fresh models with which each layer's heads are compared; by
            default a thousand, and fewer for very wide models.
        two_sided: Whether small scores are as notable as large ones.
        seed: Seed of the fresh weights.

    Returns:
        A head table (:mod:`interp.stats.head_table`) with one row per head: ``score``,
        ``null_mean``, ``null_std``, ``p``, ``q`` and ``effect`` = score − null_mean. p is NaN if
        the score is finite for fewer than 20 fresh heads.

    Raises:
        ArgumentError: for a score of another shape than ``[layer, head]``, a score of the model
            that is not finite, or fewer than 20 draws.
    """
    wanted = draws_of(model) if draws is None else draws
    problems = Problems("null")
    rule = f"must be at least {_FEWEST}"
    problems.need(wanted >= _FEWEST, "draws", rule, wanted, "ask for more fresh heads")
    problems.need(callable(score), "score", "must be a function", score, "give one")
    problems.raise_if_any()
    places = [(p.layer, p.head) for p in components(model) if p.kind == "head"]
    given = () if rows is None else (rows,)
    name = name or getattr(score, "__name__", "score")

    def score_model(one: Any) -> NDArray[np.float64]:
        with torch.no_grad(), evaluating(one):
            return _by_place(score(one, *given), places, name)

    own = score_model(model)
    if not np.isfinite(own).all():
        where = ", ".join(f"L{a}H{b}" for (a, b), v in zip(places, own, strict=True) if v != v)
        raise ArgumentError(f"{name} must be finite for every head, is not for {where or 'some'}")
    heads = Counter(layer for layer, _ in places)
    count = ceil(wanted / min(heads.values()))
    fresh = np.stack([score_model(one) for one in fresh_models(model, count, seed=seed)])
    found = []
    for k, (layer, head) in enumerate(places):
        peers = [i for i, (other, _) in enumerate(places) if other == layer]
        drawn = fresh[: ceil(wanted / heads[layer]), peers].ravel()
        drawn = drawn[np.isfinite(drawn)]
        about = Null(math.nan, math.nan, math.nan, _NULL)
        if len(drawn) >= _FEWEST:
            about = from_draws(float(own[k]), drawn, name=_NULL, two_sided=two_sided)
        found.append(
            score_row(name, float(own[k]), about, component="head", layer=layer, head=head)
        )
    return head_table(found)


def head_scores(model: Any, rows: Batch, *, seed: int = 0) -> pd.DataFrame:
    """Measure every head score that installed packages add, with its null, as a head table.

    Args:
        model: A hooked model.
        rows: The rows; models without a spec are scored on the first eight.
        seed: Seed of the fresh weights.

    Raises:
        ArgumentError: as :func:`null`, naming the score.
    """
    rows = rows if getattr(model, "spec", None) is not None else rows[:_ROWS_SHUFFLED]
    tables = [null(score, model, rows, name=name, seed=seed) for name, score in SCORES.items()]
    return pd.concat(tables, ignore_index=True) if tables else head_table([])


def _by_place(found: Any, places: list[tuple[int, int]], name: str) -> NDArray[np.float64]:
    """Return the scores of the model's heads; the scores of layers with fewer heads may be
    padded."""
    values = found.detach().cpu().numpy() if isinstance(found, torch.Tensor) else found
    try:
        scores = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name} must give [layer, head] numbers: {error}") from error
    layers, heads = (1 + max(place[i] for place in places) for i in (0, 1))
    if scores.ndim != 2 or scores.shape[0] < layers or scores.shape[1] < heads:
        raise ArgumentError(
            f"{name} must give [layer, head] numbers of shape ({layers}, {heads}) for this model, "
            f"got shape {scores.shape}: return one number a head"
        )
    return np.array([scores[place] for place in places])
