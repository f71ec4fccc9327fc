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

Beside a program of a model of ours: rows four times as long, and the program of the proof.

Rows of the task show strings of its language alone. There a shorter program can decide as the
proof's does, and training has no reason to prefer the proof's: which of the two a model computes
shows off the task, where they part.

Models that count, exactly: the C-RASP program in the weights, where there is one.

No search and nothing fitted: :func:`probes.decompile.counting.decompile_counting` reads the program
off the weights of a model that averages, looks a fixed number of tokens back and switches on
comparisons of counts. Trained models do none of that exactly; for them the answer is None.

Lines that could say something else and decide the same: told apart where rows off the task can.

``commonest`` of two tokens that differ is the least of them, and the first where rows are sorted. A
line that picks with one of these words is tried with the others. Those that decide the same on all
rows of the task are compared on the rows off the task that are fitted: the word that decides most
as the model does there is taken, of equals the plainest (first and last, then least and greatest,
then commonest and rarest). What even those rows do not tell apart is said.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from interp.errors import need
from interp.models.transformer import SequenceTransformer
from interp.program import syntax
from interp.program.analysis import is_past_only
from interp.program.evaluation import run
from interp.program.printer import program_text
from interp.program.syntax import Assignment, Expression, Program, children
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
from probes.decompile.counting import decompile_counting
from probes.decompile.decisions import Fidelity, TokenTable, agreement, decide, decided, outputs_of
from probes.decompile.evidence import ProgramEvidence, evidence, number_or_none
from probes.decompile.judging import (
    LEAST,
    LONGEST,
    Answer,
    Judge,
    Judged,
    Rightness,
    answer,
    curve,
    exchanged,
    joined,
)
from probes.decompile.primitives import one_position, primitives
from probes.decompile.rows import Split, TokenRows, asked, rows_of_task, split
from probes.decompile.search import Candidate

__all__ = ["Decompiled", "Judged", "decompile"]


def program_of_counts(model: Any, rows: TokenRows, seed: int) -> Program | None:
    """The program that stands in a model's weights.

    Args:
        model: Any; of other classes than ours there is none.
        rows: Codes are the model's ids, of which 0 begins every row and stands nowhere else.
        seed: Seed of the strings that the model is asked about.
    """
    ours = isinstance(model, SequenceTransformer) and rows.encode is None
    if not ours or rows.answers is None or len(rows.answers) != 2:
        return None
    starts = (rows.tokens == 0).sum(1) == 1
    if not (starts.all() and (rows.tokens[:, 0] == 0).all()):
        return None
    texts = rows.vocabulary.texts
    if model.spec.d_in > len(texts):
        return None
    used = set(np.unique(rows.tokens).tolist())
    words = [texts[code] if code in used else None for code in range(1, model.spec.d_in)]
    found = decompile_counting(model, words, seed=seed)
    if found.program is None or found.agreement < 1.0:
        return None
    no, yes = (texts[code] for code in rows.answers)
    return found.program.deciding(yes, no)


_TIMES = 4
_PARTS = ("held", "longer", "off_task")


@dataclass(frozen=True)
class Beside:
    """The proof's program beside the one that was found.

    Attributes:
        program: The proof's.
        model: Part of the rows → share of decisions that the proof's program takes as the model.
        found: Part → share that it takes as the program that was found.
    """

    program: Program
    model: dict[str, float]
    found: dict[str, float]

    def record(self) -> dict[str, Any]:
        """What ``result.json`` holds of it."""
        return {
            "program": program_text(self.program),
            "match_model": self.model,
            "match_found": self.found,
        }


def far(model: Any, task: Any, program: Program, judge: Judge, *, seed: int) -> Fidelity | None:
    """How nearly a program decides as the model on rows of up to four times the task's length; None
    for tasks without bins of lengths, and models that take no longer rows.

    Args:
        model: Hooked.
        task: A task of strings, such as :class:`interp.tasks.depth.strings.PrefixPrediction`.
        program: The program that is judged.
        judge: A judge with the table that gains are measured against.
        seed: Seed of the rows.
    """
    bins = getattr(task, "bins", None)
    longest = max((high for _, high in bins), default=0) if bins else 0
    most = min(_TIMES * longest, model.cfg.n_ctx - 1)
    if longest < 1 or most <= longest:
        return None
    rows = rows_of_task(replace(task, bins=((longest + 1, most),)), count=100, seed=seed + 3)
    own = decided(outputs_of(model, rows), rows)
    found = decide(run(program, rows.tokens, rows.vocabulary), rows)
    return judge.table.fidelity(rows, own, found)


def proof(task: Any, program: Program, judge: Judge) -> Beside | None:
    """The C-RASP program of a task beside one that was found; None for tasks without one.

    Args:
        task: Any; or a C-RASP program, as compiled models have it.
        program: The program that was found.
        judge: A judge with the rows and the model's decisions on them.
    """
    counted = task if isinstance(task, Program) else getattr(task, "program", None)
    answers = judge.data.fit.answers
    if not isinstance(counted, Program) or answers is None or len(answers) != 2:
        return None
    if not is_past_only(counted):
        return None
    no, yes = (judge.data.fit.vocabulary.texts[code] for code in answers)
    wanted = counted.deciding(yes, no)
    model, found = {}, {}
    for name in _PARTS:
        part = getattr(judge.data, name)
        theirs, ours = (
            decide(run(one, part.tokens, part.vocabulary), part) for one in (wanted, program)
        )
        model[name] = agreement(theirs, np.asarray(judge.truth[name]))
        found[name] = agreement(theirs, ours)
    return Beside(wanted, model, found)


_TASK, _ELSE = ("fit", "held", "longer"), ("queries", "off_task")
_PLAINNESS: tuple[syntax.Which, ...] = ("first", "last", "least", "greatest", "commonest", "rarest")
_NEARLY = 0.01


@dataclass(frozen=True)
class OtherWord:
    """A word that would decide alike.

    Attributes:
        line: Name of the line.
        word: How it picks.
        instead: How else it could.
    """

    line: str
    word: str
    instead: str


@dataclass(frozen=True)
class _Variant:
    program: Program
    names: dict[str, str]
    line: str
    word: syntax.Which


def told_apart(judge: Judge, best: Judged) -> tuple[Judged, tuple[OtherWord, ...]]:
    """The program with the words that rows off the task speak for, and what they leave open.

    Args:
        judge: Knows the rows and the model's decisions.
        best: Any; one with tables stays as it is.
    """
    if best.exact or any(isinstance(p, syntax.Table) for p in _parts(best.program)):
        return best, ()
    open_: list[OtherWord] = []
    for number in range(len(best.program.lines)):
        line = best.program.lines[number]
        picked = _among_several(line.expression)
        if picked is None:
            continue
        own = _decisions(judge, best.program, (*_TASK, *_ELSE))
        same = []
        for one in _variants(best.program, number):
            found = _decisions(judge, one.program, _TASK)
            if all(np.array_equal(found[name], own[name]) for name in _TASK):
                same.append((one, found | _decisions(judge, one.program, _ELSE)))
        first = _Variant(best.program, {}, line.name, picked.which)
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


def _among_several(expression: Expression) -> syntax.Pick | None:
    """An expression that picks a token, and among several positions; None for others."""
    if not isinstance(expression, syntax.Pick) or expression.value == syntax.Key("position"):
        return None
    return None if one_position(expression.where) else expression


def _plausible(judge: Judge, one: _Variant, found: dict[str, NDArray[Any]]) -> tuple[int, int]:
    match = agreement(found["queries"], judge.truth["queries"])
    rounded = round(match / _NEARLY) if match == match else 0
    return rounded, -(_PLAINNESS.index(one.word) // 2)


def _decisions(judge: Judge, program: Program, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    found = {}
    for name in names:
        part = getattr(judge.data, name)
        found[name] = decide(run(program, part.tokens, part.vocabulary), part)
    return found


def _variants(program: Program, number: int) -> Iterator[_Variant]:
    """The program with another word in one line; a name that begins with the word changes too."""
    line = program.lines[number]
    if not isinstance(line.expression, syntax.Pick):
        return
    pick, taken = line.expression, {one.name for one in program.lines}
    for word in get_args(syntax.Which):
        if word == pick.which:
            continue
        begins = line.name.startswith(f"{pick.which}_")
        name = f"{word}{line.name.removeprefix(pick.which)}" if begins else line.name
        if name != line.name and name in taken:
            continue
        lines = [
            Assignment(one.name, _renamed(one.expression, line.name, name)) for one in program.lines
        ]
        lines[number] = Assignment(name, syntax.Pick(word, pick.value, pick.where))
        outputs = tuple(_output(one, line.name, name) for one in program.outputs)
        changed = replace(program, lines=tuple(lines), outputs=outputs)
        yield _Variant(changed, {line.name: name}, line.name, word)


def _output(output: syntax.Output, old: str, new: str) -> syntax.Output:
    match output:
        case syntax.Allow(token, condition):
            return syntax.Allow(token, _renamed(condition, old, new))
        case syntax.Next(value):
            return syntax.Next(_renamed(value, old, new))
        case syntax.Score(token, value):
            return syntax.Score(token, _renamed(value, old, new))


def _renamed(part: Expression, old: str, new: str) -> Expression:
    return exchanged(
        exchanged(part, syntax.Name(old), syntax.Name(new)), syntax.Key(old), syntax.Key(new)
    )


def _parts(program: Program) -> Iterator[Expression]:
    values = [line.expression for line in program.lines]
    values += [o.condition if isinstance(o, syntax.Allow) else o.value for o in program.outputs]
    for value in values:
        yield from children(value, deep=True)


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
    data, truth = _both_answers(data, truth)
    table = TokenTable(data.fit, truth["fit"])
    judge = Judge(data, truth, table, lines, knows_positions(model))
    some = _some(data)
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
        parted=tuple(_parted(best.program, data, truth, differ[:_TOLD])),
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
    return replace(data, queries=joined(data.every[some], data.queries)), truth | {"queries": both}


def _rest(best: Judged, heads: Sequence[HeadDoes]) -> list[int]:
    shown = {heads[k].head.name for k in best.sources.values() if k >= 0}
    first: dict[str, int] = {}
    for k, one in enumerate(heads):
        if not one.at and one.head.name not in shown:
            first.setdefault(one.head.name, k)
    return list(first.values())[:_DRAWN]


def _parted(
    program: Program,
    data: Split,
    decisions: dict[str, NDArray[Any]],
    differ: Sequence[tuple[str, int, int]],
) -> Iterator[tuple[str, str, str, str]]:
    """Rows, tokens so far, what the model and what the program decides, where they part."""
    for name, row, position in differ:
        part = getattr(data, name)
        texts = [part.vocabulary.texts[c] for c in part.tokens[row, : position + 1] if c >= 0]
        at = np.argwhere(part.asked).tolist().index([row, position])
        decided = decide(run(program, part.tokens, part.vocabulary), part)[at]
        both = (decisions[name][at], decided)
        model, found = (_answer_text(value, part.vocabulary.texts) for value in both)
        shown = " ".join(texts[-16:])
        yield name.replace("_", " "), f"… {shown}" if len(texts) > 16 else shown, model, found


def _answer_text(value: Any, texts: tuple[str, ...]) -> str:
    if np.ndim(value):
        return " ".join(texts[i] for i in np.flatnonzero(value)) or "nothing"
    return texts[int(value)] if int(value) >= 0 else "none"


def _need_program(tried: Sequence[Any], lines: int) -> None:
    rule = "must be as many as the shortest program here has: a line for each token that may follow"
    need("decompile", bool(tried), "lines", rule, lines, "allow more")


def _searched(
    model: Any,
    judge: Judge,
    kept: Pruned,
    some: TokenRows,
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


def _some(data: Split) -> TokenRows:
    """A few rows to try components on, of the fitted ones; where those are few, or one answer may
    be rare among them, of those off the task too."""
    fit = data.fit[:_PROBED]
    queries = data.queries[: _PROBED if len(data.fit) < _PROBED or len(data.every) else 0]
    return joined(fit, queries) if len(queries) else fit
