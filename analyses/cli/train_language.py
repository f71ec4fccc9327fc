"""``python -m analyses train-language``: train a language model, and write it with its card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from prooflens.commands import facts, progress

__all__ = ["train_language"]


def train_language(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="A recipe (.toml). [default: code-lm's]", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the model.")] = Path("out/code-lm"),
    seed: Annotated[int | None, typer.Option(min=0, help="In place of the recipe's.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted training.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
    minutes: Annotated[float, typer.Option(help="Minutes between two saves.")] = 5.0,
) -> None:
    """Train a language model by its recipe, and write it with its numbers and a card."""
    from analyses.language.card import is_made_by_language, write_language
    from analyses.language.recipe import RECIPE, read_language_recipe
    from analyses.language.train import LanguageRun, prepare, take_steps
    from prooflens.files import LOCK, check_output, drop, sweep
    from prooflens.trained import partial_of, training_place

    recipe = RECIPE if recipe is None else recipe
    plan = read_language_recipe(recipe)
    if seed is not None:
        plan = replace(plan, training=replace(plan.training, seed=seed))

    def begin() -> None:
        """Look at what is there: before all, and when no other process may train here."""
        if resume and is_made_by_language(out, plan):
            sweep(out.absolute().parent)
            drop(partial)
            typer.echo(f"{out} holds what this recipe makes: nothing is left to train")
            raise typer.Exit
        check_output(out, overwrite=overwrite, marker="training.json", inputs=[recipe])

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
            prepare(plan, partial)
            training = LanguageRun(plan, partial, resume=True)
            steps = take_steps(training, minutes=minutes, told=_say)
            left = range(plan.steps - training.step)
            for _ in zip(progress(plan.name)(left), steps, strict=True):
                pass
            metrics = write_language(training, out, overwrite=overwrite)
            drop(partial)
    except KeyboardInterrupt:
        typer.echo(f"stopped; what was reached is in {partial}: go on with --resume", err=True)
        raise typer.Exit(130) from None
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    typer.echo(f"{plan.name}: {numbers}; written to {out}")
    for words in plan.missed_bounds(metrics):
        typer.echo(f"note: {words}")
    about = {"name": plan.name, "checkpoint": out, "metrics": metrics}
    facts(models=[about | {"missed": plan.missed_bounds(metrics)}])


def _say(line: dict[str, Any]) -> None:
    words = ", ".join(f"{name} {value}" for name, value in line.items())
    typer.echo(words, err=True)
