"""The shipped language model is what its recipe makes and does what its card says."""

import json

import torch
from safetensors.torch import load_file

from analyses.language.recipe import RECIPE, read_language_recipe
from interp.attention.attention_to_keys import attention_table
from interp.attention.key_sets import repeated_tokens
from trained import zoo
from trained.loading import load


def test_it_was_made_by_the_shipped_recipe_and_reaches_what_that_asks() -> None:
    folder, recipe = zoo.folder("code-lm"), read_language_recipe(RECIPE)
    told = json.loads((folder / "training.json").read_text())
    assert told["recipe_sha256"] == recipe.sha256
    assert told["processor_seconds"] < 2 * 90 * 60
    last = told["measured"][str(recipe.steps)]
    metrics = {name: last[name] for name in ("induction", "previous")}
    assert recipe.missed_bounds(metrics | {"gap": last["first"] - last["second"]}) == []
    kept = [f"code-lm/step-{step}" for step in recipe.training.kept]
    assert set(zoo.languages()) >= {"code-lm", *kept}
    weights = load_file(folder / "model.safetensors")
    assert sum(w.nbytes for w in weights.values()) < 10e6
    assert {w.dtype for w in weights.values()} == {torch.float16}


def test_heads_look_where_the_card_says_and_repeats_are_predicted() -> None:
    model = load("code-lm")
    tokens = repeated_tokens(16, 64, int(model.cfg.d_vocab), seed=7, bos=0)
    table = attention_table(model, tokens, batch=16, resamples=0)
    most = table.groupby("target")["score"].max()
    assert most["after_same"] > 0.6
    assert most["previous"] > 0.9
    with torch.no_grad():
        losses = model(tokens, return_type="loss", loss_per_token=True)
    assert losses[:, 40:].mean() < losses[:, :14].mean() - 5
