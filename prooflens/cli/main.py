"""The ``prooflens`` command: finds the subcommands and turns errors into one line.

A command's file is imported when the command is requested, and imports heavy modules only when it
runs: so ``prooflens --help`` answers at once, and a command imports no other command's files.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from prooflens.cli.running import run_app
from prooflens.cli.usage import App

_OPTIONAL = ("ray", "anywidget", "gguf")
"""Optional packages whose versions ``--version`` prints."""

_COMMANDS = {
    "certify": "certify fixed-memory-multiplexer --length 12 --out theorem",
    "crasp": "crasp dyck.cr '( ( ) )'",
    "decompile": "decompile depth-L3-layers1 --out program",
    "demo": "demo --out demo",
    "extract": "extract induction-mlp --hooks '*hook_pattern' --rows 256 --out store",
    "inspect": "inspect code-lm --out report",
    "models": "models --json",
    "probe": "probe fixed-memory-multiplexer --out probes",
    "store": "store report --figures --out figures",
    "tasks": "tasks fixed_memory",
    "train": "train fixed-memory-multiplexer --out trained",
    "weights": "weights code-lm --revisions step-500,step-900,main --out weights",
}
"""Name of each command → the example that its help shows. The command is the function of that name
in the file of that name."""

_STYLE: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}


class _Commands(TyperGroup):
    """The group of commands, each imported when it is requested."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name; None if there is none."""
        unknown = cmd_name not in _COMMANDS  # a near one of all is named then
        for name in _COMMANDS if unknown else [cmd_name]:
            if name not in self.commands:
                self.commands[name] = _command(name)
        return super().get_command(ctx, cmd_name)


def _command(name: str) -> Any:
    one = App(add_completion=False, **_STYLE)
    function = getattr(import_module(f"prooflens.cli.{name}"), name)
    one.command(name, example=f"prooflens {_COMMANDS[name]}")(function)
    return typer.main.get_command(one)


app = App(
    name="prooflens",
    cls=_Commands,
    help="Check what a transformer does against a proof of what it can do.",
    example="prooflens inspect code-lm --out report    # then open report/report.html",
    no_args_is_help=True,
    add_completion=True,
    **_STYLE,
)


def _print_versions(wanted: bool) -> None:
    """Print the installed versions, the threads and the device."""
    if not wanted:
        return
    import torch

    from interp.environment import environment, installed_version

    found = environment()
    rows = {"prooflens": found.pop("prooflens"), **found}
    rows |= {package: installed_version(package) for package in _OPTIONAL}
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
    """Return the names of all ``prooflens`` commands, sorted."""
    return sorted(_COMMANDS)
