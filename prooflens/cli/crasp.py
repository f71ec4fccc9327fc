"""``prooflens crasp``: check, run and compile C-RASP programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prooflens.cli.outputs import (
    AcceptedOutput,
    CompileOutput,
    DifferenceOutput,
    ProgramOutput,
    SmallestOutput,
)
from prooflens.cli.usage import default_out, facts, not_for

if TYPE_CHECKING:
    from interp.program.syntax import Program

_OF_COMPILING = ("out", "longest", "precision", "overwrite")


def crasp(
    file: Annotated[Path, typer.Argument(help="A program (.cr).")],
    tokens: Annotated[
        list[str] | None, typer.Argument(help="One input; its tokens are set apart by white space.")
    ] = None,
    cases: Annotated[
        Path | None, typer.Option("--file", help="Inputs, one a line; - is standard input.")
    ] = None,
    same_as: Annotated[
        Path | None,
        typer.Option(help="Another program (.cr, or program.txt of decompile): the same strings?"),
    ] = None,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="Print the smallest program of the same strings.")
    ] = False,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Write a transformer that computes the program.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the checkpoint; by default named after the file.")
    ] = None,
    longest: Annotated[int, typer.Option(help="Tokens of the longest input.")] = 1000,
    precision: Annotated[
        Literal["ramp", "sign"],
        typer.Option(help="sign for weights that do not depend on the length."),
    ] = "ramp",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
) -> None:
    """Check a program that counts (C-RASP), run it on inputs, or compile it into a transformer.

    The file alone: its depth, alphabet, names and warnings. With inputs: True or False for each, by
    whether the last line holds at the last position; empty lines and lines that begin with // are
    skipped, and a token that begins with a dash goes after a lone --. With --same-as: whether both
    accept the same strings, of every length, or the shortest on which they part. With --smallest:
    what is left when all is cut that changes no string's answer. With --compile: a transformer with
    as many layers as the program's counts nest. Programs that count the future are
    not compiled, nor are guards other than predN.
    """
    from interp.errors import need
    from interp.program.parser import read_program

    files = (cases is not None, "--file"), (same_as is not None, "--same-as")
    asked = (bool(tokens), "TOKENS"), *files, (smallest, "--smallest"), (compile_, "--compile")
    given = " and ".join(word for there, word in asked if there)
    rule = "must be one of TOKENS, --file CASES, --same-as FILE, --smallest and --compile"
    need("crasp", " and " not in given, "what to do", rule, given, "keep one")
    if compile_:
        _compile(
            file, default_out(file.with_suffix(""), out, "compile"), longest, precision, overwrite
        )
        return
    not_for("a program that is not compiled", "which writes nothing", *_OF_COMPILING)
    program = read_program(file)
    if tokens or cases is not None:
        _run(program, [" ".join(tokens)] if tokens else _read_cases(cases))
    elif same_as is not None:
        _compare(program, same_as)
    elif smallest:
        _cut(program)
    else:
        _check(program)


def _run(program: Program, lines: Sequence[str]) -> None:
    """Print whether the program accepts each line."""
    from interp.errors import need
    from interp.program.analysis import alphabet
    from interp.program.evaluation import evaluate

    strings = [line.split() for line in lines if line.strip()]
    need("crasp", bool(strings), "input", "must hold a line with tokens", list(lines), "add one")
    verdicts = [bool(accepted) for accepted in evaluate(program, strings).accepted]
    facts(**AcceptedOutput(accepted=verdicts))
    for accepted in verdicts:
        typer.echo(accepted)
    _tell_strange(alphabet(program), strings)


def _compare(program: Program, file: Path) -> None:
    """Print whether a program accepts the same strings as one in a file."""
    from interp.program import decision_parser, parser
    from interp.program.equivalence import shortest_difference

    read = parser.read_program if file.suffix == ".cr" else decision_parser.read_program
    found = shortest_difference(program, read(file))
    facts(**DifferenceOutput(same=found is None, difference=None if found is None else list(found)))
    if found is None:
        typer.echo("the same strings, of every length")
    else:
        typer.echo(f"they part, on no shorter string than: {' '.join(found)}")


def _cut(program: Program) -> None:
    """Print the smallest program found that accepts the same strings."""
    from interp.program.printer import program_text
    from interp.program.reduction import smallest

    found = smallest(program)
    facts(**SmallestOutput(program=program_text(found), nodes=found.nodes, before=program.nodes))
    typer.echo(program_text(found).rstrip())


def _check(program: Program) -> None:
    """Print a program's depth, alphabet, names and warnings."""
    from interp.program.analysis import analyse

    found = analyse(program)
    told = ProgramOutput(
        depth=found.depth,
        past_only=found.past_only,
        alphabet=list(found.alphabet),
        names=dict(found.names),
        warnings=list(found.warnings),
    )
    facts(**told)
    typer.echo(f"depth     {found.depth}")
    typer.echo(f"counts    {'the past only' if found.past_only else 'past and future'}")
    typer.echo(f"alphabet  {' '.join(found.alphabet) or '(no tokens)'}")
    typer.echo(f"imports   {' '.join(p.name for p in program.imports) or '(none)'}")
    for name, level in found.names.items():
        typer.echo(f"name      {name}, depth {level}")
    for warning in found.warnings:
        typer.echo(f"warning   {warning}")


def _compile(
    file: Path, out: Path, longest: int, precision: Literal["ramp", "sign"], overwrite: bool
) -> None:
    """Write the checkpoint of a transformer that computes the program."""
    from interp.models.checkpoint import save_checkpoint
    from interp.output import check_output
    from interp.program.parser import read_program
    from interp.program.printer import program_text
    from interp.proofs.depth.compiler import compile_program, vocabulary_of

    program = read_program(file)
    check_output(out, overwrite=overwrite, marker="model.json", inputs=[file])
    made = compile_program(program, longest=longest, precision=precision)
    about = {"program": program_text(program), "vocabulary": vocabulary_of(program)}
    save_checkpoint(made.model, out, about=about, overwrite=overwrite)
    spec = made.model.spec
    told = CompileOutput(
        checkpoint=str(out),
        layers=spec.n_layers,
        width=spec.d_model,
        error=made.certificate.error,
    )
    facts(**told)
    typer.echo(f"{spec.n_layers} layers, width {spec.d_model}, written to {out}")
    typer.echo(f"exact for {made.certificate.domain}")
    if (reach := made.certificate.parts.get("exact to length")) is not None:
        typer.echo(f"the same weights are exact to {reach:.3g} tokens")


def _tell_strange(known: Sequence[str], strings: Sequence[Sequence[str]]) -> None:
    """Warn about tokens in the inputs that the program does not name, which may be a slip."""
    strange = dict.fromkeys(t for string in strings for t in string if t not in known)
    if strange:
        words, names = " ".join(strange), " ".join(known) or "no tokens"
        typer.echo(
            f"note: not among the program's tokens ({names}), so none of them holds there: {words}",
            err=True,
        )


def _read_cases(cases: Path | None) -> list[str]:
    """Return the lines of a file of test cases, without comments."""
    from interp.errors import ArgumentError
    from interp.reading import read_text

    try:
        standard = cases is None or str(cases) == "-"
        text = sys.stdin.read() if standard else read_text(str(cases))
    except UnicodeDecodeError as error:
        raise ArgumentError("standard input cannot be read: it is not UTF-8 text") from error
    return [line for line in text.splitlines() if not line.startswith("//")]
