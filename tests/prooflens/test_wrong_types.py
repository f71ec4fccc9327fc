"""Arguments of another type: what is obviously meant is taken, all else is refused in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import wrong_calls
from wrong_calls import CALLS, HOOK, IDS

import prooflens as pl


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each call was refused with, in a process without the tests' own checks of types."""
    place = tmp_path_factory.mktemp("calls")
    path = f"{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, wrong_calls.__file__], cwd=place, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path}, check=True,
    )  # fmt: skip
    assert not list(place.glob("s/*")), "nothing was written"
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_meant_is_refused_in_one_line(name: str, said: dict[str, str]) -> None:
    assert CALLS[name][1] in said[name]
    assert "\n" not in said[name]
    assert said[name].rpartition(": ")[2], "it says what to do"


@pytest.fixture(scope="module")
def model() -> Any:
    return pl.load("induction-mlp")


def test_what_is_obviously_meant_is_taken(model: Any) -> None:
    whole = pl.ablate(model, IDS)
    for rows in (IDS.tolist(), IDS.numpy(), IDS.int(), pl.next_tokens(IDS), {"input_ids": IDS}):
        pd.testing.assert_frame_equal(pl.ablate(model, rows), whole)
    head = whole[(whole["layer"] == 1) & (whole["component"] == "head")]["score"].item()
    for parts in ("L1H0", ["L1H0"], pl.interventions.Component("head", 1, 0)):
        assert pl.ablate(model, IDS, parts)["score"].item() == pytest.approx(head)
    others = IDS.roll(1, 0)
    patched = pl.patch(model, IDS, others)["score"]
    for given in (others.tolist(), pl.next_tokens(others), np.asarray(others)):
        assert pl.patch(model, IDS, given)["score"].tolist() == patched.tolist()
    paths = pl.patch_paths(model, IDS, "logits", "L1H0")
    same = pl.patch_paths(model, pl.next_tokens(IDS), pl.interventions.Receiver("logits"), ["L1H0"])
    assert paths["score"].tolist() == same["score"].tolist()
    run = pl.run.Run(model, IDS)
    site = pl.run.Site(1, "z", head=0)
    assert torch.equal(next(iter(run.at("L1H0").values())), run.at([site])[site])
    assert len(pl.probe_table(model, model.card.task.sample(40, seed=0), HOOK, "previous")) == 1
