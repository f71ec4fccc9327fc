"""Figures are saved whatever the names in them are."""

from pathlib import Path

import matplotlib.pyplot as plt

from interp.figures.style import save


def test_titles_may_hold_names_that_are_not_utf8(tmp_path: Path) -> None:
    figure, axes = plt.subplots()
    axes.set_title("model \udcff\udcfe")
    axes.set_xlabel("Größe $x^2$")
    saved = save(figure, tmp_path / "a")
    plt.close(figure)
    assert axes.get_title() == r"model \udcff\udcfe"
    assert axes.get_xlabel() == "Größe $x^2$"
    assert [path.stat().st_size > 1000 for path in saved] == [True, True]
