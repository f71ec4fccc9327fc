"""``python -m analyses real-heads``: which head does what in language models that people use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prooflens.commands import facts

__all__ = ["real_heads"]


def real_heads(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of an inspection of one of the models.")
    ] = None,
    docs: Annotated[Path, typer.Option(help="Folder of the page and its picture.")] = Path("docs"),
) -> None:
    """Keep what the page needs of an inspection, if one is given; write page and picture."""
    from analyses.pictures.real_heads import keep, kept, picture_in_words, write

    written = [] if folder is None else [keep(folder)]
    written += write(docs)
    words = picture_in_words(kept())
    facts(written=[str(path) for path in written], picture=words)
    for path in written:
        typer.echo(str(path))
    typer.echo(words)
