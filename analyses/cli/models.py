"""``prooflens models``: the shipped models."""

from __future__ import annotations

import typer

__all__ = ["models"]


def models() -> None:
    """List the shipped models: task, size, metrics, and the claim each serves."""
    from trained import zoo

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
