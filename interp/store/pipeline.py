"""What an extraction will store, decided and checked before any work starts; then its pipeline:
compute here, write and seal in another thread.

    rows → forward to the last hook, select, cast → HDF5 → fsync, SHA-256, rename → index

The *record* of a plan is everything that decides the stored bits: the model's weights, the
source and its seed, hooks, selection, batch, part size, threads, device, versions. Its
SHA-256 is the plan digest. Going on with an interrupted store needs an equal record; where it is
not equal, the difference is named. (Batch and threads are in it because floating-point sums depend
on them.)

Positions and heads are cut along axes that are known by name (:mod:`interp.hooks.hook_names`),
never along guessed ones. Casts are done by torch, and every finite value that a cast makes infinite
is counted: HDF5 would make infinities in silence.

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

import hashlib
import json
import math
import platform
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interp.environment import environment
from interp.errors import ArgumentError, HookError, Problems, StoreError
from interp.hooks.capture import Capture, Firing, Survey, model_device, survey
from interp.ray_tasks import ray_results, worker_model
from interp.store.hdf5 import BFLOAT16, COMPRESSIONS, PartFile, StoredArray
from interp.store.layout import FORMAT, VERSION, digest, part_name
from interp.store.sources import Columns, PartRows, RowSource

if TYPE_CHECKING:
    from interp.hooks.transformer_lens_adapter import HookedModel

Sealed = Callable[[dict[str, Any]], None]
DTYPES = ("float64", "float32", "float16", BFLOAT16)
PART_BYTES = 64 << 20
_MOST_PART_ROWS = 8192
_POSITION_AXES = ("pos", "query")
_AHEAD = 4


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
            "version": VERSION,
            "product": f"prooflens {environment()['prooflens']}",
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
    hooks: Sequence[str] | str,
    seed: int,
    batch: int,
    dtype: str | None,
    positions: str | slice,
    heads: Sequence[int] | None,
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
        dtype: The floating type in which numbers are stored; None for the model's.
        positions: ``all``, ``last``, ``START:STOP[:STEP]`` or a slice.
        heads: Indices to keep along head axes; None for all.
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
    try:
        kept = parse_positions(positions)
    except ValueError:
        raise ArgumentError(
            f"positions must be all, last or START:STOP[:STEP] with a positive step, got "
            f"{positions!r}: write '0:8' for the first eight"
        ) from None
    selection = Selection(kept, None if heads is None else tuple(heads), dtype)
    _check_options(batch, part_rows, dtype, compression)
    first = source.first(batch)
    device = model_device(model)
    few = first["inputs"][:2].to(device)
    found = survey(model, few, [hooks] if isinstance(hooks, str) else list(hooks))
    problems = Problems("extract")
    selection.check(found.hooks, problems)
    problems.raise_if_any()
    stored = _stored_hooks(found, selection)
    row_bytes = sum(
        math.prod(hook["shape"]) * getattr(torch, hook["dtype"]).itemsize
        for hook in stored.values()
    )
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
    batch: int, part_rows: int | None, dtype: str | None, compression: str | None
) -> None:
    problems = Problems("extract")
    problems.need(batch >= 1, "batch", "must be at least 1", batch, "give a number of rows")
    good = part_rows is None or (part_rows >= 1 and batch >= 1 and part_rows % batch == 0)
    rule = f"must be a multiple of the batch, {batch}"
    problems.need(good, "part_rows", rule, part_rows, "or leave it out")
    good = dtype is None or dtype in DTYPES
    rule = f"must be one of {', '.join(DTYPES)}"
    problems.need(good, "dtype", rule, dtype, "or leave it out to keep the model's")
    good = compression is None or compression in COMPRESSIONS
    rule = f"must be one of {', '.join(COMPRESSIONS)}"
    problems.need(good, "compression", rule, compression, "or leave it out")
    problems.raise_if_any()


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
    device, size, compression = (
        model_device(model),
        plan.record["batch"],
        plan.record["compression"],
    )
    try:
        with (
            Capture(model, plan.survey.hooks).running() as forward,
            ThreadPoolExecutor(1, "prooflens-writer") as writer,
        ):
            for part in parts:
                digest = part.sha256()
                file = PartFile(folder, part.number, part.rows, size, compression, digest)
                files[part.number] = file
                for start in range(0, len(part.rows), size):
                    columns = _compute(plan, forward, device, part, slice(start, start + size))
                    last = writer.submit(_write, last, file, start, columns, files, sealed)
                    waiting.append(last)
                    if len(waiting) > _AHEAD:
                        waiting.popleft().result()
                    advanced(len(columns["inputs"].values))
            for written in waiting:
                written.result()
    finally:
        for file in files.values():
            file.abandon()


def _compute(
    plan: StorePlan,
    forward: Callable[[Tensor], dict[str, Tensor]],
    device: torch.device,
    part: PartRows,
    batch: slice,
) -> dict[str, StoredArray]:
    """The columns of a part's batch as they will be stored.

    Raises:
        StoreError: if the model fails on the rows, or an activation is infinite or not a number.
            Scores may be −∞, where a mask hides a key.
    """
    where = f"in part {part.number} (rows {part.rows[0]}..{part.rows[-1]})"
    try:
        caught = forward(part.columns["inputs"][batch].to(device))
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
    columns = {n: to_array(v[batch], _row_labels(n, v)) for n, v in part.columns.items()}
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
    file: PartFile,
    start: int,
    columns: dict[str, StoredArray],
    files: dict[int, PartFile],
    sealed: Sealed,
) -> None:
    """Write a batch, and seal its part after the last one; nothing once a call before failed."""
    if before is not None:
        before.result()
    try:
        file.write(start, columns)
        if start + len(columns["inputs"].values) == len(file.rows):
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
