"""``python -m analyses pictures`` and ``real-heads``: the README's pictures, their numbers inside.

And the page on which head does what in language models that people use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prooflens.commands import facts

__all__ = ["pictures", "real_heads"]


def pictures(
    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("docs/images"),
) -> None:
    """Draw the pictures of the README, each with its numbers inside, and say them in words."""
    from analyses.pictures.first_picture import picture_in_words, write_picture
    from analyses.pictures.forming import forming_in_words, write_forming

    words = {
        "attention-by-lag.png": picture_in_words(write_picture(out / "attention-by-lag.png")),
        "induction-forms.png": forming_in_words(write_forming(out / "induction-forms.png")),
    }
    facts(pictures=words)
    for name, said in words.items():
        typer.echo(f"{out / name}: {said}")


def real_heads(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of an inspection of one of the models.")
    ] = None,
    docs: Annotated[Path, typer.Option(help="Folder of the page and its picture.")] = Path("docs"),
) -> None:
    """Keep what the page needs of an inspection, if one is given; write page and picture."""
    from analyses.pictures.real_heads import keep, picture_in_words, read_tables, write

    written = [] if folder is None else [keep(folder)]
    written += write(docs)
    words = picture_in_words(read_tables())
    facts(written=[str(path) for path in written], picture=words)
    for path in written:
        typer.echo(str(path))
    typer.echo(words)
