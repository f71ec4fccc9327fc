"""A store's rows as tensors: a TransformerLens cache, a PyTorch data set, batches of positions.

``ActivationCache``: a tensor is loaded when it is used and stays in memory. Aliases are keys too,
so code written for a model's own cache finds its names. What was not stored is not there: a cache
of two hooks cannot decompose a residual stream.

Data set: rows in the order ``numpy.random.default_rng([seed, epoch]).permutation`` of the row ids,
which belongs to the data set, not to the loader: give the ``DataLoader`` ``shuffle=False``. It is
then the same for every number of workers, and :attr:`StoreDataset.provenance` says which it was. A
batch is read at once (PyTorch calls ``__getitems__``), coalesced per part. Random rows still read
whole chunks: expect a shuffled epoch to be slower than one in order.

Batches of activations at single positions, for training sparse autoencoders and the like: SAELens'
trainer takes as ``data_provider`` an iterator of tensors ``[batch, d_in]``, and so do most others.

    provider = activation_batches(store, "blocks.0.hook_resid_post", 4096, shuffle=0)
    SAETrainer(cfg=…, sae=…, data_provider=provider)

Rows are read a block at a time; a batch is a view of its block wherever it lies in one. Mixing is
over the positions of one block of rows: positions of a row are alike, so take many rows a block.
Which positions count is not asked: leave out what must not be learned when extracting.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from interp.errors import HookError, Problems
from interp.machine import need_bytes
from interp.store.hdf5 import Indices

ActivationStore = Any
"""Stands for :class:`interp.store.reader.ActivationStore` in type annotations. That class imports
this module, so it cannot be imported here."""


def tensor(store: ActivationStore, hook: str, rows: Indices) -> Tensor:
    """A hook's activations as a tensor of the stored dtype, bfloat16 included."""
    values = torch.from_numpy(store.activation(hook, rows))
    return values.to(torch.bfloat16) if store.dtype(hook) == "bfloat16" else values


class LazyTensors(MutableMapping[str, Tensor]):
    """A mapping from hook name to tensor, which reads a tensor when it is first used.

    Args:
        store: the store to read from.
        rows: the ids of the rows.
    """

    def __init__(self, store: ActivationStore, rows: Indices) -> None:
        self._store = store
        self._rows = rows
        self._loaded: dict[str, Tensor | None] = dict.fromkeys((*store.hooks, *store.aliases))

    def __getitem__(self, hook: str) -> Tensor:
        loaded = self._loaded[hook]
        if loaded is None:
            name = self._store.aliases.get(hook, hook)
            loaded = self._loaded.get(name)
            if loaded is None:
                loaded = tensor(self._store, name, self._rows)
            self._loaded[hook] = loaded
            if name in self._loaded:
                self._loaded[name] = loaded
        return loaded

    def __setitem__(self, hook: str, values: Tensor) -> None:
        self._loaded[hook] = values

    def __delitem__(self, hook: str) -> None:
        del self._loaded[hook]

    def __contains__(self, hook: object) -> bool:
        return hook in self._loaded

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


class StoreDataset(Dataset[dict[str, Tensor]]):
    """One entry per row: ``row``, ``inputs``, ``targets`` and ``mask`` if stored, and each hook.

    Args:
        store: the store to read from.
        hooks: the hooks to give; ``None`` for all.
        shuffle: seed of the order, or ``None`` for the source's.
        epoch: each epoch is another order of the same seed.

    Attributes:
        order: row ids in the order in which they are given.
    """

    def __init__(
        self,
        store: ActivationStore,
        hooks: Sequence[str] | None = None,
        *,
        shuffle: int | None = None,
        epoch: int = 0,
    ) -> None:
        self.store = store
        self.hooks = tuple(store.canonical(h) for h in hooks) if hooks is not None else store.hooks
        self.shuffle = shuffle
        self.epoch = epoch
        self.order: Indices = store.row_ids
        if shuffle is not None:
            self.order = np.random.default_rng([shuffle, epoch]).permutation(self.order)
        stored = store.parts[0].shapes if store.parts else {}
        self._columns = [name for name in ("inputs", "targets", "mask") if name in stored]

    @property
    def provenance(self) -> dict[str, Any]:
        """Seed, epoch and SHA-256 of the order: what to record of a run that used it."""
        digest = hashlib.sha256(np.ascontiguousarray(self.order, "<i8").tobytes()).hexdigest()
        return {"shuffle": self.shuffle, "epoch": self.epoch, "order_sha256": digest}

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """The row at an index of the order."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        """Several rows, which are read together where they have equal length."""
        rows = self.order[np.asarray(indices)]
        entries: list[dict[str, Tensor]] = [{} for _ in rows]
        for batch in self.store.batches(len(rows), rows):
            columns: dict[str, Tensor] = {"row": torch.from_numpy(batch.rows)}
            for name in self._columns:
                columns[name] = torch.from_numpy(getattr(self.store, name)(batch.rows))
            columns |= {hook: tensor(self.store, hook, batch.rows) for hook in self.hooks}
            at = {int(row): place for place, row in enumerate(batch.rows)}
            for entry, row in zip(entries, rows.tolist(), strict=True):
                if row in at:
                    entry |= {name: values[at[row]] for name, values in columns.items()}
        return entries


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
