"""``prooflens probe``: what can be read from a model's activations, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["probe"]


def probe(
    model: Annotated[
        str, typer.Argument(help="A shipped model, a checkpoint's folder, or a store.")
    ],
    task: Annotated[
        str | None,
        typer.Option(help="KIND or KIND:ARGUMENT=VALUE,…; the model's own by default. Not for a "
                     "store."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the table and the map.")] = None,
    hooks: Annotated[
        list[str] | None,
        typer.Option(help="A hook or glob; repeat for more. '*' alone lists the hooks, in the "
                     "order in which they fire. The residual stream by default."),
    ] = None,
    latents: Annotated[
        list[str] | None, typer.Option(help="A latent; repeat for more. All by default.")
    ] = None,
    rows: Annotated[int, typer.Option(min=20, help="How many rows of the task.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Of rows, controls and nulls.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:  # fmt: skip
    """Probe every latent of a task at every layer, with controls and baselines."""
    from interp.output import check_output

    if out is not None:
        check_output(out, overwrite=overwrite, marker=".prooflens-probes")

    from analyses.inspection.probing import findings, probe_source, write_probing

    source, batch, about = _source(model, task, rows, seed)
    if hooks == ["*"]:
        _list_hooks(source, batch)
        return
    found = probe_source(
        source, batch, hooks=hooks, latents=latents, seed=seed, about=about, watch=_progress
    )
    for line in findings(found):
        typer.echo(line)
    if isinstance(about.get("store"), str):
        source.write_measurement("probes", found.table, found.about, overwrite=True)
        typer.echo(f"probes sealed into {model}")
    if out is not None:
        write_probing(found, out, overwrite=overwrite)
        typer.echo(f"{len(found.table)} rows written to {out}")


def _source(model: str, task: str | None, rows: int, seed: int) -> tuple[Any, Any, dict[str, Any]]:
    from analyses.cli.loading import load_with_task
    from interp.errors import ArgumentError
    from interp.store import ActivationStore

    if (Path(model) / "manifest.json").is_file():
        if task is not None:
            raise ArgumentError(f"--task is not for a store, got {task!r}: it has its own rows")
        return ActivationStore(model), None, {"store": model}
    built, chosen = load_with_task(model, task or "own")
    about = {"model": model, "task": chosen.to_dict(), "rows": rows}
    return built, chosen.sample(rows, seed=seed), about


def _list_hooks(source: Any, batch: Any) -> None:
    from analyses.inspection.sites import hook_sites

    for site in hook_sites(source, batch):
        typer.echo(str(site))


def _progress(items: Any) -> Any:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    quiet = not console.is_terminal
    return track(
        items, total=len(items), description="probing", console=console, disable=quiet,
        transient=True,
    )  # fmt: skip
