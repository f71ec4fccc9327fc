"""Variants of the model that should change little: the dot product on Task I, and LayerNorm.

Each variant is trained beside the plain model on the same tasks and seeds. *Little* is an absolute
difference of the median errors (shares of the variance), so that two models that both fail, or both
succeed, count as alike: the errors themselves are shown.

A LayerNorm divides a linearly embedded scalar by its own size and leaves its sign: with one real
input channel and no positions it cannot but destroy Gaussian inputs, whatever is trained. For the
claim about LayerNorm every input therefore has a second channel, which is always 1: the direction
of (x, 1) holds x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from analyses.figures.dots import strips
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import Experiment, by_seed, decide, medians, spread, verdict
from analyses.papers.memory.models import spec_of
from prooflens.tasks import AdaptiveMemory, Batch, FixedMemory, RealMemory, Task

__all__ = ["WithConstant", "dot_product", "layer_norm"]

_LITTLE = 0.05


@dataclass(frozen=True)
class WithConstant:
    """A task of real inputs with one more channel, which is always 1.

    Attributes:
        task: The task whose inputs, targets and latents are kept.
    """

    task: Any

    @property
    def name(self) -> str:
        """E.g. ``real-memory-single-1-with-constant``."""
        return f"{self.task.name}-with-constant"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, channel + 1]``."""
        batch: Batch = self.task.sample(n, seed=seed, device=device)
        ones = torch.ones_like(batch.inputs[..., :1])
        return replace(batch, inputs=torch.cat([batch.inputs, ones], dim=-1))

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "with_constant", "task": self.task.to_dict()}


def dot_product(setting: Setting) -> Verdict:
    """Test that the dot product adds almost nothing on Task I (ledger: ``memory-dot-fixed``)."""
    length = setting.options["length"]
    tasks: dict[str, Task] = {
        "multiplexer of ±1, lags 1, 3": FixedMemory((1, 3), "multiplexer", length=length),
        "parity of ±1, lags 1, 2": FixedMemory((1, 2), "parity", length=length),
        "x[t−1], Gaussian": RealMemory((1,), length=length),
        "mean of lags 1, 2, Gaussian": RealMemory((1, 2), "mean", length=length),
        "maximum of lags 1, 2, Gaussian": RealMemory((1, 2), "maximum", length=length),
    }
    variants = {"without dot product": {}, "with dot product": {"score": "dot"}}
    cells = {
        (name, kind): (task, changes)
        for name, task in tasks.items()
        for kind, changes in variants.items()
    }
    return _verdict(setting, cells, tuple(variants), lambda name: True)


def layer_norm(setting: Setting) -> Verdict:
    """Test that LayerNorm changes little (ledger: ``memory-layernorm``)."""
    length = setting.options["length"]
    tasks: dict[str, tuple[Task, Mapping[str, Any]]] = {
        "multiplexer of ±1, lags 1, 3": (FixedMemory((1, 3), "multiplexer", length=length), {}),
        "parity of ±1, lags 1, 2": (FixedMemory((1, 2), "parity", length=length), {}),
        "adaptive, 4 locations, ±1": (
            AdaptiveMemory((1, 2, 3, 4), length=length),
            {"lag_bias": "bump", "n_layers": 2, "n_heads": 1},
        ),
        "x[t−1], Gaussian": (RealMemory((1,), length=length), {}),
    }
    variants = {"without LayerNorm": {}, "with LayerNorm": {"norm": "layernorm"}}
    cells = {
        (name, kind): (WithConstant(task), {**own, **changes})
        for name, (task, own) in tasks.items()
        for kind, changes in variants.items()
    }
    return _verdict(setting, cells, tuple(variants), lambda name: "±1" in name)


def _verdict(
    setting: Setting,
    cells: Mapping[tuple[str, str], tuple[Task, Mapping[str, Any]]],
    variants: tuple[str, ...],
    decides_part: Any,
) -> Verdict:
    """Decide the claim: reproduced if the variants differ little on every task; partly if they do
    on all tasks of ``decides_part`` or, if these are all tasks, on half."""
    experiment = Experiment(setting)
    for (name, kind), (task, changes) in cells.items():
        spec = spec_of(task, setting.options, **changes)
        experiment.add({"task": name, "model": kind}, task, spec)
    table, _ = experiment.run()
    middle = medians(table, ["task", "model"])
    tasks = list(dict.fromkeys(name for name, _ in cells))
    change = {name: middle[name, variants[1]] - middle[name, variants[0]] for name in tasks}
    small = {name: abs(value) <= _LITTLE for name, value in change.items()}
    part = [name for name in tasks if decides_part(name)]
    enough = sum(small[name] for name in part) >= (
        len(part) if len(part) < len(tasks) else len(tasks) / 2
    )
    words = " ".join(
        f"{name}: {spread(rows[rows['model'] == variants[0]]['error'].tolist())} {variants[0]}, "
        f"{spread(rows[rows['model'] == variants[1]]['error'].tolist())} with it."
        for name, rows in table.groupby("task", sort=False)
    )
    figure = strips(table, group="task", y="error", label="mean square error, share of variance")
    numbers = {"change": change, "errors": by_seed(table, ["task", "model"])}
    worst = max(change, key=lambda name: abs(change[name]))
    return verdict(
        decide(all(small.values()), enough),
        words,
        f"largest change of the error {change[worst]:+.3f} ({worst})",
        numbers,
        name="errors",
        table=table,
        drawing=Drawing(figure, f"Errors {variants[0]} and {variants[1]}, by task."),
    )
