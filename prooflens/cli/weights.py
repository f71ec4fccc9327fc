"""``prooflens weights``: every head of a pretrained model, from its weights alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prooflens.cli.outputs import WeightsOutput
from prooflens.cli.steps import progress
from prooflens.cli.usage import Adapter, facts, shipped_models

if TYPE_CHECKING:
    import pandas as pd

    from interp.weights.head_weights import HeadWeights
    from prooflens.pages.weights import WeightTable

_Model = Annotated[
    str,
    typer.Argument(
        help="A shipped model, a safetensors or GGUF file, a folder, or a hub id.",
        autocompletion=shipped_models,
    ),
]
_Out = Annotated[
    Path | None, typer.Option(help="FILE.csv for the table, or a folder for all files.")
]
_Metrics = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated names or groups: basic, heads, composition, singular_value, all."
    ),
]
_Revisions = Annotated[
    str | None,
    typer.Option(
        help="Heads over training: comma-separated revisions on the hub, or folders of "
        "checkpoints in the model's folder, in order; main is the model itself."
    ),
]
_FoldNorm = Annotated[
    bool, typer.Option("--fold-norm", help="Fold the norm's scale into the circuits.")
]
_Mapping = Annotated[Path | None, typer.Option(help="TOML or JSON for an unknown architecture.")]


def weights(
    model: _Model,
    out: _Out = None,
    metrics: _Metrics = None,
    fold_norm: _FoldNorm = False,
    lag: Annotated[int, typer.Option(min=0, help="QK at this lag, for rotary positions.")] = 0,
    basis: Annotated[
        Literal["residual", "token"], typer.Option(help="token needs embeddings.")
    ] = "residual",
    mapping: _Mapping = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    revisions: _Revisions = None,
    adapter: Adapter = None,
    top: Annotated[int, typer.Option(min=1, help="Heads to name in each list.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampled nulls.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Inspect W_Q W_K^T and W_V W_O of every head: diagonals, copying, rank, compositions.

    Nothing is run and no code of the model's is executed; the MLPs are never read. Of a model on
    the hub only the weights of heads are fetched.
    """
    from interp.output import check_output

    _check_words(out, revision, revisions, adapter)
    if out is not None:
        marker = None if out.suffix == ".csv" else ".prooflens-weights"
        read: list[str | Path] = [model, *(file for file in (mapping, adapter) if file is not None)]
        check_output(out, overwrite=overwrite, marker=marker, inputs=read)

    from interp.weights.head_weights import head_weights
    from interp.weights.weight_table import weight_table
    from prooflens.pages.weights import write_page, write_table
    from trained.loading import folder_of
    from trained.packaged import PACKAGED

    options: dict[str, Any] = {"fold_norm": fold_norm, "lag": lag, "basis": basis}
    if revisions is not None:
        named = [name.strip() for name in revisions.split(",")]
        _over_training(
            model,
            named,
            out,
            mapping=mapping,
            metrics=metrics,
            options=options | {"seed": seed},
            overwrite=overwrite,
            top=top,
        )
        return
    factors = head_weights(folder_of(model), mapping=mapping, revision=revision, adapter=adapter)
    if model in PACKAGED:
        factors = replace(factors, name=model)  # not the cache's folder
    names = metrics.split(",") if metrics else _default_metrics(factors, out)
    table = weight_table(factors, names, **options, seed=seed, watch=progress("working"))
    notes = [*_notes(factors, names), *_traffic_lines([factors])]
    given = _weight_page_table(
        factors, table, options, drawn=out is not None and out.suffix != ".csv"
    )
    _say(notes, given.findings(top), table)
    page = partial(write_page, given, overwrite=overwrite, watch=progress("working"))
    _write(table, out, partial(write_table, table, overwrite=overwrite), page)


def _weight_page_table(
    factors: HeadWeights, table: pd.DataFrame, options: dict[str, Any], *, drawn: bool
) -> WeightTable:
    """Return the data of the page, with the corners of the circuits if they are ``drawn``."""
    from interp.weights.weight_table import circuit_crop
    from prooflens.pages.weights import WeightTable, drawn_heads

    tokens, layout = factors.layout.tokens, factors.layout
    about = {
        "model": factors.name,
        "family": layout.family,
        "sizes": vars(layout.sizes),
        "options": options,
        "analysed": factors.analysed,
        "notes": _notes_of(factors),
    }
    tied = tokens is None or tokens.embedding == tokens.unembedding
    crops = {
        (circuit, layer, head): circuit_crop(factors, layer, head, circuit, **options)
        for circuit, layer, head in (drawn_heads(table) if drawn else ())
    }
    return WeightTable(table, about, tied, [factors.n_heads] * factors.n_layers, crops)


def _notes_of(factors: HeadWeights) -> list[str]:
    """Return notes on these weights, and on what cannot be computed for a model of this size."""
    notes, sizes = list(factors.layout.notes), factors.layout.sizes
    if sizes.d_model == 1:
        notes.append("d_model is 1: a circuit is one number, which no diagonal or null describes")
    if factors.n_layers == 1:
        notes.append("one layer: no head reads another's output, so there are no compositions")
    return notes


def _over_training(
    model: str,
    revisions: list[str],
    out: Path | None,
    *,
    mapping: Path | None,
    metrics: str | None,
    options: dict[str, Any],
    overwrite: bool,
    top: int,
) -> None:
    """Run ``--revisions``: the same numbers at each checkpoint, and what changes between them."""
    from interp.weights.composition import PAIRED_UP_TO
    from interp.weights.revisions import opened_revisions, weights_over_training
    from prooflens.pages.over_training import (
        TRAINING_COLUMNS,
        training_findings,
        write_training_page,
    )
    from prooflens.pages.weights import write_table
    from trained.loading import folder_of

    opened = opened_revisions(folder_of(model), revisions, mapping=mapping)
    first = opened[revisions[0]]
    paired = first.n_layers * first.n_heads <= PAIRED_UP_TO
    default = ["trace_share", "copying_score", *(["k_composition"] * paired)]
    names = metrics.split(",") if metrics else default
    watch = progress("reading checkpoints")
    table = weights_over_training(model, opened, names, watch=watch, **options)
    notes = [*_notes_of(first), *_traffic_lines(list(opened.values()))]
    _say(notes, training_findings(table, top), table)
    facts(revisions=revisions)
    small = [*notes, f"options: {options}"]
    about: dict[str, Any] = {"model": model, "facts": small, "overwrite": overwrite, "told": top}
    page = partial(write_training_page, table, **about)
    as_csv = partial(write_table, table, overwrite=overwrite, columns=TRAINING_COLUMNS)
    _write(table, out, as_csv, page)


def _say(notes: list[str], findings: list[str], table: pd.DataFrame) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    for line in findings:
        typer.echo(line)
    facts(**WeightsOutput(findings=findings, notes=notes, rows=len(table)))


def _write(
    table: pd.DataFrame,
    out: Path | None,
    as_csv: Callable[[Path], object],
    as_page: Callable[[Path], object],
) -> None:
    """Write a table to the requested place, as CSV or as a page, and print the place in the last
    line."""
    if out is None:
        facts(table=table)
        return
    (as_csv if out.suffix == ".csv" else as_page)(out)
    typer.echo(f"{len(table)} rows written to {out}")
    if out.suffix != ".csv":
        facts(report=out / "report.html")
        typer.echo(f"report: {out / 'report.html'}")


def _traffic_lines(opened: list[HeadWeights]) -> list[str]:
    """Return a line that says how much the hub sent, if anything."""
    from interp.weights.head_weights.remote import RemoteTensors

    remote = [heads.files for heads in opened if isinstance(heads.files, RemoteTensors)]
    if not remote:
        return []
    sent, whole = sum(one.fetched for one in remote), sum(one.size for one in remote)
    facts(fetched_bytes=sent)
    return [f"the hub sent {sent / 1e6:,.1f} MB of {whole / 1e6:,.1f} MB"]


def _check_words(
    out: Path | None, revision: str | None, revisions: str | None, adapter: Path | None
) -> None:
    """Refuse a file name that is not CSV, which would become a folder, and both options of
    revisions at once."""
    from interp.errors import Problems

    problems = Problems("weights")
    both = revision is None or revisions is None
    problems.need(both, "revisions", "must not be named beside --revision", revision, "drop it")
    lone = adapter is None or revisions is None
    problems.need(lone, "adapter", "must not be named beside --revisions", adapter, "drop it")
    if out is not None:
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
    from interp.weights.composition import PAIRED_UP_TO

    notes = _notes_of(factors)
    heads = factors.n_layers * factors.n_heads
    if heads > PAIRED_UP_TO and not {"composition", "all"} & set(names):
        notes.append(
            f"compositions of {heads} heads are left out: --metrics heads,composition has them"
        )
    if any("QK" not in layer.circuits for layer in factors):
        notes.append("some layers score without a dot product: they have no QK circuit")
    return notes
