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
    fitted_runs,
    on_unseen,
    spec_of,
    task_sizes,
    unfitted_verdict,
)
from prooflens.errors import Problems
from prooflens.tasks import NAMED, TemplateTask, random_task

__all__ = ["check", "relations"]

_WITH = "with scalars"


def check(setting: Setting) -> None:
    """Refuse tasks that have no such name.

    Raises:
        ArgumentError: for an unknown name in ``named``.
    """
    problems, given = Problems("claims run"), setting.options["named"]
    rule = f"must be among {', '.join(NAMED)}"
    problems.need(set(given) <= set(NAMED), "--option named", rule, given, "choose from these")
    problems.raise_if_any()


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
            model = NAMES[""] if not scalars else _WITH
            experiment.add({"task": name, "model": model}, task, spec, **budget)
    table, _ = experiment.run()
    if (lost := unfitted_verdict(table)) is not None:
        return lost
    middle = medians(fitted_runs(table), ["task", "model"], "accuracy")
    plain = {name: middle.get((name, NAMES[""])) for name in tasks}  # None: no run fits
    aided = {name: middle.get((name, _WITH)) for name in tasks}
    learned = [name for name, found in aided.items() if (found or 0) >= options["level"]]
    helped = [
        name
        for name, found in plain.items()
        if found is not None and (aided[name] or 0) - found >= options["gain"]
    ]
    told = [
        f"{name} {_accuracy_text(aided[name])} ({_accuracy_text(plain[name])} without)"
        for name in tasks
    ]
    words = (
        f"Accuracy on unseen symbols with the scalars, of runs that fit their training strings: "
        f"{', '.join(told)}. At least {options['level']:g}: {', '.join(learned) or 'none'}."
    )
    numbers = {
        "learned": learned,
        "helped": helped,
        "accuracy": by_seed(table, ["task", "model"], "accuracy"),
        "training_accuracy": by_seed(table, ["task", "model"], "train_accuracy"),
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


def _accuracy_text(accuracy: float | None) -> str:
    return "no run fits" if accuracy is None else f"{accuracy:.2f}"
