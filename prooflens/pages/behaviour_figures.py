"""Figures of what heads do on rows: maps over layers and heads, and scores beside their nulls.

They are drawn from head tables alone, so that ``prooflens plot`` draws again, from a store, what
``prooflens inspect`` drew. Panels of one figure have one unit; each caption gives the figure's
largest numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from interp.figures.maps import head_maps, null_histograms

__all__ = [
    "CLASSES",
    "COPYING",
    "POSITIONAL",
    "Drawn",
    "behaviour_figures",
    "beside_nulls",
    "mass",
    "matching",
    "weight_maps",
]

COPYING = {"metric": "copying", "trial": "repeated"}
POSITIONAL = {"metric": "positional", "trial": "shuffled"}
CLASSES = ("previous", "same", "after_same", "first")
_KEYS = {
    "previous": "token before",
    "same": "equal tokens",
    "after_same": "what followed equal tokens",
    "first": "first token",
}
_LABELS = {
    "attention_mass": "share of attention",
    "copying": "logits of attended tokens",
    "positional": "cosine between rows",
    "loss_increase": "rise of the loss (nats)",
    "trace_share": "trace share",
    "diag_ratio": "RMS on / RMS off the diagonal",
}
_ACROSS, _NAMED = 3, 3
_PLACE = ("layer", "head")


class Drawn(NamedTuple):
    """A figure with the name of its file, its caption, and its panels below one another."""

    name: str
    figure: Figure
    caption: str
    narrow: Figure


Panel = tuple[str, pd.DataFrame]
"""A title and the rows of a head table."""


def behaviour_figures(
    behaviour: pd.DataFrame, losses: pd.DataFrame, *, nulls: bool
) -> Iterator[Drawn]:
    """Maps of every head, or histograms beside the nulls.

    Args:
        behaviour: Shares of attention, copying and position (a head table with ``trial``).
        losses: Rises of the loss without each head (a head table with ``trial``).
        nulls: Whether to draw histograms beside the nulls instead of maps.
    """
    layers, heads = _places(behaviour, losses)
    for metric, panels in _by_metric(behaviour, losses).items():
        for start in range(0, len(panels), _ACROSS):
            some = panels[start : start + _ACROSS]
            name = f"{'histogram' if nulls else 'map'}-{metric}-{start}"
            wide, narrow = (
                _histogram(metric, some, columns)
                if nulls
                else _map(metric, some, layers, heads, columns)
                for columns in (None, 1)
            )
            yield Drawn(name, wide, _caption(metric, some, nulls), narrow)


def beside_nulls(
    behaviour: pd.DataFrame, losses: pd.DataFrame, weights: pd.DataFrame
) -> pd.DataFrame:
    """The numbers of all these figures, one row per head and score, for models of a few heads.

    Args:
        behaviour, losses: As for :func:`behaviour_figures`.
        weights: As for :func:`weight_maps`.
    """
    pieces = []
    for metric, panels in (_by_metric(behaviour, losses) | _circuits(weights)).items():
        for title, rows in panels:
            piece = rows[["layer", "head", "score", "null_mean", "null_std", "q"]].copy()
            piece.insert(2, "rows", title)
            piece.insert(2, "score of", _LABELS[metric])
            pieces.append(piece)
    return pd.concat(pieces, ignore_index=True)


def weight_maps(weights: pd.DataFrame) -> Iterator[Drawn]:
    """Maps of the diagonals of every head's circuits.

    Args:
        weights: From :func:`interp.weights.weight_table.weight_table`.
    """
    layers, heads = _places(weights)
    for metric, panels in _circuits(weights).items():
        wide, narrow = (_map(metric, panels, layers, heads, columns) for columns in (None, 1))
        yield Drawn(f"map-{metric}", wide, _caption(metric, panels, nulls=False), narrow)


def mass(keys: str, trial: str) -> dict[str, str]:
    """The columns of a head table's rows about attention to a class of keys."""
    return {"metric": "attention_mass", "target": keys, "null": "positions", "trial": trial}


def matching(table: pd.DataFrame, **values: str) -> pd.DataFrame:
    """The rows whose columns have these values."""
    if any(name not in table for name in values):
        return pd.DataFrame(columns=["score"], dtype=float)
    return table[(table[list(values)] == list(values.values())).all(axis=1)]


def _panels(behaviour: pd.DataFrame, losses: pd.DataFrame) -> Iterator[Panel]:
    keys: Sequence[Mapping[str, str]] = [
        *(mass(c, "repeated") for c in CLASSES),
        mass("same", "shuffled"),
        COPYING,
        POSITIONAL,
    ]
    for key in keys:
        what = _KEYS.get(key.get("target", ""), key["metric"])
        yield f"{what}, {key['trial']} rows", matching(behaviour, **key)
    if len(losses):
        heads = losses[losses["component"] == "head"]
        for trial, part in heads.groupby("trial", sort=False):
            yield f"without the head, {trial!s}", part


def _by_metric(behaviour: pd.DataFrame, losses: pd.DataFrame) -> dict[str, list[Panel]]:
    groups: dict[str, list[Panel]] = {}
    for title, rows in _panels(behaviour, losses):
        if rows["score"].notna().any():
            groups.setdefault(str(rows["metric"].iloc[0]), []).append((title, rows))
    return groups


def _circuits(weights: pd.DataFrame) -> dict[str, list[Panel]]:
    groups = {}
    for metric in ("trace_share", "diag_ratio"):
        found = ((c, matching(weights, metric=metric, circuit=c)) for c in ("QK", "OV"))
        panels = [(circuit, rows) for circuit, rows in found if rows["score"].notna().any()]
        if panels:
            groups[metric] = panels
    return groups


def _places(*tables: pd.DataFrame) -> tuple[range, range]:
    """All layers and heads that some table has."""
    filled = [table for table in tables if len(table)]
    last = (max((int(one[name].max()) for one in filled), default=-1) for name in _PLACE)
    layers, heads = (range(number + 1) for number in last)
    return layers, heads


def _map(
    metric: str, panels: Sequence[Panel], layers: range, heads: range, columns: int | None
) -> Figure:
    """Maps of all layers and heads, empty where nothing was measured."""
    tables = (rows.pivot(index="layer", columns="head", values="score") for _, rows in panels)
    grids = [one.reindex(index=layers, columns=heads).to_numpy() for one in tables]
    labels, titles = [_LABELS[metric]] * len(grids), _broken(panels)
    return head_maps(grids, labels, titles=titles, strongest=6, columns=columns)


def _histogram(metric: str, panels: Sequence[Panel], columns: int | None) -> Figure:
    triples = [
        (rows["score"].to_numpy(), rows["null_mean"].to_numpy(), rows["null_std"].to_numpy())
        for _, rows in panels
    ]
    titles = _broken(panels)
    return null_histograms(triples, _LABELS[metric], titles=titles, columns=columns)


def _broken(panels: Sequence[Panel]) -> list[str]:
    """The panels' titles, on two lines where they have two parts."""
    return [title.replace(", ", "\n", 1) for title, _ in panels]


def _caption(metric: str, panels: Sequence[Panel], nulls: bool) -> str:
    told = "; ".join(f"{title} {_numbers(rows, nulls)}" for title, rows in panels)
    label = _LABELS[metric]
    return f"{label[0].upper()}{label[1:]}: {told}."


def _numbers(rows: pd.DataFrame, nulls: bool) -> str:
    if nulls:
        return (
            f"{int((rows['q'] < 0.01).sum())} of {len(rows)} heads differ from the null (q < 0.01)"
        )
    order = rows["score"].abs().sort_values(ascending=False, kind="stable").index[:_NAMED]
    return ", ".join(f"L{r.layer}H{r.head} {r.score:.2f}" for r in rows.loc[order].itertuples())
