"""Write a part's HDF5 file and seal it.

Rows are written into a draft, an HDF5 file which is closed, fsynced, hashed and renamed; its index
entry is for the caller to write. A failed or abandoned part leaves nothing behind; parts
sealed before it are untouched.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.errors import StoreError
from interp.output import draft_of, drop, fsync, settle
from interp.reading import sha256_file
from interp.store import arrays
from interp.store.layout import FORMAT, VERSION, part_name

Rows = NDArray[np.int64]
_CHUNK_CACHE = 2 * arrays.CHUNK_BYTES


@dataclass(frozen=True)
class StoredArray:
    """Values that are about to be written to a dataset.

    Attributes:
        values: the values as stored, ``[row, …]``.
        logical: the dtype they stand for (``bfloat16`` for 16-bit words).
        labels: the names of the axes.
        overflows: how many finite values a cast made infinite.
    """

    values: NDArray[Any]
    logical: str
    labels: tuple[str, ...]
    overflows: int = 0


def row_ranges(rows: Rows) -> list[list[int]]:
    """Row ids as half-open ranges: ``[3, 4, 5, 9]`` → ``[[3, 6], [9, 10]]``."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(rows, cuts) if len(run)]


@dataclass
class PartFile:
    """The file of one part, until it is sealed.

    Attributes:
        folder: the store's folder.
        number: the number of the part.
        rows: source row ids, in the order they will be written.
        batch: how many rows are written at a time.
        compression: the name of a compression filter, or ``None``.
        source_sha256: digest of the part's inputs, to recognise another source on resuming.
    """

    folder: Path
    number: int
    rows: Rows
    batch: int
    compression: str | None
    source_sha256: str
    overflows: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._draft = draft_of(self.folder / part_name(self.number))
        self._file: h5py.File | None = None
        self._shapes: dict[str, list[int]] = {}
        self._datasets: dict[str, h5py.Dataset] = {}  # closing one would empty its chunk cache

    def write(self, start: int, columns: Mapping[str, StoredArray]) -> None:
        """Write a batch at row ``start`` of the part.

        Raises:
            OSError: if the disk refuses.
        """
        if self._file is None:
            self._file = self._create(columns)
        for path, column in columns.items():
            stop = start + len(column.values)
            self._datasets[path][start:stop] = np.ascontiguousarray(column.values)
            if column.overflows:
                self.overflows[path] += column.overflows

    def _create(self, columns: Mapping[str, StoredArray]) -> h5py.File:
        file = h5py.File(self._draft, "w", rdcc_nbytes=_CHUNK_CACHE, rdcc_w0=1.0)
        file.attrs["format"] = FORMAT
        file.attrs["version"] = f"{VERSION[0]}.{VERSION[1]}"
        file.attrs["part"] = self.number
        file.create_dataset("row", data=self.rows, fletcher32=True)
        file["row"].dims[0].label = "row"
        for path, column in columns.items():
            self._datasets[path] = arrays.create(
                file,
                path,
                (len(self.rows), *column.values.shape[1:]),
                column.values.dtype,
                logical=column.logical,
                labels=column.labels,
                batch=self.batch,
                compression=self.compression,
            )
        return file

    def close(self) -> None:
        """Close the file, so that only :meth:`seal` remains to be done.

        Raises:
            OSError: if the disk refuses.
            StoreError: if nothing was written.
        """
        if self._file is None:
            raise StoreError(f"part {self.number} has no rows")
        for path, count in sorted(self.overflows.items()):
            self._file[path].attrs["overflows"] = count
        self._shapes = _shapes(self._file)
        self._datasets.clear()
        self._file.close()
        self._file = None

    def seal(self) -> dict[str, Any]:
        """Flush to disk, hash and rename the closed file; return its index entry.

        Raises:
            OSError: if the disk refuses.
        """
        fsync(self._draft)
        size, digest = self._draft.stat().st_size, sha256_file(self._draft)
        final = self.folder / part_name(self.number)
        settle(self._draft, final)
        return {
            "kind": "part",
            "part": self.number,
            "file": final.name,
            "rows": row_ranges(self.rows),
            "n": len(self.rows),
            "bytes": size,
            "sha256": digest,
            "source_sha256": self.source_sha256,
            "shapes": self._shapes,
            "overflows": dict(sorted(self.overflows.items())),
        }

    def abandon(self) -> None:
        """Delete what was written; after a full disk, closing may itself fail."""
        self._datasets.clear()
        if self._file is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                self._file.close()
            self._file = None
        drop(self._draft)


def _shapes(file: h5py.File) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = list(item.shape)

    file.visititems(visit)
    return found
