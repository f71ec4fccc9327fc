"""From a trained model back to a program: what it needs, what its heads do, and what that decides.

    rows → the model's decisions → the best table on the current token → components that are needed
         → a primitive for each head → formulas over what the heads fetch → the program, judged

A program is *found* where it decides as the model does on rows that were not fitted, held out and
longer, with match ≥ .9 **and** gain ≥ .9 (:mod:`probes.decompile.decisions`). If the table on the
current token makes no mistake there, the answer is that no attention is needed; if no short program
gets there, the best one is told with its gain. Short is at most twenty lines and eighty expressions
in them: a formula of a hundred parts fits anything. Feed-forward layers, LayerNorms and the readout
are replaced by the formulas together: what they cost is in the program's fidelity, which is
measured without the model.

A program that decides alike says what is computed, not that each of its lines is where the evidence
puts it; off the task both may part ways, which is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from interp.errors import Problems
from interp.rasp.evaluation import run
from interp.rasp.syntax import Program
from probes.decompile.catalogue import primitives
from probes.decompile.components import (
    HeadDoes,
    Kept,
    head_primitives,
    knows_positions,
    prune,
)
from probes.decompile.decisions import (
    Fidelity,
    TokenTable,
    decide,
    decided,
    disagreements,
    outputs_of,
)
from probes.decompile.evidence import Evidence, evidence
from probes.decompile.line_heads import line_heads
from probes.decompile.rows import Rows, Split, split
from probes.decompile.search import Candidate, candidates
from probes.decompile.shorten import shortened
from probes.decompile.task_rows import rows_of_task

__all__ = ["Decompiled", "Judged", "decompile"]

LEAST = 0.9
"""Match and gain, on held-out and on longer rows, from which a program counts as found."""
_ENOUGH, _NEAR, _PLAIN = 0.995, 0.05, 30
_PROBED = 24
_NODES = 80
"""Expressions in a program that counts as short."""
_OFF_TASK, _A_NODE, _A_TABLE = 0.15, 0.005, 0.1
"""What gain off the task is worth beside gain on it, and what a node
of the program and a table without a name cost."""
_LONGEST = 20

Answer = Literal["found", "no attention needed", "not found"]


@dataclass(frozen=True)
class Judged:
    """A program and how nearly it decides as the model does.

    Attributes:
        program: It runs without the model.
        sources: Name of a line → index into the heads' primitives; −1 without one.
        held, longer, off_task: Fidelity on rows held out, longer, and off the task.
    """

    program: Program
    sources: dict[str, int]
    held: Fidelity
    longer: Fidelity
    off_task: Fidelity

    @property
    def score(self) -> float:
        """The lesser gain of held-out and longer rows."""
        return min(_or_match(self.held), _or_match(self.longer))

    @property
    def worth(self) -> float:
        """Gain, with a part of that off the task, less what reading it costs."""
        off = min(max(_or_match(self.off_task), 0.0), 1.0)
        reading = _A_NODE * self.program.nodes + _A_TABLE * self.program.unnamed
        return self.score + _OFF_TASK * off - reading

    @property
    def found(self) -> bool:
        """Whether match and gain are high enough on both."""
        matches = min(self.held.match, self.longer.match)
        return matches >= LEAST and self.score >= LEAST and self.program.nodes <= _NODES


@dataclass(frozen=True)
class Decompiled:
    """What came of it.

    Attributes:
        answer: Whether a program was found, none is needed beyond a table, or none was found.
        best: The program that is reported.
        tried: Every program that was judged, for the curve of gain against lines.
        table: Match of the best table on the current token on held-out and longer rows.
        kept: Components that the decisions need.
        heads: What each kept head does.
        data: The rows, as they were split.
        decisions: The model's, by the part of the split.
        right: Share of decisions with labels in which the model, and the program, are right.
        evidence: Scores by sources, FFNs as tables, and what frozen norms cost.
        differ: (row, position) of held-out and longer rows where program and model part.
        seconds: How long it took.
    """

    answer: Answer
    best: Judged
    tried: tuple[Judged, ...]
    table: tuple[float, float]
    kept: Kept
    heads: tuple[HeadDoes, ...]
    data: Split
    decisions: dict[str, NDArray[Any]]
    right: tuple[float, float]
    evidence: Evidence
    differ: tuple[tuple[str, int, int], ...]
    seconds: float

    def record(self) -> dict[str, Any]:
        """What ``result.json`` holds."""
        best = self.best
        return {
            "answer": self.answer,
            "match": best.held.match,
            "gain": _number(best.held.gain),
            "match_longer": best.longer.match,
            "gain_longer": _number(best.longer.gain),
            "match_off_task": _number(best.off_task.match),
            "gain_off_task": _number(best.off_task.gain),
            "lines": best.program.size,
            "unnamed": best.program.unnamed,
            "table_match": self.table[0],
            "table_match_longer": self.table[1],
            "model_right": _number(self.right[0]),
            "program_right": _number(self.right[1]),
            "kept": [part.name for part in self.kept.parts],
            "pruned_gain": self.kept.gain,
            "heads": [
                {"head": h.head.name, "at": h.at, "does": h.primitive.words, "gain": h.gain}
                for h in self.heads
            ],
            **self.evidence.record(),
            "curve": curve(self.tried),
            "seconds": self.seconds,
        }


def decompile(
    model: Any,
    rows: Rows | None = None,
    *,
    seed: int = 0,
    lines: int = _LONGEST,
    step: Callable[[str], None] = lambda words: None,
) -> Decompiled:
    """Find a short program that decides as a model does.

    Args:
        model: Hooked, causal; takes tokens ``[row, pos]`` and gives scores ``[row, pos, output]``.
        rows: What it is asked, eight different rows at least
            (:func:`probes.decompile.rows.read_rows`); by default 400 of the task that the model's
            card names.
        seed: Of what is held out and of the rows off the task.
        lines: Longest program that is reported as found.
        step: Told what is being done.

    Raises:
        ArgumentError: for too few rows, or none where the model knows no task of tokens.
    """
    start = time.monotonic()
    rows = _own_rows(model, seed) if rows is None else rows
    data = split(rows, seed=seed)
    step("the model's decisions")
    truth = {name: decided(outputs_of(model, part), part) for name, part in vars(data).items()}
    table = TokenTable(data.fit, truth["fit"])
    judge = _Judge(data, truth, table, lines, knows_positions(model))
    some = _some(data, truth)
    step("which components are needed")
    kept = prune(model, some, table)
    tried = list(judge.all([]))
    heads: list[HeadDoes] = []
    if not judge.enough(tried):
        step("what each head does")
        heads = list(head_primitives(model, some, table, kept))
        step("what they decide")
        layers = {one.head.layer for one in heads}
        fetched = [(i, one.primitive) for i, one in enumerate(heads)]
        tried += judge.all(fetched, _counting(heads))
        if not judge.plain(tried):
            step("what any head could fetch")
            wider = primitives(data.fit, deep=len(layers) > 1, positions=judge.positions)
            tried += judge.all([(-1, one) for one in wider], [-1] * len(layers))
    best = judge.best(tried)
    step("what scores and FFNs are made of")
    known = {name for name, source in best.sources.items() if source >= 0}
    for name, one in line_heads(model, some, table, kept, best.program, known):
        best = replace(best, sources=best.sources | {name: len(heads)})
        heads.append(one)
    return Decompiled(
        answer=_answer(best, judge.table_match()),
        best=best,
        tried=tuple(tried),
        table=judge.table_match(),
        kept=kept,
        heads=tuple(heads),
        data=data,
        decisions=truth,
        right=judge.right(best),
        evidence=evidence(model, data, table, kept, heads, best.program),
        differ=tuple(judge.differ(best)),
        seconds=time.monotonic() - start,
    )


def _own_rows(model: Any, seed: int) -> Rows:
    task = getattr(getattr(model, "card", None), "task", None)
    problems = Problems("decompile")
    rule = "must be given for a model that knows no task of its own"
    problems.need(task is not None, "rows", rule, None, "read them with read_rows")
    problems.raise_if_any()
    return rows_of_task(task, seed=seed)


def curve(tried: Sequence[Judged]) -> list[dict[str, float]]:
    """The best gain of programs of at most so many lines, where it rises."""
    found: list[dict[str, float]] = []
    for one in sorted(tried, key=lambda j: (j.program.size, -j.score)):
        if not found or one.score > found[-1]["gain"]:
            found.append({"lines": float(one.program.size), "gain": one.score})
    return found


class _Judge:
    """Makes programs and measures them on what was not fitted."""

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

    def all(
        self, fetched: Sequence[tuple[int, Any]], counting: Sequence[int] = ()
    ) -> Iterator[Judged]:
        """Programs over what heads fetch, fitted to the rows alone and with rows off the task."""
        fits = [(self.data.fit, self.truth["fit"])]
        if len(self.data.queries):
            both = _joined(self.data.fit, self.data.queries)
            fits.append((both, np.concatenate([self.truth["fit"], self.truth["queries"]])))
        for rows, decisions in fits:
            known = self.positions
            for candidate in candidates(rows, decisions, fetched, counting, positions=known):
                if candidate.program.size <= self.lines:
                    yield self.one(candidate)

    def one(self, candidate: Candidate) -> Judged:
        """One program, judged."""
        program = shortened(candidate.program)
        sources = {line.name: candidate.sources.get(line.name, -1) for line in program.lines}
        found = {name: self._fidelity(program, name) for name in ("held", "longer", "off_task")}
        return Judged(program, sources, **found)

    def best(self, tried: Sequence[Judged]) -> Judged:
        """Of those nearly as good as any the one that is short and right off the task too; one that
        counts as found before one that does not."""
        found = [one for one in tried if one.found] or list(tried)
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

    def right(self, best: Judged) -> tuple[float, float]:
        """Share of labelled decisions, not fitted, in which model and program are right."""
        labels, model, program = [], [], []
        for name, part in (("held", self.data.held), ("longer", self.data.longer)):
            if part.labels is None:
                return float("nan"), float("nan")
            labels.append(part.labels[part.asked])
            model.append(self.truth[name])
            program.append(decide(run(best.program, part.tokens, part.vocabulary), part))
        wanted = np.concatenate(labels)
        own, other = (float((np.concatenate(x) == wanted).mean()) for x in (model, program))
        return own, other

    def differ(self, best: Judged) -> Iterator[tuple[str, int, int]]:
        """Where program and model part, on rows that were not fitted."""
        for name in ("held", "longer", "off_task"):
            part = getattr(self.data, name)
            found = decide(run(best.program, part.tokens, part.vocabulary), part)
            for row, position in disagreements(part, self.truth[name], found):
                yield name, row, position

    def _fidelity(self, program: Program, name: str) -> Fidelity:
        part = getattr(self.data, name)
        if not len(part):
            return Fidelity(float("nan"), float("nan"))
        found = decide(run(program, part.tokens, part.vocabulary), part)
        return self.table.fidelity(part, self.truth[name], found)


def _counting(heads: Sequence[HeadDoes]) -> list[int]:
    """Of each layer the first head that is needed: where it looks at several positions, it
    counts."""
    found: dict[int, int] = {}
    for number, one in enumerate(heads):
        found.setdefault(one.head.layer, number)
    return [found[layer] for layer in sorted(found)]


def _some(data: Split, truth: dict[str, NDArray[Any]]) -> Rows:
    """A few rows to try components on, of the fitted ones and of those off the task, in turn."""
    fit, queries = data.fit[:_PROBED], data.queries[: _PROBED if len(data.fit) < _PROBED else 0]
    return _joined(fit, queries) if len(queries) else fit


def _joined(one: Rows, other: Rows) -> Rows:
    tokens = np.concatenate([one.tokens, other.tokens])
    asked = np.concatenate([one.asked, other.asked])
    return replace(one, tokens=tokens, asked=asked, labels=None)


def _answer(best: Judged, table: tuple[float, float]) -> Answer:
    if min(table) >= 1.0:
        return "no attention needed"
    return "found" if best.found else "not found"


def _or_match(fidelity: Fidelity) -> float:
    """Gain; where the table makes no mistake, so that there is none, 1 for a perfect match else
    0."""
    if np.isfinite(fidelity.gain):
        return fidelity.gain
    return 1.0 if fidelity.match >= 1.0 else 0.0


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
