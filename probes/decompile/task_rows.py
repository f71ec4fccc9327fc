"""Rows of a task in the form that decompiling reads: tokens, where something is asked, what is
right.

    strings that count     BOS and letters; the answer is "0" or "1"
    templates, walks       tokens ``t0``, ``t1`` …; the answer is a token, or "-1" and "+1"
    fixed memories         inputs of ±1 are the tokens "-1" and "+1"; so is the sign of the answer
    C-RASP programs        random strings over the program's letters, each with its own frequencies

A task of real values has no tokens, and no program of this language.

The model that is asked and the rows that it is asked on, checked before any work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.errors import ArgumentError, Problems
from interp.program.analysis import alphabet
from interp.program.evaluation import NONE, Vocabulary, evaluate_codes
from interp.program.syntax import Program
from interp.proofs.mechanism import Construction
from interp.tasks.base import Batch
from probes.decompile.rows import Rows

__all__ = ["asked", "rows_of_task"]

_SIGNS = ("-1", "+1")
_LONGEST = 40
BITS = 0.5
"""Between answers that are 0 and 1."""


def rows_of_task(task: Any, *, count: int = 400, seed: int = 0) -> Rows:
    """Rows of a task.

    Args:
        task: Whose inputs are tokens, or ±1; or a C-RASP program, as compiled models have it.
        count: How many.
        seed: Of the rows.

    Raises:
        ArgumentError: for a task whose inputs are other real values.
    """
    if isinstance(task, Program):
        return _rows_of_program(task, count, seed)
    batch: Batch = task.sample(count, seed=seed)
    codes, texts, encode = _inputs(task, batch)
    asked = batch.mask if batch.mask.ndim == 2 else batch.mask[..., 0]
    inside = asked.flip(1).cummax(1).values.flip(1)
    codes = torch.where(inside, codes, NONE)
    targets, threshold = batch.targets, 0.0
    if targets.is_floating_point() and bool((targets >= 0).all()):
        threshold = BITS
        answers, texts = _classes(task, texts)
        right = (targets[..., 0] > threshold).long()
    elif targets.is_floating_point():
        answers = [len(texts), len(texts) + 1] if _SIGNS[0] not in texts else [0, 1]
        right = (targets[..., 0] > 0).long()
        texts = texts if _SIGNS[0] in texts else (*texts, *_SIGNS)
    else:
        answers, texts = _classes(task, texts)
        right = targets
    labels = np.array(answers)[right.numpy()]
    return Rows(
        codes.numpy(),
        asked.numpy(),
        np.where(asked.numpy(), labels, NONE),
        Vocabulary(texts),
        "next token",
        answers=tuple(answers),
        encode=encode,
        threshold=threshold,
    )


def _rows_of_program(program: Program, count: int, seed: int) -> Rows:
    """Random strings of up to :data:`_LONGEST` letters, BOS in front, and what the program answers.

    The program's last letter is followed by an id for any other token, which no string has here.
    """
    generator = np.random.default_rng(seed)
    letters = [str(letter) for letter in alphabet(program)]
    lengths = generator.integers(1, _LONGEST + 1, count)
    codes = np.full((count, _LONGEST), NONE)
    for row, length in zip(codes, lengths, strict=True):
        shares = generator.dirichlet(np.ones(len(letters)))
        row[:length] = generator.choice(len(letters), length, p=shares)
    answers = evaluate_codes(program, codes, letters, lengths).values[program.lines[-1].name]
    first = np.zeros((count, 1), dtype=np.int64)
    there = np.concatenate([first > 0, codes >= 0], axis=1)
    texts = ("<bos>", *letters, "<other>", "0", "1")
    labels = np.concatenate([first, answers.astype(np.int64)], axis=1) + len(texts) - 2
    return Rows(
        np.concatenate([first, np.where(codes >= 0, codes + 1, NONE)], axis=1),
        there,
        np.where(there, labels, NONE),
        Vocabulary(texts),
        "next token",
        answers=(len(texts) - 2, len(texts) - 1),
        threshold=BITS,
    )


def _inputs(task: Any, batch: Batch) -> tuple[Tensor, tuple[str, ...], Any]:
    inputs = batch.inputs
    if not inputs.is_floating_point():
        return inputs, _texts(task, int(inputs.max()) + 1), None
    signs = inputs.ndim == 3 and inputs.shape[-1] == 1 and bool((inputs.abs() == 1).all())
    if not signs:
        raise ArgumentError(
            f"task must have tokens or ±1 as inputs, got real values of {type(task).__name__}: "
            "programs speak of tokens; give --data, or another model"
        )
    return (inputs[..., 0] > 0).long(), _SIGNS, _to_signs


def _to_signs(codes: Tensor) -> Tensor:
    return (2.0 * codes - 1.0)[..., None]


def _texts(task: Any, least: int) -> tuple[str, ...]:
    program = getattr(task, "program", None)
    if program is not None:
        letters = [str(letter) for letter in sorted(alphabet(program))]
        return ("<bos>", *letters, *(f"<{i}>" for i in range(least - 1 - len(letters))))
    size = max(least, int(getattr(task, "vocabulary", 0) or 0))
    return tuple(f"t{code}" for code in range(size))


def _classes(task: Any, texts: tuple[str, ...]) -> tuple[list[int], tuple[str, ...]]:
    """Code of each output, and the texts with those of outputs that are no tokens."""
    if getattr(task, "program", None) is None:
        return list(range(len(texts))), texts
    return [len(texts), len(texts) + 1], (*texts, "0", "1")


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
