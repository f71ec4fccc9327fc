"""Constructed language-model heads against direct loops, and what their decoys lack."""

from math import exp
from typing import get_args

import pytest
import torch

from analyses.benchmarks.proof_cases import DECOYS
from analyses.benchmarks.proof_cases import RELATIONS as CASES
from interp.errors import ArgumentError
from interp.proofs.induction import construct_relation
from interp.tasks.relation import Relation, TokenRelation, Value

RELATIONS = get_args(Relation)


def keys_of(task: TokenRelation, row: list[int], t: int) -> dict[int, float]:
    """Where query t should look, by a direct reading of the relation's name."""
    earlier = [j for j in range(t) if row[j] == row[t]]
    found = {
        "previous-token": [t - 1] if t else [],
        "duplicate-token": earlier or [0],
        "induction": [j + 1 for j in earlier],
        "sink": [0],
        "uniform": list(range(t + 1)),
        "local": list(range(max(0, t - task.window + 1), t + 1)),
        "mirror": [len(row) - t] if 0 < len(row) - t <= t else [],
        "halved": [t // 2],
        "smaller": [j for j in range(1, t + 1) if row[j] < row[t]],
        "greater": [j for j in range(1, t + 1) if row[j] > row[t]],
        "periodic": list(range(t, 0, -task.window)),
        "all-but-first": list(range(1, t + 1)),
    }
    if task.relation == "dense":
        scores = task.table()
        weights = [exp(float(scores[row[t], row[j]])) for j in range(t + 1)]
        return {j: w / sum(weights) for j, w in enumerate(weights)}
    keys = found[task.relation]
    return {j: 1 / len(keys) for j in keys}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("value", get_args(Value))
def test_targets_are_those_of_a_direct_loop(relation: Relation, value: Value) -> None:
    task = TokenRelation(relation, value, symbols=6, length=11, seed=4)
    batch, worth = task.sample(5, seed=2), task.values()
    for row, tokens in enumerate(batch.inputs.tolist()):
        for t in range(task.length):
            keys = keys_of(task, tokens, t)
            assert bool(batch.mask[row, t]) == bool(keys)
            expected = torch.zeros(task.outputs, dtype=torch.float64)
            for j, share in keys.items():
                expected += share * worth[tokens[j]]
            torch.testing.assert_close(batch.targets[row, t], expected, atol=1e-12, rtol=0)


def test_rows_are_what_the_relations_need() -> None:
    blocks = TokenRelation("induction", symbols=8, length=17).sample(20, seed=0).inputs[:, 1:]
    assert (blocks[:, :8] == blocks[:, 8:]).all()
    assert all(len(set(row)) == 8 for row in blocks[:, :8].tolist())
    assert (TokenRelation("uniform").sample(20, seed=0).inputs[:, 0] == 0).all()
    assert (TokenRelation("sink").sample(20, seed=0).inputs > 0).all()


def test_relabelled_symbols_are_all_others_and_copies_are_themselves() -> None:
    relabel = TokenRelation("uniform", "relabel", seed=3).values()
    assert relabel.diagonal().abs().sum() == 0
    assert (relabel[1:].argmax(1).sort().values == torch.arange(1, 13)).all()
    copied = TokenRelation("uniform", "copy").values()
    torch.testing.assert_close(copied, -TokenRelation("uniform", "negative").values())
    assert (copied.diagonal()[1:] == 10).all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@torch.no_grad()
def test_every_case_stays_within_its_certificate(case) -> None:  # type: ignore[no-untyped-def]
    built = case.construct()
    batch = built.task.sample(64, seed=7)
    error = float((built.model(batch.inputs) - batch.targets)[batch.mask].abs().max())
    scale = float(batch.targets.abs().max())
    assert error <= built.certificate.error < 0.25 * scale


@pytest.mark.parametrize("relation", ["previous-token", "duplicate-token", "induction", "local"])
@torch.no_grad()
def test_certificate_is_no_more_than_ten_times_the_worst_leak(relation: Relation) -> None:
    """A weak score, so that it is the leak that is seen."""
    task = TokenRelation(relation, "relabel", symbols=12, length=17)
    strength = 16.0 if relation == "duplicate-token" else 8.0
    built = construct_relation(task, strength=strength)
    batch = task.sample(500, seed=1)
    error = float((built.model(batch.inputs) - batch.targets)[batch.mask].abs().max())
    assert error <= built.certificate.error <= 10 * error


@torch.no_grad()
def test_heads_attend_as_the_mechanism_says() -> None:
    built = construct_relation(TokenRelation("induction", "copy"), heads=4, seed=5)
    batch = built.task.sample(8, seed=1)
    _, cache = built.model.run_with_cache(batch.inputs)
    previous, induction = (p for p in built.mechanism.parts if p.role != "copying")
    first = cache["pattern", 0][:, previous.head]
    assert float(first.diagonal(-1, 1, 2).min()) > 1 - 1e-9
    second = cache["pattern", 1][:, induction.head]
    wrong = (second - batch.latents["attention"])[batch.mask]
    assert float(wrong.abs().max()) < 1e-9


@pytest.mark.parametrize("case", DECOYS, ids=lambda case: case.name)
@torch.no_grad()
def test_decoys_attend_alike_and_answer_without_it(case) -> None:  # type: ignore[no-untyped-def]
    decoy = case.construct()
    batch = decoy.task.sample(16, seed=3)
    layer = decoy.model.cfg.n_layers - 1
    output, cache = decoy.model.run_with_cache(batch.inputs)
    patterns = cache["pattern", layer]
    wrong = (patterns - batch.latents["attention"][:, None]) * batch.mask[:, None, :, None]
    wrong = wrong[:, :, 1:].abs().amax((0, 2, 3))
    assert float(wrong.min()) < 1e-4
    without = decoy.model.run_with_hooks(
        batch.inputs,
        fwd_hooks=[(f"blocks.{layer}.attn.hook_pattern", lambda p, hook: p.roll(1, -1))],
    )
    torch.testing.assert_close(without[:, 1:], output[:, 1:], atol=1e-9, rtol=0)
    assert not decoy.mechanism.parts


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises((ArgumentError, TypeError), match="relation"):  # the hook answers first
        TokenRelation("next", "same")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"symbols must be at least 10: a block's"):
        TokenRelation("induction", symbols=8, length=20)
    with pytest.raises(ArgumentError, match="heads must be at least 1"):
        construct_relation(TokenRelation("sink"), heads=0)
