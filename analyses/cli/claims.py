"""``python -m analyses claims``: list the ledger, run claims, write the report."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prooflens.commands import App, Backend, Device, facts, progress

if TYPE_CHECKING:
    from analyses.papers.ledger import Claim
    from analyses.papers.results import Result
    from analyses.papers.run import Failure

__all__ = ["app"]

app = App(
    help="The papers' claims: list them, run them.",
    example="python -m analyses claims run depth-frontier --profile zoo",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Out = Annotated[Path, typer.Option(help="Folder of the results.")]


@app.command("list", example="python -m analyses claims list --paper memory --rules")
def list_claims(
    paper: Annotated[list[str] | None, typer.Option(help="Only claims of this paper.")] = None,
    rules: Annotated[
        bool, typer.Option(help="Show each claim's rule too, and the one that it had before.")
    ] = False,
) -> None:
    """Print every claim of the ledger: id, source, statement, what would refute it, profiles."""
    from analyses.papers.ledger import read_ledger, select_claims

    ledger = read_ledger()
    listed = select_claims(ledger, [], paper or [], not paper)
    keys = ("id", "source", "statement", "refuted_by", "rule")
    facts(claims=[{key: getattr(claim, key) for key in keys} for claim in listed])
    for claim in listed:
        profiles = ", ".join(_lasting(claim, profile) for profile in claim.profiles)
        typer.echo(f"{claim.id}  [{claim.source}; {profiles}]")
        typer.echo(f"    {claim.statement}")
        typer.echo(f"    would refute it: {claim.refuted_by}")
        if rules:
            typer.echo(f"    rule: {claim.rule}")
            if before := claim.before:
                typer.echo(f"    before: {before.status} ({before.key}), {before.profile}")
                typer.echo(f"        changed because: {before.reason}")
                typer.echo(f"        rule then: {before.rule}")
                typer.echo(f"        settings then: {before.settings_text}")


@app.command(
    "run", example="python -m analyses claims run depth-frontier --profile zoo --out claims"
)
def run(
    ids: Annotated[list[str] | None, typer.Argument(help="Claims, by id.")] = None,
    paper: Annotated[list[str] | None, typer.Option(help="All claims of a paper.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All claims.")] = False,
    profile: Annotated[
        Literal["zoo", "quick", "full"],
        typer.Option(help="On shipped models, in the time of two cores, or in that of a GPU."),
    ] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.")] = None,
    out: _Out = Path("out/claims"),
    backend: Annotated[
        Backend, typer.Option(help="Ray makes what claims train tasks on your cluster.")
    ] = "local",
    device: Device = "cpu",
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the results that are there already.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace results.")] = False,
    option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE in place of the profile's option.")
    ] = None,
    workers: Annotated[
        int, typer.Option(help="How many claims run at once, in processes of their own.")
    ] = 1,
) -> None:
    """Run claims by the ledger's rules; write a folder for each and report.html."""
    from analyses.papers.claims_report import write_report
    from analyses.papers.ledger import read_ledger, select_claims
    from analyses.papers.run import Order, run_claims

    ledger = read_ledger()
    claims = select_claims(ledger, ids or [], paper or [], every)
    order = Order(
        profile,
        seeds,
        resume,
        backend,
        device,
        _options(option or []),
        sys.stderr.isatty(),
        overwrite,
        workers,
    )
    typer.echo(f"{len(claims)} claims, profile {profile}, results in {out}")
    try:
        results, failures = run_claims(claims, out, order, told=_tell)
    except KeyboardInterrupt:
        typer.echo(f"stopped; what was reached is in {out}: go on with --resume", err=True)
        raise typer.Exit(130) from None
    finally:
        if out.is_dir():
            report = write_report(ledger, out)
            facts(report=report)
            typer.echo(f"report: {report}")
    verdicts = [{"claim": r.claim, "verdict": r.verdict, "words": r.words} for r in results]
    facts(results=verdicts, failures=len(failures))
    counts = Counter(result.verdict for result in results)
    typer.echo(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    if failures:
        typer.echo(f"{len(failures)} stopped with an error; go on with --resume", err=True)
        raise typer.Exit(1)


@app.command("report", example="python -m analyses claims report --out claims")
def report(
    out: _Out = Path("out/claims"),
    models: Annotated[
        bool, typer.Option("--models", help="Measure the shipped models for their pages first.")
    ] = False,
) -> None:
    """Write report.html again from the results that are there."""
    from analyses.papers.claims_report import MODELS, write_report
    from analyses.papers.ledger import read_ledger
    from prooflens.errors import OutputError

    if not models and not any(out.glob("*/*.json")):
        raise OutputError(f"{out}: holds no results: see 'python -m analyses claims run'")
    if models:
        from analyses.papers.model_pages import measure_models

        measure_models(out / MODELS, watch=progress("measuring models"))
    written = write_report(read_ledger(), out)
    facts(report=written)
    typer.echo(f"report: {written}")


@app.command("page", example="python -m analyses claims page --results claims")
def page(
    docs: Annotated[Path, typer.Option(help="Folder of the documentation.")] = Path("docs"),
    results: Annotated[
        Path | None, typer.Option(help="Take the rows from claims that were run into this folder.")
    ] = None,
) -> None:
    """Redraw the figures and tables of 'Does training find the proof?'."""
    from analyses.papers.training.page import PAGE, redraw

    redraw(docs, results)
    facts(page=docs / PAGE)
    typer.echo(f"page: {docs / PAGE}")


def _lasting(claim: Claim, profile: str) -> str:
    """The profile's name, with about how long it takes where the ledger tells."""
    seconds = claim.seconds.get(profile)
    return profile if seconds is None else f"{profile} ({seconds:.0f} s)"


def _tell(claim: Claim, came: Result | Failure, kept: bool) -> None:
    from analyses.papers.run import Failure

    if isinstance(came, Failure):
        typer.echo(f"{claim.id}: stopped: {came.words}", err=True)
        return
    key = f" ({came.key})" if came.key else ""
    when = "kept" if kept else f"{came.seconds:.0f} s"
    typer.echo(f"{claim.id}: {came.verdict}{key}; {when}")
    if came.status == "not run":
        typer.echo(f"    {came.words}")


def _options(pairs: list[str]) -> tuple[tuple[str, Any], ...]:
    """Parse ``KEY=VALUE`` pairs; values are TOML, or text where they are not valid TOML."""
    from prooflens.errors import ArgumentError
    from prooflens.files import parse_toml

    found = []
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.isidentifier():
            raise ArgumentError(f"--option must be KEY=VALUE, got {pair!r}: e.g. text=corpus.txt")
        try:
            found.append((key, parse_toml(f"value = {value}", f"--option {key}")["value"]))
        except ArgumentError:
            found.append((key, value))
    return tuple(found)
