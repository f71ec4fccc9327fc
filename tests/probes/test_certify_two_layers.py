"""Induction and counters in two layers, proved by mechanism and checked again."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from interp.errors import CheckpointError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.depth import Membership
from interp.tasks.depth.strings import counts_and_blocks
from interp.tasks.template import TemplateTask
from probes.certify.certificate import sha256_of
from probes.certify.check import check
from probes.certify.domains import Strings
from probes.certify.run import certify, domain_of
from trained import zoo
from trained.grid import train
from trained.run import Training, TrainingRun

TASK = TemplateTask(("αβγα", "αβγβ"), ("β", "γ"), (0, 6), (6, 12))
SHAPE: dict[str, Any] = {"d_in": 12, "d_out": 12, "n_ctx": 4, "d_model": 24, "n_layers": 2}
SPEC = TransformerSpec(**SHAPE, d_head=12, n_heads=1, positions="learned")


@cache
def trained_model() -> Any:
    training = Training(steps=500, batch=64, learning_rate=5e-3, seed=3)
    return train([TrainingRun("induction", TASK, SPEC, training)])[0].model


def test_a_trained_model_is_proved_by_the_last_token_and_the_answer() -> None:
    model = trained_model()
    theorem = certify(model, TASK)
    by = {proof.strategy: proof for proof in theorem.proofs}
    assert by["brute force"].bound == 1
    assert by["mechanism"].bound > 0.98
    assert by["mechanism"].cells < by["brute force"].cells == 240
    assert [lemma.role for lemma in by["mechanism"].lemmas] == ["induction"]
    data = json.loads(json.dumps(theorem.to_dict()))
    checked = {one.strategy: one for one in check(data, model, sha256_of(model))}
    assert all(one.holds for one in checked.values())
    assert checked["mechanism"].found == pytest.approx(by["mechanism"].bound, abs=1e-9)


def forge_proof(data: Any, **changes: Any) -> Any:
    proof = next(proof for proof in data["strategies"] if proof["strategy"] == "mechanism")
    return data | {"strategies": [proof | changes]}


def test_what_is_forged_does_not_hold() -> None:
    model = SequenceTransformer(SPEC, seed=1)
    weak = certify(model, TASK, strategies=["mechanism"])
    assert weak.best.vacuous
    data = json.loads(json.dumps(weak.to_dict()))
    lemma = data["strategies"][0]["lemmas"][0]
    changes: tuple[Any, ...] = (
        {"bound": 0.9},
        {"lemmas": []},
        {"lemmas": [lemma | {"number": 0.5}]},
        {"arithmetic": "float32"},
    )
    told = {"vacuous": "", "bound": 0.0}
    assert check(forge_proof(data, **told), model, sha256_of(model))[0].holds
    for change in changes:
        assert not check(forge_proof(data, **told | change), model, sha256_of(model))[0].holds


@pytest.mark.parametrize("length", [6, 9])
def test_cells_by_counts_and_blocks_hold_every_question_once(length: int) -> None:
    domain: Any = domain_of(zoo.load("depth-L4-layers2").task, length=length)
    assert isinstance(domain, Strings)
    cells, answers, counts = counts_and_blocks(domain.task, length)
    assert sum(counts) == domain.size
    held: dict[tuple[int, ...], int] = {}
    for points in domain.points():
        for ids, answer, weight in zip(points.inputs, points.targets, points.weight, strict=True):
            letters = ids[1:].tolist()
            blocks = 1 + int((np.diff(letters) != 0).sum())
            cell = (letters.count(1), letters.count(2), blocks, int(answer))
            held[cell] = held.get(cell, 0) + int(weight)
    told = zip(cells.tolist(), answers.tolist(), counts, strict=True)
    assert held == {(*cell, answer): count for cell, answer, count in told}


def test_a_counter_of_two_layers_is_proved_by_counts_and_blocks() -> None:
    entry = zoo.load("depth-L4-layers2")
    theorem = certify(entry.model, entry.task, length=11, strategies=["mechanism"])
    assert theorem.best.bound == 1
    assert theorem.best.cells < 150
    data = json.loads(json.dumps(theorem.to_dict()))
    assert check(data, entry.model, sha256_of(entry.model))[0].holds
    other = Membership("L_4", bins=((4, 11),))
    forged_domain = data | {"domain": data["domain"] | {"task": other.to_dict()}}
    with pytest.raises(CheckpointError, match="cannot be followed"):
        check(forged_domain, entry.model, sha256_of(entry.model))


def test_a_counter_of_too_few_layers_is_not_called_right() -> None:
    entry = zoo.load("depth-L5-layers2")
    exact, cells = (
        {p.strategy: p for p in certify(entry.model, entry.task, length=9, strategies=[s]).proofs}
        for s in ("brute force", "mechanism")
    )
    assert cells["mechanism"].bound <= exact["brute force"].parts["right in real arithmetic"]


def test_a_cover_of_another_kind_of_domain_is_not_taken_for_its_own() -> None:
    model = trained_model()
    data = json.loads(json.dumps(certify(model, TASK, strategies=["mechanism"]).to_dict()))
    numbers = replace(TASK, templates=("0αα", "0αβ"), labels=(0.0, 1.0)).to_dict()
    for change in ({"kind": "wurst"}, {"kind": "strings"}, {"task": numbers}):
        with pytest.raises(CheckpointError, match="cannot be followed"):
            check(data | {"domain": data["domain"] | change}, model, sha256_of(model))


def test_labels_that_are_numbers_and_other_models_are_told_apart() -> None:
    numbers = replace(TASK, labels=(1.0, -1.0))
    spec = replace(SPEC, d_out=1)
    theorem = certify(SequenceTransformer(spec), numbers, strategies=["mechanism", "brute force"])
    assert theorem.skipped["mechanism"].startswith("labels are numbers")
    normed = SequenceTransformer(replace(SPEC, norm="layernorm"))
    theorem = certify(normed, TASK, strategies=["mechanism", "brute force"])
    assert theorem.skipped["mechanism"] == "two attention layers need no norm"
