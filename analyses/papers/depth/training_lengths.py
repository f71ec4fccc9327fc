"""Claim: how long training strings must be, beside the length that is enough for small numbers.

arXiv 2506.03085 asks from which length on the simplest predictor that is right on all shorter
strings is right on all: O(T²) for one layer of C-RASP whose numbers have precision T. It has a
bound for some programs of two layers; for all of them arXiv 2603.02238 is reported to show that
none is computable. *Our reading*, for L_3's prediction problem, which needs one layer and no number
beyond 1: let P_C be the predictors that know of a prefix its last letter and which comparisons
u #a + v #b ≥ w hold, |u|, |v|, |w| ≤ C. Prefixes fall into classes that no member tells apart, and

    N_C = max over the classes of strings of L_3 of the least length of a string with a prefix there

is the least length such that members which agree on all strings of L_3 up to it agree on all: two
that differ do so on a whole class. It is finite and quadratic, N_C ≤ 4C² + 8C + 2. A class holds
the whole points of a polygon in the quadrant a, b ≥ 0 whose sides have normals within C and offsets
within C + 1. By Cramer's rule its corners are at most 2C(C + 1) in either coordinate; its unbounded
directions are spanned by whole vectors within C. A whole point is a mean of corners plus a sum of
at most two of these; take whole multiples away, and what is left is a whole point of the class
within 2C(C + 1) + 2C. At most two letters complete its string.

A learner in P_1 that is right on strings up to N_1 is right on all. A trained model may hold larger
numbers, and N_C says how much longer its strings must be then; that it is in any P_C is not known.
Of deeper models (L_4 and two layers) only what was measured is told.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.depth.bounded import prefix_class
from analyses.papers.depth.predictors import bin_name, bins_of, predictor_run, scores
from analyses.papers.experiment import by_seed, decide, medians, spread, train_runs
from analyses.papers.sequential import in_turn
from prooflens.errors import Problems

__all__ = ["check", "needed_length", "run"]

_LEARNED = 0.9


def check(setting: Setting) -> None:
    """Refuse numbers whose lengths are not trained, and an even number of seeds.

    Raises:
        ArgumentError: if the length N_C of one of the ``numbers`` is not among the ``lengths``, or
            for an even number of seeds.
    """
    problems, o = Problems("claims run"), setting.options
    bounds = [needed_length(number) for number in o["numbers"]]
    rule = f"must hold {bounds}, enough for numbers up to {o['numbers']}"
    there = len(bounds) >= 2 and set(bounds) <= set(o["lengths"])
    problems.need(there, "--option lengths", rule, o["lengths"], "add them")
    rule, count = "must be odd, so that one is the median", len(setting.seeds)
    problems.need(count % 2 == 1, "--seeds", rule, count, "take one more")
    problems.raise_if_any()


def needed_length(number: int) -> int:
    """Return N_C of L_3: the length that strings must have to distinguish all predictors with
    numbers up to C."""
    within, found = 4 * number * (number + 2), dict[object, int]()
    for a in range(1, within + 1):
        for b in range(within + 1 - a):
            prefixes = {f"{'a' * a}{'b' * b}": 1 if b else 2}
            if b and a > 1:
                prefixes[f"{'a' * (a - 1)}{'b' * b}a"] = 0
            for prefix, missing in prefixes.items():
                key = prefix_class(prefix, (number,))
                found[key] = min(found.get(key, a + b + missing), a + b + missing)
    return max(found.values())


def run(setting: Setting) -> Verdict:
    """Train on strings up to several lengths and judge on long ones (``depth-training-lengths``).

    Options: ``blocks``, of which 3 is judged; ``lengths``, the longest training strings;
    ``numbers`` whose N_C are among them, the least first; ``bins``, of which all but the first are
    judged on, the last decides; ``rows``, and those of
    :func:`~analyses.papers.depth.predictors.predictor_run`.
    """
    o = setting.options
    cells = [(k, longest) for k in o["blocks"] for longest in o["lengths"] if longest > k]
    bins, parts = bins_of(o), list[pd.DataFrame]()

    def train_and_judge(cases: list[tuple[tuple[int, int], int]]) -> list[list[bool]]:
        first, runs = len(parts), []
        for (k, longest), seed in cases:
            of = {**o, "bins": [[k, longest], *o["bins"]]}
            name = f"L{k}-to-{longest}-seed{seed}"
            runs.append(replace(predictor_run(k, k - 2, seed, of), name=name))
        fits = train_runs(setting, runs, f"runs-{first}")
        for ((k, longest), seed), fit in zip(cases, fits, strict=True):
            found = scores({(k, k - 2, seed): fit.model}, bins, o["rows"])
            parts.append(found.assign(longest=longest))
        return [[bool(part["exact_match"].iloc[-1] >= _LEARNED)] for part in parts[first:]]

    middle = len(setting.seeds) // 2 + 1
    in_turn(setting.seeds, {cell: [middle] for cell in cells}, train_and_judge)
    table = pd.concat(parts, ignore_index=True)
    table["model"] = [f"L_{k}, {k - 2} layers" for k in table["k"]]
    return _verdict(table, o["numbers"], bin_name(bins[-1]))


def _verdict(table: pd.DataFrame, numbers: list[int], judged: str) -> Verdict:
    far = table[table["bin"] == judged]
    middle = medians(far, ["k", "longest"], "exact_match")
    bounds = {number: needed_length(number) for number in numbers}
    learned = {number: middle[3, n] >= _LEARNED for number, n in bounds.items()}
    first, *larger = learned.values()
    told = [
        f"L_{k} after strings of up to {longest} symbols: {spread(list(rows), '.2f')}"
        for (k, longest), rows in far.groupby(["k", "longest"])["exact_match"]
    ]
    enough = ", ".join(f"{n} symbols for numbers up to {c}" for c, n in bounds.items())
    figure = sweep(
        far,
        x="longest",
        across="longest training strings, symbols",
        by="model",
        label=f"strings right throughout\n(share, {judged})",
        y="exact_match",
        levels={"learned": _LEARNED},
        log_y=False,
    )
    return Verdict(
        decide(first and all(larger), all(larger)),
        f"Right throughout at {judged}: {'; '.join(told)}. Enough for L_3: {enough}.",
        ", ".join(f"{middle[3, n]:.2f} after {n} symbols (N_{c})" for c, n in bounds.items()),
        {
            "needed": {str(c): n for c, n in bounds.items()},
            "exact_match": by_seed(table, ["k", "longest", "bin"], "exact_match"),
        },
        {"lengths": table},
        {"lengths": Drawing(figure, "Strings right throughout: " + "; ".join(told))},
    )
