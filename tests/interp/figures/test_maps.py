import numpy as np
import pytest

from interp.figures.maps import Panel, share_maps


def written(values: np.ndarray) -> list[str]:
    panel = Panel("one", values, [f"r{i}" for i in range(len(values))])
    columns = [f"c{i}" for i in range(values.shape[1])]
    figure = share_maps([panel], columns, label="share", across="site")
    return [text.get_text() for text in figure.axes[0].texts]


def test_cells_hold_the_numbers_themselves() -> None:
    assert written(np.array([[-1.0, 0.25], [1.3, -0.001]])) == ["-1.00", "0.25", "1.30", "0.00"]


def test_what_was_not_measured_is_blank_with_a_dash() -> None:
    values = np.array([[np.nan, 0.0]])
    assert written(values) == ["–", "0.00"]
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
