"""The columns of a head table.

A *head table* is the one tidy frame in which every score of a component stands, whatever was
measured. Only the columns are known here: numbers are :mod:`interp.stats.head_table`'s.
"""

from __future__ import annotations

from collections.abc import Iterable

FORMAT = 2
"""The format of head tables that this version writes."""

IDENTITY = (
    "component",
    "layer",
    "head",
    "group",
    "circuit",
    "metric",
    "target",
    "site",
    "method",
    "null",
    "trial",
)
"""Columns that say what a row is about; no two rows of a table agree in all of them."""

COLUMNS = (
    *IDENTITY,
    "score",
    "null_mean",
    "null_std",
    "p",
    "q",
    "effect",
    "low",
    "high",
    "draws",
)
"""All columns, in order."""

_SHARED = {"circuit", "metric", "target", "null_mean", "null_std", "p", "q", "effect"}


def is_head_table(columns: Iterable[str]) -> bool:
    """Whether these are the columns of a head table, in the present format or the first."""
    return set(columns) >= _SHARED
