"""From a transformer that counts back to the C-RASP program it computes, exactly.

If every head averages over the prefix, or attends a fixed number of tokens back, and every network
switches on comparisons of counts, then the model *is* a C-RASP program, in whatever basis its
weights are written, and the program can be read from the weights:

    what a head averages takes a few values     → the classes of positions that are counted
    a neuron's coefficients over the classes    → a comparison of counts with whole numbers
    what a network writes, by outcome           → the state of a position, a formula
    the readout of the last state               → the answer

This works for models that :func:`interp.proofs.depth.compiler.compile_program` made, also in a
random basis (:mod:`interp.proofs.random_basis`). For other models the result says at which step
they differ: models with norms, smooth activations or heads that attend by content do, so this
cannot read a typical trained model. The comparisons are proved equivalent to the neurons up to the
longest input. That none was missed is checked on fresh strings, and the share of decisions that
agree is part of the result.

*The lines* of a machine's answer are C-RASP:

    n1 = # "b"
    n2 = # ("a" && n1 >= 1)
    answer = "b" && n2 >= 1

There is one line per number, after those that it needs; the counted formulas and the answer are
covers of cubes (:mod:`interp.proofs.depth.decompiler.covers`). Names are arbitrary: ``n`` for
numbers and ``p`` for conditions on a fixed number of tokens back. Everything else is read from the
weights.

*Weights.* A whole number for each row is written as a sum of few weighted conditions:

    weight = c_1 [φ_1] + c_2 [φ_2] + …

One condition per weight, [weight = 2], [weight = −1] …, is always possible, but #φ − #ψ then
becomes #(φ ∧ ¬ψ) − #(ψ ∧ ¬φ). So conditions on a single variable are split off first, greedily, as
long as the whole becomes shorter. The result is short, but not the shortest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import Problems
from interp.models.transformer import SequenceTransformer
from interp.program import syntax
from interp.program.evaluation import evaluate_codes
from interp.program.predicates import Predicate, find_predicate
from interp.program.printer import expression_text
from interp.program.syntax import Assignment, Expression, Program, Term, children
from interp.proofs.depth.decompiler.covers import Cover, cover, extend_cube, support
from interp.proofs.depth.decompiler.machine import Factor, Machine, Scene, build_machine
from interp.proofs.depth.decompiler.network import NotCountingError, read_network
from interp.proofs.depth.decompiler.tables import Number

_TERM = 2
_MOST_ROWS = 600
_TRIES = 5
Parts = list[tuple[int, Cover]]


def weighted_sum(
    rows: Int[np.ndarray, "row variable"], weights: Int[np.ndarray, " row"], sizes: Sequence[int]
) -> Parts:
    """Write a number for each row as a sum of weighted conditions; return them, positive weights
    first.

    Args:
        rows: Values of the variables, ``[row, variable]``, counted from 0.
        weights: The number of each row.
        sizes: The number of values of each variable.
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
    """Return pairs of rows that differ in one variable only, and there by the next larger value
    that occurs."""
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
    """Return the weights that may be split off: differences of the weights that occur."""
    values = sorted(set(weights.tolist()))
    return sorted({a - b for a in values for b in values} - {0}, key=lambda w: (abs(w), -w))[:8]


def _conditions(rows: np.ndarray, sizes: Sequence[int]) -> Iterator[Bool[np.ndarray, " row"]]:
    """Yield the conditions to try: true, and for each variable: equal to a value, above one, a
    residue."""
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
    return replace(found, cubes=tuple(extend_cube(cube, kept, variables) for cube in found.cubes))


_SIMPLE = 3
"""Number of subexpressions up to which the condition that a fixed-lag head tests is written in
place. A longer condition becomes a line of its own, so that the program stays readable."""


@dataclass(frozen=True)
class Written:
    """A program and the origin of its numbers.

    Attributes:
        program: The program, whose last line is ``answer``.
        numbers: Line → the variables that are read from it.
    """

    program: Program
    numbers: dict[str, tuple[Factor, ...]]


@dataclass
class _Writer:
    machine: Machine
    words: Sequence[str | None]
    lines: list[Assignment] = field(default_factory=list)
    names: dict[tuple[int, tuple[int, ...]], Term] = field(default_factory=dict)
    sources: dict[str, list[Factor]] = field(default_factory=dict)

    def formula(self, scene: Scene, wanted: Bool[np.ndarray, " row"]) -> Expression:
        """Return a formula over the scene's variables that is true in exactly the wanted rows."""
        rows, variables = _by_depth(scene)
        return self.cover_formula(cover(rows, wanted, [v.size for v in variables]), variables)

    def cover_formula(self, found: Cover, variables: Sequence[Factor]) -> Expression:
        """Return a cover as a formula.

        It is the disjunction of the cubes, each a conjunction of literals, or, for a negated cover,
        the negation of that disjunction.
        """
        parts = []
        for cube in found.cubes:
            named = [(v, allowed) for v, allowed in zip(variables, cube, strict=True) if allowed]
            if found.negated:
                other = [(v, frozenset(range(v.size)) - allowed) for v, allowed in named]
                parts.append(_any_of(self.literal(v, allowed) for v, allowed in other))
            else:
                parts.append(_all_of(self.literal(v, allowed) for v, allowed in named))
        return _all_of(parts) if found.negated else _any_of(parts)

    def literal(self, variable: Factor, allowed: frozenset[int]) -> Expression:
        """Return a formula that is true if the variable's value is in ``allowed``."""
        if variable.kind == "token":
            return self.token(allowed)
        if variable.kind == "position":
            return _position(variable.size, allowed)
        if variable.kind == "lag":
            return self.lag_formula(variable, allowed)
        if variable.number is None:
            raise TypeError("a number without weights")
        return self.interval_formula(variable, variable.number, allowed)

    def token(self, allowed: frozenset[int]) -> Expression:
        """Return a formula that is true if the token is in ``allowed``.

        Tokens without a name can only be described as none of the named ones.
        """
        nameless = {i for i, word in enumerate(self.words) if word is None}
        turned = bool(nameless & allowed)
        named = set(range(len(self.words))) - nameless
        chosen = sorted(named - allowed if turned else named & allowed)
        found = _any_of([syntax.Symbol(self.words[i] or "") for i in chosen])
        return _negate(found) if turned else found

    def lag_formula(self, variable: Factor, allowed: frozenset[int]) -> Expression:
        """Return a formula: the token ``variable.lag`` places back is in one of the ``allowed``
        classes.

        If BOS's class is allowed, the formula says that no token there is in another class.
        """
        scene = self.machine.scenes[variable.layer]
        outside = variable.seen[-1] in allowed
        asked = set(range(variable.size)) - allowed if outside else allowed
        seen = np.array(variable.seen)[scene.states]
        guard = "pred" if variable.lag == 1 else f"pred{variable.lag}"
        found: Term = syntax.Count(self.formula(scene, np.isin(seen, sorted(asked))), guard)
        if sum(1 for _ in children(found, deep=True)) > _SIMPLE:
            found = self.name_line(found, "p")
        return syntax.Comparison(
            "==" if outside else ">=", found, syntax.Constant(0 if outside else 1)
        )

    def name_line(self, term: Term, letter: str) -> Term:
        """Return the name of a line for the term, adding the line if there is none."""
        same = [line.name for line in self.lines if line.expression == term]
        if not same:
            number = sum(line.name.startswith(letter) for line in self.lines)
            same = [f"{letter}{number + 1}"]
            self.lines.append(Assignment(same[0], term))
        return syntax.TermName(same[0])

    def interval_formula(
        self, variable: Factor, number: Number, allowed: frozenset[int]
    ) -> Expression:
        """Return a formula that is true if a number is in one of the ``allowed`` intervals."""
        term = self.number(variable, number)
        natural = min(number.weights) >= 0
        last = len(number.thresholds)
        missing = sorted(set(range(last + 1)) - allowed)
        single = len(missing) == 1 and 0 < missing[0] < last
        if single and number.thresholds[missing[0]] == number.thresholds[missing[0] - 1] + 1:
            return syntax.Comparison("!=", term, syntax.Constant(number.thresholds[missing[0] - 1]))
        runs = _runs(sorted(allowed))
        return _any_of([_between(term, number.thresholds, *run, natural) for run in runs])

    def number(self, variable: Factor, number: Number) -> Term:
        """Return the name of a line for the number, adding the line if there is none."""
        key = (variable.layer, number.weights)
        if key not in self.names:
            scene, weights = self.machine.scenes[variable.layer], np.array(number.weights)
            self.names[key] = self.name_line(
                self.weighted_count(scene, weights[scene.classes]), "n"
            )
        known = self.names[key]
        if isinstance(known, syntax.TermName):
            held = self.sources.setdefault(known.name, [])
            if variable not in held:
                held.append(variable)
        return known

    def weighted_count(self, scene: Scene, weights: Int[np.ndarray, " row"]) -> Term:
        """Return the term Σ over the weights that occur of weight · the number of positions that
        have it."""
        rows, variables = _by_depth(scene)
        parts = weighted_sum(rows, weights, [v.size for v in variables])
        return _sum_terms(
            [(w, syntax.Count(self.cover_formula(found, variables))) for w, found in parts]
        )


def write_program(machine: Machine, words: Sequence[str | None]) -> Written:
    """Write the answer of a machine as a program.

    Args:
        machine: See :mod:`interp.proofs.depth.decompiler.machine`.
        words: The token of each id but BOS; None for tokens that a program cannot name.

    Raises:
        ValueError: if the machine is not complete.
    """
    if machine.end is None:
        raise ValueError("the machine has no end")
    writer = _Writer(machine, words)
    answer = writer.formula(machine.end, machine.answer)
    lines = [*writer.lines, Assignment("answer", answer)]
    sources = {name: tuple(held) for name, held in writer.sources.items()}
    return Written(Program(tuple(lines), imports=_imports(lines)), sources)


def _by_depth(scene: Scene) -> tuple[Int[np.ndarray, "row variable"], list[Factor]]:
    """Return the scene's rows and variables, those variables first that need few layers."""
    order = sorted(range(len(scene.variables)), key=lambda v: scene.variables[v].depth)
    return scene.rows[:, order], [scene.variables[v] for v in order]


def _imports(lines: Sequence[Assignment]) -> tuple[Predicate, ...]:
    names: list[str] = []
    for line in lines:
        for part in children(line.expression, deep=True):
            names += _predicates(part)
    found = [find_predicate(name) for name in dict.fromkeys(names)]
    return tuple(predicate for predicate in found if predicate is not None)


def _predicates(part: Expression) -> list[str]:
    if isinstance(part, syntax.Holds):
        return [part.predicate]
    return [part.guard] if isinstance(part, syntax.Count) and part.guard else []


def _sum_terms(parts: Sequence[tuple[int, Term]]) -> Term:
    """Return the sum of weighted terms, given with positive weights first; 0 for no terms."""
    total: Term | None = None
    for weight, term in parts:
        size = (
            term if abs(weight) == 1 else syntax.Operation("*", syntax.Constant(abs(weight)), term)
        )
        if total is None:
            total = size if weight > 0 else syntax.Operation("*", syntax.Constant(weight), term)
        else:
            total = syntax.Operation("+" if weight > 0 else "-", total, size)
    return syntax.Constant(0) if total is None else total


def _between(
    term: Term, thresholds: Sequence[int], first: int, last: int, natural: bool
) -> Expression:
    """Return a formula: the term is in one of the intervals ``first`` to ``last``."""
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
    """Compare a term with a value; ``>= 1`` is written as ``> 0`` and ``< 1`` as ``<= 0``."""
    if value == 1:
        return syntax.Comparison(">" if relation == ">=" else "<=", term, syntax.Constant(0))
    return syntax.Comparison(relation, term, syntax.Constant(value))


def _runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and runs[-1][1] == value - 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def _position(period: int, allowed: frozenset[int]) -> Expression:
    """Return a formula: the position's residue is in ``allowed``, for the smallest period that
    suffices."""
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
            return _negate(found) if turned else found
    return syntax.Truth(bool(allowed))


def _residue(period: int, value: int) -> str:
    if period == 2 and value == 0:
        return "pos_even"
    return f"pos_mod{period}" if value == 0 else f"pos_mod{period}_{value}"


def _negate(formula: Expression) -> Expression:
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


_SHORT_STRINGS = 2000
_LONG_STRINGS = 60
_MEASURED = 4


@dataclass(frozen=True)
class ComparisonSource:
    """The place in the weights that one comparison of a program was read from.

    Attributes:
        line: The line that holds the number.
        number: The compared number, as text.
        threshold: The comparison is number ≥ threshold.
        layer: The block whose network compares it.
        hidden: Number of the hidden layer in that network, from 0.
        neuron: A neuron that switches there.
        residual: The largest distance of the neuron's coefficients from whole multiples of one
            scale.
    """

    line: str
    number: str
    threshold: int
    layer: int
    hidden: int
    neuron: int
    residual: float


@dataclass(frozen=True)
class CountingProgram:
    """The program that was found, and how often it agrees with the model.

    Attributes:
        program: The program; None if the model is of another kind.
        reason: Why there is no program; empty if there is one.
        sources: The neuron that every comparison of the program was read from.
        agreement: Share of decisions on fresh strings on which program and model agree, over all
            positions after BOS; NaN without a program.
        decisions: The number of these decisions.
    """

    program: Program | None
    reason: str
    sources: tuple[ComparisonSource, ...] = ()
    agreement: float = float("nan")
    decisions: int = 0


def decompile_counting(
    model: SequenceTransformer,
    words: Sequence[str | None],
    *,
    longest: int | None = None,
    seed: int = 0,
) -> CountingProgram:
    """Find the C-RASP program that a model computes.

    Args:
        model: A model whose first token is BOS, id 0. Its answer at a position is yes if the output
            is above ½, or if the second of two outputs is larger.
        words: The token of each id but 0; None for tokens without a name, which a program can only
            distinguish from all that have one.
        longest: The largest number of tokens of a string for which the program must be right; None
            for as many as the model takes.
        seed: Seed of the strings and counts that the model is evaluated on.

    Raises:
        ArgumentError: if the words are not the model's, or ``longest`` is out of range.
    """
    spec = model.spec
    most = spec.n_ctx - 1
    problems = Problems("decompile_counting")
    good, rule = len(words) == spec.d_in - 1, f"must name ids 1 to {spec.d_in - 1}"
    problems.need(good, "words", rule, list(words), "None stands for a token without name")
    good, rule = longest is None or 2 <= longest <= most, f"must lie in 2 … {most}"
    problems.need(good, "longest", rule, longest, "leave it out to take the model's own")
    problems.raise_if_any()
    length = longest or most
    generator = np.random.default_rng(seed)
    ids = _strings(generator, _MEASURED, length, spec.d_in)
    try:
        machine = build_machine(read_network(model, _tokens(model, ids)), seed)
    except NotCountingError as refusal:
        return CountingProgram(None, str(refusal))
    written = write_program(machine, words)
    agreed, asked = _agreement(model, written.program, words, length, generator)
    return CountingProgram(written.program, "", _sources(written), agreed / asked, asked)


def decisions(
    model: SequenceTransformer, ids: Int[np.ndarray, "row pos"]
) -> Int[np.ndarray, "row tokens"]:
    """Return the model's answers, 0 or 1, at every position after BOS."""
    with torch.no_grad():
        out = model(_tokens(model, ids))[:, 1:].double().cpu().numpy()
    yes = out[..., 0] > 0.5 if out.shape[-1] == 1 else out[..., 1] > out[..., 0]
    return np.asarray(yes.astype(np.int64))


def _tokens(model: SequenceTransformer, ids: Int[np.ndarray, "row pos"]) -> Tensor:
    return torch.from_numpy(ids).to(next(model.parameters()).device)


def _sources(written: Written) -> tuple[ComparisonSource, ...]:
    found = []
    for line, variables in written.numbers.items():
        text = expression_text(written.program[line])
        for variable in variables:
            if variable.number is None:
                continue
            pairs = zip(variable.number.thresholds, variable.number.bends, strict=True)
            for threshold, bend in pairs:
                residual = bend.comparison.residual
                where = (variable.read, bend.hidden, bend.neuron)
                found.append(ComparisonSource(line, text, threshold, *where, residual))
    return tuple(found)


def _strings(generator: np.random.Generator, rows: int, length: int, tokens: int) -> np.ndarray:
    """Draw strings of one length, BOS in front, each with its own frequencies of tokens."""
    ids = np.zeros((rows, length + 1), dtype=np.int64)
    for row in ids:
        shares = generator.dirichlet(np.ones(tokens - 1))
        row[1:] = 1 + generator.choice(tokens - 1, length, p=shares)
    return ids


def _agreement(
    model: SequenceTransformer,
    program: Program,
    words: Sequence[str | None],
    longest: int,
    generator: np.random.Generator,
) -> tuple[int, int]:
    """Return the number of decisions that agree, and of all, on short strings and long ones."""
    tokens = len(words) + 1
    short = max(int(np.log(_SHORT_STRINGS) / np.log(max(tokens - 1, 2))), 2)
    batches = [_strings(generator, _SHORT_STRINGS // 4, min(short, longest), tokens)]
    lengths = np.unique(np.geomspace(min(short, longest), min(longest, 200), 6).astype(int))
    batches += [_strings(generator, _LONG_STRINGS // 6, int(n), tokens) for n in lengths]
    agreed = asked = 0
    names = [word if word is not None else f"\n{number}" for number, word in enumerate(words)]
    for ids in batches:
        values = evaluate_codes(program, ids[:, 1:] - 1, names).values["answer"]
        same = values == decisions(model, ids)
        agreed, asked = agreed + int(same.sum()), asked + same.size
    return agreed, asked
