"""From features to a program: outputs as short formulas, the simplest that decide as the model
does.

    sets         for each token a formula that says whether it may follow
    next token   a list of values, each with a condition, and one for all the rest: the last
    greatest
                 value below, or "<eos>", or the token itself plus one …

Programs of several sizes are made (formulas with up to 1, 2, … questions); a size is worth its
lines where it decides better on rows that were not fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.rasp import syntax
from interp.rasp.evaluation import evaluate
from interp.rasp.syntax import (
    Allow,
    Assignment,
    Boolean,
    Choice,
    Expression,
    Name,
    Next,
    Output,
    Program,
    children,
)
from probes.decompile.columns import columns, expressions
from probes.decompile.features import Feature, features, values_of
from probes.decompile.formulas import Questions, Tree, grow, negated
from probes.decompile.primitives import Primitive
from probes.decompile.rows import Rows

__all__ = ["Candidate", "candidates"]

_LEAVES, _VALUES = 7, 4
_DECISIONS = 4000
_CELLS = 64
_COVERED, _WORTH = 0.998, 0.002
_SLACK = 1.05


@dataclass(frozen=True)
class Candidate:
    """A program, and the heads whose primitives its lines come from.

    Attributes:
        program: It runs without the model.
        sources: Name of a line → index of the head that fetches it.
    """

    program: Program
    sources: dict[str, int]


def candidates(
    rows: Rows,
    decisions: NDArray[Any],
    fetched: Sequence[tuple[int, Primitive]],
    layers: int = 0,
    *,
    positions: bool = True,
) -> Iterator[Candidate]:
    """Programs of growing size.

    Args:
        rows: To fit.
        decisions: The model's at their asked positions, as
            :func:`probes.decompile.decisions.decided`.
        fetched: What heads do: (index of a head, primitive).
        layers, positions: As for :func:`probes.decompile.features.features`.
    """
    rows, decisions = _sampled(rows, decisions)
    known = features(rows, fetched, layers, positions=positions)
    values = values_of(known, rows)
    asked = Questions(columns(known, values, rows))
    seen: set[Program] = set()
    if rows.objective == "sets":
        grown = {
            v: grow(asked, decisions[:, v], _LEAVES)
            for v in np.flatnonzero(decisions.any(0)).tolist()
        }
        for most in range(1, _LEAVES + 1):
            chosen = {v: _worth(trees, most) for v, trees in grown.items()}
            texts = rows.vocabulary.texts
            allowed = tuple(Allow(texts[v], tree.formula) for v, tree in chosen.items())
            yield from _new(allowed, known, seen)
        return
    for outputs in _tabulated(known, values, rows, decisions):
        yield from _new(outputs, known, seen)
    offered = list(expressions(known, rows))
    fixed = [(value, of) for value, of in offered if of is None]
    lists = [_values(offered, known, rows, decisions)]
    if len(np.unique(decisions)) <= _VALUES:
        lists.append(_values(fixed, known, rows, decisions))
    for listed in lists:
        guards = [_guards(listed[:size], asked) for size in range(1, len(listed) + 1)]
        for most in range(1, _LEAVES + 1):
            for some in guards:
                yield from _new((Next(_listed(listed[0][0], some, most)),), known, seen)


def _tabulated(
    known: Sequence[Feature],
    values: Sequence[NDArray[np.int64]],
    rows: Rows,
    decisions: NDArray[Any],
) -> Iterator[tuple[Output, ...]]:
    """The answer as a table on the current token and all tokens that heads fetch, if they are
    few."""
    tokens = [(f, v) for f, v in zip(known, values, strict=True) if f.kind == "token"]
    names = rows.vocabulary.texts
    for count in range(2, len(tokens) + 1):
        some = tokens[:count]
        given = np.stack([v for _, v in some])
        if (given < 0).any():
            given = np.where(given < 0, len(names), given)
        cells, inverse = np.unique(given, axis=1, return_inverse=True)
        if cells.shape[1] > _CELLS:
            return
        chosen = [_most(decisions[inverse.reshape(-1) == k]) for k in range(cells.shape[1])]
        entries = tuple(
            (tuple([*names, "none"][code] for code in cell), syntax.Literal_(names[answer]))
            for cell, answer in zip(cells.T.tolist(), chosen, strict=True)
        )
        default = syntax.Literal_(names[_most(decisions)])
        entries = tuple(entry for entry in entries if entry[1] != default)
        if entries:
            yield (Next(syntax.Table(tuple(f.expression for f, _ in some), entries, default)),)


def _most(decisions: NDArray[Any]) -> int:
    found, times = np.unique(decisions, return_counts=True)
    return int(found[times.argmax()])


def _sampled(rows: Rows, decisions: NDArray[Any]) -> tuple[Rows, NDArray[Any]]:
    """As many of the rows as give enough decisions, the order mixed."""
    per_row = rows.asked.sum(1)
    order = np.random.default_rng(0).permutation(len(rows))
    kept = np.sort(order[: max(1, int((per_row[order].cumsum() <= _DECISIONS).sum()))])
    row_of = np.argwhere(rows.asked)[:, 0]
    return rows[kept], decisions[np.isin(row_of, kept)]


def _worth(trees: Sequence[Tree], most: int) -> Tree:
    """The smallest tree that is nearly as good as the best of at most so many leaves."""
    allowed = [tree for tree in trees if tree.leaves <= most]
    least = min(tree.wrong for tree in allowed)
    return next(tree for tree in allowed if tree.wrong <= _SLACK * least)


def _values(
    offered: Sequence[tuple[Expression, Feature | None]],
    known: Sequence[Feature],
    rows: Rows,
    decisions: NDArray[Any],
) -> list[tuple[Expression, NDArray[np.bool_]]]:
    """Values that together give every decision, the one that gives most first; each with where it
    is right."""
    lines = {line.name: line for feature in known for line in feature.lines}
    extra = [Assignment(f"offered{i}_", e) for i, (e, _) in enumerate(offered)]
    every = evaluate([*lines.values(), *extra], rows.tokens, rows.vocabulary)
    right = np.stack([every[line.name][rows.asked] == decisions for line in extra])
    cost = np.array(
        [1.0 if f is None else f.cost + isinstance(e, syntax.Arithmetic) for e, f in offered]
    )
    found: list[tuple[Expression, NDArray[np.bool_]]] = []
    covered = np.zeros(right.shape[1], dtype=bool)
    while len(found) < _VALUES and covered.mean() < _COVERED:
        gives = (right & ~covered).mean(1)
        best = gives.max()
        if best < _WORTH:
            break
        near = np.flatnonzero(gives >= best - 0.1 * _WORTH)
        pick = int(near[np.lexsort((-gives[near], cost[near]))[0]])
        found.append((offered[pick][0], right[pick]))
        covered |= right[pick]
    return found


def _guards(
    values: Sequence[tuple[Expression, NDArray[np.bool_]]], asked: Questions
) -> list[tuple[Expression, list[Tree]]]:
    """For all values but the first, the last one first: trees of growing size that say where the
    value is needed, of the decisions that those before leave open."""
    rest, ruled = values[0], list(reversed(values[1:]))
    open_ = np.ones(len(rest[1]), dtype=bool)
    found: list[tuple[Expression, list[Tree]]] = []
    for number, (value, right) in enumerate(ruled):
        later = [rest[1], *[r for _, r in ruled[number + 1 :]]]
        needed = right & ~np.logical_or.reduce(later)
        counted = np.flatnonzero(open_ & (needed | ~right))
        if not len(counted) or not needed[counted].any():
            continue
        found.append((value, grow(asked, needed, _LEAVES, among=counted)))
        open_ &= ~needed
    return found


def _listed(
    first: Expression, guards: Sequence[tuple[Expression, list[Tree]]], most: int
) -> Expression:
    """One value where a condition holds, another where the next does, …, the first for the rest."""
    found = first
    for value, trees in reversed(guards):
        guard = _worth(trees, most).formula
        if guard == Boolean(True):
            found = value
        elif guard != Boolean(False):
            if isinstance(found, Choice) and found.condition == negated(guard):
                found = found.then  # nothing is left for the rest
            found = Choice(value, guard, found)
    return found


def _new(
    outputs: tuple[Output, ...], known: Sequence[Feature], seen: set[Program]
) -> Iterator[Candidate]:
    """The program of some outputs with the lines that they need, if it is a new one."""
    if not outputs:
        return
    lines = {line.name: (line, feature.source) for feature in known for line in feature.lines}
    used = _needed(outputs, {name: line for name, (line, _) in lines.items()})
    program = Program(tuple(lines[name][0] for name in used), outputs)
    if program not in seen:
        seen.add(program)
        yield Candidate(program, {name: lines[name][1] for name in used})


def _needed(outputs: tuple[Output, ...], lines: dict[str, Assignment]) -> list[str]:
    """Names of the lines that outputs need, in an order in which they can be read."""
    found: list[str] = []

    def visit(expression: Expression) -> None:
        for part in children(expression, deep=True):
            if (
                isinstance(part, Name | syntax.Key)
                and part.name in lines
                and part.name not in found
            ):
                visit(lines[part.name].expression)
                if part.name not in found:
                    found.append(part.name)

    for output in outputs:
        visit(output.condition if isinstance(output, Allow) else output.value)
    return found
