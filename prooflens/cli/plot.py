"""``prooflens plot``: redraw the figures from a store's tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prooflens.cli.usage import default_out, facts

if TYPE_CHECKING:
    import pandas as pd

    from interp.store import ActivationStore


def plot(
    store: Annotated[Path, typer.Argument(help="A store, or an inspection's folder.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the figures; by default named after the store.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Redraw every figure from the tables sealed into a store; no model is needed."""
    from interp.output import check_output, output_folder

    marker = ".prooflens-figures"
    out = default_out(store, out, "plot")
    check_output(out, overwrite=overwrite, marker=marker, inputs=[store])

    from interp.errors import StoreError
    from interp.store import ActivationStore
    from prooflens.pages.head_figures import draw

    inside = store / "store"
    opened = ActivationStore(inside if (inside / "manifest.json").is_file() else store)
    tables = _tables(opened)
    told = opened.provenance("roles") if "roles" in tables else {}
    unit = "variance" if told.get("profile") == "task" else "nats"
    with output_folder(out, overwrite=overwrite, marker=marker) as folder:
        written = draw(tables, folder, unit)
        if not written:
            raise StoreError(
                f"{store} holds no table to draw from: run prooflens inspect on it first"
            )
    facts(figures=sorted(path.name for path in written))
    typer.echo(f"{len(written)} files in {out}")


def _tables(store: ActivationStore) -> dict[str, pd.DataFrame]:
    """The sealed tables, without those that belong to another run's roles or probes."""
    of = {"attention-": "roles", "curves": "probes"}
    found = {}
    for name in store.measurements:
        whole = next((other for start, other in of.items() if name.startswith(start)), name)
        alone = whole not in store.measurements
        if alone or store.provenance(name) == store.provenance(whole):
            found[name] = store.measurement(name)
    return found
