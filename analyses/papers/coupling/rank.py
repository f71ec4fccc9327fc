"""Does the error vanish at m_h = r, and fall like m_h^{−(2α−1)} where r is infinite?

Finite rank: models with heads of width r − 1, r and more, beside the construction; all singular
values are 1, so that the last one matters as much as the first. Infinite rank:
the closed form, which is finite only between different positions, so positions do not attend to
themselves here; where they do, a finite r_max has to stand for ∞ and the truncated POD's own slope
moves from −1.2 to −0.4 as r_max goes from 32 to 20 000 (its diagonal diverges): a table of it is
part of the verdict.

The theorem bounds the error from above: the best error falls at least like the bound, and faster is
no contradiction. Nothing is said about widths beyond those trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.coupling.models import add_pods, error_frame, target_variance
from analyses.papers.experiment import Experiment, by_seed, decide, interval, status_of
from prooflens.proofs import construct_pod, sigma_tail
from prooflens.tasks import PodCoupling

__all__ = ["finite", "infinite", "seed_slopes"]

_ROWS = 1000
_FRACTION, _FALL = 0.02, 0.25
_TOLERANCE = 0.2
_ALPHAS = 1.0, 0.55
_ROUNDING = 1e-20


def finite(setting: Setting) -> Verdict:
    """Test that the error vanishes from m_h = r on (ledger: ``coupling-finite-rank``)."""
    ranks, features = setting.options["ranks"], setting.options["features"]
    tasks = {
        f"rank {rank}": PodCoupling(rank, sigmas=(1.0,) * rank, features=features) for rank in ranks
    }
    steps = setting.options["steps_from_rank"]
    widths = {n: sorted({1, *(int(t.rank) + s for s in steps)}) for n, t in tasks.items()}
    experiment = Experiment(setting)
    for name, task in tasks.items():
        add_pods(experiment, name, task, widths[name])
    rows = _trained_errors(experiment)
    built: dict[str, Any] = {}
    for name, task in tasks.items():
        for m_h in widths[name]:
            error, built[f"{name}, m_h {m_h}"] = _construction_error(task, m_h)
            rows.append([name, "construction", m_h, 0, error])
    good = {
        name: _vanishes(_frame(rows), name, int(task.rank), target_variance(task))
        for name, task in tasks.items()
    }
    table = _frame(rows)
    passed = [name for name, numbers in good.items() if numbers["vanishes"]]
    lines = {name: ("m_h = rank", float(task.rank)) for name, task in tasks.items()}
    figure = _figure(table[table["error"] > _ROUNDING], at=lines)
    words = (
        f"Trained models' error vanishes from m_h = r on for {', '.join(passed) or 'no rank'}; the "
        "construction's does for every rank, down to interpolation and rounding."
    )
    key = "; ".join(
        f"{name}: {n['from_rank']:.1e} from m_h = r, {n['below']:.1e} at r − 1 (variance "
        f"{n['variance']:.1e})"
        for name, n in good.items()
    )
    numbers = {
        "ranks": good,
        "certificates": built,
        "errors": _lists(table),
    }
    seen = f"Error against the heads' width m_h, a dot a seed, a line at the rank r. {key}."
    return Verdict(
        status_of({name: numbers["vanishes"] for name, numbers in good.items()}),
        words,
        key,
        numbers,
        {"errors": table},
        {"error-by-width": Drawing(figure, seen)},
    )


def infinite(setting: Setting) -> Verdict:
    """Measure the slope of the error at infinite rank (ledger: ``coupling-infinite-rank``)."""
    task = PodCoupling("infinite", mask_self=True, features=setting.options["features"])
    widths = setting.options["widths"]
    experiment = Experiment(setting)
    add_pods(experiment, "α = 1", task, widths)
    rows = _trained_errors(experiment)
    slopes = seed_slopes(_frame(rows))
    low, high = interval(slopes)
    steep = high <= -1 + _TOLERANCE
    for alpha in _ALPHAS:
        for m_h in widths:
            truncated = PodCoupling("infinite", alpha=alpha, mask_self=True)
            rows.append(
                [f"α = {alpha:g}", "truncated POD", m_h, 0, _truncation_error(truncated, m_h)]
            )
    table = _frame(rows)
    cut = _output_slopes(table)
    hard = cut[f"α = {_ALPHAS[1]:g}"]
    falls = hard <= 1 - 2 * _ALPHAS[1]
    passed = steep + falls
    words = (
        f"At α = 1 the trained models' slope is {slopes.mean():.2f} (95 % {low:.2f} to {high:.2f} "
        f"over {len(slopes)} seeds; theorem: at most −1). The truncated POD's output error falls "
        f"with slope {hard:.2f} at α = {_ALPHAS[1]:g} (at most −0.1; {cut['α = 1']:.2f} at α = 1)."
    )
    numbers = {
        "slopes": slopes.tolist(),
        "interval": [low, high],
        "truncated_output_slopes": cut,
        "score_slopes": {str(alpha): _score_slope(alpha, widths) for alpha in _ALPHAS},
        "self_attending": self_attending(widths),
        "errors": _lists(table),
    }
    figure = _figure(table, slopes={"α = 1": -1.0, "α = 0.55": -0.1})
    seen = "Errors of trained models and of the truncated POD, beside the theory's slopes."
    key = f"slope {slopes.mean():.2f} [{low:.2f}, {high:.2f}] at α = 1"
    return Verdict(
        decide(passed == 2, passed == 1),
        words,
        key,
        numbers,
        {"errors": table},
        {"error-by-width": Drawing(figure, seen)},
    )


def seed_slopes(table: pd.DataFrame) -> np.ndarray:
    """Return the least-squares slope of log error on log m_h for each seed."""
    return np.array(
        [np.polyfit(np.log(g["m_h"]), np.log(g["error"]), 1)[0] for _, g in table.groupby("seed")]
    )


def self_attending(widths: Sequence[int], ranks: Sequence[int] = (32, 100, 1000)) -> dict[str, Any]:
    """Return the slope of the truncated POD at α = 1 if positions attend to themselves too. It
    depends on the finite rank that stands for an infinite one."""
    found = {}
    for rank in ranks:
        kept = [m for m in widths if m < rank]
        errors = [_truncation_error(PodCoupling(rank), m) for m in kept]
        found[str(rank)] = float(np.polyfit(np.log(kept), np.log(errors), 1)[0])
    return found


def _trained_errors(experiment: Experiment) -> list[list[Any]]:
    """Return a row for each run: the target, "trained", m_h, the seed, and the mean square
    error."""
    table, _ = experiment.run()
    runs = table[["target", "m_h", "seed", "loss"]].itertuples(index=False, name=None)
    return [[target, "trained", m_h, seed, loss] for target, m_h, seed, loss in runs]


def _figure(table: pd.DataFrame, **guides: Any) -> Any:
    return sweep(
        table,
        x="m_h",
        across="width of the head, m_h",
        by="model",
        panel="target",
        label="mean square error",
        dashed=("construction", "truncated POD"),
        **guides,
    )


def _vanishes(table: pd.DataFrame, target: str, rank: int, variance: float) -> dict[str, Any]:
    rows = table[(table["target"] == target) & (table["model"] == "trained")]
    median = rows.groupby("m_h")["error"].median()
    reached = float(median[median.index >= rank].max())
    below = float(median[rank - 1])
    small = reached <= _FRACTION * variance and reached <= _FALL * below
    return {"from_rank": reached, "below": below, "variance": variance, "vanishes": bool(small)}


@torch.no_grad()
def _construction_error(task: PodCoupling, m_h: int) -> tuple[float, dict[str, float]]:
    """Return the construction's mean square error, and its largest error beside its certificate."""
    construction = construct_pod(task, m_h)
    batch = task.sample(_ROWS, seed=2**62 + 1)
    error = construction.model(batch.inputs) - batch.targets
    bound = {"largest error": float(error.abs().max()), "bound": construction.certificate.error}
    return float(error.square().mean()), bound


def _truncation_error(task: PodCoupling, m_h: int) -> float:
    x = torch.rand(_ROWS // 4, task.length, generator=torch.Generator().manual_seed(11))
    return float((task.average(x) - task.average(x, m_h)).square().mean())


def _score_slope(alpha: float, widths: Sequence[int]) -> dict[str, float]:
    """Return the slope of E Δ² between independent positions, in closed form and as measured on
    2·10⁵ pairs."""
    task = PodCoupling("infinite", alpha=alpha, mask_self=True)
    generator = torch.Generator().manual_seed(12)
    u, v = (torch.rand(2000, n, generator=generator) for n in (10, 10))
    whole = task.coupling(u, v)
    measured = [float((whole - task.coupling(u, v, m)).square().mean()) for m in widths]
    places = np.log(np.array(widths) + 0.5)  # Σ_{k>m} k^{−2α} ≈ (m + ½)^{1−2α}/(2α − 1)
    tails = np.log([sigma_tail(task, m) for m in widths])
    return {
        "closed form": float(np.polyfit(places, tails, 1)[0]),
        "measured": float(np.polyfit(places, np.log(measured), 1)[0]),
    }


def _output_slopes(table: pd.DataFrame) -> dict[str, float]:
    rows = table[table["model"] == "truncated POD"]
    return {str(t): float(seed_slopes(g)[0]) for t, g in rows.groupby("target")}


def _frame(rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    return error_frame(
        [dict(zip(("target", "model", "m_h", "seed", "error"), r, strict=True)) for r in rows]
    )


def _lists(table: pd.DataFrame) -> dict[str, list[float]]:
    """Return the errors of all seeds, by target, model and width."""
    named = table.assign(m_h="m_h " + table["m_h"].astype(str))
    return by_seed(named, ["target", "model", "m_h"])
