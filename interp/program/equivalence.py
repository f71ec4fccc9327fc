"""Decide whether two programs accept the same strings, of every length; if not, find a shortest
string that only one of them accepts.

Every formula becomes a Boolean combination of comparisons F ≥ k, where F = Σ c_i #φ_i is a sum of
counts with integer coefficients. A sum whose coefficients are all positive grows along a string,
and its value does not matter beyond the largest k: such sums give finitely many states. For the
others (*differences*, as #a − #b) the following is decided:

    one difference, compared anywhere,         an unbounded counter, but the length of shortest
    also inside of counts                      strings is bounded: see below
    several, not compared inside of counts     a path in a finite automaton with linear conditions
    (among them all of depth 1)                on how often each edge is taken: integer programs
    several, compared inside of counts         refused: two counters with tests for zero

*One difference.* Let T be the largest |k| that it is compared with and w the largest step by which
it changes. Beyond T, only states distinguish steps. On a shortest string, take the last step up
through a level above T + w and the first step down through it again, each with its state and its
overshoot. If two levels had the same pairs, the string between them could be cut out. So there are
at most (states · w)² such levels, and the difference need not exceed T + 2w + (states · w)². All of
these configurations are searched, breadth first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from interp.errors import ArgumentError
from interp.program.syntax import (
    And,
    Choice,
    Comparison,
    Constant,
    Count,
    CountWhere,
    Expression,
    In,
    Key,
    Larger,
    Literal_,
    Name,
    Next,
    Not,
    Operation,
    Or,
    Program,
    Smaller,
    Symbol,
    Token,
    Truth,
)

_MOST = 2**20
"""Largest number of configurations (states of the counts) that an exhaustive walk visits. A program
that has more is refused. It bounds time and memory."""
_SECONDS = 20.0
"""Time limit in seconds for solving one integer program. If it is exceeded, the comparison of the
two programs is refused."""

_Sum = tuple[tuple[int, int], ...]
_Case = tuple[int, Counter[int], int]
_State = tuple[int, ...]


def shortest_difference(
    one: Program, other: Program, *, letters: Sequence[str] | None = None, yes: str = "1"
) -> tuple[str, ...] | None:
    """Return a shortest string that only one of two programs accepts; None if there is none of any
    length.

    Args:
        one, other: Programs that count the past; or programs that decide, as ``decompile`` writes
            them (``next = "1" if count(key.token == "a") >= 2 else "0"``), for rows that begin with
            BOS.
        letters: Tokens of the strings; by default those that either program names.
        yes: The token that a program that decides outputs if it accepts.

    Raises:
        ArgumentError: if a part is no count of tokens in the past (positions, guards, picks),
            several differences of counts are compared inside of counts, or deciding takes too long.
    """
    parts = _Parts()
    differ = parts.either(parts.answer(one, yes), parts.answer(other, yes))
    spelt = tuple(sorted(parts.letters)) if letters is None else tuple(letters)
    asked = parts.mentioned_sums(differ)
    free = [number for number in asked if not parts.grows(number)]
    again = sum(asked[number] for number in free)
    automaton = _Automaton(parts, differ, free, [n for n in asked if n not in free])
    if len(free) <= 1:
        return _walk(automaton, spelt)
    if not again:
        return _shortest_by_programs(automaton, spelt)
    raise ArgumentError(
        "a program must compare one difference of counts at most, if its comparison is counted "
        f"again, got {len(free)} of which {again} are: compare programs on strings up to a length"
    )


def letters_asked(program: Program, *, yes: str = "1") -> tuple[str, ...]:
    """Return the tokens that a program's answer depends on, sorted.

    Args:
        program: A program as for :func:`shortest_difference`.
        yes: The token that a program that decides outputs if it accepts.

    Raises:
        ArgumentError: if a part is no count of tokens in the past.
    """
    parts = _Parts()
    parts.answer(program, yes)
    return tuple(sorted(parts.letters))


class _Parts:
    """The formulas, counts and sums of programs, each stored once, inner parts before outer
    ones."""

    def __init__(self) -> None:
        self.formulas: list[tuple[Any, ...]] = [("truth", False), ("truth", True)]
        self.counts: list[tuple[int, bool]] = []  # formula, whether BOS counts
        self.sums: list[_Sum] = []
        self.letters: set[str] = set()
        self.lines: dict[str, Expression] = {}

    def answer(self, program: Program, yes: str) -> int:
        """Return the index of the formula that says whether a program accepts."""
        self.lines = {line.name: line.expression for line in program.lines}
        if not program.outputs:
            return self.formula(program.lines[-1].expression)
        output = program.outputs[0]
        if not isinstance(output, Next):
            raise _refusal(output)
        return self._accepts(output.value, yes)

    def _accepts(self, value: Expression, yes: str) -> int:
        match value:
            case Literal_(text):
                return int(text == yes)
            case Choice(then, condition, other):
                asked = self.formula(condition)
                return self.any(
                    self.all(asked, self._accepts(then, yes)),
                    self.all(self.opposite(asked), self._accepts(other, yes)),
                )
        raise _refusal(value)

    def formula(self, part: Expression, inside: bool = False) -> int:
        """Return the index of a formula; ``inside`` a count's condition, ``key`` is the earlier
        position."""
        match part:
            case Truth(value):
                return int(value)
            case Symbol(token) if not inside:
                return self._letter({token})
            case Comparison("==", Token() | Key("token") as at, Literal_(text)):
                if isinstance(at, Key) == inside:
                    return self._letter({text})
            case Comparison("!=", Token() | Key("token") as at, Literal_() as text):
                return self.opposite(self.formula(Comparison("==", at, text), inside))
            case In(Token() | Key("token") as at, tokens) if isinstance(at, Key) == inside:
                return self._letter(set(tokens))
            case Name(name) | Key(name) if name in self.lines and isinstance(part, Key) == inside:
                return self.formula(self.lines[name])
            case Not(of):
                return self.opposite(self.formula(of, inside))
            case And(left, right):
                return self.all(self.formula(left, inside), self.formula(right, inside))
            case Or(left, right):
                return self.any(self.formula(left, inside), self.formula(right, inside))
            case Comparison(relation, left, right):
                return self._comparison(self._difference(left, right, inside), relation)
        raise _refusal(part)

    def either(self, one: int, other: int) -> int:
        """Add the exclusive or of two formulas.

        Args:
            one, other: The formulas, as indices into ``self.formulas``.

        Returns:
            The index of the new formula.
        """
        only = (self.all(one, self.opposite(other)), self.all(self.opposite(one), other))
        return self.any(*only)

    def all(self, *of: int) -> int:
        """Add the conjunction of formulas and return its index."""
        return self.opposite(self.any(*(self.opposite(one) for one in of)))

    def any(self, *of: int) -> int:
        """Add the disjunction of formulas and return its index."""
        some = set(of) - {0}
        if 1 in some or any(self.opposite(one) in some for one in some):
            return 1
        if len(some) < 2:
            return max(some, default=0)
        return self._add("any", tuple(sorted(some)))

    def opposite(self, of: int) -> int:
        """Add the negation of a formula and return its index."""
        kind, *about = self.formulas[of]
        return 1 - of if kind == "truth" else about[0] if kind == "not" else self._add("not", of)

    def _add(self, *formula: Any) -> int:
        return _place(self.formulas, formula)

    def _letter(self, tokens: set[str]) -> int:
        self.letters |= tokens
        return self._add("letter", tuple(sorted(tokens)))

    def _difference(self, left: Expression, right: Expression, inside: bool) -> list[_Case]:
        negative = [(g, _times(-1, s), -k) for g, s, k in self._cases(right, inside)]
        return self._sum_of_cases(self._cases(left, inside), negative)

    def _sum_of_cases(self, left: list[_Case], right: list[_Case]) -> list[_Case]:
        found = []
        for (g, one, k), (h, other, m) in product(left, right):
            whole = Counter(one)
            for count, times in other.items():
                whole[count] += times
            found.append((self.all(g, h), whole, k + m))
        return [case for case in found if case[0]]

    def _cases(self, part: Expression, inside: bool) -> list[_Case]:
        """Return a number as cases (condition, sum of counts, constant), of which one condition
        holds."""
        match part:
            case Constant(value):
                return [(1, Counter(), value)]
            case Count(of, None, False) if not inside:
                return [(1, Counter([_place(self.counts, (self.formula(of), False))]), 0)]
            case CountWhere(where) if not inside:
                counted = self.formula(where, True)
                at_bos = self.step([0] * len(self.sums), None)[1][counted]
                return [(1, Counter([_place(self.counts, (counted, at_bos))]), 0)]
            case Name(name) | Key(name) if name in self.lines and isinstance(part, Key) == inside:
                return self._cases(self.lines[name], False)
            case Operation("+", left, right):
                return self._sum_of_cases(self._cases(left, inside), self._cases(right, inside))
            case Operation("-", left, right):
                return self._difference(left, right, inside)
            case Operation("*", Constant(k), of):
                return [(g, _times(k, s), k * m) for g, s, m in self._cases(of, inside)]
            case Smaller(left, right) | Larger(left, right):
                relation = "<=" if isinstance(part, Smaller) else ">="
                first = self._comparison(self._difference(left, right, inside), relation)
                return self._either_case(first, left, right, inside)
            case Choice(then, condition, other):
                return self._either_case(self.formula(condition, inside), then, other, inside)
        raise _refusal(part)

    def _either_case(
        self, first: int, then: Expression, other: Expression, inside: bool
    ) -> list[_Case]:
        ways = ((first, then), (self.opposite(first), other))
        found = [
            (self.all(g, h), s, k) for g, value in ways for h, s, k in self._cases(value, inside)
        ]
        return [case for case in found if case[0]]

    def _comparison(self, cases: list[_Case], relation: str) -> int:
        """Return the formula that compares a number, given by cases, with 0."""
        return self.any(*(self.all(g, self._is(s, relation, -k)) for g, s, k in cases))

    def _is(self, counts: Counter[int], relation: str, k: int) -> int:
        match relation:
            case ">=":
                return self._at_least(counts, k)
            case ">":
                return self._at_least(counts, k + 1)
            case "==":
                return self.all(
                    self._at_least(counts, k), self.opposite(self._at_least(counts, k + 1))
                )
        opposite = {"<": ">=", "<=": ">", "!=": "=="}[relation]
        return self.opposite(self._is(counts, opposite, k))

    def _at_least(self, counts: Counter[int], k: int) -> int:
        terms = sorted((count, times) for count, times in counts.items() if times)
        if not terms:
            return int(k <= 0)
        if terms[0][1] < 0:
            return self.opposite(self._at_least(_times(-1, counts), 1 - k))
        whole = gcd(*(times for _, times in terms))
        terms, k = [(count, times // whole) for count, times in terms], -(-k // whole)
        if k <= 0 and all(times > 0 for _, times in terms):
            return 1
        return self._add("at least", _place(self.sums, tuple(terms)), k)

    def mentioned_sums(self, of: int) -> dict[int, bool]:
        """Return the sums that a formula depends on → whether they are compared inside of a
        count."""
        found: dict[int, bool] = {}
        todo, seen = [(of, False)], set()
        while todo:
            (number, inside) = here = todo.pop()
            kind, *about = self.formulas[number]
            if here in seen or kind not in ("any", "not", "at least"):
                continue
            seen.add(here)
            if kind == "at least":
                found[about[0]] = found.get(about[0], False) or inside
                todo += [(self.counts[count][0], True) for count, _ in self.sums[about[0]]]
            else:
                todo += [(one, inside) for one in (about[0] if kind == "any" else about)]
        return found

    def grows(self, number: int) -> bool:
        """Return whether a sum never decreases along a string."""
        return all(times > 0 for _, times in self.sums[number])

    def bounds(self, number: int) -> list[int]:
        """Return the constants that a sum is compared with, in ascending order."""
        return sorted({f[2] for f in self.formulas if f[0] == "at least" and f[1] == number})

    def step(
        self, state: Sequence[int], letter: str | None, assumed: Mapping[int, int] | None = None
    ) -> tuple[list[int], list[bool]]:
        """Return the sums after a letter (None for BOS), and for each formula whether it holds
        there.

        Args:
            state: The sums before the letter.
            letter: The letter that is read.
            assumed: Sum → the value to use for it in formulas, whatever its true value.
        """
        held: list[bool] = []
        after: dict[int, int] = {}

        def value(number: int) -> int:
            if number not in after:
                after[number] = state[number] + sum(
                    times * held[self.counts[count][0]]
                    for count, times in self.sums[number]
                    if letter is not None or self.counts[count][1]
                )
            return (assumed or {}).get(number, after[number])

        for kind, *about in self.formulas:
            if kind == "truth":
                held.append(about[0])
            elif kind == "letter":
                held.append(letter in about[0])
            elif kind == "not":
                held.append(not held[about[0]])
            elif kind == "any":
                held.append(any(held[one] for one in about[0]))
            else:
                held.append(value(about[0]) >= about[1])
        for number in range(len(self.sums)):
            value(number)
        return [after[number] for number in range(len(self.sums))], held


def _place(known: list[Any], one: Any) -> int:
    if one not in known:
        known.append(one)
    return known.index(one)


def _times(k: int, counts: Counter[int]) -> Counter[int]:
    return Counter({count: k * times for count, times in counts.items()})


def _refusal(part: object) -> ArgumentError:
    return ArgumentError(
        "a program whose strings are decided must have tokens, counts of the past and comparisons "
        f"of numbers alone, got {type(part).__name__}: compare programs on strings up to a length"
    )


class _Automaton:
    """An automaton over strings: capped values of growing sums are its states; free sums are
    counters.

    Args:
        parts: The formulas and sums.
        differ: The index of the formula that is searched for.
        free: The sums that can grow and fall without a bound.
        grown: The sums that only grow; they are capped at the largest constant they are compared
            with.
    """

    def __init__(
        self, parts: _Parts, differ: int, free: Sequence[int], grown: Sequence[int]
    ) -> None:
        self.parts, self.differ, self.free = parts, differ, tuple(free)
        self.caps = {number: max(parts.bounds(number)) for number in grown}
        self.known: dict[Any, tuple[_State, _State, bool]] = {}

    def start(self) -> tuple[_State, _State]:
        """Return the state after BOS, and the values of the free sums there."""
        found, _ = self.parts.step([0] * len(self.parts.sums), None)
        return self._finite_state(found), tuple(found[n] for n in self.free)

    def step(
        self, state: _State, letter: str, values: _State, assumed: _State = ()
    ) -> tuple[_State, _State, bool]:
        """Return the next state, the changes of the free sums, and whether the formula holds.

        Args:
            state: The state before.
            letter: The letter that is read.
            values: The free sums before it.
            assumed: The values of the free sums to use in the formula; by default those after the
                step.
        """
        if (asked := (state, letter, values, assumed)) not in self.known:
            before = [0] * len(self.parts.sums)
            for number, value in (*zip(self.caps, state, strict=True), *self._of_free(values)):
                before[number] = value
            found, held = self.parts.step(before, letter, dict(self._of_free(assumed)))
            added = tuple(found[n] - before[n] for n in self.free)
            self.known[asked] = self._finite_state(found), added, held[self.differ]
        return self.known[asked]

    def _of_free(self, values: _State) -> list[tuple[int, int]]:
        return list(zip(self.free, values, strict=False))

    def _finite_state(self, sums: Sequence[int]) -> _State:
        return tuple(min(sums[number], cap) for number, cap in self.caps.items())


def _walk(automaton: _Automaton, letters: Sequence[str]) -> tuple[str, ...] | None:
    """Return a shortest string on which the formula holds, for at most one free sum; None if there
    is none.

    All configurations that a shortest string can need are searched.
    """
    parts, free = automaton.parts, automaton.free
    size = sum(abs(times) for number in free for _, times in parts.sums[number])
    level = size + max((abs(k) for number in free for k in parts.bounds(number)), default=0)
    known, states = 0, 1
    while known != states:
        known = states
        most = level + size + (known * size) ** 2
        found, states = _to_it(automaton, letters, level, most)
    return found


def _to_it(
    automaton: _Automaton, letters: Sequence[str], level: int, most: int
) -> tuple[tuple[str, ...] | None, int]:
    """Return a shortest string on which the formula holds, with a free sum of size at most
    ``most``, and the number of states; beyond ``level`` the size of the sum does not matter."""
    start = automaton.start()
    came: dict[Any, tuple[Any, str]] = {start: (None, "")}
    todo, found, states = [start], None, {start[0]}
    for state, values in todo:
        near = tuple(min(max(value, -level - 1), level + 1) for value in values)
        for letter in letters:
            after, added, differs = automaton.step(state, letter, near)
            moved = tuple(value + more for value, more in zip(values, added, strict=True))
            if differs and found is None:
                found = (*_letters_to(came, (state, values)), letter)
            if (after, moved) not in came and all(abs(value) <= most for value in moved):
                came[after, moved] = (state, values), letter
                todo.append((after, moved))
                states.add(after)
        if len(came) > _MOST:
            raise ArgumentError(
                f"a program's strings must be decided within {_MOST} configurations of counts, got "
                "more: compare counts with smaller numbers"
            )
    return found, len(states)


def _letters_to(came: Mapping[Any, tuple[Any, str]], at: Any) -> list[str]:
    letters = []
    while at is not None:
        at, letter = came[at]
        letters.append(letter)
    return letters[-2::-1]


_Edge = tuple[_State, str, _State, _State]


def _shortest_by_programs(automaton: _Automaton, letters: Sequence[str]) -> tuple[str, ...] | None:
    """Return a shortest string on which the formula holds, for several free sums that no count
    depends on.

    For each last letter, and each choice of intervals between the constants that sums are compared
    with, it is the shortest path whose edges' changes add up to values in these intervals.
    """
    start, base = automaton.start()
    states, edges = [start], []
    for state in states:
        for letter in letters:
            after, added, _ = automaton.step(state, letter, base)
            edges.append((state, letter, after, added))
            if after not in states:
                states.append(after)
    ways = product(*(_between(automaton.parts.bounds(number)) for number in automaton.free))
    best: tuple[str, ...] | None = None
    for way, (last, letter, _, added) in product(ways, edges):
        assumed = tuple(int(low if np.isfinite(low) else high) for low, high in way)
        if automaton.step(last, letter, base, assumed)[2]:
            ends = np.array(way).T - np.add(base, added)
            path = _path(_leading(edges, last), start, last, ends)
            if path is not None and (best is None or len(path) + 1 < len(best)):
                best = (*path, letter)
    return best


def _leading(edges: Sequence[_Edge], last: _State) -> list[_Edge]:
    """Return the edges on paths to a state."""
    before = [last]
    for state in before:
        before += {e[0] for e in edges if e[2] == state} - set(before)
    return [edge for edge in edges if edge[2] in before]


def _between(bounds: Sequence[int]) -> list[tuple[float, float]]:
    """Split the integers at ``bounds`` into intervals, each as (least, largest)."""
    ends = [-np.inf, *map(float, bounds), np.inf]
    return [(low, high - 1) for low, high in pairwise(ends)]


def _path(
    edges: Sequence[_Edge],
    start: _State,
    last: _State,
    ends: NDArray[np.float64],
    cuts: Sequence[tuple[set[_State], bool]] = (),
) -> list[str] | None:
    """Return the letters of a shortest path whose edges' sums lie between ``ends``; None if there
    is none.

    The unknowns of the integer program are how often each edge is taken; every state between is
    entered as often as it is left. If a solution contains a cycle that is not connected to the
    path, two more programs are solved: in one no edge begins in the cycle's states, in the other an
    edge from outside leads to them.
    """
    if not edges:
        return [] if start == last and (ends[0] <= 0).all() and (ends[1] >= 0).all() else None
    states = list({state: None for edge in edges for state in (edge[0], edge[2])})
    flow = np.array([[(e[0] == s) * 1.0 - (e[2] == s) for e in edges] for s in states])
    wanted = np.array([(s == start) * 1.0 - (s == last) for s in states])
    sums = np.array([added for *_, added in edges], dtype=np.float64).T
    conditions = [LinearConstraint(flow, wanted, wanted), LinearConstraint(sums, *ends)]
    most = np.full(len(edges), np.inf)
    for circle, entered in cuts:
        into = np.array([e[2] in circle and e[0] not in circle for e in edges], dtype=np.float64)
        conditions += [LinearConstraint(into, 1, np.inf)] if entered else []
        most[[e[0] in circle and not entered for e in edges]] = 0
    found = milp(
        np.ones(len(edges)),
        integrality=np.ones(len(edges)),
        bounds=Bounds(0, most),
        constraints=conditions,
        options={"time_limit": _SECONDS},
    )
    if found.status == 2:
        return None
    if found.status != 0:
        raise ArgumentError(
            f"each integer program must be solved in {_SECONDS:.0f} seconds, got "
            f"{found.message!r}: compare fewer counts"
        )
    times = {k: round(n) for k, n in enumerate(found.x) if round(n)}
    reached = [start]
    for state in reached:
        reached += {edges[k][2] for k in times if edges[k][0] == state} - set(reached)
    apart = {edges[k][0] for k in times} - set(reached)
    if not apart:
        return _letters_of(edges, times, start)
    both = [_path(edges, start, last, ends, (*cuts, (apart, way))) for way in (False, True)]
    return min((path for path in both if path is not None), key=len, default=None)


def _letters_of(edges: Sequence[_Edge], times: dict[int, int], start: _State) -> list[str]:
    """Return the letters of a path from a state that takes every edge a given number of times
    (Hierholzer)."""
    walk, found = [(start, "")], []
    while walk:
        state = walk[-1][0]
        edge = next((k for k, left in times.items() if left and edges[k][0] == state), None)
        if edge is None:
            found.append(walk.pop()[1])
        else:
            times[edge] -= 1
            walk.append((edges[edge][2], edges[edge][1]))
    return found[-2::-1]
