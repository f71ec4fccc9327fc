import numpy as np
import pytest

from interp.figures.maps import attention_grid, attention_maps, attention_on_tokens


def test_every_head_has_its_map_on_one_scale_and_the_future_is_empty() -> None:
    patterns = {f"L0H{head}": np.tril(np.full((4, 4), 0.1 * (head + 1))) for head in range(6)}
    figure = attention_maps(patterns, columns=4)
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.images]
    assert [axes.get_title() for axes in shown] == list(patterns)
    for axes, pattern in zip(shown, patterns.values(), strict=True):
        (image,) = axes.images
        assert image.get_clim() == pytest.approx((0, 0.6))
        drawn = image.get_array()
        assert np.array_equal(drawn.mask, np.triu(np.ones((4, 4), bool), 1))
        assert np.array_equal(drawn.filled(0), pattern)


def test_what_a_head_sees_of_the_future_is_drawn() -> None:
    figure = attention_maps({"L0H0": np.full((3, 3), 1.5)})
    assert not figure.axes[0].images[0].get_array().mask.any()


def test_a_grid_has_every_head_a_layer_a_row_and_shows_line_breaks() -> None:
    patterns = {f"L{a}H{b}": np.tril(np.ones((3, 3))) for a in range(2) for b in range(3)}
    figure = attention_grid(patterns, ["a", "\n", " b"])
    seen = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in seen] == list(patterns)
    assert figure.get_supxlabel() == "a ↵ ·b"
    rows = {round(axes.get_position().y0, 3) for axes in seen}
    assert len(rows) == 2


def test_tokens_of_spaces_and_line_breaks_can_be_seen() -> None:
    figure = attention_on_tokens({"L0H0": np.eye(4)}, ["\n", "  x", "", "a b"])
    names = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert names == ["↵", "··x", "∅", "a b"]
