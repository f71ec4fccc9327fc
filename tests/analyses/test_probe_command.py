import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from analyses.cli.main import main
from interp.store import extract
from trained import zoo

NAME = "fixed-memory-multiplexer"


def run(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["prooflens", "probe", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_probing_a_shipped_model_writes_table_and_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "probes"
    assert run(NAME, "--task", "own", "--rows", 60, "--out", out, monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert "first decodable at blocks.0.hook_resid_post" in said
    table = pd.read_csv(out / "probes.csv")
    assert set(table["hook"]) == {
        "hook_embed", "blocks.0.hook_resid_mid", "blocks.0.hook_resid_post",
    }  # fmt: skip
    data = json.loads((out / "probes.json").read_text())
    assert len(data["probes"]) == len(table)
    assert data["task"]["kind"] == "fixed_memory"
    assert (out / "layers.png").stat().st_size > 5000


def test_a_store_gets_the_table_sealed_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = zoo.load(NAME)
    store = extract(shipped.model, shipped.task, ["hook_embed"], tmp_path / "s", rows=60, batch=30)
    assert run(store.path, monkeypatch=monkeypatch) == 0
    assert store.measurement("probes")["hook"].unique().tolist() == ["hook_embed"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("fixed-memory-multiplexor",), "did you mean the shipped fixed-memory-multiplexer?"),
        ((NAME, "--task", "own", "--hooks", "nothing*"), "--hooks nothing* matches none of"),
        ((NAME, "--task", "own", "--latents", "g"), "latents must be among x[t]"),
    ],
)
def test_refusals_are_one_line(
    arguments: tuple[str, ...],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*arguments, "--rows", 20, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
