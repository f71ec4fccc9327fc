"""From a trained model back to a program: what it needs, what its heads do, and what that decides.

    rows → the model's decisions → the best table on the current token → components that are needed
         → a primitive for each head → formulas over what the heads fetch → the program, judged

A program is *found* where it decides as the model does on rows that were not fitted, held out and
longer, with match ≥ .9 **and** gain ≥ .9 (:mod:`probes.decompile.decisions`). Where all strings of
a recogniser can be looked at, it must decide every one of them as the model does. If the table on
the current token makes no mistake there, the answer is that no attention is needed; if no short
program gets there, the best one is told with its gain. Short is at most twenty lines, and as many
expressions as ten a line and twelve more, eighty at most: a formula of a hundred parts fits
anything. Feed-forward layers, LayerNorms and the readout are replaced by the formulas together:
what they cost is in the program's fidelity, which is measured without the model.

A program that decides alike says what is computed, not that each of its lines is where the evidence
puts it; off the task both may part ways, which is reported.
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
"""Strings of a recogniser that are fitted for each answer, beside its rows."""
_TOLD, _DRAWN = 10, 6
"""How many decisions that differ are told, and how many heads without a line are drawn."""


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
        least: The least gain, and match, of a program that is found.
        parted: The first of ``differ`` in words: rows, tokens so far, what the model and what the
            program decides.
        patterns: Place in ``heads`` → the head's pattern and its primitive's on a row,
            ``[query, key]``, of the heads that a line stands for and of :attr:`rest`.
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
        """Places in ``heads`` of those that no line stands for: of these the decisions speak."""
        return _rest(self.best, self.heads)

    def record(self) -> dict[str, Any]:
        """What ``result.json`` holds."""
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
        model: Hooked, causal; takes tokens ``[row, pos]`` and gives scores ``[row, pos, output]``.
            Or a construction with such a model.
        rows: What it is asked, eight different rows at least
            (:func:`probes.own_rows.read_rows`); by default those of the task that the model's card,
            or the construction, names.
        count: How many rows of the task are drawn, where none are given.
        seed: Seed for choosing the held-out rows and the rows outside the task.
        lines: Longest program that is reported as found.
        step: Told what is being done.

    Raises:
        ArgumentError: for too few rows, none where the model knows no task of tokens, rows that
            the model cannot be asked, or fewer lines than the shortest program has.
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
    """As many strings of a recogniser for each of its answers among the fitted queries: members may
    be rare."""
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
    """Every program that was judged, and what heads do: asked only as far as is needed."""
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
    """A few rows to try components on, of the fitted ones; where those are few, or one answer may
    be rare among them, of those off the task too."""
    fit = data.fit[:_PROBED]
    queries = data.queries[: _PROBED if len(data.fit) < _PROBED or len(data.every) else 0]
    return join_rows(fit, queries) if len(queries) else fit
