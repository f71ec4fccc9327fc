"""Beside a program of a model of ours: rows four times as long, and the program of the proof.

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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from interp.models.transformer import SequenceTransformer
from interp.program import syntax
from interp.program.analysis import is_past_only
from interp.program.evaluation import run
from interp.program.printer import program_text
from interp.program.syntax import Assignment, Expression, Program, children
from probes.decompile.counting import decompile_counting
from probes.decompile.decisions import Fidelity, agreement, decide, decided, outputs_of
from probes.decompile.judging import Judge, Judged
from probes.decompile.primitives import one_position
from probes.decompile.rows import Rows, rows_of_task
from probes.decompile.search import Candidate
from probes.decompile.shorten import exchanged


def program_of_counts(model: Any, rows: Rows, seed: int) -> Program | None:
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
class Alike:
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


def told_apart(judge: Judge, best: Judged) -> tuple[Judged, tuple[Alike, ...]]:
    """The program with the words that rows off the task speak for, and what they leave open.

    Args:
        judge: Knows the rows and the model's decisions.
        best: Any; one with tables stays as it is.
    """
    if best.exact or any(isinstance(p, syntax.Table) for p in _parts(best.program)):
        return best, ()
    open_: list[Alike] = []
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
                open_.append(Alike(name, taken.word, one.word))
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
