"""``python -m analyses pictures``: draw the README's pictures again, with their numbers inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prooflens.commands import facts

__all__ = ["pictures"]


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
