"""Random C-RASP programs that do need the depth with which they are written.

A program is drawn line by line; level ℓ counts what level ℓ − 1 says. Most random programs are
shallower than they look: a comparison that always holds, a count that never matters, or one whose
value a shallower comparison already tells. So each drawn program is run on all short strings and on
long random ones, and kept only if its *observed depth* is the depth it is written with, where

    counts that may be 0 without any answer changing are 0;
    a formula has the least depth j such that, on these strings, the token and the comparisons of
    observed depth ≤ j decide it;  a comparison that they do not decide has 1 + the largest observed
    depth of what it counts

Observed depth is a bound from strings, not a proof: a kept program may still have a shallower
equivalent.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from itertools import product

import numpy as np

from prooflens.crasp import (
    And,
    Assignment,
    Choice,
    Comparison,
    Constant,
    Count,
    Expression,
    Formula,
    FormulaName,
    Holds,
    Larger,
    Not,
    Operation,
    Or,
    Program,
    Relation,
    Smaller,
    Symbol,
    Term,
    children,
    depth,
    evaluate_codes,
    find_predicate,
)

__all__ = ["LETTERS", "draw_program", "observed_depth", "random_program"]

LETTERS = ("a", "b", "c")
_RELATIONS: tuple[Relation, ...] = ("==", "!=", "<", ">", "<=", ">=")
_IMPORTS = ("pred", "pred3", "pos_even", "pos_mod3_1")


def random_program(seed: int, *, deepest: int = 3, predicates: bool = False) -> tuple[Program, int]:
    """Draw a program whose observed depth is a given one; also return how many drawn programs were
    rejected before it.

    Args:
        seed: Seed of the draws; it also gives the depth, which is 1 + seed modulo ``deepest``.
        deepest: The largest depth.
        predicates: Whether guards and position predicates are used too.
    """
    generator = np.random.default_rng([seed, deepest, predicates])
    wanted = 1 + seed % deepest
    refused = 0
    while True:
        program = draw_program(generator, wanted, predicates)
        if depth(program) == wanted and observed_depth(program) == wanted:
            return program, refused
        refused += 1


def draw_program(generator: np.random.Generator, levels: int, predicates: bool) -> Program:
    """Draw a program of at most ``levels`` nested counts. It may be equivalent to a shallower
    one."""
    draw = _Draw(generator, predicates)
    lines: list[Assignment] = []
    for level in range(levels):
        for _ in range(int(generator.integers(1, 3))):
            formula = draw.comparison()
            if generator.random() < 0.5:
                formula = draw.connect(formula, draw.leaf())
            lines.append(Assignment(f"v{len(lines)}", formula))
        draw.known = [FormulaName(line.name) for line in lines]
        if level == levels - 1 and generator.random() < 0.5:
            joined = draw.connect(draw.leaf(), FormulaName(lines[-1].name))
            lines.append(Assignment(f"v{len(lines)}", joined))
    imports = [find_predicate(name) for name in _IMPORTS] if predicates else []
    return Program(tuple(lines), imports=tuple(p for p in imports if p is not None))


class _Draw:
    """Draws random formulas and terms over the lines that the program has so far."""

    def __init__(self, generator: np.random.Generator, predicates: bool) -> None:
        self.generator, self.predicates = generator, predicates
        self.known: list[Formula] = []

    def comparison(self) -> Formula:
        """Draw a comparison of two terms, of which the first counts something."""
        relation = _RELATIONS[self.generator.integers(len(_RELATIONS))]
        right: Term = Constant(int(self.generator.integers(-2, 5)))
        if self.generator.random() < 0.4:
            right = self.term(1)
        return Comparison(relation, self.count_term(), right)

    def count_term(self) -> Term:
        """Draw a count, alone or in a sum, a difference, a minimum …."""
        term: Term = self.count()
        kind = self.generator.integers(8)
        if kind < 4:
            return term
        other = self.term(1)
        if kind == 7:
            return Choice(term, self.leaf(), other)
        extreme = [Smaller, Larger][int(self.generator.integers(2))]
        if kind == 6:
            return extreme(term, other)
        return Operation("+" if kind == 4 else "-", term, other)

    def term(self, level: int) -> Term:
        """Draw a constant, a count or a multiple."""
        kind = self.generator.random()
        if kind < 0.25:
            return Constant(int(self.generator.integers(-3, 6)))
        if kind < 0.6 or level == 0:
            return self.count()
        factor = Constant(int(self.generator.integers(-3, 4)))
        return Operation("*", factor, self.term(level - 1))

    def count(self) -> Count:
        """Draw a count of one leaf or of two leaves joined."""
        of = (
            self.leaf() if self.generator.random() < 0.5 else self.connect(self.leaf(), self.leaf())
        )
        guard = None
        if self.predicates and self.generator.random() < 0.25:
            guard = ("pred", "pred3")[int(self.generator.integers(2))]
        return Count(of, guard)

    def leaf(self) -> Formula:
        """Draw a token, a predicate, or an earlier line, more often the latest one."""
        chance = self.generator.random()
        if self.predicates and chance < 0.15:
            return Holds(("pos_even", "pos_mod3_1")[int(self.generator.integers(2))])
        if self.known and chance < 0.65:
            latest = self.generator.random() < 0.6
            return self.known[-1 if latest else int(self.generator.integers(len(self.known)))]
        return Symbol(LETTERS[int(self.generator.integers(2))])

    def connect(self, left: Formula, right: Formula) -> Formula:
        """Join two formulas by a random connective and perhaps negate the first. If both are the
        same, return it alone."""
        if left == right:
            return left
        if self.generator.random() < 0.3:
            left = Not(left)
        return And(left, right) if self.generator.random() < 0.5 else Or(left, right)


def observed_depth(program: Program) -> int:
    """Return the observed depth of a program, as the module defines it."""
    program = _trim(program)
    asked = _inner_formulas(program)
    lines = [Assignment(f"x{number}", part) for number, part in enumerate(asked)]
    everything = Program((*program.lines, *lines), imports=program.imports)
    columns: list[np.ndarray] = []
    for codes in _strings():
        values = evaluate_codes(everything, codes, LETTERS).values
        names = [program.lines[-1].name, *(line.name for line in lines)]
        held = np.stack([codes, *(values[name] for name in names)])
        columns.append(held.reshape(len(names) + 1, -1))
    table = np.unique(np.concatenate(columns, axis=1), axis=1)
    token, answer = table[0], table[1]
    value = {part: table[2 + number] for number, part in enumerate(asked)}
    known: list[tuple[int, np.ndarray]] = []
    for part in asked:
        if isinstance(part, Comparison):
            level = _observe(value[part], token, known)
            if level is None:
                inner = [p.of for p in _spread(part, program) if isinstance(p, Count)]
                levels = [_observe(value[of], token, known) for of in inner]
                level = 1 + max((found or 0 for found in levels), default=0)
            known.append((level, value[part]))
    found = _observe(answer, token, known)
    return depth(program) if found is None else found


def _trim(program: Program) -> Program:
    """Replace counts that change no result by 0, one after another, beginning with the last."""
    wanted = _answers(program)
    number = sum(isinstance(part, Count) for part in _parts(program))
    for place in reversed(range(number)):
        if place >= sum(isinstance(part, Count) for part in _parts(program)):
            continue
        fewer = _without(program, place)
        if all((a == b).all() for a, b in zip(_answers(fewer), wanted, strict=True)):
            program = fewer
    return program


def _parts(program: Program) -> list[Expression]:
    return [part for line in program.lines for part in children(line.expression, deep=True)]


def _answers(program: Program) -> list[np.ndarray]:
    name = program.lines[-1].name
    return [evaluate_codes(program, codes, LETTERS).values[name] for codes in _strings()]


def _without(program: Program, place: int) -> Program:
    """The program with one of its counts, in the order of the text, replaced by 0."""
    seen = 0

    def visit(expression: Expression) -> Expression:
        nonlocal seen
        if isinstance(expression, Count):
            seen += 1
            if seen == place + 1:
                return Constant(0)
        inside = {
            field.name: visit(value)
            for field in fields(expression)
            if isinstance(value := getattr(expression, field.name), Expression)
        }
        return replace(expression, **inside) if inside else expression

    lines = tuple(Assignment(line.name, visit(line.expression)) for line in program.lines)
    return Program(lines, imports=program.imports)


def _inner_formulas(program: Program) -> list[Expression]:
    """Return all formulas that are counted and all comparisons; each comes after those inside
    it."""
    found: dict[Expression, None] = {}

    def visit(expression: Expression) -> None:
        for part in children(expression):
            visit(part)
        if isinstance(expression, Count):
            found.setdefault(expression.of)
        if isinstance(expression, Comparison):
            found.setdefault(expression)

    for line in program.lines:
        visit(line.expression)
    return list(found)


def _spread(expression: Expression, program: Program) -> list[Expression]:
    """Return an expression and its parts, down to counts, whose insides are left out."""
    if isinstance(expression, Count):
        return [expression]
    return [expression, *(p for part in children(expression) for p in _spread(part, program))]


def _observe(
    value: np.ndarray, token: np.ndarray, known: list[tuple[int, np.ndarray]]
) -> int | None:
    """Return the smallest depth at which comparisons of at most that depth, with the token,
    determine the value; None if none do."""
    for level in sorted({0, *(found for found, _ in known)}):
        features = np.stack([token, *(v for found, v in known if found <= level)])
        _, group = np.unique(features, axis=1, return_inverse=True)
        group = group.reshape(-1)
        first = np.zeros(group.max() + 1, dtype=value.dtype)
        first[group] = value
        if bool((first[group] == value).all()):
            return level
    return None


@lru_cache(maxsize=1)
def _strings() -> tuple[np.ndarray, ...]:
    """Return the strings on which depth is observed: all strings of seven tokens with their
    prefixes, and long random ones."""
    generator = np.random.default_rng(0)
    short = np.array(list(product(range(len(LETTERS)), repeat=7)))
    shares = generator.dirichlet(np.ones(len(LETTERS)), 60)
    long = np.array([generator.choice(len(LETTERS), 100, p=share) for share in shares])
    return short, long
