"""Head tables of other formats than today's are refused."""

import shutil
from pathlib import Path

import h5py
import pandas as pd
import pytest

from interp.errors import StoreError
from interp.stats.head_table import head_table, score_row
from interp.stats.nulls import Null
from interp.store import ActivationStore, verify

GOLDEN = Path(__file__).parents[1] / "store" / "golden_tables"


@pytest.fixture
def store(tmp_path: Path) -> ActivationStore:
    return ActivationStore(shutil.copytree(GOLDEN, tmp_path / "store"))


@pytest.mark.parametrize("name", ["scores", "weights"])
def test_a_table_of_the_first_format_is_refused(store, name: str) -> None:
    with pytest.raises(StoreError, match="head table of format 1, and format 2 can be read"):
        store.measurement(name)


def test_the_golden_store_is_whole() -> None:
    assert verify(GOLDEN) == []


def test_new_tables_tell_their_format_and_come_back_as_they_were(store) -> None:
    row = score_row("m", 1.0, Null(0.0, 1.0, 0.2, "signs", 9), component="head", layer=0,
                    trial="a@b")  # fmt: skip
    table = head_table([row])
    store.write_measurement("new", table, {})
    pd.testing.assert_frame_equal(store.measurement("new"), table)
    with h5py.File(store.path / "measurements-new.h5") as file:
        assert file.attrs["head_table"] == 2
    other = pd.DataFrame({"circuit": ["tokens"], "metric": ["mine"]})
    store.write_measurement("other", other, {})
    pd.testing.assert_frame_equal(store.measurement("other"), other)
    with h5py.File(store.path / "measurements-other.h5") as file:
        assert "head_table" not in file.attrs


def test_tables_of_a_newer_version_are_refused(store, monkeypatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("interp.store.measurements.FORMAT", 3)
        store.write_measurement("new", head_table([]), {})
    with pytest.raises(StoreError, match="head table of format 3, and format 2 can be read"):
        store.measurement("new")
