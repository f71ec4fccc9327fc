from importlib.resources import files
from pathlib import Path

import pytest

from interp.errors import ArgumentError
from trained.recipe import read_recipe

GOOD = """
name = "tiny"
about = "a test"
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
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_hash_is_of_the_content(tmp_path: Path) -> None:
    first = read_recipe(write(tmp_path, GOOD)).sha256
    assert read_recipe(write(tmp_path, "# a comment" + GOOD)).sha256 == first
    assert read_recipe(write(tmp_path, GOOD.replace("steps = 3", "steps = 4"))).sha256 != first


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 3", "steps = 3\nstep = 3", r"training\.step must be a known option"),
        ("steps = 3", "batch = 3", r"training\.steps must be given"),
        ("steps = 3", "steps = 0", "steps must be positive, got 0"),
        ("d_model = 4", "width = 4", "width must be a known option"),
        ("lags = [1]", "lags = [9]", "length must exceed the largest lag 9"),
        ('name = "tiny"', 'title = "tiny"', "title must be a known table.*name must be given"),
        ("steps = 3", 'steps = "many"', "steps must be of type int, got 'many'"),
        ("steps = 3", "steps = 1.5", r"steps must be of type int, got 1\.5"),
        ("lags = [1]", 'lags = "1"', r"\[task\]"),
        ("[task]", "[[task]]", "task must be given and must be a table"),
        (
            "steps = 3",
            "steps = 3\n[expected]\nacuracy = 0.9",
            r"expected\.acuracy must be a number",
        ),
        ("steps = 3", 'steps = 3\n[expected]\naccuracy = "high"', r"expected\.accuracy must be"),
        ("[spec]", "[spec", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_recipe(write(tmp_path, GOOD.replace(old, new)))


def test_problems_of_all_tables_are_named_at_once(tmp_path: Path) -> None:
    bad = GOOD.replace("lags = [1]", "lags = [9]").replace("d_model = 4", "d_model = 0")
    with pytest.raises(ArgumentError) as caught:
        read_recipe(write(tmp_path, bad.replace("steps = 3", "steps = 0")))
    for part in ("[task]", "[spec]", "[training]"):
        assert part in str(caught.value)


def test_bounds_point_the_right_way(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, GOOD + "[expected]\naccuracy = 0.9\nloss = 0.1\n"))
    assert recipe.missed({"accuracy": 0.95, "loss": 0.05}) == []
    assert len(recipe.missed({"accuracy": 0.5, "loss": 0.2})) == 2
    assert len(recipe.missed({"accuracy": float("nan"), "loss": 0.0})) == 1


def test_missing_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_recipe(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "name",
    sorted(e.name for e in (files("trained") / "recipes").iterdir() if e.name != "__pycache__"),
)
def test_shipped_recipes_are_valid_and_named_after_their_files(name: str) -> None:
    recipe = read_recipe(str(files("trained") / "recipes" / name))
    assert f"{recipe.name}.toml" == name
