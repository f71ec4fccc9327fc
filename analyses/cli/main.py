"""The ``prooflens`` command: collects the subcommands and turns errors into one line.

Nothing heavy is imported here or at the top of a command's file: ``prooflens --help`` must
answer at once, so each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
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
from interp.plugins import PluginWarning

__all__ = ["app", "main"]

_PLAIN = warnings.formatwarning

app = App(
    name="prooflens",
    help="Check what a transformer does against a proof of what it can do.",
    example="prooflens inspect code-lm --out report    # then open report/report.html",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_COMMANDS: dict[Callable[..., None], str] = {
    certify.certify: "certify fixed-memory-multiplexer --length 12 --out theorem",
    decompile.decompile: "decompile depth-L3-layers1 --out program",
    demo.demo: "demo --out demo",
    doctor.doctor: "doctor --json",
    extract.extract: "extract induction-mlp --hooks '*hook_pattern' --rows 256 --out store",
    heads.heads: "heads induction-mlp --out heads",
    inspect.inspect: "inspect code-lm --out report",
    models.models: "models --json",
    plot.plot: "plot heads/store --out figures",
    probe.probe: "probe fixed-memory-multiplexer --out probes",
    tasks.tasks: "tasks fixed_memory",
    train.train: "train fixed-memory-multiplexer --out trained",
    view.view: "view code-lm --out heads.html",
    weights.weights: "weights code-lm --revisions step-500,step-900,main --out weights",
}
"""Every command that stands alone, named as its function, with the example of its help."""

for _command, _example in _COMMANDS.items():
    app.command(_command.__name__, example=f"prooflens {_example}")(_command)
for _name, _group in (
    ("claims", claims.app),
    ("crasp", crasp.app),
    ("fits", fits.app),
    ("store", store.app),
):
    app.add_typer(_group, name=_name)


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
    warnings.formatwarning = _noted
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


def _noted(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """What is written of a warning: of a plug-in that is left out one line, of others Python's."""
    if issubclass(category, PluginWarning):
        return f"note: {message}\n"
    return _PLAIN(message, category, filename, lineno, line)


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
