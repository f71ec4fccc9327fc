"""``prooflens demo``: the whole way from a task to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prooflens.cli.outputs import DemoOutput
from prooflens.cli.usage import facts


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("out/demo"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
) -> None:
    """Measure a trained and a constructed model of one task and write a report."""
    from rich.console import Console

    from interp.output import check_output

    check_output(out, overwrite=overwrite, marker=".prooflens-demo")

    from prooflens.demo.run import run_demo

    console = Console(stderr=True)
    with console.status("starting") as status:
        said = run_demo(out, overwrite=overwrite, step=lambda words: status.update(f"{words} …"))
    for number, finding in enumerate(said, start=1):
        typer.echo(f"{number}. {finding}")
    facts(**DemoOutput(findings=said, report=str(out / "report.html")))
    typer.echo(f"report: {out / 'report.html'}")
