"""Rows of token ids that the user gives, as a trial, and how often each token occurs in them.

    FILE.jsonl         one row per line: a list of ids, or {"input_ids": […], "labels": […],
                       "mask": …}, or {"input_ids": […], "answers": […]}
    FILE.npy           ids [row, pos]
    FILE.safetensors   input_ids [row, pos], and optionally labels and mask, or answers, alike
    FILE.json          words with a vocabulary (:mod:`probes.decompile.rows`), next token only
    any other          a text, cut into rows, if the model has a tokenizer; else one of these
                       formats under another name, recognised by how the file begins

Labels are aligned with the tokens they are about, as in Hugging Face: the label at position t is
scored at the output of position t − 1, −100 is not scored, and without labels the row's own tokens
are the labels. A mask is true at the tokens whose prediction is scored. Answers are aligned with
the outputs that give them: for a model that classifies a whole row, the answer is at the last
position, and −100 at all others. Rows are used as they are, without adding a BOS; longer rows are
cut, and rows shorter than most are left out, because models are run without padding.

A model does anything on tokens or at positions that it was never trained on: the random rows of an
inspection are therefore drawn from the tokens in these rows, by their frequency, and are no longer
than the longest of them.

Ids have no words: in decompiled programs the tokens are the numbers themselves, and at every
position that labels and mask score the model decides which token follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.errors import ArgumentError, CheckpointError, need_path, refuse_unless
from interp.models.card import ModelCard
from interp.models.tensor_files import read_tensors
from interp.program.evaluation import NONE, Vocabulary
from interp.reading import parse_json, read_text, regular
from interp.run.gate import next_tokens
from interp.tasks.base import Batch
from probes.decompile.rows import TokenRows, read_worded_rows

IGNORED = -100
"""Label of a token that is not scored. It is the value that PyTorch and transformers use."""

TEXT = "text"
"""Kind of a file of rows that is none of ``.jsonl``, ``.npy``, ``.safetensors`` and ``.json``."""

_LEAST = 4
_UNKNOWN = 1 << 20
"""Size of the vocabulary that is assumed if no model says how many tokens it knows. Token ids must
be smaller."""
_PARTS = ("input_ids", "labels", "mask", "answers")
_FILES = (".jsonl", ".npy", ".safetensors", ".json")

Row = dict[str, Any]


@dataclass(frozen=True)
class OwnRows:
    """Rows that the user gave.

    Attributes:
        batch: Inputs, targets and the mask of scored positions, ``[row, pos]``.
        counts: How often each id occurs in the file, ``[vocabulary]``.
        longest: The number of tokens of the longest row of the file.
        about: What was used of the file, in words.
        words: The text of each id, for a file of words; else None.
    """

    batch: Batch
    counts: Tensor
    longest: int
    about: str
    words: tuple[str, ...] | None = None


def rows_given(
    given: Any, *, vocabulary: int, rows: int, length: int, tokenizer: Any = None
) -> OwnRows:
    """Return the user's rows from whatever form they have: a file, a batch, or token ids.

    Args:
        given: The path of a file (see the module); a :class:`~interp.tasks.base.Batch`; or token
            ids ``[row, pos]`` as a tensor, an array or lists, whose targets are the next tokens.
        vocabulary: The number of token ids; 0 if it is not known, or rows are of real values.
        rows, length: The largest number of rows, and of positions of each, that are used.
        tokenizer: The model's tokenizer, for a text; None if it has none.

    Raises:
        ArgumentError: as :func:`read_own_rows`, and for anything that is none of these.
    """
    if isinstance(given, str | Path):
        rule, advice = "must be the path of a file", "a text is given as text="
        refuse_unless("\n" not in str(given), "rows", rule, given, advice)
        size = {"vocabulary": vocabulary or _UNKNOWN, "rows": rows, "length": length}
        return read_own_rows(given, **size, tokenizer=tokenizer)
    if not isinstance(given, Batch):
        given = next_tokens(given)
    kept = given[:rows]
    cut = Batch(
        kept.inputs[:, :length],
        kept.targets[:, :length],
        kept.mask[:, :length],
        {name: value[:, :length] for name, value in kept.latents.items()},
    )
    counts = torch.zeros(0, dtype=torch.long)
    if cut.inputs.ndim == 2:
        counts = torch.bincount(cut.inputs.flatten().long(), minlength=vocabulary)
    about = f"{len(cut)} rows of {cut.inputs.shape[1]} positions"
    return OwnRows(cut, counts, cut.inputs.shape[1], about)


def read_own_rows(
    path: str | Path, *, vocabulary: int, rows: int, length: int, tokenizer: Any = None
) -> OwnRows:
    """Read rows of token ids from a file.

    Args:
        path: The file, in one of the formats that the module lists.
        vocabulary: The number of token ids; every id must be smaller.
        rows: The largest number of rows that are used, from the first on.
        length: The largest number of positions of a row; also the length into which a text is cut.
        tokenizer: The model's tokenizer, for a text; None if it has none.

    Raises:
        ArgumentError: if the file cannot be read, is in another format, or has fewer than four rows
            of equal length.
    """
    path = Path(path)
    found = read_ids(path, vocabulary, tokenizer, length)
    lengths = Counter(min(len(row["input_ids"]), length) for row in found)
    size = max(lengths, key=lambda one: (lengths[one], one), default=0)
    kept = [row for row in found if len(row["input_ids"]) >= size][:rows]
    if len(kept) < _LEAST or size < 2:
        raise ArgumentError(
            f"too few rows for nulls, which exchange rows: needs {_LEAST} of equal length (at "
            f"least 2 tokens), got {len(kept)} of {size} in {path}: give more"
        )
    inputs = _stack_field(kept, "input_ids", size)
    answers = _stack_field(kept, "answers", size)
    scored = answers != IGNORED
    scored[:, -1] &= torch.tensor([row["labels"] is None for row in kept])
    targets = torch.where(scored, answers, inputs.roll(-1, 1))
    if not bool(scored.any()):
        raise ArgumentError(f"{path} must score some token after a row's first: see its mask")
    short = len(found) - sum(len(row["input_ids"]) >= size for row in found)
    about = f"{len(kept)} rows of {size} tokens of {path.name}"
    about += f" ({short} shorter ones left out)" if short else ""
    longest = max(len(row["input_ids"]) for row in found)
    counts = _token_counts(found, vocabulary)
    words = None
    if kind_of(path, tokenizer) == ".json":
        words = read_worded_rows(path).vocabulary.texts
    return OwnRows(Batch(inputs, targets, scored), counts, longest, about, words)


def token_counts(path: str | Path, vocabulary: int) -> Tensor:
    """Return how often each id occurs in a file of rows, ``[vocabulary]``.

    Raises:
        ArgumentError: if the file cannot be read, or is in another format.
    """
    return _token_counts(read_ids(Path(path), vocabulary), vocabulary)


def read_ids(
    path: str | Path, vocabulary: int, tokenizer: Any = None, length: int = 0
) -> list[Row]:
    """Read rows of token ids from a file, with the target at every position.

    Args:
        path: A ``.jsonl``, ``.npy``, ``.safetensors`` or ``.json`` file, in the formats that
            :mod:`probes.own_rows` lists. With a tokenizer, a file with any other suffix is read
            as plain text; without one, its format is recognised from its first bytes.
        vocabulary: Number of token ids; every id must be smaller.
        tokenizer: The model's tokenizer; only used for plain text.
        length: Number of tokens per row into which plain text is cut; must be positive for plain
            text. A shorter rest at the end is dropped.

    Returns:
        One dictionary per row. ``input_ids`` has the tokens, and ``answers`` the target id at each
        position: the label of the next token, or −100 where nothing is scored. ``labels`` and
        ``mask`` are as in the file, by default the tokens themselves and all true; they are None
        if the file gives ``answers``.

    Raises:
        ArgumentError: if the file cannot be read, is in another format or has no rows, or if a row
            has ids or labels outside the vocabulary, or lists of different lengths.
    """
    path = Path(path)
    kind = kind_of(path, tokenizer)
    text = kind == TEXT and tokenizer is not None
    rule, advice = "must be at least 1 for a text", "give a card that says how long rows may be"
    refuse_unless(length >= 1 or not text, "length", rule, length, advice)
    found = list(_pieces(path, tokenizer, length) if text else _rows(path, kind))
    for number, row in enumerate(found, start=1):
        _check(path, number, row, vocabulary)
        if row["answers"] is None:
            told = zip(row["labels"], row["mask"], strict=True)
            row["answers"] = [*(label if asked else IGNORED for label, asked in told), IGNORED][1:]
    if not found:
        raise ArgumentError(f"{path} must hold a row, got none: give more")
    return found


def kind_of(path: Path, tokenizer: Any = None) -> str:
    """Determine the format of a file of rows.

    A known suffix decides. Otherwise a file is text if the model has a tokenizer. Without one, the
    format is guessed from the first 64 bytes.

    Args:
        path: The file.
        tokenizer: The model's tokenizer, if it has one.

    Returns:
        ``.jsonl``, ``.npy``, ``.safetensors`` or ``.json``, or :data:`TEXT` for anything else.

    Raises:
        ArgumentError: if the first bytes are needed and ``path`` is no regular file.
    """
    if path.suffix in _FILES:
        return path.suffix
    if tokenizer is not None:
        return TEXT
    regular(path, "data", ArgumentError)
    with path.open("rb") as file:
        begins = file.read(64)
    if begins.startswith(b"\x93NUMPY"):
        return ".npy"
    if begins[8:9] == b"{" and begins[6:8] == b"\0\0":  # the length of a header, then the header
        return ".safetensors"
    begins = begins.lstrip()
    if begins.startswith(b"[") or b'"input_ids"' in begins:
        return ".jsonl"
    return ".json" if begins.startswith(b"{") else TEXT


def _token_counts(rows: list[Row], vocabulary: int) -> Tensor:
    ids = torch.tensor([token for row in rows for token in row["input_ids"]], dtype=torch.long)
    return torch.bincount(ids, minlength=vocabulary)


def _rows(path: Path, kind: str) -> Iterator[Row]:
    """Yield the rows of a file, with labels and mask filled in."""
    if kind == ".jsonl":
        for number, line in enumerate(read_text(path, "data").splitlines(), start=1):
            if line.strip():
                given = parse_json(line, f"line {number} of {path}")
                yield _whole(given if isinstance(given, dict) else {"input_ids": given})
        return
    if kind == ".json":
        yield from _word_rows(path)
        return
    columns = _columns(path, kind)
    for number in range(len(columns["input_ids"])):
        yield _whole({name: values[number].tolist() for name, values in columns.items()})


def _word_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of words as ids, with labels aligned with the tokens they are
    about."""
    found = read_worded_rows(path)
    if found.labels is None or found.objective != "next token":
        raise ArgumentError(
            f"objective of {path} must be 'next token' here, got {found.objective!r}: which tokens "
            "may follow is asked by view and decompile alone"
        )
    for tokens, asked, labels in zip(found.tokens, found.asked, found.labels, strict=True):
        n = int((tokens >= 0).sum())
        told = np.where(asked, labels, IGNORED)[: n - 1].tolist()
        yield _whole({"input_ids": tokens[:n].tolist(), "labels": [IGNORED, *told]})


def _pieces(path: Path, tokenizer: Any, length: int) -> Iterator[Row]:
    """Yield pieces of a text's tokens, without a shorter rest at the end."""
    ids = tokenizer(read_text(path, "data"), add_special_tokens=False)["input_ids"]
    for start in range(0, len(ids) - length + 1, length):
        yield _whole({"input_ids": list(ids[start : start + length])})


def _columns(path: Path, kind: str) -> dict[str, Any]:
    """Return the arrays ``[row, pos]`` of a file, by name."""
    regular(path, "data", ArgumentError)
    if kind == ".npy":
        try:
            found: dict[str, Any] = {"input_ids": np.load(path, allow_pickle=False)}
        except Exception as error:  # NumPy's parser of headers has errors of many kinds
            raise ArgumentError(f"{path} cannot be read as an array: {error}") from error
    elif kind == ".safetensors":
        try:
            found = dict(read_tensors(path)[0])
        except CheckpointError as error:
            raise ArgumentError(str(error)) from error
    else:
        raise ArgumentError(
            "data must be a .jsonl, .npy, .safetensors or .json file of tokens, got "
            f"{path.name!r}: "
            "a text needs a model with a tokenizer"
        )
    shapes = {tuple(value.shape) for value in found.values()}
    good = "input_ids" in found and len(shapes) == 1 and len(next(iter(shapes))) == 2
    if not good or not all(next(iter(shapes))):
        raise ArgumentError(
            f"{path} must hold input_ids [row, pos] (and labels, mask, answers of that shape), got "
            f"{ {name: list(value.shape) for name, value in found.items()} }"
        )
    return {name: found[name] for name in _PARTS if name in found}


def _whole(given: dict[str, Any]) -> Row:
    ids = given.get("input_ids")
    size = len(ids) if isinstance(ids, list) else 0
    if ids is None and given:
        ids = f"the keys {', '.join(sorted(map(str, given)))} and no input_ids"
    defaults = {"input_ids": ids, "labels": ids, "mask": [1] * size, "answers": None}
    if "answers" in given:
        defaults |= {"labels": None, "mask": None}
    return {name: given.get(name, default) for name, default in defaults.items()}


def _check(path: Path, number: int, row: Row, vocabulary: int) -> None:
    """Raise ArgumentError for a row that has anything but ids below the vocabulary."""
    ids = row["input_ids"]
    good = isinstance(ids, list) and all(type(i) is int and 0 <= i < vocabulary for i in ids)
    if not good or not ids:
        raise ArgumentError(
            f"row {number} of {path} must be token ids from 0 to {vocabulary - 1}, got "
            f"{str(ids)[:60]}"
        )
    given = row["answers"] is not None
    if given and (row["labels"] is not None or row["mask"] is not None):
        raise ArgumentError(
            f"answers of row {number} of {path} must stand without labels and mask: give the one "
            "or the others"
        )
    for name in ("answers",) if given else ("labels", "mask"):
        values = row[name]
        if not isinstance(values, list) or len(values) != len(ids):
            raise ArgumentError(f"{name} of row {number} of {path} must be as many as its ids")
    name = "answers" if given else "labels"
    if not all(type(i) is int and (i == IGNORED or 0 <= i < vocabulary) for i in row[name]):
        raise ArgumentError(f"{name} of row {number} of {path} must be token ids, or −100")


def _stack_field(rows: list[Row], name: str, size: int) -> Tensor:
    return torch.tensor([[int(value) for value in row[name][:size]] for row in rows])


def read_rows(path: str | Path, card: ModelCard | None = None) -> TokenRows:
    """Read the user's rows from a file, for :func:`~probes.decompile.workflow.decompile`.

    Args:
        path: A file in one of the formats that the module describes.
        card: The card of the model whose ids these are: it gives the number of ids, the length of a
            row, and the tokenizer for a text. A file of words needs none.

    Raises:
        ArgumentError: if the file cannot be read or breaks a rule; for a text without a tokenizer.
    """
    need_path("rows", path)
    tokenizer = None if card is None else card.tokenizer
    if kind_of(Path(path), tokenizer) == ".json":
        return read_worded_rows(path)
    size = _UNKNOWN if card is None else card.vocabulary
    longest = None if card is None else card.n_ctx
    found = read_ids(path, size, tokenizer, longest or 0)
    parts = ("input_ids", "answers")
    return _arrays([{name: row[name][:longest] for name in parts} for row in found], card)


def _arrays(rows: Sequence[Row], card: ModelCard | None) -> TokenRows:
    shape = (len(rows), max(len(row["input_ids"]) for row in rows))
    tokens, labels = np.full(shape, NONE), np.full(shape, NONE)
    for i, row in enumerate(rows):
        n = len(row["input_ids"])
        tokens[i, :n] = row["input_ids"]
        told: Any = np.array(row["answers"])
        labels[i, :n] = np.where(told != IGNORED, told, NONE)
    size = int(max(tokens.max(), labels.max())) + 1 if card is None else card.vocabulary
    words = Vocabulary(tuple(map(str, range(size))))
    return TokenRows(tokens, labels != NONE, labels, words, "next token")
