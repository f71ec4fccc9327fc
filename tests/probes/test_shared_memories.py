"""Memories that several heads hold, and counters: what is known of shipped models, of constructions
and of a shipped model with a spare head."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

from interp.models.transformer import SequenceTransformer
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.base import Memory, memories_of
from interp.tasks.counterfactual import role_variables
from interp.tasks.memory import AdaptiveMemory, FixedMemory
from probes.roles import TASK
from probes.roles.decision import Found, Test, decide
from probes.roles.detectors.counting import counting_roles
from probes.roles.detectors.memories import Kernels, memory_roles
from probes.roles.detectors.mixtures import mixture_roles
from probes.roles.effects import Effects
from probes.roles.examined import Examined
from probes.roles.gathering import evidence_of
from probes.roles.reader import Reader, lagged_contents
from trained.zoo import load

Detector = Callable[[Examined], Iterable[Found]]


def ask_detector(detector: Detector, model: Any, task: Any, rows: int = 64) -> pd.DataFrame:
    batch = task.sample(rows, seed=3)
    evidence = evidence_of(model, batch, TASK, latents=True, targets=False)
    effects, memories = Effects(evidence), memories_of(task)
    reader = Reader(evidence, effects, memories)
    sought = [variable for variable in role_variables(task) if variable.name == "last"]
    roles = decide(list(detector(Examined(evidence, effects, reader, memories, {}, sought))))
    return roles[roles["status"] == "confirmed"]


def test_a_group_of_heads_for_each_memory_is_no_mixture() -> None:
    proof = construct_fixed_memory(FixedMemory((1, 3), "multiplexer", length=14))
    assert not len(ask_detector(mixture_roles, proof.model, proof.task))


def with_spare_head(name: str, layer: int) -> SequenceTransformer:
    """A shipped model of width 32 with a second head, which fetches what the first one does and
    writes it to 32 more channels that nobody reads."""
    own = load(name).model
    spec = replace(own.spec, d_model=64, n_heads=tuple(2 * n for n in own.spec.heads))
    model = SequenceTransformer(spec)
    weights = model.state_dict()
    for key, value in weights.items():
        value.zero_()
        part = own.state_dict()[key]
        value[tuple(slice(size) for size in part.shape)] = part
    for key in ("W_Q", "b_Q", "W_V", "b_V", "terms.relative_keys.r"):
        value = weights[f"blocks.{layer}.attn.{key}"]
        value[1] = value[0]
    w_o = weights[f"blocks.{layer}.attn.W_O"]
    w_o[1, :, 32:] = w_o[0, :, :32]
    return model.eval()


def test_of_two_heads_that_hold_a_memory_the_one_that_the_output_takes_it_from_is_named() -> None:
    task, model = load("adaptive-memory").task, with_spare_head("adaptive-memory", 1)
    rows = task.sample(8, seed=0).inputs
    torch.testing.assert_close(model(rows), load("adaptive-memory").model(rows))
    found = ask_detector(memory_roles, model, task)
    assert found[["layer", "head", "target"]].to_numpy().tolist() == [[1, 0, "x[t-t_1]"]]
    assert "lost without L1H0" not in found["evidence"].item(), "it is read from L1H1 as well"


def test_spare_heads_do_not_hide_the_head_that_the_output_takes_a_memory_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where heads besides the group hold the memory too, and the summed kernel is theirs."""
    lost, concentration = Reader.drop_without, Kernels.concentration

    def nothing_lost(self: Reader, *args: Any, **options: Any) -> Test:
        return replace(lost(self, *args, **options), score=0.1)

    def low_concentration(self: Kernels, head: int | None = None) -> float:
        return 0.5 if head is None else concentration(self, head)

    monkeypatch.setattr(Reader, "drop_without", nothing_lost)
    monkeypatch.setattr(Kernels, "concentration", low_concentration)
    found = ask_detector(
        memory_roles, with_spare_head("adaptive-memory", 1), load("adaptive-memory").task
    )
    assert found[["layer", "head", "target"]].to_numpy().tolist() == [[1, 0, "x[t-t_1]"]]
    assert "share of the head's own kernel at lag t_1" in found["evidence"].item()


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


@pytest.mark.parametrize("seed", [0, 1])
def test_an_untrained_head_counts_nothing(seed: int) -> None:
    shipped = load("depth-L3-layers1")
    fresh = SequenceTransformer(shipped.model.spec, seed=seed)
    assert not len(ask_detector(counting_roles, fresh, shipped.task))
