"""``prooflens train``: train recipes or grids and write checkpoints."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interp.ray_tasks import Backend
from prooflens.cli.outputs import TrainedOutput, TrainOutput
from prooflens.cli.usage import Device, facts

if TYPE_CHECKING:
    from trained.fit import Fit
    from trained.recipe import Recipe


def train(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="A shipped model's name, or a file: a recipe or a grid (.toml)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the checkpoint, or of all of them. [default: out/NAME]"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Train all recipes of tasks.")] = False,
    seeds: Annotated[str, typer.Option(help="One model a seed, e.g. 0,1,2.")] = "",
    seed: Annotated[int | None, typer.Option(min=0, help="In place of the recipe's.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted training.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing checkpoints.")
    ] = False,
    backend: Annotated[
        Backend, typer.Option(help="Ray makes each stack of models a task on your cluster.")
    ] = "local",
    device: Device = "cpu",
    workers: Annotated[int | None, typer.Option(help="Local processes. [default: cores]")] = None,
    minutes: Annotated[float, typer.Option(help="Minutes between two saves.")] = 5.0,
) -> None:
    """Train a recipe's model, a grid of models, or all shipped ones, and write checkpoints."""
    from trained import grid
    from trained.stack_runner import partial_of

    recipes, folder, single = _recipes(recipe, out, every, seeds, seed)
    partial = partial_of(folder)
    outputs = _Outputs(recipes, folder, single, partial, recipe, resume, overwrite)
    if not partial.exists():
        outputs.look()
    try:
        grid.train(
            [r.run for r in recipes],
            folder=partial,
            resume=resume,
            overwrite=overwrite,
            device=device,
            backend=backend,
            progress=sys.stderr.isatty(),
            workers=workers,
            minutes=minutes,
            begin=outputs.look,
            finish=outputs.save,
        )
    except KeyboardInterrupt:
        typer.echo(f"stopped; what was reached is in {partial}: go on with --resume", err=True)
        raise typer.Exit(130) from None


@dataclass
class _Outputs:
    """The places of the checkpoints, and which of them exist already.

    Attributes:
        recipes: The recipes that are trained.
        folder: The folder of all checkpoints, or of the only one.
        single: Whether ``folder`` is the only checkpoint's.
        partial: The folder of training states until all is done.
        source: The file that recipes were read from.
        resume, overwrite: The values of the options ``--resume`` and ``--overwrite``.
        done: The names of recipes whose checkpoints exist.
    """

    recipes: list[Recipe]
    folder: Path
    single: bool
    partial: Path
    source: Path | None
    resume: bool
    overwrite: bool
    done: set[str] = field(default_factory=set)

    def place(self, name: str) -> Path:
        """Return the folder of a recipe's checkpoint."""
        return self.folder if self.single else self.folder / name

    def look(self) -> None:
        """Find out which checkpoints exist, before training and while no other process may train
        here.

        Raises:
            Exit: if nothing is left to train.
            OutputError: for a folder that may not be written.
        """
        from interp.output import sweep
        from trained.fit import check_places, is_made_by
        from trained.stack_runner import has_output

        names = [r.name for r in self.recipes]
        self.done |= {
            r.name for r in self.recipes if self.resume and is_made_by(self.place(r.name), r)
        }
        if self.done == set(names) and not has_output(self.partial):
            sweep(self.folder.absolute().parent)
            typer.echo(f"{self.folder} holds what these recipes make: nothing is left to train")
            raise typer.Exit
        todo = [self.place(name) for name in names if name not in self.done]
        inputs = [] if self.source is None else [self.source]
        check_places(todo, overwrite=self.overwrite, inputs=inputs)

    def save(self, fits: list[Fit]) -> None:
        """Write the checkpoints, print their metrics, and remove the training states."""
        from trained.fit import save_fit

        told = []
        for plan, fit in zip(self.recipes, fits, strict=True):
            place, again = self.place(plan.name), self.overwrite or plan.name in self.done
            written = save_fit(plan, fit, place, overwrite=again)
            _tell(plan, place, fit, written)
            one = TrainedOutput(
                name=plan.name,
                checkpoint=str(place) if written else None,
                metrics=dict(fit.metrics),
                missed=plan.missed_bounds(fit.metrics),
            )
            told.append(one)
        facts(**TrainOutput(models=told))
        _put_away(self.partial, self.folder, self.single)


def _recipes(
    recipe: Path | None, out: Path | None, every: bool, seeds: str, seed: int | None
) -> tuple[list[Recipe], Path, bool]:
    """Return the recipes, the output folder, and whether that folder is the checkpoint itself."""
    from dataclasses import replace

    from interp.errors import Problems
    from trained.recipe import read_plan, recipe_file, with_seeds
    from trained.recipe import recipes as shipped

    problems = Problems("train")
    advice = "give a recipe's file, or --all"
    problems.need(every != (recipe is not None), "RECIPE", "or --all must be given", None, advice)
    numbers = [word.strip() for word in seeds.split(",")] if seeds else []
    good = all(word.isdecimal() for word in numbers) and len(set(numbers)) == len(numbers)
    problems.need(good, "--seeds", "must be different whole numbers", seeds, "e.g. 0,1,2")
    problems.need(seed is None or not numbers, "--seed", "or --seeds, not both", seed, "drop one")
    problems.raise_if_any()
    plans: list[Any] = shipped() if recipe is None else read_plan(recipe_file(recipe))
    if seed is not None:
        plans = [replace(p, training=replace(p.training, seed=seed)) for p in plans]
    name = "zoo" if recipe is None else recipe.stem
    single = recipe is not None and len(plans) == 1 and not numbers
    plans = with_seeds(plans, [int(word) for word in numbers]) if numbers else plans
    return plans, out if out is not None else Path("out") / name, single


def _tell(plan: Recipe, place: Path, fit: Fit, written: bool) -> None:
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in fit.metrics.items())
    where = f"written to {place}" if written else "diverged, not written"
    typer.echo(f"{plan.name}: {numbers}; {where}")
    for words in plan.missed_bounds(fit.metrics):
        typer.echo(f"note: {words}")


def _put_away(partial: Path, folder: Path, single: bool) -> None:
    """Remove the training states, which are no longer needed; a grid keeps its table of metrics."""
    from interp.output import draft_of, drop, settle

    if not single:
        folder.mkdir(parents=True, exist_ok=True)
        settle(partial / "metrics.csv", folder / "metrics.csv")
    away = draft_of(partial)
    partial.replace(away)  # a process that dies here leaves what the next run sweeps
    drop(away)
