"""Rows of a user's own in every form that ``--data`` takes, as they are decompiled and shown.

    FILE.json                              words with labels (:mod:`probes.decompile.rows`)
    FILE.jsonl, .npy, .safetensors, text   token ids (:mod:`probes.own_rows`)

Ids have no words: their tokens are the numbers themselves, and after every position it is asked
which token follows, where labels and mask say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from interp.models.card import ModelCard
from interp.program.evaluation import NONE, Vocabulary
from probes.decompile.rows import Rows, read_worded_rows
from probes.own_rows import IGNORED, Row, kind_of, read_ids

_LARGEST = 1 << 20
"""Ids are below it where no model says how many tokens it knows."""


def read_rows(path: str | Path, card: ModelCard | None = None) -> Rows:
    """Read rows of your own from a file, for :func:`~probes.decompile.workflow.decompile`.

    Args:
        path: A file in one of the forms that the module describes.
        card: The card of the model whose ids these are: how many there are, how long a row may be,
            and how a text is cut into tokens. Words need none.

    Raises:
        ArgumentError: if the file cannot be read or breaks a rule; for a text without a tokenizer.
    """
    tokenizer = None if card is None else card.tokenizer
    if kind_of(Path(path), tokenizer) == ".json":
        return read_worded_rows(path)
    size = _LARGEST if card is None else card.vocabulary
    longest = None if card is None else card.n_ctx
    found = read_ids(path, size, tokenizer, longest or 0)
    return _arrays([{name: part[:longest] for name, part in row.items()} for row in found], card)


def _arrays(rows: Sequence[Row], card: ModelCard | None) -> Rows:
    """Labels stand at the tokens that they are about; asked is a position earlier."""
    shape = (len(rows), max(len(row["input_ids"]) for row in rows))
    tokens, labels = np.full(shape, NONE), np.full(shape, NONE)
    for i, row in enumerate(rows):
        n = len(row["input_ids"])
        tokens[i, :n] = row["input_ids"]
        told: Any = np.array(row["labels"])
        scored = np.array(row["mask"], dtype=bool) & (told != IGNORED)
        labels[i, : n - 1] = np.where(scored, told, NONE)[1:]
    size = int(max(tokens.max(), labels.max())) + 1 if card is None else card.vocabulary
    words = Vocabulary(tuple(map(str, range(size))))
    return Rows(tokens, labels != NONE, labels, words, "next token")
