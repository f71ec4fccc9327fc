"""Model pages: what is measured of a shipped model and its proof, and how the report shows it."""

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch

from analyses.papers import model_pages
from analyses.papers.claims_report import write_report
from analyses.papers.ledger import Claim
from analyses.papers.models import comparison
from analyses.papers.models import model_pages as pages_of
from interp.errors import ArgumentError, OutputError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.catalogue import construct, has_proof
from interp.tasks.coupling import PodCoupling
from interp.tasks.depth import PrefixPrediction
from interp.tasks.induction import RepeatedTokens
from interp.tasks.memory import AdaptiveMemory, FixedMemory
from interp.tasks.template.task import copying, same_different

NAME = "fixed-memory-multiplexer"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("models")
    patch = pytest.MonkeyPatch()
    patch.setattr(model_pages, "ROWS", 64)
    model_pages.measure_models(out, names=[NAME])
    yield out
    patch.undo()


@pytest.mark.slow
def test_a_model_and_its_proof_are_measured(measured):
    folders = sorted(path.name for path in measured.iterdir())
    assert len(folders) == 2
    assert NAME in folders
    for folder in folders:
        names = {path.name for path in (measured / folder).iterdir()}
        assert {"roles.csv", "probes.csv", "attention.png", "latents.png", "model.json"} <= names
    about = json.loads((measured / NAME / "model.json").read_text())
    assert about["proof"] in folders
    assert about["paper"] == "memory"
    statements = pd.read_csv(measured / NAME / "statements.csv")
    assert list(statements) == ["theory", "constructed", "trained"]
    assert statements["constructed"][1:].str.startswith("yes").all()
    assert len(statements) > 3


@pytest.mark.slow
def test_the_same_weights_are_not_measured_again(measured, monkeypatch):
    monkeypatch.setattr(model_pages, "_measure", None)
    model_pages.measure_models(measured, names=[NAME])
    monkeypatch.setattr(model_pages, "SEED", 1)
    with pytest.raises(TypeError):
        model_pages.measure_models(measured, names=[NAME])


def test_a_model_without_heads_has_no_roles_and_no_maps() -> None:
    task = PrefixPrediction("L_3", ((6, 6),))
    spec = TransformerSpec(d_in=4, d_out=2, n_ctx=7, d_model=8, n_layers=0, ffn=())
    found = model_pages._measure(SequenceTransformer(spec, seed=0), task, [])
    assert len(found.roles) == 0
    assert found.patterns == {}
    assert len(found.probes)


@pytest.mark.slow
def test_the_report_links_model_proof_and_claim(measured, tmp_path):
    (tmp_path / "models").symlink_to(measured)
    claim = Claim("memory-x", "memory", "s", "Statement.", "Rule.", "No.", "m:f")
    page = write_report({"memory-x": claim}, tmp_path).read_text()
    pages = pages_of({NAME: ["memory-x"]}, measured)
    for model in pages:
        assert f'id="model-{model.name}"' in page
        assert len(model.pictures) == 2
        assert len(model.tables) == 2
    table = comparison(pages, "memory")
    assert table is not None
    assert set(table.frame["model"]) == {NAME}
    assert comparison(pages, "depth") is None
    assert "What the proofs say (theory)" in page


def test_a_named_model_that_was_not_measured_has_its_words(tmp_path):
    (page,) = pages_of({NAME: ["memory-x"], "no-such-model": ["memory-y"]}, tmp_path)
    assert page.name == NAME
    assert "Not measured" in page.words[-1]


def test_a_damaged_folder_is_named(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.json").write_text("{}")
    with pytest.raises(OutputError, match=r"broken: holds no measured model"):
        pages_of({}, tmp_path)


@pytest.mark.parametrize("task", [
    FixedMemory((1, 2), "parity", 10),
    AdaptiveMemory((1, 2), length=12),
    PrefixPrediction("L_4", ((4, 12),)),
    same_different(),
    copying(),
    PodCoupling(rank=3, length=8),
], ids=lambda task: task.name)  # fmt: skip
def test_a_construction_solves_its_task_on_the_tasks_own_inputs(task):
    proof = construct(task, rank=3)
    batch = proof.task.sample(16, seed=0)
    assert torch.equal(batch.inputs, task.sample(16, seed=0).inputs)
    with torch.no_grad():
        output = proof.model(batch.inputs)
    if batch.targets.is_floating_point():
        error = (output - batch.targets)[batch.mask].abs().max()
        assert error <= max(proof.certificate.error, 1e-9)
    else:
        assert torch.equal(output.argmax(-1)[batch.mask], batch.targets[batch.mask])


def test_constructions_of_different_tasks_have_different_names():
    tasks = [PrefixPrediction(f"L_{k}", ((6, longest),)) for k in (3, 4) for longest in (8, 12)]
    names = {construct(task).name for task in tasks}
    assert len(names) == len(tasks)


def test_a_task_without_a_construction_has_none_and_one_that_cannot_be_says_why():
    task = RepeatedTokens(vocabulary=16, length=16, periods=(4, 5))
    assert not has_proof(task)
    with pytest.raises(ArgumentError, match=r"task must be one of AdaptiveMemory, .*got 'Repeated"):
        construct(task)
    with pytest.raises(ArgumentError, match=r"float64"):
        construct(FixedMemory((30,), "parity", 40))


def test_the_construction_for_gaussian_values_is_that_of_signs():
    task = AdaptiveMemory((1, 2), length=12, inputs="gaussian")
    assert construct(task).task == replace(task, inputs="signs")
