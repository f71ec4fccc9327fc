"""``prooflens inspect``: what every component of a model does, and what breaks without it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from interp.lazy import pause_collection
from interp.ray_tasks import Backend
from prooflens.cli.outputs import InspectOutput
from prooflens.cli.steps import progress, steps
from prooflens.cli.usage import (
    OWN_ROWS,
    Adapter,
    Device,
    RunDtype,
    default_out,
    facts,
    not_for,
    shipped_models,
)

_OF_A_MODEL = ("task", "quick", "text", "data", "tokens_from", "prompt", "rows", "length", "dtype",
               "mapping", "revision", "revisions", "resume", "backend", "adapter")  # fmt: skip


_Model = Annotated[
    str,
    typer.Argument(
        help="A shipped model, a folder, a hub id; or a store.", autocompletion=shipped_models
    ),
]
_Out = Annotated[
    Path | None,
    typer.Option(help="Folder of the page, the tables and the store; by default the model's."),
]
_Text = Annotated[str | None, typer.Option(help="A text file, or a text, to try the model on.")]
_Data = Annotated[Path | None, typer.Option(help=OWN_ROWS)]
_Task = Annotated[
    str | None, typer.Option(help="KIND or KIND:ARGUMENT=VALUE,…; the model's own by default.")
]
_Prompt = Annotated[
    list[str] | None,
    typer.Option(help="A row to show: text, or token ids with spaces; may be repeated."),
]
_Profile = Annotated[
    Literal["task", "language"] | None,
    typer.Option(
        help="In place of what follows from the rows: language where their targets are the next "
        "tokens (effects in nats), else task."
    ),
]
_From = Annotated[
    Path | None,
    typer.Option(help="Rows of token ids (as --data): random rows hold their tokens alone."),
]
_Rows = Annotated[int | None, typer.Option(help="Rows of each kind: 256 of a task, else 32.")]
_Quick = Annotated[bool, typer.Option("--quick", help="At most 16 rows, of 32 tokens that repeat.")]
_Effects = Annotated[
    bool,
    typer.Option(
        "--effects",
        help="The loss without every head and FFN; of large models only heads with a role's "
        "behaviour are ablated otherwise.",
    ),
]
_Code = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run a repository's own Python code.")
]
_Revisions = Annotated[
    str | None,
    typer.Option(
        help="Roles over training: comma-separated revisions on the hub, or folders of "
        "checkpoints in the model's folder, in order; main is the model itself."
    ),
]
_Mapping = Annotated[
    Path | None,
    typer.Option(help="TOML or JSON file: where an unknown architecture keeps its weights."),
]
_Backend = Annotated[
    Backend, typer.Option(help="Ray makes the losses without components tasks on your cluster.")
]


def inspect(
    model: _Model,
    out: _Out = None,
    text: _Text = None,
    data: _Data = None,
    task: _Task = None,
    prompt: _Prompt = None,
    profile: _Profile = None,
    tokens_from: _From = None,
    rows: _Rows = None,
    length: Annotated[int, typer.Option(help="Tokens of a row, at most.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows and nulls.")] = 0,
    quick: _Quick = False,
    effects: _Effects = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    revisions: _Revisions = None,
    trust_remote_code: _Code = False,
    device: Device = "cpu",
    dtype: RunDtype = None,
    mapping: _Mapping = None,
    adapter: Adapter = None,
    backend: _Backend = "local",
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
) -> None:
    """Find what every head, FFN and layer does, on what evidence, and what breaks without it.

    One page is written: what was found first, then every head with the rows it reads, its roles
    with their tests, and what would have to be doubted. Of a store that an inspection sealed its
    tables into, the page is drawn from them alone. Of a store whose model cannot be loaded nothing
    is more than a candidate, and the exit code is 1.
    """
    from interp.output import check_output

    stored = (Path(model) / "manifest.json").is_file()
    if stored:
        not_for("a store", "which has its own rows and precision", *_OF_A_MODEL)
    out = default_out(model, out, "inspect")
    words = None if text is None else _text(text)
    files = (text, data, tokens_from, mapping, adapter)
    read = [model, *(given for given in files if given is not None)]
    if revisions is None:  # a series has folders of its own, and checks them
        marker = ".prooflens-inspect"
        check_output(out, overwrite=overwrite, marker=marker, inputs=read, resume=resume)
    if rows is not None and rows < 4:
        from interp.errors import ArgumentError

        raise ArgumentError(f"rows must be at least 4, got {rows}: nulls exchange rows")
    given: dict[str, Any] = {"text": words, "tokens_from": tokens_from, "prompts": prompt or ()}
    with pause_collection():
        from prooflens.inspection import inspect as inspected
    gc.freeze()  # what was imported stays: later collections need not look through it

    given["task"] = _task(task, data)
    given |= {"rows": data, "profile": profile, "count": rows, "length": length, "seed": seed}
    given |= {"quick": quick, "effects": effects, "backend": backend, "mapping": mapping}
    given |= {"revision": revision, "device": device, "dtype": dtype, "adapter": adapter}
    given |= {"step": steps(), "overwrite": overwrite, "resume": resume}
    given |= {"trust_remote_code": trust_remote_code, "watch": progress("working")}
    if revisions is not None:
        _over_training(model, [name.strip() for name in revisions.split(",")], out, given)
        return
    _say(inspected(model, out=out, **given), out / "report.html")


def _over_training(model: str, revisions: list[str], out: Path, given: dict[str, Any]) -> None:
    """Run ``--revisions``: an inspection of each checkpoint, and one page on all."""
    from prooflens.over_training import inspect_over_training

    found = inspect_over_training(model, revisions, out, **given)
    page, roles = out / "report.html", cast(Any, found.records)
    for line in found.findings:
        typer.echo(line)
    facts(**InspectOutput(findings=found.findings, notes=[], roles=roles, report=str(page)))
    typer.echo(f"report: {page}")


def _say(found: Any, page: Path) -> None:
    """Print the findings; for a store without its model the exit code is 1."""
    for line in found.lines:
        typer.echo(line)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    roles: Any = found.records("roles")
    told = InspectOutput(findings=found.lines, notes=found.notes, roles=roles, report=str(page))
    facts(**told)
    if len(found.measured["rounds"]):
        facts(rounds=found.records("rounds"))
    typer.echo(f"report: {page}")
    if not found.measured.about["ran"]:
        raise typer.Exit(1)


def _task(task: str | None, data: Path | None) -> Any:
    """Return the task that replaces the model's own; None if none is named."""
    from interp.errors import need
    from prooflens.cli.loading import named_task

    both = None if data is None or task is None else f"--task {task} and --data {data}"
    need("inspect", both is None, "rows", "must be a task's or your own", both, "give one of them")
    return None if task is None else named_task(task)


def _text(given: str) -> str:
    """Return the text given on the command line: the contents of a file, or the words themselves.

    A text without a space is taken as the name of a file.

    Raises:
        ArgumentError: if the file does not exist, or is not UTF-8 text.
    """
    from interp.reading import read_text

    file = Path(given)
    if any(letter.isspace() for letter in given) and not file.is_file():
        return given
    return read_text(file, "text")
