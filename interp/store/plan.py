"""Decide and check what will be stored, before any work starts.

The *record* of a plan is everything that decides the stored bits: the model's weights, the
source and its seed, hooks, selection, batch, part size, threads, device, versions. Its
SHA-256 is the plan digest. Going on with an interrupted store needs an equal record; where it is
not equal, the difference is named. (Batch and threads are in it because floating-point sums depend
on them.)
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from interp.environment import environment
from interp.errors import HookError, Problems, StoreError
from interp.hooks.capture import Capture, Survey, model_device, survey
from interp.store import arrays
from interp.store.layout import FORMAT, VERSION, digest, product_version
from interp.store.selection import DTYPES, Selection
from interp.store.sources import Columns, RowSource

if TYPE_CHECKING:
    from interp.hooks.transformer_lens_adapter import HookedModel

PART_BYTES = 64 << 20
_MOST_PART_ROWS = 8192


def weights_sha256(model: Any) -> str:
    """The SHA-256 of a model's state dict: name, dtype, shape and bytes, in the order of names."""
    found = hashlib.sha256()
    for name, values in sorted(model.state_dict().items()):
        if isinstance(values, torch.Tensor):
            found.update(f"{name} {values.dtype} {list(values.shape)};".encode())
            flat = values.detach().cpu().contiguous().reshape(-1)
            # One number alone may have any stride and still count as contiguous.
            flat = flat.as_strided(flat.shape, (1,))
            found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


def _model_record(model: Any) -> dict[str, Any]:
    spec = getattr(model, "spec", None)
    name = getattr(getattr(model, "cfg", None), "model_name", None)
    return {
        "class": type(model).__name__,
        "name": str(name) if name else None,
        "spec": json.loads(json.dumps(spec.to_dict())) if spec is not None else None,
        "weights_sha256": weights_sha256(model),
    }


def differences(stored: Any, wanted: Any, name: str = "") -> list[str]:
    """List the differences between two nested records, each as ``name was A, is now B``.

    Args:
        stored: The old record, as JSON data.
        wanted: The new record. A key that only one of the two has counts as None in the other.
        name: What the messages call the record; nested keys follow it, joined by dots.
    """
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        keys = [*stored, *(key for key in wanted if key not in stored)]
        return [
            line
            for key in keys
            for line in differences(
                stored.get(key), wanted.get(key), f"{name}.{key}" if name else key
            )
        ]
    return [] if stored == wanted else [f"{name} was {stored!r}, is now {wanted!r}"]


@dataclass(frozen=True)
class StorePlan:
    """A checked plan of an extraction.

    Attributes:
        record: everything that decides the stored bits, as JSON data.
        survey: the hooks that fire, from a survey of the model.
        selection: which part of each activation is stored.
        hooks: name → how it is stored, as the manifest has it.
        row_bytes: bytes of the activations of one row of the surveyed length.
        batch_seconds: time of one forward pass to the last hook, measured once.
    """

    record: dict[str, Any]
    survey: Survey
    selection: Selection
    hooks: dict[str, dict[str, Any]]
    row_bytes: int
    batch_seconds: float

    @property
    def rows(self) -> int | None:
        """How many rows were asked for, or ``None`` if only the source knows."""
        return self.record["rows"]

    @property
    def bytes(self) -> int | None:
        """Bytes of activations on disk, without compression."""
        return None if self.rows is None else self.rows * self.row_bytes

    @property
    def seconds(self) -> float | None:
        """The estimated time of all forward passes in s; None if the number of rows is unknown."""
        if self.rows is None:
            return None
        return math.ceil(self.rows / self.record["batch"]) * self.batch_seconds

    def manifest(self) -> dict[str, Any]:
        """The manifest of a store that has just been started."""
        return {
            "format": FORMAT,
            "version": f"{VERSION[0]}.{VERSION[1]}",
            "product": product_version(),
            "environment": environment(),
            "plan_digest": digest(self.record),
            "plan": self.record,
            "hooks": self.hooks,
            "aliases": self.survey.aliases,
            "rows": self.rows,
            "complete": False,
        }

    def describe(self) -> str:
        """The plan as text for people: hooks, rows, bytes and time."""
        rows = "as many as the source has" if self.rows is None else f"{self.rows:,}"
        size = f"{self.row_bytes:,} a row"
        if self.bytes is not None:
            size = f"{self.bytes / 1e6:,.1f} MB ({size})"
        seconds = "unknown" if self.seconds is None else f"about {self.seconds:,.1f} s"
        shown = [
            f"  {name}  {' × '.join(map(str, hook['shape'])) or 'scalar'}  {hook['dtype']}"
            f"  ({', '.join(hook['labels'][1:])})"
            for name, hook in self.hooks.items()
        ]
        silent = [f"left out  {len(self.survey.silent)} hooks that do not fire"]
        return "\n".join(
            [
                f"hooks     {len(self.hooks)}, each row:",
                *shown,
                f"aliases   {len(self.survey.aliases)} other names, written once",
                f"rows      {rows}, batches of {self.record['batch']}, "
                f"parts of {self.record['part_rows']}",
                f"on disk   {size}",
                f"time      {seconds}",
                *(silent if self.survey.silent else []),
            ]
        )


def make_plan(
    model: HookedModel,
    source: RowSource,
    hooks: Sequence[str],
    *,
    seed: int,
    batch: int,
    selection: Selection,
    part_rows: int | None,
    compression: str | None,
) -> StorePlan:
    """Check the options of an extraction and plan its store, without storing anything.

    The model runs twice: on at most two rows, to record what each hook gives, and on the first
    batch, to time a forward pass.

    Args:
        model: The model.
        source: The input rows.
        hooks: Hook names or globs; ``!GLOB`` excludes hooks.
        seed: Seed of the source, for the record.
        batch: Rows per forward pass.
        selection: Positions, heads and dtype that are stored.
        part_rows: Rows per file, a multiple of ``batch``; None for about 64 MiB per file.
        compression: ``gzip``, ``lzf`` or None.

    Returns:
        The plan, with an estimate of bytes and time.

    Raises:
        ArgumentError: if options are invalid, or the source has no rows or rows that the model
            cannot take.
        HookError: if a glob matches nothing, or a hook does not fire, fires more than once or
            gives values that cannot be stored.
        StoreError: if the model fails on the first rows.
    """
    _check_options(batch, part_rows, selection, compression)
    first = source.first(batch)
    device = model_device(model)
    few = first["inputs"][:2].to(device)
    found = survey(model, few, hooks)
    problems = Problems("extract")
    selection.check(found.hooks, problems)
    problems.raise_if_any()
    stored = _stored_hooks(found, selection)
    row_bytes = sum(math.prod(h["shape"]) * _itemsize(h["dtype"]) for h in stored.values())
    per_part = part_rows or _part_rows(row_bytes, batch)
    record = {
        "model": _model_record(model),
        "source": source.description,
        "seed": seed,
        "rows": source.rows,
        "hooks": list(stored),
        "positions": _slice_text(selection.positions),
        "heads": None if selection.heads is None else list(selection.heads),
        "dtype": selection.dtype,
        "batch": batch,
        "part_rows": per_part,
        "compression": compression,
        "threads": torch.get_num_threads(),
        "device": device.type,
        "torch": torch.__version__,
    }
    seconds = _time_batch(model, found, first, device)
    return StorePlan(record, found, selection, stored, row_bytes, seconds)


def _check_options(
    batch: int, part_rows: int | None, selection: Selection, compression: str | None
) -> None:
    problems = Problems("extract")
    problems.need(batch >= 1, "batch", "must be at least 1", batch, "give a number of rows")
    good = part_rows is None or (part_rows >= 1 and batch >= 1 and part_rows % batch == 0)
    rule = f"must be a multiple of the batch, {batch}"
    problems.need(good, "part_rows", rule, part_rows, "or leave it out")
    good = selection.dtype is None or selection.dtype in DTYPES
    rule = f"must be one of {', '.join(DTYPES)}"
    problems.need(good, "dtype", rule, selection.dtype, "or leave it out to keep the model's")
    problems.raise_if_any()
    arrays.check_compression(compression)


def _stored_hooks(found: Survey, selection: Selection) -> dict[str, dict[str, Any]]:
    hooks = {}
    for hook in found.hooks:
        dtype = selection.stored_dtype(hook)
        if "/" in hook.name or dtype.startswith(("complex", "float8", "q")):
            raise HookError(
                f"hooks: {hook.name} of dtype {dtype} cannot be stored in HDF5: leave it out"
            )
        shape = list(selection.shape(hook)[1:])
        hooks[hook.name] = {"shape": shape, "dtype": dtype, "labels": list(hook.labels)}
    return hooks


def _itemsize(dtype: str) -> int:
    return getattr(torch, dtype).itemsize


def _part_rows(row_bytes: int, batch: int) -> int:
    wanted = min(PART_BYTES // max(1, row_bytes), _MOST_PART_ROWS)
    return max(1, wanted // batch) * batch


def _slice_text(positions: slice) -> str:
    if positions == slice(None):
        return "all"
    ends = ("" if end is None else str(end) for end in (positions.start, positions.stop))
    step = "" if positions.step is None else f":{positions.step}"
    return ":".join(ends) + step


def _time_batch(model: HookedModel, found: Survey, first: Columns, device: torch.device) -> float:
    with Capture(model, found.hooks).running() as forward:
        inputs = first["inputs"].to(device)
        started = time.perf_counter()
        try:
            forward(inputs)
        except Exception as error:
            raise StoreError(
                f"the model fails on a batch of {len(inputs)} rows: {error}"
            ) from error
        return time.perf_counter() - started
