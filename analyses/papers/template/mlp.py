"""Multilayer perceptrons on symbols they have not seen.

On one-hot input the weights of unseen symbols never move, and by symmetry of their initial values
an MLP's answer to them is as good as a guess: the claim is about the distribution over seeds, whose
mean is chance while single seeds scatter around it. On embeddings that all symbols share, or given
the equalities XXᵀ, the theorem does not apply, and the same network may generalise.
"""

from __future__ import annotations

import numpy as np

from analyses.figures.dots import strips
from analyses.papers.base import Drawing, Setting, Status, Verdict
from analyses.papers.experiment import decide, verdict
from analyses.papers.template.models import fitted_runs, on_unseen, task_sizes
from prooflens.architectures import MLPSpec
from prooflens.tasks import same_different

__all__ = ["chance"]

_NEAR = 0.03


def chance(setting: Setting) -> Verdict:
    """Test that one-hot MLPs are at chance on unseen symbols (ledger: ``template-mlp-chance``)."""
    options = setting.options
    task = same_different(**task_sizes(options))
    kinds = {
        "one-hot": {},
        "embedded": {"d_embed": options["d_embed"]},
        "one-hot with XXᵀ": {"pairs": "masked"},
    }
    experiment = on_unseen(setting, rows=options["rows"])
    for kind, changes in kinds.items():
        hidden = (options["width"],) * 2
        spec = MLPSpec(task.vocabulary, 1, task.length, hidden=hidden, **changes)
        experiment.add({"model": kind}, task, spec)
    table, _ = experiment.run()
    plain = table[table["model"] == "one-hot"]
    share = len(fitted_runs(plain)) / len(plain)
    one = (fitted_runs(plain) if share else plain)["accuracy"].to_numpy()
    mean, error = float(one.mean()), float(one.std(ddof=1) / len(one) ** 0.5)
    near = abs(mean - 0.5) <= max(_NEAR, 2 * error) and float(one.max()) < 0.75
    status: Status = "not run" if share < 0.5 else decide(near)
    others = {k: table[table["model"] == k]["accuracy"].tolist() for k in list(kinds)[1:]}
    words = (
        f"One-hot MLPs fit the training strings ({share:.0%} of seeds) and score {mean:.3f} ± "
        f"{error:.3f} on unseen symbols (range {one.min():.2f} to {one.max():.2f}); "
        + ", ".join(f"{k} {np.mean(v):.2f}" for k, v in others.items())
        + "."
    )
    if status == "not run":
        words = f"Only {share:.0%} of the one-hot MLPs fit their training strings. " + words
    figure = strips(table, group="model", by="model", chance=0.5)
    numbers = {
        "one-hot": one.tolist(),
        "mean": mean,
        "standard_error": error,
        "fitted": share,
        **others,
    }
    return verdict(
        status,
        words,
        f"accuracy {mean:.3f} ± {error:.3f} over {len(one)} seeds (chance 0.5)",
        numbers,
        name="accuracy",
        table=table,
        drawing=Drawing(figure, "Accuracy of one-hot MLPs beside chance, a dot a seed."),
    )
