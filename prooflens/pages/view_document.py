"""A page of heads as data: one JSON document, and for every head its bytes.

The schema is written down in ``docs/formats.md``. JSON holds what is read at once (rows, columns,
roles, lags, scores of rows); a head's attention, norms and effects are codes of one byte each,
unpacked by the page when the head is looked at. Numbers that are not finite are ``null`` (not
measured) or the text ``inf`` and ``-inf``: never zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probes.roles.decision import by_status
from probes.roles.profile import Profile
from probes.viewing.measure import Effects, HeadOnRows
from probes.viewing.model import Place, Viewed, quantisation_error
from probes.viewing.quantised import Quantised
from prooflens.pages.certainty import how_sure, in_short, passes, tests_of

__all__ = ["FORMAT", "document", "head_bytes"]

FORMAT = {"name": "prooflens-view", "version": 1}
_DIGITS = 5
_ORDERED_BY = {
    "previous-token": "previous",
    "induction": "after_same",
    "duplicate-token": "same",
    "symbol-equality": "same",
    "sink": "first",
    "local": "own",
}
"""Role → the class of keys whose share orders a head's rows."""


class _Words:
    """Distinct texts, each named by its place."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def of(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def document(views: Sequence[Viewed], title: str, profile: Profile) -> dict[str, Any]:
    """The page's data, all but the bytes.

    Args:
        views: Models on the same rows.
        title: Of the page.
        profile: Their roles were decided by.
    """
    words = _Words()
    groups = [
        {
            "kind": rows.kind,
            "about": rows.about,
            "length": rows.batch.inputs.shape[1],
            "rows": [[words.of(text) for text in row] for row in rows.texts],
            "scored": rows.batch.mask.int().tolist(),
        }
        for rows in views[0].shown
    ]
    models = [_model(viewed, words, profile.level) for viewed in views]
    return {
        "format": FORMAT,
        "title": title,
        "words": list(words.places),
        "groups": groups,
        "models": models,
    }


def _model(viewed: Viewed, words: _Words, level: float) -> dict[str, Any]:
    return {
        "name": viewed.name,
        "causal": all(seen.attention_mask.causal for seen in viewed.seen),
        "error": _number(quantisation_error(viewed)),
        "columns": [
            {"key": column.key, "label": column.label, "about": column.about}
            for column in viewed.columns
        ],
        "lags": [list(seen.lags) for seen in viewed.seen],
        "effects": [None if e is None else {"how": e.how, "unit": e.unit} for e in viewed.effects],
        "heads": [_head(viewed, place, level) for place in viewed.heads],
        "raised": _raised(viewed, words),
        "notes": [*viewed.notes, *(f"{role}: {why}" for role, why in viewed.lacks.items())],
    }


def _head(viewed: Viewed, place: Place, level: float) -> dict[str, Any]:
    layer, head = place
    roles = viewed.roles
    own = roles[(roles["layer"] == layer) & (roles["head"] == head)]
    own = own.sort_values("status", key=by_status, kind="stable")
    told = [_role(row, level) for row in own.itertuples()]
    classes = [_ORDERED_BY[role["role"]] for role in told if role["role"] in _ORDERED_BY]
    groups = zip(viewed.seen, viewed.effects, strict=True)
    return {
        "name": f"L{layer}H{head}",
        "layer": layer,
        "head": head,
        "roles": told,
        "values": [_number(column.values.get(place, math.nan)) for column in viewed.columns],
        "order": classes[0] if classes else "effect",
        "groups": [_group(seen.heads[place], lost, place) for seen, lost in groups],
    }


def _role(row: Any, level: float) -> dict[str, Any]:
    fields = ("role", "target", "status", "strength", "effect", "q")
    tests = [
        {"name": test["name"], "kind": test["kind"], "passes": passes(test, level)}
        | {field: _known(test[field]) for field in ("score", "floor", "q", "low", "high")}
        for test in tests_of(row)
    ]
    words = {"short": in_short(row), "sure": how_sure(row, level), "tests": tests}
    return {field: _plain(getattr(row, field)) for field in fields} | words


def _group(seen: HeadOnRows, lost: Effects | None, place: Place) -> dict[str, Any]:
    scores = {name: _numbers(values) for name, values in seen.masses.items()}
    if lost is not None:
        scores["effect"] = _numbers(lost.by_row[place])
    return {
        "pattern": _scale(seen.pattern),
        "written": None if seen.written is None else _scale(seen.written),
        "effect": None if lost is None else _scale(lost.by_position[place]),
        "scores": scores,
        "lags": _numbers(seen.lags),
    }


def _scale(values: Quantised) -> list[float]:
    return [values.low, values.step, values.error]


def _raised(viewed: Viewed, words: _Words) -> dict[str, Any] | None:
    found = viewed.raised
    if found is None:
        return None
    texts = viewed.token_text
    named = {
        way: {
            f"L{layer}H{head}": [
                [[words.of(texts(token)), _number(size)] for token, size in pairs]
                for pairs in lists
            ]
            for (layer, head), lists in table.items()
        }
        for way, table in (("up", found.up), ("down", found.down))
    }
    return {"tokens": [words.of(texts(token)) for token in found.tokens], **named}


def head_bytes(viewed: Viewed, place: Place) -> bytes:
    """A head's codes: for every kind of rows its attention, then its norms, then its effects, each
    row after row. Of a causal model's attention the keys up to the query alone, query after query.
    """
    causal = all(seen.attention_mask.causal for seen in viewed.seen)
    pieces: list[bytes] = []
    for seen, lost in zip(viewed.seen, viewed.effects, strict=True):
        own = seen.heads[place]
        pieces.append(_packed(own.pattern.codes, causal))
        if own.written is not None:
            pieces.append(own.written.codes.tobytes())
        if lost is not None:
            pieces.append(lost.by_position[place].codes.tobytes())
    return b"".join(pieces)


def _packed(codes: NDArray[np.uint8], causal: bool) -> bytes:
    if not causal:
        return codes.tobytes()
    rows, columns = np.tril_indices(codes.shape[-1])
    return np.ascontiguousarray(codes[:, rows, columns]).tobytes()


def _numbers(values: NDArray[np.floating]) -> list[float | str | None]:
    return [_number(value) for value in values.tolist()]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else _number(float(value))


def _known(value: float | None) -> float | str | None:
    return None if value is None else _number(value)


def _number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(f"{value:.{_DIGITS}g}")
