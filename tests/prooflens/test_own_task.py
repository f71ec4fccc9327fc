"""A store and a checkpoint of a task that another process registered."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from interp.models.checkpoint import read_metadata
from interp.models.spec import TransformerSpec
from interp.tasks import catalogue
from interp.tasks.base import Batch
from interp.tasks.catalogue import KINDS, known_task, register_task
from prooflens.inspection import inspect
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
    measured = inspect(tmp_path / "model", task=FirstToken(), count=24, out=tmp_path / "out")
    store = tmp_path / "out" / "store"
    found = inspect(store, profile="task")
    assert found.roles["role"].tolist() == measured.roles["role"].tolist()
    (note,) = [note for note in found.notes if "memories and answers" in note]
    assert "kind 'first_token', which is not known here" in note
    recorded = read_metadata(tmp_path / "model")["task"]
    assert known_task(recorded)[0] is None
    monkeypatch.setattr(catalogue, "KINDS", dict(KINDS))
    register_task("first_token", FirstToken)
    assert not any("memories" in note for note in inspect(store, profile="task").notes)
    assert known_task(recorded)[0] == FirstToken()
