"""A figure that a cell ends with is a picture."""

from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from prooflens.plot import show_figures

formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not installed")


def test_a_figure_is_shown_and_a_way_that_is_there_is_kept(monkeypatch) -> None:
    formatter = formatters.PNGFormatter()
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"image/png": formatter}))
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    show_figures()
    assert formatter(Figure(figsize=(1, 1)))[:8] == b"\x89PNG\r\n\x1a\n"
    formatter.for_type(Figure, lambda figure: b"\x89PNG own")
    show_figures()
    assert formatter(Figure()) == b"\x89PNG own"


def test_without_a_notebook_nothing_is_done(monkeypatch) -> None:
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    show_figures()
