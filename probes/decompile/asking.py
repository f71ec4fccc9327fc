"""The model that is asked and the rows that it is asked on, checked before any work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from interp.errors import Problems
from interp.proofs.mechanism import Construction
from probes.decompile.rows import Rows
from probes.decompile.task_rows import BITS, rows_of_task

__all__ = ["asked"]

_YES_OR_NO = ("0", "1")


def asked(model: Any, rows: Rows | None, *, count: int, seed: int) -> tuple[Any, Rows, Any]:
    """A model, rows that fit it, and the task that the rows are of; None for rows that are given.

    Args:
        model: Hooked, or a construction with such a model.
        rows: By default those of the task that the model's card, or the construction, names.
        count: Of the task's rows.
        seed: Of the task's rows.

    Raises:
        ArgumentError: without rows for a model that knows no task; for rows with more tokens than
            the model knows or longer than it takes; for a vocabulary larger than the outputs, but
            for a yes or no with "0" and "1" in the vocabulary.
    """
    holder = model if isinstance(model, Construction) else getattr(model, "card", None)
    task = getattr(holder, "task", None)
    problems = Problems("decompile")
    rule = "must be given for a model that knows no task of its own"
    known = rows is not None or task is not None
    problems.need(known, "rows", rule, None, "read them with read_rows")
    problems.raise_if_any()
    own = rows is None
    rows = rows_of_task(task, count=count, seed=seed) if rows is None else rows
    model = model.model if isinstance(model, Construction) else model
    return model, _fitting(model, rows), task if own else None


def _fitting(model: Any, rows: Rows) -> Rows:
    spec = getattr(model, "spec", None)
    read, given = (
        (spec.d_in, spec.d_out)
        if spec is not None
        else (model.cfg.d_vocab, getattr(model.cfg, "d_vocab_out", None) or model.cfg.d_vocab)
    )
    longest, size = model.cfg.n_ctx, len(rows.vocabulary.texts)
    problems = Problems("decompile")
    got = int(rows.lengths.max(initial=0))
    advice = "leave out longer rows"
    problems.need(got <= longest, "rows", f"must have at most {longest} tokens", got, advice)
    used = 0 if rows.encode is not None else int(rows.tokens.max(initial=0)) + 1
    rule, advice = f"must use codes below {read}, the model's tokens", "give the model's own rows"
    problems.need(used <= read, "rows", rule, used - 1, advice)
    answers, threshold = rows.answers, rows.threshold
    if answers is None and given < size and given <= len(_YES_OR_NO):
        codes = rows.vocabulary.codes
        named = all(text in codes for text in _YES_OR_NO) and rows.objective == "next token"
        rule = 'must have "0" and "1" and the objective next token for a model that says yes or no'
        problems.need(named, "vocabulary", rule, list(codes)[:8], "name its two answers")
        answers = tuple(codes[text] for text in _YES_OR_NO) if named else None
        threshold = BITS
    elif answers is None:
        rule = f"must have at most {given} tokens, the model's outputs"
        problems.need(size <= given, "vocabulary", rule, size, "give the model's own")
    problems.raise_if_any()
    return replace(rows, answers=answers, threshold=threshold)
