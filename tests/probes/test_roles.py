"""Roles on models whose mechanism is known, on decoys, and on random models."""

from dataclasses import dataclass, replace

import pandas as pd
import pytest
import torch

import prooflens as pl
from interp.errors import ArgumentError
from interp.models.transformer import SequenceTransformer
from interp.proofs.memory import construct_fixed_memory
from interp.tasks.base import Memory
from interp.tasks.memory import FixedMemory
from probes.agreement import agreement
from probes.roles import find_roles
from probes.roles.reader import check_named_latents

TASK = FixedMemory((1, 2), "multiplexer", length=16)
PROOF = construct_fixed_memory(TASK)

pytestmark = pytest.mark.usefixtures("few_fresh_models")

SEED = 5
BATCH = TASK.sample(256, seed=SEED)


def roles_of(model: SequenceTransformer) -> pd.DataFrame:
    return find_roles(model, BATCH, memories=TASK.memories(), answers=TASK.answers(), seed=SEED)


def role_decisions(roles: pd.DataFrame) -> set[tuple[str, int, str, str]]:
    columns = roles[["component", "head", "target", "status"]]
    return set(columns.itertuples(index=False, name=None))


def test_every_part_of_the_construction_is_confirmed() -> None:
    roles = roles_of(PROOF.model)
    expected = {
        (part.component, -1 if part.head is None else part.head, part.target, "confirmed")
        for part in PROOF.mechanism.parts
    }
    assert role_decisions(roles) == expected
    statements = agreement(PROOF.mechanism, roles)
    assert statements["holds"].all()
    assert len(statements) == 4


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
    spec = replace(PROOF.model.spec, n_heads=12)
    padded = SequenceTransformer(spec)
    for name, tensor in padded.state_dict().items():
        tensor.zero_()
        own = PROOF.model.state_dict()[name]
        tensor[tuple(slice(size) for size in own.shape)] = own
    padded.blocks[0].attn.terms["lag"].p.data[5:] = 1
    roles = roles_of(padded)
    assert len(roles) == 6
    assert set(roles["status"]) == {"confirmed"}


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


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (
            {"memories": [Memory("x[t-9]", 9)]},
            r"memories must name latents .*\(x\[t\], .*'x\[t-9\]'",
        ),
        ({"memories": [Memory("x[t-1]", "lag")]}, "location of memories must name .*got .'lag'"),
        ({"answers": {"g": ()}}, r"answers must name latents of the rows \(.*f.*\), got \['g'\]"),
        ({"answers": {"f": ("x[t]", "z")}}, r"answers must name .*got \['z'\]: name one of these"),
    ],
)
def test_what_is_no_latent_of_the_rows_is_refused(named, words) -> None:
    with pytest.raises(ArgumentError, match=words):
        find_roles(PROOF.model, BATCH, **named)


@dataclass(frozen=True)
class Misnamed(FixedMemory):
    """A task that says it computes what is among no row's latents."""

    def answers(self) -> dict[str, tuple[str, ...]]:
        return {"answer": self.arguments}


def test_a_task_whose_answer_is_no_latent_is_refused_by_inspect() -> None:
    task = Misnamed((1, 2), "multiplexer", length=16)
    with pytest.raises(ArgumentError, match=r"answers must name latents .*got \['answer'\]"):
        pl.inspect(PROOF.model, task=task, count=16)


def test_contents_of_lags_need_not_be_latents_of_the_rows() -> None:
    """``x[t-3]`` is no latent of these rows; it follows from ``x[t]``."""
    answers = {"f": ("x[t]", "x[t-3]")}
    check_named_latents(BATCH, [Memory("x[t-1]", 1)], answers)
    without = replace(BATCH, latents={n: v for n, v in BATCH.latents.items() if n != "x[t]"})
    with pytest.raises(ArgumentError, match=r"answers must .*got \['x\[t\]', 'x\[t-3\]'\]"):
        check_named_latents(without, [], answers)
