"""A machine's answer as lines of C-RASP.

    n1 = # "b"
    n2 = # ("a" && n1 >= 1)
    answer = "b" && n2 >= 1

A line a number, each after those it needs; what is counted and what is answered are covers of cubes
(:mod:`probes.decompile.counting_covers`). Names mean nothing, ``n`` for numbers and ``p`` for what
stands a fixed number of tokens back; everything else was read off the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from jaxtyping import Bool, Int

from interp.crasp.predicates import Predicate, built_in
from interp.crasp.syntax import (
    And,
    Assignment,
    Comparison,
    Constant,
    Count,
    Difference,
    Expression,
    Formula,
    Holds,
    Multiple,
    Not,
    Or,
    Program,
    Relation,
    Sum,
    Symbol,
    Term,
    TermName,
    Truth,
    children,
)
from probes.decompile.counting_covers import Cover, cover
from probes.decompile.counting_machine import Machine, Scene, Variable
from probes.decompile.counting_sums import weighted_sum
from probes.decompile.counting_tables import Number

__all__ = ["Written", "write_program"]


_SIMPLE = 3
"""What a head of a fixed lag looks for stands where it is asked if it has no more parts."""


@dataclass(frozen=True)
class Written:
    """A program and where its numbers come from.

    Attributes:
        program: Its last line is ``answer``.
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

    def formula(self, scene: Scene, wanted: Bool[np.ndarray, " row"]) -> Formula:
        """What holds in the wanted rows and in no other."""
        rows, variables = _by_depth(scene)
        return self.covered(cover(rows, wanted, [v.size for v in variables]), variables)

    def covered(self, found: Cover, variables: Sequence[Variable]) -> Formula:
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

    def literal(self, variable: Variable, allowed: frozenset[int]) -> Formula:
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

    def token(self, allowed: frozenset[int]) -> Formula:
        """The token is one of some; tokens that the program cannot name are what is left."""
        nameless = {i for i, word in enumerate(self.words) if word is None}
        turned = bool(nameless & allowed)
        named = set(range(len(self.words))) - nameless
        chosen = sorted(named - allowed if turned else named & allowed)
        found = _any_of([Symbol(self.words[i] or "") for i in chosen])
        return _negated(found) if turned else found

    def lagged(self, variable: Variable, allowed: frozenset[int]) -> Formula:
        """What stands a fixed number of tokens back is one of some classes; BOS is in one too."""
        scene = self.machine.scenes[variable.layer]
        outside = variable.seen[-1] in allowed
        asked = set(range(variable.size)) - allowed if outside else allowed
        seen = np.array(variable.seen)[scene.states]
        guard = "pred" if variable.lag == 1 else f"pred{variable.lag}"
        found: Term = Count(self.formula(scene, np.isin(seen, sorted(asked))), guard)
        if sum(1 for _ in children(found, deep=True)) > _SIMPLE:
            found = self.named(found, "p")
        return Comparison("==" if outside else ">=", found, Constant(0 if outside else 1))

    def named(self, term: Term, letter: str) -> Term:
        """The name of a line that holds the term."""
        same = [line.name for line in self.lines if line.expression == term]
        if not same:
            number = sum(line.name.startswith(letter) for line in self.lines)
            same = [f"{letter}{number + 1}"]
            self.lines.append(Assignment(same[0], term))
        return TermName(same[0])

    def compared(self, variable: Variable, number: Number, allowed: frozenset[int]) -> Formula:
        """A number lies in one of some intervals."""
        term = self.number(variable, number)
        natural = min(number.weights) >= 0
        last = len(number.thresholds)
        missing = sorted(set(range(last + 1)) - allowed)
        single = len(missing) == 1 and 0 < missing[0] < last
        if single and number.thresholds[missing[0]] == number.thresholds[missing[0] - 1] + 1:
            return Comparison("!=", term, Constant(number.thresholds[missing[0] - 1]))
        runs = _runs(sorted(allowed))
        return _any_of([_between(term, number.thresholds, *run, natural) for run in runs])

    def number(self, variable: Variable, number: Number) -> Term:
        """The name of a line that holds the number."""
        key = (variable.layer, number.weights)
        if key not in self.names:
            scene, weights = self.machine.scenes[variable.layer], np.array(number.weights)
            self.names[key] = self.named(self.weighted(scene, weights[scene.classes]), "n")
        known = self.names[key]
        if isinstance(known, TermName):
            held = self.sources.setdefault(known.name, [])
            if variable not in held:
                held.append(variable)
        return known

    def weighted(self, scene: Scene, weights: Int[np.ndarray, " row"]) -> Term:
        """Σ over the weights that occur of weight · how many positions have it."""
        rows, variables = _by_depth(scene)
        parts = weighted_sum(rows, weights, [v.size for v in variables])
        return _summed([(w, Count(self.covered(found, variables))) for w, found in parts])


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
    return Written(Program(tuple(lines), _imports(lines)), sources)


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
    if isinstance(part, Holds):
        return [part.predicate]
    return [part.guard] if isinstance(part, Count) and part.guard else []


def _summed(parts: Sequence[tuple[int, Term]]) -> Term:
    """Positive ones first; a sum of none is 0."""
    total: Term | None = None
    for weight, term in parts:
        size = term if abs(weight) == 1 else Multiple(abs(weight), term)
        if total is None:
            total = size if weight > 0 else Multiple(weight, term)
        else:
            total = Sum(total, size) if weight > 0 else Difference(total, size)
    return Constant(0) if total is None else total


def _between(
    term: Term, thresholds: Sequence[int], first: int, last: int, natural: bool
) -> Formula:
    """The term lies in intervals ``first`` to ``last``."""
    low = thresholds[first - 1] if first > 0 else None
    high = thresholds[last] if last < len(thresholds) else None
    if low is None and high == 1 and natural:
        return Comparison("==", term, Constant(0))
    if low is not None and high == low + 1:
        return Comparison("==", term, Constant(low))
    found = []
    if low is not None:
        found.append(_compare(">=", term, low))
    if high is not None:
        found.append(_compare("<", term, high))
    return _all_of(found)


def _compare(relation: Relation, term: Term, value: int) -> Formula:
    """Against 0 rather than against 1."""
    if value == 1:
        return Comparison(">" if relation == ">=" else "<=", term, Constant(0))
    return Comparison(relation, term, Constant(value))


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of neighbouring numbers."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and runs[-1][1] == value - 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def _position(period: int, allowed: frozenset[int]) -> Formula:
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
            found = _any_of([Holds(_residue(divisor, value)) for value in few])
            return _negated(found) if turned else found
    return Truth(bool(allowed))


def _residue(period: int, value: int) -> str:
    if period == 2 and value == 0:
        return "pos_even"
    return f"pos_mod{period}" if value == 0 else f"pos_mod{period}_{value}"


def _negated(formula: Formula) -> Formula:
    match formula:
        case Truth(value):
            return Truth(not value)
        case Not(of):
            return of
    return Not(formula)


def _all_of(formulas: Iterable[Formula]) -> Formula:
    found = list(formulas)
    return reduce(And, found) if found else Truth(True)


def _any_of(formulas: Iterable[Formula]) -> Formula:
    found = list(formulas)
    if Truth(True) in found:
        return Truth(True)
    return reduce(Or, found) if found else Truth(False)
