"""Sources of rows: a task, arrays, an iterable of batches, token files, data sets.

Every source becomes a stream of *blocks*: columns (``inputs`` and, where there are any,
``targets``, ``mask``, ``latents/…``) for some rows of one length. A stream is read front to
back and never held whole. Rows of different length go into different parts (*bucketing*: no
padding, which on several models changes activations without a word); each keeps its row id, its
place in the source. Pads that an ``attention_mask`` marks are cut off, so that a row's activations
are those of the row alone.

A task is drawn in blocks of 256 rows, block i with a seed made of the run's seed and i: the rows
depend on neither batch nor part size nor on how many are asked for. A source that cannot say
what it is (an iterable) is recognised on resuming by the SHA-256 of each part's rows.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.errors import ArgumentError, Problems, StoreError, refuse_unless
from interp.reading import MOST_BYTES, open_regular, parse_json, read_json
from interp.store.hdf5 import Indices

Columns = dict[str, Tensor]
_TASK_BLOCK = 256
_LONGEST_LINE = 1 << 24
_TOKENIZED = {"input_ids", "attention_mask", "token_type_ids", "special_tokens_mask"}
"""Columns that a tokenizer returns. ``token_type_ids`` and ``special_tokens_mask`` are accepted but
ignored, because a decoder does not read them."""


@dataclass(frozen=True)
class RowSource:
    """A stream of rows, and its description.

    Attributes:
        description: JSON data about the source that goes into the plan.
        rows: how many there will be, or ``None`` if only the stream knows.
        blocks: a function that starts the stream.
    """

    description: dict[str, Any]
    rows: int | None
    blocks: Callable[[], Iterator[Columns]]

    def first(self, rows: int) -> Columns:
        """Look at the first rows of the source, at most ``rows`` and no more than its first block.

        A source made from a one-shot iterator still gives these rows later.

        Returns:
            Name of each column → its values, ``[row, …]``.

        Raises:
            ArgumentError: if there are no rows.
        """
        block = next(self.blocks(), None)
        if block is None or not len(block["inputs"]):
            raise ArgumentError("source gave no rows at its start: give one with rows")
        return _cut(block, 0, rows)


@dataclass(frozen=True)
class PartRows:
    """The rows of one part, which all have the same length."""

    number: int
    rows: Indices
    columns: Columns

    def sha256(self) -> str:
        """The SHA-256 of the rows, ids included."""
        digest = hashlib.sha256(self.rows.tobytes())
        for name, values in sorted(self.columns.items()):
            digest.update(f"{name} {values.dtype} {list(values.shape)};".encode())
            digest.update(values.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True)
class TokenFile:
    """A source that reads rows from a text file of token ids.

    Each line is one row, its ids separated by spaces; empty lines are skipped. Iterating gives one
    row at a time, as ``inputs`` of shape ``[1, pos]``.

    Attributes:
        path: the file.
    """

    path: Path | str

    def __iter__(self) -> Iterator[Columns]:
        try:
            with os.fdopen(open_regular(self.path), encoding="utf-8") as lines:
                number = 0
                while line := lines.readline(_LONGEST_LINE):
                    number += 1
                    if len(line) == _LONGEST_LINE:
                        raise ArgumentError(f"tokens: {self.path} line {number} is too long")
                    if line.strip():
                        yield {"inputs": self._row(number, line)}
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"tokens: {self.path} cannot be read: {error}") from error

    def _row(self, number: int, line: str) -> Tensor:
        try:
            return torch.tensor([[int(word) for word in line.split()]], dtype=torch.int64)
        except (ValueError, RuntimeError, OverflowError):
            raise ArgumentError(
                f"tokens: {self.path} line {number} must be integers separated by spaces, "
                f"of 64 bits at most, got {line.strip()[:40]!r}: tokenise the text first"
            ) from None


@dataclass(frozen=True)
class JsonRows:
    """The rows of a JSON file, in its order: one object a line, or one list of objects.

    Read here and not by a library: that of Hugging Face ends the process on a file of nulls. Lines
    are read one by one, so a file of lines may have any size; a list is read whole.

    Attributes:
        path: the file.

    Raises:
        ArgumentError: while iterating: if it cannot be read, or a row is no object; names the line.
    """

    path: Path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with os.fdopen(open_regular(self.path), "rb") as stream:
                if self.path.suffix == ".json" and stream.read(64).lstrip()[:1] == b"[":
                    rows = enumerate(read_json(self.path, "dataset"), 1)
                    yield from (self._row(row, f"row {number}") for number, row in rows)
                    return
                stream.seek(0)
                number = 0
                while line := stream.readline(MOST_BYTES):
                    number += 1
                    if line.strip():
                        place = f"line {number}"
                        yield self._row(parse_json(line, f"dataset {self.path} {place}"), place)
        except OSError as error:
            raise ArgumentError(f"dataset {self.path} cannot be read: {error.strerror}") from error

    def _row(self, row: Any, place: str) -> dict[str, Any]:
        if not isinstance(row, dict):
            raise ArgumentError(
                f"dataset {self.path} {place} must be an object such as "
                f'{{"input_ids": [1, 2]}}, got {str(row)[:40]}'
            )
        return row


@dataclass(frozen=True)
class HuggingFaceRows:
    """Rows of a Hugging Face data set, streaming or not.

    Attributes:
        dataset: any object whose iteration gives rows ``{column: …}``.
        column: the column with token ids, or with text if ``tokenize`` is given.
        tokenize: a function from text to token ids.
        name: the name of the data set in the manifest.
    """

    dataset: Iterable[Mapping[str, Any]]
    column: str = "input_ids"
    tokenize: Callable[[str], Sequence[int]] | None = None
    name: str | None = None

    def __iter__(self) -> Iterator[Columns]:
        for row in self._rows():
            if self.column not in row:
                raise ArgumentError(
                    f"column must be one of the data set's, got {self.column!r}: it has "
                    f"{', '.join(map(str, row))}"
                )
            ids = row[self.column]
            if isinstance(ids, str):
                if self.tokenize is None:
                    raise ArgumentError(
                        f"column {self.column!r} holds text: give tokenize=…, or token ids"
                    )
                ids = self.tokenize(ids)
            tokens = self._tokens(ids)
            if len(tokens):
                mask = row.get("attention_mask") if self.column == "input_ids" else None
                yield from strip_pads(tokens[None], None if mask is None else [mask])

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        try:
            yield from self.dataset
        except Exception as error:  # the library raises anything
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise ArgumentError(
                f"the data set {self.name or ''} cannot be read: {reason}"
            ) from error

    def _tokens(self, ids: Any) -> Tensor:
        try:
            tokens = torch.as_tensor(np.asarray(ids, dtype=np.int64))
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(
                f"column {self.column!r} must hold lists of token ids, got {str(ids)[:40]}: mend "
                "the row, or name another column"
            ) from error
        if tokens.ndim != 1:
            raise ArgumentError(f"column {self.column!r} must hold lists of ids, got {ids!r:.40}")
        return tokens


def as_source(source: Any, *, rows: int | None, seed: int) -> RowSource:
    """Turn whatever was given into a stream of blocks.

    Args:
        source: a ``Task``, a ``Batch``, a tensor or array ``[row, …]``, :class:`TokenFile`,
            :class:`HuggingFaceRows`, a Hugging Face data set, or an iterable of blocks: batches,
            ``(inputs, targets)``, ``{"inputs": …}``, arrays ``[row, …]``, or single rows.
        rows: how many rows to take; needed for a task, otherwise all by default.
        seed: seed of a task's sampling.

    Raises:
        ArgumentError: if the source is of no known kind, or has fewer rows than asked for.
    """
    if callable(getattr(source, "sample", None)) and hasattr(source, "to_dict"):
        return _from_task(source, rows, seed)
    if type(source).__module__.split(".")[0] == "datasets":
        source = HuggingFaceRows(source)
    if isinstance(source, Mapping):  # one block, such as a tokenizer gives
        source = [source]
    if isinstance(source, Tensor | np.ndarray) or hasattr(source, "inputs"):
        return _from_arrays(source, rows)
    if isinstance(source, str | Path) or not isinstance(source, Iterable):
        raise ArgumentError(
            f"source must be a task, an array, a data set or an iterable of batches, got "
            f"{source!r}: wrap a file of token ids in TokenFile"
        )
    return _from_iterable(source, rows)


def within(source: RowSource, vocabulary: int | None) -> RowSource:
    """The same rows, refused while they are read if a token id is none of the model's.

    Args:
        source: the rows; real inputs are returned as they are.
        vocabulary: How many token ids the model knows; None: nothing is checked.

    Raises:
        ArgumentError: from the stream, at the first id below 0 or not below ``vocabulary``.
    """
    if vocabulary is None:
        return source

    def blocks() -> Iterator[Columns]:
        seen = 0
        for block in source.blocks():
            _check_ids(block["inputs"], vocabulary, seen, source.description)
            seen += len(block["inputs"])
            yield block

    return replace(source, blocks=blocks)


def _check_ids(ids: Tensor, vocabulary: int, first: int, description: Mapping[str, Any]) -> None:
    """``first`` is the number of the block's first row, empty lines of a file not counted."""
    if ids.is_floating_point() or not ids.numel():
        return
    if int(ids.min()) >= 0 and int(ids.max()) < vocabulary:
        return
    row, *place = ((ids < 0) | (ids >= vocabulary)).nonzero()[0].tolist()
    named = " ".join(str(description[k]) for k in ("kind", "name") if k in description)
    raise ArgumentError(
        f"tokens: {named}, row {first + row} (from 0): ids must be 0 to {vocabulary - 1}, the "
        f"model's vocabulary, got {int(ids[(row, *place)])}: use the model's own tokens"
    )


def _from_task(task: Any, rows: int | None, seed: int) -> RowSource:
    if rows is None:
        raise ArgumentError("rows must be given for a task, got None: say how many to draw")

    def blocks() -> Iterator[Columns]:
        for block in range(-(-rows // _TASK_BLOCK)):
            drawn = np.random.SeedSequence([seed, block]).generate_state(1)[0]
            columns = _columns(task.sample(_TASK_BLOCK, seed=int(drawn)))
            yield _cut(columns, 0, rows - block * _TASK_BLOCK)

    description = {
        "kind": "task",
        "name": task.name,
        "task": json.loads(json.dumps(task.to_dict())),
        "block": _TASK_BLOCK,
    }
    return RowSource(description, rows, blocks)


def _from_arrays(source: Any, rows: int | None) -> RowSource:
    columns = _columns(source)
    there = len(columns["inputs"])
    wanted = there if rows is None else rows
    if wanted > there:
        raise ArgumentError(f"rows must be at most the source's {there}, got {rows}: ask for less")
    columns = _cut(columns, 0, wanted)
    digest = PartRows(0, np.arange(wanted), columns).sha256()
    shape = list(columns["inputs"].shape)
    return RowSource(
        {"kind": "arrays", "shape": shape, "sha256": digest}, wanted, lambda: iter([columns])
    )


def _from_iterable(source: Iterable[Any], rows: int | None) -> RowSource:
    description: dict[str, Any] = {"kind": "iterable"}
    if isinstance(source, TokenFile):
        description = {"kind": "token file", "name": Path(source.path).name}
    elif isinstance(source, HuggingFaceRows):
        name = source.name or type(source.dataset).__name__
        description = {"kind": "Hugging Face", "name": name, "column": source.column}
    once = iter(source) if iter(source) is source else None
    head: list[Any] = []

    def items() -> Iterator[Any]:
        if once is None:
            return iter(source)
        if not head:
            head.extend(itertools.islice(once, 1))
        return itertools.chain(list(head), once)

    def blocks() -> Iterator[Columns]:
        left = rows
        for block in itertools.chain.from_iterable(map(_blocks, items())):
            if left is not None:
                block = _cut(block, 0, left)
                left -= len(block["inputs"])
            yield block
            if left == 0:
                return
        if left:
            raise StoreError(f"the source ended {left} rows short of rows={rows}: ask for less")

    return RowSource(description, rows, blocks)


def strip_pads(ids: Tensor, attention_mask: Any) -> Iterator[Columns]:
    """Yield rows of ids without their pads: all at once, or row by row where a mask marks pads.

    Args:
        ids: ``[row, pos]``.
        attention_mask: 1 at tokens and 0 at pads, ``[row, pos]``; None where nothing is padded.

    Raises:
        ArgumentError: for a mask of another shape or other numbers, with a hole, or of a row that
            is all pads.
    """
    if attention_mask is None:
        yield {"inputs": ids}
        return
    problems = Problems("source")
    mask = torch.as_tensor(np.asarray(attention_mask))
    rule = f"must be 0 and 1, of shape {tuple(ids.shape)} as the ids"
    good = mask.shape == ids.shape and bool(((mask == 0) | (mask == 1)).all())
    problems.need(good, "attention_mask", rule, tuple(mask.shape), "give one for each token")
    problems.raise_if_any()
    kept = mask.bool()
    if bool(kept.all()):
        yield {"inputs": ids}
        return
    stretches = (kept[:, 1:] & ~kept[:, :-1]).sum(1) + kept[:, 0]
    rule, advice = "must be one stretch of ones in each row", "leave pads at the ends alone"
    whole = bool((stretches == 1).all())
    problems.need(whole, "attention_mask", rule, stretches.tolist(), advice)
    problems.raise_if_any()
    yield from ({"inputs": row[own][None]} for row, own in zip(ids, kept, strict=True))


def _blocks(item: Any) -> Iterator[Columns]:
    """An item of an iterable as blocks: one, or a row each where a tokenizer's mask marks pads."""
    if not isinstance(item, Mapping) or "inputs" in item or "input_ids" not in item:
        yield _columns(item)
        return
    if unknown := sorted(map(str, {*item} - _TOKENIZED)):
        raise ArgumentError(
            f"source gave input_ids with {', '.join(unknown)}, which is not understood: leave "
            "it out, or give inputs, targets and mask"
        )
    ids = torch.as_tensor(np.asarray(item["input_ids"]))
    mask = item.get("attention_mask")
    if ids.ndim == 1:
        ids, mask = ids[None], None if mask is None else [np.asarray(mask)]
    yield from strip_pads(ids, mask)


def _cut(columns: Columns, start: int, stop: int) -> Columns:
    return {name: values[start:stop] for name, values in columns.items()}


def _columns(item: Any) -> Columns:
    if hasattr(item, "inputs"):
        named: dict[str, Any] = {"inputs": item.inputs}
        named |= {n: getattr(item, n, None) for n in ("targets", "mask")}
        latents = getattr(item, "latents", None) or {}
        named |= {f"latents/{name}": values for name, values in latents.items()}
    elif isinstance(item, Mapping):
        named = dict(item)
    elif isinstance(item, tuple) and len(item) == 2:
        named = {"inputs": item[0], "targets": item[1]}
    else:
        named = {"inputs": item}
    if "inputs" not in named:
        raise ArgumentError(f"source gave a mapping with {', '.join(named)}: it needs 'inputs'")
    try:
        columns = {n: torch.as_tensor(v) for n, v in named.items() if v is not None}
    except (TypeError, ValueError, RuntimeError):
        advice = "a tokenizer gives the ids of a text"
        refuse_unless(False, "source", "must hold numbers", named["inputs"], advice)
    if columns["inputs"].ndim == 1:
        columns = {name: values[None] for name, values in columns.items()}
    short = [n for n, v in columns.items() if v.ndim == 0 or len(v) != len(columns["inputs"])]
    if short:
        sizes = {name: list(values.shape) for name, values in columns.items()}
        raise ArgumentError(f"source gave columns of different row counts: {sizes}")
    return columns


def _kind(columns: Columns) -> tuple[Any, ...]:
    return tuple((name, tuple(v.shape[1:]), v.dtype) for name, v in sorted(columns.items()))


def _length(kind: tuple[Any, ...]) -> tuple[Any, ...]:
    shapes = {name: shape for name, shape, _ in kind}
    return (shapes["inputs"], str(kind))


def parts(source: RowSource, part_rows: int) -> Iterator[PartRows]:
    """Cut the stream into parts of ``part_rows`` rows of one length.

    Rows of other lengths wait until their part is full; what is left at the end makes one
    smaller part a length, shortest first. What waits is inputs, less than a part per length.
    """
    waiting: dict[tuple[Any, ...], list[tuple[Indices, Columns]]] = {}
    held: Counter[tuple[Any, ...]] = Counter()
    number, seen = 0, 0
    for block in source.blocks():
        n, kind = len(block["inputs"]), _kind(block)
        kept = waiting.setdefault(kind, [])
        kept.append((np.arange(seen, seen + n), block))
        seen += n
        held[kind] += n
        if held[kind] < part_rows:
            continue
        rows, columns = _join_rows(kept)
        whole = len(rows) // part_rows * part_rows
        for start in range(0, whole, part_rows):
            stop = start + part_rows
            yield PartRows(number, rows[start:stop], _cut(columns, start, stop))
            number += 1
        kept.clear()
        held[kind] = len(rows) - whole
        if whole < len(rows):
            kept.append((rows[whole:], {name: v[whole:].clone() for name, v in columns.items()}))
    for kind in sorted(+held, key=_length):
        rows, columns = _join_rows(waiting[kind])
        yield PartRows(number, rows, columns)
        number += 1


def _join_rows(kept: list[tuple[Indices, Columns]]) -> tuple[Indices, Columns]:
    rows = np.concatenate([rows for rows, _ in kept])
    names = kept[0][1]
    return rows, {name: torch.cat([columns[name] for _, columns in kept]) for name in names}
