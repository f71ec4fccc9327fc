"""Mixtures of memories and counters: what is known of shipped models and of constructions."""

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
import pytest
import torch

from interp.models.transformer import SequenceTransformer
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.base import Memory, memories_of
from interp.tasks.counterfactual import sought_of
from interp.tasks.memory import AdaptiveMemory, FixedMemory
from probes.roles import TASK
from probes.roles.decision import Found, decide
from probes.roles.detectors.counting import counting_roles
from probes.roles.detectors.mixtures import lagged_contents, mixture_roles
from probes.roles.effects import Effects
from probes.roles.examined import Examined
from probes.roles.find import evidence_of
from probes.roles.reader import Reader
from trained.zoo import load

Detector = Callable[[Examined], Iterable[Found]]


def asked(detector: Detector, model: Any, task: Any, rows: int = 64) -> pd.DataFrame:
    batch = task.sample(rows, seed=3)
    evidence = evidence_of(model, batch, TASK, latents=True, targets=False)
    effects, memories = Effects(evidence), memories_of(task)
    reader = Reader(evidence, effects, lagged_contents(batch, memories))
    sought = [variable for variable in sought_of(task) if variable.name == "last"]
    roles = decide(list(detector(Examined(evidence, effects, reader, memories, {}, sought))))
    return roles[roles["status"] == "confirmed"]


def test_heads_that_fetch_every_lag_for_an_ffn_are_a_mixture() -> None:
    shipped = load("adaptive-memory-gated")
    found = asked(mixture_roles, shipped.model, shipped.task)
    assert found[["layer", "head"]].to_numpy().tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    lags = [f"x[t-{lag}]" for lag in sorted(shipped.task.locations)]
    assert set(found["group"]) == {" + ".join(lags)}


def test_a_memory_a_head_is_no_mixture() -> None:
    shipped = load("fixed-memory-multiplexer")
    assert not len(asked(mixture_roles, shipped.model, shipped.task))


def test_a_group_of_heads_for_each_memory_is_no_mixture() -> None:
    proof = construct_fixed_memory(FixedMemory((1, 3), "multiplexer", length=14))
    assert not len(asked(mixture_roles, proof.model, proof.task))


def test_contents_of_a_named_location_are_those_of_all_its_lags() -> None:
    task = AdaptiveMemory((1, 4), length=9)
    batch = task.sample(5, seed=0)
    found = lagged_contents(batch, task.memories())
    assert set(found) == {"x[t-1]", "x[t-4]"}
    now = batch.latents["x[t]"]
    torch.testing.assert_close(found["x[t-4]"][:, 4:], now[:, :-4])
    assert not found["x[t-4]"][:, :4].any()
    later = [Memory("x[t-t_2]", "t_1", 2)]
    assert lagged_contents(batch, later) == {}


def test_an_uneven_counter_is_told_by_what_its_output_says() -> None:
    shipped = load("depth-L3-layers1")
    found = asked(counting_roles, shipped.model, shipped.task)
    assert found[["layer", "head", "target"]].to_numpy().tolist() == [[0, 0, "last"]]
    assert found["strength"].item() >= 0.9


@pytest.mark.parametrize("seed", [0, 1])
def test_an_untrained_head_counts_nothing(seed: int) -> None:
    shipped = load("depth-L3-layers1")
    fresh = SequenceTransformer(shipped.model.spec, seed=seed)
    assert not len(asked(counting_roles, fresh, shipped.task))
