"""Is the proof of a model shorter if more of the model is understood?

Max-of-K models of one recipe and many seeds. What is understood is the size direction: scores are
one product of a function of the query and one of the key. Of each model

    unexplained   mean over queries of the largest difference, in nats, in a row of what the best
                  rank-one part of the (centred) scores leaves
    length        multiplications that settle every row: the rank-one proof, then brute force on
                  the rows that it leaves open

The second depends on the first through more than scores: what the head writes and the direct path
count too, so the correlation is no identity. It is about models that differ by their seeds alone;
that understanding *causes* short proofs is not tested.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import permutation_test, spearmanr

from analyses.figures.dots import lengths_figure
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.compact.rank_one import by_factors, exact_weights, rank_one_weights
from analyses.papers.experiment import Experiment, decide, spread, verdict
from prooflens.architectures import TransformerSpec
from prooflens.certificates import brute_force, tables_of
from prooflens.tasks import Maximum

__all__ = ["lengths", "shorter", "unexplained"]

_STRONG, _ERROR = 0.5, 0.05


def shorter(setting: Setting) -> Verdict:
    """Rank correlation over seeds (ledger: ``compact-understanding``)."""
    options = setting.options
    task = Maximum(options["vocabulary"], options["length"])
    v, width = task.vocabulary, options["d_model"]
    spec = TransformerSpec(
        v, v, task.length, width, 1, n_heads=1, d_head=width, positions="learned"
    )
    experiment = Experiment(setting, weight_decay=0.01)
    experiment.add({}, task, spec)
    trained, fits = experiment.run()
    rows = [lengths(fit.model, task.length) for fit in fits]
    table = pd.concat([trained[["seed"]], pd.DataFrame(rows)], axis=1)
    return judge(table, least=options["accuracy"], models=options["models"])


def unexplained(scores: Any) -> float:
    """Mean over rows of the largest difference in what the best rank-one part leaves, in nats.

    Args:
        scores: ``[query, position, token]``.
    """
    flat = scores.reshape(len(scores), -1)
    flat = flat - flat.mean(1, keepdims=True)
    u, s, w = np.linalg.svd(flat, full_matrices=False)
    rest = flat - s[0] * np.outer(u[:, 0], w[0])
    return float(np.ptp(rest, axis=1).mean())


def lengths(model: Any, length: int) -> dict[str, float]:
    """Of one model: accuracy, what is unexplained, and how long its proofs are."""
    tables = tables_of(model, length)
    every = brute_force(tables)
    found = {
        "accuracy": every.parts["right in real arithmetic"],
        "unexplained": unexplained(tables.scores),
        "brute force": float(every.multiplications),
    }
    v = tables.vocabulary
    known = {"quadratic": exact_weights(tables), "rank one": rank_one_weights(model, tables)}
    for name, weights in known.items():
        bound, work = (0.0, 0) if weights is None else by_factors(tables, weights)
        found |= {f"{name} bound": bound, name: work + (1 - bound) * v**length * v}
    return found


def judge(table: pd.DataFrame, *, least: float, models: int) -> Verdict:
    """The verdict on a table of :func:`lengths`, a row a seed."""
    kept = table[table["accuracy"] >= least]
    if len(kept) < models:
        return Verdict("not run", f"{len(kept)} of {len(table)} models are right often enough.")
    x, y = kept["unexplained"].to_numpy(), np.log10(kept["rank one"].to_numpy())
    test = permutation_test(
        (x,),
        lambda a: spearmanr(a, y).statistic,
        permutation_type="pairings",
        n_resamples=9999,
        rng=np.random.default_rng(0),
    )
    rho, p = float(test.statistic), float(test.pvalue)
    shorter_than_all = int((kept["rank one"] < kept["brute force"]).sum())
    every = shorter_than_all == len(kept)
    status = decide(bool(rho >= _STRONG and p < _ERROR and every), bool(rho > 0 and p < _ERROR))
    words = (
        f"Over {len(kept)} models the rank correlation of what is unexplained and the length of "
        f"the proof is {rho:.2f} (p = {p:.2g}); the proof is shorter than brute force in "
        f"{shorter_than_all} of {len(kept)}. Unexplained are "
        f"{spread(kept['unexplained'].tolist())} nats; the rank-one bound is "
        f"{spread(kept['rank one bound'].tolist(), '.3f')}, the quadratic one "
        f"{spread(kept['quadratic bound'].tolist(), '.3f')}."
    )
    if status != "reproduced":
        words += (
            " Seeds alone change what is unexplained little, and the length depends as much on "
            "what the head writes."
        )
    numbers = {
        "rho": rho,
        "p": p,
        "shorter_than_brute_force": shorter_than_all,
        **{str(name): kept[name].tolist() for name in kept},
    }
    seen = (
        f"Length of the whole proof against what is unexplained, {len(kept)} models: rank "
        f"correlation {rho:.2f}."
    )
    return verdict(
        status,
        words,
        f"rank correlation {rho:.2f}, p = {p:.2g}, {len(kept)} models",
        numbers,
        name="lengths",
        table=kept,
        drawing=Drawing(lengths_figure(kept, rho), seen),
    )
