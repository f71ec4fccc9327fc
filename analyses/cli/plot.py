"""``prooflens plot``: redraw the figures from a store's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analyses.cli.usage import facts

__all__ = ["plot"]


def plot(
    store: Annotated[Path, typer.Argument(help="The store's folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the figures.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Redraw every figure from the tables sealed into a store; no model is needed."""
    from interp.output import check_output, output_folder

    marker = ".prooflens-figures"
    check_output(out, overwrite=overwrite, marker=marker, inputs=[store])

    from analyses.report.head_figures import draw
    from interp.errors import StoreError
    from interp.store import ActivationStore

    opened = ActivationStore(store)
    with output_folder(out, overwrite=overwrite, marker=marker) as folder:
        written = draw(opened, folder)
        if not written:
            raise StoreError(
                f"{store} holds no table to draw from: run prooflens heads on it first"
            )
    facts(figures=sorted(path.name for path in written))
    typer.echo(f"{len(written)} files in {out}")
