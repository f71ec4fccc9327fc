"""A store as a PyTorch data set: rows in a seeded, recorded order, for any number of workers.

The order is ``numpy.random.default_rng([seed, epoch]).permutation`` of the row ids and belongs to
the data set, not to the loader: give the ``DataLoader`` ``shuffle=False``. It is then the same for
every number of workers, and :attr:`StoreDataset.provenance` says which it was.

A batch is read at once (PyTorch calls ``__getitems__``), coalesced per part. Random rows still
read whole chunks: expect a shuffled epoch to be slower than one in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from interp.store.cache import Stored, tensor
from interp.store.files import Indices, RowSelector, SealedPart


@runtime_checkable
class Rows(Stored, Protocol):
    """What a data set needs of a store: what tensors need, and which rows there are."""

    @property
    def row_ids(self) -> Indices:
        """The ids of the rows, ascending."""

    @property
    def parts(self) -> tuple[SealedPart, ...]:
        """The sealed parts."""

    def canonical(self, hook: str) -> str:
        """The name under which a hook (or alias) is stored."""

    def batches(self, size: int, rows: RowSelector = None) -> Iterator[Any]:
        """The rows in batches of equal length, with their ids as ``rows``."""


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
        store: Rows,
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
