"""The claim about models that others trained runs where they are, and says when they are not."""

from pathlib import Path

import pandas as pd
import pytest

from analyses.papers.base import Setting
from analyses.papers.decompile.third_party import run, verdict_of


def setting(folder: Path) -> Setting:
    return Setting("quick", (0,), {"models": ""}, folder)


def test_it_is_not_run_without_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROOFLENS_DECOMPILE", raising=False)
    absent = run(setting(tmp_path))
    assert absent.status == "not run"
    assert "PROOFLENS_DECOMPILE must name a folder" in absent.words
    monkeypatch.setenv("PROOFLENS_DECOMPILE", str(tmp_path))
    assert run(setting(tmp_path)).status == "not run"


def test_models_that_cannot_be_asked_count_as_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        folder = tmp_path / f"model{number}"
        folder.mkdir()
        (folder / "rows.json").write_text("{}")
    monkeypatch.setenv("PROOFLENS_DECOMPILE", str(tmp_path))
    verdict = run(setting(tmp_path))
    assert verdict.status == "not reproduced"
    assert (verdict.numbers["found"], verdict.numbers["models"]) == (0, 5)
    assert verdict.tables["models"]["answer"].str.startswith("refused").all()


@pytest.mark.parametrize(
    ("short", "status"),
    [
        ([True, True, True, True], "reproduced"),
        ([True, True, False, True], "partly"),
        ([False, True, True, False], "not reproduced"),
    ],
)
def test_the_rule_asks_for_every_seed(short: list[bool], status: str) -> None:
    table = pd.DataFrame(
        {
            "model": ["a", "a", "b", "b", "c"],
            "seed": [0, 1, 0, 1, 0],
            "answer": [*("found" if s else "not found" for s in short), "no attention needed"],
            "short": [*short, False],
            "gain": 0.5,
            "lines": 3,
            "seconds": 1.0,
        }
    )
    verdict = verdict_of(table, 3)
    assert verdict.status == status
    assert verdict.numbers["models"] == 2
    assert "1 need no attention" in verdict.words
