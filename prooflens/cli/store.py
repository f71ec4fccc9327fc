"""``prooflens store``: show, verify and repair activation stores, and draw their figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prooflens.cli.outputs import (
    FaultOutput,
    FiguresOutput,
    RepairOutput,
    StoreOutput,
    VerifyOutput,
)
from prooflens.cli.usage import default_out, facts, not_for

if TYPE_CHECKING:
    import pandas as pd

    from interp.store import ActivationStore
    from interp.store.verify import Fault


def store(
    folder: Annotated[
        Path, typer.Argument(metavar="STORE", help="A store, or the folder of an inspection.")
    ],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Re-read every checksum and shape; exit with 1 if one is wrong."
        ),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Move damaged files to damaged/, so that extract --resume refills them.",
        ),
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Delete what was moved to damaged/, now or before.")
    ] = False,
    figures: Annotated[
        bool, typer.Option("--figures", help="Draw every figure from the sealed tables.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the figures; by default named after the store.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the figures.")] = False,
) -> None:
    """Print what is in an activation store; verify or repair it, or draw its figures again.

    No model is needed for any of it.
    """
    from interp.errors import need

    asked = " ".join(["--verify"] * verify + ["--repair"] * repair + ["--figures"] * figures)
    rule = "must be one of --verify, --repair and --figures"
    need("store", " " not in asked, "what to do", rule, asked, "keep one")
    if not repair:
        not_for("a store that is not repaired", "of which nothing is deleted", "drop")
    if not figures:
        not_for("a store whose figures are not drawn", "as --figures does", "out", "overwrite")
    inside = folder / "store"
    place = inside if (inside / "manifest.json").is_file() else folder
    if verify:
        _verify(place)
    elif repair:
        _repair(place, drop)
    elif figures:
        _draw(place, default_out(folder, out, "figures"), overwrite)
    else:
        _describe(place)


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Provide a function that advances a progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)


def _bytes(path: Path) -> int:
    from interp.store.layout import store_files

    return sum(file.stat().st_size for file in store_files(path)) if path.is_dir() else 0


def _describe(store: Path) -> None:
    """Print the contents of a store."""
    from interp.store import ActivationStore

    opened = ActivationStore(store)
    typer.echo("\n".join(_summary(opened)))
    plan = opened.manifest["plan"]
    model = opened.manifest.get("about", {}).get("model")
    told = StoreOutput(
        model=model,
        weights_sha256=plan["model"]["weights_sha256"],
        rows=opened.rows,
        parts=len(opened.parts),
        complete=opened.complete,
        lengths={str(length): rows for length, rows in opened.lengths.items()},
        hooks=list(opened.hooks),
        measurements=list(opened.measurements),
        overflows=opened.overflows,
    )
    facts(**told)


def _summary(store: ActivationStore) -> Iterator[str]:
    manifest, plan = store.manifest, store.manifest["plan"]
    model, source = plan["model"], plan["source"]
    state = "complete" if store.complete else "not complete: resume its extraction"
    size = _bytes(store.path)
    yield f"store     {store.path}, version {manifest['version']}, by {manifest['product']}"
    named = manifest.get("about", {}).get("model") or model["name"] or model["class"]
    yield f"model     {named}, weights {model['weights_sha256'][:16]}…"
    yield f"source    {source['kind']} {source.get('name', '')}, seed {plan['seed']}"
    yield f"rows      {store.rows:,} in {len(store.parts)} parts, {state}"
    lengths = ", ".join(f"{length} ({rows:,} rows)" for length, rows in store.lengths.items())
    yield f"lengths   {lengths or 'none yet'}"
    yield f"on disk   {size / 1e6:,.1f} MB, compression {plan['compression'] or 'none'}"
    yield f"plan      {manifest['plan_digest'][:16]}…, batches of {plan['batch']}"
    yield f"hooks     {len(store.hooks)}, and {len(store.aliases)} aliases"
    for name, hook in manifest["hooks"].items():
        axes = " × ".join(
            f"{label} {n}" for label, n in zip(hook["labels"][1:], hook["shape"], strict=True)
        )
        lost = store.overflows.get(name)
        note = f", {lost:,} values overflowed" if lost else ""
        yield f"  {name}  {axes}  {hook['dtype']}{note}"
    for line in manifest.get("about", {}).get("conformance", ()):
        yield f"  does not conform: {line}"
    tables = store.measurements
    yield f"measurements  {len(tables)}"
    for name in tables:
        table = store.measurement(name)
        columns = ", ".join(map(str, table.columns))
        yield f"  {name}  {len(table):,} rows: {columns}"


def _verify(store: Path) -> None:
    """Re-read every checksum and shape; exit with 1 if something is damaged."""
    from interp.store import ActivationStore
    from interp.store import verify as check
    from interp.store.layout import MANIFEST

    with _progress("verify", _bytes(store)) as advanced:
        faults = check(store, advanced=advanced)
    facts(**VerifyOutput(sound=not faults, faults=[_fault_output(one) for one in faults]))
    for fault in faults:
        typer.echo(str(fault))
    if faults:
        bad = {fault.file for fault in faults}
        advice = f"prooflens store {store} --repair"
        if MANIFEST in bad:
            advice = "put back the manifest that was written, or extract again with --overwrite"
        typer.echo(f"{len(bad)} of its files are damaged: {advice}", err=True)
        raise typer.Exit(1)
    rest = "" if ActivationStore(store).complete else "; not complete: resume its extraction"
    typer.echo(f"{store}: sound{rest}")


def _repair(store: Path, drop: bool) -> None:
    """Move damaged files to damaged/, so that extract --resume refills them."""
    from interp.store import repair as mend
    from interp.store import verify as check
    from interp.store.layout import DAMAGED, index_lines

    before = sum(1 for _ in index_lines(store))
    aside = sorted(p.name for p in (store / DAMAGED).iterdir()) if _folder(store / DAMAGED) else []
    moved = mend(store, drop_damaged=drop)
    for name in aside if drop else ():
        typer.echo(f"deleted from {DAMAGED}/: {name}")
    for name in moved:
        typer.echo(f"{'deleted' if drop else 'moved to damaged/:'} {name}")
    if any(name.startswith("part-") for name in moved):
        typer.echo("run the extraction again with --resume to refill the parts")
    left = check(store)
    facts(**RepairOutput(moved=moved, faults=[_fault_output(one) for one in left]))
    for fault in left:
        typer.echo(f"not mended: {fault}")
    if left:
        raise typer.Exit(1)
    if not moved:
        lines = before - sum(1 for _ in index_lines(store))
        typer.echo(f"{store}: nothing to move" + f"; {lines} lines left the index" * bool(lines))


def _fault_output(fault: Fault) -> FaultOutput:
    return FaultOutput(file=fault.file, dataset=fault.dataset, reason=fault.reason)


def _folder(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()


def _draw(store: Path, out: Path, overwrite: bool) -> None:
    """Redraw every figure from the tables sealed into a store; no model is needed."""
    from interp.output import check_output, output_folder

    marker = ".prooflens-figures"
    check_output(out, overwrite=overwrite, marker=marker, inputs=[store])

    from interp.errors import StoreError
    from interp.store import ActivationStore
    from prooflens.pages.head_figures import draw

    opened = ActivationStore(store)
    tables = _tables(opened)
    told = opened.provenance("roles") if "roles" in tables else {}
    unit = "variance" if told.get("profile") == "task" else "nats"
    with output_folder(out, overwrite=overwrite, marker=marker) as folder:
        written = draw(tables, folder, unit)
        if not written:
            raise StoreError(
                f"{store} holds no table to draw from: run prooflens inspect on it first"
            )
    facts(**FiguresOutput(figures=sorted(path.name for path in written)))
    typer.echo(f"{len(written)} files in {out}")


def _tables(store: ActivationStore) -> dict[str, pd.DataFrame]:
    """Return the sealed tables, without those that belong to another run's roles."""
    found = {}
    for name in store.measurements:
        own = not name.startswith("attention-") or "roles" not in store.measurements
        if own or store.provenance(name) == store.provenance("roles"):
            found[name] = store.measurement(name)
    return found
