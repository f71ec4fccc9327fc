"""Everything probes say of one model or store: a table, a map of layers, where latents appear."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.inspection.sites import chosen_hooks, hook_sites, short_name, usual_hooks
from interp.figures.maps import Panel, share_maps
from interp.figures.style import save
from interp.models import build
from interp.models.baselines import Baseline
from interp.output import output_folder
from probes.rounds import first_decodable
from probes.survey import layer_map, probe_table

__all__ = ["MARKER", "Probing", "findings", "latent_maps", "probe_source", "write_probing"]

MARKER = ".prooflens-probes"
_KINDS = ("score", "selectivity")
_FLOOR = 0.9
_CLEAR = 0.05
"""The least by which a score is above a baseline, to be told."""
_BASELINES = {
    "over_input": "the raw input",
    "selectivity": "the control task",
    "over_untrained": "random weights",
}


@dataclass(frozen=True)
class Probing:
    """What was found.

    Attributes:
        table: From :func:`probes.survey.probe_table`.
        first: From :func:`probes.rounds.first_decodable`.
        about: What was probed, as JSON data.
    """

    table: pd.DataFrame
    first: pd.DataFrame
    about: dict[str, Any]


def probe_source(
    source: Any,
    inputs: Any,
    *,
    hooks: list[str] | None = None,
    latents: list[str] | None = None,
    untrained: Any = None,
    seed: int = 0,
    about: dict[str, Any] | None = None,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Probing:
    """Probe a model on a batch, or a store.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
        inputs: A :class:`~interp.tasks.base.Batch` with latents for a model, None for a store.
        hooks: Names or globs; by default the residual stream between sublayers of a transformer,
            of other models and stores every hook with a position axis. They are probed in the
            order in which they fire.
        latents: Which; all by default.
        untrained: A model of the same hooks with random weights, to compare with; our own models
            make theirs, for others and stores there is none unless given.
        seed: Of controls, nulls and random weights.
        about: Goes into the JSON.
        watch: Wraps the iteration over hooks.

    Raises:
        HookError: if a glob matches nothing, or a hook without a position axis.
    """
    sites = hook_sites(source, inputs)
    chosen = usual_hooks(source, sites) if hooks is None else chosen_hooks(source, sites, hooks)
    if untrained is None and isinstance(source, Baseline):
        untrained = build(source.spec, seed=seed + 1)
    table = probe_table(
        source, inputs, chosen, latents, untrained=untrained, seed=seed, watch=watch
    )
    about = {**(about or {}), "seed": seed, "hooks": chosen}
    if hooks is None and set(chosen) == {site.name for site in sites if site.probed}:
        about["left_out"] = [site.name for site in sites if not site.probed]
    return Probing(table, first_decodable(table, floor=_FLOOR), about)


def findings(found: Probing) -> list[str]:
    """One line a latent: where it first is decodable and what that is worth, or why nowhere; one
    for hooks that were left out, and one if no model with random weights was there to compare
    with."""
    lines = []
    for latent, hook, _ in found.first.itertuples(index=False):
        rows = found.table[found.table["latent"] == latent]
        where = rows["hook"] == hook if hook else rows["score"] == rows["score"].max()
        row = rows[where].iloc[0]
        lines.append(f"{latent}: {_found(row) if hook else _not_found(row)}")
    if left := found.about.get("left_out"):
        lines.append(f"not probed, since they have no position axis: {', '.join(left)}")
    if found.table["untrained"].isna().all():
        lines.append(
            "random weights: not compared with (only our own models make a fresh one; "
            "probes.survey.probe_table takes yours as untrained=)"
        )
    return lines


def _found(row: pd.Series[Any]) -> str:
    absent = np.isnan(row["untrained"])
    untrained = "" if absent else f", random weights {row['untrained']:.2f}"
    return (
        f"first decodable at {row['hook']} (score {row['score']:.2f}, q {row['q']:.2g}; control "
        f"task {row['control']:.2f}, raw input {row['input']:.2f}{untrained}){_no_more(row)}"
    )


def _not_found(row: pd.Series[Any]) -> str:
    if row["kind"] == "constant":
        return "nothing to decode, it has one value at all sampled positions"
    best = f"best score {row['score']:.2f}, at {row['hook']}"
    if row["score"] < _FLOOR:
        return f"nowhere clearly decodable ({best}, below {_FLOOR}){_no_more(row)}"
    same = row["null_std"] < 1e-9 and abs(row["score"] - row["null_mean"]) < 1e-9
    why = "it is the same in every row, so its position tells it" if same else "rows are too few"
    null = f"{row['null_mean']:.2f} with rows exchanged, q {row['q']:.2g}"
    return f"nowhere more decodable than by chance ({best}; {null}): {why}{_no_more(row)}"


def _no_more(row: pd.Series[Any]) -> str:
    """The baselines that read something, too, and that the score is not clearly above."""
    scores = {name: row["score"] - row[over] for over, name in _BASELINES.items()}
    names = [f"{name} ({score:.2f})" for name, score in scores.items()
             if max(_CLEAR, row["score"] - _CLEAR) <= score]  # fmt: skip
    return f"; not above {', '.join(names)}" if names else ""


def write_probing(found: Probing, out: Path, *, overwrite: bool) -> None:
    """``probes.csv``, ``probes.json`` and the layer × latent map, complete or not at all."""
    with output_folder(out, overwrite=overwrite, marker=MARKER) as folder:
        found.table.to_csv(folder / "probes.csv", index=False)
        rows = json.loads(found.table.to_json(orient="records", double_precision=15))
        first = json.loads(found.first.to_json(orient="records"))
        text = json.dumps({**found.about, "probes": rows, "first": first}, indent=1)
        (folder / "probes.json").write_text(text + "\n", encoding="utf-8")
        save(latent_maps(found.table), folder / "layers")


def latent_maps(table: pd.DataFrame) -> Figure:
    """Latent × hook from a table of :func:`probes.survey.probe_table`: score and selectivity; cells
    of a latent with one value, where there is nothing to measure, are blank."""
    measured = table["kind"] != "constant"
    maps = [layer_map(table.assign(**{kind: table[kind].where(measured)}), kind) for kind in _KINDS]
    panels = [
        Panel(kind, wide.to_numpy(), list(wide.index))
        for kind, wide in zip(_KINDS, maps, strict=True)
    ]
    columns = [short_name(hook) for hook in maps[0].columns]
    figure = share_maps(panels, columns, label="0 chance, 1 perfect; – not measured", across="hook")
    for axes in figure.axes[: len(panels)]:
        axes.tick_params(axis="x", rotation=45)
    return figure
