"""Roles found in constructions, plain and hidden, and not in decoys."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.induction import Wiring, construct_relation
from interp.proofs.memory import construct_fixed_memory, construct_kernel_memory
from interp.proofs.random_basis import random_basis
from interp.run import Mean, Site, Swap
from interp.store import extract
from interp.tasks.base import Batch
from interp.tasks.memory import FixedMemory, RealMemory
from interp.tasks.relation import Relation, TokenRelation
from probes.roles import TASK, candidates, find_roles
from probes.roles.decision import Found, Test, decide
from probes.roles.detectors.attention import attention_roles
from probes.roles.detectors.circuits import identity_share
from probes.roles.effects import Effects
from probes.roles.examined import Examined
from probes.roles.gathering import evidence_of

pytestmark = pytest.mark.usefixtures("few_fresh_models")

Row = tuple[int, int, str]


def confirmed_heads(roles: pd.DataFrame) -> set[Row]:
    rows = roles[roles["status"] == "confirmed"][["layer", "head", "role"]]
    return set(rows.itertuples(index=False, name=None))


@pytest.mark.parametrize("relation", ["induction", "duplicate-token", "local", "dense"])
def test_hidden_heads_are_found(relation: Relation) -> None:
    task = TokenRelation(relation, "copy", symbols=10, length=17, seed=1)
    proof = random_basis(construct_relation(task, heads=2, seed=3), seed=4)
    roles = find_roles(proof.model, task.sample(64, seed=5))
    assert confirmed_heads(roles) == {(p.layer, p.head, p.role) for p in proof.mechanism.parts}
    assert roles["evidence"].str.contains("share of").all()


@pytest.mark.parametrize("wiring", ["unread", "silent", "constant"])
def test_the_right_pattern_without_effect_is_rejected(wiring: Wiring) -> None:
    task = TokenRelation("previous-token", "relabel", symbols=8, length=13)
    decoy = construct_relation(task, heads=2, wiring=wiring)
    roles = find_roles(decoy.model, task.sample(48, seed=5))
    assert not confirmed_heads(roles)
    assert "previous-token" in set(roles["role"])


def test_negative_copies_keep_their_sign() -> None:
    task = TokenRelation("sink", "negative", symbols=8, length=12)
    roles = find_roles(construct_relation(task).model, task.sample(48, seed=1))
    copying = roles[roles["role"] == "copying"]
    assert copying["status"].tolist() == ["confirmed"]
    assert copying["strength"].item() < -0.9
    assert "suppresses" in copying["evidence"].item()


def test_a_random_model_has_no_role() -> None:
    task = TokenRelation("uniform", "classes", symbols=8, length=14)
    spec = construct_relation(task, heads=2).model.spec
    for seed in (1, 2):
        roles = find_roles(SequenceTransformer(spec, seed=seed), task.sample(48, seed=seed))
        assert not confirmed_heads(roles)


@pytest.mark.parametrize("seed", [0, 1])
def test_uneven_heads_of_a_random_model_are_not_dense(seed: int) -> None:
    """With norms and sharp scores untrained heads attend unevenly, and matter."""
    spec = TransformerSpec(
        d_in=9, d_out=9, n_ctx=12, d_model=16, n_layers=1, n_heads=2, ffn=(8,), input="tokens",
        score="dot", positions="learned", norm="layernorm",
    )  # fmt: skip
    task = TokenRelation("dense", symbols=8, length=12)
    roles = find_roles(SequenceTransformer(spec, seed=seed), task.sample(48, seed=seed))
    assert "dense" in set(roles["role"]), "candidates there are"
    assert "dense" not in {role for _, _, role in confirmed_heads(roles)}


def test_memories_and_readout_in_a_hidden_construction() -> None:
    task = FixedMemory((1, 2), "multiplexer", length=16)
    proof = random_basis(construct_fixed_memory(task), seed=6)
    batch = task.sample(96, seed=2)
    roles = find_roles(proof.model, batch, memories=task.memories(), answers=task.answers())
    found = roles[roles["status"] == "confirmed"]
    heads = found[found["role"].isin(["memory-location", "memory-correction"])]
    expected = {(p.head, p.target) for p in proof.mechanism.parts if p.component == "head"}
    assert set(zip(heads["head"], heads["target"], strict=True)) == expected
    assert found[found["component"] == "ffn"]["role"].tolist() == ["readout"]


def test_a_store_alone_gives_candidates(tmp_path: Path) -> None:
    task = TokenRelation("local", symbols=8, length=24)
    model = construct_relation(task, heads=2, seed=1).model
    store = extract(model, task, ["blocks.0.attn.hook_pattern"], tmp_path / "s", rows=48)
    roles = candidates(store)
    assert "local" in set(roles["role"])
    assert set(roles["status"]) == {"candidate"}
    assert roles["evidence"].str.contains("no cause was sought").all()


def test_change_is_the_share_of_variance() -> None:
    task = TokenRelation("previous-token", "copy", symbols=8, length=12)
    proof = construct_relation(task)
    batch = task.sample(64, seed=1)
    evidence = evidence_of(proof.model, batch, TASK)
    effects, last = Effects(evidence), Site(proof.model.cfg.n_layers - 1, "resid_post")
    silent = Mean(last, level=True)  # the output is linear in the last stream
    assert effects.change_test((silent,), 0.1, "").score == pytest.approx(1.0, abs=0.02)
    kept = Swap(last)
    assert effects.change_test((kept,), 0.1, "").p == 1.0


def test_one_lag_within_the_window_is_not_local() -> None:
    spec = TransformerSpec(
        d_in=7, d_out=3, n_ctx=20, d_model=12, n_layers=1, score="none", lag_bias="bump"
    )
    model = SequenceTransformer(spec, seed=2)
    bump = model.blocks[0].attn.terms["bump"]
    tokens = torch.randint(7, (48, 20), generator=torch.Generator().manual_seed(1))
    batch = Batch(tokens, tokens % 3, torch.ones(48, 20, dtype=torch.bool))
    bump.p.data[:], bump.c.data[:] = 60.0, 180.0
    assert "local" not in {f.role for f in behaving(model, batch)}
    bump.p.data[:], bump.c.data[:] = 0.5, 0.75
    assert "local" in {f.role for f in behaving(model, batch)}


def behaving(model: SequenceTransformer, batch: Batch) -> list[Found]:
    evidence = evidence_of(model, batch, TASK)
    found = attention_roles(Examined(evidence, Effects(evidence)))
    return [f for f in found if all(t.score >= t.floor for t in f.behaviour)]


def test_an_answer_linear_in_its_arguments_is_read_out_where_the_output_reads_it() -> None:
    task = RealMemory((1,), "mean", inputs="signs", length=12)
    proof = random_basis(construct_kernel_memory(task), seed=2)
    batch = task.sample(64, seed=1)
    options = {"memories": task.memories(), "answers": task.answers()}
    roles = find_roles(proof.model, batch, **options)
    readout = roles[roles["role"] == "readout"]
    assert readout["status"].tolist() == ["confirmed"]
    assert "as the output reads it" in readout["evidence"].item()
    fresh = find_roles(SequenceTransformer(proof.model.spec, seed=5), batch, **options)
    assert "readout" not in {role for _, _, role in confirmed_heads(fresh)}


def test_identity_share_against_a_direct_fit() -> None:
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(rng.normal(size=(9, 9)))
    circuit = noise - 3 * torch.eye(9, dtype=torch.float64)
    share, p = identity_share(circuit)
    centring = torch.eye(9, dtype=torch.float64) - 1 / 9
    centred = centring @ circuit @ centring
    fit = (centred * centring).sum() / centring.square().sum()
    explained = 1 - (centred - fit * centring).square().sum() / centred.square().sum()
    assert share == pytest.approx(-float(explained))
    assert p == pytest.approx(1 / math.factorial(9))  # the least that nine tokens can say
    traces = [float(centred[:, rng.permutation(9)].trace()) for _ in range(4000)]
    spread = float(centred.square().sum() / 8) ** 0.5
    assert np.std(traces) == pytest.approx(spread, rel=0.05)
    assert identity_share(torch.ones(5, 5)) == (0.0, 1.0)


def test_a_rule_needs_size_level_and_a_narrow_interval() -> None:
    good = Test("share", 0.9, 0.6, 1e-6)
    cause = Test("change", 0.5, 0.1, 1e-6, 0.4)
    cases = [
        ((good,), (cause,), ["confirmed"]),
        ((good,), (Test("change", 0.05, 0.1, 1e-6, 0.04),), ["rejected"]),
        ((good,), (Test("change", 0.5, 0.1, 0.3, 0.4),), ["candidate"]),
        ((good,), (Test.too_few("rows", 8, 0.1),), ["candidate"]),
        ((good,), (Test("change", 0.5, 0.1, 1e-6, 0.01),), ["candidate"]),
        ((good,), (), ["candidate"]),
        ((good,), None, ["candidate"]),
        ((Test("share", 0.9, 0.6, 0.2),), (cause,), []),
        ((Test("share", 0.5, 0.6, 1e-6),), (cause,), []),
    ]
    for behaviour, causes, expected in cases:
        roles = decide([Found("head", 0, "local", 0.9, behaviour, causes, head=1)])
        assert roles["status"].tolist() == expected
    wide = decide([Found("head", 0, "local", 0.9, (good,), cases[4][1], head=1)])
    assert "an interval too wide (from 0.01) to count" in wide["evidence"].item()


def test_components_without_the_behaviour_count_in_the_family_of_the_cause() -> None:
    """One of twenty heads that were asked is put to the cause, and pays for all of them."""
    shown, other = Test("share", 0.9, 0.6, 1e-6, 0.8), Test("share", 0.1, 0.6, 0.7)
    cause = Test("change", 0.5, 0.1, 0.004, 0.4)
    one = Found("head", 0, "local", 0.9, (shown,), (cause,), head=0)
    rest = [Found("head", 0, "local", 0.1, (other,), (), head=h) for h in range(1, 20)]
    alone, among = decide([one]), decide([one, *rest])
    assert alone["status"].tolist() == ["confirmed"]
    assert among["status"].tolist() == ["candidate"]
    assert json.loads(among["tests"].item())[1]["q"] == pytest.approx(20 * 0.004)
    elsewhere = [replace(other, role="sink") for other in rest]
    assert decide([one, *elsewhere])["status"].tolist() == ["confirmed"]
