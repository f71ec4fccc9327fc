"""What models keep with their roles, and what benchmarks print."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyses.benchmarks.calibration import calibration
from analyses.benchmarks.faithfulness import faithfulness
from analyses.benchmarks.low_rank import low_rank
from analyses.benchmarks.result import write_result
from interp.errors import ArgumentError


@pytest.mark.slow
def test_a_model_is_explained_on_rows_of_two_lengths() -> None:
    found = faithfulness("fixed-memory-multiplexer-mixed")
    assert (found["solved"], found["faithful"], found["surrogates_faithful"]) == (1, 1, 1)
    assert {row["length"] for row in found["rows"]} == {24, 32}
    assert found["missing"] == {}
    assert found["others"] < 0.3
    assert found["whole"] == ["fixed-memory-multiplexer-mixed"]


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
