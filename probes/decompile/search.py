"""From features to a program: outputs as short formulas, the simplest that decide as the model
does.

    sets         for each token a formula that says whether it may follow
    next token   a list of values, each with a condition, and one for all other cases: the last
                 greatest value below, or "<eos>", or the token itself plus one …

Programs of several sizes are made (formulas with up to 1, 2, … questions); a larger program must
decide better on rows that were not fitted.

Formulas are small decision trees over questions, written as conditions.

A tree is grown leaf by leaf, each time at the leaf and with the question that lowers the Gini
impurity, summed over decisions, most; of questions within two per cent of the best the simplest is
chosen. Trees are then written as formulas and shortened. Growing is greedy: a decision that no
single question helps with (parity) is not found.

For a model that averages, looks a fixed number of tokens back and switches on comparisons of
counts, the program is read off the weights, without search or fitting
(:mod:`interp.proofs.depth.decompiler`). Trained models do none of that exactly.
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
"""Number of leaves of a decision tree that asks two questions."""
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}


@dataclass(frozen=True)
class FormulaTree:
    """A decision tree, written as a formula.

    Attributes:
        formula: The tree as a condition.
        columns: The questions in the formula.
        leaves: The number of its leaves.
        wrong: The number of decisions in which it differs from the wanted ones.
    """

    formula: Expression
    columns: tuple[Question, ...]
    leaves: int
    wrong: int

    @property
    def cost(self) -> float:
        """The summed cost of its questions."""
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
        """Find the best question for splitting some decisions in two.

        Args:
            mine: The wanted truths of these decisions.
            where: The indices of these decisions.

        Returns:
            The decrease of the Gini impurity, the question and its threshold; of questions within
            two per cent of the best the simplest. None if no question helps.
        """
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
    """Grow decision trees of 1, 2, … ``most`` leaves, as long as another leaf helps.

    Args:
        asked: The questions that may be asked.
        wanted: The truth to be decided, for every decision.
        most: The largest number of leaves.
        among: The indices of the decisions that count; all by default.

    Returns:
        One tree for each number of leaves.
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
    """Return the simplest conjunction of two questions that is right on every decision; None if
    there is none.

    Greedy growing can miss it, if another question alone helps more.
    """
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
    """Return the condition that a number is at most a threshold, or equal to or different from its
    bound if that is the same."""
    if column.least == threshold:
        return syntax.Comparison("==", column.expression, syntax.Constant(threshold))
    if column.most is not None and column.most - 1 == threshold:
        return syntax.Comparison("!=", column.expression, syntax.Constant(column.most))
    return syntax.Comparison("<=", column.expression, syntax.Constant(threshold))


def conditional(condition: Expression, then: Expression, other: Expression) -> Expression:
    """Return the shortest formula for ``then`` where a condition holds and ``other`` elsewhere."""
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
    """Return the negation of a condition."""
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
    """Fit programs of growing size to a model's decisions.

    Args:
        rows: The rows that programs are fitted to.
        decisions: The model's decisions at their asked positions, from
            :func:`probes.decompile.decisions.output_decisions`.
        fetched: What heads do: (index of a head, primitive).
        layers, positions: As for :func:`probes.decompile.features.features`.

    Yields:
        Different programs, smaller ones first.
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
    """Yield outputs that are a table on the current token and tokens that heads fetch, as long as
    the tables are small."""
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
    """Return rows in their order, drawn at random so that they have at most 4000 decisions, and
    these decisions."""
    per_row = rows.asked.sum(1)
    order = np.random.default_rng(0).permutation(len(rows))
    kept = np.sort(order[: max(1, int((per_row[order].cumsum() <= _DECISIONS).sum()))])
    row_of = np.argwhere(rows.asked)[:, 0]
    return rows[kept], decisions[np.isin(row_of, kept)]


def _worth(trees: Sequence[FormulaTree], most: int) -> FormulaTree:
    """Return the smallest tree with at most ``most`` leaves that is nearly as good as the best of
    these."""
    allowed = [tree for tree in trees if tree.leaves <= most]
    least = min(tree.wrong for tree in allowed)
    return next(tree for tree in allowed if tree.wrong <= _SLACK * least)


def _values(
    offered: Sequence[tuple[Expression, Feature | None]],
    known: Sequence[Feature],
    rows: TokenRows,
    decisions: NDArray[Any],
) -> list[tuple[Expression, NDArray[np.bool_]]]:
    """Return values that together give nearly every decision, the most frequent first; each with
    the decisions at which it is right."""
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
    """Return, for all values but the first and beginning with the last, trees that say where the
    value is needed among the decisions that are still open."""
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
    """Return one value where a condition holds, another where the next one does, and so on;
    ``first`` for all other cases."""
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
    """Yield the program of some outputs, with the lines that they need, if it has not been made
    before."""
    if not outputs:
        return
    lines = {line.name: (line, feature.source) for feature in known for line in feature.lines}
    used = _needed_lines(outputs, {name: line for name, (line, _) in lines.items()})
    program = Program(tuple(lines[name][0] for name in used), outputs)
    if program not in seen:
        seen.add(program)
        yield Candidate(program, {name: lines[name][1] for name in used})


def _needed_lines(outputs: tuple[syntax.Output, ...], lines: dict[str, Assignment]) -> list[str]:
    """Return the names of the lines that outputs need, each after the lines that it needs
    itself."""
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
    """Read a program off a model's weights.

    Args:
        model: The model; only a SequenceTransformer has such a program.
        rows: Rows whose codes are the model's token ids, of which 0 begins every row and occurs
            nowhere else.
        seed: Seed of the strings on which program and model are compared.

    Returns:
        The program; None if there is none that agrees with the model on all these strings, or the
        rows do not have two answers.
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
