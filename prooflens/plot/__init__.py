"""Figures: of tables and arrays (:mod:`interp.figures`), and straight from a model.

A figure on the last line of a notebook's cell is shown as a picture, even without pyplot. IPython
shows matplotlib's figures only once pyplot was imported, or after ``%matplotlib inline``. The
figures of this package are made without pyplot, so importing this module tells IPython how to show
them.
"""

import io
import sys
from typing import Any

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)


def show_figures() -> None:
    """Tell a running IPython how to show a figure; do nothing elsewhere, or if it knows already."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        formatter = shell.display_formatter.formatters["image/png"]
        formatter.for_type_by_name("matplotlib.figure", "Figure", _png)


def _png(figure: Any) -> bytes:
    from interp.figures.style import style

    drawn = io.BytesIO()
    with style():
        figure.savefig(drawn, format="png")
    return drawn.getvalue()


show_figures()
