"""How many strings it takes to reason with unseen symbols, with and without the scalar a.

Both models get a sweep of learning rates: each one's rate is chosen on tuning seeds over all n, and
the claim is judged on other seeds. Under Zipf's law few symbols make up most of the training
strings, the diversity ρ falls, and unseen symbols should suffer; the test is always uniform.

Fewer samples needed says nothing about the mechanism that was learned: see the claims on heads.
"""

from __future__ import annotations

from itertools import product
from math import isinf
from typing import Any

import pandas as pd

from analyses.figures.dots import accuracy_sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide, verdict
from analyses.papers.template.models import (
    NAMES,
    count_unfitted,
    fewest_strings,
    fitted_runs,
    on_unseen,
    spec_of,
    task_sizes,
    unfitted_verdict,
)
from prooflens.tasks import same_different

__all__ = ["chosen_rates", "sample_efficiency", "zipf"]

_LEVEL = 0.9


def sample_efficiency(setting: Setting) -> Verdict:
    """Test that fewer samples are needed with a (ledger: ``template-sample-efficiency``)."""
    options = setting.options
    task = same_different(**task_sizes(options))
    rates = chosen_rates(setting, task)
    experiment = on_unseen(setting)
    for scalars in ("", "a"):
        name, spec = NAMES[scalars], spec_of(task, options, scalars, norm="layernorm")
        for n in options["rows"]:
            experiment.add({"model": name, "n": n}, task, spec, rows=n, learning_rate=rates[name])
    table, _ = experiment.run()
    if (lost := unfitted_verdict(table)) is not None:
        return lost
    reached = fewest_strings(fitted_runs(table), accuracy=_LEVEL)
    plain, scalar = reached["plain"], reached["+ aI"]
    largest = max(options["rows"])
    ratio = None if isinf(plain) or isinf(scalar) else plain / scalar
    bound = isinf(plain) and scalar <= largest / 4
    told = f"{ratio:g}× fewer strings" if ratio else "no ratio: one of the two never reaches 0.9"
    words = (
        f"Same/different reaches {_LEVEL:.0%} on unseen symbols with {_words(scalar, largest)} "
        f"strings with aI and {_words(plain, largest)} without, each at its own best "
        f"learning rate.{_left_out(table)}"
    )
    numbers = {
        "needed": _finite(reached),
        "ratio": ratio,
        "learning_rates": rates,
        "not_fitted": count_unfitted(table),
        "accuracy": _by_seed(table),
    }
    figure = accuracy_sweep(table, x="n", across="training strings n", chance=0.5)
    return verdict(
        decide(ratio is not None and ratio >= 4, bound or (ratio is not None and ratio >= 2)),
        words,
        f"{told} with aI ({_words(scalar, largest)} against {_words(plain, largest)})",
        numbers,
        name="accuracy",
        table=table,
        drawing=Drawing(figure, "Accuracy on unseen symbols against n, with aI and without."),
    )


def chosen_rates(setting: Setting, task: Any) -> dict[str, float]:
    """Return for each model the learning rate with the highest accuracy over all n and tuning
    seeds."""
    options = setting.options
    experiment = on_unseen(setting, part="tuning")
    for scalars, n, rate in product(("", "a"), options["rows"], options["learning_rates"]):
        experiment.add(
            {"model": NAMES[scalars], "n": n, "rate": rate},
            task,
            spec_of(task, options, scalars, norm="layernorm"),
            seeds=options["tuning_seeds"],
            rows=n,
            learning_rate=rate,
        )
    table, _ = experiment.run()
    means = table.groupby(["model", "rate"])["accuracy"].mean().unstack()
    return {str(name): float(row.idxmax()) for name, row in means.iterrows()}  # type: ignore[arg-type]


def zipf(setting: Setting) -> Verdict:
    """Test that less diverse substitution generalises worse (ledger: ``template-zipf``)."""
    options = setting.options
    laws: dict[str, dict[str, Any]] = {"uniform": {}}
    laws |= {f"Zipf {s:g}": {"substitution": "zipf", "exponent": s} for s in options["exponents"]}
    experiment, diversity = on_unseen(setting, rows=options["rows"]), {}
    for law, law_options in laws.items():
        task = same_different(**task_sizes(options), **law_options)
        diversity[law] = task.diversity
        for scalars in ("", "a"):
            spec = spec_of(task, options, scalars)
            experiment.add({"law": law, "model": NAMES[scalars]}, task, spec)
    table, _ = experiment.run()
    if (lost := unfitted_verdict(table)) is not None:
        return lost
    table["diversity"] = table["law"].map(diversity)
    steepest = list(laws)[-1]
    means = fitted_runs(table).groupby(["model", "law"])["accuracy"].mean().unstack()
    means = means.reindex(index=[NAMES[""], NAMES["a"]], columns=list(laws))
    falls = {str(name): float(row["uniform"] - row[steepest]) for name, row in means.iterrows()}
    passed = [name for name, fall in falls.items() if fall >= 0.05]
    words = (
        f"From uniform to {steepest} substitution (ρ {diversity['uniform']:.1f} → "
        f"{diversity[steepest]:.1f}) accuracy on unseen symbols falls by "
        + ", ".join(f"{fall:.2f} ({name})" for name, fall in falls.items())
        + f".{_left_out(table)}"
    )
    figure = accuracy_sweep(
        table, x="diversity", across="diversity ρ of the training symbols", chance=0.5
    )
    numbers = {
        "falls": falls,
        "diversity": diversity,
        "not_fitted": count_unfitted(table),
        "accuracy": _by_seed(table.rename(columns={"law": "n"})),
    }
    key = f"accuracy falls by {falls['plain']:.2f} (plain), {falls['+ aI']:.2f} (+ aI)"
    return verdict(
        decide(len(passed) == 2, len(passed) == 1),
        words,
        key,
        numbers,
        name="accuracy",
        table=table,
        drawing=Drawing(figure, "Accuracy on unseen symbols against the diversity ρ."),
    )


def _left_out(table: pd.DataFrame) -> str:
    lost = count_unfitted(table)
    return f" Left out because they do not fit their training strings: {lost}." if lost else ""


def _by_seed(table: pd.DataFrame) -> dict[str, dict[str, list[float]]]:
    """Return model → n → accuracies in the order of the seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for (name, n), rows in table.groupby(["model", "n"], sort=False):
        found.setdefault(str(name), {})[str(n)] = [round(v, 4) for v in rows["accuracy"]]
    return found


def _finite(reached: dict[str, float]) -> dict[str, float | None]:
    return {name: None if isinf(n) else n for name, n in reached.items()}


def _words(n: float, largest: int) -> str:
    return f"more than {largest}" if isinf(n) else f"{n:g}"
