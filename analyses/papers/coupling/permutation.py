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

from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import Experiment, status_of, verdict
from interp.figures.sweeps import strips
from interp.models.spec import TransformerSpec
from interp.tasks.coupling import PermutedPatches, PermutedTranslation

__all__ = ["permuted", "task_spec"]

_COST, _LEARNED = 0.03, 0.8


def permuted(setting: Setting) -> Verdict:
    """Test that a fixed permutation of the inputs costs little (ledger:
    ``coupling-permutation``)."""
    experiment = Experiment(setting, test=_held_out)
    for name, task in _tasks(setting).items():
        for shuffled in (False, True):
            spec = task_spec(task, setting.options)
            labels = {"task": name, "permuted": shuffled}
            experiment.add(labels, replace(task, permuted=shuffled), spec)
    table, _ = experiment.run()
    medians = table.groupby(["task", "permuted"])["accuracy"].median().unstack()
    costs = {str(task): float(row[False] - row[True]) for task, row in medians.iterrows()}
    learned = {str(task): bool(row[False] >= _LEARNED) for task, row in medians.iterrows()}
    passed = {task: learned[task] and cost <= _COST for task, cost in costs.items()}
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
    return verdict(
        status_of(passed),
        words,
        told,
        numbers,
        name="accuracy",
        table=table,
        drawing=Drawing(figure, "Accuracy in the data's own order and permuted, by seed."),
    )


def task_spec(task: Any, options: Any) -> TransformerSpec:
    """A small pre-norm transformer: looking both ways at images, causal for translation."""
    inputs = task.sample(1, seed=0).inputs
    images = inputs.is_floating_point()
    return TransformerSpec(
        input="real" if images else "tokens",
        d_in=inputs.shape[-1] if images else task.vocabulary,
        d_out=task.classes if images else task.vocabulary,
        n_ctx=inputs.shape[1],
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
    """The generated tasks, and tasks on the user's own data where the options name it."""
    options = setting.options
    found: dict[str, Any] = {"shapes": PermutedPatches(), "translation": PermutedTranslation()}
    if options.get("images"):
        found["CIFAR-10"] = PermutedPatches(options["images"], side=32, patch=4)
    if options.get("source"):
        files = {"source": options["source"], "target": options["target"]}
        found["text"] = PermutedTranslation(**files, words=options["words"], length=24)
    return found


def _held_out(task: Any) -> Any:
    """The held-out split of the user's own data; None where rows are generated."""
    own = getattr(task, "images", "shapes") != "shapes" or bool(getattr(task, "source", ""))
    return replace(task, split="test") if own else None
