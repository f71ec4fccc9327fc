from importlib.resources import files
from pathlib import Path

import pytest

from interp.errors import ArgumentError
from trained.recipe import read_plan, read_recipe, with_seeds

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
    told = GOOD.replace("a test", "words") + "batch = 64\n[expected]\nloss = 1.0\n"
    assert read_recipe(write(tmp_path, told)).sha256 == first
    assert read_recipe(write(tmp_path, GOOD.replace("steps = 3", "steps = 4"))).sha256 != first
    tested = GOOD + '[test]\nkind = "fixed_memory"\nlags = [2]\nlength = 8\n'
    assert read_recipe(write(tmp_path, tested)).sha256 != first


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 3", "steps = 3\nstep = 3", r"line 17: \[training\] step must be a known option"),
        ("steps = 3", "batch = 3", r"line 15: \[training\] steps must be given"),
        ("steps = 3", "steps = 0", r"line 16: \[training\] steps must be at least 1, got 0"),
        ("d_model = 4", "width = 4", r"line 13: \[spec\] width must be a known option"),
        ("lags = [1]", "lags = [9]", r"line 7: \[task\] length must exceed the largest lag 9"),
        ('name = "tiny"', 'title = "tiny"', "line 2: title must be one of.*line 1: name must be"),
        ("steps = 3", 'steps = "many"', "line 16: .*steps must be of type integer, got 'many'"),
        ("steps = 3", "steps = 1.5", r"steps must be of type integer, got 1\.5"),
        ("steps = 3", "steps = 3\nbetas = 0.9", r"betas must be of type \[number, number\]"),
        ("steps = 3", 'steps = 3\ndecay = "linear"', "decay must be one of cosine, none"),
        ("lags = [1]", 'lags = "1"', r"line 6: \[task\] lags must be of type list of integers"),
        ("fixed_memory", "fixed", r"line 5: \[task\] kind must be one of"),
        (
            'input = "real"',
            'kind = "gru"',
            r"line 9: \[spec\] kind must be one of transformer, mlp",
        ),
        ('input = "real"', 'kind = "rnn"', r"line 13: \[spec\] d_model must be a known option"),
        ("[task]", "[[task]]", "line 4: task must be given and must be a table"),
        (
            "steps = 3",
            "steps = 3\n[expected]\nacuracy = 0.9",
            r"line 18: expected\.acuracy must be a number for one of accuracy, error",
        ),
        ("steps = 3", 'steps = 3\n[expected]\naccuracy = "high"', r"expected\.accuracy must be"),
        ("[spec]", "[spec", "cannot be read"),
        ("d_in = 1", "d_in = 2", r"line 10: \[spec\] d_in must be 1, the input's channels"),
        ("n_ctx = 8", "n_ctx = 7", r"line 12: \[spec\] n_ctx must be at least 8, the length"),
        (
            "[spec]",
            '[test]\nkind = "fixed_memory"\nlags = [1]\nlength = 9\n[spec]',
            r"line 16: \[spec\] n_ctx must be at least 9",
        ),
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
    assert recipe.missed_bounds({"accuracy": 0.95, "loss": 0.05}) == []
    assert len(recipe.missed_bounds({"accuracy": 0.5, "loss": 0.2})) == 2
    assert len(recipe.missed_bounds({"accuracy": float("nan"), "loss": 0.0})) == 1


def test_missing_file_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"no such file$"):
        read_recipe(tmp_path / "none.toml")
    (tmp_path / "trained" / "recipes").mkdir(parents=True)
    (tmp_path / "trained" / "recipes" / "known.toml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"do you mean trained/recipes/known\.toml\?"):
        read_recipe("known")


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    text = GOOD + '[grid]\n"training.seed" = [0, 7]\n"task.lags" = [[1], [1, 3]]\n'
    plans = read_plan(write(tmp_path, text))
    assert [(p.name, p.task.lags, p.training.seed) for p in plans] == [  # type: ignore[attr-defined]
        ("tiny-lags=1-seed=0", (1,), 0),
        ("tiny-lags=1-seed=7", (1,), 7),
        ("tiny-lags=1_3-seed=0", (1, 3), 0),
        ("tiny-lags=1_3-seed=7", (1, 3), 7),
    ]
    seeded = with_seeds(read_plan(write(tmp_path, GOOD)), [3, 4])
    assert [(p.name, p.training.seed) for p in seeded] == [("tiny-seed=3", 3), ("tiny-seed=4", 4)]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("seed = [1]", r"line 18: grid\.seed must be quoted and name an option"),
        ('"training.seed" = 1', r"line 18: grid\.training\.seed must be a list of values, got 1"),
        ('"training.seed" = [1, 1]', "must not repeat a value"),
        ('"training.sed" = [1]', r"tiny-sed=1: line 18: \[training\] sed must be a known option"),
        ("", "line 17: grid must be a table of lists"),
    ],
)
def test_what_is_wrong_with_a_grid_is_named(tmp_path: Path, grid: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_plan(write(tmp_path, GOOD + f"[grid]\n{grid}\n"))


@pytest.mark.parametrize(
    "name",
    sorted(e.name for e in (files("trained") / "recipes").iterdir() if e.name.endswith(".toml")),
)
def test_shipped_recipes_are_valid_and_named_after_their_files(name: str) -> None:
    recipe = read_recipe(str(files("trained") / "recipes" / name))
    assert f"{recipe.name}.toml" == name
