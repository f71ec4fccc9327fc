"""Figures: what is drawn is what was given, and files are whole, repeatable and readable."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from interp.figures.maps import circuit_crops, head_maps, null_histograms
from interp.figures.style import PALETTE, save, style

RNG = np.random.default_rng(0)


def test_crops_share_a_scale_symmetric_about_zero() -> None:
    crop = RNG.standard_normal((20, 20)) + 8 * np.eye(20)
    figure = circuit_crops([crop, -1e-6 * crop], ["0.1: +0.2", "0.2: −0.2"], title="QK")
    images = [axes.images[0] for axes in figure.axes if axes.images and axes.get_title()]
    assert len(images) == 2
    size = np.sqrt((crop**2)[~np.eye(20, dtype=bool)].mean())
    np.testing.assert_allclose(images[1].get_array(), -crop / size)
    assert images[0].get_clim() == images[1].get_clim()
    low, high = images[0].get_clim()
    assert low == -high
    assert high < 8  # set by what is off the diagonal


def test_a_crop_without_anything_is_drawn() -> None:
    figure = circuit_crops([np.zeros((3, 3)), np.eye(3)], ["none", "identity"])
    assert figure.axes[1].images[0].get_clim()[1] >= 1


def test_maps_name_the_strongest_heads_and_the_axes() -> None:
    values = np.zeros((3, 4))
    values[2, 1] = -0.5
    (axes, _) = head_maps([values], ["trace share"], titles=[""], strongest=1).axes
    assert [text.get_text() for text in axes.texts] == ["L2H1"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")
    assert axes.images[0].get_clim() == (-0.5, 0.5)


def test_missing_heads_and_constant_maps_are_drawn() -> None:
    values = np.full((2, 3), 1.0)
    values[0, 2] = np.nan
    head_maps([values, values * 0], ["rank", "zero"], titles=["a", "b"], strongest=2)


def test_histograms_shade_the_null() -> None:
    scores = RNG.standard_normal(30)
    figure = null_histograms([(scores, 0.0, 0.1), (scores, scores * 0, scores * 0 + 1)], "score",
                             titles=["a", "b"])  # fmt: skip
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]
    outline = figure.axes[0].patches[0].get_xy()  # from bin to bin on top, and back at 0
    assert outline[1:81:2, 1].sum() == 30


def test_saved_files_are_whole_and_repeatable(tmp_path: Path) -> None:
    def draw(name: str) -> list[Path]:
        return save(head_maps([np.arange(6.0).reshape(2, 3)], ["x"], titles=[""]), tmp_path / name)

    first, second = draw("a.png"), draw("new/b")
    assert [path.name for path in first] == ["a.png", "a.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert not list(tmp_path.rglob("*.draft"))


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save(Figure(), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_text() == "old"


def test_style_is_only_in_force_inside() -> None:
    import matplotlib as mpl

    before = mpl.rcParams["axes.spines.top"]
    with style():
        assert not mpl.rcParams["axes.spines.top"]
    assert mpl.rcParams["axes.spines.top"] == before
    assert len(set(PALETTE.values())) == len(PALETTE)


def test_maps_of_one_unit_share_a_scale_and_gaps_are_marked() -> None:
    values = np.array([[1.0, np.nan], [np.inf, 4.0]])
    figure = head_maps(
        [values, values.clip(max=2) * np.array([[1, 1], [0, 1]]), np.full((2, 2), np.nan)],
        ["rank", "rank", "share"],
        titles=["a", "b", "c"],
        strongest=4,
    )
    one, two, empty = (axes for axes in figure.axes if axes.get_xlabel() == "head")
    assert one.images[0].get_clim() == two.images[0].get_clim() == (0.0, 4.0)
    assert [text.get_text() for text in one.texts] == ["–", "∞", "L1H1", "L0H0"]
    assert [text.get_text() for text in empty.texts] == ["nothing measured"]


def test_histograms_count_what_they_leave_out() -> None:
    scores = np.array([0.1, 0.2, np.nan, np.inf])
    figure = null_histograms([(scores, 0.0, 0.1)], "score", titles=["a"])
    assert figure.axes[0].get_legend_handles_labels()[1][0] == "2 heads, 2 without a finite number"
    figure = null_histograms([(np.full(2, np.nan), 0.0, 0.1)], "score", titles=["a"])
    assert figure.axes[0].texts[0].get_text() == "nothing measured"
