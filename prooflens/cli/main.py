"""The ``prooflens`` command: collects the subcommands and turns errors into one line.

Nothing heavy is imported here or at the top of a command's file: ``prooflens --help`` must
answer at once, so each command imports what it needs when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from prooflens.cli import (
    certify,
    crasp,
    decompile,
    demo,
    extract,
    inspect,
    models,
    probe,
    store,
    tasks,
    train,
    weights,
)
from prooflens.cli.running import run_app
from prooflens.cli.usage import App

_OPTIONAL = ("ray", "hdf5plugin", "anywidget", "gguf")
"""Packages that prooflens uses where they are installed."""

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
    crasp.crasp: "crasp dyck.cr '( ( ) )'",
    decompile.decompile: "decompile depth-L3-layers1 --out program",
    demo.demo: "demo --out demo",
    extract.extract: "extract induction-mlp --hooks '*hook_pattern' --rows 256 --out store",
    inspect.inspect: "inspect code-lm --out report",
    models.models: "models --json",
    probe.probe: "probe fixed-memory-multiplexer --out probes",
    store.store: "store report --figures --out figures",
    tasks.tasks: "tasks fixed_memory",
    train.train: "train fixed-memory-multiplexer --out trained",
    weights.weights: "weights code-lm --revisions step-500,step-900,main --out weights",
}
"""Every command, named as its function, with the example of its help."""

for _command, _example in _COMMANDS.items():
    app.command(_command.__name__, example=f"prooflens {_example}")(_command)


def _print_versions(wanted: bool) -> None:
    """Print what is installed, on what machine: versions, threads and device."""
    if not wanted:
        return
    import torch

    from interp.environment import environment, installed

    found = environment()
    rows = {"prooflens": found.pop("prooflens"), **found}
    rows |= {package: installed(package) for package in _OPTIONAL}
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    rows["device"] = f"cuda ({gpu})" if gpu else "cpu"
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")
    raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Print versions, threads and device.",
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line ``prooflens``."""
    run_app(app, "prooflens")


def command_names() -> list[str]:
    """Every command."""
    return sorted(command.__name__ for command in _COMMANDS)
