"""Other relations than same/different, and random sets of templates.

Majority of three symbols, relational match to sample, distribution of three: all are template
tasks, so that transformers learn them on unseen symbols given enough diverse data (`template`
§2.2), and the scalars a and b should help as they do with same/different. Majority and distribution
of three ask for a symbol, which has to be copied: models with both scalars are asked there, with a
alone elsewhere.

Two layers, one budget for each task: a task that is not learned may be with more strings. Accuracy
on unseen symbols says nothing about which relation a model reads: with few templates one row of the
matrix of equal tokens can be enough.
"""

from __future__ import annotations

from typing import Any

from analyses.figures.dots import strips
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import by_seed, decide, medians, verdict
from analyses.papers.template.models import (
    NAMES,
    on_unseen,
    spec_of,
    task_sizes,
    unanswered,
    unfitted,
)
from prooflens.tasks import NAMED, TemplateTask, random_task

__all__ = ["relations"]


def relations(setting: Setting) -> Verdict:
    """Train on four kinds of relations, with the scalars and without (ledger:
    ``template-relations``)."""
    options, sizes = setting.options, task_sizes(setting.options)
    tasks: dict[str, TemplateTask] = {name: NAMED[name](**sizes) for name in options["named"]}
    for seed in options["sets"]:
        sized = (options["templates"], options["length"])
        tasks[f"random-set-{seed}"] = random_task(*sized, wildcards=3, seed=seed, **sizes)
    experiment = on_unseen(setting)
    for name, task in tasks.items():
        budget: dict[str, Any] = {"rows": options["rows"]} | options["budgets"].get(name, {})
        for scalars in ("", "ab" if task.symbolic else "a"):
            spec = spec_of(task, options, scalars, n_layers=options["layers"])
            model = NAMES[""] if not scalars else "with scalars"
            experiment.add({"task": name, "model": model}, task, spec, **budget)
    table, _ = experiment.run()
    if (lost := unanswered(table)) is not None:
        return lost
    middle = medians(table, ["task", "model"], "accuracy")
    learned = [name for name in tasks if middle[name, "with scalars"] >= options["level"]]
    helped = [
        name
        for name in tasks
        if middle[name, "with scalars"] - middle[name, NAMES[""]] >= options["gain"]
    ]
    told = [
        f"{name} {middle[name, 'with scalars']:.2f} ({middle[name, NAMES['']]:.2f} without)"
        for name in tasks
    ]
    lost_runs = unfitted(table)
    words = (
        f"Accuracy on unseen symbols with the scalars: {', '.join(told)}. At least "
        f"{options['level']:g}: {', '.join(learned) or 'none'}."
        + (f" Runs that do not fit their training strings: {lost_runs}." if lost_runs else "")
    )
    numbers = {
        "learned": learned,
        "helped": helped,
        "not_fitted": lost_runs,
        "accuracy": by_seed(table, ["task", "model"], "accuracy"),
    }
    label = "accuracy on unseen symbols (dashed: asked for)"
    figure = strips(table, group="task", by="model", chance=options["level"], label=label)
    whole = len(learned) == len(helped) == len(tasks)
    seen = "Accuracy on unseen symbols by task, with the scalars and without, a dot a seed."
    return verdict(
        decide(whole, 2 * len(learned) >= len(tasks)),
        words,
        f"{len(learned)} of {len(tasks)} tasks learned on unseen symbols, {len(helped)} with a "
        f"gain of {options['gain']:g}",
        numbers,
        name="accuracy",
        table=table,
        drawing=Drawing(figure, seen),
    )
