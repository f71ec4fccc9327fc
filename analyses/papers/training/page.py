"""Redraw the page *Does training find the proof?* from the tables it keeps, without any training.

    python -m analyses claims page [--results FOLDER]
    make diagrams

The page keeps every model as a row of ``docs/data/ID.csv``, and the agreement of the map's cells in
``docs/data/ID-agreement.csv``. From these, and from the ledger's options, come its figures
(``docs/images/ID.png``) and its tables, which stand in the page between ``<!-- ID -->`` and
``<!-- end -->``. With ``--results`` the rows are first taken from a folder of claims that were run
(``python -m analyses claims run --paper training --out FOLDER``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.papers.ledger import Claim, read_ledger
from analyses.papers.training.diagram import draw_diagram, setting_in_words, shares
from analyses.papers.training.points import parts_of, rows_at
from prooflens.errors import ArgumentError
from prooflens.files import output_file, replace_text
from prooflens.plot import save

__all__ = ["PAGE", "redraw", "table_in_words", "with_tables"]

PAGE = "laboratory/does-training-find-the-proof.md"
_END = "<!-- end -->"
_TABLES = {"models": "", "agreement": "-agreement"}
_TEXT = {"locations": str, "done_in": str}


@dataclass(frozen=True)
class _Diagram:
    """What the page stores of a claim: the rows of its models, its agreement, and its options."""

    models: pd.DataFrame
    agreement: pd.DataFrame
    options: dict[str, Any]


def with_tables(text: str, docs: Path) -> str:
    """Return the page's text with its tables made anew from the stored rows.

    Raises:
        ArgumentError: for a page that has no place for one of the tables.
    """
    for name, kept in _diagrams(docs).items():
        start = f"<!-- {name} -->\n"
        block = re.compile(re.escape(start) + ".*?" + re.escape(_END), re.DOTALL)
        place = block.search(text)
        if place is None:
            raise ArgumentError(f"{PAGE}: must have a block {start.strip()} … {_END}: add it")
        cells = shares(kept.models, kept.options)
        table = f"{start}{table_in_words(cells, kept.agreement, kept.options)}\n{_END}"
        text = text[: place.start()] + table + text[place.end() :]
    return text


def table_in_words(cells: pd.DataFrame, agreement: pd.DataFrame, options: Mapping[str, Any]) -> str:
    """Return a diagram's settings as a Markdown table with a row for each setting.

    Args:
        cells: From :func:`~analyses.papers.training.diagram.shares`.
        agreement: From :func:`~analyses.papers.training.measured.agreements`.
        options: The options of the profile.
    """
    lines = [
        "| setting | solve | work as the proof does | 95 % interval | least held | agreement |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    agreed = {
        index: f"{row.agreement:.2f}"
        for row in agreement.itertuples()
        for index in rows_at(cells, _point(row, options), options).index
    }
    for index, row in zip(cells.index, cells.to_dict("records"), strict=True):
        least = "–" if pd.isna(row["weakest"]) else f"{row['weakest']:.2f}"
        lines.append(
            f"| {setting_in_words(row, options)} | {row['solved']}/{row['models']} "
            f"| {row['found']}/{row['models']} | {row['low']:.2f} to {row['high']:.2f} | {least} "
            f"| {agreed.get(index, '')} |"
        )
    return "\n".join(lines)


def redraw(docs: Path, results: Path | None = None) -> None:
    """Write the figures and tables of the page again.

    Args:
        docs: The folder of the documentation.
        results: A folder of claims that were run, whose rows replace those that the page stores.
    """
    if results is not None:
        for claim, (table, ending) in product(_claims(), _TABLES.items()):
            rows = results / claim.id / f"{table}.csv"
            if rows.exists():
                with output_file(_table_path(docs, claim.id, ending), overwrite=True) as draft:
                    draft.write_text(rows.read_text())
    for name, kept in _diagrams(docs).items():
        figure = draw_diagram(shares(kept.models, kept.options), kept.options).figure
        save(figure, docs / "images" / name, formats=("png",))
    page = docs / PAGE
    replace_text(page, with_tables(page.read_text(), docs))


def _diagrams(docs: Path) -> dict[str, _Diagram]:
    """Return claim → what the page stores of it."""
    return {
        claim.id: _Diagram(
            pd.read_csv(_table_path(docs, claim.id), dtype=_TEXT),
            pd.read_csv(_table_path(docs, claim.id, "-agreement")),
            dict(claim.profiles["full"]),
        )
        for claim in _claims()
        if _table_path(docs, claim.id).exists()
    }


def _point(row: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cell of the map that a row of the agreement table belongs to."""
    part = parts_of(options)[0]
    return {name: getattr(row, name) for name in (part.across, part.down)}


def _claims() -> list[Claim]:
    return [claim for claim in read_ledger().values() if claim.paper == "training"]


def _table_path(docs: Path, name: str, ending: str = "") -> Path:
    return docs / "data" / f"{name}{ending}.csv"
