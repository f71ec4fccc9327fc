"""Claim: on L_k's prediction problem, transformers generalise in length from depth k − 2 on.

Every (k, depth, seed) of a grid is trained alike on short strings and scored by whole strings. Of
each cell the run is kept that is best on the range of lengths before the last, on both sides of the
line, and it is judged on the last. Beside it stand the exact ceiling of depth-1 predictors and the
best shallower program that a search found: the level must be above them. A cell below the line that
fails is evidence, not proof: other training might succeed; a cell above that fails shows that
training did not find what exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analyses.figures.dots import strips
from analyses.figures.frontier import depth_frontier, shallower_at_best
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.depth.ceiling import describe, search_program, table_bound
from analyses.papers.depth.predictors import (
    Bin,
    bin_name,
    bins_of,
    match_of_best,
    predictor_run,
    scores,
    shipped_predictor,
)
from analyses.papers.experiment import decide, train_runs
from prooflens.errors import Problems

__all__ = ["check", "judge", "run", "with_positions"]

Cell = tuple[int, int, int]

_LEARNED = 0.95
_GAP = 0.3


def check(setting: Setting) -> None:
    """Refuse ranges of lengths among which none is left to choose runs on.

    Raises:
        ArgumentError: if ``bins`` has fewer than two ranges.
    """
    problems, bins = Problems("claims run"), setting.options["bins"]
    rule = "must have at least two ranges: runs are chosen on the last but one, judged on the last"
    problems.need(len(bins) >= 2, "--option bins", rule, bins, "write [[3, 30], [91, 120]]")
    problems.raise_if_any()


def run(setting: Setting) -> Verdict:
    """Score a grid of trained models, and compare with what shallower predictors can do.

    Options: ``models`` (names of shipped ones) or ``blocks``, ``depths``, ``short`` (the values of
    k − depth that are trained; all by default) and those of
    :func:`~analyses.papers.depth.predictors.predictor_run`; ``bins``; ``rows``, the number of
    strings in each; ``search``, the number of programs tried for each k.
    """
    options, bins = setting.options, bins_of(setting.options)
    models = _load_shipped(options["models"]) if "models" in options else _grid(setting)
    beyond = [(int(low), int(high)) for low, high in options.get("beyond", ())]
    table = scores(models, [*bins, *beyond], int(options["rows"]))
    blocks = sorted({k for k, _, _ in models})
    ceilings, searched = _ceilings(blocks, bins[-1], int(options["search"]))
    found = verdict(table, bins, ceilings, searched)
    return replace(found, models=tuple(options.get("models", ())))


def with_positions(setting: Setting) -> Verdict:
    """Do the same for models with positions, on lengths up to which such models can be trained
    (ledger: ``depth-positions``).

    Options: ``kinds``, name → options of the spec; the others as for :func:`run`.
    """
    options, bins = setting.options, bins_of(setting.options)
    tables, kept, words = [], {}, []
    for kind, spec in options["kinds"].items():
        told = replace(setting, options=dict(options) | {"positions": spec})
        table = scores(_grid(told, f"runs-{kind}"), bins, int(options["rows"]))
        tables.append(table.assign(positions=kind))
        kept[kind] = match_of_best(table, bins[-2], bins[-1])
        words.append(f"{kind}: {judge(kept[kind])[1]}")
    gaps = {f"{kind}, L_{k}": gap for kind, far in kept.items() for k, gap in _gaps(far).items()}
    verdicts = {judge(far)[0] for far in kept.values()}
    low = [v for far in kept.values() for (k, depth), v in far.items() if depth < k - 2]
    apart = bool(gaps) and max(low) < _LEARNED and min(gaps.values()) >= _GAP
    status = decide(verdicts == {"reproduced"}, apart)
    whole = pd.concat(tables, ignore_index=True)
    name = bin_name(bins[-1])
    shown = whole[whole["bin"] == name]
    cells = zip(shown["k"], shown["depth"], strict=True)
    figure = strips(
        shown.assign(cell=[f"L_{k}, depth {depth}" for k, depth in cells]),
        group="cell",
        y="exact_match",
        by="positions",
        chance=_LEARNED,
        label=f"strings right throughout (share), {name} (dashed: learned)",
    )
    numbers = {
        "kept": {
            f"{kind}: k={k}, depth={depth}": value
            for kind, far in kept.items()
            for (k, depth), value in far.items()
        },
        "gaps": gaps,
        "exact_match": {
            kind: _matches_by_bin(rows) for kind, rows in whole.groupby("positions", sort=False)
        },
    }
    key = f"depth k − 2 less depth k − 3 at {name}: " + ", ".join(
        f"{cell} {gap:.2f}" for cell, gap in gaps.items()
    )
    seen = f"Strings of {name} right throughout, for each number of blocks and layers, every seed."
    drawings = {"positions": Drawing(figure, seen)}
    return Verdict(status, " ".join(words), key, numbers, {"exact_match": whole}, drawings)


def _load_shipped(names: Sequence[str]) -> dict[Cell, Any]:
    """Load shipped models: (k, depth, number among those alike) → model."""
    found: dict[Cell, Any] = {}
    for name in names:
        k, depth, model = shipped_predictor(name)
        alike = sum(cell[:2] == (k, depth) for cell in found)
        found[k, depth, alike] = model
    return found


def _grid(setting: Setting, part: str = "runs") -> dict[Cell, Any]:
    """Train a grid of models: (k, depth, seed) → model."""
    options = setting.options
    cells = [
        (k, depth, seed)
        for k in options["blocks"]
        for depth in options["depths"]
        if k - depth in options.get("short", (k - depth,))
        for seed in setting.seeds
    ]
    fits = train_runs(setting, [predictor_run(*cell, options) for cell in cells], part)
    return {cell: fit.model for cell, fit in zip(cells, fits, strict=True)}


def verdict(
    table: pd.DataFrame, bins: Sequence[Bin], ceilings: pd.DataFrame, searched: pd.DataFrame
) -> Verdict:
    """The verdict that follows from the numbers by the ledger's rule."""
    far, names = match_of_best(table, bins[-2], bins[-1]), [bin_name(lengths) for lengths in bins]
    status, words = judge(far)
    alternative = (
        "Panels of number of blocks against attention layers, coloured by the share of "
        "strings right throughout; at the longest strings " + words
    )
    numbers = {
        "kept": {f"k={k}, depth={depth}": value for (k, depth), value in far.items()},
        "exact_match": _matches_by_bin(table),
        "depth_1_ceiling": ceilings.to_dict("records"),
        "shallower_programs": searched.to_dict("records"),
    }
    label = "strings right throughout (share)"
    drawings = {"frontier": Drawing(depth_frontier(table, names, label=label), alternative)}
    if len(ceilings):
        longest = table[table["bin"] == names[-1]]
        drawings["shallower"] = Drawing(
            shallower_at_best(longest, ceilings, searched, label=f"{label},\n{names[-1]}"),
            "For each number of blocks from 4: models with one layer, one layer too few and enough "
            "layers, the bound on one layer, and the best program found that is one level short.",
        )
    tables = {"exact_match": table, "depth_1_ceiling": ceilings, "shallower_programs": searched}
    key = _key(far, names[-1])
    return Verdict(status, words, key, numbers, tables, drawings)


def judge(far: Mapping[tuple[int, int], float]) -> tuple[Any, str]:
    """Apply the rule: is learning at the longest strings possible exactly where the theory says so?

    Args:
        far: (k, depth) → exact match of the chosen run at the longest strings.

    Returns:
        The status, and a sentence or two.
    """
    learned = {cell for cell, found in far.items() if found >= _LEARNED}
    expected = {(k, depth) for k, depth in far if depth >= k - 2}
    above = sorted(learned - expected)
    missed = sorted(expected - learned)
    said = (
        f"{len(expected & learned)} of {len(expected)} cells with depth ≥ k − 2 are learned and "
        f"{len(above)} of {len(far) - len(expected)} below."
    )
    if missed:
        said += f" Not learned though a solution exists: {_cells(missed)}."
    if above:
        said += f" Learned below the line: {_cells(above)}."
    if learned == expected:
        return "reproduced", said
    gaps = _gaps(far).values()
    return ("partly" if not above and gaps and min(gaps) >= _GAP else "not reproduced"), said


def _gaps(far: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Return k → by how much depth k − 2 is better than depth k − 3, where both were trained."""
    return {
        k: found - far[k, depth - 1]
        for (k, depth), found in far.items()
        if depth == k - 2 and (k, depth - 1) in far
    }


def _cells(cells: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"k = {k} at depth {depth}" for k, depth in cells)


def _key(far: Mapping[tuple[int, int], float], name: str) -> str:
    """Return the number to quote: the ranges of accuracy on the theory's line and just below it."""
    told = []
    for gap in (2, 3):
        kept = [found for (k, depth), found in far.items() if k - depth == gap]
        if kept:
            told.append(f"{min(kept):.2f} to {max(kept):.2f} at depth k − {gap}")
    return f"whole strings right at {name}, of the runs that were kept: " + ", ".join(told)


def _ceilings(blocks: Sequence[int], far: Bin, budget: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the exact upper limit for depth 1, and the best programs of depth k − 3 that a search
    found."""
    exact, searched = [], []
    for k in blocks:
        if k < 4:
            continue
        accuracy, bound = table_bound(k, far)
        exact.append({"k": k, "depth": 1, "accuracy": accuracy, "exact_match_at_most": bound})
        program, match, _ = search_program(k, far, budget=budget, rows=300, seed=k)
        searched.append(
            {
                "k": k,
                "depth": k - 3,
                "tried": budget,
                "exact_match": match,
                "program": describe(program),
            }
        )
    return pd.DataFrame(exact), pd.DataFrame(searched)


def _matches_by_bin(table: pd.DataFrame) -> dict[str, dict[str, list[float]]]:
    """Return range of lengths → "k, depth" → the exact match of every seed."""
    return {
        str(name): {
            f"k={k}, depth={depth}": [round(v, 4) for v in cell["exact_match"]]
            for (k, depth), cell in group.groupby(["k", "depth"])
        }
        for name, group in table.groupby("bin", sort=False)
    }
