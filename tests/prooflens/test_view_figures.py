"""The figures of a page of heads, drawn again from what the page holds."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from synthetic_view import synthetic

from interp.errors import StoreError
from probes.roles.profile import LANGUAGE
from prooflens.pages import view_figures
from prooflens.pages.show import View
from prooflens.pages.view_figures import draw_page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    views = (synthetic(2, 3, 9, 8), synthetic(2, 3, 9, 8, name="other"))
    return View(views, LANGUAGE).save(tmp_path_factory.mktemp("pages") / "heads.html")


def test_every_figure_is_drawn_twice_alike(page: Path, tmp_path: Path) -> None:
    first, second = draw_page(page, tmp_path / "one"), draw_page(page, tmp_path / "two")
    names = {path.stem for path in first}
    drawn = ("points", "numbers-share", "numbers-nats", "lags", "attention")
    assert names == {f"{name}-{number}" for name in drawn for number in (0, 1)}
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_attention_is_that_of_the_head_that_the_page_opens_with(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    monkeypatch.setattr(
        view_figures,
        "attention_on_tokens",
        lambda patterns, tokens: shown.append((patterns, tokens)) or Figure(),
    )
    draw_page(page, tmp_path)
    (patterns, tokens), _ = shown
    viewed = synthetic(2, 3, 9, 8)
    own = viewed.seen[0].heads[0, 2].pattern
    assert set(patterns) == {"L0H2"}
    truth = own.low + own.step * own.codes[0].astype(float)
    np.testing.assert_allclose(patterns["L0H2"], np.tril(truth), atol=1e-6)
    assert tokens == list(viewed.shown[0].texts[0])


def test_numbers_that_are_missing_stay_missing(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(
        view_figures, "head_maps", lambda maps, *a, **b: seen.extend(maps) or Figure()
    )
    draw_page(page, tmp_path)
    assert np.isnan(seen[0][0, 0])
    assert np.isposinf(seen[1][0, 0])


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text("<p>words</p>")
    with pytest.raises(StoreError, match="no page of heads of this version"):
        draw_page(tmp_path / "other.html", tmp_path / "out")
