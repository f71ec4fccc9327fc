"""The style that all figures share.

Light background, no frame on top and right, colours that can be told apart under every common form
of colour blindness (Okabe and Ito's palette; blue–white–red for signed maps, viridis for amounts)
and type that is readable at the size of a page. Figures are made without pyplot, so nothing is
global:

    with style():
        figure = Figure(figsize=size(1, 2))
        ...
    save(figure, "out/heads.png")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.text import Text

from interp.output import output_file

PALETTE = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "red": "#D55E00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "yellow": "#F0E442",
    "black": "#222222",
}
INK, MUTED = "#222222", "#767676"
SIGNED, AMOUNT = "RdBu_r", "viridis"

_RULES: Any = {
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "axes.facecolor": "white",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=list(PALETTE.values())),
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "image.interpolation": "nearest",
    "svg.hashsalt": "prooflens",
}
_PLACED: Any = {**_RULES, "figure.constrained_layout.use": False, "figure.autolayout": False}
"""matplotlib settings for drawing a figure whose panels have already been placed: the common
settings, with automatic layout switched off."""


@contextmanager
def style() -> Iterator[None]:
    """Use the shared style for figures that are drawn inside the ``with``."""
    with mpl.rc_context(_RULES):
        yield


def size(rows: int | float = 1, columns: int | float = 1) -> tuple[float, float]:
    """Return the size in inches of a figure with a grid of panels, each 3.2 wide and 2.6 high."""
    return 3.2 * columns, 2.6 * rows


def save(
    figure: Figure,
    path: str | Path,
    *,
    formats: Sequence[str] = ("png", "svg"),
    dpi: int | None = None,
) -> list[Path]:
    """Save the figure next to ``path`` once per format; each file is replaced as a whole.

    Args:
        figure: The figure to save.
        path: The file's path, with or without a suffix; its folder is created.
        formats: The file name suffixes to save it under.
        dpi: Resolution in dots per inch; the style's by default.

    Returns:
        The files written. The same figure gives the same bytes.

    Raises:
        OutputError: if a file cannot be written.
    """
    stem = Path(path).with_suffix("")
    _make_printable(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        square = any(axes.get_aspect() != "auto" for axes in figure.axes)
        with style():
            for _ in range(2 if square else 1):  # places the panels, once for all formats
                engine.execute(figure)
    with mpl.rc_context(_PLACED):
        figure.set_layout_engine(None)  # else it is drawn once more for each format
    written = []
    for kind in formats:
        final = stem.with_suffix(f".{kind}")
        with output_file(final, overwrite=True) as draft, mpl.rc_context(_PLACED):
            dots = dpi or mpl.rcParams["savefig.dpi"]
            figure.savefig(draft, format=kind, metadata=_NO_DATE.get(kind), dpi=dots)
        written.append(final)
    return written


def _make_printable(figure: Figure) -> None:
    """Replace characters that fonts cannot draw: titles contain file names, which need not be
    UTF-8."""
    for text in figure.findobj(Text):
        shown = text.get_text()
        if not shown.isascii():
            text.set_text(shown.encode("utf-8", "backslashreplace").decode())


_NO_DATE = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}
