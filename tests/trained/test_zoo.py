from importlib.resources import files

import pytest

from interp.errors import CheckpointError
from interp.models.checkpoint import read_metadata
from interp.models.kinds import build
from trained import zoo
from trained.fit import fit
from trained.metrics import METRICS, evaluate
from trained.recipe import Recipe, read_recipe, recipes

FOLDER = files("trained")


@pytest.mark.parametrize("name", zoo.names())
def test_shipped_models_reach_what_their_recipes_promise(name: str) -> None:
    shipped = zoo.load(name)
    recipe = read_recipe(str(FOLDER / "recipes" / f"{name}.toml"))
    metadata = read_metadata(str(FOLDER / "checkpoints" / name))
    assert metadata["recipe_sha256"] == recipe.sha256
    assert shipped.model.spec == recipe.spec
    found = evaluate(shipped.model, shipped.test or shipped.task)
    told = {name: value for name, value in shipped.metrics.items() if name in METRICS}
    assert told == pytest.approx({n: v for n, v in found.items() if n in told}, rel=1e-3, abs=1e-7)
    assert recipe.expected
    assert recipe.missed_bounds(found) == []


def test_unknown_names_are_refused_with_near_ones() -> None:
    with pytest.raises(CheckpointError, match="there is fixed-memory-multiplexer"):
        zoo.load("fixed-memory-multiplex")
    with pytest.raises(CheckpointError, match=r"for a folder call interp\.load_checkpoint"):
        zoo.load("out/fixed-memory-multiplexer")


def cost(recipe: Recipe) -> int:
    weights = sum(p.numel() for p in build(recipe.spec).parameters())
    return recipe.training.steps * recipe.training.batch * weights


def test_the_cheapest_model_can_be_trained_again() -> None:
    recipe = min((r for r in recipes() if r.name in zoo.names()), key=cost)
    shipped, again = zoo.load(recipe.name), fit(recipe)
    assert recipe.missed_bounds(again.metrics) == []
    for name, value in shipped.metrics.items():
        assert again.metrics[name] == pytest.approx(value, abs=0.02), name
