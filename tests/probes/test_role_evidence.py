"""What a role rests on, as data, and what a model must give for it."""

import copy
import json
from functools import partial

import pytest
import torch

from interp.errors import ArgumentError
from interp.models.transformer import SequenceTransformer
from interp.proofs.induction import construct_relation
from interp.run import Mean, Run, Site
from interp.tasks.base import Batch
from interp.tasks.memory import FixedMemory
from interp.tasks.relation import TokenRelation
from probes import fresh_models
from probes.roles import find_roles, profile
from probes.roles.evidence import Evidence
from probes.roles.views import View
from trained import zoo

pytestmark = pytest.mark.usefixtures("few_fresh_models")

TASK = TokenRelation("induction", "copy", symbols=12, length=17)
BATCH = TASK.sample(48, seed=2)


def proof() -> SequenceTransformer:
    return construct_relation(TASK, heads=2).model


def induction(model: SequenceTransformer, batch: Batch, **options: bool) -> dict:
    roles = find_roles(model, batch, **options)
    return roles[roles["role"] == "induction"].iloc[0].to_dict()


def test_a_head_that_predicts_against_what_followed_is_rejected() -> None:
    model = proof()
    assert induction(model, BATCH)["status"] == "confirmed"
    with torch.no_grad():
        model.blocks[1].attn.W_O.mul_(-1)
    against = induction(model, BATCH)
    assert against["status"] == "rejected"
    assert "the loss on these rows rises" in against["evidence"]
    assert "below the floor" in against["evidence"]
    unknown = induction(model, BATCH, targets=False)
    assert unknown["status"] == "confirmed", "without targets nobody can know"
    assert "loss" not in unknown["evidence"]


def test_the_rise_of_the_loss_is_that_of_a_hook() -> None:
    model = proof()
    tests = {t["name"]: t for t in json.loads(induction(model, BATCH)["tests"])}
    rise = next(test for name, test in tests.items() if "the loss" in name)
    tokens, pattern = BATCH.inputs, "blocks.1.attn.hook_pattern"
    after = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.bool)
    for row, line in enumerate(tokens.tolist()):
        for q in range(len(line)):
            for k in range(1, q + 1):
                after[row, q, k] = line[k - 1] == line[q]

    def without(value: torch.Tensor, hook: object) -> torch.Tensor:
        value = value.clone()
        kept = torch.where(after, 0.0, value[:, 1])
        value[:, 1] = kept / kept.sum(-1, keepdim=True)
        return value

    scored = BATCH.mask & after.any(-1)
    with torch.no_grad():
        outputs = model(tokens), model.run_with_hooks(tokens, fwd_hooks=[(pattern, without)])
    losses = [(out - BATCH.targets).square().mean(-1)[scored].mean() for out in outputs]
    expected = (losses[1] - losses[0]) / BATCH.targets[BATCH.mask].var()
    assert rise["score"] == pytest.approx(float(expected), rel=1e-4)
    assert rise["low"] - 1e-9 <= rise["score"] <= rise["high"] + 1e-9  # all rows alike: no width


def test_on_rows_that_a_model_cannot_do_no_cause_counts() -> None:
    model = proof()
    wrong = Batch(BATCH.inputs, BATCH.targets.roll(3, -1), BATCH.mask, BATCH.latents)
    found = find_roles(model, wrong)
    assert set(found["status"]) == {"candidate", "rejected"}
    told = found.loc[found["status"] == "candidate", "missing"]
    assert len(told)
    assert told.str.contains("the model cannot do these rows").all()
    unread = find_roles(model, wrong, targets=False)  # as if nobody knew what is asked
    assert "confirmed" in set(unread["status"])


def test_without_repeats_the_loss_tells_nothing() -> None:
    tokens = BATCH.inputs.clone()
    tokens[:] = torch.arange(1, 13).repeat(2)[: tokens.shape[1]]
    tokens[:, 13:] = 0
    mask = torch.zeros_like(BATCH.mask)
    mask[:, :12] = True
    found = find_roles(proof(), Batch(tokens, BATCH.targets, mask))
    told = found.loc[found["role"] == "induction", ["status", "evidence", "missing"]]
    assert set(told["status"]) <= {"candidate"}
    assert told["evidence"].str.contains("too few rows for the loss after a token").all()
    assert told["missing"].str.endswith("needs 8").all()


def test_each_test_is_data_with_interval() -> None:
    shipped = zoo.load("fixed-memory-multiplexer")
    batch = shipped.task.sample(64, seed=3)
    known = {"memories": shipped.task.memories(), "answers": shipped.task.answers()}
    roles = find_roles(shipped.model, batch, **known)
    assert {"memory-location", "readout"} <= set(roles["role"])
    for _, row in roles.iterrows():
        tests = json.loads(row["tests"])
        assert {t["kind"] for t in tests} <= {"behaviour", "cause", "specificity"}
        assert row["p"] == pytest.approx(max(t["p"] for t in tests))
        assert row["q"] == pytest.approx(max(t["q"] for t in tests))
        for test in tests:
            assert test["name"] in row["evidence"]
            if test["low"] is not None:
                assert test["low"] <= test["score"] + 1e-9
                assert test["score"] <= test["high"] + 1e-9
        measured = [t for t in tests if "r² of" in t["name"] and "stays" not in t["name"]]
        measured += [t for t in tests if "changes" in t["name"]]
        assert all(t["low"] is not None for t in measured)


def test_a_memory_that_the_identity_term_brings_is_found() -> None:
    shipped = zoo.load("fixed-memory-multiplexer")
    spec = type(shipped.model.spec)(**{**vars(shipped.model.spec), "identity_ov": True})
    model = SequenceTransformer(spec, seed=0)
    model.load_state_dict(shipped.model.state_dict(), strict=False)
    attn = model.blocks[0].attn
    with torch.no_grad():
        attn.W_O.zero_()
        attn.b.copy_(torch.tensor([0.0, 30.0]))
    batch = shipped.task.sample(64, seed=1)
    roles = find_roles(model, batch, memories=shipped.task.memories())
    found = roles[roles["role"] == "memory-location"]
    assert found[["head", "target"]].to_numpy().tolist() == [[1, "x[t-1]"]]


def test_few_rows_and_broken_models_are_refused() -> None:
    task = FixedMemory((1,), "parity", length=8)
    batch = task.sample(7, seed=1)
    model = zoo.load("fixed-memory-multiplexer").model
    with pytest.raises(ArgumentError, match=r"at least 8 rows .*got 7"):
        find_roles(model, batch, memories=task.memories())
    with pytest.raises(ArgumentError, match=r"at least 2 rows .*got 1"):
        find_roles(proof(), BATCH[:1])
    with pytest.raises(ArgumentError, match=r"at least 2 rows .*got 0"):
        find_roles(proof(), BATCH[:0])
    broken = copy.deepcopy(proof())
    with torch.no_grad():
        broken.blocks[1].attn.W_Q[1, 0, 0] = torch.nan
    with pytest.raises(ArgumentError, match="finite"):
        find_roles(broken, BATCH)


@pytest.mark.slow
def test_roles_do_not_depend_on_how_many_rows_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_models, "_DRAWS", 40)
    shipped = zoo.load("fixed-memory-multiplexer")
    batch = shipped.task.sample(24, seed=3)
    known = {"memories": shipped.task.memories(), "answers": shipped.task.answers()}
    whole = find_roles(shipped.model, batch, **known), find_roles(proof(), BATCH)
    few = partial(Run, tokens=64, room=0)
    monkeypatch.setattr("probes.roles.evidence.Run", lambda model, batch, **size: few(model, batch))
    parts = find_roles(shipped.model, batch, **known), find_roles(proof(), BATCH)
    numbers = ["strength", "effect"]
    for one, other in zip(whole, parts, strict=True):
        assert one["role"].tolist() == other["role"].tolist()
        assert one[numbers].to_numpy() == pytest.approx(
            other[numbers].to_numpy(), rel=1e-4, abs=1e-5, nan_ok=True
        )


def test_streams_of_all_kinds_of_rows_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is bounded in all; without room the same is found."""
    shipped = zoo.load("induction-attention")
    batch = shipped.task.sample(4, seed=1)
    one = batch.inputs.numel() * shipped.model.cfg.d_model * (shipped.model.cfg.n_layers + 1)
    monkeypatch.setattr("probes.roles.evidence.ROOM", one + 1)
    views = {kind: View(batch, batch.mask) for kind in ("given", "a", "b")}
    evidence = Evidence(shipped.model, views, profile.TASK)
    runs = [evidence.run(kind) for kind in views]
    assert [run._room for run in runs] == [one, 1, 0]
    rises = [run.rise(Mean(Site(1, "z", 0))) for run in runs]
    assert runs[0].passes < runs[2].passes
    torch.testing.assert_close(rises[0], rises[2])
