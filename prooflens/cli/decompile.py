"""``prooflens decompile``: from a trained model back to a program, and that program run alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from prooflens.cli.outputs import ApplyOutput, DecompileOutput, ReadBackOutput
from prooflens.cli.usage import (
    OWN_ROWS,
    Device,
    RunDtype,
    default_out,
    facts,
    not_for,
    shipped_models,
)


def decompile(
    model: Annotated[
        str,
        typer.Argument(
            help="A shipped model, a folder, or a hub id; or the word apply.",
            autocompletion=shipped_models,
        ),
    ],
    program: Annotated[
        Path | None, typer.Argument(help="With apply: the program to run, without any model.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help=f"{OWN_ROWS} Those of the model's own task by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of program, result and report.")] = None,
    lines: Annotated[int, typer.Option(min=1, help="Longest program that is looked at.")] = 20,
    rows: Annotated[int, typer.Option(min=8, help="Rows of the model's own task.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the held-out rows.")] = 0,
    device: Device = "cpu",
    dtype: RunDtype = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
) -> None:
    """Find a short program that decides as a model does, and say how faithful it is.

    With the word apply in the model's place a program that was found is run on rows:
    prooflens decompile apply DIR/program.txt --data rows.json. Of what crasp --compile made the
    program is read off the weights and printed; no rows are needed.
    """
    from interp.errors import Problems

    applying = model == "apply"
    problems = Problems("decompile")
    if applying:
        problems.need(
            program is not None, "program", "must be given with apply", program, "name the file"
        )
        problems.need(data is not None, "data", "must be given with apply", data, "name the rows")
    else:
        problems.need(program is None, "program", "goes with apply alone", program, "leave it out")
    problems.raise_if_any()
    if applying and program is not None and data is not None:
        lost = ("out", "lines", "rows", "seed", "device", "dtype", "overwrite")
        not_for("apply", "which runs a program on rows", *lost)
        applied = _apply_program(program, data)
        facts(**applied)
        typer.echo(json.dumps(applied))
    elif data is None and (words := _compiled_words(model)):
        reason = "whose program is read off its weights and printed"
        not_for("a compiled model", reason, "out", "lines", "rows", "overwrite")
        _read_back(model, words, seed, device=device, dtype=dtype)
    else:
        out = default_out(model, out, "decompile")
        about = {"lines": lines, "count": rows, "seed": seed}
        _decompile_model(model, data, out, overwrite, about, device=device, dtype=dtype)


def _compiled_words(name: str) -> list[str | None]:
    """Return the text of each id but BOS in a model that crasp --compile wrote; empty for other
    models."""
    from interp.models.checkpoint import read_metadata
    from interp.schema import faults

    if not (Path(name) / "model.json").is_file():
        return []
    told = read_metadata(name).get("vocabulary")
    return [] if told is None or faults(list[str | None], told, "vocabulary") else told[1:]


def _read_back(name: str, words: list[str | None], seed: int, **place: Any) -> None:
    """Print the C-RASP program that is read off a compiled model's weights."""
    from interp.errors import CheckpointError
    from interp.program.printer import program_text
    from interp.proofs.depth.decompiler.program import decompile_counting
    from trained.loading import load

    found = decompile_counting(load(name, **place), words, seed=seed)
    if found.program is None:
        raise CheckpointError(
            f"the model's weights are no longer those of a program: {found.reason}; give rows "
            "(--data FILE) for a program that decides as it does"
        )
    text = program_text(found.program)
    facts(**ReadBackOutput(program=text, agreement=found.agreement, decisions=found.decisions))
    typer.echo(text.rstrip())
    typer.echo(
        f"read off the weights; as the model on {found.agreement:.4%} of {found.decisions:,} "
        "decisions on fresh strings",
        err=True,
    )


def _apply_program(program: Path, data: Path) -> ApplyOutput:
    """Return how many decisions a program makes on rows, and the share that agrees with the
    labels."""
    from interp.errors import Problems
    from interp.program.decision_parser import read_program
    from interp.program.evaluation import run
    from probes.decompile.decisions import agreement, decide
    from probes.own_rows import read_rows

    read = read_program(program)
    rows = read_rows(data)
    problems = Problems("decompile apply")
    rule, advice = f"must be {read.objective}, as the program's", "give rows that it is for"
    problems.need(rows.objective == read.objective, "objective", rule, rows.objective, advice)
    problems.raise_if_any()
    found = decide(run(read, rows.tokens, rows.vocabulary), rows)
    asked = rows.labels is not None and found.size > 0
    right = agreement(found, rows.labels[rows.asked]) if asked and rows.labels is not None else None
    return ApplyOutput(decisions=int(found.size), right=right)


def _decompile_model(
    name: str,
    data: Path | None,
    out: Path,
    overwrite: bool,
    about: dict[str, int],
    **place: Any,
) -> None:
    from interp.errors import ArgumentError
    from interp.output import check_output

    marker = "program.txt"
    inputs = [path for path in (name, data) if path is not None]
    check_output(out, overwrite=overwrite, marker=marker, inputs=inputs)

    from probes.decompile.workflow import decompile as find_program
    from probes.own_rows import read_rows
    from prooflens.cli.steps import steps
    from prooflens.pages.decompiled import write_decompiled
    from trained.loading import load

    step = steps()
    step(f"loading {name}")
    model = load(name, **place)
    given = None if data is None else read_rows(data, model.card)
    if given is None and model.card.task is None:
        raise ArgumentError(
            f"data must be given for {name!r}, which knows no task of its own: --data FILE "
            "(docs/howto-decompile says what it holds)"
        )
    found = find_program(model, given, step=step, **about)
    typer.echo(
        write_decompiled(found, name, out, analysed=model.card.analysed, overwrite=overwrite)
    )
    text = (out / marker).read_text(encoding="utf-8")
    page, needed = str(out / "report.html"), bool(found.record()["attention_needed"])
    told = DecompileOutput(answer=found.answer, attention_needed=needed, program=text, report=page)
    facts(**told)
    typer.echo(text.rstrip())
    typer.echo(f"report: {out / 'report.html'}")
