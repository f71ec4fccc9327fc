"""The rounds of a nested memory, layer by layer: what is readable where, and where heads look.

A panel a model, side by side. Above, how well each latent can be read linearly at each place of the
residual stream: with one round a layer the map is a staircase. Below, what each layer's heads put
together from each lag, counted from the location of the round: a bar at 0 says that the layer
fetches that memory. A staircase in a trained model shows an order of rounds, not their mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from interp.figures.maps import Panel, draw_maps
from interp.figures.style import SIGNED, style

__all__ = ["RoundsPanel", "rounds_by_layer"]


@dataclass(frozen=True)
class RoundsPanel:
    """One column of the figure: what was measured on one model.

    Attributes:
        title: The title above the figure.
        places: Names of the places in the residual stream, in order.
        latents: Names of the latents, in the order of the rounds.
        decodable: Squared correlation of held-out predictions, ``[place, latent]``.
        memories: The names of the memories.
        layers: The names of the layers that have attention.
        offsets: Lags relative to the memory's location, ``[offset]``.
        attention: ``[memory, layer, offset]``, each row with absolute values that sum to at most 1.
    """

    title: str
    places: Sequence[str]
    latents: Sequence[str]
    decodable: Float[np.ndarray, "place latent"]
    memories: Sequence[str]
    layers: Sequence[str]
    offsets: Sequence[int]
    attention: Float[np.ndarray, "memory layer offset"]


def rounds_by_layer(panels: Sequence[RoundsPanel]) -> Figure:
    """Models side by side: decodability by layer (above) and attention by lag (below)."""
    places = max(len(panel.places) for panel in panels)
    layers = max(len(panel.layers) for panel in panels)
    with style():
        width = sum(max(0.62 * len(panel.latents) + 1.6, 4.0) for panel in panels) + 1.0
        figure = Figure(figsize=(width, 0.34 * places + 0.42 * layers + 2.5))
        shares = [len(panel.latents) for panel in panels]
        columns = figure.subfigures(1, len(panels), width_ratios=shares, squeeze=False)[0]
        for column, panel in zip(columns, panels, strict=True):
            above, below = column.subfigures(2, 1, height_ratios=[places + 3.2, 1.3 * layers + 3.2])
            _decodability(above, panel)
            _attention(below, panel)
    return figure


def _decodability(figure: Any, panel: RoundsPanel) -> None:
    axes = figure.subplots()
    shown = Panel(panel.title, np.clip(panel.decodable, 0, 1), panel.places)
    image = draw_maps([axes], [shown], panel.latents, across="latent, in the order of the rounds")
    figure.colorbar(image, ax=axes, label="held-out r², linear probe", pad=0.02)


def _attention(figure: Any, panel: RoundsPanel) -> None:
    grid = figure.subplots(1, len(panel.memories), sharey=True, squeeze=False)[0]
    for axes, memory, shares in zip(grid, panel.memories, panel.attention, strict=True):
        image = axes.imshow(shares, cmap=SIGNED, vmin=-1, vmax=1, aspect="auto")
        axes.set_title(f"looking for {memory}", fontsize=9)
        axes.set_xlabel("lag − its location")
        axes.set_xticks(range(len(panel.offsets)), [f"{offset:+d}" for offset in panel.offsets])
        axes.set_yticks(range(len(panel.layers)), panel.layers)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=list(grid), label="summed kernel\n(share of weight)", pad=0.02)
