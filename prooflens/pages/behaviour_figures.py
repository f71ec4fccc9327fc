"""Figures of what heads do on rows: maps over layers and heads, and scores beside their nulls.

They are drawn from the table ``heads`` alone. Panels of one figure have one unit; each caption
gives the figure's largest numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from interp.figures.maps import head_maps, null_histograms

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
    """A figure for a report page.

    Attributes:
        name: The name of its file, without an ending.
        figure: The figure.
        caption: Its caption.
        narrow: The same figure for narrow screens, with its panels below one another.
        told: Its numbers in words, for readers who cannot see it.
    """

    name: str
    figure: Figure
    caption: str
    narrow: Figure
    told: str = ""


Panel = tuple[str, pd.DataFrame]
"""The title of a panel, and the rows of a head table that it shows."""


def behaviour_figures(heads: pd.DataFrame, unit: str, *, nulls: bool) -> Iterator[Drawn]:
    """Yield maps over layers and heads of every score, or histograms of the scores beside their
    nulls.

    Args:
        heads: The table ``heads``.
        unit: Unit of losses: ``nats`` or ``variance``.
        nulls: Whether to draw histograms beside the nulls instead of maps.
    """
    layers, width = places(heads)
    for metric, panels in _by_metric(heads).items():
        for start in range(0, len(panels), _ACROSS):
            some = panels[start : start + _ACROSS]
            name, label = (
                f"{'histogram' if nulls else 'map'}-{metric}-{start}",
                _label(metric, unit),
            )
            wide, narrow = (
                histogram(label, some, columns)
                if nulls
                else head_map(label, some, layers, width, columns)
                for columns in (None, 1)
            )
            yield Drawn(name, wide, _caption(label, some, nulls), narrow)


def beside_nulls(heads: pd.DataFrame, unit: str) -> pd.DataFrame:
    """Return the numbers of all these figures, one row per head and score, for models of a few
    heads."""
    pieces = []
    for metric, panels in (_by_metric(heads) | _circuits(heads)).items():
        for title, rows in panels:
            piece = rows[["layer", "head", "score", "null_mean", "null_std", "q"]].copy()
            piece.insert(2, "rows", title)
            piece.insert(2, "score of", _label(metric, unit))
            pieces.append(piece)
    return pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame()


def weight_maps(heads: pd.DataFrame) -> Iterator[Drawn]:
    """Yield maps over layers and heads of the scores that say how diagonal each head's circuits
    are."""
    layers, width = places(heads)
    for metric, panels in _circuits(heads).items():
        label = _LABELS[metric]
        wide, narrow = (head_map(label, panels, layers, width, columns) for columns in (None, 1))
        yield Drawn(f"map-{metric}", wide, _caption(label, panels, nulls=False), narrow)


def attention_kind(heads: pd.DataFrame, keys: str) -> str:
    """Return the kind of rows on which attention to a key set is shown.

    It is ``given`` for key sets that depend on positions, if there are rows of a task, and else
    ``repeated``.
    """
    of_task = keys not in ("same", "after_same") and bool((heads["trial"] == "given").any())
    return "given" if of_task else "repeated"


def _label(metric: str, unit: str) -> str:
    if metric == "loss_increase" and unit != "nats":
        return "rise of the loss (share of the target's variance)"
    return _LABELS[metric]


def mass(keys: str, trial: str) -> dict[str, str]:
    """Build the filter for the rows of a head table that hold the attention mass on a key set.

    Args:
        keys: The key set, such as ``previous``, ``first``, ``same`` or ``after_same``.
        trial: The kind of input rows, such as ``given``, ``repeated`` or ``shuffled``.

    Returns:
        Column name → required value, for :func:`matching`. The scores of the matching rows are
        tested against the null ``positions``, which permutes each query's attention weights.
    """
    return {"metric": "attention_mass", "target": keys, "null": "positions", "trial": trial}


def matching(table: pd.DataFrame, **values: str) -> pd.DataFrame:
    """Return the rows of a table whose columns have these values."""
    if any(name not in table for name in values):
        return pd.DataFrame(columns=["score"], dtype=float)
    return table[(table[list(values)] == list(values.values())).all(axis=1)]


def _panels(heads: pd.DataFrame) -> Iterator[Panel]:
    keys: Sequence[Mapping[str, str]] = [
        *(mass(c, attention_kind(heads, c)) for c in CLASSES),
        mass("same", "shuffled"),
        COPYING,
        POSITIONAL,
    ]
    for key in keys:
        what = _KEYS.get(key.get("target", ""), key["metric"])
        yield f"{what}, {key['trial']} rows", matching(heads, **key)
    lost = matching(heads, metric="loss_increase", component="head")
    for trial, part in lost.groupby("trial", sort=False) if len(lost) else ():
        yield f"without the head, {trial!s}", part


def _by_metric(heads: pd.DataFrame) -> dict[str, list[Panel]]:
    groups: dict[str, list[Panel]] = {}
    for title, rows in _panels(heads):
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


def places(heads: pd.DataFrame) -> tuple[range, range]:
    """Return the ranges of all layers and of all heads in a table."""
    layers, width = (range(int(heads[name].max()) + 1) for name in _PLACE)
    return layers, width


def head_map(
    label: str,
    panels: Sequence[Panel],
    layers: range,
    heads: range,
    columns: int | None = None,
) -> Figure:
    """Draw maps over all layers and heads, one per panel, empty where nothing was measured."""
    tables = (rows.pivot(index="layer", columns="head", values="score") for _, rows in panels)
    grids = [one.reindex(index=layers, columns=heads).to_numpy() for one in tables]
    labels, titles = [label] * len(grids), _break_titles(panels)
    return head_maps(grids, labels, titles=titles, strongest=6, columns=columns)


def histogram(label: str, panels: Sequence[Panel], columns: int | None = None) -> Figure:
    """Draw histograms of the scores of all heads beside their nulls, one per panel."""
    triples = [
        (rows["score"].to_numpy(), rows["null_mean"].to_numpy(), rows["null_std"].to_numpy())
        for _, rows in panels
    ]
    titles = _break_titles(panels)
    return null_histograms(triples, label, titles=titles, columns=columns)


def _break_titles(panels: Sequence[Panel]) -> list[str]:
    """Return the panels' titles, on two lines if they have two parts."""
    return [title.replace(", ", "\n", 1) for title, _ in panels]


def _caption(label: str, panels: Sequence[Panel], nulls: bool) -> str:
    told = "; ".join(f"{title} {_numbers(rows, nulls)}" for title, rows in panels)
    return f"{label[0].upper()}{label[1:]}: {told}."


def _numbers(rows: pd.DataFrame, nulls: bool) -> str:
    if nulls:
        return (
            f"{int((rows['q'] < 0.01).sum())} of {len(rows)} heads differ from the null (q < 0.01)"
        )
    order = rows["score"].abs().sort_values(ascending=False, kind="stable").index[:_NAMED]
    return ", ".join(f"L{r.layer}H{r.head} {r.score:.2f}" for r in rows.loc[order].itertuples())
