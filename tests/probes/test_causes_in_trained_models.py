"""Causes that tell trained heads apart: what a head writes straight to the output, an average that
carries all that heads do."""

from __future__ import annotations

import pytest

from interp.interventions.components import components
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import memories_of
from probes.roles.effects import Effects
from probes.roles.gathering import evidence_of
from probes.roles.profile import TASK
from probes.roles.reader import Reader
from trained.zoo import load


def test_what_a_head_writes_for_a_later_one_is_not_written_straight_to_the_output() -> None:
    shipped = load("induction-attention")
    batch = shipped.task.sample(32, seed=3)
    effects = Effects(evidence_of(shipped.model, batch, TASK, targets=False))
    assert effects.without_head((0, 0))[-1].score > 1
    assert effects.straight([(0, 0)]).score < 0.1
    last = effects.straight([(1, 0)]).score
    assert last == pytest.approx(effects.without_head((1, 0))[-1].score, abs=1e-4)


@pytest.mark.parametrize("trained", [True, False])
def test_heads_of_an_average_act_through_it_alone(trained: bool) -> None:
    shipped = load("sparse-memory-light")
    model = shipped.model if trained else SequenceTransformer(shipped.model.spec, seed=4).eval()
    rows = shipped.task.sample(64, seed=3)
    evidence = evidence_of(model, rows, TASK, latents=True, targets=False)
    reader = Reader(evidence, Effects(evidence))
    heads = [part for part in components(model) if part.kind == "head"]
    (memory,) = memories_of(shipped.task)
    assert (reader.effect_through_latent(heads, memory.name).score >= 0.98) == trained
