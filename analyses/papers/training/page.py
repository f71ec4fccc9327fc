"""Redraw the page *Does training find the proof?* from the tables it keeps, without any training.

    python -m analyses.papers.training.page docs [--results FOLDER]
    make diagrams

The page keeps every model as a row of ``docs/data/ID.csv``. From these, and from the ledger's
options, come its figures (``docs/images/ID.png``) and its tables, which stand in the page between
``<!-- ID -->`` and ``<!-- end -->``. With ``--results`` the rows are first taken from a folder of
claims that were run (``prooflens claims run --paper training --out FOLDER``).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.papers.ledger import Claim, read_ledger
from analyses.papers.training.diagram import drawn, setting_in_words, shares
from interp.errors import ArgumentError
from interp.figures.style import save
from interp.output import output_file, replace_text

__all__ = ["PAGE", "main", "table_in_words", "with_tables"]

PAGE = "does-training-find-the-proof.md"
_BLOCK = "<!-- {name} -->\n"
_END = "<!-- end -->"


def diagrams(docs: Path) -> dict[str, tuple[pd.DataFrame, dict[str, Any]]]:
    """Claim → the models that the page keeps of it, and the options they were trained by."""
    return {
        claim.id: (pd.read_csv(_kept(docs, claim.id), dtype=_TEXT), dict(claim.profiles["quick"]))
        for claim in _claims()
        if _kept(docs, claim.id).exists()
    }


def with_tables(text: str, docs: Path) -> str:
    """The page's text with its tables as they follow from the rows that are kept.

    Raises:
        ArgumentError: for a page that has no place for one of the tables.
    """
    for name, (models, options) in diagrams(docs).items():
        start = _BLOCK.format(name=name)
        block = re.compile(re.escape(start) + ".*?" + re.escape(_END), re.DOTALL)
        if not block.search(text):
            raise ArgumentError(f"{PAGE}: must have a block {start.strip()} … {_END}: add it")
        table = f"{start}{table_in_words(shares(models, options), options)}\n{_END}"
        text = block.sub(lambda _, table=table: table, text)
    return text


def table_in_words(cells: pd.DataFrame, options: dict[str, Any]) -> str:
    """A diagram's settings as a table in Markdown, a row a setting."""
    lines = [
        "| setting | solve the task | work as the proof does | 95 % interval | least held |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in cells.to_dict("records"):
        least = f"{row['weakest']:.2f}" if row["weakest"] == row["weakest"] else "–"
        lines.append(
            f"| {setting_in_words(row, options)} | {row['solved']}/{row['models']} "
            f"| {row['found']}/{row['models']} | {row['low']:.2f} to {row['high']:.2f} | {least} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Redraw figures and tables."""
    parser = argparse.ArgumentParser(description="Redraw the page about training.")
    parser.add_argument("docs", type=Path)
    parser.add_argument("--results", type=Path, help="Take the rows from claims that were run.")
    given = parser.parse_args()
    for claim in _claims() if given.results else ():
        rows = given.results / claim.id / "models.csv"
        if rows.exists():
            with output_file(_kept(given.docs, claim.id), overwrite=True) as draft:
                draft.write_text(rows.read_text())
    for name, (models, options) in diagrams(given.docs).items():
        figure = drawn(shares(models, options), options).figure
        save(figure, given.docs / "images" / name, formats=("png",))
    page = given.docs / PAGE
    replace_text(page, with_tables(page.read_text(), given.docs))


_TEXT = {"locations": str, "layers": str}


def _claims() -> list[Claim]:
    return [claim for claim in read_ledger().values() if claim.paper == "training"]


def _kept(docs: Path, name: str) -> Path:
    return docs / "data" / f"{name}.csv"


if __name__ == "__main__":
    main()
