"""``prooflens view``: all heads of a model, and each on rows of text, in one offline file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prooflens.cli.usage import OWN_ROWS, Device, RunDtype, facts, progress, shipped_models

__all__ = ["view"]


def view(
    models: Annotated[
        list[str],
        typer.Argument(
            help="A shipped model, a folder, a hub id, or a store; up to three side by side.",
            autocompletion=shipped_models,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The HTML file.")],
    text: Annotated[
        str | None, typer.Option(help="A text file, or a text, to show pieces of.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help=f"{OWN_ROWS} Shown, not decided on.")] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="A row to show: text, or token ids with spaces; may be repeated."),
    ] = None,
    rows: Annotated[int, typer.Option(min=4, help="Rows shown, besides prompts.")] = 60,
    length: Annotated[int, typer.Option(min=12, help="Tokens of a row, at most.")] = 64,
    ablate: Annotated[
        bool, typer.Option(help="Run the model without each head, too (most of the time).")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of rows and nulls.")] = 0,
    device: Device = "cpu",
    dtype: RunDtype = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write one self-contained page: every head as a point, its role with the evidence, its rows.

    The page opens offline in any browser; nothing is fetched and no server is needed.
    """
    from interp.output import check_output
    from prooflens.cli.text import text_of

    read: list[str | Path] = [*models, *(given for given in (text, data) if given is not None)]
    check_output(out, overwrite=overwrite, inputs=read)
    words = None if text is None else text_of(text)

    from prooflens.cli.steps import steps
    from prooflens.pages.show import view as shown

    found = shown(
        *models,
        text=words,
        data=data,
        prompts=prompt or (),
        rows=rows,
        length=length,
        ablate=ablate,
        seed=seed,
        device=device,
        dtype=dtype,
        watch=steps(),
        over=progress("heads"),
    )
    found.save(out, overwrite=overwrite)
    for line in found.findings:
        typer.echo(line)
    facts(findings=found.findings, page=out)
    typer.echo(f"page: {out}")
