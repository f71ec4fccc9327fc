"""Does the theorem's bound, its constants evaluated, lie above the best errors that are known?

    error ≤ τ² C_0 ( C_1^(α) / m_h^{2α−1} + C_2^(β)(m_h) m_h^{β+1} / m_FF^β )      (`coupling` §4.1)

error   the mean square error summed over the τ positions, over uniform inputs: the reading in which
        τ² is what a sum over queries and keys gives
C_0     K_F ‖f‖_∞ sup_k(‖φ_k‖_∞, ‖ψ_k‖_∞). F and f are the identity on [0, 1], so it is √2 for sines
C_1     the least c with σ_k ≤ c k^{−α}. The bound is claimed for every α > 1/2 with a finite C_1,
        so its least value over α is what it says; from m_h = r on the part is zero
C_2     the complexities of F, f, φ_k and ψ_k, k ≤ m_h, added. The theory leaves the networks free.
        Here: one hidden layer of ReLUs, β = 2 and C(g) = sup|g″|/8, because interpolation at N
        equal knots takes N of them and errs by sup|g″|/(8N²). It bounds the complexity from above.
        F = f = x costs nothing: relu(x) = x. Where exact sines are supplied m_FF counts as infinite

The mean square is of second order in σ, and the square of the scores' error falls like
Σ_{k>m} σ_k² ≤ C_1² m^{1−2α}/(2α−1); so the bound is evaluated with C_1²/(2α−1) in the place of C_1,
too. For power laws C_1 = 1 and the two hardly differ; for a flat spectrum of rank r, C_1 = r^α, and
as written the part tends to 0 for m_h > √r as α grows.

**What a positive result does not establish.** An error below a bound proves no bound, least of all
where the bound exceeds the error of the best constant, as it does in most cells: how many, is told.
An error above it shows that none of the weights that are known reach it; better ones could.
K_F = ‖f‖_∞ = 1 here, so nothing is said of the powers in which they enter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.coupling.models import single_layer, target_variance
from analyses.papers.coupling.score_spectra import decay_constant
from analyses.papers.experiment import Experiment, decide
from prooflens.proofs import construct_pod
from prooflens.tasks import BASES, PodCoupling

__all__ = ["coupling_bound", "judge_bound", "network_complexity", "spectrum_part"]

_ROWS, _SEED = 128, 2**62 + 4
_AT_ONCE = 2**19
"""Number of activations of the input network that are computed in one pass. It bounds memory."""

_ROUNDING = 1e-12
"""Largest squared error that counts as zero: float32 rounding, squared and summed."""

_ALPHAS = tuple(0.5 + np.geomspace(0.01, 64, 400))
_WRITTEN, _SQUARED = "bound as written", "bound with C_1² / (2α − 1)"


def judge_bound(setting: Setting) -> Verdict:
    """Evaluate the bound beside constructed and trained models (ledger: ``coupling-bound``)."""
    tasks = _tasks(setting.options["widths"])
    errors = pd.concat(
        (_construction_errors(tasks, setting), _trained_errors(tasks, setting)), ignore_index=True
    )
    cells = _cells(errors, {name: task for name, (task, _) in tasks.items()})
    above = {
        bound: cells[cells["best known"] > cells[bound] + _ROUNDING]
        for bound in (_WRITTEN, _SQUARED)
    }
    telling = cells[_SQUARED] < cells["best constant"]
    status = decide(above[_WRITTEN].empty, above[_SQUARED].empty)
    counts = [len(above[bound]) for bound in (_WRITTEN, _SQUARED)]
    left = cells[cells[_SQUARED] > 0]
    ratio = float((left[_SQUARED] / left["best known"]).min())
    words = (
        f"The best known error lies above the bound as written in {counts[0]} of {len(cells)} "
        f"cells{_where(above[_WRITTEN])}, and above that with C_1²/(2α − 1) in {counts[1]}, which "
        f"is at least {ratio:.2g} times the error where it is not 0. In {int(telling.sum())} cells "
        "only is that bound below the error of the best constant."
    )
    numbers = {
        "cells": cells.to_dict("records"),
        "above": {bound: rows.to_dict("records") for bound, rows in above.items()},
        "telling": int(telling.sum()),
        "errors": errors.to_dict("records"),
    }
    seen = (
        "Squared error summed over positions against the width of the head and of the network: "
        "bounds dashed above, constructed and trained models, and the best constant."
    )
    return Verdict(
        status,
        words,
        f"above the bound: {counts[0]} of {len(cells)} cells as written, {counts[1]} with C_1²",
        numbers,
        {"cells": cells, "errors": errors},
        {"bound-and-error": Drawing(_figure(errors, cells), seen)},
    )


def coupling_bound(task: PodCoupling, m_h: int, m_ff: float, *, squared: bool = False) -> float:
    """Return the theorem's bound on the mean square error, summed over positions.

    Args:
        task: The target, whose F and f are the identity.
        m_h: Width of the head.
        m_ff: Number of ReLUs of the input network; infinite if exact bases are supplied.
        squared: Whether to use C_1²/(2α − 1) in place of C_1.
    """
    rank = 1 if task.rank == "infinite" else int(task.rank)  # sines: the same for all k
    sides = BASES[task.left], BASES[task.right]
    largest = max(side.largest(k) for side in sides for k in range(1, rank + 1))
    networks = network_complexity(task, m_h) * m_h**3 / m_ff**2
    return task.length**2 * largest * (spectrum_part(task, m_h, squared=squared) + networks)


def spectrum_part(task: PodCoupling, m_h: int, *, squared: bool = False) -> float:
    """Return the part of the bound that comes from the spectrum: the minimum over α of C_1^(α) /
    m_h^{2α−1}, or with ``squared`` of C_1² / ((2α − 1) m_h^{2α−1})."""
    infinite = task.rank == "infinite"
    if not infinite and m_h >= int(task.rank):
        return 0.0
    sigma = np.ones(1) if infinite else task.sigma(int(task.rank)).numpy()
    alphas = [a for a in _ALPHAS if a < task.alpha] + [task.alpha] if infinite else _ALPHAS
    parts = []
    for alpha in alphas:
        c_1, order = decay_constant(sigma, alpha), 2 * alpha - 1
        parts.append((c_1**2 / order if squared else c_1) / m_h**order)
    return float(min(parts))


def network_complexity(task: PodCoupling, m_h: int) -> float:
    """Return an upper bound on C_2^(2)(m_h), Σ_{k ≤ m_h} (sup|φ_k″| + sup|ψ_k″|)/8. The sum ends at
    the last term of the target."""
    kept = m_h if task.rank == "infinite" else min(m_h, int(task.rank))
    sides = BASES[task.left], BASES[task.right]
    return sum(side.curvature(k) / 8 for side in sides for k in range(1, kept + 1))


def _tasks(widths: Sequence[Sequence[int]]) -> dict[str, tuple[PodCoupling, Sequence[int]]]:
    """Return name → (target, head widths to try). One target has a flat spectrum of rank 6. The
    other has an infinite one, and positions do not attend to themselves."""
    flat = PodCoupling(6, sigmas=(1.0,) * 6)
    falling = PodCoupling("infinite", alpha=1.75, mask_self=True)
    targets = {"rank 6": flat, "σ_k = k^−1.75": falling}
    return {name: (task, own) for (name, task), own in zip(targets.items(), widths, strict=True)}


@torch.no_grad()
def _construction_errors(
    tasks: dict[str, tuple[PodCoupling, Sequence[int]]], setting: Setting
) -> pd.DataFrame:
    rows = []
    for name, (task, widths) in tasks.items():
        for m_ff in (*setting.options["networks"], math.inf):
            features = max(widths) if m_ff == math.inf else 0
            given = replace(task, features=features)
            batch = given.sample(_ROWS, seed=_SEED)
            for m_h in widths:
                knots = 2 if features else int(m_ff)  # there is no network with features
                model = construct_pod(given, m_h, knots=knots).model
                at_once = max(1, _AT_ONCE // (knots * task.length))
                found = torch.cat([model(part) for part in torch.split(batch.inputs, at_once)])
                error = float((found - batch.targets).square().mean()) * task.length
                rows.append([name, "constructed", m_h, m_ff, 0, error])
    return pd.DataFrame(rows, columns=["target", "model", "m_h", "m_ff", "seed", "error"])


def _trained_errors(
    tasks: dict[str, tuple[PodCoupling, Sequence[int]]], setting: Setting
) -> pd.DataFrame:
    """Train models with every head width on supplied sines, and with networks of several widths for
    the widest head; return their errors."""
    experiment = Experiment(setting)
    for name, (task, widths) in tasks.items():
        given = replace(task, features=max(widths))
        for m_h in widths:
            labels = {"target": name, "m_h": m_h, "m_ff": math.inf}
            experiment.add(labels, given, single_layer(given, m_h, 0))
        for m_ff in setting.options["trained_networks"]:
            spec = replace(single_layer(task, max(widths), 0), input_ffn=(m_ff,))
            experiment.add({"target": name, "m_h": max(widths), "m_ff": float(m_ff)}, task, spec)
    table, _ = experiment.run()
    length = table["target"].map({name: task.length for name, (task, _) in tasks.items()})
    table = table.assign(model="trained", error=table["loss"] * length)
    return table[["target", "model", "m_h", "m_ff", "seed", "error"]]


def _cells(errors: pd.DataFrame, tasks: dict[str, PodCoupling]) -> pd.DataFrame:
    """Return the bounds and the known errors for every target, m_h and m_FF that was tried.

    The errors are that of the best constant, and the smallest of all weights whose head and network
    are no wider.
    """
    rows: list[dict[str, Any]] = []
    for name, task in tasks.items():
        mine = errors[errors["target"] == name]
        constant = target_variance(task) * task.length
        for m_h in sorted(set(mine["m_h"])):
            for m_ff in sorted(set(mine["m_ff"])):
                inside = mine[(mine["m_h"] <= m_h) & (mine["m_ff"] <= m_ff)]
                rows.append(
                    {"target": name, "m_h": int(m_h), "m_ff": float(m_ff)}
                    | {_WRITTEN: coupling_bound(task, m_h, m_ff)}
                    | {_SQUARED: coupling_bound(task, m_h, m_ff, squared=True)}
                    | {"best constant": constant}
                    | {"best known": min(constant, float(inside["error"].min()))}
                )
    return pd.DataFrame(rows)


def _where(cells: pd.DataFrame) -> str:
    if cells.empty:
        return ""
    heads = cells.groupby("target", sort=False)["m_h"].unique()
    told = (f"{name}, m_h = {', '.join(map(str, sorted(found)))}" for name, found in heads.items())
    return f" ({'; '.join(told)})"


def _figure(errors: pd.DataFrame, cells: pd.DataFrame) -> Any:
    """Draw a panel for each target: errors and bounds against m_h with supplied sines, and against
    m_FF for the widest head."""
    lines = [_WRITTEN, _SQUARED, "best constant"]
    drawn = cells.melt(["target", "m_h", "m_ff"], lines, "model", "error").assign(seed=0)
    table = pd.concat((drawn, errors), ignore_index=True)
    heads = table[table["m_ff"] == math.inf]
    heads = heads.assign(panel=heads["target"] + ", sines supplied")
    panels = [heads.assign(x=heads["m_h"])]
    across = dict.fromkeys(heads["panel"], "width of the head, m_h")
    for name, rows in table[table["m_ff"] < math.inf].groupby("target", sort=False):
        wide = rows[rows["m_h"] == rows["m_h"].max()]
        title = f"{name}, m_h = {rows['m_h'].max()}"
        panels.append(wide.assign(panel=title, x=wide["m_ff"]))
        across[title] = "ReLUs of the input network, m_FF"
    return sweep(
        pd.concat(panels, ignore_index=True),
        x="x",
        across=across,
        by="model",
        panel="panel",
        label="squared error, summed over positions",
        dashed=lines,
        least=1e-12,
    )
