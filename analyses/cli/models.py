"""``prooflens models``: the shipped models."""

from __future__ import annotations

import typer

__all__ = ["models"]


def models() -> None:
    """List the shipped models: task, size, metrics, and the claim each serves."""
    from rich.console import Console
    from rich.table import Table

    from trained import zoo

    table = Table("name", "model", "task", "weights", "metrics", "claim")
    table.columns[0].no_wrap = True
    for name in zoo.names():
        shipped = zoo.load(name)
        size = sum(parameter.numel() for parameter in shipped.model.parameters())
        numbers = ", ".join(
            f"{metric} {value:.4g}"
            for metric, value in shipped.metrics.items()
            if not metric.startswith("train_")
        )
        task = shipped.task.name if shipped.test is None else f"{shipped.task.name} *"
        kind = type(shipped.model).__name__
        table.add_row(name, kind, task, f"{size:,}", numbers, shipped.claim)
    console = Console()
    console.print(table)
    typer.echo("* metrics are those of another task than it was trained on: see its recipe")
