"""Head tables of the first format, as a store sealed them, in the columns of the second."""

import shutil
from pathlib import Path

import h5py
import pandas as pd
import pytest

from interp.errors import StoreError
from interp.stats.head_table import COLUMNS, head_table, score_row
from interp.stats.nulls import Null
from interp.stats.table_format import IDENTITY, upgraded
from interp.store import ActivationStore, verify

GOLDEN = Path(__file__).parents[1] / "store" / "golden_tables"
SPLIT = ["circuit", "target", "site", "method", "null", "trial"]


@pytest.fixture
def store(tmp_path: Path) -> ActivationStore:
    return ActivationStore(shutil.copytree(GOLDEN, tmp_path / "store"))


def raw(name: str) -> pd.DataFrame:
    """A golden table as it was written, read with nothing but h5py."""
    with h5py.File(GOLDEN / f"measurements-{name}.h5") as file:
        found = {key: column[()] for key, column in file["columns"].items()}
    text = {key: [v.decode() for v in c] for key, c in found.items() if c.dtype == object}
    return pd.DataFrame(found | text)


def said(table: pd.DataFrame, metric: str, **where: str) -> set[tuple[str, ...]]:
    """What the split columns say of a metric's rows."""
    rows = table[table["metric"] == metric]
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return set(rows[SPLIT].itertuples(index=False, name=None))


def test_everything_that_circuit_and_target_said_has_its_own_column(store) -> None:
    table = store.measurement("scores")
    assert tuple(table.columns) == COLUMNS
    trials = ("repeated", "shuffled")
    assert said(table, "attention_mass") == {
        ("", keys, "", "", null, trial)
        for trial in trials
        for keys, null in (
            ("previous", "positions"),
            ("same", "positions"),
            ("same", "tokens"),
            ("after_same", "positions"),
            ("after_same", "tokens"),
        )
    }
    assert said(table, "copying") == {("", "", "", "", "tokens", trial) for trial in trials}
    assert said(table, "positional") == {("", "", "", "", "positions", trial) for trial in trials}
    assert said(table, "loss_increase") == {
        ("", "output", "", "mean", "signs", "repeated"),
        *(("", "output", "", how, "signs", "") for how in ("mean", "zero", "resample")),
    }
    assert said(table, "round_dependence") == {
        ("", "b", "", method, "signs", "") for method in ("patch", "placebo")
    }
    sites = ("hook_embed", "blocks.0.hook_resid_mid", "blocks.0.hook_resid_post")
    assert said(table, "decodability", target="f") == {
        ("", "f", site, "", "rows", "") for site in sites
    }
    assert said(table, "decodability_drop", target="f") == {("", "f", "", "mean", "swaps", "")}
    assert said(table, "kernel_share", target="x[t-1]") == {
        ("", "x[t-1]", "", "", "reinitialised", "")
    }
    assert said(table, "lag_mass", target="lag 0") == {("", "lag 0", "", "", "positions", "")}
    assert said(table, "direct_logit") == {("", "output", "", "", "targets", "")}


def test_circuits_of_weights_stay_circuits(store) -> None:
    table = store.measurement("weights")
    assert set(table["circuit"]) == {"QK", "OV"}
    assert said(table, "k_composition", target="L0H1") == {("QK", "L0H1", "", "", "rotations", "")}
    assert said(table, "trace_share", target="symbols", circuit="OV") == {
        ("OV", "symbols", "", "", "", "")
    }
    scores = table[table["site"] != ""]
    assert set(scores["site"]) == {"blocks.0.attn.hook_attn_scores"}
    assert set(scores["metric"]) == {"effective_rank", "spectral_share"}
    assert table["draws"].dtype == "int64"


@pytest.mark.parametrize("name", ["scores", "weights"])
def test_an_upgrade_changes_no_number(store, name: str) -> None:
    old, new = raw(name), store.measurement(name)
    numbers = ["layer", "head", "score", "null_mean", "null_std", "p", "q", "effect", "low"]
    pd.testing.assert_frame_equal(old[numbers], new[numbers])
    assert new["draws"].tolist() == old.get("draws", pd.Series([-1] * len(old))).tolist()
    assert not new[list(IDENTITY)].isna().any(axis=None)
    pd.testing.assert_frame_equal(upgraded(new), new)


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
    with pytest.raises(StoreError, match="head table of format 3, and formats up to 2 can be read"):
        store.measurement("new")


def test_a_role_has_todays_name_whenever_its_table_was_sealed() -> None:
    old = pd.DataFrame({"layer": [0, 1], "role": ["counter", "induction"], "strength": [1.0, 0.5]})
    assert upgraded(old)["role"].tolist() == ["uniform", "induction"]
    assert old["role"].tolist() == ["counter", "induction"]  # what was given stays
