"""The benchmark that holds certificates against the truth finds nothing wrong, and could."""

import numpy as np
import pytest
import torch
from certified_models import shaken

from analyses.benchmarks import certify_truth
from analyses.benchmarks.certify import wrong_rows
from analyses.benchmarks.certify_truth import judge_model
from interp.models.spec import TransformerSpec
from interp.tasks.memory import FixedMemory
from probes.certify.maximum import caps_of
from probes.certify.run import certify
from trained import zoo


@pytest.mark.parametrize("index", [0, 9, 14, 19, 20, 27, 29, 30, 200, 203, 226, 257])
def test_no_certificate_lies_beyond_the_truth(index: int) -> None:
    row = judge_model(index)
    assert row["proofs"] >= 2
    assert not row["violations"]
    assert not row["unconfirmed"]
    assert not row["forged"]


def test_a_model_that_is_worse_than_proved_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth is that of another model: bounds are too small for it."""
    task = FixedMemory((1, 2), "table", length=4)
    spec = TransformerSpec(
        1, 1, 4, 6, 1, n_heads=2, d_head=3, input="real", lag_bias="table", score="none", ffn=(6,)
    )
    small, large = shaken(spec, 0, 1e-3), shaken(spec, 0, 1e4)
    monkeypatch.setattr(certify_truth, "model_of", lambda _: ("signs", small, task))
    truth = certify_truth._truth
    monkeypatch.setattr(certify_truth, "_truth", lambda _, *rest: truth(large, *rest))
    row = judge_model(0)
    assert row["violations"]


def test_no_covered_row_of_the_shipped_maximum_is_wrong() -> None:
    shipped = zoo.load("max-of-4")
    (cubic,) = certify(shipped.model, shipped.task, strategies=["cubic"]).proofs
    for dtype in (torch.float32, torch.float64):
        assert wrong_rows(shipped.model, caps_of(cubic), seed=0, rows=24, dtype=dtype) == 0
    wider = np.where(caps_of(cubic) >= 0, 60, -1)  # rows that are not covered: some are wrong
    assert wrong_rows(shipped.model, wider, seed=0, rows=24) > 0
