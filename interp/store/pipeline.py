"""The pipeline of an extraction: compute in parallel, write in one thread, seal in another.

    rows → lanes (forward to the last hook, select, cast) → queue → HDF5 → queue → seal → index

A batch never crosses a part, so every part is computed by the same batches whether the run was
interrupted or not, and by whichever process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from interp.errors import HookError, StoreError
from interp.hooks.capture import model_device
from interp.store.background import Background, Pace
from interp.store.parallel_forward import Forward, ParallelForward
from interp.store.plan import Plan
from interp.store.selection import to_array
from interp.store.sources import Columns, Part
from interp.store.writer import Array, PartFile

if TYPE_CHECKING:
    from interp.hooks.transformer_lens_adapter import HookedModel

__all__ = ["Sealed", "write_parts"]

Sealed = Callable[[dict[str, Any]], None]
Forget = Callable[[int], PartFile]
_AHEAD = 4
_SEALED_AHEAD = 1


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
        sealed: called in the sealing thread with each part's index entry.
        advanced: called with the number of rows of each batch that was computed.

    Raises:
        StoreError: if the model fails or the disk does; sealed parts stay.
    """
    files: dict[int, PartFile] = {}
    pace = Pace()
    lanes = ParallelForward(model, plan.survey.hooks, plan.record["lanes"])
    compute = _Compute(plan, model_device(model))
    try:
        with (
            lanes.running(),
            Background(_SEALED_AHEAD) as sealer,
            Background(_AHEAD, on_exit=pace.finish) as writer,
        ):
            for batch, columns in lanes.map(compute, _batches(parts, plan, folder, pace, files)):
                writer.submit(_to_disk, batch.file.write, batch.start, columns)
                advanced(len(columns["inputs"].values))
                if batch.last:
                    writer.submit(_close, batch.file, sealer, files.pop, sealed)
            writer.finish()
            pace.finish()
            sealer.finish()
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
    parts: Iterable[Part], plan: Plan, folder: Path, pace: Pace, files: dict[int, PartFile]
) -> Iterator[_Batch]:
    record = plan.record
    size, compression = record["batch"], record["compression"]
    for part in parts:
        digest = part.sha256()
        file = PartFile(folder, part.number, part.rows, size, compression, digest, pace)
        files[part.number] = file
        for start in range(0, len(part.rows), size):
            rows = slice(start, start + size)
            columns = {name: values[rows] for name, values in part.columns.items()}
            yield _Batch(part, file, start, columns, last=start + size >= len(part.rows))


@dataclass(frozen=True)
class _Compute:
    """Compute a batch's columns as they will be stored."""

    plan: Plan
    device: torch.device

    def __call__(self, forward: Forward, batch: _Batch) -> dict[str, Array]:
        try:
            caught = forward(batch.columns["inputs"].to(self.device))
        except HookError:
            raise
        except Exception as error:
            rows = batch.part.rows
            raise StoreError(
                f"the model failed in part {batch.part.number} (rows {rows[0]}..{rows[-1]}): "
                f"{type(error).__name__}: {error}; sealed parts stay readable"
            ) from error
        plan = self.plan
        columns = {n: to_array(v, _row_labels(n, v)) for n, v in batch.columns.items()}
        for hook in plan.survey.hooks:
            values = plan.selection.array(caught[hook.name], hook.labels)
            columns[f"activations/{hook.name}"] = values
        return columns


def _row_labels(name: str, values: Any) -> tuple[str, ...]:
    last = {"inputs": "channel", "targets": "output"}.get(name)
    axes = [f"axis{axis}" for axis in range(2, values.ndim)]
    if last and len(axes) == 1:
        axes = [last]
    return ("row", "pos", *axes)[: values.ndim]


def _to_disk(write: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return write(*arguments)
    except (OSError, RuntimeError) as error:
        raise StoreError(
            f"writing failed: {error}; sealed parts stay readable: free space and resume"
        ) from error


def _close(file: PartFile, sealer: Background, forget: Forget, sealed: Sealed) -> None:
    _to_disk(file.close)
    sealer.submit(_seal, forget, file, sealed)


def _seal(forget: Forget, file: PartFile, sealed: Sealed) -> None:
    entry = _to_disk(file.seal)
    forget(file.number)
    _to_disk(sealed, entry)
