"""Figures of probes, from their tables alone."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from interp.figures.maps import Panel, share_maps

_KINDS = ("score", "selectivity")
_UNMEASURED = ("constant", "rare")
_STACKS = ("blocks", "layers", "hidden")


def latent_maps(table: pd.DataFrame, *, narrow: bool = False) -> Figure:
    """Latent × hook from a table of :func:`probes.probe_table.probe_table`: score and selectivity;
    cells of a latent with one value, where there is nothing to measure, are blank. The maps stand
    side by side, or below one another."""
    measured = ~table["kind"].isin(_UNMEASURED)
    maps = [_map(table.assign(**{kind: table[kind].where(measured)}), kind) for kind in _KINDS]
    panels = [
        Panel(kind, wide.to_numpy(), list(wide.index))
        for kind, wide in zip(_KINDS, maps, strict=True)
    ]
    columns = [_short_name(hook) for hook in maps[0].columns]
    across = "hook" if measured.all() else "hook (–: nothing to measure)"
    label = "0 chance, 1 perfect"
    figure = share_maps(panels, columns, label=label, across=across, narrow=narrow)
    for axes in figure.axes[: len(panels)]:
        axes.tick_params(axis="x", rotation=45)
    return figure


def _map(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """Latents as rows, hooks as columns in the table's order."""
    wide = table.pivot(index="latent", columns="hook", values=value)
    return wide.loc[table["latent"].drop_duplicates(), table["hook"].drop_duplicates()]


def _short_name(hook: str) -> str:
    """A short name, such as ``L0 mid`` for ``blocks.0.hook_resid_mid``."""
    parts = hook.split(".")
    name = parts[-1].removeprefix("hook_").removeprefix("resid_")
    if len(parts) > 2 and parts[0] in _STACKS:
        return " ".join((f"L{parts[1]}", *parts[2:-1], name))
    return name
