"""The figures of a page of heads, drawn again from the tables that the page holds.

    points          all heads over the two numbers that the page opens with
    numbers-UNIT    each number of this unit, layer × head
    lags            mean attention by lag, heads below one another
    attention       the head that the page opens with, on its strongest row

Of several models each figure's name ends in the model's number.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from interp.errors import StoreError
from interp.figures.lines import head_points, lags_of_heads
from interp.figures.maps import attention_on_tokens, head_maps
from interp.figures.style import save
from interp.reading import read_text
from prooflens.pages.view_document import FORMAT

__all__ = ["draw_page"]

Data = dict[str, Any]
_DATA = re.compile(r'<script type="application/json" id="view-data">(.*?)</script>', re.DOTALL)


def draw_page(path: Path, folder: Path) -> list[Path]:
    """Write every figure that a page of heads allows to a folder.

    Raises:
        StoreError: if the file is no page of heads, or of another format.
    """
    text = read_text(path, "page")
    found = _DATA.search(text)
    document = {} if found is None else json.loads(found[1])
    if document.get("format") != FORMAT:
        raise StoreError(
            f"{path} is no page of heads of this version: write it with prooflens view"
        )
    several, written = len(document["models"]) > 1, []
    for number, model in enumerate(document["models"]):
        for name, figure in _figures(document, model, number, text):
            written += save(figure, folder / f"{name}{f'-{number}' if several else ''}")
    return written


def _figures(document: Data, model: Data, number: int, text: str) -> Iterator[tuple[str, Figure]]:
    heads, names = model["heads"], [head["name"] for head in model["heads"]]
    columns = {column["key"]: column["label"] for column in model["columns"]}
    values = np.array([[_number(v) for v in head["values"]] for head in heads])
    if len(columns) > 1:
        keys = list(columns)
        x, y = (keys.index(key) for key in _axes(keys))
        first = [head["roles"][0] if head["roles"] else {} for head in heads]
        yield (
            "points",
            head_points(
                names,
                values[:, x],
                values[:, y],
                roles=[role.get("role", "") for role in first],
                confirmed=[role.get("status") == "confirmed" for role in first],
                labels=(columns[keys[x]], columns[keys[y]]),
            ),
        )
    if columns:
        parted = [_parted(label) for label in columns.values()]
        for unit in dict.fromkeys(unit for _, unit in parted):
            mine = [at for at, (_, own) in enumerate(parted) if own == unit]
            maps, titles = (
                [_map(heads, values[:, at]) for at in mine],
                [parted[at][0] for at in mine],
            )
            drawn = head_maps(maps, [unit] * len(mine), titles=titles, strongest=3)
            yield f"numbers-{unit.replace(' ', '-')}", drawn
    groups = document["groups"]
    told = [at for at, group in enumerate(groups) if group["kind"] != "prompt"]
    lags: list[int] = max((model["lags"][at] for at in told), key=len, default=[])
    shares = {groups[at]["kind"]: _lags(heads, at, len(lags)) for at in told}
    if lags:
        yield "lags", lags_of_heads(shares, names, lags)
    head = _leading(heads)
    at, row = _strongest(head, told)
    pattern = _pattern(document, model, head, at, row, _codes(text, number, head["name"]))
    tokens = [document["words"][word] for word in groups[at]["rows"][row]]
    yield "attention", attention_on_tokens({head["name"]: pattern}, tokens)


def _parted(label: str) -> tuple[str, str]:
    """A number's name and its unit: maps of one unit share a scale."""
    name, _, unit = label.rpartition(" (")
    return (name, unit.rstrip(")")) if name else (label, label)


def _axes(keys: list[str]) -> tuple[str, str]:
    """The numbers that the page opens with (``State`` in the viewer)."""
    across = "after_same" if "after_same" in keys else keys[0]
    return across, next((key for key in keys if key.startswith("loss-")), keys[1])


def _leading(heads: list[Data]) -> Data:
    """The head that the page opens with: the first that does induction for sure, else does anything
    for sure, else has a role."""

    def has(head: Data, role: str, status: str) -> bool:
        return any(role in one["role"] and status in one["status"] for one in head["roles"])

    for asked in (("induction", "confirmed"), ("", "confirmed"), ("", "")):
        found = next((head for head in heads if has(head, *asked)), None)
        if found is not None:
            return found
    return heads[0]


def _strongest(head: Data, groups: list[int]) -> tuple[int, int]:
    """(group, row) with the largest score of those that order the head's rows."""
    scored = [
        (_number(score), at, row)
        for at in groups
        for row, score in enumerate(head["groups"][at]["scores"].get(head["order"], []))
    ]
    known = [one for one in scored if math.isfinite(one[0])]
    _, at, row = max(known, default=(0.0, groups[0] if groups else 0, 0))
    return at, row


def _codes(text: str, number: int, name: str) -> NDArray[np.uint8]:
    found = re.search(rf'id="bytes-{number}-{name}">([^<]*)</script>', text)
    return np.frombuffer(base64.b64decode(found[1] if found else ""), dtype=np.uint8)


def _pattern(
    document: Data, model: Data, head: Data, at: int, row: int, codes: NDArray[np.uint8]
) -> NDArray[np.floating]:
    """Attention ``[query, key]`` of a row, from the head's bytes (``docs/formats.md``)."""
    start = 0
    for group, own in zip(document["groups"][:at], head["groups"][:at], strict=True):
        kept = sum(own[name] is not None for name in ("written", "effect"))
        n = group["length"]
        start += len(group["rows"]) * (_square(n, model["causal"]) + kept * n)
    n = document["groups"][at]["length"]
    size = _square(n, model["causal"])
    low, step, _ = head["groups"][at]["pattern"]
    values = low + step * codes[start + row * size :][:size].astype(float)
    pattern = np.zeros((n, n))
    pattern[np.tril_indices(n) if model["causal"] else tuple(np.indices((n, n)).reshape(2, -1))] = (
        values
    )
    return pattern


def _square(n: int, causal: bool) -> int:
    return n * (n + 1) // 2 if causal else n * n


def _map(heads: list[Data], values: NDArray[np.floating]) -> NDArray[np.floating]:
    found = np.full(tuple(max(h[name] for h in heads) + 1 for name in ("layer", "head")), np.nan)
    for head, value in zip(heads, values, strict=True):
        found[head["layer"], head["head"]] = value
    return found


def _lags(heads: list[Data], at: int, count: int) -> NDArray[np.floating]:
    shares = np.full((len(heads), count), np.nan)
    for line, head in zip(shares, heads, strict=True):
        own = [_number(value) for value in head["groups"][at]["lags"]]
        line[: len(own)] = own
    return shares


def _number(value: float | str | None) -> float:
    return math.nan if value is None else float(value)
