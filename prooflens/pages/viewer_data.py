"""The data of the viewer of an inspection's page: one JSON document, and bytes for every head.

The schema is in ``docs/formats.md``. The JSON document has what is read at once (rows, columns,
roles, lags, scores of rows); a head's attention, norms and effects are codes of one byte each,
unpacked by the page when the head is shown. Numbers that are not finite are ``null`` (not measured)
or the text ``inf`` and ``-inf``: never zero.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from probes.roles.decision import by_status
from prooflens.pages.behaviour_figures import (
    CLASSES,
    COPYING,
    POSITIONAL,
    attention_kind,
    mass,
    matching,
)
from prooflens.pages.certainty import how_sure, in_short, passes, tests_of

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
"""Role of a head → the key set whose attention share orders the rows in the viewer."""
_NAMES = {
    "previous": "previous token",
    "same": "same token, earlier",
    "after_same": "after the same token (induction)",
    "first": "first token",
    "own": "own token",
}
_PARTS = ("pattern", "written", "effect")

Place = tuple[int, int]
Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Column:
    """One number of every head.

    Attributes:
        key: The column's short name.
        label: The column's name with its unit, for an axis.
        about: What the number is, in a sentence.
        values: Head → number; a head that is missing was not measured.
    """

    key: str
    label: str
    about: str
    values: Mapping[Place, float]


class _Words:
    """A list of distinct texts, each referred to by its index."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def of(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def places_of(tables: Tables) -> list[Place]:
    """Return layer and number of every head in the tables, in order."""
    heads = tables["shown-heads"][["layer", "head"]].drop_duplicates()
    return sorted((int(layer), int(head)) for layer, head in heads.itertuples(index=False))


def loss_unit(tables: Mapping[str, pd.DataFrame], about: Mapping[str, Any]) -> str:
    """Return the unit of losses: ``nats`` for token targets, even if effects are shares of
    variance; else the profile's unit."""
    trials = tables.get("trials", pd.DataFrame())
    tokens = len(trials) and trials["worst"].isna().all()
    return "nats" if tokens else str(about["unit"])


def columns_of(heads: pd.DataFrame, unit: str) -> list[Column]:
    """Return the numbers of every head by which the viewer shows them as points.

    Args:
        heads: The table ``heads``.
        unit: Unit of losses: ``nats`` or ``variance``.
    """
    return [column for column in _columns(heads, unit) if column.values]


def _columns(heads: pd.DataFrame, unit: str) -> Iterator[Column]:
    for keys in (*CLASSES, "own"):
        kind = attention_kind(heads, keys)
        about = f"Mean share of attention on {kind} rows."
        rows = matching(heads, **mass(keys, kind))
        yield Column(keys, f"{_NAMES[keys]} (share)", about, _by_head(rows))
    rows = matching(heads, **mass("same", "shuffled"))
    about = "Mean share of attention on shuffled rows."
    yield Column("same-shuffled", "same token, shuffled rows (share)", about, _by_head(rows))
    about = "How much the head raises what it attends to."
    yield Column("copying", "copying (logits)", about, _by_head(matching(heads, **COPYING)))
    about = "How alike attention is across rows."
    rows = matching(heads, **POSITIONAL)
    yield Column("positional", "positional (cosine)", about, _by_head(rows))
    lost = matching(heads, metric="loss_increase", component="head")
    told = "nats" if unit == "nats" else "share of the target's variance"
    for trial, part in lost.groupby("trial", sort=False) if len(lost) else ():
        about = f"Rise of the loss on {trial} rows when the head gives its mean over rows."
        label = f"loss without it, {trial} ({told})"
        yield Column(f"loss-{trial}", label, about, _by_head(part))
    for circuit in ("QK", "OV"):
        for metric in ("trace_share", "diag_ratio", "copying_score", "effective_rank"):
            rows = matching(heads, metric=metric, circuit=circuit)
            label, about = f"{circuit} {metric.replace('_', ' ')}", "Read off weights alone."
            yield Column(f"{circuit}-{metric}", label, about, _by_head(rows))


def _by_head(rows: pd.DataFrame) -> dict[Place, float]:
    if rows.empty:
        return {}
    scores = rows[["layer", "head", "score"]].itertuples(index=False, name=None)
    return {(int(layer), int(head)): float(score) for layer, head, score in scores}


def viewer_document(tables: Tables, about: Mapping[str, Any], title: str) -> dict[str, Any]:
    """Build the JSON document of the attention viewer.

    The per-head arrays of attention, norms and effects are not in it: see :func:`head_bytes`.

    Args:
        tables: The tables of an inspection, by name.
        about: The metadata that was saved with the tables.
        title: Title of the page.

    Returns:
        The document as JSON data, in the format of ``docs/formats.md``.
    """
    words = _Words()
    rows = tables["shown-rows"]
    groups = [_group(part, words, about) for _, part in rows.groupby("group", sort=True)]
    model = _model(tables, about, words)
    return {
        "format": FORMAT,
        "title": title,
        "words": list(words.places),
        "groups": groups,
        "models": [model],
    }


def _group(part: pd.DataFrame, words: _Words, about: Mapping[str, Any]) -> dict[str, Any]:
    told = about["groups"][int(part["group"].iloc[0])]
    rows = [own for _, own in part.groupby("row", sort=True)]
    return {
        "kind": told["kind"],
        "about": told["about"],
        "length": len(rows[0]),
        "rows": [[words.of(text) for text in own["token"]] for own in rows],
        "scored": [own["scored"].astype(int).tolist() for own in rows],
    }


def _model(tables: Tables, about: Mapping[str, Any], words: _Words) -> dict[str, Any]:
    columns = columns_of(tables["heads"], loss_unit(tables, about))
    codes, scores, lags = (tables[f"shown-{name}"] for name in ("heads", "scores", "lags"))
    by_lag = {
        group: sorted(lags.loc[lags["group"] == group, "lag"].unique().tolist())
        for group in sorted(lags["group"].unique().tolist())
    }
    parts = dict(list(codes.groupby(["layer", "head"])))
    of_rows = dict(list(scores.groupby(["layer", "head"])))
    of_lags = dict(list(lags.groupby(["layer", "head"])))
    roles, lacks = tables["roles"], tables.get("lacks", pd.DataFrame())
    notes = [f"{row.role}: {row.reason}" for row in lacks.itertuples()]
    heads = []
    for place in places_of(tables):
        own = roles[(roles["layer"] == place[0]) & (roles["head"] == place[1])]
        own = own.sort_values("status", key=by_status, kind="stable")
        told = [_role(row, float(about["level"])) for row in own.itertuples()]
        classes = [_ORDERED_BY[role["role"]] for role in told if role["role"] in _ORDERED_BY]
        heads.append(
            {
                "name": f"L{place[0]}H{place[1]}",
                "layer": place[0],
                "head": place[1],
                "roles": told,
                "values": [_number(column.values.get(place, math.nan)) for column in columns],
                "order": classes[0] if classes else "effect",
                "groups": [
                    _on_group(n, parts[place], of_rows[place], of_lags[place], by_lag[n])
                    for n in sorted(by_lag)
                ],
            }
        )
    return {
        "name": str(about["model"]),
        "causal": bool(about["causal"]),
        "error": _number(float(codes.loc[codes["part"] == "pattern", "error"].max())),
        "columns": [{"key": c.key, "label": c.label, "about": c.about} for c in columns],
        "lags": [by_lag[n] for n in sorted(by_lag)],
        "effects": [group["effect"] for group in about["groups"]],
        "heads": heads,
        "raised": _raised_tokens(tables.get("raised", pd.DataFrame()), words),
        "notes": [*about["notes"], *notes],
    }


def _on_group(
    number: int, parts: pd.DataFrame, scores: pd.DataFrame, lags: pd.DataFrame, at: list[int]
) -> dict[str, Any]:
    """Return the data of a head on the rows of one kind."""
    own = parts[parts["group"] == number].set_index("part")
    scales = {
        name: [float(v) for v in own.loc[name, ["low", "step", "error"]].to_numpy()]
        if name in own.index
        else None
        for name in _PARTS
    }
    of_rows = {
        str(keys): _numbers(part.sort_values("row")["score"])
        for keys, part in scores[scores["group"] == number].groupby("keys", sort=False)
    }
    shares = lags[lags["group"] == number].set_index("lag")["share"].reindex(at)
    return {**scales, "scores": of_rows, "lags": _numbers(shares)}


def _role(row: Any, level: float) -> dict[str, Any]:
    fields = ("role", "target", "status", "strength", "effect", "q")
    tests = [
        {"name": test["name"], "kind": test["kind"], "passes": passes(test, level)}
        | {field: _number_or_none(test[field]) for field in ("score", "floor", "q", "low", "high")}
        for test in tests_of(row)
    ]
    words = {"short": in_short(row), "sure": how_sure(row, level), "tests": tests}
    return {field: _plain(getattr(row, field)) for field in fields} | words


def _raised_tokens(table: pd.DataFrame, words: _Words) -> dict[str, Any] | None:
    if table.empty:
        return None
    tokens = list(dict.fromkeys(table["token"]))
    named: dict[str, dict[str, list[list[Any]]]] = {"up": {}, "down": {}}
    for (way, layer, head), own in table.groupby(["way", "layer", "head"], sort=False):
        by_token = dict(list(own.groupby("token", sort=False)))
        named[str(way)][f"L{layer}H{head}"] = [
            [
                [words.of(raised), _number(float(size))]
                for raised, size in zip(part["raised"], part["logit"], strict=True)
            ]
            for part in (by_token[token] for token in tokens)
        ]
    return {"tokens": [words.of(token) for token in tokens], **named}


def head_bytes(tables: Tables) -> Iterator[tuple[str, bytes]]:
    """Yield each head's name and bytes: for every kind of rows its attention, then its norms, then
    its effects, each row after row."""
    rank = {name: number for number, name in enumerate(_PARTS)}
    codes = tables["shown-heads"]
    ordered = codes.assign(rank=codes["part"].map(rank)).sort_values(["group", "rank"])
    for (layer, head), own in ordered.groupby(["layer", "head"]):
        yield f"L{layer}H{head}", b"".join(base64.b64decode(text) for text in own["codes"])


def _numbers(values: Iterable[float]) -> list[float | str | None]:
    return [_number(float(value)) for value in values]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else _number(float(value))


def _number_or_none(value: float | None) -> float | str | None:
    return None if value is None else _number(value)


def _number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(f"{value:.{_DIGITS}g}")
