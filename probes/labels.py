"""User-defined labels for the rows of a store or a batch, to be probed like a task's latents.

    labels.csv           one column per label, one line per row of the store, in the store's order
    labels.npz           arrays by name, ``[row]`` or ``[row, pos]``
    labels.safetensors   the same

Text, integers and booleans name classes; floating-point numbers are quantities. A label of a whole
row applies to each of its positions. Nothing is executed on reading: arrays of Python objects are
refused.

A probe that decodes a label shows that the information is there, not that the model uses it; with
few rows per class, look at the control task's score first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from interp.errors import ArgumentError, Problems, need
from interp.machine import need_bytes
from interp.reading import regular
from interp.store import ActivationStore
from interp.store.rows import as_batch
from interp.tasks.base import Batch

Labels = Mapping[str, NDArray[Any]]
_READERS = (".csv", ".npz", ".safetensors")


def read_labels(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read labels from a .csv, .npz or .safetensors file.

    Text in a .csv file becomes class numbers, in alphabetical order.

    Returns:
        Name → array ``[row]``, or ``[row, pos]`` from a file of arrays.

    Raises:
        ArgumentError: if the file cannot be read, is of another kind, or holds no labels.
    """
    path = Path(path)
    rule = f"must end in {', '.join(_READERS)}"
    need("labels", path.suffix in _READERS, "labels", rule, str(path), "save them as one of these")
    regular(path, "labels", ArgumentError)
    try:
        found = _read(path)
    except Exception as error:  # whatever the library that reads it raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ArgumentError(f"labels {path} cannot be read: {reason}") from error
    if not found:
        raise ArgumentError(f"labels {path} holds no labels: give it a column a label")
    return found


def _read(path: Path) -> dict[str, NDArray[Any]]:
    if path.suffix == ".csv":
        table = pd.read_csv(path)
        return {str(name): _numbers(table[name]) for name in table}
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            size = sum(member.file_size for member in archive.zip.infolist())
            need_bytes(size, "what they hold", "give fewer labels")
            return {name: archive[name] for name in archive.files}
    from safetensors.numpy import load_file

    return dict(load_file(path))


def _numbers(column: pd.Series[Any]) -> NDArray[Any]:
    """Return a column as numbers; text becomes the number of its class, in alphabetical order."""
    if column.isna().any():
        raise ValueError(f"column {column.name!r} has an empty cell")
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy()
    codes: NDArray[Any] = pd.factorize(column.astype(str), sort=True)[0]
    return codes


def with_labels(source: Any, inputs: Any, labels: Labels) -> tuple[Any, Any]:
    """Return a model's batch, or a store, with labels in place of its latents.

    Args:
        source: A hooked model, or a store.
        inputs: The inputs of a model; None for a store.
        labels: Name → ``[row]`` or ``[row, pos]``.

    Returns:
        Source and inputs for :mod:`probes`.

    Raises:
        ArgumentError: naming every label whose shape does not fit the inputs, or that is not
            numeric or not finite.
    """
    stored = isinstance(source, ActivationStore)
    batch = None if stored else as_batch(inputs)
    shape = (source.inputs() if batch is None else batch.inputs).shape[:2]
    fitted = _fit_to_rows(labels, tuple(shape))
    if batch is None:
        return Labelled(source, fitted), None
    latents = {name: torch.from_numpy(value) for name, value in fitted.items()}
    return source, Batch(batch.inputs, batch.targets, batch.mask, latents)


def _fit_to_rows(labels: Labels, shape: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    problems, found = Problems("labels"), {}
    rule = f"must have {shape[0]} rows, or {shape[0]} rows of {shape[1]} positions"
    for name, value in labels.items():
        good = value.shape in ((shape[0],), shape)
        problems.need(good, name, rule, value.shape, "give one label for each row of the source")
        number = value.dtype.kind in "biuf"
        problems.need(number, name, "must be numbers", str(value.dtype), "number the classes")
        finite = not number or bool(np.isfinite(value).all())
        problems.need(finite, name, "must be finite", "nan or inf", "leave such rows out")
        if good and number:
            column = value[:, None] if value.ndim == 1 else value
            found[name] = np.array(np.broadcast_to(column, shape))  # writable, as torch wants it
    problems.raise_if_any()
    return found


class Labelled(ActivationStore):
    """A store with user-defined labels in place of its latents.

    Args:
        store: The store.
        labels: Name → ``[row, pos]``, in the store's order of rows.
    """

    def __init__(self, store: ActivationStore, labels: Labels) -> None:
        super().__init__(store.path)
        self._labels = dict(labels)

    def latents(self, rows: Any = None) -> dict[str, NDArray[Any]]:
        """Return the labels of some rows: name → ``[row, pos]``."""
        chosen = slice(None) if rows is None else rows
        return {name: value[chosen] for name, value in self._labels.items()}
