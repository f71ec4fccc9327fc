"""The pipeline of an extraction: compute here, write and seal in another thread.

    rows → forward to the last hook, select, cast → HDF5 → fsync, SHA-256, rename → index

HDF5, ``fsync`` and SHA-256 release Python's lock, so disk and compute overlap; at most a few
batches wait, so memory stays bounded. A batch never crosses a part, so every part is computed by
the same batches whether the run was interrupted or not, and by whichever process.

Or parts as tasks on a Ray cluster, or on Ray on this machine: each part's rows travel to a worker,
which runs the model, seals the part in the store's folder (which every machine must see under the
same path) and returns the index entry, which this process writes. Every worker uses the plan's
number of threads, so that the data are those of a local run; a worker that dies is replaced and its
part computed again. The index has one writer, so no locks are needed between machines. Not worth it
for one machine whose cores a single forward pass already fills.
"""

from __future__ import annotations

import platform
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

from interp import telling
from interp.errors import HookError, StoreError
from interp.hooks.capture import Capture, model_device
from interp.ray_tasks import ray_results, worker_model
from interp.store.layout import part_name
from interp.store.plan import StorePlan, weights_sha256
from interp.store.selection import to_array
from interp.store.sources import Columns, PartRows
from interp.store.writer import PartFile, StoredArray

if TYPE_CHECKING:
    from interp.hooks.transformer_lens_adapter import HookedModel

Sealed = Callable[[dict[str, Any]], None]
_AHEAD = 4


def write_parts(
    parts: Iterable[PartRows],
    model: HookedModel,
    plan: StorePlan,
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
class _PartBatch:
    """The rows of a part from ``start`` on, and the file in which they are written."""

    part: PartRows
    file: PartFile
    start: int
    columns: Columns
    last: bool


def _batches(
    parts: Iterable[PartRows], plan: StorePlan, folder: Path, files: dict[int, PartFile]
) -> Iterator[_PartBatch]:
    record = plan.record
    size, compression = record["batch"], record["compression"]
    for part in parts:
        digest = part.sha256()
        file = PartFile(folder, part.number, part.rows, size, compression, digest)
        files[part.number] = file
        for start in range(0, len(part.rows), size):
            rows = slice(start, start + size)
            columns = {name: values[rows] for name, values in part.columns.items()}
            yield _PartBatch(part, file, start, columns, last=start + size >= len(part.rows))


def _compute(
    plan: StorePlan,
    forward: Callable[[Tensor], dict[str, Tensor]],
    device: torch.device,
    batch: _PartBatch,
) -> dict[str, StoredArray]:
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
    batch: _PartBatch,
    columns: dict[str, StoredArray],
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


def run_on_ray(
    parts: Iterator[PartRows],
    model: Any,
    plan: StorePlan,
    folder: Path,
    *,
    sealed: Sealed,
    advanced: Callable[[int], None],
) -> None:
    """Compute and seal parts on a Ray cluster.

    Args:
        parts: the parts to compute.
        model: a model that can be pickled, or a function that builds it on a worker.
        plan: the plan, with the hooks and the selection.
        folder: the store, on a file system that all machines share.
        sealed: called with the index entry of each finished part.
        advanced: called with the rows of each part that was sealed.

    Raises:
        MissingDependencyError: if Ray is not installed.
        StoreError: if the model cannot be sent, a worker dies again and again, or a part does
            not arrive in the folder.
    """
    given: dict[int, PartRows] = {}

    def jobs() -> Iterator[tuple[PartRows]]:
        for number, part in enumerate(parts):
            given[number] = part
            yield (part,)

    finished = ray_results(
        _write_part,
        jobs(),
        name=lambda number: f"part {given[number].number}",
        shared=(model, plan, str(folder.absolute()), uuid.uuid4().hex),
        cores=plan.record["threads"],
        error=StoreError,
    )
    for number, entry in finished:
        part = given.pop(number)
        name = part_name(part.number)
        if not (folder / name).is_file():
            raise StoreError(
                f"{folder}: a worker sealed {name} but it is not here: the folder must be on a "
                "file system that all machines share"
            )
        sealed(entry)
        advanced(len(part.rows))


def _write_part(
    model: Any, plan: StorePlan, folder: str, run: str, part: PartRows
) -> dict[str, Any]:
    torch.set_num_threads(plan.record["threads"])
    found: list[dict[str, Any]] = []
    write_parts(
        [part],
        worker_model(model, run, lambda built: _check_weights(built, plan)),
        plan,
        Path(folder),
        sealed=found.append,
        advanced=lambda rows: None,
    )
    return found[0]


def _check_weights(model: Any, plan: StorePlan) -> None:
    if weights_sha256(model) != plan.record["model"]["weights_sha256"]:
        raise StoreError(f"the model on worker {platform.node()} has other weights")


class Progress:
    """A progress bar on standard error while rows are computed.

    Args:
        plan: says how many rows there will be and how large one is.
        done: index entries of the parts that exist already.
    """

    def __init__(self, plan: StorePlan, done: Mapping[int, Mapping[str, Any]]) -> None:
        console = Console(stderr=True)
        self._row_bytes = plan.row_bytes
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} rows"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        already = sum(entry["n"] for entry in done.values())
        self._task = self._bar.add_task("extract", total=plan.rows, completed=already, rate="")

    def advance(self, rows: int) -> None:
        """Add rows that were computed."""
        task = self._bar.tasks[self._task]
        speed = task.speed or 0.0
        written = (task.completed + rows) * self._row_bytes / 1e6
        rate = f"{speed:,.1f} rows/s  {written:,.0f} MB"
        self._bar.update(self._task, advance=rows, rate=rate)
        telling.count(int(task.completed), int(task.total or 0))

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
