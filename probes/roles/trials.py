"""The kinds of rows on which a pretrained model is run, each with its control.

    repeated   random tokens that repeat with a period of each row's own; control: the block in a
               new order every time
    aba, same  in-context templates on fresh random tokens; control: without the rule
    text       pieces of the user's text, where the model has a tokenizer; control: none

Random tokens need no tokenizer and leave a model nothing but its context. Sizes follow the model's
vocabulary and context; what does not fit is left out with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from interp.errors import ArgumentError, Problems
from interp.models.pretrained import Pretrained
from interp.tasks.base import Batch
from interp.tasks.induction import InContextTemplate, RepeatedTokens

__all__ = ["LENGTH", "ROWS", "Trial", "rows_of", "text_trial", "token_trials"]

ROWS, LENGTH = 32, 64
_EXAMPLES = 8


@dataclass(frozen=True)
class Trial:
    """One kind of rows, with its control.

    Attributes:
        name: ``repeated``, ``aba``, ``same`` or ``text``.
        about: What the rows are, in words.
        batch: The tokens, the targets, and which positions are scored.
        control: The same tokens without the rule; None where there is no control.
    """

    name: str
    about: str
    batch: Batch
    control: Batch | None = None


def token_trials(
    model: Pretrained,
    *,
    rows: int = ROWS,
    length: int = LENGTH,
    seed: int = 0,
    tokens: Tensor | None = None,
) -> tuple[list[Trial], list[str]]:
    """The trials on random tokens, and the reasons why others are left out.

    Args:
        model: The model, whose vocabulary, context and BOS are used.
        rows: How many rows each trial has.
        length: Positions of a row of repeated tokens, at most (the model's context bounds it).
        seed: Seed of the random draws.
        tokens: The ids that are drawn; all that the model has by default.

    Raises:
        ArgumentError: for a model too small for repeated tokens, or fewer than two rows.
    """
    problems = Problems("inspect")
    problems.need(rows >= 4, "rows", "must be at least 4", rows, "nulls exchange rows")
    problems.need(length >= 12, "length", "must be at least 12", length, "two periods must fit")
    ids = _drawable(model, tokens)
    size, advice = len(ids), "no block of different tokens can be put in another order"
    problems.need(size >= 4, "vocabulary", "of the model must be at least 4", size, advice)
    good, rule = model.n_ctx >= 6, "of the model must be at least 6 positions"
    problems.need(good, "context", rule, model.n_ctx, "no block of two tokens fits in twice")
    problems.raise_if_any()
    length = min(length, model.n_ctx)
    longest = min((length - 2) // 2, size - 2)
    drawn = {
        "vocabulary": size,
        "bos": int(torch.searchsorted(ids, model.bos)) if model.bos >= 0 else -1,
    }
    periods = (max(2, longest // 3), longest)
    found, left_out = [], []
    made = [RepeatedTokens(length=length, periods=periods, chunk=c, **drawn) for c in (0, 1)]
    about = f"a block of {periods[0]} to {periods[1]} distinct random tokens, over and over"
    found.append(_trial("repeated", about, made, rows, seed, ids))
    examples = min(_EXAMPLES, (size - 3) // 3, model.n_ctx // 3)
    templates: tuple[tuple[Literal["aba", "same"], str], ...] = (
        ("aba", "triples α β α of fresh tokens: predict the third"),
        ("same", "pairs of fresh tokens and a label for equal or different: predict the label"),
    )
    for template, words in templates:
        if examples < 4:
            left_out.append(f"template {template}: the model has too few tokens or positions")
            continue
        tasks = [
            InContextTemplate(template, examples=examples, shuffled=s, **drawn)
            for s in (False, True)
        ]
        found.append(_trial(template, words, tasks, rows, seed, ids))
    return found, left_out


def rows_of(trials: Sequence[Trial]) -> dict[str, Batch]:
    """The trials' rows by kind, as :func:`probes.roles.find_roles` takes them for profile
    ``language``; the control of ``repeated`` is ``shuffled``."""
    found = {trial.name: trial.batch for trial in trials}
    for trial in trials:
        if trial.name == "repeated" and trial.control is not None:
            found["shuffled"] = trial.control
    return found


def text_trial(
    model: Pretrained, text: str, *, rows: int = ROWS, length: int = LENGTH
) -> Trial | None:
    """Pieces of a text, each after BOS; None where the model has no tokenizer.

    Raises:
        ArgumentError: if the text gives fewer than four pieces.
    """
    if model.tokenizer is None:
        return None
    length = min(length, model.n_ctx)
    body = length - (model.bos >= 0)
    ids = torch.tensor(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    pieces = ids[: len(ids) // body * body].reshape(-1, body)[:rows]
    if len(pieces) < 4:
        raise ArgumentError(
            f"text must give at least 4 pieces of {body} tokens, got {len(ids)} tokens: give more"
        )
    if model.bos >= 0:
        pieces = torch.cat([torch.full((len(pieces), 1), model.bos), pieces], dim=1)
    targets = pieces.roll(-1, 1)
    mask = torch.ones_like(pieces, dtype=torch.bool)
    mask[:, -1] = False
    return Trial("text", f"{len(pieces)} pieces of {length} tokens", Batch(pieces, targets, mask))


def _drawable(model: Pretrained, tokens: Tensor | None) -> Tensor:
    """The ids that rows are made of, sorted, BOS among them."""
    if tokens is None:
        return torch.arange(model.vocabulary)
    begin = torch.tensor([model.bos] if model.bos >= 0 else [], dtype=torch.long)
    return torch.cat([tokens.long(), begin]).unique()


def _trial(
    name: str,
    about: str,
    tasks: Sequence[RepeatedTokens | InContextTemplate],
    rows: int,
    seed: int,
    ids: Tensor,
) -> Trial:
    """The rows of a task and of its control, whose tokens are places in ``ids``."""
    batch, control = (
        _renamed(task.sample(rows, seed=seed + i), ids) for i, task in enumerate(tasks)
    )
    return Trial(name, about, batch, control)


def _renamed(batch: Batch, ids: Tensor) -> Batch:
    latents = dict(batch.latents)
    if "previous" in latents:
        before = latents["previous"]
        latents["previous"] = torch.where(before >= 0, ids[before.long().clamp_min(0)], before)
    return Batch(ids[batch.inputs], ids[batch.targets], batch.mask, latents)
