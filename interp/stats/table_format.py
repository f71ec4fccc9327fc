"""The columns of a head table.

A *head table* is the one tidy frame with every score of a component, whatever was measured. This
module only has the columns; the numbers are computed by :mod:`interp.stats.head_table`.
"""

from __future__ import annotations

from collections.abc import Iterable

FORMAT = 2
"""Version number of the format of head tables that this release writes."""

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
"""Columns that say which component and which measurement a row is about. No two rows of a table
agree in all of them."""

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
"""All columns of a head table, in order."""

_SHARED = {"circuit", "metric", "target", "null_mean", "null_std", "p", "q", "effect"}


def is_head_table(columns: Iterable[str]) -> bool:
    """Return whether these are the columns of a head table, in the present format or the first
    one."""
    return set(columns) >= _SHARED
