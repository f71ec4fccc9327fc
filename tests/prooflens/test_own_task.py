"""A store and a checkpoint of a task that another process registered."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from interp.models.checkpoint import load_checkpoint, read_metadata
from interp.models.spec import TransformerSpec
from interp.tasks import catalogue
from interp.tasks.base import Batch
from interp.tasks.catalogue import KINDS, known_task, register_task
from prooflens.pages.roles import measure_model, measure_store, task_of
from trained.fit import fit, save_fit
from trained.recipe import Recipe
from trained.run import Training


@dataclass(frozen=True)
class FirstToken:
    length: int = 5

    name = "first-token"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(4, (n, self.length), generator=generator)
        first = ids[:, :1].expand_as(ids).clone()
        return Batch(ids, first, torch.ones_like(ids).bool(), {"first": first}).to(device)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "first_token", "length": self.length}


def test_a_task_that_is_not_known_stops_neither_store_nor_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = TransformerSpec(d_in=4, d_out=4, n_ctx=5, d_model=8, n_layers=1, n_heads=1, d_head=4)
    recipe = Recipe("own", "a test", FirstToken(), spec, Training(steps=2, batch=4))
    trained = fit(recipe)
    save_fit(recipe, trained, tmp_path / "model", overwrite=False)
    options: dict[str, Any] = {"rows": 24, "seed": 0, "about": {}}
    measured = measure_model(trained.model, FirstToken(), tmp_path / "store", **options)
    model = load_checkpoint(tmp_path / "model")
    found = measure_store(tmp_path / "store", model)
    assert found.roles["role"].tolist() == measured.roles["role"].tolist()
    assert "kind 'first_token', which is not known here" in found.note
    assert "memories and answers are not looked for" in found.note
    assert task_of(found.store) is None
    recorded = read_metadata(tmp_path / "model")["task"]
    assert known_task(recorded)[0] is None
    monkeypatch.setattr(catalogue, "KINDS", dict(KINDS))
    register_task("first_token", FirstToken)
    assert measure_store(tmp_path / "store", model).note == ""
    assert task_of(found.store) == known_task(recorded)[0] == FirstToken()
