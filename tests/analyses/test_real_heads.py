"""The page of real language models is what is written from the kept tables."""

from pathlib import Path

import pandas as pd
import pytest

from analyses.pictures.real_heads import MODELS, keep, kept, page, picture_in_words
from prooflens.errors import ArgumentError

DOCS = Path(__file__).parents[2] / "docs"


def test_page_is_written_from_what_is_kept() -> None:
    assert (DOCS / "real-heads.md").read_text(encoding="utf-8") == page(kept())


def test_first_picture_says_what_is_kept() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert picture_in_words(kept()) in readme


@pytest.mark.parametrize("name", sorted(kept()))
def test_confirmed_heads_behave_so_and_are_needed(name: str) -> None:
    roles = pd.DataFrame(kept()[name]["roles"])
    heads = roles[(roles["component"] == "head") & (roles["status"] == "confirmed")]
    shares = pd.DataFrame(kept()[name]["shares"]).set_index(["layer", "head"])
    keys = {"induction": "after_same", "previous-token": "previous"}
    told = heads[heads["role"].isin(keys)]
    assert len(told)
    for one in told.itertuples():
        assert one.strength >= 0.3, one  # where it acts; over whole rows it may be less
        assert shares.loc[(one.layer, one.head), keys[one.role]] >= 0.2, one
        assert one.effect >= 0.05, one


def test_a_folder_without_an_inspection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="run prooflens inspect"):
        keep(tmp_path)
    (tmp_path / "inspection.json").write_text('{"model": "code-lm"}')
    with pytest.raises(ArgumentError, match="code-lm"):
        keep(tmp_path)


def test_kept_models_are_known() -> None:
    assert kept()
    assert set(kept()) <= set(MODELS)
