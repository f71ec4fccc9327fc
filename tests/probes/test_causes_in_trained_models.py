"""Causes that tell trained heads apart: what a head writes straight to the output, what a later
head reads of it, an average's weights exchanged, an average that carries all that heads do."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd
import pytest

from interp.interventions.components import components
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import answers_of, memories_of
from interp.tasks.counterfactual import sought_of
from probes.roles import find_roles
from probes.roles.effects import Effects
from probes.roles.gathering import evidence_of
from probes.roles.profile import TASK
from probes.roles.reader import Reader
from trained.zoo import load


@cache
def roles(name: str) -> pd.DataFrame:
    shipped = load(name)
    return find_roles(
        shipped.model,
        shipped.task.sample(64, seed=3),
        memories=memories_of(shipped.task),
        answers=answers_of(shipped.task),
        sought=sought_of(shipped.task),
        profile=TASK,
        targets=False,
    )


def status(table: pd.DataFrame, layer: int, head: int, role: str) -> str:
    mine = table[(table["layer"] == layer) & (table["head"] == head) & (table["role"] == role)]
    return "" if mine.empty else str(mine["status"].iloc[0])


def test_a_head_whose_write_an_induction_head_reads_is_a_previous_token_head() -> None:
    found = roles("induction-attention")
    assert status(found, 0, 0, "previous-token") == "confirmed"
    (row,) = found[found["role"] == "previous-token"].itertuples()
    assert row.strength < 0.6, "with less than the floor of its attention"
    assert "L1H0" in row.evidence
    assert status(found, 0, 0, "dense") == ""


def test_what_a_head_writes_for_a_later_one_is_not_written_straight_to_the_output() -> None:
    shipped = load("induction-attention")
    batch = shipped.task.sample(32, seed=3)
    effects = Effects(evidence_of(shipped.model, batch, TASK, targets=False))
    assert effects.without_head((0, 0))[-1].score > 1
    assert effects.straight([(0, 0)]).score < 0.1
    last = effects.straight([(1, 0)]).score
    assert last == pytest.approx(effects.without_head((1, 0))[-1].score, abs=1e-4)
    assert status(roles("induction-attention"), 1, 0, "copying") == "confirmed"


def test_copying_heads_that_do_the_same_are_taken_together() -> None:
    found = roles("template-copying-b")
    copies = found[(found["role"] == "copying") & (found["status"] == "confirmed")]
    assert set(copies["head"]) == {0, 1, 2, 3}
    assert copies["evidence"].str.contains("4 such heads").all()


def test_the_weights_of_an_average_are_held_by_an_uneven_head() -> None:
    found = roles("coupling-rank-2")
    assert status(found, 0, 0, "dense") == "confirmed"
    assert "moves answers as attention would" in found["evidence"].iloc[0]


def reader_of(model: Any, task: Any) -> Reader:
    evidence = evidence_of(model, task.sample(64, seed=3), TASK, latents=True, targets=False)
    return Reader(evidence, Effects(evidence))


@pytest.mark.parametrize("trained", [True, False])
def test_heads_of_an_average_act_through_it_alone(trained: bool) -> None:
    shipped = load("sparse-memory-light")
    model = shipped.model if trained else SequenceTransformer(shipped.model.spec, seed=4).eval()
    reader = reader_of(model, shipped.task)
    heads = [part for part in components(model) if part.kind == "head"]
    (memory,) = memories_of(shipped.task)
    assert (reader.carried(heads, memory.name).score >= 0.98) == trained
