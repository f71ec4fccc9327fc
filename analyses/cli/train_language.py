"""``prooflens train code-lm``: train a language model by its recipe, and write it with its card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from analyses.cli.usage import facts, progress

__all__ = ["is_language", "train_language"]


def is_language(recipe: Path) -> bool:
    """Whether a file holds the recipe of a language model."""
    from interp.reading import read_toml

    return recipe.is_file() and read_toml(recipe, "recipe")[0].get("kind") == "language"


def train_language(
    file: Path, out: Path, *, seed: int | None, resume: bool, overwrite: bool, minutes: float
) -> None:
    """Train a language model, saving every so many minutes, and write it to ``out``."""
    from interp.lock import LOCK
    from interp.output import check_output, drop, sweep
    from trained.language.card import made_by_language, write_language
    from trained.language.recipe import read_language_recipe
    from trained.language.train import Training, prepare, trained_steps
    from trained.place import partial_of, training_place

    recipe = read_language_recipe(file)
    if seed is not None:
        recipe = replace(recipe, training=replace(recipe.training, seed=seed))

    def begin() -> None:
        """Look at what is there: before all, and when no other process may train here."""
        if resume and made_by_language(out, recipe):
            sweep(out.absolute().parent)
            drop(partial)
            typer.echo(f"{out} holds what this recipe makes: nothing is left to train")
            raise typer.Exit
        check_output(out, overwrite=overwrite, marker="training.json", inputs=[file])

    partial = partial_of(out)
    if not partial.exists():
        begin()
    try:
        with training_place(partial):
            begin()
            for path in () if resume else partial.iterdir():
                if path.name != LOCK:
                    drop(path)
            typer.echo("reading the sources and training the vocabulary", err=True)
            prepare(recipe, partial)
            training = Training(recipe, partial, resume=True)
            steps = trained_steps(training, minutes=minutes, told=_say)
            left = range(recipe.steps - training.step)
            for _ in zip(progress(recipe.name)(left), steps, strict=True):
                pass
            metrics = write_language(training, out, overwrite=overwrite)
            drop(partial)
    except KeyboardInterrupt:
        typer.echo(f"stopped; what was reached is in {partial}: go on with --resume", err=True)
        raise typer.Exit(130) from None
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    typer.echo(f"{recipe.name}: {numbers}; written to {out}")
    for words in recipe.missed(metrics):
        typer.echo(f"note: {words}")
    about = {"name": recipe.name, "checkpoint": out, "metrics": metrics}
    facts(models=[about | {"missed": recipe.missed(metrics)}])


def _say(line: dict[str, Any]) -> None:
    words = ", ".join(f"{name} {value}" for name, value in line.items())
    typer.echo(words, err=True)
