"""Does reasoning with unseen symbols need heads that specialise?

    kept = (accuracy without heads − ½) / (accuracy − ½)        on unseen symbols

A head goes by having its mean over strings in place of its output, position by position. Where
heads specialise, the loss of one particular head, or of a few, takes the ability with it; where
they do not, whichever head goes little is lost, and many must go. Heads are taken away one after
another, always the one whose loss costs most, and beside it in random orders.

How many heads have a diagonal on symbols (W_K W_Qᵀ + aI through the embedding) is told beside it
and decides nothing: a diagonal is a property of weights, and a model may do without a head that
has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import torch

from analyses.figures.dots import accuracy_sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from analyses.papers.template.circuits import circuit_drawing, scalar_drawing
from analyses.papers.template.diagonals import diagonal_table
from analyses.papers.template.models import NAMES, count_unfitted, on_unseen, spec_of, task_sizes
from prooflens.run import Mean, Run, head_sites
from prooflens.tasks import Batch, TemplateTask, same_different

__all__ = ["share_without", "specialisation", "statements", "worst_first"]

_REASONS, _SINGLE, _HALF, _QUARTER = 0.9, 0.9, 0.5, 0.25
_CLEAR, _SYMBOLS, _STRINGS, _ORDERS = 0.2, 64, 1024, 8

Kept = Callable[[Sequence[int]], float]


def specialisation(setting: Setting) -> Verdict:
    """Test that no head is needed (ledger: ``template-head-specialisation``)."""
    options = setting.options
    task, heads = same_different(**task_sizes(options)), options["heads"]
    experiment = on_unseen(setting, rows=options["rows"])
    for kind in ("", "a"):
        spec = spec_of(task, options, kind, norm="layernorm")
        experiment.add({"model": NAMES[kind]}, task, spec)
    table, fits = experiment.run()
    judged = table[table["accuracy"] >= _REASONS]
    if set(judged["model"]) != set(table["model"]):
        words = f"Of one of the two models no run reaches {_REASONS} on unseen symbols."
        return Verdict("not run", words, tables={"accuracy": table})
    removals = pd.DataFrame(
        [
            {"model": run["model"], "seed": run["seed"], **row}
            for run, fit in zip(table.to_dict("records"), fits, strict=True)
            if run["accuracy"] >= _REASONS
            for row in _removals(fit.model, task, run["seed"])
        ]
    )
    found = statements(removals[removals["order"] == "worst first"], heads)
    shares = pd.concat(
        [
            _shares(fit.model, task.unseen()).assign(**labels)
            for (labels, _), fit in zip(experiment.planned, fits, strict=True)
        ],
        ignore_index=True,
    )
    status, words, key = _verdict(found, len(judged), len(table))
    shown = removals.assign(model=removals["model"] + ", " + removals["order"])
    figure = accuracy_sweep(
        shown,
        x="gone",
        across=f"heads taken away, of {heads}",
        y="kept",
        label="accuracy above chance that is kept",
        log_x=False,
    )
    numbers = {
        "runs": found.to_dict("records"),
        "accuracy": table["accuracy"].tolist(),
        "not_fitted": count_unfitted(table),
        "clear_heads": _clear(shares),
    }
    return Verdict(
        status,
        words,
        key,
        numbers,
        {"accuracy": table, "removals": removals, "diagonals": shares},
        {
            "removals": Drawing(figure, "What is kept as heads go, worst first and at random."),
            "circuits": circuit_drawing(experiment.planned, fits, "QK", task.train[0]),
            "scalars": scalar_drawing(experiment.planned, fits, "a"),
        },
    )


def share_without(model: Any, batch: Batch) -> Kept:
    """Return a function from a set of heads of the first layer to the share of the accuracy above ½
    that the model keeps without them."""
    run = Run(model, batch)
    edits = [Mean(site) for site in head_sites(model) if site.layer == 0]

    def accuracy(heads: Sequence[int]) -> float:
        changed = run.with_(*(edits[head] for head in heads))
        return float(changed.value(_right)[:, -1].mean())

    whole = accuracy([])
    return lambda heads: (accuracy(heads) - 0.5) / (whole - 0.5)


def _right(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Whether each output has the target's sign."""
    return output[:, 0].sign() == targets[:, 0].sign()


def worst_first(kept: Kept, heads: int) -> Iterator[float]:
    """Yield the share that is kept as heads are removed one after another, each time the one whose
    removal costs most."""
    gone: list[int] = []
    while len(gone) < heads:
        left = [head for head in range(heads) if head not in gone]
        gone.append(min(left, key=lambda head: kept([*gone, head])))
        yield kept(gone)


def statements(removals: pd.DataFrame, heads: int) -> pd.DataFrame:
    """Evaluate the rule's statements for each run.

    Args:
        removals: Columns ``model``, ``seed``, ``gone`` and ``kept``, worst first.
        heads: The number of heads.

    Returns:
        Columns ``model``, ``seed``, ``single`` (the share kept without the most needed head),
        ``to_go`` (the share of heads that are removed when less than half is kept), and whether
        each is enough.
    """
    rows = []
    for (model, seed), run in removals.groupby(["model", "seed"], sort=False):
        by_gone = dict(zip(run["gone"].tolist(), run["kept"].tolist(), strict=True))
        broken = [int(gone) for gone, kept in by_gone.items() if kept < _HALF]
        single, to_go = float(by_gone[1]), min(broken, default=heads) / heads
        enough = {"none_needed": single >= _SINGLE, "many_to_go": to_go >= _QUARTER}
        rows.append({"model": model, "seed": seed, "single": single, "to_go": to_go, **enough})
    return pd.DataFrame(rows)


def _verdict(found: pd.DataFrame, judged: int, runs: int) -> tuple[Any, str, str]:
    most = found.groupby("model", sort=False)[["none_needed", "many_to_go"]].mean() > 0.5
    status = decide(
        bool(most.all(axis=None)), bool(most.all(axis=0).any() | most.all(axis=1).any())
    )
    told = [
        f"{model} {rows['single'].min():.2f} and {rows['to_go'].min():.2f}"
        for model, rows in found.groupby("model", sort=False)
    ]
    words = (
        f"{judged} of {runs} runs reason with unseen symbols and are judged. Kept without the most "
        f"needed head, and the share of heads gone when half is lost, in the worst run: "
        f"{'; '.join(told)}."
    )
    return status, words, "without the most needed head, and heads to go: " + "; ".join(told)


def _removals(model: Any, task: TemplateTask, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the share that is kept for each number of removed heads, worst first and in random
    orders."""
    kept = share_without(model, task.unseen().sample(_STRINGS, seed=seed))
    heads, rng = model.spec.heads[0], np.random.default_rng(seed)
    for gone, value in enumerate((1.0, *worst_first(kept, heads))):
        yield {"order": "worst first", "gone": gone, "kept": value}
    orders = [rng.permutation(heads) for _ in range(_ORDERS)]
    for gone in range(heads + 1):
        value = float(np.mean([kept(order[:gone].tolist()) for order in orders]))
        yield {"order": "at random", "gone": gone, "kept": value}


def _clear(shares: pd.DataFrame) -> dict[str, int]:
    """Return for each run the number of heads with a clear diagonal on unseen symbols."""
    clear = shares.assign(clear=(shares["q"] < 0.01) & (shares["score"].abs() >= _CLEAR))
    counts = clear.groupby(["model", "seed"], sort=False)["clear"].sum().to_dict()
    found = cast("dict[tuple[str, int], int]", counts)
    return {f"{model} seed {seed}": int(count) for (model, seed), count in found.items()}


def _shares(model: Any, task: TemplateTask) -> pd.DataFrame:
    """The trace share of every head's effective QK circuit on a task's unseen symbols."""
    first, stop = task.test
    found = diagonal_table(model, symbols=slice(first, min(stop, first + _SYMBOLS)))
    kind = "QK+aI" if model.spec.identity_qk else "QK"
    chosen = (found["circuit"] == kind) & (found["metric"] == "trace_share")
    return found[chosen & (found["target"] == "symbols")]
