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
trial unless said otherwise.

A head is ``confirmed`` when behaviour and cause both pass, else a ``candidate``; heads without the
behaviour have no row. Every test needs a q below the level and an effect above its floor; content
classes must pass both nulls (permuted positions, other rows' tokens). Floors were set before any
model was looked at. K-composition is judged against random rotations of the writer's basis
(:mod:`interp.heads.composition`) with q over all pairs of heads.

A confirmed role is about random tokens and this model; on text the head may do more, or other
things. Roles of a whole group that no single head is needed for are missed: they stay candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from probes.roles import ROLE_COLUMNS

__all__ = ["ROLES", "Levels", "head_name", "role_table"]

ROLES = ("previous-token", "duplicate-token", "induction", "copying", "anti-copying", "sink",
         "positional")  # fmt: skip


@dataclass(frozen=True)
class Levels:
    """The level for q and the least effects.

    Attributes:
        q: False-discovery rate that every test must stay below.
        mass: Attention above what the null gives (share of a query's attention).
        copying: Attention-weighted logits above what other rows' tokens get.
        positional: Cosine between rows above what permuted attention gives.
        loss: Rise of the loss that counts, in nats a token.
    """

    q: float = 0.01
    mass: float = 0.3
    copying: float = 0.2
    positional: float = 0.3
    loss: float = 0.05


@dataclass(frozen=True)
class _Finding:
    """A behaviour of a head: its tests (rows of tables), its strength, and in words."""

    role: str
    tests: tuple[Any, ...]
    words: str
    trials: tuple[str, ...] = ()
    reads: Any = None


def head_name(layer: int, head: int) -> str:
    """``L0H5``."""
    return f"L{layer}H{head}"


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
    scores = _Scores(behaviour, losses, weights)
    found = [(place, finding) for place in scores.heads
             for finding in _behaviours(scores, *place, levels)]  # fmt: skip
    previous = [head_name(*place) for place, f in found if f.role == "previous-token"]
    rows = [_decision(scores, place, f, previous, levels) for place, f in found]
    table = pd.DataFrame(rows, columns=list(ROLE_COLUMNS))
    order = {role: i for i, role in enumerate(ROLES)}
    return table.sort_values(
        ["role", "status", "strength"], ascending=[True, False, False], ignore_index=True,
        key=lambda c: c.map(order) if c.name == "role" else c.abs() if c.name == "strength" else c,
    )  # fmt: skip


class _Scores:
    """Look-up of single rows."""

    def __init__(self, *tables: pd.DataFrame) -> None:
        behaviour, losses, weights = tables
        self._rows = {(r.layer, r.head, r.metric, r.circuit, r.target): r for r in _rows(behaviour)}
        self.heads = sorted({key[:2] for key in self._rows})
        self._losses = {
            (r.layer, r.head, r.target): r for r in _rows(losses[losses["component"] == "head"])
        }
        self.trials = tuple(dict.fromkeys(key[2] for key in self._losses))
        reads = weights[weights["metric"] == "k_composition"]
        self._reads = {(r.layer, r.head, r.target): r for r in _rows(reads)}

    def __call__(self, place: tuple[int, int], metric: str, null: str, target: str) -> Any:
        return self._rows.get((*place, metric, null, target))

    def loss(self, place: tuple[int, int], trials: Sequence[str]) -> Any:
        """The largest rise among some trials; all if none is named."""
        names = [f"loss@{t}" for t in trials] or list(self.trials)
        known = [self._losses[(*place, name)] for name in names if (*place, name) in self._losses]
        return max(known, key=lambda row: row.score, default=None)

    def reads(self, place: tuple[int, int], writers: Sequence[str]) -> Any:
        """The strongest K-composition with one of the writers."""
        known = [self._reads[(*place, w)] for w in writers if (*place, w) in self._reads]
        return max(known, key=lambda row: row.effect, default=None)


def _rows(table: pd.DataFrame) -> Iterator[Any]:
    """Rows with their columns as attributes."""
    return iter(table.itertuples(index=False))


def _behaviours(scores: _Scores, layer: int, head: int, levels: Levels) -> Iterator[_Finding]:
    place = (layer, head)

    def mass(name: str, rows: str, nulls: Sequence[str] = ("positions",)) -> tuple[Any, ...] | None:
        tests = [scores(place, "attention_mass", null, f"{name}@{rows}") for null in nulls]
        passed = all(t is not None and t.effect >= levels.mass and t.q < levels.q for t in tests)
        return tuple(tests) if passed else None

    both = ("positions", "tokens")
    previous, first = mass("previous", "repeated"), mass("first", "repeated")
    kinds = (
        ("previous-token", previous, "the token before", ()),
        ("duplicate-token", mass("same", "shuffled", both), "earlier equal tokens", ()),
        ("induction", mass("after_same", "repeated", both),
         "the token after an earlier equal one", ("repeated",)),
        ("sink", first, "the first position", ()),
    )  # fmt: skip
    for role, tests, words, trials in kinds:
        if tests:
            said = f"gives {tests[0].score:.0%} of its attention to {words} "
            said += f"(null {max(t.null_mean for t in tests):.0%})"
            yield _Finding(role, tests, said, trials)
    copies = scores(place, "copying", "tokens", "@repeated")
    if copies is not None and abs(copies.effect) >= levels.copying and copies.q < levels.q:
        role = "copying" if copies.effect > 0 else "anti-copying"
        said = f"moves the logits of the tokens it attends to by {copies.effect:+.2f}"
        yield _Finding(role, (copies,), said)
    alike = scores(place, "positional", "positions", "@shuffled")
    fixed = alike is not None and alike.effect >= levels.positional and alike.q < levels.q
    if fixed and not previous and not first:
        said = f"attends alike on all rows (cosine {alike.score:.2f}, null {alike.null_mean:.2f})"
        yield _Finding("positional", (alike,), said)


def _decision(
    scores: _Scores, place: tuple[int, int], finding: _Finding, previous: Sequence[str],
    levels: Levels,
) -> dict[str, Any]:  # fmt: skip
    loss = scores.loss(place, finding.trials)
    tests, said = [*finding.tests, loss], [finding.words]
    cause = loss is not None and loss.score >= levels.loss and loss.q < levels.q
    said.append(f"without it the loss on {loss.target.partition('@')[2]} changes by "
                f"{loss.score:+.3f} nats")  # fmt: skip
    if finding.role == "induction":
        reads = scores.reads(place, previous)
        cause = cause and reads is not None and reads.q < levels.q and reads.effect > 0
        if reads is None:
            said.append("there is no previous-token head before it to read")
        else:
            tests.append(reads)
            said.append(f"K-composition with {reads.target} is {reads.score:.3f} "
                        f"(null {reads.null_mean:.3f})")  # fmt: skip
    return {
        "component": "head",
        "layer": place[0],
        "head": place[1],
        "group": "",
        "role": finding.role,
        "target": "" if finding.role != "induction" else ", ".join(previous),
        "status": "confirmed" if cause else "candidate",
        "strength": float(finding.tests[0].score),
        "p": max(float(test.p) for test in tests),
        "q": max(float(test.q) for test in tests),
        "effect": float(loss.score),
        "evidence": "; ".join(said),
    }
