"""What a model keeps with some of its components, against hooks by hand and known extremes."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from losses import row_losses
from torch import Tensor

from analyses.benchmarks.calibration import calibration
from analyses.benchmarks.faithfulness import confirmed_parts, faithfulness, faithfulness_of
from analyses.benchmarks.low_rank import low_rank
from analyses.benchmarks.result import write_result
from interp.errors import ArgumentError
from interp.interventions.components import Component, components
from trained import zoo


def _mean(value: Tensor, hook: Any, by: Tensor) -> Tensor:
    return by.expand_as(value)


def test_kept_is_what_is_lost_of_all_that_can_be_lost() -> None:
    """With all it is 1, with none 0, and between it follows from the losses with hooks by hand."""
    shipped = zoo.load("induction-attention")
    batch = shipped.task.sample(24, seed=3)
    every = set(components(shipped.model))
    assert faithfulness_of("all", shipped.model, batch, every).kept == pytest.approx(1.0)
    assert faithfulness_of("none", shipped.model, batch, set()).kept == pytest.approx(0.0)

    _, cache = shipped.model.run_with_cache(batch.inputs)

    def loss(without: list[int]) -> float:
        hooks = []
        for layer in without:
            name = f"blocks.{layer}.attn.hook_z"
            hooks.append((name, partial(_mean, by=cache[name].mean(0, keepdim=True))))
        output = shipped.model.run_with_hooks(batch.inputs, fwd_hooks=hooks)
        return float(row_losses(output, batch).mean())

    found = faithfulness_of("last", shipped.model, batch, {Component("head", 1, 0)})
    whole, none = loss([]), loss([0, 1])
    assert found.kept == pytest.approx((none - loss([0])) / (none - whole), abs=1e-5)
    assert found.others == found.random == pytest.approx((none - loss([1])) / (none - whole))


@pytest.mark.slow
def test_confirmed_components_are_found_and_those_without_a_role_left_out() -> None:
    shipped = zoo.load("adaptive-memory")
    own = confirmed_parts(shipped.model, shipped.task, rows=64)
    assert own == {Component("head", 1, 0)}
    found = faithfulness_of("adaptive", shipped.model, shipped.task.sample(64, seed=2), own)
    assert found.kept > 0.8 > 0.5 > found.random
    assert found.others < 0.2


def test_a_benchmark_prints_json_that_strict_readers_take(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = pd.DataFrame({"score": [1.0, float("nan")]})
    write_result({"none": float("nan"), "rows": [np.float64("inf")], "t": table}, tmp_path / "out")
    text = capsys.readouterr().out
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (found["none"], found["rows"]) == (None, [None])
    assert found["t"] == [{"score": 1.0}, {"score": None}]
    assert (tmp_path / "out").read_text() == text


@pytest.mark.parametrize("asked", [
    (lambda: low_rank(0), "models must be at least 1, got 0"),
    (lambda: calibration(0), "models must be at least 1, got 0"),
    (lambda: faithfulness("nosuch"), "only must be in a shipped model's name, got 'nosuch'"),
])  # fmt: skip
def test_benchmarks_refuse_what_leaves_nothing_to_measure(asked: Any) -> None:
    call, words = asked
    with pytest.raises(ArgumentError, match=words):
        call()
