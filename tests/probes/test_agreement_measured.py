"""Agreement measured on real models: constructions of every paper, hidden, and random ones."""

from collections.abc import Callable
from functools import partial

import pytest

from analyses.benchmarks.proof_cases import compiled_case
from interp.errors import ArgumentError
from interp.models.transformer import SequenceTransformer
from interp.proofs.coupling import construct_pod
from interp.proofs.induction import construct_relation
from interp.proofs.mechanism import Construction
from interp.proofs.memory import construct_fixed_memory
from interp.proofs.random_basis import random_basis
from interp.proofs.template import construct_template
from interp.tasks.coupling import PodCoupling
from interp.tasks.memory import FixedMemory
from interp.tasks.relation import TokenRelation
from interp.tasks.template.task import same_different
from probes import fresh_models
from probes.agreement import agree, overall, statements_of

CONSTRUCTIONS: dict[str, tuple[Callable[[], Construction], int]] = {
    "memory": (partial(construct_fixed_memory, FixedMemory((1,), "parity", length=12)), 48),
    "template": (partial(construct_template, same_different(train=(0, 8), test=(8, 16))), 256),
    "depth": (compiled_case("L_3", ((12, 12),)).construct, 48),
    "coupling": (partial(construct_pod, PodCoupling(2, features=2, length=10), 2), 64),
    "induction": (
        partial(construct_relation, TokenRelation("induction", "copy", symbols=9, length=13)), 64,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_a_hidden_construction_agrees_and_a_random_model_does_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_models, "_DRAWS", 200)
    build, rows = CONSTRUCTIONS[name]
    proof = build()
    hidden = random_basis(proof, seed=4)
    batches = [proof.task.sample(rows, seed=seed) for seed in (1, 2)]
    spec = proof.model.spec
    random = [
        statements_of(SequenceTransformer(spec, seed=seed), proof.mechanism, proof.task, batch)
        for seed, batch in zip((11, 12, 13, 14), batches * 2, strict=True)
    ]
    own = statements_of(proof.model, proof.mechanism, proof.task, batches[0])
    assert own["holds"].all()
    found = [statements_of(hidden.model, hidden.mechanism, proof.task, batch) for batch in batches]
    assert overall(found, random[:2], own).score >= 0.9
    fresh = overall(random[2:], random[:2], own)
    assert fresh.low <= 0 <= fresh.high


def test_models_without_a_spec_are_refused() -> None:
    proof = CONSTRUCTIONS["memory"][0]()
    with pytest.raises(ArgumentError, match="model must have a spec"):
        agree(object(), proof)
