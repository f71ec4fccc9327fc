"""How many strings it takes to reason with unseen symbols, with and without the scalar a.

Both models get a sweep of learning rates: each one's rate is chosen on tuning seeds over all n, and
the claim is judged on other seeds. Under Zipf's law few symbols make up most of the training
strings, the diversity ρ falls, and unseen symbols should suffer; the test is always uniform.

Fewer samples needed says nothing about the mechanism that was learned: see the claims on heads.
"""

from __future__ import annotations

from math import isinf
from typing import Any

import pandas as pd

from analyses.claims.base import Drawing, Setting, Verdict
from analyses.claims.template.models import (
    NAMES,
    fitted,
    needed,
    run_of,
    spec_of,
    task_sizes,
    train_table,
    unanswered,
    unfitted,
)
from interp.figures.unseen import curves
from interp.tasks.template.named import same_different

__all__ = ["chosen_rates", "sample_efficiency", "zipf"]

_LEVEL = 0.9


def sample_efficiency(setting: Setting) -> Verdict:
    """Fewer samples with a (ledger: ``template-sample-efficiency``)."""
    options = setting.options
    task = same_different(**task_sizes(options))
    rates = chosen_rates(setting, task)
    planned = [
        run_of(setting, {"model": NAMES[scalars], "n": n, "seed": seed}, task,
               spec_of(task, options, scalars), rows=n, seed=seed,
               learning_rate=rates[NAMES[scalars]])
        for scalars in ("", "a") for n in options["rows"] for seed in setting.seeds
    ]  # fmt: skip
    table, _ = train_table(setting, planned)
    if (lost := unanswered(table)) is not None:
        return lost
    reached = needed(fitted(table), accuracy=_LEVEL)
    plain, scalar = reached["plain"], reached["+ aI"]
    largest = max(options["rows"])
    ratio = (2 * largest if isinf(plain) else plain) / scalar
    status = "reproduced" if ratio >= 4 else "partly" if ratio >= 2 else "not reproduced"
    bound = "at least " if isinf(plain) else ""
    words = (
        f"Same/different reaches {_LEVEL:.0%} on unseen symbols with {_told(scalar, largest)} "
        f"strings with aI and {_told(plain, largest)} without, each at its own best learning rate."
        f"{_left_out(table)}"
    )
    numbers = {"needed": _finite(reached), "ratio": ratio, "learning_rates": rates,
               "not_fitted": unfitted(table), "accuracy": _by_seed(table)}  # fmt: skip
    figure = curves(table, x="n", across="training strings n", chance=0.5)
    return Verdict(
        status,  # type: ignore[arg-type]
        words,
        f"{bound}{ratio:g}× fewer strings with aI",
        numbers,
        {"accuracy": table},
        {"accuracy": Drawing(figure, "With aI accuracy on unseen symbols rises at smaller n.")},
    )


def chosen_rates(setting: Setting, task: Any) -> dict[str, float]:
    """Each model's best learning rate: highest accuracy over all n and tuning seeds."""
    options = setting.options
    planned = [
        run_of(setting, {"model": NAMES[scalars], "n": n, "rate": rate, "seed": seed}, task,
               spec_of(task, options, scalars), rows=n, seed=seed, learning_rate=rate)
        for scalars in ("", "a") for n in options["rows"] for rate in options["learning_rates"]
        for seed in options["tuning_seeds"]
    ]  # fmt: skip
    table, _ = train_table(setting, planned, part="tuning")
    means = table.groupby(["model", "rate"])["accuracy"].mean().unstack()
    return {str(name): float(row.idxmax()) for name, row in means.iterrows()}  # type: ignore[arg-type]


def zipf(setting: Setting) -> Verdict:
    """Less diverse substitution generalises worse (ledger: ``template-zipf``)."""
    options = setting.options
    laws: dict[str, dict[str, Any]] = {"uniform": {}}
    laws |= {f"Zipf {s:g}": {"substitution": "zipf", "exponent": s} for s in options["exponents"]}
    planned, diversity = [], {}
    for law, law_options in laws.items():
        task = same_different(**task_sizes(options), **law_options)
        diversity[law] = task.diversity
        planned += [
            run_of(setting, {"law": law, "model": NAMES[scalars], "seed": seed}, task,
                   spec_of(task, options, scalars), rows=options["rows"], seed=seed)
            for scalars in ("", "a") for seed in setting.seeds
        ]  # fmt: skip
    table, _ = train_table(setting, planned)
    if (lost := unanswered(table)) is not None:
        return lost
    table["diversity"] = table["law"].map(diversity)
    steepest = list(laws)[-1]
    means = fitted(table).groupby(["model", "law"])["accuracy"].mean().unstack()
    means = means.reindex(index=[NAMES[""], NAMES["a"]], columns=list(laws))
    falls = {str(name): float(row["uniform"] - row[steepest]) for name, row in means.iterrows()}
    passed = [name for name, fall in falls.items() if fall >= 0.05]
    status = {2: "reproduced", 1: "partly", 0: "not reproduced"}[len(passed)]
    words = (
        f"From uniform to {steepest} substitution (ρ {diversity['uniform']:.1f} → "
        f"{diversity[steepest]:.1f}) accuracy on unseen symbols falls by "
        + ", ".join(f"{fall:.2f} ({name})" for name, fall in falls.items())
        + f".{_left_out(table)}"
    )
    figure = curves(table, x="diversity", across="diversity ρ of the training symbols", chance=0.5)
    numbers = {"falls": falls, "diversity": diversity, "not_fitted": unfitted(table),
               "accuracy": _by_seed(table.rename(columns={"law": "n"}))}  # fmt: skip
    key = f"accuracy falls by {falls['plain']:.2f} (plain), {falls['+ aI']:.2f} (+ aI)"
    return Verdict(
        status,  # type: ignore[arg-type]
        words,
        key,
        numbers,
        {"accuracy": table},
        {"accuracy": Drawing(figure, "Accuracy on unseen symbols against the diversity ρ.")},
    )


def _left_out(table: pd.DataFrame) -> str:
    lost = unfitted(table)
    return f" Left out because they do not fit their training strings: {lost}." if lost else ""


def _by_seed(table: pd.DataFrame) -> dict[str, dict[str, list[float]]]:
    """Model → n → accuracies in the order of the seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for (name, n), rows in table.groupby(["model", "n"], sort=False):
        found.setdefault(str(name), {})[str(n)] = [round(v, 4) for v in rows["accuracy"]]
    return found


def _finite(reached: dict[str, float]) -> dict[str, float | None]:
    return {name: None if isinf(n) else n for name, n in reached.items()}


def _told(n: float, largest: int) -> str:
    return f"more than {largest}" if isinf(n) else f"{n:g}"
