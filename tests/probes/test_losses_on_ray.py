"""Losses without components as Ray tasks: the numbers of a local run, also when a worker dies."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from interp.errors import ArgumentError, ProoflensError
from interp.interventions.components import components
from interp.models.pretrained import Pretrained, load_pretrained
from probes.inspection import losses
from probes.roles import LANGUAGE
from probes.roles.gathering import evidence_of
from probes.roles.trials import rows_of, token_trials
from trained.loading import folder_of

MODEL = "induction-attention"


@dataclass
class DyingLoader:
    """Loads the model; kills the first process in which it is called."""

    marker: Path

    def __call__(self) -> Any:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return load_pretrained(folder_of(MODEL)).model


def refuses() -> Any:
    raise ProoflensError("this model is not on this machine")


def table(model: Pretrained, **options: Any) -> pd.DataFrame:
    (trial, *_), _ = token_trials(model, rows=8, length=16, seed=0)
    trials = [trial]
    evidence = evidence_of(model.model, rows_of(trials), LANGUAGE)
    parts = list(components(model.model))
    return losses.loss_tables(evidence, trials, parts, None, seed=0, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_dies_is_replaced_and_the_numbers_are_the_same(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "_AT_ONCE", 1)  # several pieces a trial
    model, loader = load_pretrained(folder_of(MODEL)), DyingLoader(tmp_path / "died")
    here = table(model)
    far = table(model, backend="ray", loader=loader)
    assert loader.marker.exists()
    assert_frame_equal(here, far, check_exact=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_fails_says_at_which_piece_and_why(ray: Any) -> None:
    model = load_pretrained(folder_of(MODEL))
    reason = r"piece \d of the losses \(\w+\) failed on a worker: this model is not"
    with pytest.raises(ProoflensError, match=reason):
        table(model, backend="ray", loader=refuses)


def test_another_backend_is_refused() -> None:
    with pytest.raises(ArgumentError, match="backend must be local or ray, got 'slurm'"):
        losses.check_backend("slurm")
