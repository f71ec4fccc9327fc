"""One loader for every kind of model; what it says of each is on the card."""

from pathlib import Path

import pytest
import torch

from interp.errors import CheckpointError
from interp.models.checkpoint import save_checkpoint
from interp.models.export import export_gpt2
from trained.loading import folder_of, load, models
from trained.zoo import load as load_shipped


def test_a_shipped_model_has_its_task_and_metrics() -> None:
    model, shipped = load("fixed-memory-multiplexer"), load_shipped("fixed-memory-multiplexer")
    assert model.card.task == shipped.task
    assert model.card.metrics == shipped.metrics
    assert (model.card.vocabulary, model.card.family) == (0, "prooflens")
    rows = shipped.task.sample(4, seed=0).inputs
    assert torch.equal(model(rows), shipped.model(rows))


def test_folders_of_every_kind_are_the_same_model(tmp_path: Path) -> None:
    model = load("induction-attention")
    rows = model.card.task.sample(2, seed=0).inputs
    own = load(save_checkpoint(model, tmp_path / "own", about={"about": "mine"}))
    bridged = load(export_gpt2(model, tmp_path / "gpt2", bos=0))
    assert own.card.about == "mine"
    assert own.card.task is None
    assert (bridged.card.family, bridged.card.bos) == ("gpt2", 0)
    assert bridged.card.vocabulary == own.card.vocabulary == model.spec.d_in
    for other in (own, bridged):
        torch.testing.assert_close(other(rows), model(rows), atol=1e-4, rtol=1e-4)


def test_names_are_those_that_can_be_loaded() -> None:
    assert "induction-attention" in models()
    assert Path(folder_of("induction-attention")).is_dir()
    with pytest.raises(CheckpointError, match="did you mean the shipped induction-attention"):
        load("induction-atention")
