"""Induction heads from three kinds of evidence: attention, whose writes the keys read, the loss.

An induction head attends to the token after an earlier equal one (behaviour); it can find that
token because an earlier head wrote each token's predecessor there (K-composition with a
previous-token head); and without it the repeated tokens are predicted worse (effect). Each alone is
weak. :func:`measure_induction` measures the three on a live model and joins them;
:func:`induction_evidence` joins tables that are there already (from a store, a checkpoint).

**The rule.** ``holds`` where all three are beyond their null (q below the level) and beyond a
floor: attention above other rows' tokens, the rise of the loss, and for K-composition

    excess = score / null mean − 1

with the head that is read most among those that attend to the token before. The floor is on this
ratio because the score of random directions falls as 1/√n with the model's width n: 0.5 says that
what the writer writes is read with more than twice the energy (1.5² = 2.25) that a random direction
would get. In GPT-2 small one pair of heads in ten comes so far (95th percentile 0.6), its induction
heads read L4H11 with 0.77 to 1.85, and those of the shipped models their writer with 0.8 to 0.9.

**When not to use it.** On rows that all repeat with one period: attention by position then looks
the same, and nothing is above other rows' tokens. Where several heads do the same work none is
missed alone, and the loss says nothing. **What a positive result does not establish**: that the
head's keys get the predecessor from that writer (K-composition is about weights alone; patch the
path to know), or that the head does nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from interp.attention.attention_to_keys import attention_table
from interp.errors import Problems
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.ablation_effects import ablate
from interp.interventions.components import components
from interp.stats.head_table import adjust
from interp.tasks.base import Batch
from interp.weights.composition import composition_table
from interp.weights.head_weights import HeadWeights, head_weights

__all__ = ["InductionFloors", "induction_evidence", "measure_induction", "previous_writers"]

_HEAD = ["layer", "head"]
_WRITER = ("writer", "previous", "k_composition", "k_excess", "k_p")


@dataclass(frozen=True)
class InductionFloors:
    """The level for q and the least effects.

    Attributes:
        q: False-discovery rate that each of the three tests must stay below.
        mass: Attention to the token after an earlier equal one, above other rows' tokens; and to
            the token before, above permuted positions, for a head to count as a writer.
        composition: Excess of K-composition over random directions, a ratio.
        loss: Rise of the loss, in nats a token (or as a share of a real target's variance).
    """

    q: float = 0.01
    mass: float = 0.3
    composition: float = 0.5
    loss: float = 0.05


def measure_induction(
    model: HookedModel,
    batch: Batch,
    *,
    factors: HeadWeights | None = None,
    fold_norm: bool = False,
    floors: InductionFloors | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The evidence of every head of a live model, on rows whose tokens repeat.

    Args:
        model: Ours, or a bridge: tokens in, hooks of TransformerLens.
        batch: Tokens ``[row, pos]`` that repeat, with periods or order of each row's own, and the
            repeated positions scored (:class:`~interp.tasks.induction.RepeatedTokens`).
        factors: The model's; made from the live model by default.
        fold_norm: Fold the scale of the norm before attention into the compositions.
        floors: Level and floors of ``holds``.
        seed: Of intervals and of the null of the loss.

    Returns:
        As :func:`induction_evidence`.

    Raises:
        CheckpointError: if the model is of no known architecture; open its factors with a mapping.
        ArgumentError: for a batch that has no tokens.
    """
    factors = head_weights(model) if factors is None else factors
    composition = composition_table(factors, ["k_composition"], fold_norm=fold_norm)
    content = attention_table(model, batch, seed=seed)
    heads = [part for part in components(model) if part.kind == "head"]
    losses = ablate(model, batch, heads, seed=seed)
    return induction_evidence(content, composition, losses, floors=floors)


def induction_evidence(
    content: pd.DataFrame,
    composition: pd.DataFrame,
    losses: pd.DataFrame,
    *,
    floors: InductionFloors | None = None,
) -> pd.DataFrame:
    """One row a head.

    Args:
        content: From :func:`interp.attention.attention_to_keys.attention_table`, on repeated
            tokens.
        composition: From :func:`interp.weights.composition.composition_table` (``k_composition``).
        losses: From :func:`interp.interventions.ablation_effects.ablate`, scored on repeats
            (:func:`interp.interventions.ablation_effects.next_tokens` with a ``start``).
        floors: Level and floors of ``holds``.

    Returns:
        ``layer``, ``head``, ``holds``; ``induction`` (share of attention), ``induction_effect``,
        ``induction_q`` (against other rows' tokens); ``writer`` ("L0H1", see
        :func:`previous_writers`; empty where there is none), ``previous`` (its attention to the
        token before, above the null), ``k_composition``, ``k_excess``, ``k_p``, ``k_q``;
        ``loss_increase``, ``loss_q``. NaN where there is none.

    Raises:
        ArgumentError: if a table lacks the scores.
    """
    floors = floors or InductionFloors()
    mass = content[content["metric"] == "attention_mass"]
    induction = mass[(mass["target"] == "after_same") & (mass["null"] == "tokens")]
    previous = mass[(mass["target"] == "previous") & (mass["null"] == "positions")]
    lost = losses[(losses["metric"] == "loss_increase") & (losses["component"] == "head")]
    problems = Problems("induction_evidence")
    for name, table in (("content", induction), ("losses", lost)):
        problems.need(len(table) > 0, name, "must hold the heads' scores", 0, "measure tokens")
    problems.raise_if_any()
    names = {"score": "induction", "effect": "induction_effect", "q": "induction_q"}
    found = induction[[*_HEAD, *names]].rename(columns=names)
    masses = {f"L{r.layer}H{r.head}": float(r.effect) for r in _rows(previous)}
    writers = previous_writers(composition, masses, least=floors.mass)
    found = found.merge(writers, on=_HEAD, how="left")
    names = {"score": "loss_increase", "q": "loss_q"}
    found = found.merge(lost[[*_HEAD, *names]].rename(columns=names), on=_HEAD, how="left")
    found["writer"] = found["writer"].fillna("")
    found["k_q"] = adjust(found["k_p"].to_numpy(dtype=float))
    found.insert(2, "holds", _holds(found, floors))
    return found.reset_index(drop=True)


def previous_writers(
    composition: pd.DataFrame, previous: Mapping[str, float], *, least: float
) -> pd.DataFrame:
    """For each head the previous-token head that its keys read most.

    Args:
        composition: A head table with ``k_composition``; the target is the writer.
        previous: Head ("L0H1") → attention to the token before, above its null.
        least: Of that attention, for a head to count.

    Returns:
        ``layer``, ``head``, ``writer``, ``previous``, ``k_composition``, ``k_excess`` (over the
        null's mean, a ratio) and ``k_p`` (times the number of writers it was chosen from); heads
        with no such writer before them have no row.
    """
    pairs = composition[composition["metric"] == "k_composition"].dropna(subset=["p"])
    names = {"score": "k_composition", "target": "writer", "p": "k_p"}
    pairs = pairs.rename(columns=names)
    pairs = pairs.assign(
        previous=pairs["writer"].map(dict(previous)).astype(float),
        k_excess=pairs["k_composition"].astype(float) / pairs["null_mean"].astype(float) - 1,
    )
    pairs = pairs[pairs["previous"] >= least]
    by_reader = pairs.groupby(_HEAD)
    pairs["k_p"] = (pairs["k_p"] * by_reader["k_p"].transform("size")).clip(upper=1.0)
    best = by_reader["k_excess"].idxmax()
    chosen: pd.DataFrame = pairs.loc[best, [*_HEAD, *_WRITER]]
    return chosen.reset_index(drop=True)


def _holds(found: pd.DataFrame, floors: InductionFloors) -> np.ndarray[Any, np.dtype[np.bool_]]:
    tests = (
        ("induction_effect", "induction_q", floors.mass),
        ("k_excess", "k_q", floors.composition),
        ("loss_increase", "loss_q", floors.loss),
    )
    passed = [(found[size] >= least) & (found[q] < floors.q) for size, q, least in tests]
    return np.logical_and.reduce([one.to_numpy(dtype=bool) for one in passed])


def _rows(table: pd.DataFrame) -> Any:
    """Rows with their columns as attributes."""
    return table.itertuples(index=False)
