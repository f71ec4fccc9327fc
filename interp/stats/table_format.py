"""The columns of a head table.

A *head table* is the one tidy frame with every score of a component, whatever was measured. This
module only has the columns; the numbers are computed by :mod:`interp.stats.head_table`.
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
    """Return whether these are the columns of a head table, in the present format or the first
    one."""
    return set(columns) >= _SHARED
