"""Heads of fresh models as a null: against direct loops, and exact for fresh models."""

from pathlib import Path

import numpy as np
import pytest
import torch

from interp.models.export import export_gpt2
from interp.models.pretrained import load_pretrained
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.induction import construct_relation
from interp.tasks.relation import TokenRelation
from probes import fresh_models
from probes.roles import reinit_null
from probes.roles.effects import Effects
from probes.roles.gathering import evidence_of
from probes.roles.profile import TASK as PROFILE
from probes.roles.reinit_null import ReinitNull, beyond

TASK = TokenRelation("uniform", "classes", symbols=6, length=10)
BATCH = TASK.sample(32, seed=1)
SPEC = TransformerSpec(
    d_in=7, d_out=3, n_ctx=10, d_model=8, n_layers=2, n_heads=2, ffn=(6,), input="tokens",
    score="dot", positions="learned", dtype="float64",
)  # fmt: skip


def test_gains_of_fresh_models_against_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_models, "_DRAWS", 6)
    found = ReinitNull(SequenceTransformer(SPEC, seed=4), BATCH.inputs, BATCH.mask, seed=5)
    found.gain(1, 0)
    drawn = found._drawn["gain", 1]
    assert len(drawn) == 6
    slow = [
        slow_gain(SequenceTransformer(SPEC, seed=1005 + k), layer=1, head=head)
        for k in range(3)
        for head in range(2)
    ]
    np.testing.assert_allclose(drawn, slow, rtol=1e-9)


def test_gains_of_a_models_shuffled_copies_are_those_of_whole_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is not ours is run on from the head's layer; as a whole, it gives the same."""
    monkeypatch.setattr(fresh_models, "_DRAWS", 4)
    spec = TransformerSpec(
        d_in=7, d_out=7, n_ctx=10, d_model=8, n_layers=3, n_heads=2, d_head=4, ffn=(8,),
        norm="layernorm", positions="learned", activation="gelu",
    )  # fmt: skip
    model = load_pretrained(export_gpt2(SequenceTransformer(spec, seed=4), tmp_path / "m")).model
    quick, whole = (ReinitNull(model, BATCH.inputs, BATCH.mask, seed=5) for _ in range(2))
    assert quick._replayed
    whole._replayed = False
    for layer in range(3):
        first, second = quick.gain(layer, 1), whole.gain(layer, 1)
        assert first.score == pytest.approx(second.score, rel=1e-4)
        np.testing.assert_allclose(
            quick._drawn["gain", layer], whole._drawn["gain", layer], rtol=1e-4
        )


@torch.no_grad()
def slow_gain(model: SequenceTransformer, *, layer: int, head: int) -> float:
    hook = f"blocks.{layer}.attn.hook_result"
    output, cache = model.run_with_cache(BATCH.inputs, names_filter=[hook])
    written = cache[hook][:, :, head]
    gains = []
    for step in (1.0, 0.5, 0.2):
        moved = step * (written.mean(0) - written)

        def move(value: torch.Tensor, hook: object, moved: torch.Tensor = moved) -> torch.Tensor:
            value = value.clone()
            value[:, :, head] += moved
            return value

        after = model.run_with_hooks(BATCH.inputs, fwd_hooks=[(hook, move)])
        changed = (after - output).square().sum(-1)[BATCH.mask].sum()
        gains.append(float(changed / moved.square().sum(-1)[BATCH.mask].sum()))
    return max(gains)


@torch.no_grad()
def test_unevenness_against_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_models, "_DRAWS", 4)
    found = ReinitNull(SequenceTransformer(SPEC, seed=4), BATCH.inputs, BATCH.mask, seed=5)
    found.evenness(0, 1, 0.9)
    model = SequenceTransformer(SPEC, seed=1005)
    hook = "blocks.0.attn.hook_pattern"
    pattern = model.run_with_cache(BATCH.inputs, names_filter=[hook])[1][hook]
    away = [
        sum(abs(float(pattern[row, 1, t, s]) - 1 / (t + 1)) for s in range(t + 1)) / 2
        for row in range(len(pattern))
        for t in range(5, 10)
    ]
    assert found._drawn["unevenness", 0][1] == pytest.approx(np.mean(away))


@torch.no_grad()
def test_a_linear_reader_gains_one() -> None:
    """The unembedding reads the answer's slots as they are, whatever the step."""
    proof = construct_relation(TASK)
    run = reinit_null._run_of(proof.model)
    null = ReinitNull(proof.model, BATCH.inputs, BATCH.mask)
    seen = null._scored_pass(run, 0, ["gain"])
    gains = reinit_null._gains(run, proof.model, 0, [0], BATCH.inputs, BATCH.mask, seen)
    assert float(gains) == pytest.approx(1.0)
    (without,) = Effects(evidence_of(proof.model, BATCH, PROFILE)).without_head((0, 0))
    assert without.score > 0


def test_a_constructed_counter_is_beyond_a_thousand_fresh_heads() -> None:
    found = ReinitNull(construct_relation(TASK).model, BATCH.inputs, BATCH.mask).gain(0, 0)
    assert found.draws >= 1000
    assert found.p < 1e-3


def test_p_of_fresh_models_is_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_models, "_DRAWS", 100)
    drawn, p = None, []
    for seed in range(40):
        one = ReinitNull(SequenceTransformer(SPEC, seed=seed), BATCH.inputs, BATCH.mask, seed=300)
        one._drawn = drawn or one._drawn
        p.append([one.gain(0, 0).p, one.both(0, 0).p])
        drawn = one._drawn
    small = (np.array(p) < 0.1).mean(0)
    assert (small < 0.3).all()
    assert (np.array(p).mean(0) > 0.35).all()


class Stranger:
    """No model is one of these: hooks alone are to be relied on."""


def test_shuffled_copies_stand_in_where_there_is_no_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_models, "_DRAWS", 40)
    model = SequenceTransformer(SPEC, seed=4)
    found = ReinitNull(model, BATCH.inputs, BATCH.mask, seed=5)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found.spec = None
    monkeypatch.setattr(reinit_null, "SequenceTransformer", Stranger)
    p = [found.gain(0, head).p for head in range(2)]
    assert len(found._drawn["gain", 0]) == 40
    assert min(p) > 0.01
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_tails() -> None:
    draws = np.exp(np.random.default_rng(0).normal(size=4000))
    assert beyond(1.0, draws).p == pytest.approx(0.5, abs=0.03)
    assert 2.3e-4 < beyond(float(np.exp(3.5)), draws).p < 2.3e-3  # no less than the log-normal's
    assert beyond(float(np.exp(5)), draws).p == 1 / 40_000
    assert beyond(0.5, np.ones(50)).p == 1.0
    assert beyond(2.0, np.ones(50)).p == 1 / 51


def test_models_in_a_stack_are_those_drawn_one_by_one() -> None:
    stacks = list(fresh_models.stacked_models(SPEC, 5, at_once=2, seed=7))
    assert [len(stack["embed.W_E"]) for stack in stacks] == [2, 2, 1]
    for number in range(5):
        alone = SequenceTransformer(SPEC, seed=1007 + number)
        for name, weight in alone.named_parameters():
            assert torch.equal(stacks[number // 2][name][number % 2], weight), name
