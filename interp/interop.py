"""Batches of activations at single positions, for training sparse autoencoders and the like.

SAELens' trainer takes as ``data_provider`` an iterator of tensors ``[batch, d_in]``, and so do most
others. Rows are read a block at a time; a batch is a view of its block wherever it lies in one.

    provider = activation_batches(store, "blocks.0.hook_resid_post", 4096, shuffle=0)
    SAETrainer(cfg=…, sae=…, data_provider=provider)

Mixing is over the positions of one block of rows: positions of a row are alike, so take many rows a
block. Which positions count is not asked: leave out what must not be learned when extracting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from interp.errors import HookError, Problems
from interp.machine import need_bytes
from interp.store.cache import tensor
from interp.store.reader import ActivationStore


def activation_batches(
    store: ActivationStore,
    hook: str,
    size: int,
    *,
    shuffle: int | None = None,
    block: int = 256,
    repeat: bool = True,
) -> Iterator[Tensor]:
    """The activations of a hook at every position, in batches.

    Args:
        store: An activation store.
        hook: A hook with a position axis; heads are laid side by side.
        size: Positions of a batch.
        shuffle: Seed of the order of rows and of positions within a block; each pass over the rows
            has another order. None for the store's own order.
        block: Rows that are read together.
        repeat: Begin again after the last row, for ever. Otherwise the last batch may be smaller.

    Yields:
        ``[size, width]``, in the dtype that was stored.

    Raises:
        ArgumentError: if a number is not positive.
        HookError: if the hook is not stored, or has no position axis.
    """
    problems = Problems("activation_batches")
    for name, value in (("size", size), ("block", block)):
        problems.need(value >= 1, name, "must be at least 1", value, "raise it")
    good = shuffle is None or shuffle >= 0
    problems.need(good, "shuffle", "must not be negative", shuffle, "any seed from 0 on")
    problems.need(store.rows >= 1, "store", "must hold rows", store.rows, "extract some")
    problems.raise_if_any()
    name, labels = store.canonical(hook), store.labels(hook)
    if labels[1:2] != ("pos",):
        raise HookError(f"{name} has no position axis: its axes are {', '.join(labels)}")
    shape = store.manifest["hooks"][name]["shape"]
    if repeat:  # a batch of more positions than the store has is filled by rows again
        need_bytes(4 * size * math.prod(shape[1:]), f"size: a batch of {size}", "lower it")
    return _batches(store, name, size, shuffle, block, repeat)


def _batches(
    store: ActivationStore, hook: str, size: int, shuffle: int | None, block: int, repeat: bool
) -> Iterator[Tensor]:
    left: Tensor | None = None
    epoch = 0
    while repeat or epoch == 0:
        for values in _blocks(store, hook, shuffle, epoch, block):
            found = values if left is None else torch.cat([left, values])
            whole = len(found) // size * size
            yield from found[:whole].split(size) if whole else ()
            left = found[whole:] if whole < len(found) else None
        epoch += 1
    if left is not None:
        yield left


def _blocks(
    store: ActivationStore, hook: str, shuffle: int | None, epoch: int, block: int
) -> Iterator[Tensor]:
    """``[position, width]`` of some rows at a time."""
    rows = store.row_ids
    generator = None if shuffle is None else np.random.default_rng([shuffle, epoch])
    if generator is not None:
        rows = generator.permutation(rows)
    for start in range(0, len(rows), block):
        for batch in store.batches(block, rows[start : start + block]):
            values = tensor(store, hook, batch.rows)
            values = values.reshape(values.shape[0] * values.shape[1], -1)
            if generator is not None:
                values = values[torch.from_numpy(generator.permutation(len(values)))]
            yield values
