"""A picture of the README: induction heads form while the shipped language model is trained.

    make picture        writes docs/images/induction-forms.png

Every head's share of attention on the token after an earlier equal one, on rows of random tokens
that repeat, for the weights kept during training and the last ones. The picture carries its numbers
as :mod:`analyses.pictures.first_picture` does. Where a head looks does not say what it does there:
that is what ``prooflens inspect code-lm`` tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from analyses.language.recipe import RECIPE, read_language_recipe
from analyses.pictures.first_picture import write_drawing
from prooflens.attention import attention_table, repeated_tokens
from prooflens.plot import Panel, share_maps
from prooflens.trained import load, zoo

__all__ = ["forming_in_words", "induction_by_checkpoint", "write_forming"]

_ROWS, _LENGTH, _SEED = 64, 64, 1
_LEAST = 0.3
"""Least share that the description mentions."""


def induction_by_checkpoint() -> dict[str, pd.DataFrame]:
    """Return checkpoint → table of attention shares, with a row for each layer and a column for
    each head."""
    return {f"after {tokens}": _shares(name) for name, tokens in _checkpoints().items()}


def _checkpoints() -> dict[str, str]:
    """Return shipped checkpoint → the number of tokens read so far in words, in the order of
    training."""
    recipe = read_language_recipe(RECIPE)
    kept = {f"{zoo.STAND_IN}/step-{step}": step for step in sorted(recipe.training.kept)}
    steps = {**kept, zoo.STAND_IN: recipe.steps}
    return {name: f"{recipe.tokens_until(n) / 1e6:.1f} million tokens" for name, n in steps.items()}


def _shares(name: str) -> pd.DataFrame:
    model = load(name)
    tokens = repeated_tokens(_ROWS, _LENGTH, int(model.cfg.d_vocab), seed=_SEED, bos=0)
    table = attention_table(model, tokens, batch=_ROWS, resamples=0)
    chosen = table[(table["target"] == "after_same") & (table["null"] == "tokens")]
    wide = chosen.pivot(index="layer", columns="head", values="score")
    return wide.set_axis([f"layer {layer}" for layer in wide.index]).rename_axis("name")


def forming_in_words(shares: Mapping[str, pd.DataFrame]) -> str:
    """Describe from the numbers which heads attend to the token after an earlier equal one."""
    return "; ".join(f"{when}: {_words(table)}" for when, table in shares.items())


def _words(table: pd.DataFrame) -> str:
    found = [
        f"L{layer}H{head} {share:.2f}"
        for layer, row in enumerate(table.to_numpy())
        for head, share in enumerate(row)
        if share >= _LEAST
    ]
    return ", ".join(found) or f"no head above {table.to_numpy().max():.2f}"


def write_forming(path: Path) -> dict[str, pd.DataFrame]:
    """Draw the picture with its numbers inside the file, and return the numbers."""
    shares = induction_by_checkpoint()
    panels = [Panel(when, table.to_numpy(), list(table.index)) for when, table in shares.items()]
    heads = [str(head) for head in next(iter(shares.values())).columns]
    label = "attention on the token\nafter an earlier equal one"
    write_drawing(share_maps(panels, heads, label=label, across="head"), shares, path)
    return shares
