"""The rows of each kind on which roles are tested, and which positions count.

TASK       given      the task's rows; attention counts over the later half of positions
           repeated   rows made of the same tokens that repeat, each with its own period
LANGUAGE   repeated   tokens that repeat; attention counts at the scored positions
           shuffled   the same tokens in random order, so that there is no repetition to continue
           others     templates, text: used only to measure effects

Whether a role's cause transfers is tested on other rows than those on which the role was found.
These are made from rows of the same kind (:func:`elsewhere`):

    other tokens    the rows' tokens are permuted among themselves, if they were drawn at random
    other offset    the first eighth is left out, so that what follows is at other positions
    other length    rows are shorter by as much
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.attention.key_sets import repeated_tokens, token_key_sets
from interp.errors import ArgumentError
from interp.tasks.base import Batch

DRAWN = ("repeated", "shuffled", "aba", "same", "random")
"""Kinds of rows whose tokens are drawn at random."""

ELSEWHERE = " elsewhere"
"""Ending of the name of the rows on which the transfer of a cause is tested."""

_SHORTEST = 9
_FEWEST = 4
WIDE = 2**17
"""Number of tokens from which a vocabulary counts as very large. Computing the logits of one
position then costs more than all layers do (Gemma 3 270M: 336 million operations against 200)."""

SCORED = 24
"""Number of positions of each row at which losses are measured with a very large vocabulary. Spread
evenly over a row, they give its mean nearly as well as all positions."""


@dataclass(frozen=True)
class View:
    """The input rows of one kind, with the positions at which they are evaluated.

    Attributes:
        batch: The inputs, the targets, and the mask of positions at which the output is scored.
        counted: The query positions over which attention is averaged, ``[row, pos]``.
    """

    batch: Batch
    counted: Bool[Tensor, "row pos"]


def task_views(batch: Batch, *, causal: bool = True, seed: int = 0) -> dict[str, View]:
    """Return the rows of a task as ``given``, and rows of its tokens that repeat as ``repeated``.

    ``repeated`` is missing if no such rows can be made (:func:`repeated_rows`).

    Args:
        batch: The rows of the task.
        causal: Whether attention is causal.
        seed: Seed of the repeated rows.
    """
    late = later(batch.inputs.shape[1])
    found = {"given": View(batch, late.expand(batch.inputs.shape[:2]))}
    repeated = repeated_rows(batch.inputs, seed=seed)
    if repeated is not None:
        known = token_key_sets(repeated, causal=causal)["same"].any(-1)
        found["repeated"] = View(Batch(repeated, torch.zeros_like(repeated), known), known)
    return found


def language_views(rows: Batch | Mapping[str, Batch], *, seed: int = 0) -> dict[str, View]:
    """Return the rows by kind, with ``shuffled`` rows made from the ``repeated`` ones if they are
    missing.

    Args:
        rows: Rows by kind, ``repeated`` among them; or one batch of rows that repeat.
        seed: Seed of the random order.

    Raises:
        ArgumentError: for rows that are not tokens, or without ``repeated`` ones.
    """
    batches = {"repeated": rows} if isinstance(rows, Batch) else dict(rows)
    if "repeated" not in batches:
        known = ", ".join(batches) or "none"
        raise ArgumentError(f"rows must hold 'repeated' ones, got {known}: see token_trials")
    if any(batch.inputs.ndim != 2 for batch in batches.values()):
        raise ArgumentError("rows must be tokens [row, pos] for profile 'language': use 'task'")
    if "shuffled" not in batches:
        batches["shuffled"] = _shuffle_tokens(batches["repeated"], seed)
    return {name: View(batch, batch.mask) for name, batch in batches.items()}


def elsewhere(batch: Batch, *, renamed: bool, seed: int = 0) -> Batch:
    """Make the rows on which the transfer of a cause is tested: other tokens, another offset,
    another length.

    The first eighth of each row is left out. Positions are scored where they were, except those
    before the first position at which rows were scored, and those whose token had occurred earlier
    in the row and, after the cut, no longer has: what their target follows from may be gone.

    Args:
        batch: Rows of tokens. A token that begins every row stays where it is.
        renamed: Whether the tokens are permuted among those that the rows hold, in all rows alike.
        seed: Seed of the permutation.
    """
    inputs, start = batch.inputs, int(first_alone(batch.inputs))
    length = inputs.shape[1]
    kept = [*range(start), *range(start + 1 + length // 8, length)]
    if renamed:
        used = inputs[:, start:].unique()
        order = torch.randperm(len(used), generator=torch.Generator().manual_seed(seed))
        size = int(max(inputs.max(), batch.targets.max())) + 1
        names = torch.arange(size).index_copy(0, used, used[order])
        batch = Batch(
            torch.cat([inputs[:, :start], names[inputs[:, start:]]], dim=1),
            names[batch.targets],
            batch.mask,
        )
    moved = Batch(batch.inputs[:, kept], batch.targets[:, kept], batch.mask[:, kept])
    known = token_key_sets(inputs)["same"].any(-1)[:, kept] & batch.mask[:, kept]
    again = token_key_sets(moved.inputs)["same"].any(-1)
    late = batch.mask.any(0).long().cumsum(0)[: len(kept)] > 0
    return Batch(moved.inputs, moved.targets, moved.mask & (again | ~known) & late)


def other_routes(inputs: Int[Tensor, "row pos"], *, seed: int = 0) -> Int[Tensor, "row pos"]:
    """Replace every second distinct token of each row by a token that the row does not hold.

    Distinct tokens are counted in the order of their first occurrence. A token that stays then
    often follows another token than before: the same answer is reached by another route.

    Args:
        inputs: Rows of tokens. A token that begins every row stays where it is.
        seed: Seed of the choice of the new tokens, which are tokens of other rows.

    Returns:
        The rows with the tokens replaced.
    """
    start, found = int(first_alone(inputs)), inputs.clone()
    used = inputs[:, start:].unique()
    generator = torch.Generator().manual_seed(seed)
    for row, new in zip(inputs[:, start:], found[:, start:], strict=True):
        free = used[~torch.isin(used, row)]
        free = free[torch.randperm(len(free), generator=generator)].tolist()
        for old, other in zip([*dict.fromkeys(row.tolist())][::2], free, strict=False):
            new[row == old] = other
    return found


def positions_scored(mask: Bool[Tensor, "row pos"], vocabulary: int) -> Bool[Tensor, "row pos"]:
    """Return the positions at which losses are measured.

    These are all scored positions; with a very large vocabulary (131,072 tokens or more) at most 24
    of them in each row, spread evenly.

    Args:
        mask: True at the scored positions.
        vocabulary: The size of the vocabulary.
    """
    if vocabulary < WIDE:
        return mask
    place, count = mask.long().cumsum(1) - 1, mask.sum(1, keepdim=True).clamp_min(1)
    kept = count.clamp_max(SCORED)
    begins = place * kept // count != (place - 1) * kept // count  # the first of each share
    return mask & begins


def later(length: int) -> Bool[Tensor, " pos"]:
    """Return a mask that is True at the positions in the later half of a row of some length."""
    return torch.arange(length) >= length // 2


def repeated_rows(inputs: Tensor, *, seed: int = 0) -> Int[Tensor, "row pos"] | None:
    """Make rows that repeat from the tokens of other rows.

    A token that begins every row and occurs nowhere else stays in front.

    Args:
        inputs: The rows whose tokens and shape are used.
        seed: Seed of the random draws.

    Returns:
        The rows; None for inputs that are no tokens, for rows of fewer than nine positions, or for
        fewer than four different tokens.
    """
    if inputs.ndim != 2 or inputs.shape[1] < _SHORTEST:
        return None
    seen, alone = inputs[:, 1:].unique(), first_alone(inputs)
    length = inputs.shape[1] - alone
    if len(seen) < _FEWEST or length < _SHORTEST:
        return None
    rows = seen[repeated_tokens(len(inputs), length, len(seen), seed=seed)]
    first = inputs[:1, :1]
    return torch.cat([first.expand(len(rows), 1), rows], dim=1) if alone else rows


def first_alone(inputs: Int[Tensor, "row pos"]) -> bool:
    """Return whether all rows begin with the same token, such as BOS, which occurs nowhere else."""
    first = inputs[:, 0].unique()
    return len(first) == 1 and not bool((inputs[:, 1:] == first).any())


def _shuffle_tokens(batch: Batch, seed: int) -> Batch:
    """Return each row's tokens in random order, so that nothing follows from what came before.

    The same positions are scored as in the rows given.
    """
    generator = torch.Generator().manual_seed(seed)
    start = int(first_alone(batch.inputs))
    order = torch.rand(batch.inputs[:, start:].shape, generator=generator).argsort(1) + start
    inputs = torch.cat([batch.inputs[:, :start], batch.inputs.gather(1, order)], dim=1)
    return Batch(inputs, inputs.roll(-1, 1), batch.mask)
