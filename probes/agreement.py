"""Does a model do what the proof does? Statement by statement, and as one number.

A :class:`~interp.proofs.mechanism.Mechanism` says which kind of component serves what. Each of its
statements is checked against a model's decided roles: *x_{t−T} is extracted by attention heads*,
*each memory owns its heads*, *f is computed by an FFN that comes after them*, *round r comes after
round r − 1*, *a head is a previous-token head, and the induction head comes after it*, *a head's
QK is aI*. A statement holds when confirmed roles say so. Its ``strength`` is that of the strongest
such component (NaN where it is true or false alone), its ``score`` the strength between 0 and 1 (1
for one that is true), 0 where it does not hold, and q the least of those roles.

    agreement = (S − S_random) / (S_construction − S_random),   S the mean score of the statements

is 1 for the construction and 0 for models with random weights. Its interval counts both the spread
over draws of rows and that of one random model among others.

Trained models are judged on kind and order, not on how many heads serve a memory or in which
layer. Disagreement means another mechanism was found, not that the proof is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from interp.errors import Problems
from interp.heads.effects import Component
from interp.proofs.mechanism import Mechanism

__all__ = ["Agreement", "agreement", "overall"]

_ONE_HEAD = {
    "previous-token": "a head attends to the previous token",
    "duplicate-token": "a head attends to earlier equal tokens",
    "induction": "a head attends to what followed earlier equal tokens",
    "sink": "a head attends to the first position",
    "counter": "a head attends evenly to everything before",
    "local": "a head attends to the last few positions",
    "dense": "a head attends in a way that has no name",
    "symbol-equality": "a head's QK circuit is aI on the tokens",
    "copying": "a head's OV circuit is bI on the tokens",
}


@dataclass(frozen=True)
class Agreement:
    """One number for all statements.

    Attributes:
        score: 0 for random weights, 1 for the construction.
        low, high: Its 95 % interval.
        parts: The statements, with their scores averaged over the draws.
    """

    score: float
    low: float
    high: float
    parts: pd.DataFrame


def agreement(
    mechanism: Mechanism, roles: pd.DataFrame, *, layers: Mapping[str, int] | None = None
) -> pd.DataFrame:
    """Every statement of a mechanism, checked against decided roles.

    Args:
        mechanism: The proof's.
        roles: From :func:`probes.roles.find_roles` or :func:`probes.roles.decide_roles`.
        layers: Latent → the first layer at which it is decodable (−1: where the stream begins), for
            mechanisms whose FFNs compute named formulas; without it these make no statement.

    Returns:
        Columns ``statement``, ``holds``, ``strength``, ``score``, ``q`` and ``by`` (the components,
        in words).
    """
    confirmed = roles[roles["status"] == "confirmed"]
    rows = [
        *_statements(mechanism, confirmed),
        *_rounds(mechanism, confirmed),
        *_heads(mechanism, confirmed),
        *_formulas(mechanism, layers or {}),
    ]
    return pd.DataFrame(rows, columns=["statement", "holds", "strength", "score", "q", "by"])


def overall(
    draws: Sequence[pd.DataFrame],
    random: Sequence[pd.DataFrame],
    construction: pd.DataFrame,
) -> Agreement:
    """One number from the statements of a model, of random models and of the construction.

    Args:
        draws: The model's :func:`agreement` on rows of its own each, two or more.
        random: Those of re-initialised models of the same shapes, two or more.
        construction: The construction's own.

    Raises:
        ArgumentError: for too few tables, or a construction that is no better than random.
    """
    problems = Problems("overall")
    for name, tables in (("draws", draws), ("random", random)):
        problems.need(len(tables) >= 2, name, "must be two or more", len(tables), "measure more")
    problems.raise_if_any()
    found, null = (np.array([t["score"].mean() for t in tables]) for tables in (draws, random))
    unit = float(construction["score"].mean()) - float(null.mean())
    rule, advice = "must score above random models", "its roles were not found"
    problems.need(unit > 0, "construction", rule, unit, advice)
    problems.raise_if_any()
    score = (found.mean() - null.mean()) / unit
    spread = found.var(ddof=1) / len(found) + null.var(ddof=1) * (1 + 1 / len(null))
    reach = float(student.ppf(0.975, min(len(found), len(null)) - 1) * np.sqrt(spread) / unit)
    parts = draws[0].assign(score=np.mean([t["score"].to_numpy() for t in draws], axis=0))
    return Agreement(float(score), float(score - reach), float(score + reach), parts)


def _statements(mechanism: Mechanism, confirmed: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Who extracts the memories, and what is read out after."""
    heads = confirmed[confirmed["role"] == "memory-location"]
    readouts = confirmed[confirmed["role"] == "readout"]
    memories = {part.target: part.lag for part in mechanism.parts if part.role == "memory-location"}
    for memory, lag in memories.items():
        serving = heads[heads["target"] == memory]
        where = f"lag {lag}" if lag is not None else "its location"
        yield _row(f"{memory} is extracted by attention heads that select {where}", serving)
    if memories:
        yield _ownership(confirmed, set(memories))
    targets = [part.target for part in mechanism.parts if part.role == "readout"]
    for target in dict.fromkeys(targets) if memories else ():
        serving = readouts[readouts["target"] == target]
        if target.startswith("t_"):
            yield _row(f"{target} is computed by an FFN", serving)
            continue
        found = heads[heads["target"].isin(memories)].groupby("target")["layer"].min()
        complete = len(found) == len(memories)
        after = serving[serving["layer"] >= found.max()] if complete else serving.iloc[:0]
        yield _row(f"{target} is computed by an FFN after the memories are there", after)


def _ownership(confirmed: pd.DataFrame, memories: set[str]) -> dict[str, Any]:
    acting = confirmed[confirmed["role"].isin(["memory-location", "memory-correction"])]
    located = set(acting.loc[acting["role"] == "memory-location", "target"])
    owners = acting.groupby(["layer", "head"])["target"].nunique()
    alone = len(owners) > 0 and bool((owners == 1).all()) and located == memories
    by = "; ".join(f"{name}: {_names(group)}" for name, group in acting.groupby("target"))
    return _fact("each memory owns its heads", alone, by)


def _rounds(mechanism: Mechanism, confirmed: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Nested rounds follow one another."""
    rounds: dict[int, set[str]] = {}
    for part in mechanism.parts:
        if part.round is not None and part.role == "memory-location":
            rounds.setdefault(part.round, set()).add(part.target)
    found = confirmed[confirmed["role"] == "nested-round"]
    layers = {r: found.loc[found["target"].isin(names), "layer"] for r, names in rounds.items()}
    for r in sorted(rounds)[1:]:
        before, here = layers.get(r - 1, layers[r].iloc[:0]), layers[r]
        known = len(before) > 0 and len(here) == len(rounds[r])
        holds = known and bool(before.max() < here.min())
        by = f"layers {sorted(before)} and {sorted(here)}" if known else ""
        yield _fact(f"round {r} comes after round {r - 1}", holds, by)


def _heads(mechanism: Mechanism, confirmed: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Heads that are told by where they attend, or by their weights."""
    roles = {part.role for part in mechanism.parts if part.component == "head"}
    for role, statement in _ONE_HEAD.items():
        if role in roles:
            yield _row(statement, confirmed[confirmed["role"] == role])
    if {"induction", "previous-token"} <= roles:
        before, after = (confirmed.loc[confirmed["role"] == role, "layer"]
                         for role in ("previous-token", "induction"))  # fmt: skip
        known = len(before) > 0 and len(after) > 0
        holds = known and bool(before.min() < after.min())
        by = f"layers {before.min()} and {after.min()}" if known else ""
        yield _fact("the induction head comes after a previous-token head", holds, by)


def _formulas(mechanism: Mechanism, layers: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Nested formulas become readable in the order of their depth."""
    depth = {p.target: p.layer for p in mechanism.parts if p.role == "formula"}
    known = {name: at for name, at in depth.items() if name in layers}
    for level in sorted(set(known.values()))[1:]:
        before = [layers[name] for name, at in known.items() if at < level]
        here = {name: layers[name] for name, at in known.items() if at == level}
        for name, at in here.items():
            holds = max(before) < at
            by = f"layer {at} after {max(before)}"
            yield _fact(f"{name} is readable only after what it counts", holds, by)


def _row(statement: str, serving: pd.DataFrame) -> dict[str, Any]:
    strength = float(serving["strength"].abs().max()) if len(serving) else 0.0
    return {
        "statement": statement,
        "holds": len(serving) > 0,
        "strength": strength,
        "score": min(max(strength, 0.0), 1.0),
        "q": float(serving["q"].min()) if len(serving) else 1.0,
        "by": _names(serving),
    }


def _fact(statement: str, holds: bool, by: str) -> dict[str, Any]:
    """A statement that is true or false; its significance is that of the roles it speaks of."""
    nan = float("nan")
    return {
        "statement": statement, "holds": holds, "strength": nan, "score": float(holds), "q": nan,
        "by": by,
    }  # fmt: skip


def _names(rows: pd.DataFrame) -> str:
    columns = rows[["component", "layer", "head"]].itertuples(index=False, name=None)
    return ", ".join(Component(*values).name for values in columns)
