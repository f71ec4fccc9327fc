"""Stream a hooked model's activations to disk, in constant memory.

    store = extract(model, task, ["blocks.*.attn.hook_pattern"], "out/store", rows=4096)

The forward pass stops at the last hook asked for; a writer thread keeps disk and compute apart;
memory does not grow with rows. Interrupt it however you like: finished parts stay, and
``resume=True`` goes on to a store equal to the bit. With ``overwrite=True`` the older store stands
until the new one is complete; what was interrupted then begins anew.

Not for activations that fit in memory and are used once: ``run_with_cache`` is simpler. A stored
activation says what the model computed on these rows, not what it uses.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp import telling
from interp.errors import OutputError, Problems, StoreError, need_path
from interp.lock import LOCK
from interp.output import CHECKED, check_output, output_folder
from interp.ray_tasks import Backend, need_backend, require_ray
from interp.store import layout
from interp.store.reader import ActivationStore

if TYPE_CHECKING:
    from interp.hooks.transformer_lens_adapter import HookedModel
    from interp.store.pipeline import StorePlan
    from interp.store.sources import PartRows, RowSource


def plan_extraction(
    model: HookedModel,
    source: Any,
    hooks: Sequence[str] | str,
    *,
    rows: int | None = None,
    batch: int = 32,
    dtype: str | None = None,
    positions: str | slice = "all",
    heads: Sequence[int] | None = None,
    seed: int = 0,
    part_rows: int | None = None,
    compression: str | None = None,
) -> StorePlan:
    """Plan what :func:`extract` would do (hooks, shapes, rows, bytes, time) without writing
    anything.

    Arguments and errors are those of :func:`extract`. An iterator that can be read once must be
    given to :func:`extract` itself.
    """
    given = (hooks, rows, seed, batch, dtype, positions, heads, part_rows, compression)
    return _plan(model, source, *given)[1]


def extract(
    model: HookedModel,
    source: Any,
    hooks: Sequence[str] | str,
    out: Path | str,
    *,
    rows: int | None = None,
    batch: int = 32,
    dtype: str | None = None,
    positions: str | slice = "all",
    heads: Sequence[int] | None = None,
    seed: int = 0,
    part_rows: int | None = None,
    compression: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    backend: Backend = "local",
    loader: Callable[[], HookedModel] | None = None,
    about: Mapping[str, Any] | None = None,
    report: Callable[[str], None] | None = None,
) -> ActivationStore:
    """Run a model over a source and store the activations of its hooks.

    Args:
        model: one of ours, a ``TransformerBridge`` or a ``HookedRootModule``; put in evaluation
            mode meanwhile.
        source: a task, a batch, a tensor or array ``[row, pos(, channel)]``, an iterable of
            batches, a ``TokenFile``, or a Hugging Face data set.
        hooks: names or globs; ``!GLOB`` takes names out, ``*`` alone is all that fires.
        out: the store's folder.
        rows: how many; needed for a task, otherwise all that the source has.
        batch: how many rows one forward pass has.
        dtype: ``float64``, ``float32``, ``float16`` or ``bfloat16``; by default the model's.
        positions: ``all``, ``last``, ``START:STOP[:STEP]`` or a slice; of an attention
            pattern these are the queries, and all keys are kept.
        heads: indices to keep along head axes; by default all.
        seed: seed of a task's sampling.
        part_rows: rows of a part, a multiple of ``batch``; by default about 64 MiB.
        compression: ``gzip`` or ``lzf``; by default none.
        resume: go on with the store at ``out``, if it is of the same plan.
        overwrite: replace the store that is at ``out``.
        backend: ``local``, or ``ray`` to make each part a task on a Ray cluster.
        loader: for ``ray``: builds the model on a worker, if it cannot be pickled.
        about: JSON data kept in the manifest, such as a conformance report.
        report: a function that gets the plan as text before work starts.

    Returns:
        The store, complete.

    Raises:
        ArgumentError: if options break rules (all are named), or a row holds a token id that is
            none of the model's (parts before it stay).
        HookError: if a glob matches nothing, or a hook does not fire.
        OutputError: if ``out`` exists, or has too little space.
        StoreError: if the store is in use or of another plan, or the model or the disk fails.
        MissingDependencyError: if an extra is needed.
    """
    need_path("out", out)
    out = Path(out)
    _check_out(out, resume, overwrite, backend)
    if backend == "ray":
        require_ray()
    from interp.store.pipeline import run_on_ray, write_parts

    given = (hooks, rows, seed, batch, dtype, positions, heads, part_rows, compression)
    found, plan = _plan(model, source, *given)
    if report is not None:
        report(plan.describe())
    _check_space(out, plan)
    with _place(out, overwrite) as folder, _open(folder, plan, dict(about or {})) as done:
        todo = _remaining(found, plan, done)
        with _progress(plan, done) as advanced:
            sealed = partial(layout.append_index, folder)
            if backend == "ray":
                run_on_ray(todo, loader or model, plan, folder, sealed=sealed, advanced=advanced)
            else:
                write_parts(todo, model, plan, folder, sealed=sealed, advanced=advanced)
        _finish(folder)
    return ActivationStore(out)


def _plan(
    model: HookedModel,
    source: Any,
    hooks: Sequence[str] | str,
    rows: int | None,
    seed: int,
    batch: int,
    dtype: str | None,
    positions: str | slice,
    heads: Sequence[int] | None,
    part_rows: int | None,
    compression: str | None,
) -> tuple[RowSource, StorePlan]:
    from interp.hooks.transformer_lens_adapter import vocabulary_of
    from interp.store.pipeline import make_plan
    from interp.store.sources import as_source, within

    problems = Problems("extract")
    good = rows is None or rows >= 1
    problems.need(good, "rows", "must be at least 1", rows, "give a number, or leave it out")
    problems.need(seed >= 0, "seed", "must not be negative", seed, "use 0 or more")
    problems.raise_if_any()
    found = within(as_source(source, rows=rows, seed=seed), vocabulary_of(model))
    plan = make_plan(
        model, found, hooks, seed, batch, dtype, positions, heads, part_rows, compression
    )
    return found, plan


def _check_out(out: Path, resume: bool, overwrite: bool, backend: str) -> None:
    problems = Problems("extract")
    both = resume and overwrite
    problems.need(not both, "resume", "excludes overwrite", (resume, overwrite), "choose one")
    need_backend(problems, backend)
    problems.raise_if_any()
    check_output(out, overwrite=True, marker=CHECKED)
    if not out.exists():
        return
    there = [path for path in out.iterdir() if path.name != LOCK]
    foreign = layout.foreign_files(out)
    if there and (not layout.store_files(out) or (overwrite and foreign)):
        raise OutputError(
            f"{out}: has files that are no store's ({', '.join(foreign[:3])}): give another folder"
        )
    if there and not resume and not overwrite:
        raise OutputError(
            f"{out}: there is a store already: resume=True (--resume) goes on with it, "
            "overwrite=True (--overwrite) replaces it"
        )


def _check_space(out: Path, plan: StorePlan) -> None:
    if plan.bytes is None or plan.record["compression"]:
        return
    at = next(parent for parent in (out, *out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(at).free
    if plan.bytes > free:
        raise OutputError(
            f"{out}: needs {plan.bytes / 1e9:.2f} GB and {free / 1e9:.2f} GB are free: store "
            "fewer rows, hooks, positions or a smaller dtype"
        )


@contextmanager
def _place(out: Path, overwrite: bool) -> Iterator[Path]:
    """Where the parts are written: the store's folder, or a draft that replaces an older store."""
    if not (overwrite and out.exists() and layout.store_files(out)):
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to {out}: {error.strerror or error}") from error
        yield out
        return
    with (
        layout.writing(out),
        output_folder(out, overwrite=True, marker=CHECKED) as draft,
    ):
        yield draft


@contextmanager
def _open(out: Path, plan: StorePlan, about: dict[str, Any]) -> Iterator[dict[int, dict[str, Any]]]:
    """Hold the lock over a store of this plan; gives the parts that it has already."""
    with layout.writing(out):
        with _writing(out):
            layout.drop_drafts(out)
            if layout.is_store(out):
                _check_same(out, plan)
                layout.rewrite_index(out, layout.read_index(out))
            else:
                layout.write_manifest(out, {**plan.manifest(), "about": about})
            done = {e["part"]: e for e in layout.read_index(out) if e["kind"] == "part"}
        yield done


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{out}: writing failed: {error.strerror or error}; sealed parts stay readable"
        ) from error


def _check_same(out: Path, plan: StorePlan) -> None:
    from interp.store.pipeline import differences

    stored = dict(layout.read_manifest(out)["plan"])
    if (lanes := stored.pop("lanes", 1)) != 1:  # of stores before 0.1.0
        raise StoreError(
            f"{out}: cannot go on with this store: {lanes} forward passes at once began it, whose "
            "sums are others than those of one: read it as it is, or use overwrite=True "
            "(--overwrite)"
        )
    found = differences(stored, plan.record)
    if found:
        raise StoreError(
            f"{out}: cannot go on with this store, its plan is another: {'; '.join(found)}: "
            "use the same, or overwrite=True (--overwrite)"
        )


def _remaining(
    source: RowSource, plan: StorePlan, done: dict[int, dict[str, Any]]
) -> Iterator[PartRows]:
    from interp.store.sources import parts

    for part in parts(source, plan.record["part_rows"]):
        entry = done.get(part.number)
        if entry is None:
            yield part
        elif entry["source_sha256"] != part.sha256():
            raise StoreError(
                f"part {part.number}: the source gives other rows than those stored: resume with "
                "the same source, or use overwrite=True (--overwrite)"
            )


@contextmanager
def _progress(
    plan: StorePlan, done: Mapping[int, Mapping[str, Any]]
) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, and the function that adds rows which were computed.

    Args:
        plan: says how many rows there will be and how large one is.
        done: index entries of the parts that exist already.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} rows"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        already = sum(entry["n"] for entry in done.values())
        bar.add_task("extract", total=plan.rows, completed=already, rate="")
        (task,) = bar.tasks

        def advance(rows: int) -> None:
            written = (task.completed + rows) * plan.row_bytes / 1e6
            rate = f"{task.speed or 0.0:,.1f} rows/s  {written:,.0f} MB"
            bar.update(task.id, advance=rows, rate=rate)
            telling.count(int(task.completed), int(task.total or 0))

        yield advance


def _finish(out: Path) -> None:
    with _writing(out):
        entries = list(layout.read_index(out))
        layout.rewrite_index(out, entries)
        manifest = layout.read_manifest(out)
        manifest["rows"] = sum(e["n"] for e in entries if e["kind"] == "part")
        manifest["complete"] = True
        layout.write_manifest(out, manifest)
