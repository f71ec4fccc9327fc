"""The ``prooflens`` command: collects the subcommands and turns errors into one line.

Nothing heavy is imported here or at the top of a command's file: ``prooflens --help`` must
answer at once, so each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from analyses.cli import (
    certify,
    claims,
    crasp,
    decompile,
    demo,
    doctor,
    extract,
    fits,
    heads,
    inspect,
    models,
    plot,
    probe,
    store,
    tasks,
    train,
    view,
    weights,
)
from analyses.cli.usage import App, usage_error
from interp.errors import ProoflensError

__all__ = ["app", "main"]

app = App(
    name="prooflens",
    help="Check what a transformer does against a proof of what it can do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("certify")(certify.certify)
app.add_typer(claims.app, name="claims")
app.add_typer(crasp.app, name="crasp")
app.command("decompile")(decompile.decompile)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("extract")(extract.extract)
app.add_typer(fits.app, name="fits")
app.command("inspect")(inspect.inspect)
app.command("probe")(probe.probe)
app.command("heads")(heads.heads)
app.command("plot")(plot.plot)
app.add_typer(store.app, name="store")
app.command("models")(models.models)
app.command("tasks")(tasks.tasks)
app.command("train")(train.train)
app.command("view")(view.view)
app.command("weights")(weights.weights)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prooflens {version('prooflens')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: a refusal is one line on standard error and exit code 2.

    Exit code 1 says that a command ran and found something wrong (a damaged store, a claim that
    stopped), 130 that it was interrupted. An error that nobody foresaw is one line too, with exit
    code 70 and the traceback in a file; with ``PROOFLENS_TRACEBACK`` set it is raised.
    """
    # joblib replaces a worker that has grown, and loses nothing by it.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name need not be text
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(app(prog_name="prooflens", standalone_mode=False))
    except ProoflensError as error:
        _refused(str(error))
    except typer.Abort:
        typer.echo("prooflens: stopped", err=True)
        sys.exit(130)
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own, whatever its class
            typer.echo(usage_error(error), err=True)
            sys.exit(2)
        if "PROOFLENS_TRACEBACK" in os.environ:
            raise
        if words := _environment(error):
            _refused(words)
        typer.echo(f"prooflens: {_unforeseen(error)}", err=True)
        sys.exit(70)


def _refused(words: str) -> NoReturn:
    typer.echo(f"prooflens: {words}", err=True)
    sys.exit(2)


def _environment(error: Exception) -> str:
    """What the machine refused, in words; empty where the mistake is ours."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "this takes more memory than is free: ask for fewer rows, a shorter length or batch"
    if isinstance(error, OSError) and error.errno is not None:
        place = f": {os.fsdecode(error.filename)}" if error.filename else ""
        return f"the system refused: {error.strerror}{place}"
    return ""


def _unforeseen(error: Exception) -> str:
    """An error of ours, not of the user's, in a line; the traceback goes to a file."""
    import tempfile
    import traceback

    reason = (str(error).strip().splitlines() or ["no reason given"])[0]
    with tempfile.NamedTemporaryFile(
        "w", prefix="prooflens-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write("".join(traceback.format_exception(error)))
    return (
        f"a mistake of prooflens, not yours: {type(error).__name__}: {reason} (please report it "
        f"with {file.name})"
    )
