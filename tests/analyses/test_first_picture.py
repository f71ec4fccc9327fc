"""The README's first picture shows what the command that makes it gives today."""

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from analyses.demo.first_picture import attention_by_lag, picture_in_words

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "attention-by-lag.png"


@pytest.fixture(scope="module")
def shares() -> dict[str, pd.DataFrame]:
    return attention_by_lag()


def test_the_picture_shows_todays_numbers(shares) -> None:
    with Image.open(PICTURE) as image:
        kept = pd.read_csv(io.StringIO(image.text["Description"]), index_col=["model", "name"])
    today = pd.concat(shares, names=["model"])
    assert list(kept.index) == list(today.index)
    np.testing.assert_allclose(kept.to_numpy(), today.to_numpy(), atol=0.005)


def test_the_readmes_words_are_made_from_the_numbers(shares) -> None:
    text = (ROOT / "README.md").read_text()
    (words,) = re.findall(r"!\[([^\]]*)\]\(docs/images/attention-by-lag\.png\)", text)
    assert words == f"Share of each head's attention at each lag. {picture_in_words(shares)}"


def test_words_follow_the_numbers() -> None:
    table = pd.DataFrame([[0.2, 0.8], [0.0, 0.05]], index=["L0H0", "L0H1"])
    assert (
        picture_in_words({"made up": table})
        == "made up: L0H0 0.20 at lag 0, 0.80 at lag 1, L0H1 no lag"
    )
