"""A store's rows as a TransformerLens ``ActivationCache`` that loads a tensor when it is used.

Aliases are keys too, so code written for a model's own cache finds its names. A tensor stays in
memory once it has been used. What was not stored is not there: a cache of two hooks cannot
decompose a residual stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.hooks.transformer_lens_adapter import ActivationCache
from interp.store.files import Indices, RowSelector


@runtime_checkable
class Stored(Protocol):
    """What is needed of a store to make tensors: its hooks' names, and rows of each.

    An :class:`~interp.store.reader.ActivationStore` is one.
    """

    @property
    def hooks(self) -> tuple[str, ...]:
        """The canonical names of the stored hooks, in the order in which they fire."""

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names of the stored hooks: alias → canonical name."""

    def dtype(self, hook: str) -> str:
        """The dtype in which a hook is stored."""

    def activation(self, hook: str, rows: RowSelector = None) -> NDArray[Any]:
        """The activations of some rows of a hook."""


def tensor(store: Stored, hook: str, rows: Indices) -> Tensor:
    """A hook's activations as a tensor of the stored dtype, bfloat16 included."""
    values = torch.from_numpy(store.activation(hook, rows))
    return values.to(torch.bfloat16) if store.dtype(hook) == "bfloat16" else values


class LazyTensors(MutableMapping[str, Tensor]):
    """A mapping from hook name to tensor, which reads a tensor when it is first used.

    Args:
        store: the store to read from.
        rows: the ids of the rows.
    """

    def __init__(self, store: Stored, rows: Indices) -> None:
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


def activation_cache(store: Stored, rows: Indices, model: Any) -> ActivationCache:
    """A cache of some rows; see :meth:`interp.store.reader.ActivationStore.cache`."""
    return ActivationCache(LazyTensors(store, rows), model)
