"""``prooflens plot``: redraw the figures from a store's tables, or those of a page of heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from prooflens.cli.usage import facts


def plot(
    store: Annotated[
        Path, typer.Argument(help="A store, an inspection's folder, or a page of heads (.html).")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the figures.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Redraw every figure from the tables sealed into a store; no model is needed.

    Of an inspection all stores are drawn together. A page that prooflens view wrote holds its
    tables itself.
    """
    from interp.output import check_output, output_folder

    marker = ".prooflens-figures"
    check_output(out, overwrite=overwrite, marker=marker, inputs=[store])

    from interp.errors import StoreError

    drawn = _drawing(store)
    with output_folder(out, overwrite=overwrite, marker=marker) as folder:
        written = drawn(folder)
        if not written:
            raise StoreError(
                f"{store} holds no table to draw from: run prooflens heads on it first"
            )
    facts(figures=sorted(path.name for path in written))
    typer.echo(f"{len(written)} files in {out}")


def _drawing(given: Path) -> Callable[[Path], list[Path]]:
    """What writes the figures of a store, of an inspection's stores, or of a page, to a folder."""
    from interp.store import ActivationStore
    from prooflens.pages.head_figures import draw, draw_inspection
    from prooflens.pages.view_figures import draw_page

    if given.is_file():
        return partial(draw_page, given)
    inside = sorted(path.parent for path in given.glob("stores/*/manifest.json"))
    if inside and not (given / "manifest.json").is_file():
        return partial(draw_inspection, [ActivationStore(path) for path in inside])
    return partial(draw, ActivationStore(given))
