"""``prooflens plot``: redraw the figures from a store's tables, or those of a page of heads."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from analyses.cli.usage import facts

__all__ = ["plot"]


def plot(
    store: Annotated[Path, typer.Argument(help="A store's folder, or a page of heads (.html).")],
    out: Annotated[Path, typer.Option(help="Folder for the figures.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Redraw every figure from the tables sealed into a store; no model is needed.

    A page that prooflens view wrote holds its tables itself: its figures are drawn from them.
    """
    from interp.output import check_output, output_folder

    marker = ".prooflens-figures"
    check_output(out, overwrite=overwrite, marker=marker, inputs=[store])

    from analyses.report.head_figures import draw
    from analyses.report.view_figures import draw_page
    from interp.errors import StoreError
    from interp.store import ActivationStore

    drawn = partial(draw_page, store) if store.is_file() else partial(draw, ActivationStore(store))
    with output_folder(out, overwrite=overwrite, marker=marker) as folder:
        written = drawn(folder)
        if not written:
            raise StoreError(
                f"{store} holds no table to draw from: run prooflens heads on it first"
            )
    facts(figures=sorted(path.name for path in written))
    typer.echo(f"{len(written)} files in {out}")
