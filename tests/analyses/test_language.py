"""A language model is trained from its recipe, stopped, resumed, written and loaded again."""

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from analyses.__main__ import app
from analyses.language import recipe as recipes
from analyses.language.corpus import python_sources
from analyses.language.measure import measure
from analyses.language.model import GPT2, GPT2Sizes
from analyses.language.recipe import LanguageRecipe, read_language_recipe
from analyses.language.rows import IGNORED, rows_of
from analyses.language.train import LanguageRun, prepare, take_steps
from interp.errors import ArgumentError, CheckpointError
from interp.models.pretrained import load_pretrained

RECIPE = """
name = "small"
kind = "language"
about = "a small one"
[corpus]
held_out = 3
folder = "{folder}"
[model]
vocabulary = 300
context = 128
width = 16
layers = 2
heads = 2
[training]
warmup = 2
cooldown = 2
kept = [2, 4]
[[stages]]
steps = 3
rows = 4
length = 32
repeated = 0.5
shuffled = 0.25
[[stages]]
steps = 3
rows = 2
length = 128
[expected]
gap = 1.0
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> LanguageRecipe:
    folder = tmp_path_factory.mktemp("sources")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_a.py").write_text("assert True\n" * 50)
    for number in range(12):
        lines = [f"def function_{i}(x):\n    return x + {number * i}\n" for i in range(60)]
        (folder / f"module_{number}.py").write_text("\n".join(lines))
    (folder / "same.py").write_text((folder / "module_3.py").read_text())
    file = folder / "recipe.toml"
    file.write_text(RECIPE.format(folder=folder))
    return read_language_recipe(file)


def train_until(recipe: LanguageRecipe, folder: Path, stop: int = 0) -> LanguageRun:
    prepare(recipe, folder)
    training = LanguageRun(recipe, folder, resume=True)
    while training.step < (stop or recipe.steps):
        training.advance()
    training.save()
    return training


def test_a_resumed_training_gives_what_an_uninterrupted_one_gives(
    recipe: LanguageRecipe, tmp_path: Path
) -> None:
    whole = train_until(recipe, tmp_path / "whole")
    train_until(recipe, tmp_path / "parts", stop=2)
    parts = train_until(recipe, tmp_path / "parts")
    assert [line["step"] for line in parts.log()] == [2, 6]
    for name, weight in whole.model.weights_by_name().items():
        assert torch.equal(weight, parts.model.weights_by_name()[name]), name
    other = read_language_recipe(Path(recipe.folder) / "recipe.toml")
    object.__setattr__(other, "held_out", 4)
    with pytest.raises(CheckpointError, match="by another recipe"):
        LanguageRun(other, tmp_path / "parts", resume=True)


def test_a_termination_signal_saves_the_step_it_came_in(
    recipe: LanguageRecipe, tmp_path: Path
) -> None:
    prepare(recipe, tmp_path)
    training = LanguageRun(recipe, tmp_path)
    steps = take_steps(training, minutes=60, told=lambda line: None)
    assert next(steps) == 1
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert LanguageRun(recipe, tmp_path, resume=True).step == 2


def test_without_muon_nothing_is_read(
    recipe: LanguageRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ArgumentError, match=r"torch must be 2\.9 or later"):
        prepare(recipe, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_command_writes_a_gpt2_that_transformers_loads(
    recipe: LanguageRecipe, tmp_path: Path
) -> None:
    file, out = Path(recipe.folder) / "recipe.toml", tmp_path / "out" / "small"
    done = CliRunner().invoke(app, ["train-language", str(file), "--out", str(out)])
    assert done.exit_code == 0, repr(done.exception)
    assert "note: gap is" in done.output
    assert not (tmp_path / "out" / "small.partial").exists()
    numbers = json.loads((out / "training.json").read_text())
    assert list(numbers["measured"]) == ["2", "4", "6"]
    assert "It misses: gap" in (out / "README.md").read_text()
    found = load_pretrained(out)
    assert (found.vocabulary, found.n_ctx, found.bos) == (300, 128, 0)
    text = "def function_3(x):\n    return x\n"
    ids = found.tokenizer(text)["input_ids"]
    assert found.tokenizer.decode(ids) == text
    weights = load_file(out / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float16}
    mine = GPT2(recipe.model)
    with torch.no_grad():
        for name, weight in mine.weights_by_name().items():
            weight.copy_(weights[name])
        tokens = torch.tensor([[0, *ids]])
        torch.testing.assert_close(mine(tokens), found.model(tokens), atol=1e-5, rtol=1e-4)
        _, cache = found.model.run_with_cache(tokens)
        for layer, pattern in enumerate(mine.patterns(tokens)):
            theirs = cache[f"blocks.{layer}.attn.hook_pattern"]
            torch.testing.assert_close(pattern, theirs, atol=1e-5, rtol=1e-4)
    assert load_pretrained(out / "step-2").tokenizer is not None
    again = CliRunner().invoke(app, ["train-language", str(file), "--out", str(out), "--resume"])
    assert "nothing is left to train" in again.output


def test_rows_repeat_what_they_say() -> None:
    text = torch.arange(1, 2001, dtype=torch.int32)  # every token once: a repeat is made
    plain, targets = rows_of(text, 8, 64, repeated=0, shuffled=0, seed=[1])
    assert torch.equal(plain[:, 2:] - plain[:, 1:-1], torch.ones(8, 62, dtype=torch.long))
    assert torch.equal(targets[:, :-1], plain[:, 1:])
    repeated, _ = rows_of(text, 8, 64, repeated=1, shuffled=0, seed=[1])
    assert all(row.unique().numel() <= 64 - 8 for row in repeated)
    shuffled, targets = rows_of(text, 8, 64, repeated=0, shuffled=1, seed=[1])
    for row, goal in zip(shuffled.tolist(), targets.tolist(), strict=True):
        period = row.index(row[1], 2) - 1
        scored = [i for i, token in enumerate(goal) if token != IGNORED]
        assert scored == list(range(period + 1, 64))
        assert all(goal[i] == row[i + 1 - period] for i in scored)
    assert (plain[:, 0] == 0).all()


def test_measurements_are_of_the_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that copies knows the second time; one that attends back one is a previous head."""
    model = GPT2(GPT2Sizes(vocabulary=300, context=128, width=16, layers=1, heads=1))
    held_out = torch.randint(1, 300, (4000,), generator=torch.Generator().manual_seed(0))

    def logits(tokens: torch.Tensor, offset: int = 0) -> torch.Tensor:
        copied = torch.zeros(*tokens.shape, 300)
        if tokens.shape[1] == 101:  # after position p comes what came after p − 50
            after = tokens[:, 1:52]
            copied[:, 50:101].scatter_(2, after[..., None], 9.0)
        return copied

    def patterns(tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        shift = 49 if length == 101 else 1
        return torch.eye(length).roll(shift, 0).expand(1, len(tokens), 1, length, length)

    monkeypatch.setattr(model, "forward", logits)
    monkeypatch.setattr(model, "patterns", patterns)
    found = measure(model, held_out.int())
    assert found.first == pytest.approx(torch.tensor(300.0).log().item())
    assert found.second < 0.1
    assert (found.induction, found.previous) == (1.0, 1.0)


def test_the_interpreters_own_sources_are_read_without_tests(recipe: LanguageRecipe) -> None:
    corpus = python_sources(held_out=3, folder=Path(recipe.folder))
    texts = corpus.train + corpus.held_out
    assert len(texts) == len(set(texts)) == 12  # the equal one once, the test not at all
    with pytest.raises(ArgumentError, match="too few to learn from"):
        python_sources(folder=Path(recipe.folder) / "tests")


def test_recipes_are_checked_and_the_shipped_one_is_read(
    recipe: LanguageRecipe, tmp_path: Path
) -> None:
    shipped = read_language_recipe(recipes.RECIPE)
    assert shipped.model.heads == 8
    assert shipped.expected == {"gap": 1.0, "induction": 0.4, "previous": 0.4}
    text = (Path(recipe.folder) / "recipe.toml").read_text()
    for old, new, told in (
        ("length = 128", "length = 256", "length must be at most the context 128"),
        ("kept = [2, 4]", "kept = [2, 9]", "kept must be before the last of 6 steps"),
        ("width = 16", "widht = 16", "widht must be among"),
        ("shuffled = 0.25", "shuffled = 0.75", "must be at most 1 together"),
        ("heads = 2", "heads = 5", "width must be"),
    ):
        (tmp_path / "bad.toml").write_text(text.replace(old, new))
        with pytest.raises(ArgumentError, match=told):
            read_language_recipe(tmp_path / "bad.toml")
