"""A machine's answer as lines of C-RASP.

    n1 = # "b"
    n2 = # ("a" && n1 >= 1)
    answer = "b" && n2 >= 1

A line a number, each after those it needs; what is counted and what is answered are covers of cubes
(:mod:`probes.decompile.counting_covers`). Names mean nothing, ``n`` for numbers and ``p`` for what
stands a fixed number of tokens back; everything else was read off the weights.

A whole number for each row as a sum of few weighted conditions.

    weight = c_1 [φ_1] + c_2 [φ_2] + …

The conditions of one weight each, [weight = 2], [weight = −1] …, always do, but #φ − #ψ then comes
out as #(φ ∧ ¬ψ) − #(ψ ∧ ¬φ). So conditions on a single variable are taken out first, greedily, as
long as the whole reads shorter. Short, not shortest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from jaxtyping import Bool, Int

from interp.program import syntax
from interp.program.predicates import Predicate, built_in
from interp.program.syntax import Assignment, Expression, Program, Term, children
from probes.decompile.counting_covers import Cover, cover, support
from probes.decompile.counting_machine import Machine, Scene, Variable
from probes.decompile.counting_tables import Number

_TERM = 2
_MOST_ROWS = 600
_TRIES = 5
Parts = list[tuple[int, Cover]]


def weighted_sum(
    rows: Int[np.ndarray, "row variable"], weights: Int[np.ndarray, " row"], sizes: Sequence[int]
) -> Parts:
    """Weights and conditions, positive weights first.

    Args:
        rows: Values of the variables, from 0.
        weights: The number of each row.
        sizes: How many values each variable has.
    """
    kept = support(rows, weights)
    small, index = np.unique(rows[:, kept], axis=0, return_index=True)
    few, left = [sizes[variable] for variable in kept], weights[index]
    taken: Parts = []
    best = _by_weight(small, left, few)
    near = _neighbours(small)
    while len(small) <= _MOST_ROWS and len(set(left.tolist()) - {0}) > 1:
        tries = [(w, held) for held in _conditions(small, few) for w in _steps(left)]
        tries.sort(key=lambda one: _changes(left - one[0] * one[1], near))
        options = []
        for weight, held in tries[:_TRIES]:
            condition = (weight, cover(small, held, few))
            rest = _by_weight(small, left - weight * held, few)
            options.append((_cost([condition, *rest]), condition, weight * held, rest))
        price, condition, part, rest = min(options, key=lambda option: option[0])
        if price >= _cost(best):
            break
        taken.append(condition)
        left, best = left - part, rest
    parts = [(weight, _wide(found, kept, len(sizes))) for weight, found in [*taken, *best]]
    return sorted(parts, key=lambda part: -part[0])


def _neighbours(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows that differ in one variable, and there by as little as any."""
    nobody = np.zeros(0, dtype=np.int64)
    first, second = [nobody], [nobody]
    for variable in range(rows.shape[1]):
        others = [v for v in range(rows.shape[1]) if v != variable]
        order = np.lexsort([rows[:, variable], *(rows[:, v] for v in others)])
        same = (rows[order][1:, others] == rows[order][:-1, others]).all(axis=1)
        first.append(order[:-1][same])
        second.append(order[1:][same])
    return np.concatenate(first), np.concatenate(second)


def _changes(weights: np.ndarray, near: tuple[np.ndarray, np.ndarray]) -> tuple[int, int]:
    changes = int((weights[near[0]] != weights[near[1]]).sum())
    return changes + 2 * len(set(weights.tolist()) - {0}), int(np.abs(weights).sum())


def _by_weight(rows: np.ndarray, weights: np.ndarray, sizes: Sequence[int]) -> Parts:
    values = sorted(set(weights.tolist()) - {0}, reverse=True)
    return [(value, cover(rows, weights == value, sizes)) for value in values]


def _cost(parts: Parts) -> int:
    return sum(found.cost + _TERM + (abs(weight) != 1) for weight, found in parts)


def _steps(weights: np.ndarray) -> list[int]:
    """Weights that may be taken out: differences of those there are."""
    values = sorted(set(weights.tolist()))
    return sorted({a - b for a in values for b in values} - {0}, key=lambda w: (abs(w), -w))[:8]


def _conditions(rows: np.ndarray, sizes: Sequence[int]) -> Iterator[Bool[np.ndarray, " row"]]:
    """Everything, each value of each variable, and each beginning of its values."""
    yield np.ones(len(rows), dtype=bool)
    for variable, size in enumerate(sizes):
        column = rows[:, variable]
        for value in range(size):
            yield column == value
            if 0 < value < size - 1:
                yield column > value
        for period in range(2, size // 2 + 1):
            if size % period == 0:
                for rest in range(period):
                    yield column % period == rest


def _wide(found: Cover, kept: Sequence[int], variables: int) -> Cover:
    cubes = []
    for cube in found.cubes:
        known = dict(zip(kept, cube, strict=True))
        cubes.append(tuple(known.get(variable) for variable in range(variables)))
    return Cover(tuple(cubes), found.negated)


_SIMPLE = 3
"""What a head of a fixed lag looks for stands where it is asked if it has no more parts."""


@dataclass(frozen=True)
class Written:
    """A program and where its numbers come from.

    Attributes:
        program: The program, whose last line is ``answer``.
        numbers: Line → the variables that are read from it.
    """

    program: Program
    numbers: dict[str, tuple[Variable, ...]]


@dataclass
class _Writer:
    machine: Machine
    words: Sequence[str | None]
    lines: list[Assignment] = field(default_factory=list)
    names: dict[tuple[int, tuple[int, ...]], Term] = field(default_factory=dict)
    sources: dict[str, list[Variable]] = field(default_factory=dict)

    def formula(self, scene: Scene, wanted: Bool[np.ndarray, " row"]) -> Expression:
        """What holds in the wanted rows and in no other."""
        rows, variables = _by_depth(scene)
        return self.covered(cover(rows, wanted, [v.size for v in variables]), variables)

    def covered(self, found: Cover, variables: Sequence[Variable]) -> Expression:
        """A cover as a formula: any of its cubes, or, negated, none of them."""
        parts = []
        for cube in found.cubes:
            named = [(v, allowed) for v, allowed in zip(variables, cube, strict=True) if allowed]
            if found.negated:
                other = [(v, frozenset(range(v.size)) - allowed) for v, allowed in named]
                parts.append(_any_of(self.literal(v, allowed) for v, allowed in other))
            else:
                parts.append(_all_of(self.literal(v, allowed) for v, allowed in named))
        return _all_of(parts) if found.negated else _any_of(parts)

    def literal(self, variable: Variable, allowed: frozenset[int]) -> Expression:
        """One variable has one of some values."""
        if variable.kind == "token":
            return self.token(allowed)
        if variable.kind == "position":
            return _position(variable.size, allowed)
        if variable.kind == "lag":
            return self.lagged(variable, allowed)
        if variable.number is None:
            raise TypeError("a number without weights")
        return self.compared(variable, variable.number, allowed)

    def token(self, allowed: frozenset[int]) -> Expression:
        """The token is one of some; tokens that the program cannot name are what is left."""
        nameless = {i for i, word in enumerate(self.words) if word is None}
        turned = bool(nameless & allowed)
        named = set(range(len(self.words))) - nameless
        chosen = sorted(named - allowed if turned else named & allowed)
        found = _any_of([syntax.Symbol(self.words[i] or "") for i in chosen])
        return _negated(found) if turned else found

    def lagged(self, variable: Variable, allowed: frozenset[int]) -> Expression:
        """What stands a fixed number of tokens back is one of some classes; BOS is in one too."""
        scene = self.machine.scenes[variable.layer]
        outside = variable.seen[-1] in allowed
        asked = set(range(variable.size)) - allowed if outside else allowed
        seen = np.array(variable.seen)[scene.states]
        guard = "pred" if variable.lag == 1 else f"pred{variable.lag}"
        found: Term = syntax.Count(self.formula(scene, np.isin(seen, sorted(asked))), guard)
        if sum(1 for _ in children(found, deep=True)) > _SIMPLE:
            found = self.named(found, "p")
        return syntax.Comparison(
            "==" if outside else ">=", found, syntax.Constant(0 if outside else 1)
        )

    def named(self, term: Term, letter: str) -> Term:
        """The name of a line that holds the term."""
        same = [line.name for line in self.lines if line.expression == term]
        if not same:
            number = sum(line.name.startswith(letter) for line in self.lines)
            same = [f"{letter}{number + 1}"]
            self.lines.append(Assignment(same[0], term))
        return syntax.TermName(same[0])

    def compared(self, variable: Variable, number: Number, allowed: frozenset[int]) -> Expression:
        """A number lies in one of some intervals."""
        term = self.number(variable, number)
        natural = min(number.weights) >= 0
        last = len(number.thresholds)
        missing = sorted(set(range(last + 1)) - allowed)
        single = len(missing) == 1 and 0 < missing[0] < last
        if single and number.thresholds[missing[0]] == number.thresholds[missing[0] - 1] + 1:
            return syntax.Comparison("!=", term, syntax.Constant(number.thresholds[missing[0] - 1]))
        runs = _runs(sorted(allowed))
        return _any_of([_between(term, number.thresholds, *run, natural) for run in runs])

    def number(self, variable: Variable, number: Number) -> Term:
        """The name of a line that holds the number."""
        key = (variable.layer, number.weights)
        if key not in self.names:
            scene, weights = self.machine.scenes[variable.layer], np.array(number.weights)
            self.names[key] = self.named(self.weighted(scene, weights[scene.classes]), "n")
        known = self.names[key]
        if isinstance(known, syntax.TermName):
            held = self.sources.setdefault(known.name, [])
            if variable not in held:
                held.append(variable)
        return known

    def weighted(self, scene: Scene, weights: Int[np.ndarray, " row"]) -> Term:
        """Σ over the weights that occur of weight · how many positions have it."""
        rows, variables = _by_depth(scene)
        parts = weighted_sum(rows, weights, [v.size for v in variables])
        return _summed([(w, syntax.Count(self.covered(found, variables))) for w, found in parts])


def write_program(machine: Machine, words: Sequence[str | None]) -> Written:
    """The answer of a machine.

    Args:
        machine: See :mod:`probes.decompile.counting_machine`.
        words: What each id but BOS stands for; None for tokens that a program cannot name.

    Raises:
        ValueError: if the machine has no end.
    """
    if machine.end is None:
        raise ValueError("the machine has no end")
    writer = _Writer(machine, words)
    answer = writer.formula(machine.end, machine.answer)
    lines = [*writer.lines, Assignment("answer", answer)]
    sources = {name: tuple(held) for name, held in writer.sources.items()}
    return Written(Program(tuple(lines), imports=_imports(lines)), sources)


def _by_depth(scene: Scene) -> tuple[Int[np.ndarray, "row variable"], list[Variable]]:
    """The scene's rows, variables that need few layers first."""
    order = sorted(range(len(scene.variables)), key=lambda v: scene.variables[v].depth)
    return scene.rows[:, order], [scene.variables[v] for v in order]


def _imports(lines: Sequence[Assignment]) -> tuple[Predicate, ...]:
    names: list[str] = []
    for line in lines:
        for part in children(line.expression, deep=True):
            names += _predicates(part)
    found = [built_in(name) for name in dict.fromkeys(names)]
    return tuple(predicate for predicate in found if predicate is not None)


def _predicates(part: Expression) -> list[str]:
    if isinstance(part, syntax.Holds):
        return [part.predicate]
    return [part.guard] if isinstance(part, syntax.Count) and part.guard else []


def _summed(parts: Sequence[tuple[int, Term]]) -> Term:
    """Positive ones first; a sum of none is 0."""
    total: Term | None = None
    for weight, term in parts:
        size = (
            term if abs(weight) == 1 else syntax.Arithmetic("*", syntax.Constant(abs(weight)), term)
        )
        if total is None:
            total = size if weight > 0 else syntax.Arithmetic("*", syntax.Constant(weight), term)
        else:
            total = syntax.Arithmetic("+" if weight > 0 else "-", total, size)
    return syntax.Constant(0) if total is None else total


def _between(
    term: Term, thresholds: Sequence[int], first: int, last: int, natural: bool
) -> Expression:
    """The term lies in intervals ``first`` to ``last``."""
    low = thresholds[first - 1] if first > 0 else None
    high = thresholds[last] if last < len(thresholds) else None
    if low is None and high == 1 and natural:
        return syntax.Comparison("==", term, syntax.Constant(0))
    if low is not None and high == low + 1:
        return syntax.Comparison("==", term, syntax.Constant(low))
    found = []
    if low is not None:
        found.append(_compare(">=", term, low))
    if high is not None:
        found.append(_compare("<", term, high))
    return _all_of(found)


def _compare(relation: syntax.Relation, term: Term, value: int) -> Expression:
    """Against 0 rather than against 1."""
    if value == 1:
        return syntax.Comparison(">" if relation == ">=" else "<=", term, syntax.Constant(0))
    return syntax.Comparison(relation, term, syntax.Constant(value))


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of neighbouring numbers."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and runs[-1][1] == value - 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def _position(period: int, allowed: frozenset[int]) -> Expression:
    """The position's residue is one of some, by the smallest period that tells."""
    for divisor in range(2, period + 1):
        if period % divisor:
            continue
        residues = {value % divisor for value in allowed}
        if {v for v in range(period) if v % divisor in residues} == allowed:
            few = sorted(residues)
            turned = len(few) > divisor / 2
            if turned:
                few = sorted(set(range(divisor)) - residues)
            found = _any_of([syntax.Holds(_residue(divisor, value)) for value in few])
            return _negated(found) if turned else found
    return syntax.Truth(bool(allowed))


def _residue(period: int, value: int) -> str:
    if period == 2 and value == 0:
        return "pos_even"
    return f"pos_mod{period}" if value == 0 else f"pos_mod{period}_{value}"


def _negated(formula: Expression) -> Expression:
    match formula:
        case syntax.Truth(value):
            return syntax.Truth(not value)
        case syntax.Not(of):
            return of
    return syntax.Not(formula)


def _all_of(formulas: Iterable[Expression]) -> Expression:
    found = list(formulas)
    return reduce(syntax.And, found) if found else syntax.Truth(True)


def _any_of(formulas: Iterable[Expression]) -> Expression:
    found = list(formulas)
    if syntax.Truth(True) in found:
        return syntax.Truth(True)
    return reduce(syntax.Or, found) if found else syntax.Truth(False)
