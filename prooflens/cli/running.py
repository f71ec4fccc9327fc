"""Run an application of commands: refusals and mistakes are one line each, with an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from io import TextIOWrapper
from typing import NoReturn

import typer

from interp.errors import ProoflensError
from interp.plugins import PluginWarning
from prooflens.cli.usage import App, usage_error

_PLAIN = warnings.formatwarning


def run_app(app: App, name: str) -> None:
    """Run a command line; a refusal prints one line on standard error and has exit code 2.

    Exit code 1 says that a command ran and found something wrong (a damaged store, a claim that
    does not hold), 130 that it was interrupted. An unforeseen error prints one line too, with exit
    code 70 and the traceback in a file; with ``PROOFLENS_TRACEBACK`` set it is raised.

    Args:
        app: The application.
        name: What a user types to run it, for its usage lines.
    """
    # joblib replaces a worker that has grown, and loses nothing by it.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    warnings.formatwarning = _warning_text
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name need not be text
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(app(prog_name=name, standalone_mode=False))
    except ProoflensError as error:
        _refuse(str(error))
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
            _refuse(words)
        typer.echo(f"prooflens: {_unforeseen(error)}", err=True)
        sys.exit(70)


def _warning_text(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return the text of a warning: one line for a plug-in that is left out, else Python's own
    text."""
    if issubclass(category, PluginWarning):
        return f"note: {message}\n"
    return _PLAIN(message, category, filename, lineno, line)


def _refuse(words: str) -> NoReturn:
    typer.echo(f"prooflens: {words}", err=True)
    sys.exit(2)


def _environment(error: Exception) -> str:
    """Return what the machine refused, in words; empty if the error is a bug."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "this takes more memory than is free: ask for fewer rows, a shorter length or batch"
    if isinstance(error, OSError) and error.errno is not None:
        place = f": {os.fsdecode(error.filename)}" if error.filename else ""
        return f"the system refused: {error.strerror}{place}"
    return ""


def _unforeseen(error: Exception) -> str:
    """Return a bug's error in one line; its traceback is written to a file."""
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
