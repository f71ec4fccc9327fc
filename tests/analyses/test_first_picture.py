"""The README's pictures show what the commands that make them give today."""

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from analyses.pictures.first_picture import attention_by_lag, picture_in_words
from analyses.pictures.forming import forming_in_words, induction_by_checkpoint

ROOT = Path(__file__).parents[2]


def picture(name: str, keys: list[str]) -> pd.DataFrame:
    with Image.open(ROOT / "docs" / "images" / name) as image:
        return pd.read_csv(io.StringIO(image.text["Description"]), index_col=keys)


def words_under(name: str) -> str:
    text = (ROOT / "README.md").read_text()
    (words,) = re.findall(rf"!\[([^\]]*)\]\(docs/images/{name}\)", text)
    return words


@pytest.fixture(scope="module")
def shares() -> dict[str, pd.DataFrame]:
    return attention_by_lag()


def test_the_picture_shows_todays_numbers(shares) -> None:
    kept = picture("attention-by-lag.png", ["model", "name"])
    today = pd.concat(shares, names=["model"])
    assert list(kept.index) == list(today.index)
    np.testing.assert_allclose(kept.to_numpy(), today.to_numpy(), atol=0.005)


def test_the_readmes_words_are_made_from_the_numbers(shares) -> None:
    told = picture_in_words(shares)
    assert words_under("attention-by-lag.png") == (
        f"Share of each head's attention at each lag. {told}"
    )


def test_the_picture_of_forming_heads_shows_todays_numbers() -> None:
    shares = induction_by_checkpoint()
    kept = picture("induction-forms.png", ["model", "name"])
    today = pd.concat(shares, names=["model", "name"])
    assert list(kept.index) == list(today.index)
    np.testing.assert_allclose(kept.to_numpy(), today.to_numpy(), atol=0.005)
    assert words_under("induction-forms.png") == (
        "Share of each head's attention on the token after an earlier equal one. "
        f"{forming_in_words(shares)}"
    )
