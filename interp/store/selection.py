"""Which part of an activation is stored: positions, heads and dtype.

Positions and heads are cut along axes that are known by name (:mod:`interp.hooks.hook_names`),
never along guessed ones. Casts are done by torch, and every finite value that a cast makes infinite
is counted: HDF5 would make infinities in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from interp.errors import Problems
from interp.hooks.capture import Firing
from interp.store.arrays import BFLOAT16
from interp.store.writer import StoredArray

DTYPES = ("float64", "float32", "float16", BFLOAT16)
_POSITION_AXES = ("pos", "query")


def parse_positions(positions: str | slice) -> slice:
    """Read ``all``, ``last``, ``START:STOP[:STEP]`` or a slice as a slice.

    Raises:
        ValueError: if it is none of these, or its step is not positive.
    """
    if isinstance(positions, str):
        if positions == "all":
            return slice(None)
        if positions == "last":
            return slice(-1, None)
        fields = positions.split(":")
        if not 2 <= len(fields) <= 3:
            raise ValueError(positions)
        positions = slice(*(int(f) if f.strip() else None for f in fields))
    if positions.step is not None and positions.step <= 0:
        raise ValueError(positions)
    return positions


@dataclass(frozen=True)
class Selection:
    """Which part of each activation is stored.

    Attributes:
        positions: of ``pos`` axes, and of ``query`` in scores and patterns; keys are all kept.
        heads: indices along ``head`` axes, or ``None`` for all; other hooks are kept whole.
        dtype: floats are cast to this, or ``None`` to keep them.
    """

    positions: slice = field(default_factory=lambda: slice(None))
    heads: tuple[int, ...] | None = None
    dtype: str | None = None

    def check(self, hooks: Sequence[Firing], problems: Problems) -> None:
        """Record every reason why this selection cannot be made from what the hooks fire."""
        need = problems.need
        if self.positions != slice(None):
            blind = [h.name for h in hooks if not set(h.labels) & set(_POSITION_AXES)]
            need(not blind, "positions", "needs hooks with a known position axis", blind, "use all")
            empty = [h.name for h in hooks if 0 in self.shape(h)]
            need(not empty, "positions", "must pick at least one", self.positions, "widen it")
        if self.heads is not None:
            sizes = {h.name: h.shape[h.labels.index("head")] for h in hooks if "head" in h.labels}
            need(bool(sizes), "heads", "needs a hook with a head axis", self.heads, "leave it out")
            good = bool(self.heads) and len(set(self.heads)) == len(self.heads)
            need(good, "heads", "must be distinct and not empty", self.heads, "list each once")
            for name, size in sizes.items():
                good = all(0 <= head < size for head in self.heads)
                need(good, "heads", f"must be 0..{size - 1} for {name}", self.heads, "lower it")

    def shape(self, hook: Firing) -> tuple[int, ...]:
        """The shape in which the surveyed rows are stored, ``[row, …]``."""
        sizes = list(hook.shape)
        for axis, label in enumerate(hook.labels):
            if axis and label in _POSITION_AXES:
                sizes[axis] = len(range(*self.positions.indices(sizes[axis])))
            if label == "head" and self.heads is not None:
                sizes[axis] = len(self.heads)
        return tuple(sizes)

    def stored_dtype(self, hook: Firing) -> str:
        """The dtype in which a hook is stored."""
        return self.dtype if self.dtype and "float" in hook.dtype else hook.dtype

    def array(self, values: Tensor, labels: tuple[str, ...]) -> StoredArray:
        """The selected part of a hook's activation, ready to be written."""
        index: list[Any] = [slice(None)] * values.ndim
        for axis, label in enumerate(labels):
            if axis and label in _POSITION_AXES:
                index[axis] = self.positions
        values = values[tuple(index)]
        if self.heads is not None and "head" in labels:
            heads = torch.tensor(self.heads, device=values.device)
            values = values.index_select(labels.index("head"), heads)
        return to_array(values, labels, self.dtype)


def to_array(values: Tensor, labels: tuple[str, ...], dtype: str | None = None) -> StoredArray:
    """A tensor as a NumPy array, ready to be written.

    Args:
        values: The tensor, on any device.
        labels: The name of each of its axes, such as ``("row", "head", "query", "key")``.
        dtype: The name of the floating type to which numbers are cast; None keeps theirs. NumPy
            has no bfloat16, whose bits are kept as int16.

    Returns:
        The array with its type's name and labels, and how many numbers the cast made infinite.
    """
    values = values.detach()
    overflows = 0
    target = getattr(torch, dtype) if dtype and values.is_floating_point() else values.dtype
    if target != values.dtype:
        cast = values.to(target)
        if torch.finfo(target).max < torch.finfo(values.dtype).max:
            overflows = int(cast.isinf().sum() - values.isinf().sum())
        values = cast
    values = values.cpu()
    logical = str(values.dtype).removeprefix("torch.")
    if values.dtype == torch.bfloat16:
        values = values.contiguous().view(torch.int16)
    return StoredArray(values.numpy(), logical, labels, overflows)
