"""Template constructions: exact on every symbol, within their certificates, hidden or not."""

from dataclasses import replace

import pytest
import torch

from analyses.benchmarks.proof_cases import TEMPLATES as CASES
from interp.errors import ArgumentError
from interp.proofs.mechanism import Case, Construction
from interp.proofs.random_basis import random_basis
from interp.proofs.template import construct_template, one_layer_suffices
from interp.tasks.template import TemplateTask
from interp.tasks.template.task import (
    NAMED,
    aba_abb,
    copying,
    random_task,
    same_different,
)


def worst(construction: Construction, task: TemplateTask, rows: int = 300) -> float:
    """Largest error of a real label, or the share of wrong tokens."""
    batch = task.sample(rows, seed=4)
    with torch.no_grad():
        output = construction.model(batch.inputs)[:, -1]
    if task.symbolic:
        return float((output.argmax(-1) != batch.targets[:, -1]).double().mean())
    return float((output - batch.targets[:, -1]).abs().max())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_cases_are_exact_on_seen_and_unseen_symbols(case: Case) -> None:
    construction = case.construct()
    for split in ("train", "test"):
        error = worst(construction, replace(construction.task, split=split))
        assert error <= construction.certificate.error
    margins = [v for k, v in construction.certificate.parts.items() if k.startswith("margin")]
    assert margins
    assert min(margins) > 0
    disguised = random_basis(construction, 5)
    assert worst(disguised, construction.task) <= disguised.certificate.error < 1e-6


def test_coherence_is_paid_for_by_larger_scalars_and_still_exact() -> None:
    task = TemplateTask(("αβα", "αββ", "αβγ"), ("β", "α", "γ"), train=(0, 16), test=(16, 32))
    plain = construct_template(task)
    random = construct_template(task, dimension=128, seed=3)
    embedding = random.model.W_E.detach()[:, :128]
    assert float((embedding @ embedding.T).fill_diagonal_(0).abs().max()) > 0.1
    assert min(scalars(random)[0]) > max(scalars(plain)[0])
    assert min(scalars(random)[1]) > max(scalars(plain)[1])
    assert random.certificate.parts["margin of the logits"] >= 1
    assert worst(random, task.unseen()) == 0


def scalars(construction: Construction) -> tuple[list[float], list[float]]:
    """The scores of equal symbols and the strengths with which they are copied."""
    model = construction.model
    first, last, symbols = model.blocks[0].attn, model.blocks[-1].attn, model.W_E.detach()
    scores = symbols @ first.W_Q[0] @ first.W_K[0].T @ symbols.T * first.terms["dot"].scale
    copies = symbols @ last.W_V[0] @ last.W_O[0] @ symbols.T
    return scores.diagonal().tolist(), copies.diagonal().tolist()


def test_copying_with_b_of_one_fails() -> None:
    construction = construct_template(copying("αβ", "α", train=(0, 8), test=(8, 16)))
    assert worst(construction, construction.task) == 0
    construction.model.blocks[0].attn.W_O.data /= scalars(construction)[1][0]
    assert worst(construction, construction.task) == 1


def test_one_layer_suffices_iff_answers_follow_from_the_last_row() -> None:
    assert one_layer_suffices(aba_abb())
    collide = TemplateTask(("ααβ", "αγβ"), (1.0, -1.0))
    assert not one_layer_suffices(collide)
    assert one_layer_suffices(replace(collide, labels=(1.0, 1.0)))
    with pytest.raises(ArgumentError, match="ααβ and αγβ have the same last row"):
        construct_template(collide, readout_layers=1)
    assert construct_template(collide).model.spec.n_layers == 2
    told = {name: one_layer_suffices(make()) for name, make in NAMED.items()}
    assert told == {
        "same-different": True, "aba-abb": True, "aabb-abab": True, "majority": True,
        "match-to-sample": False, "distribution-of-three": False, "identity-rules": False,
        "copying": True, "induction-style": True,
    }  # fmt: skip


def test_directions_hold_what_the_mechanism_says() -> None:
    task = random_task(5, 4, wildcards=2, seed=0, train=(0, 6), test=(6, 12))
    construction = construct_template(task, readout_layers=2)
    batch = task.sample(50, seed=0)
    hooks = sorted(set(construction.mechanism.written.values()))
    _, cache = construction.model.run_with_cache(batch.inputs, names_filter=hooks)
    for name, direction in construction.mechanism.directions.items():
        seen = (cache[construction.mechanism.written[name]] @ direction)[:, -1]
        if name == "label":
            assert torch.allclose(seen, batch.targets[:, -1, 0].double())
        elif "," in name:
            t, j = map(int, name[len("equality[") : -1].split(","))
            expected = batch.latents["equality"][:, t, j].double() / task.length
            assert torch.allclose(seen, expected)
        else:
            match = batch.latents["equality"][:, -1, int(name[len("equality[") : -1])] > 0
            assert (seen[match] >= 1 / task.length - 1e-12).all()
            assert (seen[~match] < 1 / (4 * task.length)).all()


def test_equality_and_copying_heads_are_projectors_on_the_symbols() -> None:
    construction = construct_template(NAMED["distribution-of-three"](train=(0, 8), test=(8, 16)))
    model, (a, b) = construction.model, (found[0] for found in scalars(construction))
    first, last = model.blocks[0].attn, model.blocks[-1].attn
    embedding = model.W_E.detach()
    scores = embedding @ first.W_Q[0] @ first.W_K[0].T @ embedding.T * first.terms["dot"].scale
    identity = torch.eye(16, dtype=torch.float64)
    assert torch.allclose(scores, a * identity)
    assert torch.allclose(embedding @ last.W_V[0] @ last.W_O[0] @ model.W_U, b * identity)


def test_too_coherent_embeddings_are_refused() -> None:
    with pytest.raises(ArgumentError, match="must give embeddings that can be copied"):
        construct_template(copying(), dimension=6)
    with pytest.raises(ArgumentError, match="must keep embeddings apart"):
        construct_template(same_different(), dimension=1)
    with pytest.raises(ArgumentError, match="readout_layers must be 1 or 2"):
        construct_template(same_different(), readout_layers=3)
