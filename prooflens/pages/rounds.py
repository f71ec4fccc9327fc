"""Nested memories layer by layer: which layer first holds which round, and what breaks it.

    first     the first place of the residual stream where a latent is decodable (r² ≥ .9)
    lost      r² lost there without one component, the one that costs most (``without``)
    before    r² lost there without the heads of the layer that fetches the round before

A trained model stands beside the proof. Where the proof of the model's own task is refused in
float64 (large lags), it is built for the lags 1, 2, … and values ±1. A staircase shows an order of
rounds, not their mechanism; what is decodable need not be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.errors import ArgumentError
from interp.figures.maps import RoundsPanel, rounds_by_layer
from interp.interventions.components import Component, components
from interp.proofs.mechanism import Construction
from interp.proofs.memory import construct_adaptive_memory
from interp.tasks.memory import AdaptiveMemory
from probes.nesting import nesting_panel
from probes.roles.effects import Effects
from probes.roles.gathering import evidence_of
from probes.roles.profile import TASK
from probes.roles.reader import Reader

__all__ = [
    "KERNELS",
    "READABLE",
    "ROUNDS_CAPTION",
    "Rounds",
    "is_nested",
    "rounds_again",
    "rounds_beside_proof",
    "rounds_in_words",
    "rounds_side_by_side",
]

READABLE, KERNELS = "rounds-readable", "rounds-kernels"
"""The tables from which the figure is drawn again."""

ROUNDS_CAPTION = (
    "Which layer first holds which latent, and what breaks it: r² that is lost there without the "
    "component that costs most, and without the heads that fetch the round before."
)
"""The caption of :func:`rounds_side_by_side`."""


@dataclass(frozen=True)
class Rounds:
    """Two models' rounds.

    Attributes:
        table: A row a model and latent: ``model``, ``latent``, ``layer`` and ``after`` (where it
            first is decodable; −1 and ``nowhere``), ``r2``, ``without`` and ``lost``, ``before``
            (NaN for the first round).
        panels: What the figure shows of each model.
    """

    table: pd.DataFrame
    panels: Sequence[RoundsPanel]

    @property
    def figure(self) -> Figure:
        """The models side by side."""
        return rounds_by_layer(self.panels)

    @property
    def drawn_from(self) -> dict[str, pd.DataFrame]:
        """The figure's numbers: :data:`READABLE` with ``model``, ``place`` and a column a latent,
        :data:`KERNELS` with ``model``, ``memory``, ``layer`` and a column an offset."""
        readable = [
            pd.DataFrame(panel.decodable, columns=list(panel.latents)).assign(
                place=list(panel.places), model=panel.title
            )
            for panel in self.panels
        ]
        kernels = [
            pd.DataFrame(shares, columns=[f"{offset:+d}" for offset in panel.offsets]).assign(
                layer=list(panel.layers), memory=memory, model=panel.title
            )
            for panel in self.panels
            for memory, shares in zip(panel.memories, panel.attention, strict=True)
        ]
        return {READABLE: pd.concat(readable), KERNELS: pd.concat(kernels)}


def rounds_again(readable: pd.DataFrame, kernels: pd.DataFrame) -> Figure:
    """The figure of :attr:`Rounds.drawn_from`."""
    panels = []
    for title, rows in readable.groupby("model", sort=False):
        mine = kernels[kernels["model"] == title]
        offsets = list(kernels.columns.drop(["model", "memory", "layer"]))
        memories = list(dict.fromkeys(mine["memory"]))
        shares = [mine.loc[mine["memory"] == memory, offsets].to_numpy() for memory in memories]
        known = rows.drop(columns=["model", "place"]).dropna(axis=1, how="all")
        panels.append(
            RoundsPanel(
                str(title),
                list(rows["place"]),
                list(known.columns),
                known.to_numpy(),
                memories,
                list(dict.fromkeys(mine["layer"])),
                [int(o) for o in offsets],
                np.array(shares),
            )
        )
    return rounds_by_layer(panels)


def is_nested(task: Any) -> bool:
    """Whether a task has rounds that each need the one before."""
    return isinstance(task, AdaptiveMemory) and task.rounds >= 2


def rounds_beside_proof(
    model: Any, task: AdaptiveMemory, *, rows: int = 128, seed: int = 0
) -> Rounds:
    """Measure a model of a nested task, and the proof beside it.

    Args:
        model: Of our own format, for this task.
        task: With two rounds or more.
        rows: Rows of either task.
        seed: Seed of the rows.
    """
    proof, near = _proof(task)
    lags = ", ".join(map(str, near.locations))
    told = "" if near is task else f" (values ±1, lags {lags})"
    both = (("this model", model, task), (f"constructed{told}", proof.model, near))
    tables = [_table(m, t, rows, seed).assign(model=name) for name, m, t in both]
    panels = [nesting_panel(m, t, title=name, rows=rows, seed=seed) for name, m, t in both]
    table = pd.concat(tables, ignore_index=True)
    return Rounds(table[["model", *table.columns.drop("model")]], panels)


def rounds_in_words(table: pd.DataFrame) -> Iterator[str]:
    """A line a model and latent."""
    rows: list[Any] = list(table.itertuples())
    for row in rows:
        broken = "".join(f"; {words}" for words in _broken(row))
        yield f"{row.model}: {row.latent} {_place(row)}, r² {row.r2:.2f}{broken}"


def rounds_side_by_side(table: pd.DataFrame) -> pd.DataFrame:
    """A row a latent, and of each model where it is first decodable and what breaks it there."""
    rows: dict[str, dict[str, str]] = {}
    found: list[Any] = list(table.itertuples())
    for row in found:
        mine = rows.setdefault(row.latent, {"latent": row.latent})
        mine[row.model] = f"{_place(row)}, r² {row.r2:.2f}"
        mine[f"{row.model}: broken"] = "; ".join(_broken(row)) or "by no component"
    return pd.DataFrame(list(rows.values()))


def _place(row: Any) -> str:
    if row.after == "embedding":
        return "in the embedding"
    return row.after if row.layer < 0 else f"first after layer {row.layer}'s {row.after}"


def _broken(row: Any) -> Iterator[str]:
    """What a latent loses without a component, and without the round before it."""
    if row.without:
        yield f"without {row.without} it falls by {row.lost:.2f}"
    if row.before == row.before:
        yield f"without the heads of the round before by {row.before:.2f}"


def _proof(task: AdaptiveMemory) -> tuple[Construction, AdaptiveMemory]:
    """The construction of the task, or of the nearest one that float64 can hold."""
    try:
        return construct_adaptive_memory(task), task
    except ArgumentError:
        locations = tuple(range(1, len(task.locations) + 1))
        near = replace(task, locations=locations, inputs="signs")
        return construct_adaptive_memory(near), near


def _table(model: Any, task: AdaptiveMemory, rows: int, seed: int) -> pd.DataFrame:
    batch = task.sample(rows, seed=seed)
    evidence = evidence_of(model, batch, TASK, latents=True, targets=False, seed=seed)
    reader = Reader(evidence, Effects(evidence))
    chain = [(f"t_{i}", f"x[t-t_{i}]") for i in range(1, task.rounds + 1)]
    names = [*(name for together in chain for name in together), "f"]
    sites = {name: reader.first_site(name) for name in names}
    earlier = {name: f"x[t-t_{i - 1}]" for i, names in enumerate(chain, 1) for name in names}
    heads = {
        name: [
            part
            for part in components(model)
            if part.kind == "head"
            and (site := sites.get(earlier.get(name, "")))
            and part.layer == site[0]
        ]
        for name in names
    }
    return pd.DataFrame([_row(reader, name, sites[name], heads[name]) for name in names])


def _row(
    reader: Reader, name: str, site: tuple[int, str] | None, heads: Sequence[Component]
) -> dict[str, Any]:
    row: dict[str, Any] = {"latent": name, "layer": -1, "after": "nowhere", "r2": float("nan")}
    without, lost, before = "", float("nan"), float("nan")
    if site is None:
        row["r2"] = max(reader.read(hook, name).score for _, hook in reader.sites())
    else:
        layer, hook = site
        after = {"mid": "attention", "ost": "FFN"}.get(hook[-3:], "embedding")
        row |= {"layer": layer, "after": after, "r2": reader.read(hook, name).score}
        parts = [part for part in components(reader.model) if _comes_before(part, layer, after)]
        if parts:
            scores = {part.name: reader.lost(hook, name, [part], 0.0).score for part in parts}
            without = max(scores, key=lambda part: scores[part])
            lost = scores[without]
        if heads and min(part.layer for part in heads) <= layer:
            before = reader.lost(hook, name, heads, 0.0).score
    return row | {"without": without, "lost": lost, "before": before}


def _comes_before(part: Component, layer: int, after: str) -> bool:
    return bool(
        part.layer < layer or (part.layer == layer and (part.kind == "head" or after == "FFN"))
    )
