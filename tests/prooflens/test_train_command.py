"""``prooflens train`` and ``prooflens models``."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from interp.errors import ArgumentError, OutputError
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


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["train", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_recipe_becomes_a_checkpoint(recipe: Path) -> None:
    result = run(recipe)
    assert "tiny: loss" in result.output
    assert "note: accuracy is" in result.output
    plan, place = read_recipe(recipe), Path("out/tiny")
    told = read_metadata(place)
    assert told["recipe_sha256"] == plan.sha256
    assert (told["claim"], told["training"]["steps"]) == ("memory-test", 3)
    assert torch.equal(load_checkpoint(place).W_E, fit(plan).model.W_E)
    assert sorted(p.name for p in Path("out").iterdir()) == ["tiny"]
    with pytest.raises(OutputError, match="exists"):
        run(recipe)


def test_seeds_and_grids_become_a_folder(recipe: Path, tmp_path: Path) -> None:
    run(recipe, "--seeds", "0,2", "--out", tmp_path / "seeds")
    names = ["metrics.csv", "tiny-seed=0", "tiny-seed=2"]
    assert sorted(p.name for p in (tmp_path / "seeds").iterdir()) == names
    recipe.write_text(RECIPE + '[grid]\n"training.seed" = [0, 2]\n"spec.d_model" = [4, 6]\n')
    run(recipe, "--out", tmp_path / "grid")
    table = pd.read_csv(tmp_path / "grid" / "metrics.csv")
    assert set(table["name"]) == {f"tiny-d_model={d}-seed={s}" for d in (4, 6) for s in (0, 2)}
    one = load_checkpoint(tmp_path / "seeds" / "tiny-seed=2")
    two = load_checkpoint(tmp_path / "grid" / "tiny-d_model=4-seed=2")
    torch.testing.assert_close(one.W_E, two.W_E)


def test_what_was_interrupted_is_resumed(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = grid.train

    def pressed(*args: Any, **options: Any) -> None:
        def stop(fits: object) -> None:
            raise KeyboardInterrupt

        train(*args, **options | {"finish": stop})

    monkeypatch.setattr(grid, "train", pressed)
    result = run(recipe)
    assert result.exit_code == 130
    assert "out/tiny.partial: go on with --resume" in result.output
    monkeypatch.setattr(grid, "train", train)
    with pytest.raises(OutputError, match="holds a training: resume=True"):
        run(recipe)
    run(recipe, "--resume")
    assert sorted(p.name for p in Path("out").iterdir()) == ["tiny"]


def test_models_that_diverged_are_not_written(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("steps = 3", "steps = 9\nlearning_rate = 1e30\nclip = 1e30"))
    assert "diverged, not written" in run(recipe).output
    assert not Path("out/tiny").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RECIPE or --all must be given"),
        (["tiny.toml", "--all"], "RECIPE or --all must be given"),
        (["tiny.toml", "--seeds", "0,x"], "--seeds must be different whole numbers, got '0,x'"),
        (["nothing.toml"], "recipe nothing.toml cannot be read: no such file"),
    ],
)
def test_what_cannot_be_is_refused(recipe: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        run(*arguments)


def test_all_shipped_recipes_can_be_named(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noted(runs: Any, **options: Any) -> None:
        asked.extend(r.name for r in runs)
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "train", noted)
    assert run("--all").exit_code == 130
    assert set(asked) >= {"fixed-memory-multiplexer", "fixed-memory-multiplexer-mixed"}


def test_models_are_listed() -> None:
    result = CliRunner().invoke(app, ["models"], env={"COLUMNS": "400"})
    for name in zoo.names():
        assert name in result.output
    assert result.exit_code == 0
    assert "accuracy" in result.output
