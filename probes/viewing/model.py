"""Everything that a page of heads says of one model: roles, numbers, and attention on rows.

    rows (:mod:`probes.viewing.sequences`) → roles and shares (:mod:`probes.roles`) → patterns and
    effects on the shown rows (:mod:`probes.viewing.measure`) → weights (:mod:`interp.weights`)

Each number is one that another command gives as well: this gathers, and measures nothing of its
own. Of a store whose model cannot be loaded there are patterns, lags and candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import ProoflensError
from interp.hooks.capture import evaluating
from interp.store import ActivationStore
from interp.weights.weight_table import weight_table
from probes.roles import ROLE_COLUMNS, candidates
from probes.roles.evidence import Evidence
from probes.roles.examined import Watch as Over
from probes.roles.find import decided
from probes.roles.gathering import evidence_of
from probes.roles.profile import Profile
from probes.viewing.measure import Effects, Seen, effects_on, seen_on
from probes.viewing.sequences import Chosen, Sequences, card_of, token_word
from probes.viewing.tokens import Raised, most_frequent, raised_by

__all__ = ["Column", "Viewed", "Watch", "quantisation_error", "view_model", "view_store"]

Place = tuple[int, int]
Watch = Callable[[str], None]
"""Told what is being done."""
_CLASSES = {
    "own": "own token",
    "previous": "previous token",
    "first": "first token",
    "local": "near tokens",
    "uniform": "closeness to even attention",
    "fixed": "closeness to a map of positions",
    "related": "closeness to a comparison of tokens",
    "periodic": "closeness to a period of positions",
    "moved": "all but the first token, where its event happens",
    "matched": "what an earlier head fetched",
    "predicted": "the token that is predicted, earlier",
    "same": "same token, earlier",
    "after_same": "after the same token (induction)",
}
_ROWS = {
    "given": "rows of the task",
    "repeated": "random tokens that repeat",
    "shuffled": "the same tokens in random order",
}


@dataclass(frozen=True)
class Column:
    """One number of every head.

    Attributes:
        key: Its short name.
        label: With its unit, as an axis says it.
        about: What it is, in a sentence.
        values: Head → number; a head that is not there was not measured.
    """

    key: str
    label: str
    about: str
    values: Mapping[Place, float]


@dataclass(frozen=True)
class Viewed:
    """One model, as a page of heads shows it.

    Attributes:
        name: Of the model or store.
        heads: Layer and head, in order.
        columns: Numbers of every head.
        roles: The heads' rows of the role table.
        lacks: What could not be looked for → why.
        shown: Rows, by kind.
        seen: What heads do on each of them.
        effects: What is lost without each head on each of them; None where that is not known.
        raised: Which tokens a head raises; None where that is not known.
        notes: What to know.
        token_text: From the id of an output token to its text.
        source: Where it was found, if the name does not say; empty otherwise.
    """

    name: str
    heads: tuple[Place, ...]
    columns: tuple[Column, ...]
    roles: pd.DataFrame
    lacks: Mapping[str, str]
    shown: tuple[Sequences, ...]
    seen: tuple[Seen, ...]
    effects: tuple[Effects | None, ...]
    raised: Raised | None
    notes: tuple[str, ...]
    token_text: Callable[[int], str] = str
    source: str = ""


def view_model(
    model: Any,
    chosen: Chosen,
    *,
    ablate: bool = True,
    seed: int = 0,
    watch: Watch = lambda words: None,
    over: Over = iter,
) -> Viewed:
    """What a page shows of a model.

    Args:
        model: As :func:`trained.loading.load` gives it.
        chosen: From :func:`probes.viewing.sequences.choose_rows`, of this model or of one that
            takes the same inputs.
        ablate: Whether to run the model without each head on the shown rows; on a large model that
            takes most of the time.
        seed: Of nulls.
        watch: Told what is being done.
        over: Wraps loops over heads, for a progress bar.

    Raises:
        HookError: for a model whose attention patterns no hook shows.
        ArgumentError: for rows that the model cannot take.
    """
    notes, card = list(chosen.notes), card_of(model)
    with evaluating(model):
        watch(f"attention of {card.name}")
        seen = tuple(seen_on(model, rows, model) for rows in chosen.shown)
        heads = tuple(sorted(seen[0].heads))
        watch(f"roles of {card.name}")
        roles, shares, lacks = _roles(model, chosen, seed, notes, over)
        effects: list[Effects | None] = []
        for rows in chosen.shown:
            watch(f"{card.name} without each head, on {rows.kind}")
            asked = ablate and rows.aimed
            effects.append(effects_on(model, rows, heads, seed=seed, over=over) if asked else None)
        watch(f"weights of {card.name}")
        raised, weights = _weights(model, chosen.shown, seed, notes)
    columns = [*shares, *_lost(chosen.shown, effects), *weights]
    if not ablate:
        notes.append("the model was not run without its heads: no effects on rows are shown")
    return Viewed(
        card.name, heads, tuple(columns), roles, lacks, chosen.shown, seen, tuple(effects),
        raised, (*card.notes, *notes), partial(token_word, tokenizer=card.tokenizer),
    )  # fmt: skip


def view_store(
    store: ActivationStore, shown: Sequences, name: str, profile: Profile, note: str = ""
) -> Viewed:
    """What a page shows of a store alone: its patterns, its sealed roles, or candidates.

    Args:
        store: With ``attn.hook_pattern`` of the layers of interest.
        shown: All its rows (more cannot be told apart from its parts).
        name: Of the store.
        profile: Of candidates, where no roles are sealed.
        note: Why there is no model.

    Raises:
        HookError: if no patterns are stored.
    """
    seen = seen_on(store, shown)
    heads = tuple(sorted(seen.heads))
    if "roles" in store.measurements:
        roles, told = store.measurement("roles"), "roles are those sealed into the store"
    else:
        roles = candidates(store, profile=profile)
        told = "roles are candidates: no model was run, so no cause is known"
    notes = tuple(filter(None, (note, told)))
    return Viewed(
        name, heads, (), _of_heads(roles), {}, (shown,), (seen,), (None,), None, notes
    )  # fmt: skip


def _roles(
    model: Any, chosen: Chosen, seed: int, notes: list[str], over: Over
) -> tuple[pd.DataFrame, list[Column], Mapping[str, str]]:
    """The heads' roles, their shares of attention by class, and what was not looked for."""
    nothing = pd.DataFrame(columns=[*ROLE_COLUMNS, "tests"])
    if chosen.measured is None:
        return nothing, [], {}
    known = chosen.memories, chosen.answers
    try:
        evidence = evidence_of(
            model, chosen.measured, chosen.profile, latents=any(map(bool, known)), seed=seed
        )
        table = decided(evidence, *known, watch=over)
    except ProoflensError as error:
        notes.append(f"roles were not decided: {error}")
        return nothing, [], {}
    return _of_heads(table), _shares(evidence), table.attrs.get("lacks", {})


def _of_heads(roles: pd.DataFrame) -> pd.DataFrame:
    return roles[roles["component"] == "head"].reset_index(drop=True)


def _shares(evidence: Evidence) -> list[Column]:
    """Shares of attention by class of keys, and the scores that roles rest on."""
    columns = []
    for keys, kind in evidence.profile.rows.items():
        found = {place: evidence.share(place, keys) for place in evidence.heads}
        values = {p: s.score for p, s in found.items() if s is not None and np.isfinite(s.score)}
        kind = evidence.kind(keys)
        words = f"share of attention: {_CLASSES[keys]}"
        about = f"Mean share of attention on {_ROWS.get(kind, kind)}."
        columns.append(Column(keys, f"{_CLASSES[keys]} (share)", f"{words}. {about}", values))
    for metric, kind, label, about in (
        ("copying", "repeated", "copying (logits)", "How much the head raises what it attends to."),
        ("positional", "shuffled", "positional (cosine)", "How alike attention is across rows."),
    ):
        if evidence.profile.unit == "nats":
            scores = {place: evidence.score(place, metric, kind) for place in evidence.heads}
            values = {p: s.score for p, s in scores.items() if s is not None}
            columns.append(Column(metric, label, about, values))
    return [column for column in columns if column.values]


def _lost(shown: Sequence[Sequences], effects: Sequence[Effects | None]) -> list[Column]:
    """The rise of the loss without each head, on each kind of rows with more than one row."""
    columns = []
    for rows, found in zip(shown, effects, strict=True):
        if found is not None and len(found.table):
            values = _by_head(found.table)
            label = f"loss without it, {rows.kind} ({found.unit})"
            about = f"Rise of the loss on {rows.about} when the head gives its mean over rows."
            columns.append(Column(f"loss-{rows.kind}", label, about, values))
    return columns


def _by_head(table: pd.DataFrame) -> dict[Place, float]:
    scores = table[["layer", "head", "score"]].itertuples(index=False, name=None)
    return {(layer, head): score for layer, head, score in scores}


def _weights(
    model: Any, shown: Sequence[Sequences], seed: int, notes: list[str]
) -> tuple[Raised | None, list[Column]]:
    """Which tokens heads raise, and the diagonals of their circuits."""
    try:
        table = weight_table(model, ["trace_share"], seed=seed)
    except ProoflensError as error:
        notes.append(f"weights were not read: {error}")
        return None, []
    columns = [
        Column(
            f"diagonal-{circuit}",
            f"{circuit} diagonal (trace share)",
            f"Share of the {circuit} circuit that is a multiple of the identity, signed.",
            _by_head(rows),
        )
        for circuit, rows in table.groupby("circuit", sort=False)
    ]
    try:
        raised = raised_by(model, most_frequent(shown))
    except ProoflensError as error:
        notes.append(f"raised tokens were not read: {error}")
        raised = None
    return raised, columns


def quantisation_error(viewed: Viewed) -> float:
    """The largest error of a quantised pattern that the page shows."""
    errors: list[float] = [h.pattern.error for s in viewed.seen for h in s.heads.values()]
    return max(errors, default=0.0)
