"""The ``prooflens`` command: collects the subcommands and turns errors into one line.

Nothing heavy is imported here or at the top of a command's file: ``prooflens --help`` must
answer at once, so each command imports what it needs when it runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from prooflens.cli import (
    certify,
    crasp,
    decompile,
    demo,
    doctor,
    extract,
    inspect,
    models,
    plot,
    probe,
    store,
    tasks,
    train,
    weights,
)
from prooflens.cli.running import run_app
from prooflens.cli.usage import App

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
    inspect.inspect: "inspect code-lm --out report",
    models.models: "models --json",
    plot.plot: "plot report/store --out figures",
    probe.probe: "probe fixed-memory-multiplexer --out probes",
    tasks.tasks: "tasks fixed_memory",
    train.train: "train fixed-memory-multiplexer --out trained",
    weights.weights: "weights code-lm --revisions step-500,step-900,main --out weights",
}
"""Every command that stands alone, named as its function, with the example of its help."""

for _command, _example in _COMMANDS.items():
    app.command(_command.__name__, example=f"prooflens {_example}")(_command)
for _name, _group in (
    ("crasp", crasp.app),
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
    """Run the command line ``prooflens``."""
    run_app(app, "prooflens")


def command_names() -> list[str]:
    """Every command, those of a group with the group's name before: ``store verify``."""
    alone = [command.__name__ for command in _COMMANDS]
    grouped = [
        f"{group.name} {command.name}"
        for group in app.registered_groups
        for command in (group.typer_instance or app).registered_commands
    ]
    return sorted(alone + grouped)
