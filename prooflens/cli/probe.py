"""``prooflens probe``: what can be read from a model's activations, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from prooflens.cli.outputs import HooksOutput, ProbeOutput
from prooflens.cli.steps import progress
from prooflens.cli.usage import (
    OWN_ROWS,
    Adapter,
    Device,
    RunDtype,
    facts,
    not_for,
    shipped_models,
)

_LEAST = 20

_Model = Annotated[
    str,
    typer.Argument(
        help="A shipped model, a checkpoint's folder, or a store.", autocompletion=shipped_models
    ),
]
_Task = Annotated[
    str | None,
    typer.Option(
        help="KIND or KIND:ARGUMENT=VALUE,…; the model's own by default. Not for a store."
    ),
]
_Data = Annotated[
    Path | None,
    typer.Option(
        help=f"{OWN_ROWS} Their labels (or next tokens) are probed where --labels gives none."
    ),
]
_Labels = Annotated[
    Path | None,
    typer.Option(help="Probe these instead of latents: .csv, .npz or .safetensors, a row each."),
]
_Hooks = Annotated[
    list[str] | None,
    typer.Option(
        help="A hook or glob; repeat for more. '*' alone lists the hooks, in the "
        "order in which they fire. The residual stream by default."
    ),
]
_Positions = Annotated[
    str | None,
    typer.Option(
        help="Sample these only: 5, last or START:STOP[:STEP]. All that are scored by default."
    ),
]
_Interchange = Annotated[
    bool,
    typer.Option(
        "--interchange",
        help="Exchange what probes read between rows, and see whether the output follows.",
    ),
]


def probe(
    model: _Model,
    task: _Task = None,
    data: _Data = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the table and the map.")] = None,
    hooks: _Hooks = None,
    latents: Annotated[
        list[str] | None, typer.Option(help="A latent; repeat for more. All by default.")
    ] = None,
    labels: _Labels = None,
    positions: _Positions = None,
    interchange: _Interchange = False,
    rows: Annotated[int, typer.Option(min=_LEAST, help="Number of rows of the task.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of rows, controls, nulls.")] = 0,
    device: Device = "cpu",
    dtype: RunDtype = None,
    adapter: Adapter = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Probe every latent of a task at every layer, with controls and baselines."""
    from interp.output import check_output

    if out is not None:
        read: list[str | Path] = [model] if data is None else [model, data]
        check_output(out, overwrite=overwrite, marker=".prooflens-probes", inputs=read)

    from probes.labels import read_labels, with_labels
    from prooflens.pages.probing import write_probing

    _check_options(model, interchange=interchange)
    given = None if labels is None else read_labels(labels)
    place = {"device": device, "dtype": dtype, "adapter": adapter}
    if data is None:
        source, batch, about = _source(model, task, rows, seed, place)
    else:
        source, batch, about = _own(model, task, data, rows, place, labelled=given is not None)
    if given is not None:
        source, batch = with_labels(source, batch, given)
        about["labels"] = str(labels)
    if hooks == ["*"]:
        _list_hooks(source, batch, out)
        return
    asked = {"hooks": hooks, "latents": latents, "seed": seed, "about": about}
    found = _probe_source(source, batch, asked, positions, device, interchange=interchange)
    _tell(found, source, about.get("store"))
    if out is not None:
        write_probing(found, out, overwrite=overwrite)
        typer.echo(f"{len(found.table)} rows written to {out}")


def _check_options(model: str, *, interchange: bool) -> None:
    """Refuse options that a store has no use for; a model is run only to exchange latents."""
    if (Path(model) / "manifest.json").is_file():
        lost = ("task", "data", "rows", "dtype", "adapter", *(() if interchange else ("device",)))
        not_for("a store", "which has its own rows and activations", *lost)


def _probe_source(
    source: Any,
    batch: Any,
    asked: dict[str, Any],
    positions: str | None,
    device: str,
    *,
    interchange: bool,
) -> Any:
    """Return the results of the probes, with the interchange if it was requested."""
    from probes import probe_table

    run = _run(source, batch, positions, device) if interchange else None
    found = probe_table.probe_source(
        source, batch, positions=positions, watch=progress("probing"), **asked
    )
    if run is not None:
        watch = progress("interchange")
        found = probe_table.add_interchange(found, *run, positions=positions, watch=watch)
    return found


def _tell(found: Any, source: Any, store: str | None) -> None:
    """Print the findings, and seal the tables into a store if there is one."""
    from prooflens.pages.probing import findings

    for line in findings(found):
        typer.echo(line)
    first: Any = found.first
    facts(**ProbeOutput(findings=findings(found), first=first))
    if store is not None:
        for name, table in found.tables().items():
            source.write_measurement(name, table, found.about, overwrite=True)
        typer.echo(f"{', '.join(found.tables())} sealed into {store}")


def _source(
    model: str, task: str | None, rows: int, seed: int, place: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    from interp.store import ActivationStore
    from prooflens.cli.loading import load_with_task

    if (Path(model) / "manifest.json").is_file():
        return ActivationStore(model), None, {"store": model}
    built, chosen = load_with_task(model, "own" if task is None else task, **place)
    about = {
        "model": model,
        "analysed": built.card.analysed,
        "task": chosen.to_dict(),
        "rows": rows,
    }
    return built, chosen.sample(rows, seed=seed), about


def _own(
    model: str,
    task: str | None,
    data: Path,
    rows: int,
    place: dict[str, Any],
    *,
    labelled: bool,
) -> tuple[Any, Any, dict[str, Any]]:
    """Return a model and the user's rows, whose targets are probed."""
    from dataclasses import replace

    from interp.errors import ArgumentError
    from prooflens.cli.loading import load_with_data

    if task is not None:
        raise ArgumentError(f"--data {data} gives rows: leave --task out")
    built, own = load_with_data(model, data, rows=rows, least=_LEAST, whole=labelled, **place)
    batch = replace(own.batch, latents={"label": own.batch.targets})
    return built, batch, {"model": model, "analysed": built.card.analysed, "data": own.about}


def _run(source: Any, batch: Any, positions: str | None, device: str) -> tuple[Any, Any]:
    """Return a model and its rows; for a store, the model that it was made from and the store's own
    rows."""
    if batch is not None:
        return source, batch
    from interp.errors import ArgumentError
    from interp.store.rows import stored_batch
    from probes.positions import at_positions
    from trained.loading import model_of

    model, reason = model_of(source, device=device)
    if model is None:
        raise ArgumentError(f"--interchange must run the model that the store is of: {reason}")
    return model, stored_batch(at_positions(source, None, positions)[0])


def _list_hooks(source: Any, batch: Any, out: Path | None) -> None:
    from interp.errors import ArgumentError
    from probes.positions import hook_sites

    if out is not None:
        raise ArgumentError(f"--hooks '*' lists hooks and probes none, got --out {out}: name hooks")
    sites = [str(site) for site in hook_sites(source, batch)]
    facts(**HooksOutput(hooks=sites))
    for site in sites:
        typer.echo(site)
