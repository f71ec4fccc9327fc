"""``prooflens tasks``: the kinds of tasks, and the arguments of each."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from prooflens.cli.outputs import ArgumentOutput, TaskOutput, TasksOutput
from prooflens.cli.usage import facts


def tasks(
    kind: Annotated[
        str | None, typer.Argument(help="One kind, for its arguments. [default: all kinds]")
    ] = None,
) -> None:
    """List the kinds of tasks that --task and recipes take, or the arguments of one."""
    from difflib import get_close_matches

    from interp.errors import ArgumentError
    from interp.tasks.catalogue import KINDS

    if kind is None:
        facts(**TasksOutput(tasks={name: _about(cls) for name, cls in KINDS.items()}))
        widest = max(map(len, KINDS))
        for name, cls in KINDS.items():
            typer.echo(f"{name:{widest}}  {_about(cls)}")
        typer.echo("\n'prooflens tasks KIND' lists the arguments of one.")
        return
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, 1)
        advice = f"did you mean {near[0]}?" if near else "name one"
        raise ArgumentError(f"KIND must be one of {', '.join(KINDS)}, got {kind!r}: {advice}")
    _describe(kind, KINDS[kind])


def _describe(kind: str, cls: Any) -> None:
    from interp.tasks.catalogue import arguments_of

    typer.echo(f"{kind}: {_about(cls)}\n")
    known = arguments_of(cls)
    arguments = {
        name: ArgumentOutput(
            type=argument.type,
            needed=argument.needed,
            default=None if argument.needed else argument.default,
            meaning=_plain(argument.meaning),
        )
        for name, argument in known.items()
    }
    facts(**TaskOutput(kind=kind, arguments=arguments))
    for name, argument in known.items():
        default = "must be given"
        if not argument.needed:
            default = f"default {json.dumps(argument.default, ensure_ascii=False)}"
        typer.echo(f"{name}: {argument.type}; {default}")
        if argument.meaning:
            typer.echo(f"    {_plain(argument.meaning)}")
    needed = ",".join(f"{name}=…" for name, argument in known.items() if argument.needed)
    typer.echo(f"\n--task {kind}{':' * bool(needed)}{needed}    (values as JSON, e.g. [1,3])")


def _about(cls: Any) -> str:
    import inspect

    return _plain((inspect.getdoc(cls) or "").split("\n\n")[0])


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("`", "")
