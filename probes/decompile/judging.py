"""Programs judged: how nearly each decides as the model does on rows that were not fitted, which
one is reported, and whether it counts as found.

    found                 match ≥ .9 and gain ≥ .9 on held-out and on longer rows, and short;
                          of a recogniser of few enough strings, every string as the model
    no attention needed   the table on the current token makes no mistake there, or what is found
                          reads the current token and nothing else

The second holds also where the current token's table has not seen every token: ``next = token`` is
such a table, for all tokens at once.

The same program in fewer words: what stands there twice gets a line and a name.

A difference of counts that several outputs ask about becomes ``d = count(…) - count(…)``; a plain
count that is used more than once ``n_a``. A difference that is asked about once and compared with 0
is a comparison of the two: ``count(…) - count(…) <= -1`` becomes ``count(…) < count(…)``. What a
program decides stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from interp.program import syntax
from interp.program.evaluation import run
from interp.program.syntax import Assignment, Expression, Program, children
from probes.decompile.decisions import Fidelity, TokenTable, agreement, decide, disagreements
from probes.decompile.rows import Split, TokenRows
from probes.decompile.search import Candidate, candidates

_AS_COMPARISON: dict[tuple[str, int], syntax.Relation] = {
    ("<=", 0): "<=",
    ("<=", -1): "<",
    (">=", 0): ">=",
    (">=", 1): ">",
}


def shortened(program: Program) -> Program:
    """The program with repeated counts and differences named."""
    repeated = Counter(
        part
        for output in program.outputs
        for part in children(_value(output), deep=True)
        if isinstance(part, syntax.CountWhere)
        or (isinstance(part, syntax.Operation) and _counts(part))
    )
    inside = Counter(
        part for found in repeated for part in children(found, deep=True) if part != found
    )
    chosen = [
        p for p, times in repeated.items() if times > 1 and inside[p] * times < repeated[p] + 1
    ]
    chosen = [
        p for p in chosen if not any(p != q and p in set(children(q, deep=True)) for q in chosen)
    ]
    names = {line.name for line in program.lines}
    lines, outputs = list(program.lines), program.outputs
    for part in chosen:
        name = _free(_name(part), names)
        names.add(name)
        lines.append(Assignment(name, part))
        outputs = tuple(_with(output, part, syntax.Name(name)) for output in outputs)
    found = {p for output in outputs for p in children(_value(output), deep=True)}
    for old in found:
        if (new := _comparison(old)) != old:
            outputs = tuple(_with(output, old, new) for output in outputs)
    return replace(program, lines=tuple(lines), outputs=outputs)


def _comparison(part: Expression) -> Expression:
    """A difference that is compared with 0, or nearly, as a comparison of its two sides."""
    match part:
        case syntax.Comparison(
            relation,
            syntax.Operation("-", syntax.CountWhere() as left, syntax.CountWhere() as right),
            syntax.Constant(value),
        ):
            plain = _AS_COMPARISON.get((relation, value))
            return part if plain is None else syntax.Comparison(plain, left, right)
    return part


def _counts(part: syntax.Operation) -> bool:
    return any(isinstance(inside, syntax.CountWhere) for inside in children(part, deep=True))


def _name(part: Expression) -> str:
    if isinstance(part, syntax.Operation):
        return "d"
    where = part.where if isinstance(part, syntax.CountWhere) else None
    if (
        isinstance(where, syntax.Comparison)
        and where.left == syntax.Key("token")
        and isinstance(where.right, syntax.Literal_)
    ):
        word = "".join(c for c in where.right.text if c.isalnum())
        return f"n_{word}" if word else "n"
    return "n"


def _free(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}{number}"
    return found


def _value(output: syntax.Output) -> Expression:
    return output.condition if isinstance(output, syntax.Allow) else output.value


def _with(output: syntax.Output, old: Expression, new: Expression) -> syntax.Output:
    if isinstance(output, syntax.Allow):
        return replace(output, condition=exchanged(output.condition, old, new))
    return replace(output, value=exchanged(output.value, old, new))


def exchanged(part: Expression, old: Expression, new: Expression) -> Expression:
    """The expression with one part of it replaced wherever it stands."""
    return syntax.rebuilt(part, lambda inner: new if inner == old else inner)


LEAST = 0.9
"""Match and gain, on held-out and on longer rows, from which a program counts as found."""
_ENOUGH, _NEAR, _PLAIN = 0.995, 0.05, 30
NODES, _A_LINE, _FREE = 80, 10, 12
"""Expressions in a program that counts as short: at most 80 in all, and 12 beside ten a line."""
_READ = 2
"""Times so many expressions are not looked at."""
_OFF_TASK, _A_NODE, _A_TABLE = 0.15, 0.005, 0.1
"""What gain off the task is worth beside gain on it, and what a node
of the program and a table without a name cost."""
LONGEST = 20
"""Lines, at most."""
_FIRST = 2048
"""Strings of a recogniser that a program must get right before it is tried on all."""

_UNKNOWN = Fidelity(float("nan"), float("nan"))

Answer = Literal["found", "no attention needed", "not found"]


@dataclass(frozen=True)
class Judged:
    """A program and how nearly it decides as the model does.

    Attributes:
        program: The judged program, which runs without the model.
        sources: Name of a line → index into the heads' primitives; −1 without one.
        held, longer, off_task: Fidelity on rows held out, longer, and off the task.
        every: Fidelity on all strings of a recogniser, or on the first of them where it is wrong
            there already; NaN where they are too many, or not what the rows ask.
        exact: Whether it was read off the weights, not searched for: then it is as long as it is.
    """

    program: Program
    sources: dict[str, int]
    held: Fidelity
    longer: Fidelity
    off_task: Fidelity
    every: Fidelity = _UNKNOWN
    exact: bool = False

    @property
    def score(self) -> float:
        """The least gain on held-out rows, longer ones, and all strings where they are known."""
        known = [] if isnan(self.every.match) else [self.every]
        return min(_or_match(one) for one in (self.held, self.longer, *known))

    @property
    def worth(self) -> float:
        """Gain, with a part of that off the task, less what reading it costs."""
        off = min(max(_or_match(self.off_task), 0.0), 1.0)
        reading = _A_NODE * self.program.nodes + _A_TABLE * self.program.unnamed
        return self.score + _OFF_TASK * off - reading

    @property
    def short(self) -> bool:
        """Whether there is little enough to read; what stands in the weights is as it is."""
        program = self.program
        return self.exact or program.nodes <= min(NODES, _FREE + _A_LINE * program.size)

    @property
    def found(self) -> bool:
        """Whether match and gain are high enough on both, and nothing is missed where all strings
        are known."""
        matches = min(self.held.match, self.longer.match)
        enough = matches >= LEAST and self.score >= LEAST and self.short
        return enough and self.misses_no_string

    @property
    def misses_no_string(self) -> bool:
        """Whether every string is decided as the model does, or not all strings are known."""
        return isnan(self.every.match) or self.every.match == 1.0


@dataclass(frozen=True)
class Rightness:
    """Decisions beside labels, on rows that were not fitted; NaN without labels.

    Attributes:
        model, program: Share of decisions that are right.
        errors: Decisions that the model takes wrongly.
        as_model, as_label: Share of these that the program takes as the model does, or rightly.
    """

    model: float = float("nan")
    program: float = float("nan")
    errors: int = 0
    as_model: float = float("nan")
    as_label: float = float("nan")


def curve(tried: Sequence[Judged]) -> list[dict[str, float]]:
    """The best gain of programs of at most so many lines, where it rises."""
    found: list[dict[str, float]] = []
    for one in sorted(tried, key=lambda j: (j.program.size, -j.score)):
        if not found or one.score > found[-1]["gain"]:
            found.append({"lines": float(one.program.size), "gain": one.score})
    return found


class Judge:
    """Makes programs and measures them on what was not fitted.

    Args:
        data: Rows, split.
        truth: The model's decisions on each part.
        table: Fitted to the model's decisions.
        lines: Longest program that is judged.
        positions: Whether the model knows positions.
    """

    def __init__(
        self,
        data: Split,
        truth: dict[str, NDArray[Any]],
        table: TokenTable,
        lines: int,
        positions: bool,
    ) -> None:
        self.data, self.truth, self.table = data, truth, table
        self.lines, self.positions = lines, positions

    def all(self, fetched: Sequence[tuple[int, Any]], layers: int = 0) -> Iterator[Judged]:
        """Programs over what heads fetch, fitted to the rows alone and with rows off the task."""
        fits = [(self.data.fit, self.truth["fit"])]
        if len(self.data.queries):
            both = joined(self.data.fit, self.data.queries)
            fits.append((both, np.concatenate([self.truth["fit"], self.truth["queries"]])))
        for rows, decisions in fits:
            known = self.positions
            for candidate in candidates(rows, decisions, fetched, layers, positions=known):
                program = candidate.program
                if program.size <= self.lines and program.nodes <= _READ * NODES:
                    yield self.one(candidate)

    def one(self, candidate: Candidate) -> Judged:
        """One program, judged."""
        program = shortened(candidate.program)
        program = program if program.size <= self.lines else candidate.program
        sources = {line.name: candidate.sources.get(line.name, -1) for line in program.lines}
        held, longer, off = (
            self._fidelity(program, name) for name in ("held", "longer", "off_task")
        )
        first = self._fidelity(program, "every", _FIRST)
        every = self.everywhere(program) if first.match == 1.0 else first
        return Judged(program, sources, held, longer, off, every)

    def everywhere(self, program: Program) -> Fidelity:
        """Fidelity on all strings of a recogniser; NaN for other rows."""
        return self._fidelity(program, "every")

    def exact(self, program: Program) -> Judged:
        """A program that stands in the weights, judged."""
        return replace(self.one(Candidate(program, {})), program=program, exact=True)

    def best(self, tried: Sequence[Judged]) -> Judged:
        """One that stands in the weights; else, of those nearly as good as any, the one that is
        short and right off the task too; one that counts as found before one that does not."""
        exact = [one for one in tried if one.exact and one.found]
        short = [one for one in tried if one.short]
        found = exact or [one for one in tried if one.found] or short or list(tried)
        most = max(one.score for one in found)
        near = [one for one in found if one.score >= most - _NEAR]
        return max(near, key=lambda one: (one.worth, one.score))

    def enough(self, tried: Sequence[Judged]) -> bool:
        """Whether what needs no attention is as good as can be, off the task too."""
        return any(min(one.score, _or_match(one.off_task)) >= _ENOUGH for one in tried)

    def plain(self, tried: Sequence[Judged]) -> bool:
        """Whether one was found that is good and has little to read."""
        best = self.best(tried)
        return best.found and best.score >= LEAST + _NEAR and best.program.nodes <= _PLAIN

    def table_match(self) -> tuple[float, float]:
        """The current-token table's match on held-out and on longer rows."""
        held, longer = (
            self.table.fidelity(part, self.truth[name], self.table(part)).match
            for name, part in (("held", self.data.held), ("longer", self.data.longer))
        )
        return held, longer

    def right(self, best: Judged) -> Rightness:
        """Shares of labelled decisions, not fitted, in which model and program are right."""
        labels, model, program = [], [], []
        for name, part in (("held", self.data.held), ("longer", self.data.longer)):
            if part.labels is None:
                return Rightness()
            labels.append(part.labels[part.asked])
            model.append(self.truth[name])
            program.append(decide(run(best.program, part.tokens, part.vocabulary), part))
        wanted, own, other = (np.concatenate(x) for x in (labels, model, program))
        errs = own != wanted
        return Rightness(
            float((own == wanted).mean()),
            float((other == wanted).mean()),
            int(errs.sum()),
            agreement(other[errs], own[errs]),
            agreement(other[errs], wanted[errs]),
        )

    def differ(self, best: Judged) -> Iterator[tuple[str, int, int]]:
        """Where program and model part, on rows that were not fitted."""
        for name in ("held", "longer", "off_task", "every"):
            part = getattr(self.data, name)
            found = decide(run(best.program, part.tokens, part.vocabulary), part)
            for row, position in disagreements(part, self.truth[name], found):
                yield name, row, position

    def _fidelity(self, program: Program, name: str, most: int | None = None) -> Fidelity:
        part = getattr(self.data, name)[:most]
        if not len(part):
            return _UNKNOWN
        found = decide(run(program, part.tokens, part.vocabulary), part)
        return self.table.fidelity(part, self.truth[name][: len(found)], found)


def joined(one: TokenRows, other: TokenRows) -> TokenRows:
    """Some rows and then others."""
    tokens = np.concatenate([one.tokens, other.tokens])
    asked = np.concatenate([one.asked, other.asked])
    return replace(one, tokens=tokens, asked=asked, labels=None)


def answer(best: Judged, table: tuple[float, float]) -> Answer:
    """What is answered.

    Args:
        best: The program that is reported.
        table: Match of the best table on the current token on held-out and longer rows.
    """
    by_table = min(table) >= 1.0 and best.misses_no_string
    if by_table or (best.found and best.program.pointwise):
        return "no attention needed"
    return "found" if best.found else "not found"


def _or_match(fidelity: Fidelity) -> float:
    """Gain; where the table makes no mistake, so that there is none, 1 for a perfect match else
    0."""
    if np.isfinite(fidelity.gain):
        return fidelity.gain
    return 1.0 if fidelity.match >= 1.0 else 0.0
