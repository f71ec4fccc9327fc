"""From rows to sealed parts: compute in this thread, write in a second, seal in a third.

    rows → forward to the last hook → select and cast → bounded queue → HDF5 → queue → seal → index

A batch never crosses a part, so every part is computed by the same batches whether the run was
interrupted or not, and by whichever process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.errors import HookError, StoreError
from interp.store.background import Background, Pace
from interp.store.capture import Capture
from interp.store.plan import Plan, model_device
from interp.store.selection import to_array
from interp.store.sources import Columns, Part
from interp.store.writer import Array, PartFile

if TYPE_CHECKING:
    from interp.lens import HookedModel

__all__ = ["Sealed", "write_parts"]

Sealed = Callable[[dict[str, Any]], None]
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
    """Compute and seal parts.

    Args:
        parts: what to compute.
        model: the model of the plan.
        plan: hooks and selection.
        folder: the store.
        sealed: called in the sealing thread with each part's index entry.
        advanced: called with the number of rows of each batch that was computed.

    Raises:
        StoreError: if the model fails or the disk does; sealed parts stay.
    """
    record = plan.record
    files: dict[int, PartFile] = {}
    pace = Pace()
    device = model_device(model)
    try:
        with (
            Capture(model, plan.survey.hooks).running() as forward,
            Background(_SEALED_AHEAD) as sealer,
            Background(_AHEAD, on_exit=pace.finish) as writer,
        ):
            for part in parts:
                file = PartFile(
                    folder,
                    part.number,
                    part.rows,
                    record["batch"],
                    record["compression"],
                    part.sha256(),
                    pace,
                )
                files[part.number] = file
                for start in range(0, len(part.rows), record["batch"]):
                    rows = slice(start, start + record["batch"])
                    batch = {name: values[rows] for name, values in part.columns.items()}
                    columns = _compute(forward, batch, plan, device, part)
                    writer.submit(_to_disk, file.write, start, columns)
                    advanced(len(batch["inputs"]))
                writer.submit(_close, file, sealer, files, sealed)
            writer.finish()
            pace.finish()
            sealer.finish()
    finally:
        for file in files.values():
            file.abandon()


def _compute(forward: Any, batch: Columns, plan: Plan, device: Any, part: Part) -> dict[str, Array]:
    try:
        caught = forward(batch["inputs"].to(device))
    except HookError:
        raise
    except Exception as error:
        raise StoreError(
            f"the model failed in part {part.number} (rows {part.rows[0]}..{part.rows[-1]}): "
            f"{type(error).__name__}: {error}; sealed parts stay readable"
        ) from error
    columns = {name: to_array(values, _row_labels(name, values)) for name, values in batch.items()}
    for hook in plan.survey.hooks:
        columns[f"activations/{hook.name}"] = plan.selection.array(caught[hook.name], hook.labels)
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


def _close(file: PartFile, sealer: Background, files: dict[int, PartFile], sealed: Sealed) -> None:
    _to_disk(file.close)
    sealer.submit(_seal, files, file, sealed)


def _seal(files: dict[int, PartFile], file: PartFile, sealed: Sealed) -> None:
    entry = _to_disk(file.seal)
    del files[file.number]
    _to_disk(sealed, entry)
