"""Claim: how many lin heads a long lag takes, where the bound's exponential in the lag matters.

The theorem bounds the error at a lag T by C(n) (e^{0.01 (n + 1) T})^{n + 1} / H^n, so that for a
fixed error ln H may grow by 0.01 (n + 1)²/n a lag: by 0.04 at least, at n = 1, whatever the
constants. Below T = 25 the lag itself grows faster than that; at T = 1000 it is e^40.

What is needed is known without fitting. Heads Σ_h c_h x_h^s, x_h = e^{−p_h}, span in ℓ² what
1/(1 − x_h z) do in the Hardy space; what no choice of the coefficients removes of the lag z^T is

    ε = Σ_{j ≤ T} b_j²,    where Π_h (z − x_h)/(1 − x_h z) = Σ_j b_j z^j

for white inputs, as a share of the target's variance. A product of H factors has Σ_j j b_j² = H
and Σ_j b_j² = 1, so that H ≥ (1 − ε)(T + 1) whatever the slopes; and T + 1 heads leave nothing as
their slopes grow without bound. With slopes of at most p (all equal to p here, the limit in which
heads are derivatives of one another) some more are needed.

This is about weights that exist: their coefficients are far beyond what training or float64
holds, and heads of other slopes may do with fewer than the equal ones.
"""

from __future__ import annotations

from itertools import pairwise
from math import exp, log

import numpy as np
import pandas as pd

from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from prooflens.errors import Problems

__all__ = ["check", "heads_for_lag", "left_of_lag", "run"]

_GROWTH, _FROM = 0.04, 25


def check(setting: Setting) -> None:
    """Refuse lags, slopes and a level for which there is nothing to compare.

    Raises:
        ArgumentError: for such options.
    """
    problems, o = Problems("claims run"), setting.options
    far = [lag for lag in o["lags"] if lag >= _FROM]
    good = len(far) >= 2 and min(o["lags"]) >= 1 and sorted(set(o["lags"])) == list(o["lags"])
    rule = f"must rise from 1 on, two of them from {_FROM} on"
    problems.need(good, "--option lags", rule, o["lags"], "write [10, 30, 100]")
    rule = "must be at least 0.2 (smaller ones take ten times the heads)"
    problems.need(min(o["slopes"]) >= 0.2, "--option slopes", rule, o["slopes"], "raise them")
    rule = "must be between 0 and 1"
    problems.need(0 < o["level"] < 1, "--option level", rule, o["level"], "write 0.1")
    problems.raise_if_any()


def run(setting: Setting) -> Verdict:
    """Count the heads (ledger: ``memory-long-lags``).

    Options: ``lags`` in positions, ``slopes`` a position, ``level`` of the error as a share of the
    variance.
    """
    o = setting.options
    level, lags = float(o["level"]), [int(lag) for lag in o["lags"]]
    rows = [
        (f"slopes of {slope:g}", lag, heads_for_lag(lag, slope, level))
        for slope in o["slopes"]
        for lag in lags
    ]
    rows += [
        ("least, whatever the slopes", lag, int(np.ceil((1 - level) * (lag + 1)))) for lag in lags
    ]
    table = pd.DataFrame(rows, columns=["heads are of", "lag", "heads"])
    growths = [
        (log(more) - log(less)) / (far - near)
        for _, group in table.groupby("heads are of", sort=False)
        for (near, less), (far, more) in pairwise(zip(group["lag"], group["heads"], strict=True))
        if near >= _FROM
    ]
    within = [growth <= _GROWTH for growth in growths]
    last = table[table["lag"] == lags[-1]].set_index("heads are of")["heads"]
    words = (
        f"For an error of {level:g} at lag {lags[-1]}: "
        + "; ".join(f"{name}: {count}" for name, count in last.items())
        + f" heads. From lag {_FROM} on ln H grows by {max(growths):.2g} a lag at most, where the "
        f"bound grows by {_GROWTH} at least: a factor of e^{_GROWTH * (lags[-1] - _FROM):.0f} from "
        f"there to lag {lags[-1]}. The need is linear in the lag: the bound holds and is not tight."
    )
    bound = table[["lag"]].drop_duplicates().query("lag >= @_FROM")
    start = last.index[0], table.loc[table["lag"] >= _FROM, "heads"].iloc[0]
    shape = bound.assign(
        heads=[
            start[1] * exp(min(_GROWTH * (lag - bound["lag"].min()), 30)) for lag in bound["lag"]
        ]
    )
    shown = pd.concat([table, shape.assign(**{"heads are of": "growth of the bound"})])
    dashed = ("least, whatever the slopes", "growth of the bound")
    figure = sweep(
        shown[shown["heads"] < 1e6],
        x="lag",
        across="lag T, positions",
        by="heads are of",
        label=f"lin heads for an error of {level:g}",
        y="heads",
        dashed=dashed,
    )
    return Verdict(
        decide(all(within), any(within)),
        words,
        f"{last.iloc[0]} heads at lag {lags[-1]}; ln H grows by {max(growths):.2g} a lag at most",
        {"heads": table.to_dict("records"), "growth": growths},
        {"heads": table},
        {"heads": Drawing(figure, "Heads against the lag, linear in it, and the bound's growth.")},
    )


def heads_for_lag(lag: int, slope: float, level: float) -> int:
    """Return the smallest number of lin heads of one slope that leave at most ``level`` of the
    variance of the input at a single lag."""
    few, many = 1, 2
    while left_of_lag(lag, slope, many) > level:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if left_of_lag(lag, slope, middle) > level else (few, middle)
    return few if left_of_lag(lag, slope, few) <= level else many


def left_of_lag(lag: int, slope: float, heads: int) -> float:
    """Return the share of the variance of x[t − lag] that the best sum of lin heads of one slope
    leaves unexplained."""
    x = exp(-slope)
    longest = max(heads * (1 + x) / (1 - x), lag)  # after which the coefficients fall fast
    points = 2 ** int(np.ceil(np.log2(8 * longest + 64)))
    z = np.exp(2j * np.pi * np.arange(points) / points)
    coefficients = np.fft.fft(((z - x) / (1 - x * z)) ** heads).real / points
    return float((coefficients[: lag + 1] ** 2).sum())
