"""Multilayer perceptrons on symbols they have not seen.

On one-hot input the weights of unseen symbols never move, and by symmetry of their initial values
an MLP's answer to them is as good as a guess: the claim is about the distribution over seeds, whose
mean is chance while single seeds scatter around it. On embeddings that all symbols share, or given
the equalities XXᵀ, the theorem does not apply, and the same network may generalise.
"""

from __future__ import annotations

import numpy as np

from analyses.claims.base import Drawing, Setting, Verdict
from analyses.claims.template.models import fitted, run_of, task_sizes, train_table
from interp.figures.unseen import strips
from interp.models.baselines import MLPSpec
from interp.tasks.template.named import same_different

__all__ = ["chance"]

_NEAR = 0.03


def chance(setting: Setting) -> Verdict:
    """One-hot MLPs are at chance (ledger: ``template-mlp-chance``)."""
    options = setting.options
    task = same_different(**task_sizes(options))
    kinds = {"one-hot": {}, "embedded": {"d_embed": options["d_embed"]}, "one-hot with XXᵀ": {
        "pairs": "masked"}}  # fmt: skip
    planned = [
        run_of(setting, {"model": kind, "seed": seed}, task,
               MLPSpec(task.vocabulary, 1, task.length, hidden=(options["width"],) * 2, **changes),
               rows=options["rows"], seed=seed)
        for kind, changes in kinds.items() for seed in setting.seeds
    ]  # fmt: skip
    table, _ = train_table(setting, planned)
    plain = table[table["model"] == "one-hot"]
    share = len(fitted(plain)) / len(plain)
    one = (fitted(plain) if share else plain)["accuracy"].to_numpy()
    mean, error = float(one.mean()), float(one.std(ddof=1) / len(one) ** 0.5)
    near = abs(mean - 0.5) <= max(_NEAR, 2 * error) and float(one.max()) < 0.75
    status = "not run" if share < 0.5 else "reproduced" if near else "not reproduced"
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
    numbers = {"one-hot": one.tolist(), "mean": mean, "standard_error": error, "fitted": share,
               **others}  # fmt: skip
    return Verdict(
        status,  # type: ignore[arg-type]
        words,
        f"accuracy {mean:.3f} ± {error:.3f} over {len(one)} seeds (chance 0.5)",
        numbers,
        {"accuracy": table},
        {"accuracy": Drawing(figure, "One-hot MLPs scatter around chance, a dot a seed.")},
    )
