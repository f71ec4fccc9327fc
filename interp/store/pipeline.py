"""The pipeline of an extraction: compute here, write and seal in another thread.

    rows → forward to the last hook, select, cast → HDF5 → fsync, SHA-256, rename → index

HDF5, ``fsync`` and SHA-256 release Python's lock, so disk and compute overlap; at most a few
batches wait, so memory stays bounded. A batch never crosses a part, so every part is computed by
the same batches whether the run was interrupted or not, and by whichever process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interp.errors import HookError, StoreError
from interp.hooks.capture import Capture, model_device
from interp.store.plan import Plan
from interp.store.selection import to_array
from interp.store.sources import Columns, Part
from interp.store.writer import Array, PartFile

if TYPE_CHECKING:
    from interp.hooks.transformer_lens_adapter import HookedModel

Sealed = Callable[[dict[str, Any]], None]
_AHEAD = 4


def write_parts(
    parts: Iterable[Part],
    model: HookedModel,
    plan: Plan,
    folder: Path,
    *,
    sealed: Sealed,
    advanced: Callable[[int], None],
) -> None:
    """Compute, write and seal parts.

    Args:
        parts: the parts to compute.
        model: the model of the plan.
        plan: the plan, with the hooks and the selection.
        folder: the store's folder.
        sealed: called in the writing thread with each part's index entry.
        advanced: called with the number of rows of each batch that was computed.

    Raises:
        StoreError: if the model fails or the disk does; sealed parts stay.
    """
    files: dict[int, PartFile] = {}
    waiting: deque[Future[None]] = deque()
    last: Future[None] | None = None
    device = model_device(model)
    try:
        with (
            Capture(model, plan.survey.hooks).running() as forward,
            ThreadPoolExecutor(1, "prooflens-writer") as writer,
        ):
            for batch in _batches(parts, plan, folder, files):
                columns = _compute(plan, forward, device, batch)
                last = writer.submit(_write, last, batch, columns, files, sealed)
                waiting.append(last)
                if len(waiting) > _AHEAD:
                    waiting.popleft().result()
                advanced(len(columns["inputs"].values))
            for written in waiting:
                written.result()
    finally:
        for file in files.values():
            file.abandon()


@dataclass(frozen=True)
class _Batch:
    """The rows of a part from ``start`` on, and the file in which they are written."""

    part: Part
    file: PartFile
    start: int
    columns: Columns
    last: bool


def _batches(
    parts: Iterable[Part], plan: Plan, folder: Path, files: dict[int, PartFile]
) -> Iterator[_Batch]:
    record = plan.record
    size, compression = record["batch"], record["compression"]
    for part in parts:
        digest = part.sha256()
        file = PartFile(folder, part.number, part.rows, size, compression, digest)
        files[part.number] = file
        for start in range(0, len(part.rows), size):
            rows = slice(start, start + size)
            columns = {name: values[rows] for name, values in part.columns.items()}
            yield _Batch(part, file, start, columns, last=start + size >= len(part.rows))


def _compute(
    plan: Plan,
    forward: Callable[[Tensor], dict[str, Tensor]],
    device: torch.device,
    batch: _Batch,
) -> dict[str, Array]:
    """A batch's columns as they will be stored.

    Raises:
        StoreError: if the model fails on the rows, or an activation is infinite or not a number.
            Scores may be −∞, where a mask hides a key.
    """
    rows = batch.part.rows
    where = f"in part {batch.part.number} (rows {rows[0]}..{rows[-1]})"
    try:
        caught = forward(batch.columns["inputs"].to(device))
    except HookError:
        raise
    except Exception as error:
        raise StoreError(
            f"the model failed {where}: {type(error).__name__}: {error}; sealed parts stay readable"
        ) from error
    for hook in plan.survey.hooks:
        values = caught[hook.name]
        if not hook.name.endswith("scores") and not bool(values.isfinite().all()):
            raise StoreError(
                f"{hook.name} is infinite or not a number {where}: look at the weights, or run "
                "the model in a wider number format; sealed parts stay readable"
            )
    columns = {n: to_array(v, _row_labels(n, v)) for n, v in batch.columns.items()}
    for hook in plan.survey.hooks:
        columns[f"activations/{hook.name}"] = plan.selection.array(caught[hook.name], hook.labels)
    return columns


def _row_labels(name: str, values: Any) -> tuple[str, ...]:
    last = {"inputs": "channel", "targets": "output"}.get(name)
    axes = [f"axis{axis}" for axis in range(2, values.ndim)]
    if last and len(axes) == 1:
        axes = [last]
    return ("row", "pos", *axes)[: values.ndim]


def _write(
    before: Future[None] | None,
    batch: _Batch,
    columns: dict[str, Array],
    files: dict[int, PartFile],
    sealed: Sealed,
) -> None:
    """Write a batch, and seal its part after the last one; nothing once a call before failed."""
    if before is not None:
        before.result()
    file = batch.file
    try:
        file.write(batch.start, columns)
        if batch.last:
            file.close()
            entry = file.seal()
            del files[file.number]
            sealed(entry)
    except (OSError, RuntimeError) as error:
        raise StoreError(
            f"writing failed: {error}; sealed parts stay readable: free space and resume"
        ) from error
