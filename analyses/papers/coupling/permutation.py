"""Does a fixed permutation of real-looking inputs cost a transformer little?

Two tasks, each trained on its own order and on one fixed random order of the same inputs: classes
of generated images from patches, and translation of a generated language. Images are permuted pixel
by pixel: an order of whole patches is a symmetry of a model with learned positions that looks both
ways, which nothing could notice (it is trained beside, as a check of that). A causal model
translates, so that an order of words is none. With a folder of
CIFAR-10's binary version, or two parallel text files, in the options ``images``, ``source`` and
``target``, the same is run on those, and metrics are those of their held-out split.

The generated sets are small and easy: a cost near zero on them says that the architecture can do
without order, not that training on photographs or translations would not notice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analyses.figures.dots import strips
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.coupling.tasks import PermutedPatches, PermutedTranslation
from analyses.papers.experiment import Experiment, by_seed, status_of, verdict
from prooflens.architectures import TransformerSpec

__all__ = ["judge_permutation", "task_spec"]

_COST, _LEARNED = 0.03, 0.8
_OWN, _OTHER, _SYMMETRY = "as it is", "permuted", "whole patches permuted"


def judge_permutation(setting: Setting) -> Verdict:
    """Test that a fixed permutation of the inputs costs little (ledger:
    ``coupling-permutation``)."""
    experiment = Experiment(setting, test=_held_out_split)
    for name, task in _tasks(setting).items():
        for order, changes in _orders(task).items():
            spec = task_spec(task, setting.options)
            experiment.add({"task": name, "order": order}, replace(task, **changes), spec)
    table, _ = experiment.run()
    medians = table.groupby(["task", "order"])["accuracy"].median().unstack()
    costs = {str(task): float(row[_OWN] - row[_OTHER]) for task, row in medians.iterrows()}
    learned = {str(task): bool(row[_OWN] >= _LEARNED) for task, row in medians.iterrows()}
    passed = {task: learned[task] and cost <= _COST for task, cost in costs.items()}
    told = ", ".join(
        f"{task}: {row[_OWN]:.3f} → {row[_OTHER]:.3f}" for task, row in medians.iterrows()
    )
    numbers = {
        "cost": costs,
        "learned": learned,
        "accuracy": by_seed(table, ["task", "order"], "accuracy"),
    }
    words = f"Median accuracy before and after a fixed permutation: {told}."
    figure = strips(table, group="task", by="order", label="accuracy on fresh rows")
    return verdict(
        status_of(passed),
        words,
        told,
        numbers,
        name="accuracy",
        table=table,
        drawing=Drawing(figure, "Accuracy in the data's own order and permuted, by seed."),
    )


def _orders(task: Any) -> dict[str, dict[str, bool]]:
    """Return name of an order → the options of the task that produce it."""
    found: dict[str, dict[str, bool]] = {_OWN: {"permuted": False}, _OTHER: {"permuted": True}}
    if isinstance(task, PermutedPatches):
        found |= {_OTHER: {"permuted": True, "pixels": True}, _SYMMETRY: {"permuted": True}}
    return found


def task_spec(task: Any, options: Any) -> TransformerSpec:
    """Return the spec of a small pre-norm transformer: bidirectional for images, causal for
    translation."""
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
    """Return the generated tasks and, if the options name the user's own data, tasks on these."""
    options = setting.options
    found: dict[str, Any] = {"shapes": PermutedPatches(), "translation": PermutedTranslation()}
    if options.get("images"):
        found["CIFAR-10"] = PermutedPatches(options["images"], side=32, patch=4)
    if options.get("source"):
        files = {"source": options["source"], "target": options["target"]}
        found["text"] = PermutedTranslation(**files, words=options["words"], length=24)
    return found


def _held_out_split(task: Any) -> Any:
    """Return the held-out split of the user's own data; None for generated rows."""
    own = getattr(task, "images", "shapes") != "shapes" or bool(getattr(task, "source", ""))
    return replace(task, split="test") if own else None
