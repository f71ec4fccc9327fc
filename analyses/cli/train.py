"""``prooflens train``: train a recipe's model and write its checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["train"]


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, e.g. trained/recipes/NAME.toml.")],
    out: Annotated[Path, typer.Option(help="Folder of the checkpoint.")],
    overwrite: Annotated[bool, typer.Option(help="Replace an existing checkpoint.")] = False,
) -> None:
    """Train a recipe's model and write a checkpoint."""
    from interp.models.checkpoint import save_checkpoint
    from interp.output import check_output
    from trained.fit import fit
    from trained.recipe import read_recipe

    plan = read_recipe(recipe)
    check_output(out, overwrite=overwrite, marker="model.json")
    done = fit(plan, progress=sys.stderr.isatty())
    about = {
        "name": plan.name,
        "about": plan.about,
        "task": plan.task.to_dict(),
        "recipe_sha256": plan.sha256,
        "metrics": done.metrics,
    }
    save_checkpoint(done.model, out, about=about, overwrite=overwrite)
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in done.metrics.items())
    typer.echo(f"{plan.name}: {numbers}; written to {out}")
    for words in plan.missed(done.metrics):
        typer.echo(f"note: {words}")
