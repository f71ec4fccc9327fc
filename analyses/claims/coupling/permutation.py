"""Does a fixed permutation of real-looking inputs cost a transformer little?

Two tasks, each trained on its own order and on one fixed random order of the same inputs: classes
of generated images from patches, and translation of a generated language. With a folder of
CIFAR-10's binary version, or two parallel text files, in the options ``images``, ``source`` and
``target``, the same is run on those, and metrics are those of their held-out split.

The generated sets are small and easy: a cost near zero on them says that the architecture can do
without order, not that training on photographs or translations would not notice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analyses.claims.base import Drawing, Setting, Verdict
from analyses.claims.coupling.models import fits, training
from interp.figures.unseen import strips
from interp.models.spec import TransformerSpec
from interp.tasks.coupling import PermutedPatches, PermutedTranslation
from trained.run import Run

__all__ = ["permuted", "task_spec"]

_COST, _LEARNED = 0.03, 0.8


def permuted(setting: Setting) -> Verdict:
    """A fixed permutation costs little (ledger: ``coupling-permutation``)."""
    runs, cells = [], []
    for name, task in _tasks(setting).items():
        for shuffled in (False, True):
            for seed in setting.seeds:
                used = replace(task, permuted=shuffled)
                test = replace(used, split="test") if _has_split(task) else None
                runs.append(Run(f"{used.name}-seed{seed}", used, task_spec(task, setting.options),
                                training(setting, seed), test))  # fmt: skip
                cells.append({"task": name, "permuted": shuffled, "seed": seed})
    table = pd.DataFrame(cells)
    table["accuracy"] = [fit.metrics["accuracy"] for fit in fits(setting, runs)]
    medians = table.groupby(["task", "permuted"])["accuracy"].median().unstack()
    costs = {str(task): float(row[False] - row[True]) for task, row in medians.iterrows()}
    learned = {str(task): bool(row[False] >= _LEARNED) for task, row in medians.iterrows()}
    passed = [task for task, cost in costs.items() if learned[task] and cost <= _COST]
    status = {len(costs): "reproduced", 0: "not reproduced"}.get(len(passed), "partly")
    told = ", ".join(
        f"{task}: {row[False]:.3f} → {row[True]:.3f}" for task, row in medians.iterrows()
    )
    numbers = {
        "cost": costs,
        "learned": learned,
        "accuracy": {
            f"{task}, {'permuted' if shuffled else 'as it is'}": g["accuracy"].tolist()
            for (task, shuffled), g in table.groupby(["task", "permuted"])
        },
    }
    words = f"Median accuracy before and after a fixed permutation: {told}."
    shown = table.assign(order=np.where(table["permuted"], "permuted", "as it is"))
    figure = strips(shown, group="task", by="order", label="accuracy on fresh rows")
    return Verdict(
        status,  # type: ignore[arg-type]
        words,
        told,
        numbers,
        {"accuracy": table},
        {"accuracy": Drawing(figure, "Accuracy in the data's own order and permuted, by seed.")},
    )


def task_spec(task: Any, options: Any) -> TransformerSpec:
    """A small pre-norm transformer: looking both ways at images, causal for translation."""
    images = isinstance(task, PermutedPatches)
    return TransformerSpec(
        input="real" if images else "tokens",
        d_in=task.d_in if images else task.vocabulary,
        d_out=task.classes if images else task.vocabulary,
        n_ctx=task.length if images else task.positions,
        d_model=options["d_model"],
        n_layers=2,
        n_heads=2,
        d_head=options["d_model"] // 2,
        ffn=(2 * options["d_model"],),
        positions="learned",
        norm="layernorm",
        causal=not images,
    )


def _tasks(setting: Setting) -> dict[str, Any]:
    """The generated tasks, and the user's own data where the options name it."""
    options = setting.options
    found: dict[str, Any] = {"shapes": PermutedPatches(), "translation": PermutedTranslation()}
    if options.get("images"):
        found["CIFAR-10"] = PermutedPatches(options["images"], side=32, patch=4)
    if options.get("source"):
        files = {"source": options["source"], "target": options["target"]}
        found["text"] = PermutedTranslation(**files, words=options["words"], length=24)
    return found


def _has_split(task: Any) -> bool:
    return getattr(task, "images", "shapes") != "shapes" or bool(getattr(task, "source", ""))
