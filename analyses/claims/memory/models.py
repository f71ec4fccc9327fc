"""What the claims of `memory` train, and the tables they are judged by.

Every model is a :class:`TransformerSpec` of the profile's sizes with the options that a claim is
about. Errors are mean square errors on fresh rows as a share of the target's variance, so that 1 is
what the best constant reaches. Means hide seeds that got stuck: medians decide, and every seed is
kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analyses.claims.base import Setting, Status
from analyses.claims.training import train_runs
from interp.models import build
from interp.models.spec import TransformerSpec
from interp.tasks.base import Task
from trained.fit import Fit
from trained.run import Run
from trained.training import Training

__all__ = [
    "Planned",
    "by_seed",
    "medians",
    "over_seeds",
    "parameters",
    "run_of",
    "spec_of",
    "spread",
    "status_of",
    "train_table",
]

Planned = tuple[Mapping[str, Any], Run]

_METRICS = ("error", "accuracy", "loss")


def spec_of(task: Task, options: Mapping[str, Any], **changes: Any) -> TransformerSpec:
    """A one-layer dot-product-free model of the profile's sizes for a task of real inputs."""
    batch = task.sample(1, seed=0)
    sizes: dict[str, Any] = {
        "input": "real",
        "d_in": batch.inputs.shape[-1],
        "d_out": batch.targets.shape[-1],
        "n_ctx": batch.inputs.shape[1],
        "d_model": options["d_model"],
        "n_layers": 1,
        "n_heads": options["heads"],
        "d_head": options["d_head"],
        "ffn": (options["ffn"],),
        "score": "none",
        "lag_bias": "lin",
    }
    return TransformerSpec(**{**sizes, **changes})


def run_of(
    setting: Setting,
    labels: Mapping[str, Any],
    task: Task,
    spec: Any,
    *,
    test: Task | None = None,
    **training: Any,
) -> Planned:
    """A run named by its labels, trained with the profile's steps, batch and learning rate."""
    options = {k: setting.options[k] for k in ("steps", "batch", "learning_rate")}
    name = "_".join(f"{k}-{v}" for k, v in labels.items()).replace("/", "-").replace(" ", "")
    chosen = Training(**{**options, "seed": labels["seed"], **training})
    return labels, Run(name, task, spec, chosen, test=test)


def over_seeds(setting: Setting, labels: Mapping[str, Any], task: Task, spec: Any) -> list[Planned]:
    """:func:`run_of` for every seed, with the profile's learning rate of the score terms."""
    rate = setting.options["terms_learning_rate"]
    return [
        run_of(setting, {**labels, "seed": seed}, task, spec, terms_learning_rate=rate)
        for seed in setting.seeds
    ]


def train_table(
    setting: Setting, planned: Sequence[Planned], *, part: str = "models"
) -> tuple[pd.DataFrame, list[Fit]]:
    """Train what is planned.

    Returns:
        One row a run: its labels, ``parameters``, ``error``, ``accuracy`` and ``loss`` on fresh
        rows; and the fits, in the same order.
    """
    fits = train_runs(setting, [run for _, run in planned], part)
    rows = [
        {**labels, "parameters": parameters(run.spec), **{k: fit.metrics[k] for k in _METRICS}}
        for (labels, run), fit in zip(planned, fits, strict=True)
    ]
    return pd.DataFrame(rows), fits


def parameters(spec: Any) -> int:
    """Trained numbers of a model."""
    return sum(p.numel() for p in build(spec).parameters() if p.requires_grad)


def medians(table: pd.DataFrame, by: Sequence[str], y: str = "error") -> dict[Any, float]:
    """Median over seeds by the values of some columns (a tuple of them, or the value of one)."""
    found = table.groupby(list(by) if len(by) > 1 else by[0], sort=False)[y].median()
    return {key: float(value) for key, value in found.items()}


def by_seed(table: pd.DataFrame, by: Sequence[str], y: str = "error") -> dict[str, list[float]]:
    """Every seed's value as JSON data, keyed by the values of some columns."""
    groups = table.groupby(list(by), sort=False)[y]
    return {", ".join(map(str, key)): [float(v) for v in rows] for key, rows in groups}


def spread(values: Sequence[float], form: str = ".2g") -> str:
    """``median (least … largest)``."""
    ordered = sorted(values)
    middle = float(pd.Series(ordered).median())
    return f"{middle:{form}} ({ordered[0]:{form}} … {ordered[-1]:{form}})"


def status_of(statements: Mapping[str, bool], *, needed: Sequence[str] = ()) -> Status:
    """``reproduced`` if all hold, ``partly`` if some do (of ``needed``, all), else not.

    Args:
        statements: In words, and whether they hold.
        needed: For ``partly``, all of these must hold; one of any by default.
    """
    if all(statements.values()):
        return "reproduced"
    some = all(statements[n] for n in needed) if needed else any(statements.values())
    return "partly" if some else "not reproduced"
