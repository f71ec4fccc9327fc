"""The gate that every run passes: rows that the model can take, numbers that are finite.

    ids        whole numbers within the vocabulary
    lengths    at most as many positions as the model has
    masks      all ones; rows with pads are stripped and run by length (:func:`by_length`)
    targets    as long as the inputs, ids within the outputs, something scored
    outputs    finite, clean and changed

All problems of a call are named at once. The gate does not know whether rows make sense.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from interp.errors import ArgumentError, Problems, refuse_unless
from interp.hooks.limits import need_hooks, need_within
from interp.hooks.transformer_lens_adapter import vocabulary_of
from interp.tasks.base import Batch

_COLUMNS = {"input_ids", "attention_mask"}


def next_tokens(tokens: Any, start: int = 0) -> Batch:
    """Tokens ``[row, pos]`` whose targets are the next tokens, scored from a position on.

    Args:
        tokens: Token ids as a tensor, an array or a list of rows of one length.
        start: The first position that is scored.

    Raises:
        ArgumentError: for anything else.
    """
    given, tokens = tokens, rows_of(tokens)
    good = tokens is not None and tokens.ndim == 2 and tokens.shape[1] > 1
    good = good and not tokens.is_floating_point()
    rule = "must be a Batch, or token ids [row, pos] of one length and two positions at least"
    shown = given if tokens is None else tokens
    refuse_unless(good, "rows", rule, shown, "ids are integers; a tokenizer gives those of a text")
    tokens = tokens.long()
    targets = torch.cat((tokens[:, 1:], tokens[:, :1]), dim=1)
    mask = torch.ones(tokens.shape, dtype=torch.bool)
    mask[:, :start], mask[:, -1] = False, False
    return Batch(tokens, targets, mask)


def rows_of(inputs: Any) -> Tensor | None:
    """Inputs as a tensor: a batch's, a tensor, an array, or rows of one length; None for others."""
    if isinstance(inputs, Batch | Tensor):
        return inputs.inputs if isinstance(inputs, Batch) else inputs
    try:
        return torch.as_tensor(inputs)
    except (TypeError, ValueError, RuntimeError):
        return None


def by_length(tokens: Tensor, attention_mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows without their pads, those of one length together.

    Yields:
        The rows' numbers, and their tokens ``[row, pos]``.

    Raises:
        ArgumentError: for a mask of another shape, with holes, or of a row that is all pads.
    """
    problems, kept = Problems("by_length"), attention_mask.bool()
    same = kept.shape == tokens.shape
    rule = f"must be shaped {tuple(tokens.shape)}, as the tokens"
    problems.need(same, "attention_mask", rule, tuple(kept.shape), "give one for each token")
    problems.raise_if_any()
    steps = (kept[:, 1:] & ~kept[:, :-1]).sum(1) + kept[:, 0]
    whole = bool((steps == 1).all())
    rule, advice = "must be one stretch of ones in each row", "leave pads at the ends alone"
    problems.need(whole, "attention_mask", rule, steps.tolist(), advice)
    problems.raise_if_any()
    lengths = kept.sum(1)
    for length in lengths.unique().tolist():
        rows = torch.nonzero(lengths == length)[:, 0]
        yield rows, tokens[rows][kept[rows]].reshape(len(rows), length)


def admit_batch(model: Any, batch: Any, attention_mask: Tensor | None = None) -> Batch:
    """The rows as a batch that the model can take.

    Args:
        model: A hooked model.
        batch: A batch; token ids ``[row, pos]``, whose targets are the next tokens; or what a
            tokenizer gives (``input_ids`` with its ``attention_mask``).
        attention_mask: Which tokens are no pads, for token ids.

    Raises:
        ArgumentError: naming everything that does not fit.
    """
    need_hooks(model)
    problems = Problems("Run")
    if isinstance(batch, Mapping) or hasattr(batch, "input_ids"):
        columns = dict(batch)
        odd = sorted(set(columns) - _COLUMNS)
        rule = "must be input_ids and attention_mask"
        problems.need(not odd, "batch", rule, odd, "leave the other columns out")
        batch, attention_mask = columns.get("input_ids"), columns.get("attention_mask")
    problems.raise_if_any()
    batch = batch if isinstance(batch, Batch) else next_tokens(batch)
    if attention_mask is not None:
        whole = attention_mask.shape == batch.inputs.shape[:2] and bool(attention_mask.all())
        rule, advice = "must be all ones", "strip pads with by_length and make a run a length"
        zeros = int((attention_mask == 0).sum())
        problems.need(whole, "attention_mask", rule, f"{zeros} zeros", advice)
    _need_inputs(problems, model, batch.inputs)
    _need_targets(problems, model, batch)
    problems.raise_if_any()
    return batch


def _need_inputs(problems: Problems, model: Any, inputs: Tensor) -> None:
    shape = tuple(inputs.shape)
    filled = inputs.ndim >= 2 and 0 not in shape
    rule = "must be [row, pos(, channel)] with a row at least"
    problems.need(filled, "inputs", rule, shape, "give rows")
    if not filled:
        return
    if vocabulary_of(model) is None:
        need_within(problems, model, inputs)
        real = inputs.is_floating_point()
        finite = not real or bool(inputs.isfinite().all())
        problems.need(finite, "inputs", "must be finite", "NaN or infinity", "mend the rows")
        least = 0 if real else int(inputs.min())
        problems.need(least >= 0, "inputs", "must be ids from 0 on", least, "correct them")
        return
    whole = not (inputs.is_floating_point() or inputs.dtype == torch.bool) and inputs.ndim == 2
    rule = "must be token ids [row, pos]"
    advice = "give whole numbers; rows of real values, as some tasks', do not fit this model"
    problems.need(whole, "inputs", rule, (shape, str(inputs.dtype)), advice)
    if whole:
        need_within(problems, model, inputs)


def _need_targets(problems: Problems, model: Any, batch: Batch) -> None:
    places = tuple(batch.inputs.shape[:2])
    for name, value in (("targets", batch.targets), ("mask", batch.mask)):
        rule = f"must begin with {places}, as the inputs"
        problems.need(value.shape[:2] == places, name, rule, tuple(value.shape), "match them")
    if batch.mask.shape != places or batch.targets.shape[:2] != places:
        return
    rule = "must be boolean, and score a position at least"
    scored = batch.mask.dtype == torch.bool and bool(batch.mask.any())
    problems.need(scored, "mask", rule, str(batch.mask.dtype), "mark what is scored")
    width = getattr(getattr(model, "cfg", None), "d_vocab_out", None)
    width = getattr(getattr(model, "spec", None), "d_out", width)
    if scored and not batch.targets.is_floating_point() and isinstance(width, int) and width > 0:
        need_outputs(problems, "targets", batch.targets[batch.mask], width)


def need_outputs(problems: Problems, name: str, ids: Tensor, width: int) -> None:
    """Need ids of tokens that are scored to be among a model's outputs.

    Args:
        problems: Where it is noted if they are not.
        name: The argument that holds them.
        ids: The ids, of any shape.
        width: How many outputs the model has at a position.
    """
    ends = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
    rule = f"must be from 0 to {width - 1} where they are scored"
    problems.need(ends[0] >= 0 and ends[1] < width, name, rule, ends, "correct them")


def need_finite(values: Tensor, what: str) -> None:
    """Refuse numbers that are infinite or not a number.

    Raises:
        ArgumentError: saying what they are of.
    """
    if not bool(values.isfinite().all()):
        raise ArgumentError(
            f"Run: {what} gives numbers that are infinite or not a number: change it in another "
            "way, or run the model in a wider number format"
        )


def not_finite(model: Any, inputs: Tensor) -> ArgumentError:
    """The error that says where a model's activations are first infinite or not a number.

    Scores and patterns are left out: a score of −∞ is a mask.
    """
    found: list[str] = []

    def look(value: Any, hook: Any) -> None:
        if isinstance(value, Tensor) and not bool(value.isfinite().all()):
            found.append(str(hook.name))

    def counts(name: str) -> bool:
        return not name.endswith(("scores", "pattern", "score"))

    with torch.no_grad():
        output = model.run_with_hooks(inputs, fwd_hooks=[(counts, look)])
    if not found and isinstance(output, Tensor) and bool(output.isfinite().all()):
        return ArgumentError(
            "metric must give finite numbers, got infinite ones or NaN, where the model's outputs "
            "are finite: mend the metric"
        )
    return ArgumentError(
        f"Run: {type(model).__name__} gives activations that are infinite or not a number, first "
        f"at {found[0] if found else 'the output'}: look at its weights and at its inputs there"
    )
