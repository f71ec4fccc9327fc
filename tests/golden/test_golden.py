"""The product answers as it did: roles, weights, programs, certificates, stores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import answers, files
from .cases import CASES, STORES, Case

_SHOWN = 20


def _parameters() -> list[Any]:
    return [
        pytest.param(case, id=name, marks=getattr(pytest.mark, case.marker) if case.marker else ())
        for name, case in CASES.items()
    ]


@pytest.mark.parametrize("case", _parameters())
def test_the_answer_is_what_it_was(case: Case) -> None:
    if case.needs and not answers.folder_named(case.needs):
        pytest.skip(f"{case.needs} names no folder")
    then = files.read(case.name)
    now = {"about": case.about, **case.answer()}
    same(then, now, case.floor)


def test_every_file_belongs_to_a_case() -> None:
    known = {files.file_of(name) for name in CASES}
    known |= {files.file_of(f"stores/{name}") for name in STORES}
    assert set(files.DATA.rglob("*.json*")) - set(files.DATA.glob("stores/*/*")) == known


LOSSES = (0.05, 0.1)
"""The floors of tests that say what is lost; those of exchanges, falls and r² are larger."""


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith(("roles/", "inspect/"))]
)
def test_what_is_missed_is_not_rejected(name: str) -> None:
    """A row's last cause is what is lost; where it passes, only other rows may speak against it."""
    for words, row in files.read(name)["roles"].items():
        tests = [dict(zip(answers._TEST, one, strict=True)) for one in row["tests"]]
        causes = [one for one in tests if one["kind"] == "cause"]
        moved = [one for one in tests if one["kind"] == "transfer"]
        if row["status"] == "rejected" and causes[-1]["floor"] in LOSSES:
            transferred = all(one["score"] >= one["floor"] for one in moved)
            assert not (_passes(causes[-1]) and transferred), words


def _passes(test: dict[str, Any]) -> bool:
    low = test["floor"] if test["low"] is None else test["low"]
    return bool(test["score"] >= test["floor"] and test["q"] < 0.01 and low >= test["floor"] / 2)


@pytest.mark.parametrize("name", STORES)
def test_a_store_written_then_opens_with_the_same_arrays(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(files.DATA / "stores" / name, tmp_path / name)
    assert answers.store_is_sound(folder)
    same(files.read(f"stores/{name}"), answers.store_facts(folder))


@pytest.mark.parametrize("name", STORES)
def test_a_store_written_anew_is_the_same(name: str, tmp_path: Path) -> None:
    """Its arrays to a millionth of their largest number; where they are the same to the bit, so
    are the bytes of its parts, by the same release of HDF5's library."""
    old = files.DATA / "stores" / name
    answers.write_store(tmp_path / name, **STORES[name])
    then, now = answers.store_arrays(old), answers.store_arrays(tmp_path / name)
    assert list(now) == list(then)
    for array, values in then.items():
        assert now[array].dtype == values.dtype, array
        largest = np.abs(values.astype(np.float64)).max()
        size = files.RELATIVE * largest
        np.testing.assert_allclose(now[array], values, rtol=0, atol=size, err_msg=array)
    facts = [answers.store_facts(folder) for folder in (old, tmp_path / name)]
    bytes_then, bytes_now = (answers.store_digests(folder) for folder in (old, tmp_path / name))
    if facts[0]["arrays"] == facts[1]["arrays"] and bytes_then["h5py"] == bytes_now["h5py"]:
        assert bytes_now == bytes_then
    for one in facts:
        del one["arrays"]
    same(*facts)


def same(then: Any, now: Any, floor: float = files.FLOOR) -> None:
    """Fail with the first differences, if there are any."""
    found = list(files.differences(then, json.loads(json.dumps(now)), floor=floor))
    more = f"\n… and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    assert not found, "\n".join(found[:_SHOWN]) + more
