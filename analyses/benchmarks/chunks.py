"""Which chunk shape? Writing in batches, and reading by row and by head.

    python -m analyses benchmark chunks [--rows 192] [--batch 8]

Attention patterns of GPT-2 small's shape, ``[row, 12, 64, 64]`` float32 with fletcher32, in chunks
of whole rows (as a store writes them), of one row, of one head, and as HDF5 guesses. Each line is
the best of five on files that the page cache holds: HDF5's work is compared, not the disk's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import h5py
import numpy as np
import typer
from numpy.typing import NDArray

from prooflens.store import chunk_shape

__all__ = ["main"]

_ROW = (12, 64, 64)
_REPEATS = 5


def _best(action: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _write(path: Path, values: NDArray[Any], chunks: Any, batch: int) -> None:
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", values.shape, "f4", chunks=chunks, fletcher32=True)
        for start in range(0, len(values), batch):
            made[start : start + batch] = values[start : start + batch]


def _read(path: Path, what: Callable[[h5py.Dataset], Any]) -> None:
    with h5py.File(path) as file:
        what(file["x"])


def main(
    rows: Annotated[int, typer.Option(help="Rows of the file.")] = 192,
    batch: Annotated[int, typer.Option(help="Rows written at a time.")] = 8,
) -> None:
    """Print a table: MB/s of writing and of reading all, one row, 32 rows, and one head."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((rows, *_ROW), dtype=np.float32)
    some = np.sort(generator.choice(rows, min(32, rows), replace=False))
    shapes = {
        "whole rows": chunk_shape(values.shape, 4, batch),
        "a MiB of rows": (5, *_ROW),
        "one row": (1, *_ROW),
        "one head": (4 * batch, 1, *_ROW[1:]),
        "HDF5's guess": True,
    }
    reads: dict[str, Callable[[h5py.Dataset], Any]] = {
        "all": lambda x: x[:],
        "a row": lambda x: x[rows // 2],
        "random rows": lambda x: [x[row] for row in some],
        "a head": lambda x: x[:, 3],
    }
    heading = "".join(f"{name + ' ms':>16}" for name in reads)
    typer.echo(f"{'chunks':<14}{'write MB/s':>12}{heading}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.h5"
        for name, chunks in shapes.items():
            written = _best(lambda chunks=chunks: _write(path, values, chunks, batch))  # type: ignore[misc]
            times = [_best(lambda what=what: _read(path, what)) for what in reads.values()]  # type: ignore[misc]
            cells = "".join(f"{1e3 * seconds:>16.1f}" for seconds in times)
            typer.echo(f"{name:<14}{values.nbytes / 1e6 / written:>12.0f}{cells}")
