"""The checks that every run makes: the model can take the rows, and all numbers are finite.

    ids        whole numbers within the vocabulary
    lengths    at most as many positions as the model has
    masks      all ones; rows with padding are stripped and run by length (:func:`by_length`)
    targets    as long as the inputs, ids within the outputs, something scored
    outputs    finite, both clean and edited

One error names all problems of a call. The checks cannot tell whether the rows make sense.
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
    """Return a batch of tokens ``[row, pos]`` whose targets are the next tokens.

    Args:
        tokens: Token ids as a tensor, an array or a list of rows of one length.
        start: The first position that is scored. The last position is never scored.

    Raises:
        ArgumentError: if the tokens are not integers ``[row, pos]`` with at least two positions.
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
    """Return inputs as a tensor; None if they cannot be converted.

    Args:
        inputs: A batch (its inputs are returned), a tensor, an array, or rows of one length.
    """
    if isinstance(inputs, Batch | Tensor):
        return inputs.inputs if isinstance(inputs, Batch) else inputs
    try:
        return torch.as_tensor(inputs)
    except (TypeError, ValueError, RuntimeError):
        return None


def by_length(tokens: Tensor, attention_mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Strip the padding from rows and group the rows by length.

    Yields:
        For each length the indices of its rows, and their tokens ``[row, pos]``.

    Raises:
        ArgumentError: if the mask has another shape than the tokens, or a row of the mask is not
            one unbroken stretch of ones.
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
    """Check that the model can take the rows, and return them as a batch.

    Args:
        model: A hooked model.
        batch: A batch; token ids ``[row, pos]``, whose targets are the next tokens; or the output
            of a tokenizer (``input_ids`` with its ``attention_mask``).
        attention_mask: The attention mask of token ids; it must be all ones (no padding).

    Raises:
        ArgumentError: if anything does not fit; the message names every problem.
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
    """Record a problem if ids of scored tokens are not among a model's outputs.

    Args:
        problems: The collection that the problem is added to.
        name: The argument that holds the ids.
        ids: The ids, of any shape.
        width: The number of outputs that the model has at a position.
    """
    ends = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
    rule = f"must be from 0 to {width - 1} where they are scored"
    problems.need(ends[0] >= 0 and ends[1] < width, name, rule, ends, "correct them")


def need_finite(values: Tensor, what: str) -> None:
    """Refuse numbers that are infinite or not a number.

    Args:
        values: The numbers.
        what: What produced the numbers, for the message.

    Raises:
        ArgumentError: if a number is infinite or not a number; the message contains ``what``.
    """
    if not bool(values.isfinite().all()):
        raise ArgumentError(
            f"Run: {what} gives numbers that are infinite or not a number: change it in another "
            "way, or run the model in a wider number format"
        )


def not_finite(model: Any, inputs: Tensor) -> ArgumentError:
    """Return the error that says where a model's activations are first infinite or not a number.

    Attention scores and patterns are not considered, because a score of −∞ is a mask.
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
