"""Grids: order, folders, interruption and continuation, processes and Ray."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from small_runs import SPEC, tiny

from interp.errors import ArgumentError, CheckpointError, OutputError
from interp.lock import LOCK
from interp.models.baselines import MLPSpec
from interp.models.spec import TransformerSpec
from interp.tasks.induction import RepeatedTokens
from interp.tasks.memory import FixedMemory
from trained import grid
from trained.ensemble import Ensemble
from trained.fit import Fit, fit
from trained.grid import metrics_table, train
from trained.run import TrainingRun

WIDE = TransformerSpec(**{**SPEC, "d_model": 6})
RUNS = [tiny("a"), tiny("wide", spec=WIDE), tiny("b", seed=1), tiny("c", seed=2)]


def assert_equal(one: list[Fit], two: list[Fit]) -> None:
    for a, b in zip(one, two, strict=True):
        state = b.model.state_dict()
        for name, tensor in a.model.state_dict().items():
            assert torch.equal(tensor, state[name]), name
        pd.testing.assert_frame_equal(a.history, b.history)
        assert a.metrics == pytest.approx(b.metrics, nan_ok=True, rel=1e-9)
        assert list(a.snapshots) == list(b.snapshots)


def test_results_come_in_the_order_of_the_runs() -> None:
    for run, found in zip(RUNS, train(RUNS, together=2), strict=True):
        alone = fit(run)
        assert found.model.spec == run.spec
        torch.testing.assert_close(found.model.W_E, alone.model.W_E, rtol=1e-4, atol=1e-5)


def test_a_folder_keeps_metrics_and_is_not_used_twice(tmp_path: Path) -> None:
    first = train(RUNS, folder=tmp_path / "g", together=2)
    table = pd.read_csv(tmp_path / "g" / "metrics.csv")
    columns = ["name", "spec.d_model", "seed", "steps", "metric", "value"]
    assert list(table.columns) == columns
    row = table[(table["name"] == "c") & (table["metric"] == "loss")].iloc[0]
    assert (row["seed"], row["steps"]) == (2, 12)
    assert row["value"] == pytest.approx(first[3].metrics["loss"])
    with pytest.raises(OutputError, match="holds a training: resume=True"):
        train(RUNS, folder=tmp_path / "g")
    assert_equal(first, train(RUNS, folder=tmp_path / "g", resume=True))
    with pytest.raises(CheckpointError, match="holds another grid"):
        train(RUNS[:2], folder=tmp_path / "g", resume=True)


def test_the_folder_is_held_until_what_came_out_is_put_away(tmp_path: Path) -> None:
    def finish(fits: list[Fit]) -> None:
        assert [found.model.spec for found in fits] == [RUNS[0].spec]
        with pytest.raises(OutputError, match=r"another process \(pid \d+ on .* is training"):
            train(RUNS[:1], folder=tmp_path / "g", resume=True)
        (tmp_path / "g").rename(tmp_path / "away")
        (tmp_path / "g").mkdir()
        (tmp_path / "g" / LOCK).write_text("pid 1 on elsewhere")

    train(RUNS[:1], folder=tmp_path / "g", finish=finish)
    assert (tmp_path / "g" / LOCK).read_text() == "pid 1 on elsewhere", "the lock of another"


def test_the_table_has_a_column_for_what_runs_differ_in() -> None:
    runs = [
        tiny(f"{rate}-{seed}", steps=2, learning_rate=rate, seed=seed)
        for rate in (1e-3, 3e-3)
        for seed in (0, 1)
    ]
    history = pd.DataFrame({"step": [1, 2], "loss": [1.0, 0.5]})
    fits = [Fit(None, {"loss": 0.25}, history) for _ in runs]
    table = metrics_table(runs, fits)
    columns = ["name", "training.learning_rate", "seed", "steps", "metric", "value"]
    assert list(table.columns) == columns
    assert table["training.learning_rate"].tolist() == [1e-3, 1e-3, 3e-3, 3e-3]
    assert table["seed"].tolist() == [0, 1, 0, 1]
    assert list(metrics_table(runs[:1], fits[:1]).columns) == ["name", *columns[2:]]


def test_an_interrupted_grid_goes_on_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    runs = [tiny(str(seed), seed=seed, steps=20, rows=5) for seed in range(3)]
    whole = train(runs, folder=tmp_path / "whole", together=2)
    step = Ensemble._step

    def press(self: Any) -> None:
        step(self)
        if self.state.step == 7:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Ensemble, "_step", press)
    with pytest.raises(KeyboardInterrupt):
        train(runs, folder=tmp_path / "cut", together=2)
    assert [f.name for f in sorted((tmp_path / "cut").iterdir())] == [
        "grid.json",
        "stack-000.safetensors",
    ]
    monkeypatch.setattr(Ensemble, "_step", step)
    assert_equal(whole, train(runs, folder=tmp_path / "cut", resume=True, together=1))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_killed_grid_goes_on_to_the_same_result(tmp_path: Path) -> None:
    runner = [sys.executable, str(Path(__file__).with_name("grid_runner.py")), str(tmp_path / "k")]
    (tmp_path / "k").mkdir()
    with subprocess.Popen(runner) as process:
        for _ in _waiting():
            if (tmp_path / "k" / "stack-000.safetensors").exists():
                break
        process.kill()
    killed_at = int((tmp_path / "k" / "steps.txt").read_text())
    assert 0 < killed_at < 60
    runs = [tiny(str(seed), seed=seed, steps=60, snapshots=30) for seed in range(2)]
    resumed = train(runs, folder=tmp_path / "k", resume=True)
    assert_equal(train(runs, together=2), resumed)


def _waiting() -> Iterator[float]:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        yield time.monotonic()
    raise TimeoutError


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    train(RUNS[:1], folder=tmp_path / "g")
    (tmp_path / "g" / "stack-000.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"stack-000\.safetensors cannot be read"):
        train(RUNS[:1], folder=tmp_path / "g", resume=True)


@pytest.mark.slow
def test_processes_and_ray_give_the_same() -> None:
    here = train(RUNS, together=2)
    assert_equal(here, train(RUNS, together=2, workers=2))
    pytest.importorskip("ray")
    assert_equal(here, train(RUNS, together=2, workers=1, backend="ray"))


def test_the_sizes_of_models_say_how_many_a_stack_holds() -> None:
    runs = [tiny(str(seed), seed=seed, steps=300) for seed in range(40)]
    assert [grid.stack_size(runs[:n]) for n in (1, 9, 40)] == [1, 9, 16]
    wide = replace(runs[0], spec=replace(runs[0].spec, ffn=(2**17,)))
    assert grid.stack_size([wide] * 40) == 1
    assert 1 < grid.stack_size([wide] * 40, device="cuda") <= 16
    tokens = runs[0].training.batch * len(runs[0].task.sample(1, seed=0).inputs[0])
    small = replace(runs[0].spec, ffn=(), input_ffn=(2**17 // tokens // 2,))
    assert grid.stack_size([replace(runs[0], spec=small)] * 40) == 2
    assert grid.cut(range(9), 4) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        ([RUNS[0], RUNS[0]], {}, r"names of their own, got \['a'\]"),
        ([], {}, "runs must name one"),
        (RUNS, {"backend": "dask", "workers": 0}, "backend must be local or.*workers must be at"),
    ],
)
def test_what_cannot_be_is_refused(runs: list[TrainingRun], options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        train(runs, **options)
    with pytest.raises(ArgumentError, match="without slashes"):
        tiny("a/b")


def test_a_spec_that_does_not_fit_its_task_is_refused_before_training(tmp_path: Path) -> None:
    task = RepeatedTokens(vocabulary=9, length=12, periods=(4, 5))
    options: dict[str, Any] = {"n_ctx": 12, "d_model": 4, "n_layers": 1, "n_heads": 1, "d_head": 2}
    small = tiny("small", task=task, spec=TransformerSpec(d_in=5, d_out=4, **options))
    real = tiny("real", task=task, spec=MLPSpec(d_in=9, d_out=9, n_ctx=13, input="real"))
    words = (
        r"small: d_in must be at least 9, the vocabulary for task \S+, got 5: raise it; "
        r"small: d_out must be at least 9, the answers.*"
        r"real: input must be tokens.*real: n_ctx must be 12"
    )
    with pytest.raises(ArgumentError, match=words):
        train([small, real], folder=tmp_path / "grid")
    assert not (tmp_path / "grid").exists()
    with pytest.raises(ArgumentError, match="d_in must be at least 9"):
        fit(small)
    longer = replace(tiny(), test=FixedMemory(lags=(1, 2), readout="majority", length=7))
    with pytest.raises(ArgumentError, match="n_ctx must be at least 7"):
        train([longer])
