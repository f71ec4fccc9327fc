"""Judge programs: how often each decides as the model does on rows that were not fitted, which one
is reported, and whether it counts as found.

    found                 match ≥ .9 and gain ≥ .9 on held-out and on longer rows, and short;
                          for a recogniser with few enough strings, right on every string
    no attention needed   the table on the current token makes no mistake there, or the program
                          found reads the current token and nothing else

The second also covers tokens that the table on the current token has not seen: ``next = token`` is
such a table, for all tokens at once.

Two lines can decide the same on the task and differ off it: ``commonest`` of two different tokens
is also the ``least`` of them, and the ``first`` if rows are sorted. For a line that picks with one
of these words, the other words are tried. Those that decide the same on all rows of the task are
compared on the fitted rows off the task: the word that decides most as the model there is chosen;
of equals the plainest (first and last, then least and greatest, then commonest and rarest). Words
that even those rows do not tell apart are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isnan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from interp.errors import ArgumentError
from interp.program import syntax
from interp.program.evaluation import run
from interp.program.reduction import smallest
from interp.program.syntax import Expression, Program
from probes.decompile.decisions import Fidelity, TokenTable, agreement, decide, disagreements
from probes.decompile.primitives import one_position
from probes.decompile.rows import Split, TokenRows
from probes.decompile.search import Candidate, candidates
from probes.decompile.wording import Variant, shorten, variants

LEAST = 0.9
"""Least match with the model's decisions, and least gain over a table on the current token, on
held-out and on longer rows, with which a program counts as found."""
_ENOUGH, _NEAR, _PLAIN = 0.995, 0.05, 30
NODES, _A_LINE, _FREE = 80, 10, 12
"""Number of expressions up to which a program counts as short: ``NODES`` in all, and no more than
``_A_LINE`` for each line and ``_FREE`` beside. This leaves room for all programs found in trained
models (at most 37 expressions in four lines) and not for those that fit shuffled weights by chance
(44 to 46 in two or three lines)."""
_READ = 2
"""A candidate with more than this many times ``NODES`` expressions is not judged at all."""
_OFF_TASK, _A_NODE, _A_TABLE = 0.15, 0.005, 0.1
"""Weights with which nearly equal programs are ranked, in units of gain on the task: of the gain on
rows off the task, and the cost of one expression and of one table without a name. With 0.25 off the
task and 0.003 an expression, programs came back with clauses about strings that cannot occur."""
LONGEST = 20
"""Largest number of lines of a program that is searched for by default."""
_FIRST = 2048
"""Number of strings of a recogniser on which a program is tried first. Only if it is right on all
of them is it run on every string."""

_UNKNOWN = Fidelity(float("nan"), float("nan"))

Answer = Literal["found", "no attention needed", "not found"]


@dataclass(frozen=True)
class Judged:
    """A program and how often it decides as the model does.

    Attributes:
        program: The program, which runs without the model.
        sources: Name of a line → index into the heads' primitives; −1 for a line without one.
        held, longer, off_task: Fidelity on held-out rows, longer rows, and rows off the task.
        every: Fidelity on all strings of a recogniser, or on the first of them if it is wrong there
            already; NaN if there are too many strings, or the rows are not those of a recogniser.
        exact: Whether the program was read off the weights instead of searched for; it may then be
            of any length.
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
        """The smallest gain on held-out rows, longer rows and, if they are known, all strings."""
        known = [] if isnan(self.every.match) else [self.every]
        return min(one.strict_gain for one in (self.held, self.longer, *known))

    @property
    def worth(self) -> float:
        """The score, plus a part of the gain off the task, minus a cost for the program's
        length."""
        off = min(max(self.off_task.strict_gain, 0.0), 1.0)
        reading = _A_NODE * self.program.nodes + _A_TABLE * self.program.unnamed
        return self.score + _OFF_TASK * off - reading

    @property
    def short(self) -> bool:
        """Whether the program is short enough to be read; always True for one read off the
        weights."""
        program = self.program
        return self.exact or program.nodes <= min(NODES, _FREE + _A_LINE * program.size)

    @property
    def is_found(self) -> bool:
        """Whether the program counts as found: match and gain are high enough on held-out and
        longer rows, it is short, and it is right on every string if all are known."""
        matches = min(self.held.match, self.longer.match)
        enough = matches >= LEAST and self.score >= LEAST and self.short
        return enough and self.misses_no_string

    @property
    def misses_no_string(self) -> bool:
        """Whether the program decides every string as the model does; True if not all strings are
        known."""
        return isnan(self.every.match) or self.every.match == 1.0


@dataclass(frozen=True)
class Rightness:
    """How often model and program give the labelled answer, on rows that were not fitted; NaN
    without labels.

    Attributes:
        model, program: Share of decisions that are right.
        errors: The number of the model's wrong decisions.
        as_model, as_label: Share of the model's wrong decisions in which the program decides as the
            model, or gives the label.
    """

    model: float = float("nan")
    program: float = float("nan")
    errors: int = 0
    as_model: float = float("nan")
    as_label: float = float("nan")


def curve(tried: Sequence[Judged]) -> list[dict[str, float]]:
    """Return the best gain of programs with at most so many lines, for each number of lines at
    which it rises."""
    found: list[dict[str, float]] = []
    for one in sorted(tried, key=lambda j: (j.program.size, -j.score)):
        if not found or one.score > found[-1]["gain"]:
            found.append({"lines": float(one.program.size), "gain": one.score})
    return found


class Judge:
    """Fits programs and judges them on rows that were not fitted.

    Args:
        data: The rows, split.
        truth: Part of the split → the model's decisions on it.
        table: The table on the current token, fitted to the model's decisions.
        lines: The most lines of a program that is judged.
        positions: Whether the model has position information.
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
        """Fit programs over what heads fetch, and judge them.

        Args:
            fetched: (index of a head, its primitive).
            layers: The number of layers with a needed head.

        Yields:
            The judged programs, fitted to the rows of the task alone, then together with rows off
            the task.
        """
        fits = [(self.data.fit, self.truth["fit"])]
        if len(self.data.queries):
            both = join_rows(self.data.fit, self.data.queries)
            fits.append((both, np.concatenate([self.truth["fit"], self.truth["queries"]])))
        for rows, decisions in fits:
            known = self.positions
            for candidate in candidates(rows, decisions, fetched, layers, positions=known):
                program = candidate.program
                if program.size <= self.lines and program.nodes <= _READ * NODES:
                    yield self.one(candidate)

    def one(self, candidate: Candidate) -> Judged:
        """Shorten and judge one program."""
        program = shorten(candidate.program)
        program = program if program.size <= self.lines else candidate.program
        sources = {line.name: candidate.sources.get(line.name, -1) for line in program.lines}
        held, longer, off = (
            self._fidelity(program, name) for name in ("held", "longer", "off_task")
        )
        first = self._fidelity(program, "every", _FIRST)
        every = self.everywhere(program) if first.match == 1.0 else first
        return Judged(program, sources, held, longer, off, every)

    def everywhere(self, program: Program) -> Fidelity:
        """Return a program's fidelity on all strings of a recogniser; NaN for other rows."""
        return self._fidelity(program, "every")

    def exact(self, program: Program) -> Judged:
        """Judge a program that was read off the weights; it is not shortened."""
        return replace(self.one(Candidate(program, {})), program=program, exact=True)

    def best(self, tried: Sequence[Judged]) -> Judged:
        """Return the program that is reported.

        A program read off the weights is preferred, then those that count as found, then short
        ones. Of those nearly as good as the best, the one with the largest :attr:`Judged.worth` is
        taken.
        """
        exact = [one for one in tried if one.exact and one.is_found]
        short = [one for one in tried if one.short]
        found = exact or [one for one in tried if one.is_found] or short or list(tried)
        most = max(one.score for one in found)
        near = [one for one in found if one.score >= most - _NEAR]
        return max(near, key=lambda one: (one.worth, one.score))

    def enough(self, tried: Sequence[Judged]) -> bool:
        """Return whether a program is nearly perfect on all rows, including those off the task, so
        that no head needs to be examined."""
        return any(min(one.score, one.off_task.strict_gain) >= _ENOUGH for one in tried)

    def plain(self, tried: Sequence[Judged]) -> bool:
        """Return whether the best of some programs is good and short.

        It must count as found, with a score of at least 0.95, and have at most 30 expressions.
        """
        best = self.best(tried)
        return best.is_found and best.score >= LEAST + _NEAR and best.program.nodes <= _PLAIN

    def table_match(self) -> tuple[float, float]:
        """Return the current-token table's match on held-out and on longer rows."""
        held, longer = (
            self.table.fidelity(part, self.truth[name], self.table(part)).match
            for name, part in (("held", self.data.held), ("longer", self.data.longer))
        )
        return held, longer

    def right(self, best: Judged) -> Rightness:
        """Return how often the model and a program give the labelled answer, and which of
        the two the program follows where the model errs.

        Held-out and longer rows are counted together. Without labels all shares are NaN.
        """
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
        """Yield (part of the rows, row, position) of decisions in which program and model differ,
        at most ten for each part that was not fitted."""
        for name in ("held", "longer", "off_task", "every"):
            part = getattr(self.data, name)
            found = decide(run(best.program, part.tokens, part.vocabulary), part)
            for row, position in disagreements(part, self.truth[name], found):
                yield name, row, position

    def parting_rows(
        self, best: Judged, differ: Sequence[tuple[str, int, int]]
    ) -> Iterator[tuple[str, str, str, str]]:
        """Describe decisions in which model and program differ.

        Args:
            best: The program.
            differ: (part of the rows, row, position) of each decision, from :meth:`differ`.

        Yields:
            The part of the rows, the tokens so far, the model's decision and the program's, in
            words.
        """
        for name, row, position in differ:
            part = getattr(self.data, name)
            texts = [part.vocabulary.texts[c] for c in part.tokens[row, : position + 1] if c >= 0]
            at = np.argwhere(part.asked).tolist().index([row, position])
            found = decide(run(best.program, part.tokens, part.vocabulary), part)[at]
            own, other = (
                _in_words(v, part.vocabulary.texts) for v in (self.truth[name][at], found)
            )
            shown = " ".join(texts[-16:])
            yield name.replace("_", " "), f"… {shown}" if len(texts) > 16 else shown, own, other

    def _fidelity(self, program: Program, name: str, most: int | None = None) -> Fidelity:
        part = getattr(self.data, name)[:most]
        if not len(part):
            return _UNKNOWN
        found = decide(run(program, part.tokens, part.vocabulary), part)
        return self.table.fidelity(part, self.truth[name][: len(found)], found)


def _in_words(decision: Any, texts: tuple[str, ...]) -> str:
    if np.ndim(decision):
        return " ".join(texts[i] for i in np.flatnonzero(decision)) or "nothing"
    return texts[int(decision)] if int(decision) >= 0 else "none"


def join_rows(one: TokenRows, other: TokenRows) -> TokenRows:
    """Return two sets of rows as one, without labels."""
    tokens = np.concatenate([one.tokens, other.tokens])
    asked = np.concatenate([one.asked, other.asked])
    return replace(one, tokens=tokens, asked=asked, labels=None)


def answer(best: Judged, table: tuple[float, float]) -> Answer:
    """Return the result of decompiling: ``found``, ``no attention needed`` or ``not found``.

    Args:
        best: The program that is reported.
        table: The match of the best table on the current token, on held-out and longer rows.
    """
    by_table = min(table) >= 1.0 and best.misses_no_string
    if by_table or (best.is_found and best.program.pointwise):
        return "no attention needed"
    return "found" if best.is_found else "not found"


_TASK, _ELSE = ("fit", "held", "longer"), ("queries", "off_task")
_PLAINNESS: tuple[syntax.Which, ...] = ("first", "last", "least", "greatest", "commonest", "rarest")
_NEARLY = 0.01


@dataclass(frozen=True)
class OtherWord:
    """A word that a line could pick with instead, without changing a decision.

    Attributes:
        line: Name of the line.
        word: The word that it picks with.
        instead: The other word.
    """

    line: str
    word: str
    instead: str


def choose_words(judge: Judge, best: Judged) -> tuple[Judged, tuple[OtherWord, ...]]:
    """Choose the words that lines pick with by the rows off the task.

    Args:
        judge: A judge with the rows and the model's decisions.
        best: The program; one read off the weights, or with tables, is left as it is.

    Returns:
        The program with the chosen words, and the other words that no row tells apart from them.
    """
    if best.exact or any(isinstance(p, syntax.Table) for p in best.program.parts()):
        return best, ()
    open_: list[OtherWord] = []
    for number in range(len(best.program.lines)):
        line = best.program.lines[number]
        picked = _among_several(line.expression)
        if picked is None:
            continue
        own = _decisions(judge, best.program, (*_TASK, *_ELSE))
        same = []
        for one in variants(best.program, number):
            found = _decisions(judge, one.program, _TASK)
            if all(np.array_equal(found[name], own[name]) for name in _TASK):
                same.append((one, found | _decisions(judge, one.program, _ELSE)))
        first = Variant(best.program, {}, line.name, picked.which)
        everyone = [(first, own), *same]
        taken, decided = max(everyone, key=lambda x: _plausible(judge, *x))
        for one, found in everyone:
            alike = all(np.array_equal(found[name], decided[name]) for name in _ELSE)
            if one is not taken and alike:
                name = taken.names.get(line.name, line.name)
                open_.append(OtherWord(name, taken.word, one.word))
        if taken is not first:
            sources = {taken.names.get(k, k): v for k, v in best.sources.items()}
            best = judge.one(Candidate(taken.program, sources))
    return best, tuple(open_)


def cut_down(judge: Judge, best: Judged) -> Judged:
    """Remove the parts of a recogniser's program that change its answer on no string of any length.

    Args:
        judge: A judge with the rows and the model's decisions.
        best: The program; one read off the weights, or not found, is left as it is.

    Returns:
        The smaller program (:mod:`interp.program.reduction`); ``best`` itself if none is found or
        this cannot be decided.
    """
    rows = judge.data.every
    if best.exact or not best.is_found or not len(rows) or rows.answers is None:
        return best
    texts = rows.vocabulary.texts
    letters = [texts[code] for code in rows.content().tolist()]
    with suppress(ArgumentError):
        program = smallest(best.program, letters=letters, yes=texts[rows.answers[1]])
        if program.nodes < best.program.nodes:
            found = judge.one(Candidate(program, best.sources))
            return found if found.is_found else best
    return best


def _among_several(expression: Expression) -> syntax.Pick | None:
    """Return the expression if it picks a token from several positions; else None."""
    if not isinstance(expression, syntax.Pick) or expression.value == syntax.Key("position"):
        return None
    return None if one_position(expression.where) else expression


def _plausible(judge: Judge, one: Variant, found: dict[str, NDArray[Any]]) -> tuple[int, int]:
    match = agreement(found["queries"], judge.truth["queries"])
    rounded = round(match / _NEARLY) if match == match else 0
    return rounded, -(_PLAINNESS.index(one.word) // 2)


def _decisions(judge: Judge, program: Program, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    found = {}
    for name in names:
        part = getattr(judge.data, name)
        found[name] = decide(run(program, part.tokens, part.vocabulary), part)
    return found
