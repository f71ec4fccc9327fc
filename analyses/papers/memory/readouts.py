"""Heads extract, the FFN computes: which of the two does a task need more of?

*Boolean*: sparse Boolean functions of ±1 inputs by one dot-product-free layer. Inputs of ±1 leave a
shortcut, one geometric head is a binary code of the history, so what is learned need not be one
head a memory.
*Complex readout, simple memory*: y = sin(ω (ρ * x)(t)), ρ an exponential that one lin head holds.
*Simple readout, hard memory*: y = x_{t−T}, or a bump, both sums of several exponentials, of
Gaussian inputs. Blocks have no skip connection there, else x_t comes past the head and one head
does for x_{t−1}; heads start at the grid's slopes
(:func:`~analyses.papers.memory.projection.grid_start`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from analyses.figures.dots import strips
from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import (
    Experiment,
    by_seed,
    decide,
    medians,
    spread,
    status_of,
    verdict,
)
from analyses.papers.memory.models import spec_of
from analyses.papers.memory.projection import grid_start
from prooflens.tasks import FixedMemory, KernelMemory, MemoryKernel, RealMemory, Task

__all__ = ["boolean", "more_heads", "more_neurons"]


def boolean(setting: Setting) -> Verdict:
    """Test that one layer learns sparse Boolean functions (ledger: ``memory-boolean``)."""
    options, experiment = setting.options, Experiment(setting)
    length = options["length"]
    tasks = {
        "majority, lags 1, 2": FixedMemory((1, 2), "majority", length=length),
        "multiplexer, lags 1, 3": FixedMemory((1, 3), "multiplexer", length=length),
        "parity, lags 1, 3": FixedMemory((1, 3), "parity", length=length),
        "random table, lags 1, 2, 4": FixedMemory((1, 2, 4), "table", length=length),
    }
    sizes = {f"H = {h}, m = {m}": (h, m) for h, m in options["sizes"]}
    for name, task in tasks.items():
        for size, (heads, neurons) in sizes.items():
            spec = spec_of(task, options, n_heads=heads, ffn=(neurons,))
            experiment.add({"task": name, "model": size}, task, spec)
    table, _ = experiment.run()
    largest = list(sizes)[-1]
    middle = medians(table, ["task", "model"], "accuracy")
    learned = {name: middle[name, largest] >= options["level"] for name in tasks}
    small = {name: middle[name, next(iter(sizes))] for name in tasks}
    words = (
        f"With {largest} the median accuracy is "
        + ", ".join(f"{middle[name, largest]:.3f} ({name})" for name in tasks)
        + f"; with {next(iter(sizes))} it is "
        + ", ".join(f"{value:.2f}" for value in small.values())
        + "."
    )
    half = sum(learned.values()) >= len(learned) / 2
    status = decide(all(learned.values()), half)
    numbers = {"learned": learned, "accuracy": by_seed(table, ["task", "model"], "accuracy")}
    figure = strips(table, group="task", label="accuracy", chance=0.5)
    seen = f"Accuracy by task and size, a dot a seed. {words}"
    key = f"{sum(learned.values())} of {len(learned)} functions learned at {largest}"
    drawing = Drawing(figure, seen)
    return verdict(status, words, key, numbers, name="accuracy", table=table, drawing=drawing)


def more_neurons(setting: Setting) -> Verdict:
    """Test that more neurons help a complex readout and more heads do not.

    Ledger: ``memory-more-neurons``.
    """
    length = setting.options["length"]
    tasks: dict[str, Task] = {
        f"sin {f:g}·(ρ * x)": KernelMemory(
            ("exponential(0.7)",), "waves", frequency=float(f), length=length
        )
        for f in setting.options["frequencies"]
    }
    return _either(setting, tasks, "neurons", "heads")


def more_heads(setting: Setting) -> Verdict:
    """Test that more heads help a hard memory and more neurons do not (ledger:
    ``memory-more-heads``)."""
    length = setting.options["length"]
    tasks: dict[str, Task] = {
        f"x[t−{lag}]": RealMemory((lag,), length=length) for lag in setting.options["lags"]
    }
    tasks |= {
        f"{text} * x": KernelMemory((text,), length=length) for text in setting.options["kernels"]
    }
    targets = {f"x[t−{lag}]": np.eye(length)[lag] for lag in setting.options["lags"]}
    s = np.arange(length, dtype=float)
    targets |= {
        f"{text} * x": MemoryKernel.parse(text).values(s) for text in setting.options["kernels"]
    }
    return _either(setting, tasks, "heads", "neurons", targets)


def _either(
    setting: Setting,
    tasks: Mapping[str, Task],
    helps: str,
    idle: str,
    targets: Mapping[str, np.ndarray] | None = None,
) -> Verdict:
    """Increase heads or neurons of one base model: one must lower the error, the other must not.

    With ``targets``, the kernels of the tasks, heads start at the grid's slopes and blocks have no
    skip connection.
    """
    options = setting.options
    base: dict[str, int] = dict(options["base"])
    experiment = Experiment(setting)
    for name, task in tasks.items():
        for grown in ("heads", "neurons"):
            for factor in options["factors"]:
                sizes = base | {grown: base[grown] * factor}
                spec = spec_of(
                    task,
                    options,
                    n_heads=sizes["heads"],
                    ffn=(sizes["neurons"],),
                    normalizer="none",
                    residual=targets is None,
                )
                labels = {"task": name, "model": f"more {grown}", "factor": factor}
                slopes = _slopes(targets[name], sizes["heads"]) if targets else ()
                experiment.add(labels, task, spec, slopes=slopes)
    table, _ = experiment.run()
    ratios = _ratios(table, options["factors"])
    statements = {}
    for name in tasks:
        statements[f"{name}: more {helps} at least halve the error"] = (
            ratios[name, f"more {helps}"] <= 0.5
        )
        statements[f"{name}: more {idle} leave at least 0.8 of it"] = (
            ratios[name, f"more {idle}"] >= 0.8
        )
    most = max(options["factors"])
    words = " ".join(
        f"{name}: error {_errors(table, name, helps, 1)} with H = {base['heads']} and "
        f"m = {base['neurons']}, {_errors(table, name, helps, most)} with {most} times the "
        f"{helps}, {_errors(table, name, idle, most)} with {most} times the {idle}."
        for name in tasks
    )
    numbers = {
        "statements": statements,
        "ratios": {", ".join(key): value for key, value in ratios.items()},
        "errors": by_seed(table, ["task", "model", "factor"]),
    }
    figure = sweep(
        table,
        x="factor",
        across=f"times the base (H = {base['heads']}, m = {base['neurons']})",
        by="model",
        panel="task",
        label="mean square error, share of variance",
    )
    key = ", ".join(
        f"{name}: ×{ratios[name, f'more {helps}']:.2g} by {helps}, "
        f"×{ratios[name, f'more {idle}']:.2g} by {idle}"
        for name in tasks
    )
    seen = f"Error with more {helps} and with more {idle}, times {most} at most: {key}."
    status, drawing = status_of(statements), Drawing(figure, seen)
    return verdict(status, words, key, numbers, name="errors", table=table, drawing=drawing)


def _slopes(target: np.ndarray, heads: int) -> tuple[float, ...]:
    """Return the grid's slopes for a kernel; none of them is 0."""
    return tuple(map(float, np.maximum(grid_start(target, heads, "lin").slopes, 1e-3)))


def _ratios(table: pd.DataFrame, factors: list[int]) -> dict[tuple[str, str], float]:
    """Return the median error at the largest factor divided by that of the base model, by task and
    by what was increased."""
    middle = medians(table, ["task", "model", "factor"])
    least, most = min(factors), max(factors)
    return {
        (task, model): middle[task, model, most] / middle[task, model, least]
        for task, model, factor in middle
        if factor == most
    }


def _errors(table: pd.DataFrame, task: str, grown: str, factor: int) -> str:
    rows = table[(table["task"] == task) & (table["model"] == f"more {grown}")]
    return spread(rows[rows["factor"] == factor]["error"].tolist())
