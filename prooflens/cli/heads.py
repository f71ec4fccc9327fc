"""``prooflens heads``: the roles of a model's heads, FFNs and layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from prooflens.cli.usage import OWN_ROWS, Device, RunDtype, facts, not_for, progress, shipped_models

__all__ = ["heads"]

_MARKER = ".prooflens-heads"
_OF_A_MODEL = ("task", "data", "rows", "dtype")


def heads(
    model: Annotated[
        str,
        typer.Argument(
            help="A shipped model, a folder, a Hugging Face name; or a store.",
            autocompletion=shipped_models,
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(help="KIND or KIND:ARGUMENT=VALUE,…; the model's own by default."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help=f"{OWN_ROWS} In place of a task's."),
    ] = None,
    profile: Annotated[
        Literal["task", "language"],
        typer.Option(help="language for rows of tokens that repeat (effects in nats)."),
    ] = "task",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the table, the figures and the store.")
    ] = None,
    rows: Annotated[int, typer.Option(min=16, help="Rows of the task to measure on.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows and of the nulls.")] = 0,
    device: Device = "cpu",
    dtype: RunDtype = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Find which role each head, FFN and layer plays, with the evidence.

    A role is confirmed when the component behaves so, something is lost without it, what is lost
    is lost through this role, and all that holds on other rows. Of a store whose model cannot be
    loaded nothing is more than a candidate, and the exit code is 1.

    Of a model of nested memories it also says which layer first holds which round and what breaks
    it, beside the proof (rounds.csv and a figure).
    """
    from interp.errors import Problems
    from interp.output import check_output
    from probes.roles.profile import PROFILES

    problems = Problems("heads")
    both = None if data is None or task is None else f"--task {task} and --data {data}"
    problems.need(both is None, "rows", "must be a task's or your own", both, "give one of them")
    problems.raise_if_any()
    asked = PROFILES[profile]
    if out is not None:
        read: list[str | Path] = [model, *([data] if data is not None else [])]
        check_output(out, overwrite=overwrite, marker=_MARKER, inputs=read)
    if (Path(model) / "manifest.json").is_file():
        not_for("a store", "which has its own rows and precision", *_OF_A_MODEL)
        _of_store(Path(model), out, overwrite, seed, asked, device)
        return
    built, drawn, about = _model_and_rows(model, task, data, rows, device=device, dtype=dtype)
    options = {"rows": rows, "seed": seed, "about": about, "profile": asked}
    options["watch"] = progress("heads")
    _of_model(built, drawn, out, overwrite, options)


def _model_and_rows(
    name: str, task: str | None, data: Path | None, rows: int, **place: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """The model, its task or rows of the user's, and how a store names both."""
    from prooflens.cli.loading import lasting_name, load_with_data, load_with_task

    drawn: Any
    if data is not None:
        model, own = load_with_data(name, data, rows=rows, **place)
        drawn, named = own.batch, {"data": own.about}
    else:
        model, drawn = load_with_task(name, "own" if task is None else task, **place)
        named = {"task": drawn.to_dict()}
    _need_heads(name, model)
    if place["dtype"] is not None:
        named["dtype"] = place["dtype"]
    return model, drawn, {"model": lasting_name(name), **named}


def _of_model(
    built: Any, drawn: Any, out: Path | None, overwrite: bool, options: dict[str, Any]
) -> None:
    from interp.output import output_folder, scratch_folder
    from prooflens.pages.roles import measure_model, write_files

    read = [options["about"]["model"]]
    if out is None:
        with scratch_folder() as folder:
            _say(measure_model(built, drawn, folder / "store", **options))
        return
    with output_folder(out, overwrite=overwrite, marker=_MARKER, inputs=read) as folder:
        found = measure_model(built, drawn, folder / "store", **options)
        written = write_files(found, folder)
        _say(found)
    typer.echo(f"{len(written)} files and the store in {out}")


def _need_heads(name: str, model: Any) -> None:
    from interp.errors import HookError
    from interp.interventions.components import components

    if not any(part.kind == "head" for part in components(model)):
        raise HookError(f"{name} has no attention heads: probe its hooks with 'prooflens probe'")


def _of_store(
    path: Path, out: Path | None, overwrite: bool, seed: int, profile: Any, device: str
) -> None:
    from functools import partial

    from interp.models.placing import check_place
    from interp.output import output_folder
    from interp.store import ActivationStore
    from prooflens.pages.roles import measure_store, model_of, write_files
    from trained.loading import load

    check_place(device, None)
    model, reason = model_of(ActivationStore(path), partial(load, device=device))
    if model is None:
        typer.echo(f"note: no more than candidates, since no model can be run: {reason}", err=True)
    found = measure_store(path, model, seed=seed, profile=profile, watch=progress("heads"))
    _say(found)
    if out is not None:
        with output_folder(out, overwrite=overwrite, marker=_MARKER, inputs=[path]) as folder:
            written = write_files(found, folder)
        typer.echo(f"{len(written)} files in {out}")
    if model is None:
        raise typer.Exit(1)


def _say(found: Any) -> None:
    from prooflens.pages.findings import status_counts
    from prooflens.pages.roles import roles_in_words, scores_in_words
    from prooflens.pages.rounds import rounds_in_words

    facts(roles=found.roles, scores=found.scores, notes=[found.note] if found.note else [])
    if found.note:
        typer.echo(f"note: {found.note}", err=True)
    for line in roles_in_words(found.roles):
        typer.echo(line)
    for line in scores_in_words(found.scores):
        typer.echo(line)
    typer.echo(status_counts(found.roles))
    if len(found.rounds):
        facts(rounds=found.rounds)
        for line in rounds_in_words(found.rounds):
            typer.echo(line)
