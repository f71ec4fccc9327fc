"""From a trained model back to a program: what it needs, what its heads do, and what that decides.

    rows → the model's decisions → the best table on the current token → components that are needed
         → a primitive for each head → formulas over what the heads fetch → the program, judged

A program is *found* where it decides as the model does on rows that were not fitted, held out and
longer, with match ≥ .9 **and** gain ≥ .9 (:mod:`probes.decompile.decisions`). If the table on the
current token makes no mistake there, the answer is that no attention is needed; if no short program
gets there, the best one is told with its gain. Short is at most twenty lines, and as many
expressions as ten a line and twelve more, eighty at most: a formula of a hundred parts fits
anything. Feed-forward layers, LayerNorms and the readout are replaced by the formulas together:
what they cost is in the program's fidelity, which is measured without the model.

A program that decides alike says what is computed, not that each of its lines is where the evidence
puts it; off the task both may part ways, which is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.errors import Problems
from interp.program.syntax import Program
from probes.decompile.beyond import Alike, Beside, far, program_of_counts, proof, told_apart
from probes.decompile.components import (
    HeadDoes,
    Kept,
    head_primitives,
    head_tables,
    knows_positions,
    line_heads,
    prune,
)
from probes.decompile.decisions import Fidelity, TokenTable, decided, outputs_of
from probes.decompile.evidence import Evidence, evidence
from probes.decompile.judging import (
    LONGEST,
    Answer,
    Judge,
    Judged,
    Rightness,
    answer,
    curve,
    joined,
)
from probes.decompile.primitives import primitives
from probes.decompile.rows import Rows, Split, asked, split

__all__ = ["Decompiled", "Judged", "decompile"]

_PROBED = 24


@dataclass(frozen=True)
class Decompiled:
    """The program that was found, and how often it agrees with the model.

    Attributes:
        answer: Whether a program was found, none is needed beyond a table, or none was found.
        best: The program that is reported.
        tried: Every program that was judged, for the curve of gain against lines.
        table: Match of the best table on the current token on held-out and longer rows.
        kept: Components that the decisions need.
        heads: What each kept head does.
        data: The rows, as they were split.
        decisions: The model's, by the part of the split.
        right: How often model and program are right, and what the program does where the model is
            not.
        evidence: Scores by sources, FFNs as tables, and what frozen norms cost.
        differ: (row, position) of held-out and longer rows where program and model part.
        alike: Other words for a line that would decide alike on every row that was looked at.
        far: Fidelity on rows of the model's own task that are up to four times as long; None
            without.
        proof: The proof's program beside it; None for a task without one.
        seconds: How long it took.
        lines: Longest program that was looked at.
    """

    answer: Answer
    best: Judged
    tried: tuple[Judged, ...]
    table: tuple[float, float]
    kept: Kept
    heads: tuple[HeadDoes, ...]
    data: Split
    decisions: dict[str, NDArray[Any]]
    right: Rightness
    evidence: Evidence
    differ: tuple[tuple[str, int, int], ...]
    alike: tuple[Alike, ...]
    far: Fidelity | None
    proof: Beside | None
    seconds: float
    lines: int = LONGEST

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
            "model_right": _number(self.right.model),
            "program_right": _number(self.right.program),
            "where_the_model_errs": {
                "decisions": self.right.errors,
                "program_as_model": _number(self.right.as_model),
                "program_right": _number(self.right.as_label),
            },
            "kept": [part.name for part in self.kept.parts],
            "pruned_gain": self.kept.gain,
            "heads": [
                {"head": h.head.name, "at": h.at, "does": h.primitive.words, "gain": h.gain}
                for h in self.heads
            ],
            **self.evidence.record(),
            "match_far": None if self.far is None else self.far.match,
            "gain_far": None if self.far is None else _number(self.far.gain),
            "proof": None if self.proof is None else self.proof.record(),
            "alike": [vars(one) for one in self.alike],
            "curve": curve(self.tried),
            "seconds": self.seconds,
        }


def decompile(
    model: Any,
    rows: Rows | None = None,
    *,
    count: int = 400,
    seed: int = 0,
    lines: int = LONGEST,
    step: Callable[[str], None] = lambda words: None,
) -> Decompiled:
    """Find a short program that decides as a model does.

    Args:
        model: Hooked, causal; takes tokens ``[row, pos]`` and gives scores ``[row, pos, output]``.
            Or a construction with such a model.
        rows: What it is asked, eight different rows at least
            (:func:`probes.decompile.rows.read_rows`); by default those of the task that the model's
            card, or the construction, names.
        count: How many rows of the task are drawn, where none are given.
        seed: Seed for choosing the held-out rows and the rows outside the task.
        lines: Longest program that is reported as found.
        step: Told what is being done.

    Raises:
        ArgumentError: for too few rows, none where the model knows no task of tokens, rows that
            the model cannot be asked, or fewer lines than the shortest program has.
    """
    start = time.monotonic()
    model, rows, task = asked(model, rows, count=count, seed=seed)
    data = split(rows, seed=seed)
    step("the model's decisions")
    truth = {name: decided(outputs_of(model, part), part) for name, part in vars(data).items()}
    table = TokenTable(data.fit, truth["fit"])
    judge = Judge(data, truth, table, lines, knows_positions(model))
    some = _some(data, truth)
    step("which components are needed")
    kept = prune(model, some, table)
    counted = program_of_counts(model, rows, seed)
    tried, heads = _searched(model, judge, kept, some, counted, step)
    _need_program(tried, lines)
    best, alike = told_apart(judge, judge.best(tried))
    step("what scores and FFNs are made of")
    known = {name for name, source in best.sources.items() if source >= 0}
    for name, one in line_heads(model, some, table, kept, best.program, known):
        best = replace(best, sources=best.sources | {name: len(heads)})
        heads.append(one)
    return Decompiled(
        answer=answer(best, judge.table_match()),
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
        alike=alike,
        far=None if task is None else far(model, task, best.program, judge, seed=seed),
        proof=None if task is None else proof(task, best.program, judge),
        seconds=time.monotonic() - start,
        lines=lines,
    )


def _need_program(tried: Sequence[Any], lines: int) -> None:
    problems = Problems("decompile")
    rule = "must be as many as the shortest program here has: a line for each token that may follow"
    problems.need(bool(tried), "lines", rule, lines, "allow more")
    problems.raise_if_any()


def _searched(
    model: Any,
    judge: Judge,
    kept: Kept,
    some: Rows,
    counted: Program | None,
    step: Callable[[str], None],
) -> tuple[list[Judged], list[HeadDoes]]:
    """Every program that was judged, and what heads do: asked only as far as is needed."""
    tried = [*judge.all([]), *([] if counted is None else [judge.exact(counted)])]
    if judge.enough(tried):
        return tried, []
    step("what each head does")
    queries = judge.data.queries[:_PROBED]
    heads = list(head_primitives(model, some, queries, judge.table, kept))
    step("what they decide")
    layers = len({one.head.layer for one in heads})
    tried += judge.all([(i, one.primitive) for i, one in enumerate(heads)], layers)
    if not (tried and judge.plain(tried)):
        step("what any head could fetch")
        wider = primitives(judge.data.fit, deep=layers > 1, positions=judge.positions)
        tried += judge.all([(-1, one) for one in wider], layers)
    if heads and tried and not judge.best(tried).found:
        step("which tokens heads look at")
        heads += head_tables(model, some, judge.table, kept)
        tried += judge.all([(i, one.primitive) for i, one in enumerate(heads)], layers)
    return tried, heads


def _some(data: Split, truth: dict[str, NDArray[Any]]) -> Rows:
    """A few rows to try components on, of the fitted ones and of those off the task, in turn."""
    fit, queries = data.fit[:_PROBED], data.queries[: _PROBED if len(data.fit) < _PROBED else 0]
    return joined(fit, queries) if len(queries) else fit


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
