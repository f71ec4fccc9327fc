"""One head's attention, query against key, as a mean over rows."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from interp.figures.style import AMOUNT, style

__all__ = ["attention_map"]


def attention_map(pattern: NDArray[np.floating], title: str) -> Figure:
    """Mean attention of each query position to each key position.

    Args:
        pattern: ``[query, key]``, shares (or, without a normaliser, a kernel).
        title: Above it.
    """
    top = max(float(np.abs(pattern).max()), 1e-12)
    with style():
        figure = Figure(figsize=(3.8, 3.2))
        axes = figure.subplots()
        shown = np.ma.masked_array(pattern, mask=np.triu(np.ones_like(pattern), 1) > pattern)
        image = axes.imshow(shown, cmap=AMOUNT, vmin=0, vmax=top)
        axes.set(title=title, xlabel="key (position)", ylabel="query (position)")
        figure.colorbar(image, ax=axes, label="mean attention (share)", pad=0.02)
    return figure
