"""Beside a program of a model of ours: rows four times as long, and the program of the proof.

Rows of the task show strings of its language alone. There a shorter program can decide as the
proof's does, and training has no reason to prefer the proof's: which of the two a model computes
shows off the task, where they part.

Models that count, exactly: the C-RASP program in the weights, where there is one.

No search and nothing fitted: :func:`probes.decompile.counting.decompile_counting` reads the program
off the weights of a model that averages, looks a fixed number of tokens back and switches on
comparisons of counts. Trained models do none of that exactly; for them the answer is None.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from interp.models.transformer import SequenceTransformer
from interp.program.analysis import is_past_only
from interp.program.evaluation import run
from interp.program.printer import program_text
from interp.program.syntax import Program
from probes.decompile.counting import decompile_counting
from probes.decompile.decisions import Fidelity, agreement, decide, decided, outputs_of
from probes.decompile.judging import Judge
from probes.decompile.rows import Rows, rows_of_task

__all__ = ["Beside", "far", "program_of_counts", "proof"]


def program_of_counts(model: Any, rows: Rows, seed: int) -> Program | None:
    """The program that stands in a model's weights.

    Args:
        model: Any; of other classes than ours there is none.
        rows: Codes are the model's ids, of which 0 begins every row and stands nowhere else.
        seed: Of the strings that the model is asked about.
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
        task: Of strings, as :class:`interp.tasks.depth.strings.PrefixPrediction`.
        program: To be judged.
        judge: With the table that gains are measured against.
        seed: Of the rows.
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
        program: That was found.
        judge: With the rows and the model's decisions on them.
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
