"""From a trained model back to a program: which components it needs, what its heads do, and what is
decided from that.

    rows → the model's decisions → the best table on the current token → components that are needed
         → a primitive for each head → formulas over what the heads fetch → the program, judged

A program is *found* if it decides as the model does on rows that were not fitted, held out and
longer, with match ≥ .9 **and** gain ≥ .9 (:mod:`probes.decompile.decisions`). If all strings of a
recogniser can be checked, it must decide every one of them as the model does. If the table on the
current token makes no mistake there, the result is that no attention is needed; if no short program
is good enough, the best one is reported with its gain. Short is at most twenty lines, and at most
twelve expressions plus ten for each line, eighty in all: a formula of a hundred parts fits
anything. Feed-forward layers, LayerNorms and the readout are replaced by the formulas together:
what this costs is part of the program's fidelity, which is measured without the model.

A program that decides alike says what is computed, not that each of its lines is computed where the
evidence puts it; off the task program and model may differ, which is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.errors import need
from interp.program.syntax import Program
from probes.decompile.components import (
    HeadDoes,
    Pruned,
    head_primitives,
    head_tables,
    knows_positions,
    line_heads,
    mean_patterns,
    prune,
)
from probes.decompile.decisions import (
    DecisionTrial,
    Fidelity,
    TokenTable,
    output_decisions,
    outputs_of,
)
from probes.decompile.evidence import Beside, ProgramEvidence, evidence, far, number_or_none, proof
from probes.decompile.judging import (
    LEAST,
    LONGEST,
    Answer,
    Judge,
    Judged,
    OtherWord,
    Rightness,
    answer,
    choose_words,
    curve,
    cut_down,
    join_rows,
)
from probes.decompile.primitives import primitives
from probes.decompile.rows import Split, TokenRows, resolve_rows, split
from probes.decompile.search import program_of_counts

__all__ = ["Decompiled", "Judged", "decompile"]


_PROBED = 24

_EACH = 100
"""Number of strings of a recogniser, for each answer, that are added to the rows that programs are
fitted to. Members of the language may be rare among the rows."""
_TOLD, _DRAWN = 10, 6
"""What a report lists at most: decisions in which model and program differ, and heads without a
line in the program whose attention is drawn."""


@dataclass(frozen=True)
class Decompiled:
    """The program that was found, and how often it agrees with the model.

    Attributes:
        answer: ``found``, ``no attention needed`` (a table is enough) or ``not found``.
        best: The program that is reported.
        tried: Every program that was judged, for the curve of gain against lines.
        table: The match of the best table on the current token, on held-out and longer rows.
        kept: The components that the decisions need.
        heads: The needed heads with the primitives that can replace their attention patterns.
        data: The rows, as they were split.
        decisions: Part of the split → the model's decisions.
        right: How often model and program give the labelled answer, and what the program does where
            the model is wrong.
        evidence: Attention scores by sources, FFNs as tables, and the cost of frozen norms.
        differ: (part of the rows, row, position) of decisions in which program and model differ.
        alike: Other words for a line that would decide alike on every row.
        far: Fidelity on rows of the model's own task that are up to four times as long; None
            without such rows.
        proof: The proof's program beside it; None for a task without one.
        seconds: How long decompiling took.
        lines: The most lines of a program that was judged.
        least: The least match and gain of a program that counts as found.
        parted: The first of ``differ`` in words: part of the rows, tokens so far, the model's
            decision and the program's.
        patterns: Index into ``heads`` → the head's attention pattern and its primitive's on a row,
            ``[query, key]``, for the heads that a line stands for and those of :attr:`rest`.
    """

    answer: Answer
    best: Judged
    tried: tuple[Judged, ...]
    table: tuple[float, float]
    kept: Pruned
    heads: tuple[HeadDoes, ...]
    data: Split
    decisions: dict[str, NDArray[Any]]
    right: Rightness
    evidence: ProgramEvidence
    differ: tuple[tuple[str, int, int], ...]
    alike: tuple[OtherWord, ...]
    far: Fidelity | None
    proof: Beside | None
    seconds: float
    lines: int = LONGEST
    least: float = LEAST
    parted: tuple[tuple[str, str, str, str], ...] = ()
    patterns: Mapping[int, tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=dict)

    @property
    def rest(self) -> list[int]:
        """Indices into ``heads`` of the heads that no line stands for; the decisions replace
        them."""
        return _rest(self.best, self.heads)

    def record(self) -> dict[str, Any]:
        """Return the results as JSON data for ``result.json``."""
        best = self.best
        return {
            "answer": self.answer,
            "attention_needed": self.answer != "no attention needed",
            "match": best.held.match,
            "gain": number_or_none(best.held.gain),
            "match_longer": best.longer.match,
            "gain_longer": number_or_none(best.longer.gain),
            "match_off_task": number_or_none(best.off_task.match),
            "gain_off_task": number_or_none(best.off_task.gain),
            "strings": len(self.data.every) or None,
            "match_every_string": number_or_none(best.every.match),
            "lines": best.program.size,
            "unnamed": best.program.unnamed,
            "table_match": self.table[0],
            "table_match_longer": self.table[1],
            "model_right": number_or_none(self.right.model),
            "program_right": number_or_none(self.right.program),
            "where_the_model_errs": {
                "decisions": self.right.errors,
                "program_as_model": number_or_none(self.right.as_model),
                "program_right": number_or_none(self.right.as_label),
            },
            "kept": [part.name for part in self.kept.parts],
            "pruned_gain": self.kept.gain,
            "heads": [
                {"head": h.head.name, "at": h.at, "does": h.primitive.words, "gain": h.gain}
                for h in self.heads
            ],
            **self.evidence.record(),
            "match_far": None if self.far is None else self.far.match,
            "gain_far": None if self.far is None else number_or_none(self.far.gain),
            "proof": None if self.proof is None else self.proof.record(),
            "alike": [vars(one) for one in self.alike],
            "curve": curve(self.tried),
            "seconds": self.seconds,
        }


def decompile(
    model: Any,
    rows: TokenRows | None = None,
    *,
    count: int = 400,
    seed: int = 0,
    lines: int = LONGEST,
    step: Callable[[str], None] = lambda words: None,
) -> Decompiled:
    """Find a short program that decides as a model does.

    Args:
        model: A hooked causal model that takes tokens ``[row, pos]`` and returns scores ``[row,
            pos, output]``; or a construction with such a model.
        rows: Rows of tokens, at least eight different ones (:func:`probes.own_rows.read_rows`); by
            default those of the task that the model's card, or the construction, names.
        count: How many rows of the task are drawn, if none are given.
        seed: Seed for choosing the held-out rows and the rows outside the task.
        lines: The most lines of a program that is judged.
        step: A function that is called with the name of each stage as it begins.

    Raises:
        ArgumentError: for too few rows, for no rows if the model has no task of tokens, for rows
            that do not fit the model, or for fewer lines than the shortest program has.
    """
    start = time.monotonic()
    model, rows, task = resolve_rows(model, rows, count=count, seed=seed)
    data = split(rows, seed=seed)
    step("the model's decisions")
    truth = {
        name: output_decisions(outputs_of(model, part), part) for name, part in vars(data).items()
    }
    data, truth = _both_answers(data, truth)
    table = TokenTable(data.fit, truth["fit"])
    judge = Judge(data, truth, table, lines, knows_positions(model))
    some = DecisionTrial(model, _some(data), table)
    step("which components are needed")
    kept = prune(some)
    counted = program_of_counts(model, rows, seed)
    tried, heads = _search_programs(judge, kept, some, counted, step)
    rule = "must be as many as the shortest program here has: a line for each token that may follow"
    need("decompile", bool(tried), "lines", rule, lines, "allow more")
    best, alike = choose_words(judge, judge.best(tried))
    best = cut_down(judge, best)
    step("what scores and FFNs are made of")
    known = {name for name, source in best.sources.items() if source >= 0}
    for name, one in line_heads(some, kept, best.program, known):
        best = replace(best, sources=best.sources | {name: len(heads)})
        heads.append(one)
    if not best.misses_no_string:  # it was judged on the first strings alone
        best = replace(best, every=judge.everywhere(best.program))
    differ = tuple(judge.differ(best))
    drawn = [k for k in (*best.sources.values(), *_rest(best, heads)) if k >= 0]
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
        differ=differ,
        alike=alike,
        far=None if task is None else far(model, task, best.program, judge, seed=seed),
        proof=None if task is None else proof(task, best.program, judge),
        seconds=time.monotonic() - start,
        lines=lines,
        parted=tuple(judge.parting_rows(best, differ[:_TOLD])),
        patterns={
            k: mean_patterns(model, data.longer, heads[k].head, heads[k].primitive) for k in drawn
        },
    )


def _both_answers(
    data: Split, truth: dict[str, NDArray[Any]]
) -> tuple[Split, dict[str, NDArray[Any]]]:
    """Add strings of a recogniser to the fitted queries, up to a hundred for each answer, since
    members may be rare among the rows."""
    answers = truth["every"]
    picked = [np.flatnonzero(answers == one)[:_EACH] for one in np.unique(answers)]
    if not picked:
        return data, truth
    some = np.random.default_rng(0).permutation(np.concatenate(picked))
    both = np.concatenate([answers[some], truth["queries"]])
    return replace(data, queries=join_rows(data.every[some], data.queries)), truth | {
        "queries": both
    }


def _rest(best: Judged, heads: Sequence[HeadDoes]) -> list[int]:
    shown = {heads[k].head.name for k in best.sources.values() if k >= 0}
    first: dict[str, int] = {}
    for k, one in enumerate(heads):
        if not one.at and one.head.name not in shown:
            first.setdefault(one.head.name, k)
    return list(first.values())[:_DRAWN]


def _search_programs(
    judge: Judge,
    kept: Pruned,
    some: DecisionTrial,
    counted: Program | None,
    step: Callable[[str], None],
) -> tuple[list[Judged], list[HeadDoes]]:
    """Fit and judge programs, examining heads only as far as needed.

    Returns:
        Every program that was judged, and the heads with their primitives.
    """
    tried = [*judge.all([]), *([] if counted is None else [judge.exact(counted)])]
    if judge.enough(tried):
        return tried, []
    step("what each head does")
    queries = judge.data.queries[:_PROBED]
    heads = list(head_primitives(some, queries, kept))
    step("what they decide")
    layers = len({one.head.layer for one in heads})
    tried += judge.all([(i, one.primitive) for i, one in enumerate(heads)], layers)
    if not (tried and judge.plain(tried)):
        step("what any head could fetch")
        wider = primitives(judge.data.fit, deep=layers > 1, positions=judge.positions)
        tried += judge.all([(-1, one) for one in wider], layers)
    if heads and tried and not judge.best(tried).is_found:
        step("which tokens heads look at")
        heads += head_tables(some, kept)
        tried += judge.all([(i, one.primitive) for i, one in enumerate(heads)], layers)
    return tried, heads


def _some(data: Split) -> TokenRows:
    """Return a few fitted rows to try components on, with rows off the task if fitted rows are few
    or one answer may be rare among them."""
    fit = data.fit[:_PROBED]
    queries = data.queries[: _PROBED if len(data.fit) < _PROBED or len(data.every) else 0]
    return join_rows(fit, queries) if len(queries) else fit
