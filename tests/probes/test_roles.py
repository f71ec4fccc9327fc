"""Roles on models whose mechanism is known, on decoys, and on random models."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch

from interp.errors import ArgumentError
from interp.models.transformer import SequenceTransformer
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.memory import FixedMemory
from probes import fresh_models
from probes.agreement import agreement
from probes.kernels import kernel_null
from probes.roles import find_roles
from probes.study import ROWS, Study, study

TASK = FixedMemory((1, 2), "multiplexer", length=16)
PROOF = construct_fixed_memory(TASK)

SEED = 5
BATCH = TASK.sample(ROWS, seed=SEED)


@pytest.fixture(scope="module", autouse=True)
def few_fresh_models() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh_models, "_DRAWS", 100)
        patch.setattr("probes.study.kernel_null", partial(kernel_null, draws=50))
        yield


EMBEDDED: list[int] = []
"""Rows that the proof's model has embedded; a run with something changed starts behind that."""


@pytest.fixture(scope="module")
def proof_study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    embed = PROOF.model.embed
    counted = embed.register_forward_pre_hook(
        lambda module, inputs: EMBEDDED.append(len(inputs[0]) * (module is embed))
    )
    yield study("proof", PROOF.model, TASK, tmp_path_factory.mktemp("proof") / "s", seed=SEED)
    counted.remove()


def test_a_study_runs_its_model_once_for_the_store_and_once_for_all_that_is_asked(
    proof_study: Study,
) -> None:
    rows = proof_study.store.rows  # and a few: what fires, how long a batch takes, fresh models
    assert 2 * rows <= sum(EMBEDDED) < 2.5 * rows


def roles_of(model: SequenceTransformer) -> pd.DataFrame:
    return find_roles(model, BATCH, memories=TASK.memories(), answers=TASK.answers(), seed=SEED)


def decided(roles: pd.DataFrame) -> set[tuple[str, int, str, str]]:
    columns = roles[["component", "head", "target", "status"]]
    return set(columns.itertuples(index=False, name=None))


def test_every_part_of_the_construction_is_confirmed(proof_study: Study) -> None:
    found = proof_study
    expected = {
        (part.component, -1 if part.head is None else part.head, part.target, "confirmed")
        for part in PROOF.mechanism.parts
    }
    assert decided(found.roles) == expected
    assert found.performance.accuracy == 1.0
    statements = agreement(PROOF.mechanism, found.roles)
    assert statements["holds"].all()
    assert len(statements) == 4
    sealed = found.store.measurement("roles")
    assert sealed["evidence"].tolist() == found.roles["evidence"].tolist()
    assert found.store.provenance("scores")["seed"] == SEED


def test_heads_with_the_right_pattern_and_no_effect_are_rejected() -> None:
    """The readout is cut off from the second memory: its heads still extract it, for nobody."""
    decoy = construct_fixed_memory(TASK).model
    decoy.blocks[0].mlp.W_in.data[2] = 0
    roles = roles_of(decoy)
    second = roles[roles["target"] == "x[t-2]"]
    assert set(second["status"]) == {"rejected"}
    assert len(second) == 3
    assert len(roles) == len(second) + (roles["target"] == "x[t-1]").sum()
    assert "readout" not in set(roles["role"])
    assert not agreement(PROOF.mechanism, roles)["holds"].iloc[1:].any()


def test_idle_heads_change_no_role() -> None:
    """Many more tests, hardly any of them true: q must still be small where it was."""
    spec = replace(PROOF.model.spec, n_heads=24)
    padded = SequenceTransformer(spec)
    for name, tensor in padded.state_dict().items():
        tensor.zero_()
        own = PROOF.model.state_dict()[name]
        tensor[tuple(slice(size) for size in own.shape)] = own
    padded.blocks[0].attn.terms["lag"].p.data[5:] = 1
    roles = roles_of(padded)
    assert len(roles) == 6
    assert set(roles["status"]) == {"confirmed"}


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    deeper = SequenceTransformer(replace(PROOF.model.spec, n_layers=2, causal=False))
    with pytest.raises(ArgumentError, match=r"must have one layer.*must be causal"):
        study("deeper", deeper, TASK, tmp_path / "store")


@pytest.mark.parametrize("seed", [1, 2])
def test_random_models_have_no_roles(seed: int) -> None:
    roles = roles_of(SequenceTransformer(PROOF.model.spec, seed=seed))
    assert roles.empty
    assert not agreement(PROOF.mechanism, roles)["holds"].any()


@torch.no_grad()
def test_roles_follow_a_permutation_of_heads() -> None:
    shuffled = construct_fixed_memory(TASK).model
    order = torch.tensor([3, 0, 4, 1, 2])
    attn = shuffled.blocks[0].attn
    for weight in (attn.W_V, attn.W_O, attn.b_V, attn.terms["lag"].p):
        weight.copy_(weight[order].clone())
    owners = ["x[t-1]"] * 2 + ["x[t-2]"] * 3
    roles = roles_of(shuffled)
    heads = roles[roles["component"] == "head"].sort_values("head")
    assert heads["target"].tolist() == [owners[i] for i in order]
