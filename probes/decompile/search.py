"""From features to a program: outputs as short formulas, the simplest that decide as the model
does.

    sets         for each token a formula that says whether it may follow
    next token   a list of values, each with a condition, and one for all the rest: the last
    greatest
                 value below, or "<eos>", or the token itself plus one …

Programs of several sizes are made (formulas with up to 1, 2, … questions); a size is worth its
lines where it decides better on rows that were not fitted.

Short formulas that decide as a model does: small trees over columns, written as conditions.

A tree is grown leaf by leaf, each time where it mends most (Gini impurity, summed over decisions);
of columns that mend within two per cent as much the simplest is asked. Trees are then written as
formulas and shortened. Growing is greedy: a decision that no single question helps with (parity) is
not found.

No search is needed, and nothing fitted, where the program stands in the weights
(:mod:`interp.proofs.depth.decompiler`): in a model that averages, looks a fixed number of tokens
back and switches on comparisons of counts. Trained models do none of that exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.models.transformer import SequenceTransformer
from interp.program import syntax
from interp.program.evaluation import line_values
from interp.program.syntax import Assignment, Expression, Program, children
from interp.proofs.depth.decompiler.program import decompile_counting
from probes.decompile.features import Feature, Question, columns, expressions, features, values_of
from probes.decompile.primitives import Primitive
from probes.decompile.rows import TokenRows

_NEARLY = 0.98
_TWO = 3
"""Leaves of a tree that asks two questions."""
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}


@dataclass(frozen=True)
class FormulaTree:
    """A formula that was grown, and what it asks.

    Attributes:
        formula: The tree as a condition.
        columns: Asked by it.
        leaves: How many it has.
        wrong: Decisions that it takes otherwise than was wanted.
    """

    formula: Expression
    columns: tuple[Question, ...]
    leaves: int
    wrong: int

    @property
    def cost(self) -> float:
        """What its questions cost."""
        return float(sum(column.cost for column in self.columns))


class Questions:
    """Candidate splits of a decision tree, stacked in one array to be evaluated together.

    Args:
        columns: The candidates. Each has one integer value for each decision, to be compared with
            a threshold.
    """

    def __init__(self, columns: Sequence[Question]) -> None:
        self.columns = tuple(columns)
        values = np.stack([c.values for c in columns]) if columns else np.zeros((0, 0), np.int64)
        self.low = values.min(1) if values.size else np.zeros(len(columns), dtype=np.int64)
        self.values = values
        values = values - self.low[:, None]
        self._width = int(values.max()) + 1 if values.size else 1
        self._bins = values + self._width * np.arange(len(columns))[:, None]
        self.costs = np.array([c.cost for c in columns], dtype=np.float64)

    def best(
        self, mine: NDArray[np.bool_], where: NDArray[np.int64]
    ) -> tuple[float, Question, int] | None:
        """(what it mends, the column, its threshold) of the simplest of the best cuts of some
        decisions."""
        total, yes = len(mine), int(mine.sum())
        if yes in (0, total) or not self.columns or self._width == 1:
            return None
        bins = self._bins[:, where]
        shape = (len(self.columns), self._width)
        size, ones = (
            np.bincount(b.ravel(), minlength=shape[0] * shape[1]).reshape(shape)
            for b in (bins, bins[:, mine])
        )
        left, left_yes = size.cumsum(1)[:, :-1], ones.cumsum(1)[:, :-1]
        cut = _impurity(left, left_yes) + _impurity(total - left, yes - left_yes)
        base = _impurity(np.array([total]), np.array([yes]))[0]
        at = cut.argmin(1)
        mended = base - cut[np.arange(shape[0]), at]
        if mended.max() <= 1e-9:
            return None
        good = np.flatnonzero(mended >= _NEARLY * mended.max())
        pick = int(good[np.lexsort((-mended[good], self.costs[good]))[0]])
        return float(mended[pick]), self.columns[pick], int(self.low[pick] + at[pick])


@dataclass(eq=False)
class _Leaf:
    where: NDArray[np.int64]
    value: bool
    wrong: int
    split: tuple[float, Question, int] | None
    children: tuple[_Leaf, _Leaf] | None = None


def grow(
    asked: Questions,
    wanted: NDArray[np.bool_],
    most: int,
    *,
    among: NDArray[np.int64] | None = None,
) -> list[FormulaTree]:
    """Trees of one leaf, two, … ``most``, as long as another mends anything.

    Args:
        asked: What may be asked.
        wanted: What is to be decided.
        most: Leaves, at most.
        among: Decisions that count; all by default.
    """
    root = _leaf(asked, wanted, np.arange(len(wanted)) if among is None else among)
    leaves, found = [root], [_tree(root, [root])]
    while len(leaves) < most:
        ready = [leaf for leaf in leaves if leaf.split is not None]
        if not ready:
            break
        best = max(ready, key=lambda leaf: leaf.split[0] if leaf.split else 0.0)
        leaves.remove(best)
        leaves += _cut(best, asked, wanted)
        found.append(_tree(root, leaves))
    two = _both(asked, wanted, root.where)
    grown = next((tree for tree in found if tree.leaves == _TWO), None)
    if two is None or grown is None or (not grown.wrong and grown.cost <= two.cost):
        return found
    return [two if tree is grown else tree for tree in found]


def _both(
    asked: Questions, wanted: NDArray[np.bool_], among: NDArray[np.int64]
) -> FormulaTree | None:
    """The simplest two questions that together are right on every decision: growing may begin with
    another that alone mends more."""
    inside, outside = among[wanted[among]], among[~wanted[among]]
    if not len(inside) or not len(outside) or not asked.columns:
        return None
    values = asked.values
    ends = np.concatenate([values[:, inside].min(1), values[:, inside].max(1)])
    above = np.arange(len(ends)) < len(values)
    other = np.tile(values[:, outside], (2, 1))
    lets = np.where(above[:, None], other >= ends[:, None], other <= ends[:, None])
    number = np.tile([column.number for column in asked.columns], 2)
    costs = np.tile(asked.costs, 2) + number * np.log2(1 + np.abs(ends)) / 2 + lets.mean(1)
    good = np.flatnonzero(lets.mean(1) <= 0.5)  # of two that leave nothing, one leaves at most half
    first, second = np.nonzero(lets[good].astype(np.float32) @ lets.T.astype(np.float32) == 0)
    if not len(first):
        return None
    pick = int((costs[good[first]] + costs[second]).argmin())
    asks, formulas = [], []
    for at in sorted((int(good[first[pick]]), int(second[pick])), key=lambda at: costs[at]):
        column, end = asked.columns[at % len(values)], int(ends[at])
        asks.append(column)
        if not column.number:
            formulas.append(column.expression if above[at] else negation(column.expression))
        else:
            formulas.append(
                negation(_at_most(column, end - 1)) if above[at] else _at_most(column, end)
            )
    return FormulaTree(syntax.And(*formulas), tuple(asks), _TWO, 0)


def _leaf(asked: Questions, wanted: NDArray[np.bool_], where: NDArray[np.int64]) -> _Leaf:
    mine = wanted[where]
    value = bool(mine.mean() >= 0.5) if len(mine) else False
    wrong = int((mine != value).sum())
    return _Leaf(where, value, wrong, asked.best(mine, where))


def _impurity(size: NDArray[Any], yes: NDArray[Any]) -> NDArray[np.float64]:
    size = np.maximum(size, 1e-12)
    return np.asarray(2 * yes * (size - yes) / size)


def _cut(leaf: _Leaf, asked: Questions, wanted: NDArray[np.bool_]) -> tuple[_Leaf, _Leaf]:
    if leaf.split is None:
        raise ValueError("a leaf without a cut cannot be cut")
    _, column, threshold = leaf.split
    low = column.values[leaf.where] <= threshold
    leaf.children = (
        _leaf(asked, wanted, leaf.where[low]),
        _leaf(asked, wanted, leaf.where[~low]),
    )
    return leaf.children


def _tree(root: _Leaf, leaves: Sequence[_Leaf]) -> FormulaTree:
    asked: list[Question] = []
    formula = _expression(root, asked)
    return FormulaTree(formula, tuple(asked), len(leaves), sum(leaf.wrong for leaf in leaves))


def _expression(leaf: _Leaf, asked: list[Question]) -> Expression:
    if leaf.children is None or leaf.split is None:
        return syntax.Truth(leaf.value)
    _, column, threshold = leaf.split
    mine: list[Question] = []
    low, high = (_expression(child, mine) for child in leaf.children)
    if low == high:
        asked += mine if not isinstance(low, syntax.Truth) else []
        return low
    asked += [column, *mine]
    if column.number:
        return conditional(_at_most(column, threshold), low, high)
    return conditional(column.expression, high, low)


def _at_most(column: Question, threshold: int) -> Expression:
    """That a number is at most so much; that it is its bound, where the bound is next."""
    if column.least == threshold:
        return syntax.Comparison("==", column.expression, syntax.Constant(threshold))
    if column.most is not None and column.most - 1 == threshold:
        return syntax.Comparison("!=", column.expression, syntax.Constant(column.most))
    return syntax.Comparison("<=", column.expression, syntax.Constant(threshold))


def conditional(condition: Expression, then: Expression, other: Expression) -> Expression:
    """``then`` where the condition holds and ``other`` elsewhere, as short as it goes."""
    match then, other:
        case syntax.Truth(True), syntax.Truth(False):
            return condition
        case syntax.Truth(False), syntax.Truth(True):
            return negation(condition)
        case syntax.Truth(True), _:
            return syntax.Or(condition, other)
        case syntax.Truth(False), _:
            return syntax.And(negation(condition), other)
        case _, syntax.Truth(False):
            return syntax.And(condition, then)
        case _, syntax.Truth(True):
            return syntax.Or(negation(condition), then)
    return syntax.Or(syntax.And(condition, then), syntax.And(negation(condition), other))


def negation(condition: Expression) -> Expression:
    """The opposite of a condition."""
    if isinstance(condition, syntax.Comparison) and condition.relation in ("==", "!="):
        return syntax.Comparison(_OPPOSITE[condition.relation], condition.left, condition.right)  # type: ignore[arg-type]
    if isinstance(condition, syntax.Comparison) and isinstance(condition.right, syntax.Constant):
        if condition.relation == "<=":
            return syntax.Comparison(
                ">=", condition.left, syntax.Constant(condition.right.value + 1)
            )
        return syntax.Comparison(_OPPOSITE[condition.relation], condition.left, condition.right)  # type: ignore[arg-type]
    return syntax.Not(condition)


_LEAVES, _VALUES = 7, 4
_DECISIONS = 4000
_CELLS = 64
_COVERED, _WORTH = 0.998, 0.002
_SLACK = 1.05


@dataclass(frozen=True)
class Candidate:
    """A program, and the heads whose primitives its lines come from.

    Attributes:
        program: The candidate program, which runs without the model.
        sources: Name of a line → index of the head that fetches it.
    """

    program: Program
    sources: dict[str, int]


def candidates(
    rows: TokenRows,
    decisions: NDArray[Any],
    fetched: Sequence[tuple[int, Primitive]],
    layers: int = 0,
    *,
    positions: bool = True,
) -> Iterator[Candidate]:
    """Programs of growing size.

    Args:
        rows: The rows that candidates are fitted to.
        decisions: The model's at their asked positions, as
            :func:`probes.decompile.decisions.output_decisions`.
        fetched: What heads do: (index of a head, primitive).
        layers, positions: Handed to :func:`probes.decompile.features.features`.
    """
    rows, decisions = _sample(rows, decisions)
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
            allowed = tuple(syntax.Allow(texts[v], tree.formula) for v, tree in chosen.items())
            yield from _new(allowed, known, seen)
        return
    for outputs in _answer_tables(known, values, rows, decisions):
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
                yield from _new(
                    (syntax.Next(_choice_chain(listed[0][0], some, most)),), known, seen
                )


def _answer_tables(
    known: Sequence[Feature],
    values: Sequence[NDArray[np.int64]],
    rows: TokenRows,
    decisions: NDArray[Any],
) -> Iterator[tuple[syntax.Output, ...]]:
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
            yield (
                syntax.Next(syntax.Table(tuple(f.expression for f, _ in some), entries, default)),
            )


def _most(decisions: NDArray[Any]) -> int:
    found, times = np.unique(decisions, return_counts=True)
    return int(found[times.argmax()])


def _sample(rows: TokenRows, decisions: NDArray[Any]) -> tuple[TokenRows, NDArray[Any]]:
    """Rows in mixed order, as many as give enough decisions."""
    per_row = rows.asked.sum(1)
    order = np.random.default_rng(0).permutation(len(rows))
    kept = np.sort(order[: max(1, int((per_row[order].cumsum() <= _DECISIONS).sum()))])
    row_of = np.argwhere(rows.asked)[:, 0]
    return rows[kept], decisions[np.isin(row_of, kept)]


def _worth(trees: Sequence[FormulaTree], most: int) -> FormulaTree:
    """The smallest tree that is nearly as good as the best of at most so many leaves."""
    allowed = [tree for tree in trees if tree.leaves <= most]
    least = min(tree.wrong for tree in allowed)
    return next(tree for tree in allowed if tree.wrong <= _SLACK * least)


def _values(
    offered: Sequence[tuple[Expression, Feature | None]],
    known: Sequence[Feature],
    rows: TokenRows,
    decisions: NDArray[Any],
) -> list[tuple[Expression, NDArray[np.bool_]]]:
    """Values that together give every decision, the one that gives most first; each with where it
    is right."""
    lines = {line.name: line for feature in known for line in feature.lines}
    extra = [Assignment(f"offered{i}_", e) for i, (e, _) in enumerate(offered)]
    every = line_values([*lines.values(), *extra], rows.tokens, rows.vocabulary)
    right = np.stack([every[line.name][rows.asked] == decisions for line in extra])
    cost = np.array(
        [1.0 if f is None else f.cost + isinstance(e, syntax.Operation) for e, f in offered]
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
) -> list[tuple[Expression, list[FormulaTree]]]:
    """For all values but the first, the last one first: trees of growing size that say where the
    value is needed, of the decisions that those before leave open."""
    rest, ruled = values[0], list(reversed(values[1:]))
    open_ = np.ones(len(rest[1]), dtype=bool)
    found: list[tuple[Expression, list[FormulaTree]]] = []
    for number, (value, right) in enumerate(ruled):
        later = [rest[1], *[r for _, r in ruled[number + 1 :]]]
        needed = right & ~np.logical_or.reduce(later)
        counted = np.flatnonzero(open_ & (needed | ~right))
        if not len(counted) or not needed[counted].any():
            continue
        found.append((value, grow(asked, needed, _LEAVES, among=counted)))
        open_ &= ~needed
    return found


def _choice_chain(
    first: Expression, guards: Sequence[tuple[Expression, list[FormulaTree]]], most: int
) -> Expression:
    """One value where a condition holds, another where the next does, …, the first for the rest."""
    found = first
    for value, trees in reversed(guards):
        guard = _worth(trees, most).formula
        if guard == syntax.Truth(True):
            found = value
        elif guard != syntax.Truth(False):
            if isinstance(found, syntax.Choice) and found.condition == negation(guard):
                found = found.then  # nothing is left for the rest
            found = syntax.Choice(value, guard, found)
    return found


def _new(
    outputs: tuple[syntax.Output, ...], known: Sequence[Feature], seen: set[Program]
) -> Iterator[Candidate]:
    """The program of some outputs with the lines that they need, if it is a new one."""
    if not outputs:
        return
    lines = {line.name: (line, feature.source) for feature in known for line in feature.lines}
    used = _needed_lines(outputs, {name: line for name, (line, _) in lines.items()})
    program = Program(tuple(lines[name][0] for name in used), outputs)
    if program not in seen:
        seen.add(program)
        yield Candidate(program, {name: lines[name][1] for name in used})


def _needed_lines(outputs: tuple[syntax.Output, ...], lines: dict[str, Assignment]) -> list[str]:
    """Names of the lines that outputs need, in an order in which they can be read."""
    found: list[str] = []

    def visit(expression: Expression) -> None:
        for part in children(expression, deep=True):
            if (
                isinstance(part, syntax.Name | syntax.Key)
                and part.name in lines
                and part.name not in found
            ):
                visit(lines[part.name].expression)
                if part.name not in found:
                    found.append(part.name)

    for output in outputs:
        visit(syntax.value_of(output))
    return found


def program_of_counts(model: Any, rows: TokenRows, seed: int) -> Program | None:
    """The program that stands in a model's weights.

    Args:
        model: Any; of other classes than ours there is none.
        rows: Codes are the model's ids, of which 0 begins every row and stands nowhere else.
        seed: Seed of the strings that the model is asked about.
    """
    ours = isinstance(model, SequenceTransformer) and rows.encode is None
    if not ours or rows.answers is None or len(rows.answers) != 2:
        return None
    starts = (rows.tokens == 0).sum(1) == 1
    if not (starts.all() and (rows.tokens[:, 0] == 0).all()):
        return None
    texts = rows.vocabulary.texts
    if model.spec.d_in > len(texts):
        return None
    used = set(np.unique(rows.tokens).tolist())
    words = [texts[code] if code in used else None for code in range(1, model.spec.d_in)]
    found = decompile_counting(model, words, seed=seed)
    if found.program is None or found.agreement < 1.0:
        return None
    no, yes = (texts[code] for code in rows.answers)
    return found.program.deciding(yes, no)
