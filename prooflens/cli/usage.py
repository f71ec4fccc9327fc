"""What all commands have in common: the usage line, ``--json``, and errors of use in one line.

Typer writes {model} for a required argument, which a shell user does not recognise as a
placeholder, and four lines for an unknown option. With ``--json`` a command prints one object on
standard output and nothing else there: the lines that it would have printed, and what was passed to
:func:`facts`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import json
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from interp.errors import ArgumentError, Problems
from interp.output import json_data
from prooflens.cli.steps import tell_steps

_FACTS: ContextVar[dict[str, Any] | None] = ContextVar("facts", default=None)
_GIVEN: ContextVar[frozenset[str]] = ContextVar("given", default=frozenset())
_HELP = "Print one JSON object instead of lines."
_TYPED = "COMMANDLINE"

Device = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, mps.")]
Adapter = Annotated[
    Path | None, typer.Option(help="Folder of a LoRA adapter, merged into the model.")
]
Dtype = Literal["float64", "float32", "bfloat16", "float16"]
RunDtype = Annotated[
    Dtype | None,
    typer.Option(help="Number format of the forward pass; the checkpoint's own by default."),
]
OWN_ROWS = "Rows of your own: .jsonl, .npy, .safetensors or .json, or a text."
"""Help text of the option ``--data``, the same in every command that has it."""

_LARGEST = 2**63 - 1
_NO_COMMAND = re.compile(r"no such command '([^']*)'")
_GONE = {
    "doctor": "--version",
    "heads": "inspect",
    "plot": "store STORE --figures",
    "view": "inspect",
}
"""Name of a command that earlier versions had → what to type after ``prooflens`` instead."""
MOST = {
    "batch": 1 << 20,
    "drawn": 100,
    "lag": 1 << 24,
    "length": 1 << 20,
    "lines": 1000,
    "longest": 1 << 20,
    "minutes": 1e9,
    "most": 100,
    "rows": 10**9,
    "seeds": 10**4,
    "threads": 1024,
    "top": 1 << 20,
    "workers": 1024,
}
"""Name of an option → the largest value that it takes. Options that are not named here take any
number of 64 bits. No option takes infinity."""


class Command(TyperCommand):
    """A command whose usage line shows arguments in capitals, and its help plain types."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Make Typer's command; its help shows integers as <int>, repeated options as <str>..."""
        super().__init__(*args, **options)
        for parameter in self.params:
            named = parameter.param_type_name == "option" and not getattr(parameter, "is_flag", 0)
            if named and parameter.metavar is None:
                parameter.metavar = _plain_type(parameter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name in the usage line."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece.replace("{", "").replace("}", "").upper() for piece in pieces]

    def invoke(self, ctx: Any) -> Any:
        """Run the command; refuse numbers that are NaN or too large for any computation.

        Raises:
            ArgumentError: naming every such number.
        """
        problems = Problems(ctx.info_name or "prooflens")
        for name, value in ctx.params.items():
            most = MOST.get(name, _LARGEST)
            for number in value if isinstance(value, list | tuple) else [value]:
                if isinstance(number, int | float) and not isinstance(number, bool):
                    rule, said = f"must be a number of at most {most:,}", f"--{name}"
                    advice = "lower it" if number == number else "give a number"
                    problems.need(abs(number) <= most, said, rule, number, advice)
        problems.raise_if_any()
        given = (name for name in ctx.params if ctx.get_parameter_source(name).name == _TYPED)
        token = _GIVEN.set(frozenset(given))
        try:
            with tell_steps(ctx.info_name or ""):
                return super().invoke(ctx)
        finally:
            _GIVEN.reset(token)


class App(typer.Typer):
    """A Typer application whose commands are of class :class:`Command`, with an option ``--json``
    that prints their output as one JSON object."""

    def __init__(self, *, example: str = "", **options: Any) -> None:
        """Make a :class:`typer.Typer` whose help ends with an example."""
        options = {"short_help": options.get("help"), "epilog": _epilog(example)} | options
        super().__init__(**options)

    def command(
        self, name: str | None = None, *, example: str = "", **options: Any
    ) -> Callable[..., Any]:
        """Register a function as a command, as :meth:`typer.Typer.command` does.

        Args:
            name: The name of the command.
            example: A line that runs it, shown at the end of its help.
            options: Further options for Typer.
        """
        plain = {"cls": Command, "epilog": _epilog(example)}
        add = super().command

        def register(function: Callable[..., None]) -> Callable[..., None]:
            whole = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
            add(name, **(plain | {"short_help": whole} | options))(_with_json(function))
            return function

        return register


def _epilog(example: str) -> str | None:
    """Return an example as the last paragraph of a help text, with its lines kept as they are."""
    return f"\b\nExample:\n  {example}" if example else None


def _plain_type(parameter: Any) -> str | None:
    """Return the type of an option as its help shows it, if Typer's word for it is technical."""
    found = getattr(parameter, "type_descriptor", None)
    if found is None:
        return None
    if found.is_ranged:
        return f"<{found.ranged_type_name}>"
    return "<str>..." if found.is_list else None


def shipped_models(incomplete: str) -> list[str]:
    """Return the names of shipped and packaged models with a prefix, for completion in a shell."""
    from trained.packaged import PACKAGED
    from trained.shipped_names import languages, names

    known = sorted((*names(), *languages(), *PACKAGED))
    return [name for name in known if name.startswith(incomplete)]


def default_out(model: str | Path, out: Path | None, command: str) -> Path:
    """Return the folder that a command writes.

    It is the requested one, or one named after the model and the command, such as
    ``out/code-lm-inspect``.

    Args:
        model: The model; for a store, the folder around it is used for the name.
        out: The requested folder; None if there is none.
        command: The name of the command.
    """
    if out is not None:
        return out
    parts = [part for part in Path(model).parts if part not in ("/", "..", ".", "store")]
    name = parts[-1] if parts else "model"
    return Path("out") / f"{name}-{command}"


def facts(**found: Any) -> None:
    """Add keys to the object that ``--json`` prints; without ``--json`` nothing happens.

    Tables become lists of records, paths become text, and numbers that are not finite become null.
    """
    kept = _FACTS.get()
    if kept is not None:
        kept.update(found)


def not_for(what: str, reason: str, *names: str) -> None:
    """Refuse options that were typed but would have no effect here.

    Args:
        what: What they cannot be used for, such as ``a store``.
        reason: Why, for the refusal.
        names: The names of the options' parameters.

    Raises:
        ArgumentError: naming the options that were typed.
    """
    typed = [f"--{name.replace('_', '-')}" for name in names if name in _GIVEN.get()]
    if typed:
        verb = "is" if len(typed) == 1 else "are"
        raise ArgumentError(f"{' and '.join(typed)} {verb} not for {what}, {reason}: leave it out")


def usage_error(error: Any) -> str:
    """Return one line for an error of the command line's parser, with the nearest option that
    exists.

    A group that is called without a command is answered with its help.

    Args:
        error: The parser's error: its message, and the context of the command if there is one.
    """
    if "\n" in error.format_message():  # a group without a command: its help
        return str(error.format_message())
    context = getattr(error, "ctx", None)
    command = "prooflens" if context is None else context.command_path
    words = error.format_message() if context is None else error.message
    words = words[:1].lower() + words[1:].rstrip(".")
    asked = getattr(error, "option_name", None)
    if asked and context is not None and words.startswith("no such option"):
        known = [name for p in context.command.params for name in p.opts if name[:2] == "--"]
        near = get_close_matches(asked, known, n=1, cutoff=0.5)
        words += f"; did you mean {near[0]}?" if near else ""
    elif (slip := _NO_COMMAND.match(words)) and slip[1] in _GONE:
        words = f"{slip[0]}; it is part of prooflens {_GONE[slip[1]]}"
    elif context is not None:
        words = error.format_message()[:1].lower() + error.format_message()[1:].rstrip(".")
        words = words.replace("Value error, ", "").replace("Input should", "it should")
    where = command.replace("prooflens", "", 1).strip()
    said = f"{where}: {words}" if where else words
    return f"prooflens: {said} ('{command} --help' lists what it takes)"


def _with_json(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with ``--json``, which prints its output as one JSON object."""

    @functools.wraps(function)
    def command(*args: Any, as_json: bool, **options: Any) -> None:
        if not as_json:
            function(*args, **options)
            return
        printed, kept = io.StringIO(), dict[str, Any]()
        token = _FACTS.set(kept)
        try:
            with contextlib.redirect_stdout(printed):
                function(*args, **options)
        except typer.Exit:
            _print(printed, kept)
            raise
        finally:
            _FACTS.reset(token)
        _print(printed, kept)

    signature = inspect.signature(function, eval_str=True)
    option = inspect.Parameter(
        "as_json",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, typer.Option("--json", help=_HELP)],
    )
    parameters = [*signature.parameters.values(), option]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _print(printed: io.StringIO, kept: Mapping[str, Any]) -> None:
    said = {"lines": printed.getvalue().splitlines(), **kept}
    sys.stdout.write(json.dumps(json_data(said), allow_nan=False, ensure_ascii=False) + "\n")
