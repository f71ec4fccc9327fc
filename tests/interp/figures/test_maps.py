import numpy as np
import pytest

from interp.figures.maps import Panel, RoundsPanel, rounds_by_layer, share_maps


def cell_texts(values: np.ndarray) -> list[str]:
    panel = Panel("one", values, [f"r{i}" for i in range(len(values))])
    columns = [f"c{i}" for i in range(values.shape[1])]
    figure = share_maps([panel], columns, label="share", across="site")
    return [text.get_text() for text in figure.axes[0].texts]


def test_cells_hold_the_numbers_themselves() -> None:
    assert cell_texts(np.array([[-1.0, 0.25], [1.3, -0.001]])) == ["-1.00", "0.25", "1.30", "0.00"]


def test_what_was_not_measured_is_blank_with_a_dash() -> None:
    values = np.array([[np.nan, 0.0]])
    assert cell_texts(values) == ["–", "0.00"]
    figure = share_maps([Panel("one", values, ["r"])], ["a", "b"], label="share", across="site")
    image = figure.axes[0].images[0]
    colours = image.cmap(image.norm(image.get_array()))
    assert colours[0, 0, 3] == 0  # nothing is painted
    assert colours[0, 1, 3] == 1


@pytest.mark.parametrize(
    ("values", "ends"), [([0.0, 1.0], "neither"), ([-0.1, 0.5], "min"), ([0.1, 1.1], "max"),
                         ([-0.1, 1.1], "both"), ([np.nan, 0.5], "neither")],
)  # fmt: skip
def test_the_colour_bar_says_whether_numbers_lie_beyond(values: list[float], ends: str) -> None:
    panel = Panel("one", np.array([values]), ["r"])
    figure = share_maps([panel], ["a", "b"], label="share", across="site")
    assert figure.axes[0].images[0].colorbar.extend == ends


def test_rounds_stand_side_by_side() -> None:
    places, latents = ["embedding", "layer 0, FFN"], ["t1", "x[t-t_1]", "f"]
    panel = RoundsPanel(
        "constructed", places, latents, np.array([[0.0, 0.0, 0.1], [1.0, 0.0, 0.2]]),
        ["x[t-t_1]"], ["layer 1"], [-1, 0, 1], np.array([[[0.0, 0.9, -0.1]]]),
    )  # fmt: skip
    figure = rounds_by_layer([panel, panel])
    titled = [axes for axes in figure.axes if axes.get_title() == "constructed"]
    assert len(titled) == 2
    written = [text.get_text() for text in titled[0].texts]
    assert written == ["0.00", "0.00", "0.10", "1.00", "0.00", "0.20"]
    looking = [axes for axes in figure.axes if axes.get_title().startswith("looking for")]
    assert [tick.get_text() for tick in looking[0].get_xticklabels()] == ["-1", "+0", "+1"]
