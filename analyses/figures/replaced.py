"""Heads of language models as programs: how near each comes, and what replacing them costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from prooflens.plot import PALETTE, size, style

__all__ = ["heads_as_programs_figure"]

_COLOURS = ("blue", "orange", "green", "red")


def heads_as_programs_figure(tables: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Overlap with the program against overlap with the best trivial pattern, a dot a head; and the
    rise of perplexity against the share of heads replaced.

    Args:
        tables: Model → what ``benchmark heads_as_programs`` found.
    """
    with style():
        figure = Figure(figsize=size(1.3, len(tables) + 1.2))
        *each, last = figure.subplots(1, len(tables) + 1)
        for axes, colour, (name, found) in zip(each, _COLOURS, tables.items(), strict=False):
            heads = pd.DataFrame(found["heads"])
            for rests, words in ((True, "rests on the first token"), (False, "works")):
                some = heads[(heads["first"] > 0.5) == rests]
                x, y = some["trivial_overlap"], some["overlap"]
                face = PALETTE[colour] if rests else "none"
                axes.scatter(x, y, s=12, marker="s" if rests else "o", label=words, linewidths=0.8,
                             facecolors=face, edgecolors=PALETTE[colour])  # fmt: skip
            axes.axline((0, 0), slope=1, color="0.7", linewidth=0.8)
            axes.set(xlim=(0, 1), ylim=(0, 1), title=name)
            axes.set(xlabel="overlap with a trivial pattern", ylabel="overlap with the program")
            axes.legend(loc="lower right")
            curve = pd.DataFrame(found["curve"])
            rise = 100 * (curve["perplexity"] / curve["perplexity"][0] - 1)
            last.plot(100 * curve["share"], rise, marker="o", color=PALETTE[colour], label=name)
        last.axhline(10, color="0.7", linewidth=0.8)
        last.set(xlabel="heads replaced, %", ylabel="perplexity rises by, %")
        last.set_yscale("symlog", linthresh=10)
        last.set_ylim(bottom=0)
        last.legend(loc="upper left")
    return figure
