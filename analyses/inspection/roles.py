"""Which heads play which part in context, from behaviour, cause and weights together.

    previous-token    attention to the token before
    duplicate-token   attention to earlier equal tokens, on shuffled rows, where nothing follows
                      from them
    induction         attention to the token after an earlier equal one, on repeated rows; the
                      cause is judged there alone, and the head must read a previous-token head (K)
    copying           raises the tokens it attends to, in logits; anti-copying lowers them
    sink              attention to the first position
    positional        the same attention on all rows, and neither of the token before nor the first

Behaviour is measured on random tokens; the cause is a rise of the loss without the head, in any
trial unless said otherwise. The rule is :mod:`probes.roles.decision`'s: behaviour makes a
``candidate``, with the cause it is ``confirmed``, and every test needs a q below the level and an
effect above its floor; content classes must pass both nulls (permuted positions, other rows'
tokens). Floors were set before any model was looked at, but for that of K-composition: the score
over that of random directions, minus 1, with the previous-token head that is read most
(:mod:`interp.heads.induction`, which gives the reason), p times the number of such heads.

A confirmed role is about random tokens and this model; on text the head may do more, or other
things. Roles of a whole group that no single head is needed for are missed: they stay candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from interp.heads.effects import Component
from interp.heads.induction import InductionFloors, previous_writers
from probes.roles.decision import Found, Test, decide

__all__ = ["ROLES", "Levels", "head_name", "role_table"]

ROLES = ("previous-token", "duplicate-token", "induction", "copying", "anti-copying", "sink",
         "positional")  # fmt: skip
_BOTH = ("positions", "tokens")
_ATTENTION = (
    ("previous-token", "previous@repeated", "the token before", ("positions",)),
    ("duplicate-token", "same@shuffled", "earlier equal tokens", _BOTH),
    ("induction", "after_same@repeated", "the token after an earlier equal one", _BOTH),
    ("sink", "first@repeated", "the first position", ("positions",)),
)


@dataclass(frozen=True)
class Levels:
    """The level for q and the least effects.

    Attributes:
        q: False-discovery rate that every test must stay below.
        mass: Attention above what the null gives (share of a query's attention).
        copying: Attention-weighted logits above what other rows' tokens get.
        positional: Cosine between rows above what permuted attention gives.
        loss: Rise of the loss that counts, in nats a token.
        composition: Excess of K-composition over random directions, a ratio.
    """

    q: float = 0.01
    mass: float = 0.3
    copying: float = 0.2
    positional: float = 0.3
    loss: float = 0.05
    composition: float = InductionFloors.composition


def head_name(layer: int, head: int) -> str:
    """``L0H5``."""
    return Component("head", layer, head).name


def role_table(
    behaviour: pd.DataFrame,
    losses: pd.DataFrame,
    weights: pd.DataFrame,
    levels: Levels | None = None,
) -> pd.DataFrame:
    """Roles of all heads.

    Args:
        behaviour: From :func:`analyses.inspection.behaviour.attention_tables`, all rows together.
        losses: From :func:`analyses.inspection.behaviour.loss_table`, all trials together.
        weights: From :func:`interp.heads.weights.weight_table` with compositions.
        levels: Level and floors.

    Returns:
        One row a head and role, columns :data:`probes.roles.ROLE_COLUMNS`: ``strength`` is the
        behaviour's score, ``effect`` the largest rise of the loss that counts for the role, p and
        q the largest of the tests it rests on.
    """
    levels = levels or Levels()
    scores = _Scores(behaviour, losses, weights, least=levels.mass)
    found = [one for place in scores.heads for one in _found(scores, place, levels)]
    table = decide(found, level=levels.q)
    order = {role: i for i, role in enumerate(ROLES)}
    return table.sort_values(
        ["role", "status", "strength"], ascending=[True, False, False], ignore_index=True,
        key=lambda c: c.map(order) if c.name == "role" else c.abs() if c.name == "strength" else c,
    )  # fmt: skip


class _Scores:
    """Look-up of single rows."""

    def __init__(self, *tables: pd.DataFrame, least: float) -> None:
        behaviour, losses, weights = tables
        self._rows = {(r.layer, r.head, r.metric, r.circuit, r.target): r for r in _rows(behaviour)}
        self.heads = sorted({key[:2] for key in self._rows})
        self._losses = {
            (r.layer, r.head, r.target): r for r in _rows(losses[losses["component"] == "head"])
        }
        self.trials = tuple(dict.fromkeys(key[2] for key in self._losses))
        masses = {head_name(*p): self.mass(p, "previous@repeated") for p in self.heads}
        writers = previous_writers(weights, masses, least=least)
        self._reads = {(r.layer, r.head): r for r in _rows(writers)}

    def __call__(self, place: tuple[int, int], metric: str, null: str, target: str) -> Any:
        return self._rows.get((*place, metric, null, target))

    def mass(self, place: tuple[int, int], target: str) -> float:
        """Attention above permuted positions; 0 where it was not measured."""
        row = self(place, "attention_mass", "positions", target)
        return 0.0 if row is None else float(row.effect)

    def loss(self, place: tuple[int, int], trials: Sequence[str]) -> Any:
        """The largest rise among some trials; all if none is named."""
        names = [f"loss@{t}" for t in trials] or list(self.trials)
        known = [self._losses[(*place, name)] for name in names if (*place, name) in self._losses]
        return max(known, key=lambda row: row.score, default=None)

    def reads(self, place: tuple[int, int]) -> Any:
        """The head attending to the token before that this head's keys read most, if any."""
        return self._reads.get(place)


def _rows(table: pd.DataFrame) -> Iterator[Any]:
    """Rows with their columns as attributes."""
    return iter(table.itertuples(index=False))


def _found(scores: _Scores, place: tuple[int, int], levels: Levels) -> Iterator[Found]:
    """Everything that a head was tested for."""
    for role, target, words, nulls in _ATTENTION:
        rows = [scores(place, "attention_mass", null, target) for null in nulls]
        if any(row is None for row in rows):
            continue
        tests = [
            Test(f"attention to {words} above the null of {null}", row.effect, levels.mass, row.p)
            for null, row in zip(nulls, rows, strict=True)
        ]
        cause = _loss(scores, place, ("repeated",) if role == "induction" else (), levels)
        reads = [_composition(scores, place, levels)] if role == "induction" else []
        yield _role(place, role, rows[0].score, tests, [*reads, *cause])
    copies = scores(place, "copying", "tokens", "@repeated")
    if copies is not None:
        role, verb = ("anti-copying", "lowers") if copies.effect < 0 else ("copying", "raises")
        name = f"{verb} the logits of the tokens it attends to by"
        tests = [Test(name, abs(copies.effect), levels.copying, copies.p, family="copying")]
        yield _role(place, role, copies.score, tests, _loss(scores, place, (), levels))
    alike = scores(place, "positional", "positions", "@shuffled")
    if alike is not None:
        named = max(scores.mass(place, f"{key}@repeated") for key in ("previous", "first"))
        tests = [
            Test("cosine of attention on different rows above the null", alike.effect,
                 levels.positional, alike.p),
            Test("attention kept from the token before and the first", 1 - named, 1 - levels.mass),
        ]  # fmt: skip
        yield _role(place, "positional", alike.score, tests, _loss(scores, place, (), levels))


def _role(
    place: tuple[int, int], role: str, strength: float, tests: list[Test], cause: list[Test]
) -> Found:
    return Found("head", place[0], role, float(strength), tests, cause, head=place[1])


def _loss(
    scores: _Scores, place: tuple[int, int], trials: Sequence[str], levels: Levels
) -> list[Test]:
    row = scores.loss(place, trials)
    if row is None:
        return []
    name = f"without it the loss on {row.target.partition('@')[2]} rises, in nats, by"
    return [Test(name, row.score, levels.loss, row.p, row.low, row.high, "loss")]


def _composition(scores: _Scores, place: tuple[int, int], levels: Levels) -> Test:
    row = scores.reads(place)
    if row is None:
        return Test("K-composition: no previous-token head before it", -1.0, 0.0, 1.0)
    name = f"K-composition with {row.writer}, a previous-token head, above random directions by"
    return Test(name, row.k_excess, levels.composition, row.k_p, family="composition")
