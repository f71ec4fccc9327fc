"""A program's run as a page: the value of every line at every position of every string.

The page is one self-contained HTML file; tokens and names are escaped. It shows how a program
came to its answer on these strings, and nothing about others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interp.crasp.analysis import depths
from interp.crasp.evaluation import evaluate
from interp.crasp.printer import program_text
from interp.crasp.syntax import Formula, Program
from interp.output import output_file
from prooflens.pages.html import rendered

__all__ = ["trace_page", "write_trace"]


def trace_page(program: Program, strings: Sequence[Sequence[str]], *, title: str = "Trace") -> str:
    """Render the run of a program on strings as HTML.

    Raises:
        ArgumentError: for strings that :func:`interp.crasp.evaluation.evaluate` refuses.
    """
    run, levels = evaluate(program, strings), depths(program)
    verdicts = ["last line is a number"] * len(strings)
    if isinstance(program.lines[-1].expression, Formula):
        verdicts = ["accepted" if accepted else "rejected" for accepted in run.accepted]
    traces: list[dict[str, Any]] = []
    for row, string in enumerate(strings):
        rows = [
            {"name": name, "depth": levels[name], "cells": values[row, : len(string)].tolist()}
            for name, values in run.values.items()
        ]
        traces.append({"tokens": list(string), "verdict": verdicts[row], "rows": rows})
    return rendered(
        "trace.html.j2",
        scripted=False,
        title=title,
        source=program_text(program),
        traces=traces,
        facts=(),
    )


def write_trace(
    program: Program,
    strings: Sequence[Sequence[str]],
    out: Path,
    *,
    title: str = "Trace",
    overwrite: bool = False,
) -> None:
    """Write :func:`trace_page` to a file.

    Raises:
        ArgumentError: for strings that :func:`trace_page` refuses.
        OutputError: if the file exists and may not be replaced, or cannot be written.
    """
    page = trace_page(program, strings, title=title)
    with output_file(out, overwrite=overwrite) as draft:
        draft.write_text(page, encoding="utf-8")
