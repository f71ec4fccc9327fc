"""``prooflens train`` and ``prooflens models``."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from interp.models.checkpoint import load_checkpoint, read_metadata
from prooflens.cli.main import app
from trained import grid, zoo
from trained.fit import fit
from trained.recipe import read_recipe

RECIPE = """
name = "tiny"
about = "a test"
claim = "memory-test"
[task]
kind = "fixed_memory"
lags = [1]
length = 8
[spec]
input = "real"
d_in = 1
d_out = 1
n_ctx = 8
d_model = 4
n_layers = 1
[training]
steps = 3
[expected]
accuracy = 0.9999
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tiny.toml"
    file.write_text(RECIPE)
    return file


def test_a_recipe_becomes_a_checkpoint(recipe: Path, told: Any, refused: Any) -> None:
    said = told("train", recipe)
    assert "tiny: loss" in said
    assert "note: accuracy is" in said
    plan, place = read_recipe(recipe), Path("out/tiny")
    about = read_metadata(place)
    assert about["recipe_sha256"] == plan.sha256
    assert (about["claim"], about["training"]["steps"]) == ("memory-test", 3)
    assert torch.equal(load_checkpoint(place).W_E, fit(plan).model.W_E)
    assert sorted(p.name for p in Path("out").iterdir()) == ["tiny"]
    assert "exists" in refused("train", recipe)


def test_seeds_and_grids_become_a_folder(recipe: Path, tmp_path: Path, told: Any) -> None:
    told("train", recipe, "--seeds", "0,2", "--out", tmp_path / "seeds")
    names = ["metrics.csv", "tiny-seed=0", "tiny-seed=2"]
    assert sorted(p.name for p in (tmp_path / "seeds").iterdir()) == names
    recipe.write_text(RECIPE + '[grid]\n"training.seed" = [0, 2]\n"spec.d_model" = [4, 6]\n')
    told("train", recipe, "--out", tmp_path / "grid")
    table = pd.read_csv(tmp_path / "grid" / "metrics.csv")
    assert set(table["name"]) == {f"tiny-d_model={d}-seed={s}" for d in (4, 6) for s in (0, 2)}
    one = load_checkpoint(tmp_path / "seeds" / "tiny-seed=2")
    two = load_checkpoint(tmp_path / "grid" / "tiny-d_model=4-seed=2")
    torch.testing.assert_close(one.W_E, two.W_E)


def test_what_was_interrupted_is_resumed(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, run: Any, told: Any, refused: Any
) -> None:
    train = grid.train

    def interrupt_at_end(*args: Any, **options: Any) -> None:
        def stop(fits: object) -> None:
            raise KeyboardInterrupt

        train(*args, **options | {"finish": stop})

    monkeypatch.setattr(grid, "train", interrupt_at_end)
    ended = run("train", recipe)
    assert ended.code == 130
    assert "out/tiny.partial: go on with --resume" in ended.err
    monkeypatch.setattr(grid, "train", train)
    assert "holds a training: resume=True" in refused("train", recipe)
    told("train", recipe, "--resume")
    assert sorted(p.name for p in Path("out").iterdir()) == ["tiny"]


def test_models_that_diverged_are_not_written(recipe: Path, run: Any) -> None:
    recipe.write_text(RECIPE.replace("steps = 3", "steps = 9\nlearning_rate = 1e30\nclip = 1e30"))
    ended = run("train", recipe)
    assert "diverged, not written" in ended.out
    assert not Path("out/tiny").exists()


def test_all_shipped_recipes_can_be_named(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    asked: list[str] = []

    def note_names(runs: Any, **options: Any) -> None:
        asked.extend(r.name for r in runs)
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "train", note_names)
    assert run("train", "--all").code == 130
    assert set(asked) >= {"fixed-memory-multiplexer", "fixed-memory-multiplexer-mixed"}


def test_models_are_listed() -> None:
    result = CliRunner().invoke(app, ["models"], env={"COLUMNS": "400"})
    for name in zoo.names():
        assert name in result.output
    assert result.exit_code == 0
    assert "accuracy" in result.output
