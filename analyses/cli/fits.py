"""``python -m analyses fits``: what it costs to represent a lag or a kernel as a sum of heads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from prooflens.commands import App, facts

__all__ = ["app", "kernel", "lag", "phase"]

app = App(
    help="Fit lags and kernels by sums of exponentials or powers, and draw what it costs.",
    example="python -m analyses fits lag --lags 1,3 --heads 1,2,4 --out lags",
    no_args_is_help=True,
    rich_markup_mode=None,
)
MARKER = "fits.csv"
_MOST = {"lags": 1000, "heads": 64}
_MOST_NUMBERS = 100
_Out = Annotated[Path, typer.Option(help="Folder of the table and the figures.")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")]
_Lags = Annotated[str, typer.Option(help="Lags, with commas between.")]
_Heads = Annotated[str, typer.Option(help="Numbers of heads, with commas between.")]


@app.command("lag", example="python -m analyses fits lag --lags 1,3 --heads 1,2,4 --out lags")
def lag(
    out: _Out,
    lags: _Lags = "1,2,3,4,6",
    heads: _Heads = "1,2,3,4,5,6,8,10,12",
    overwrite: _Overwrite = False,
) -> None:
    """Error against the number of heads, for every lag, in float64 and float32."""
    from analyses.figures.kernels import errors_by_heads
    from analyses.fits.curves import error_curves
    from prooflens.files import check_output

    targets, counts = _numbers("lags", lags), _numbers("heads", heads)
    check_output(out, overwrite=overwrite, marker=MARKER)
    with _bar("lags", 4 * len(targets) * len(counts)) as done:
        table = error_curves(targets, counts, done=done)
    figure = errors_by_heads(
        table, ylabel="certified error, |x| ≤ 1", title="Selecting one lag with H heads"
    )
    _write(out, overwrite, table, {"lag-errors": figure})


@app.command("kernel", example="python -m analyses fits kernel 'light(6, 1.3)' --out kernels")
def kernel(
    kernels: Annotated[list[str], typer.Argument(help='Kernels, e.g. "light(6, 1.3)".')],
    out: _Out,
    heads: _Heads = "1,2,3,4,6",
    drawn: Annotated[int, typer.Option(min=1, help="Heads of the fits that are drawn.")] = 2,
    overwrite: _Overwrite = False,
) -> None:
    """Kernels, the sums found for them, and the error that float64 and float32 leave."""
    from analyses.figures.kernels import KernelPanel, errors_by_heads, kernel_fits
    from analyses.fits.curves import error_curves, fit_panels
    from prooflens.files import check_output

    counts = _numbers("heads", heads)
    check_output(out, overwrite=overwrite, marker=MARKER)
    with _bar("kernels", 4 * len(kernels) * len(counts)) as done:
        table = error_curves(kernels, counts, done=done)
        panels = [KernelPanel(*panel) for panel in fit_panels(kernels, drawn)]
    figures = {
        "kernel-errors": errors_by_heads(
            table, ylabel="certified error, |x| ≤ 1", title="A kernel as a sum of H heads"
        ),
        "kernels": kernel_fits(panels),
    }
    _write(out, overwrite, table, figures)


@app.command("phase", example="python -m analyses fits phase --lags 1,2 --most 8 --out phase")
def phase(
    out: _Out,
    lags: _Lags = "1,2,3,4,6,8",
    epsilon: Annotated[float, typer.Option(help="The error allowed.")] = 0.1,
    most: Annotated[int, typer.Option(min=1, help="Heads are tried up to this number.")] = 20,
    overwrite: _Overwrite = False,
) -> None:
    """The fewest heads for an error against the lag, and the bits below which none suffice."""
    from analyses.figures.phase import phase_diagram
    from analyses.fits.phase import phase_table
    from prooflens.files import check_output

    targets = _numbers("lags", lags)
    check_output(out, overwrite=overwrite, marker=MARKER)
    with _bar("phase diagram", 4 * len(targets)) as done:
        table = phase_table(targets, epsilon=epsilon, most=most, done=done)
    _write(out, overwrite, table, {"phase": phase_diagram(table, epsilon=epsilon)})


def _numbers(argument: str, text: str) -> list[int]:
    from prooflens.errors import Problems

    problems = Problems("fits")
    words = [word.strip() for word in text.split(",")]
    good = all(word.isascii() and word.isdecimal() and float(word) > 0 for word in words)
    problems.need(good, argument, "must be whole numbers above 0", text[:200], "write e.g. 1,2,4")
    problems.raise_if_any()
    most = _MOST[argument]
    rule = f"must be at most {_MOST_NUMBERS} numbers, up to {most}"
    good = len(words) <= _MOST_NUMBERS and all(float(word) <= most for word in words)
    problems.need(good, argument, rule, text[:200], "ask for fewer or smaller ones")
    problems.raise_if_any()
    return list(dict.fromkeys(int(word) for word in words))


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, shown only on a terminal; the function counts one row."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _write(out: Path, overwrite: bool, table: Any, figures: dict[str, Any]) -> None:
    from prooflens.files import output_folder
    from prooflens.plot import save

    with output_folder(out, overwrite=overwrite, marker=MARKER) as draft:
        table.to_csv(draft / MARKER, index=False)
        for name, figure in figures.items():
            save(figure, draft / name)
    facts(table=table, figures=sorted(figures))
    typer.echo(f"{len(table)} rows and {', '.join(figures)} written to {out}")
