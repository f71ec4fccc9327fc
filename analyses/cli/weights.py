"""``prooflens weights``: every head of a pretrained model, from its weights alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analyses.cli.usage import facts, progress

if TYPE_CHECKING:
    from interp.weights.head_weights import HeadWeights

__all__ = ["weights"]


def weights(
    model: Annotated[
        str, typer.Argument(help="A shipped model, a safetensors file, a folder, or a hub id.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="FILE.csv for the table, or a folder for all files.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated names or groups: basic, heads, composition, singular_value, all."
        ),
    ] = None,
    fold_norm: Annotated[
        bool, typer.Option("--fold-norm", help="Fold the norm's scale into the circuits.")
    ] = False,
    lag: Annotated[int, typer.Option(min=0, help="QK at this lag, for rotary positions.")] = 0,
    basis: Annotated[str, typer.Option(help="residual, or token (needs embeddings).")] = "residual",
    mapping: Annotated[
        Path | None, typer.Option(help="TOML or JSON for an unknown architecture.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Heads to name in each list.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampled nulls.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Inspect W_Q W_K^T and W_V W_O of every head: diagonals, copying, rank, compositions.

    Nothing is run and no code of the model's is executed; the MLPs are never read.
    """
    from interp.output import check_output

    if out is not None:
        _check_suffix(out)
        marker = None if out.suffix == ".csv" else ".prooflens-weights"
        check_output(out, overwrite=overwrite, marker=marker, inputs=_inputs(model, mapping))

    from analyses.report.weights import Inspection, write_page, write_table
    from interp.weights.head_weights import head_weights
    from interp.weights.weight_table import weight_table
    from trained.loading import folder_of

    factors = head_weights(folder_of(model), mapping=mapping, revision=revision)
    options: dict[str, Any] = {"fold_norm": fold_norm, "lag": lag, "basis": basis}
    names = metrics.split(",") if metrics else _default_metrics(factors, out)
    table = weight_table(factors, names, **options, seed=seed, watch=progress("working"))
    notes = _notes(factors, names)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    inspection = Inspection(factors, table, options)
    findings = inspection.findings(top)
    for line in findings:
        typer.echo(line)
    facts(findings=findings, notes=notes, rows=len(table))
    if out is None:
        facts(table=table)
        return
    if out.suffix == ".csv":
        write_table(table, out, overwrite=overwrite)
    else:
        write_page(inspection, out, overwrite=overwrite, watch=progress("working"))
    typer.echo(f"{len(table)} rows written to {out}")
    if out.suffix != ".csv":
        facts(report=out / "report.html")
        typer.echo(f"report: {out / 'report.html'}")


def _inputs(model: str, mapping: Path | None) -> list[str | Path]:
    return [model] if mapping is None else [model, mapping]


def _check_suffix(out: Path) -> None:
    """Refuse a file name that is not CSV, so that it does not become a folder."""
    from interp.errors import Problems

    problems = Problems("weights")
    other = out.suffix[1:].isalpha() and out.suffix != ".csv" and not out.is_dir()
    rule, advice = "must be FILE.csv or a folder", "end it in .csv, or in no suffix"
    problems.need(not other, "--out", rule, str(out), advice)
    problems.raise_if_any()


def _default_metrics(factors: HeadWeights, out: Path | None) -> list[str]:
    from interp.weights.composition import PAIRED_UP_TO

    pairs = factors.n_layers * factors.n_heads <= PAIRED_UP_TO
    spectrum = out is not None and out.suffix != ".csv"
    return ["heads", *(["composition"] * pairs), *(["singular_value"] * spectrum)]


def _notes(factors: HeadWeights, names: list[str]) -> list[str]:
    from analyses.report.weights import notes_of
    from interp.weights.composition import PAIRED_UP_TO

    notes = notes_of(factors)
    heads = factors.n_layers * factors.n_heads
    if heads > PAIRED_UP_TO and not {"composition", "all"} & set(names):
        notes.append(
            f"compositions of {heads} heads are left out: --metrics heads,composition has them"
        )
    if any("QK" not in layer.circuits for layer in factors):
        notes.append("some layers score without a dot product: they have no QK circuit")
    return notes
