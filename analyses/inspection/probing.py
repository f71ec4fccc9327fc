"""Everything probes say of one model or store: a table, a map of layers, where latents appear."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.errors import HookError
from interp.figures.maps import Panel, share_maps
from interp.figures.style import save
from interp.heads.replay import has_ffn
from interp.output import output_folder
from interp.store import ActivationStore
from probes.layerwise import residual_sites
from probes.rounds import first_decodable
from probes.survey import layer_map, probe_table

__all__ = ["MARKER", "Probing", "findings", "latent_maps", "probe_source", "write_probing"]

MARKER = ".prooflens-probes"
_KINDS = ("score", "selectivity")


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
    seed: int = 0,
    about: dict[str, Any] | None = None,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Probing:
    """Probe a model on a batch, or a store.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
        inputs: A :class:`~interp.tasks.base.Batch` with latents for a model, None for a store.
        hooks: Names or globs; the residual stream between sublayers by default.
        latents: Which; all by default.
        seed: Of controls, nulls and random weights.
        about: Goes into the JSON.
        watch: Wraps the iteration over hooks.

    Raises:
        HookError: if a glob matches nothing.
    """
    chosen = _hooks(source, hooks)
    table = probe_table(source, inputs, chosen, latents, seed=seed, watch=watch)
    return Probing(table, first_decodable(table), {**(about or {}), "seed": seed, "hooks": chosen})


def findings(found: Probing) -> list[str]:
    """One line a latent: where it first is decodable, and what that is worth."""
    lines = []
    for latent, hook, score in found.first.itertuples(index=False):
        if not hook:
            lines.append(f"{latent}: nowhere clearly decodable (best score {score:.2f})")
            continue
        rows = found.table[(found.table["latent"] == latent) & (found.table["hook"] == hook)]
        row = rows.iloc[0]
        untrained = "" if np.isnan(row["untrained"]) else f", random weights {row['untrained']:.2f}"
        lines.append(
            f"{latent}: first decodable at {hook} (score {score:.2f}, q {row['q']:.2g}; control "
            f"task {row['control']:.2f}, raw input {row['input']:.2f}{untrained})"
        )
    return lines


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
    """Latent × hook from a table of :func:`probes.survey.probe_table`: score and selectivity."""
    maps = [layer_map(table, kind) for kind in _KINDS]
    panels = [
        Panel(kind, wide.to_numpy(), list(wide.index))
        for kind, wide in zip(_KINDS, maps, strict=True)
    ]
    columns = [_short(hook) for hook in maps[0].columns]
    figure = share_maps(panels, columns, label="0 chance, 1 perfect", across="hook")
    for axes in figure.axes[: len(panels)]:
        axes.tick_params(axis="x", rotation=45)
    return figure


def _hooks(source: Any, wanted: list[str] | None) -> list[str]:
    if isinstance(source, ActivationStore):
        known = [*source.hooks, *source.aliases]
        usual = [hook for hook in source.hooks if source.labels(hook)[1] == "pos"]
    else:
        known = list(source.hook_dict)
        usual = list(residual_sites([has_ffn(source, i) for i in range(source.cfg.n_layers)]))
    if wanted is None and not usual:
        raise HookError(f"{source} holds nothing to probe: store the residual stream, hook_resid_*")
    if wanted is None:
        return usual
    chosen: list[str] = []
    for glob in wanted:
        matched = [name for name in known if fnmatch(name, glob)]
        if not matched:
            raise HookError(f"--hooks {glob} matches none of {len(known)} hooks: see --hooks '*'")
        chosen += [name for name in matched if name not in chosen]
    return chosen


def _short(hook: str) -> str:
    """``L0 mid`` for ``blocks.0.hook_resid_mid``."""
    parts = hook.split(".")
    name = parts[-1].removeprefix("hook_").removeprefix("resid_")
    return f"L{parts[1]} {name}" if parts[0] == "blocks" else name
