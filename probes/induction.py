"""Induction heads: whether a head is one, and which earlier head its keys are written by.

An induction head attends to the token after an earlier equal one; it can find that token because
an earlier head wrote each token's predecessor there; and without that attention the repeated tokens
are predicted worse. :func:`measure_induction` asks the role engine whether a head of a live model
is one, and puts beside its answer what weights and ablation say; :func:`induction_evidence` joins
tables that are there already (from a store, a checkpoint).

**The rule** is that of the role ``induction`` (:mod:`probes.roles.registry`); there is no other:
``status`` is what :func:`probes.roles.find_roles` says of the same rows. K-composition has no part
in it, since it is about weights alone: the rule asks instead that the head's attention falls when
the earlier heads no longer see the token before. K-composition tells *which* writer the keys read:

    k_excess = score / null mean − 1

over random directions, a ratio because their score falls as 1/√n with the model's width n.

**When not to use it.** On rows that all repeat with one period: attention by position then looks
the same, and nothing is above other rows' tokens. Where several heads do the same work none is
missed alone, and the loss says nothing. **What a positive result does not establish**: that the
head's keys get the predecessor from the writer that is named (patch the path to know), or that the
head does nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.errors import Problems
from interp.hooks.capture import evaluating
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.ablation_effects import ablate
from interp.interventions.components import components
from interp.stats.head_table import adjust
from interp.tasks.base import Batch
from interp.weights.composition import composition_table
from interp.weights.head_weights import HeadWeights, head_weights
from probes.roles.find import decided
from probes.roles.gathering import evidence_of
from probes.roles.profile import LANGUAGE

__all__ = ["induction_evidence", "measure_induction", "previous_writers"]

_HEAD = ["layer", "head"]
_WRITER = ("writer", "previous", "k_composition", "k_excess", "k_p")


def measure_induction(
    model: HookedModel,
    batch: Batch,
    *,
    factors: HeadWeights | None = None,
    fold_norm: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """The evidence for every head of a live model, on rows whose tokens repeat.

    Args:
        model: Ours, or a bridge: tokens in, hooks of TransformerLens.
        batch: Tokens ``[row, pos]`` that repeat, with periods or order of each row's own, and the
            repeated positions scored (:class:`~interp.tasks.induction.RepeatedTokens`).
        factors: The weights of the model's heads; read from the model by default.
        fold_norm: Fold the scale of the norm before attention into the compositions.
        seed: Seed of the intervals, the nulls and the rows in random order.

    Returns:
        As :func:`induction_evidence`.

    Raises:
        CheckpointError: if the model is of no known architecture; open its factors with a mapping.
        ArgumentError: for a batch that has no tokens, or too few rows.
    """
    factors = head_weights(model) if factors is None else factors
    composition = composition_table(factors, ["k_composition"], fold_norm=fold_norm)
    with evaluating(model):
        evidence = evidence_of(model, batch, LANGUAGE, seed=seed)
        content, roles = evidence.table("repeated"), decided(evidence)
    heads = [part for part in components(model) if part.kind == "head"]
    return induction_evidence(content, composition, ablate(model, batch, heads, seed=seed), roles)


def induction_evidence(
    content: pd.DataFrame,
    composition: pd.DataFrame,
    losses: pd.DataFrame,
    roles: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Join tables that are already there into one row of evidence per head.

    Args:
        content: Attention on repeated tokens, from
            :func:`interp.attention.attention_to_keys.attention_table`.
        composition: The table of :func:`interp.weights.composition.composition_table`
            (``k_composition``).
        losses: Loss increases from :func:`interp.interventions.ablation_effects.ablate`, scored on
            repeats (:func:`interp.interventions.ablation_effects.next_tokens` with a ``start``).
        roles: Roles on the same rows, from :func:`probes.roles.find_roles`; without it ``status``
            is empty.

    Returns:
        ``layer``, ``head``, ``status`` (of the role ``induction``: ``confirmed``, ``candidate`` or
        empty); ``induction`` (share of attention), ``induction_effect``, ``induction_q`` (against
        other rows' tokens); ``writer`` ("L0H1", see :func:`previous_writers`; empty where there is
        none), ``previous`` (its attention to the token before, above the null), ``k_composition``,
        ``k_excess``, ``k_p``, ``k_q``; ``loss_increase``, ``loss_q``. NaN where there is none.

    Raises:
        ArgumentError: if a table lacks the scores that are needed.
    """
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
    writers = previous_writers(composition, masses, least=LANGUAGE.floors.writer)
    found = found.merge(writers, on=_HEAD, how="left")
    names = {"score": "loss_increase", "q": "loss_q"}
    found = found.merge(lost[[*_HEAD, *names]].rename(columns=names), on=_HEAD, how="left")
    found["writer"] = found["writer"].fillna("")
    found["k_q"] = adjust(found["k_p"].to_numpy(dtype=float))
    found.insert(2, "status", _statuses(found, roles))
    return found.reset_index(drop=True)


def previous_writers(
    composition: pd.DataFrame, previous: Mapping[str, float], *, least: float
) -> pd.DataFrame:
    """For each head, the previous-token head whose output its keys read most.

    Args:
        composition: A head table with ``k_composition``; the target is the writer.
        previous: Head ("L0H1") → attention to the token before, above its null.
        least: The least share of attention to the previous token that makes a previous-token head.

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


def _statuses(found: pd.DataFrame, roles: pd.DataFrame | None) -> list[str]:
    """The status that the role engine gives to each head."""
    if roles is None:
        return [""] * len(found)
    mine = roles[roles["role"] == "induction"]
    said = {(row.layer, row.head): str(row.status) for row in _rows(mine)}
    return [said.get((row.layer, row.head), "") for row in _rows(found)]


def _rows(table: pd.DataFrame) -> Any:
    """Iterate over rows, with columns as attributes."""
    return table.itertuples(index=False)
