"""Tables of measurements on a store, sealed into the store itself.

A table is a pandas frame of float, integer, boolean and string columns with the default index.
Its file ``measurements-NAME.h5`` has one dataset per column under ``columns`` and the JSON
``provenance`` (which analysis, which arguments) and ``environment`` (which versions, threads and
BLAS); it is written, hashed, renamed and indexed like a part. A number in a store is worth what
its provenance says and no more.

A head table (:mod:`interp.stats.head_table`) has the number of its format in the file's attribute
``head_table``; one without it is refused.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.environment import environment_json
from interp.errors import Problems, StoreError
from interp.output import draft_of, drop, fsync, settle
from interp.reading import parse_json, sha256_file
from interp.stats.table_format import COLUMNS, FORMAT, is_head_table
from interp.store import layout
from interp.store.hdf5 import dataset, empty, open_hdf5, read_words, reading
from interp.store.layout import NAME

if TYPE_CHECKING:
    import pandas

_TABLE = "head_table"
_NAME = re.compile(NAME)


def measurement_names(folder: Path) -> tuple[str, ...]:
    """Names of the sealed tables, in the order in which the index has them."""
    return tuple(_entries(folder))


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    if not folder.is_dir():
        return {}
    return {e["name"]: e for e in layout.read_index(folder) if e["kind"] == "measurement"}


def write_measurement(
    folder: Path,
    name: str,
    table: pandas.DataFrame,
    provenance: dict[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Seal a table of measurements into the store.

    Args:
        folder: the store's folder.
        name: the table's name, of letters, digits and ``. _ + -``.
        table: float, integer, boolean and string columns; strings may be missing.
        provenance: JSON data saying how the numbers came to be.
        overwrite: replace an existing table of that name.

    Raises:
        ArgumentError: if the name, a column or the provenance cannot be stored.
        StoreError: if the table is there already, the store is in use, or the disk fails.
    """
    text = _check_measurement(name, table, provenance)
    if not folder.is_dir():
        raise StoreError(f"{folder}: not a store's folder: measurements are sealed into a folder")
    layout.read_manifest(folder)
    with layout.writing(folder):
        layout.drop_drafts(folder)
        layout.settle_replacements(folder)
        if name in _entries(folder) and not overwrite:
            raise StoreError(f"{folder}: measurement {name!r} is there already: use overwrite")
        final = folder / layout.measurement_name(name)
        draft = draft_of(final)
        try:
            _write_file(draft, table, text)
            _seal(folder, name, draft, final, len(table))
        except (OSError, RuntimeError) as error:
            raise StoreError(f"{final}: writing failed: {error}") from error
        finally:
            drop(draft)


def _seal(folder: Path, name: str, draft: Path, final: Path, rows: int) -> None:
    """Rename and index a finished draft.

    Where it replaces a table, the line says for a moment of both: the file is either of them
    whenever the process dies, and :func:`interp.store.layout.settle_replacements` finds out which.
    """
    fsync(draft)
    entry: dict[str, Any] = {"kind": "measurement", "name": name, "file": final.name, "n": rows}
    entry |= {"bytes": draft.stat().st_size, "sha256": sha256_file(draft)}
    entries = list(layout.read_index(folder))
    old = next((e for e in entries if e.get("name") == name), None)
    if old is None:
        settle(draft, final)
        layout.append_index(folder, entry)
        return
    replaces = {key: old[key] for key in ("n", "bytes", "sha256")}
    both = {**entry, "replaces": replaces}
    layout.rewrite_index(folder, [both if e is old else e for e in entries])
    settle(draft, final)
    layout.rewrite_index(folder, [entry if e is old else e for e in entries])


def _check_measurement(name: str, table: pandas.DataFrame, provenance: dict[str, Any]) -> str:
    import pandas as pd

    problems = Problems("measurement")
    good = bool(_NAME.fullmatch(name))
    problems.need(good, "name", "must be letters, digits, . _ + -", name, "rename it")
    default = table.index.equals(pd.RangeIndex(len(table)))
    rule = "must have the default index 0..n-1"
    problems.need(default, "table", rule, type(table.index).__name__, "call reset_index()")
    columns = [str(c) for c in table.columns]
    good = len(set(columns)) == len(columns) and all(
        c and "/" not in c and c != "." for c in columns
    )
    problems.need(good, "table", "needs distinct column names without /", columns, "rename them")
    if good:
        for column in table.columns:
            kind = _kind(table[column])
            rule = "must be float, integer, boolean or string"
            problems.need(kind != "", f"column {column}", rule, table[column].dtype, "convert it")
    try:
        text = json.dumps(provenance, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        text = ""
        problems.need(False, "provenance", "must be JSON data", error, "convert it")
    problems.raise_if_any()
    return text


def _kind(column: pandas.Series[Any]) -> str:
    """The kind of a column: ``f``, ``i``, ``u``, ``b``, ``s`` for strings, or empty if not
    storable."""
    import pandas as pd

    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiub":
        return column.dtype.kind
    present = column.dropna()
    text = isinstance(column.dtype, pd.StringDtype) or column.dtype == object
    return "s" if text and all(isinstance(value, str) for value in present) else ""


def _write_file(path: Path, table: pandas.DataFrame, text: str) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["format"] = layout.FORMAT
        file.attrs["version"] = layout.VERSION
        if set(COLUMNS) <= set(table.columns):
            file.attrs[_TABLE] = FORMAT
        file.create_dataset("provenance", data=text, dtype=h5py.string_dtype())
        told = environment_json()
        file.create_dataset("environment", data=told, dtype=h5py.string_dtype())
        order = json.dumps([str(c) for c in table.columns])
        file.create_dataset("order", data=order, dtype=h5py.string_dtype())
        group = file.create_group("columns")
        for column in table.columns:
            _write_column(group, str(column), table[column])


def _write_column(group: h5py.Group, name: str, column: pandas.Series[Any]) -> None:
    options: dict[str, Any] = {"fletcher32": True, "chunks": True} if len(column) else {}
    if _kind(column) == "s":
        missing = column.isna().to_numpy()
        values = np.array([v if isinstance(v, str) else "" for v in column], dtype=object)
        if len(values):
            options = {"chunks": True}  # fletcher32 does not cover strings of variable length
        made = group.create_dataset(name, data=values, dtype=h5py.string_dtype(), **options)
        made.attrs["missing"] = np.flatnonzero(missing)
        made.attrs["object"] = column.dtype == object
    else:
        values = column.to_numpy()
        fill = {"fillvalue": np.nan} if values.dtype.kind == "f" else {}
        made = group.create_dataset(name, data=values, **options, **fill)
    made.dims[0].label = "row"


def _sealed_path(folder: Path, name: str) -> Path:
    entries = _entries(folder)
    if name not in entries:
        known = ", ".join(entries) or "none"
        raise StoreError(f"{folder}: has no measurement {name!r}: it has {known}")
    path, hashes = folder / str(entries[name]["file"]), _hashes(entries[name])
    if os.path.lexists(path) and reading(str(path), lambda: sha256_file(path)) not in hashes:
        again = _entries(folder).get(name, {})  # another process may have replaced it meanwhile
        if reading(str(path), lambda: sha256_file(path)) not in _hashes(again):
            raise StoreError(f"{path}: is not as it was sealed: see prooflens store --verify")
    return path


def _hashes(entry: dict[str, Any]) -> tuple[Any, Any]:
    """SHA-256 of the table, and of the one that it is about to replace.

    Text of a spoilt file is not even looked at: the library in C can read it for ever.
    """
    return entry.get("sha256"), entry.get("replaces", {}).get("sha256")


def read_provenance(folder: Path, name: str) -> dict[str, Any]:
    """The provenance of a table: which analysis wrote it, with which arguments.

    Raises:
        StoreError: if there is no such table, or it is damaged.
    """
    path = _sealed_path(folder, name)
    with open_hdf5(path) as file:
        text = read_words(file, "provenance")
    found: dict[str, Any] = parse_json(text, f"{path}: provenance", StoreError, dict[str, Any])
    return found


def read_measurement(folder: Path, name: str) -> pandas.DataFrame:
    """Read a table of measurements from a store, as a data frame.

    Raises:
        StoreError: if there is no such table, it is damaged, it is of a newer format, or it is a
            head table (:func:`interp.stats.table_format.is_head_table`) of an older format.
    """
    import pandas as pd

    path = _sealed_path(folder, name)
    with open_hdf5(path) as file:
        text = read_words(file, "order")
        order = parse_json(text, f"{path}: order", StoreError, list[str])
        written = reading(f"{path}: {_TABLE}", lambda: int(file.attrs.get(_TABLE, 1)))
        if written > FORMAT or (written < FORMAT and is_head_table(order)):
            raise StoreError(
                f"{path}: is a head table of format {written}, and format {FORMAT} can be read: "
                "use the version that wrote it, or measure again"
            )
        rows = dataset(file, f"columns/{order[0]}").shape[:1] if order else (0,)
        found = {column: _read_column(file, column, rows) for column in order}
    return reading(f"{path}", lambda: pd.DataFrame(found))


def _read_column(
    file: h5py.File, name: str, rows: tuple[int, ...]
) -> NDArray[Any] | pandas.Series[Any]:
    """A column of so many rows, as the first has: the index may tell of the next edition."""
    import pandas as pd

    column = dataset(file, f"columns/{name}", rows)
    place = f"{math.prod(rows)} rows of column {name} of {file.filename}"
    out = empty(rows, column.dtype, place)
    if h5py.check_string_dtype(column.dtype) is None:
        reading(place, lambda: column.read_direct(out) if len(out) else None)
        return out

    def text() -> pandas.Series[Any]:
        values = np.asarray(column.asstr()[()], dtype=object)
        values[np.asarray(column.attrs["missing"]).astype(np.int64, casting="safe")] = None
        return pd.Series(values, dtype="object" if column.attrs["object"] else "str")

    return reading(place, text)
