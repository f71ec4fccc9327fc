"""Tables as Parquet files, which pandas, polars, DuckDB and R read with their types.

Every table of ours is a pandas frame already; a Parquet file keeps what a CSV file loses: which
column holds text and which numbers, NaN beside empty text, all digits. What the table was made with
(versions, threads) is in the file's own metadata under ``prooflens``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from interp.environment import environment
from interp.errors import ArgumentError
from interp.output import output_file
from interp.reading import regular

__all__ = ["read_parquet", "write_parquet"]

_KEY = b"prooflens"


def write_parquet(table: pd.DataFrame, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a table as a Parquet file; the file's place.

    Args:
        table: A head table, a role table, or any other frame.
        path: The file.
        overwrite: Replace a file that is there.

    Raises:
        ArgumentError: for a column of mixed types, or a name that stands twice.
        OutputError: if the file exists and may not be replaced, or cannot be written.
    """
    import pyarrow
    import pyarrow.parquet

    if not isinstance(table, pd.DataFrame):
        raise ArgumentError(f"table must be a pandas frame, got {type(table).__name__}: make one")
    path = Path(path)
    plain = table.copy(deep=False)
    plain.attrs = {}
    try:
        arrow = pyarrow.Table.from_pandas(plain, preserve_index=False)
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(
            f"table must have columns that Parquet has types for, each name once: {error}"
        ) from error
    told = {_KEY: json.dumps(environment()).encode()}
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), **told})
    with output_file(path, overwrite=overwrite) as draft:
        pyarrow.parquet.write_table(arrow, draft)
    return path


def read_parquet(path: str | Path) -> pd.DataFrame:
    """Read a table that :func:`write_parquet` wrote, as it was.

    Raises:
        ArgumentError: if the file is not there or is no Parquet file.
    """
    import pyarrow
    import pyarrow.parquet

    regular(path, "table", ArgumentError)
    try:
        found: pd.DataFrame = pyarrow.parquet.read_table(path).to_pandas()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ArgumentError(f"table {path} is not a Parquet file: {error}") from error
    return found
