"""Rows for decompiling as a JSON file says them, and everything that can be wrong with such a file.

    {"vocabulary": {"a": 0, …}, "objective": "sets" | "next token",
     "rows": [{"tokens": [2, 0, …], "label": […]}, …]}

*sets*: ``label[t]`` is a list of 0 and 1, one for each token of the vocabulary: whether it may
follow position t. At a row's last position nothing is asked, and its label is not looked at.
*next token*: where ``label[t]`` is not ``<pad>`` it is the token that follows position t − 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from interp.errors import ArgumentError, Problems
from interp.program.evaluation import NONE, Vocabulary
from interp.reading import read_json
from probes.decompile.rows import Objective, Rows

__all__ = ["read_worded_rows"]

_PAD = "<pad>"
_QUOTES = set('"\r\n')


def read_worded_rows(path: str | Path) -> Rows:
    """Rows from a JSON file.

    Raises:
        ArgumentError: if the file cannot be read or is no such JSON; otherwise for everything in it
            that breaks a rule, each with the first row that does.
    """
    try:
        data = read_json(path)
    except ArgumentError as error:
        raise ArgumentError(f"{error}: give rows as docs/howto-decompile says") from error
    problems = Problems(str(path))
    good = isinstance(data, dict) and {"vocabulary", "objective", "rows"} <= set(data)
    rule, advice = "must hold vocabulary, objective and rows", "see docs/howto-decompile"
    problems.need(good, "file", rule, _short(data), advice)
    problems.raise_if_any()
    words, objective, rows = data["vocabulary"], data["objective"], data["rows"]
    size = _check_words(words, problems)
    known = get_args(Objective)
    named = isinstance(objective, str) and objective in known
    problems.need(named, "objective", f"must be one of {known}", objective, "pick one")
    some = isinstance(rows, list) and bool(rows)
    problems.need(some, "rows", "must be a list of at least one row", _short(rows), "give rows")
    if some and size and named:
        _check_rows(rows, size, objective, problems)
    problems.raise_if_any()
    return _arrays(rows, tuple(sorted(words, key=words.get)), objective)


def _check_words(words: Any, problems: Problems) -> int:
    """How many tokens there are; 0 for a vocabulary that is none."""
    codes = list(words.values()) if isinstance(words, dict) else []
    good = bool(codes) and all(_is_code(c, len(codes)) for c in codes)
    good = good and len(set(codes)) == len(codes)
    rule = "must be an object that numbers its tokens 0, 1, 2 …"
    problems.need(good, "vocabulary", rule, _short(words), "number them")
    if not good:
        return 0
    quoted = [text for text in words if set(text) & _QUOTES]
    rule = "must have no token with a quote or a line break, which programs could not name"
    problems.need(not quoted, "vocabulary", rule, quoted[:3], "rename the token")
    return len(codes)


def _check_rows(rows: list[Any], size: int, objective: str, problems: Problems) -> None:
    codes = f"codes of the vocabulary, 0 to {size - 1}"
    rules: list[tuple[str, Callable[[Any], bool], str]] = [
        ("must each be an object with the lists tokens and label", _has_lists, ""),
        (
            f"must each have tokens, {codes}",
            lambda row: all(_is_code(t, size) for t in row["tokens"]) and bool(row["tokens"]),
            "tokens",
        ),
        (
            "must each have as many labels as tokens",
            lambda row: len(row["label"]) == len(row["tokens"]),
            "label",
        ),
    ]
    if objective == "sets":
        rule = f"must each have labels that are lists of {size} numbers, 0 or 1"
        rules.append((rule, lambda row: _are_sets(row["label"][:-1], size), "label"))
    else:
        rule = f"must each have labels that are {codes}"
        rules.append((rule, lambda row: all(_is_code(c, size) for c in row["label"]), "label"))
    whole = [number for number, row in enumerate(rows) if _has_lists(row)]
    for number, (rule, holds, key) in enumerate(rules):
        looked = range(len(rows)) if number == 0 else whole
        broken = [k for k in looked if not holds(rows[k])]
        if broken:
            row = rows[broken[0]]
            got = f"row {broken[0]}: {_short(row[key] if key else row)}"
            others = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
            problems.need(False, "rows", rule, got + others, "mend the file")


def _has_lists(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(k), list) for k in ("tokens", "label"))


def _is_code(value: Any, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size


def _are_sets(labels: Sequence[Any], size: int) -> bool:
    return all(
        isinstance(label, list) and len(label) == size and all(v in (0, 1) for v in label)
        for label in labels
    )


def _short(value: Any, most: int = 60) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}…"


def _arrays(rows: Sequence[dict[str, Any]], texts: tuple[str, ...], objective: Objective) -> Rows:
    shape = (len(rows), max(len(row["tokens"]) for row in rows))
    tokens, asked = np.full(shape, NONE), np.zeros(shape, dtype=bool)
    sets = objective == "sets"
    labels: NDArray[Any] = np.zeros((*shape, len(texts)), bool) if sets else np.full(shape, NONE)
    pad = texts.index(_PAD) if _PAD in texts else NONE
    for i, row in enumerate(rows):
        n = len(row["tokens"])
        tokens[i, :n] = row["tokens"]
        if sets:
            asked[i, : n - 1] = True
            labels[i, : n - 1] = np.array(row["label"][:-1], dtype=bool).reshape(n - 1, len(texts))
        else:
            following = np.array(row["label"][1:], dtype=np.int64)
            asked[i, : n - 1] = following != pad
            labels[i, : n - 1] = np.where(following != pad, following, NONE)
    return Rows(tokens, asked, labels, Vocabulary(texts), objective)
