"""How many heads does a lag need? Sums of exponentials or powers, and absolute positions.

y_t = x_{t−T} of Gaussian inputs, one layer of heads and nothing else, so that what is measured is
the extraction. Side by side: the best sum that variable projection finds
(:mod:`analyses.papers.memory.projection`), the theorem's bound, and what gradient descent reaches,
from slopes 2^−h and from the slopes of the constructions' grid: on slopes alone, with the linear
part solved at every step, and on all weights at once; of these slopes also the best coefficients
that belong to them. The bound E = C(n) H^{−n} (…)^{n+1} holds for every n with a
constant that grows fast and is not given: it is drawn for the best n with C(n) = n!, scaled to the
best sum of the fewest heads. Its shape is all that can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import exp, factorial
from typing import Any

import numpy as np
import pandas as pd

from analyses.figures.sweep import sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import Experiment, by_seed, decide, medians, status_of
from analyses.papers.memory.models import spec_of
from analyses.papers.memory.projection import Projected, descend, grid_start, project, search
from prooflens.proofs import Positions
from prooflens.tasks import RealMemory

__all__ = ["absolute", "bound_shape", "heads_needed", "heads_of_a_lag"]

_KINDS: tuple[Positions, ...] = ("lin", "log")
_BEST, _BOUND = "best sum found", "theorem's bound (shape)"
_SOLVED = "trained slopes, coefficients solved"
_STARTS = {"2^−h": "trained from p = 2^−h", "grid": "trained from the grid's p"}
_DESCENDED = {
    "2^−h": "linear part solved at every step, from p = 2^−h",
    "grid": "linear part solved at every step, from the grid's p",
}
_LEAST, _APART = 1e-8, 0.1
_MANY = "M = "


def heads_of_a_lag(setting: Setting) -> Verdict:
    """Test that more heads give less error, and farther lags need more (``memory-heads-error``)."""
    parts = [_sums(setting), _descent_errors(setting), _trained_errors(setting)]
    table = pd.concat(parts, ignore_index=True)
    heads, lags = setting.options["heads"], setting.options["lags"]
    best, solved = (_better(table, starts) for starts in (_STARTS, _DESCENDED))
    found: dict[str, bool] = {}
    needed: dict[str, dict[int, int | None]] = {}
    for kind in _KINDS:
        sums = table[(table["model"] == _BEST) & (table["positions"] == kind)]
        mine = solved[solved["positions"] == kind]
        found[f"{kind}: sums"] = _falls(sums, 0.1) and _grows(heads_needed(sums, 0.1), lags)
        found[f"{kind}: descended"] = _falls(mine, 0.1) and _grows(heads_needed(mine, 0.1), lags)
        needed |= {
            f"{kind}, sums, error ≤ 0.1": heads_needed(sums, 0.1),
            f"{kind}, linear part solved at every step, error ≤ 0.1": heads_needed(mine, 0.1),
        }
    every = [all(found[f"{kind}: {way}"] for way in ("sums", "descended")) for kind in _KINDS]
    status = decide(all(every), any(every))
    far = best[(best["heads"] == max(heads)) & (best["positions"] == "lin")]
    gap = {int(lag): float(e) for lag, e in zip(far["lag"], far["error"], strict=True)}
    sums = table[(table["model"] == _BEST) & (table["heads"] == max(heads))]
    best_sums = {int(r.lag): float(r.error) for r in sums[sums["positions"] == "lin"].itertuples()}
    words = (
        f"Heads needed, by lag: {'; '.join(f'{k}: {_words(v)}' for k, v in needed.items())}. With "
        f"{max(heads)} lin heads training of all weights leaves {_pairs(gap)} of the variance at "
        f"lags {', '.join(map(str, gap))}, where sums exist that leave {_pairs(best_sums)}."
    )
    numbers = {
        "statements": found,
        "heads_needed": {k: {str(lag): h for lag, h in v.items()} for k, v in needed.items()},
        "errors": by_seed(table, ["positions", "lag", "heads", "model"]),
    }
    drawings = {f"{kind}-errors": _drawing(table, kind) for kind in _KINDS}
    key = f"lin heads for error ≤ 0.1 at lags {', '.join(map(str, lags))}: " + _words(
        needed["lin, sums, error ≤ 0.1"]
    )
    return Verdict(status, words, key, numbers, {"errors": table}, drawings)


def _better(table: pd.DataFrame, starts: Mapping[str, str]) -> pd.DataFrame:
    """Return, for each setting, the better of two starts by the median over seeds."""
    mine = table[table["model"].isin(starts.values())]
    best = mine.groupby(["positions", "lag", "heads", "model"], as_index=False)["error"].median()
    least: pd.DataFrame = best.groupby(["positions", "lag", "heads"], as_index=False)["error"].min()
    return least


def _descent_errors(setting: Setting) -> pd.DataFrame:
    """Return the errors of gradient descent on the slopes. Each seed starts from slopes that differ
    by about a tenth."""
    rows, length, how = [], setting.options["length"], setting.options["descent"]
    for kind, lag, heads in product(_KINDS, setting.options["lags"], setting.options["heads"]):
        target = _target(lag, length)
        slopes = {
            "2^−h": 2.0 ** -np.arange(heads),
            "grid": np.maximum(grid_start(target, heads, kind).slopes, 1e-3),
        }
        for (start, p), seed in product(slopes.items(), setting.seeds):
            moved = p * np.exp(_APART * np.random.default_rng(seed).standard_normal(heads))
            found = descend(target, moved, kind, **how)
            rows.append((kind, lag, heads, _DESCENDED[start], seed, found.error))
    return _frame(rows)


def _target(lag: int, length: int) -> np.ndarray:
    target: np.ndarray = np.eye(length)[lag]
    return target


def _sums(setting: Setting) -> pd.DataFrame:
    """Return the errors of the best sums, beside the shape of the bound, which is scaled to meet
    the error of the fewest heads."""
    rows, length = [], setting.options["length"]
    for kind in _KINDS:
        for lag in setting.options["lags"]:
            first = None
            for heads in setting.options["heads"]:
                error = search(_target(lag, length), heads, kind).error
                shape = bound_shape(heads, lag, kind)
                first = first if first is not None else error / shape
                rows.append((kind, lag, heads, _BEST, 0, error))
                rows.append((kind, lag, heads, _BOUND, 0, first * shape))
    return _frame(rows)


def _trained_errors(setting: Setting) -> pd.DataFrame:
    experiment = Experiment(setting)
    length = setting.options["length"]
    for kind in _KINDS:
        for lag in setting.options["lags"]:
            task = RealMemory((lag,), length=length)
            for heads in setting.options["heads"]:
                spec = spec_of(
                    task,
                    setting.options,
                    n_heads=heads,
                    ffn=(),
                    lag_bias=kind,
                    normalizer="none",
                    residual=False,
                )
                grid = tuple(map(float, grid_start(_target(lag, length), heads, kind).slopes))
                for start, slopes in (("2^−h", ()), ("grid", grid)):
                    labels = {"positions": kind, "lag": lag, "heads": heads, "start": start}
                    experiment.add(labels, task, spec, slopes=slopes)
    _, fits = experiment.run()
    rows = []
    for (named, _), fit in zip(experiment.planned, fits, strict=True):
        labels = dict(named)
        where = (labels["positions"], labels["lag"], labels["heads"])
        rows.append((*where, _STARTS[labels["start"]], labels["seed"], fit.metrics["error"]))
        if labels["start"] == "2^−h":
            solved = _project_slopes(fit.model, labels["lag"], length, labels["positions"])
            rows.append((*where, _SOLVED, labels["seed"], solved.error))
    return _frame(rows)


def _project_slopes(model: Any, lag: int, length: int, kind: Positions) -> Projected:
    """Return the sum with the slopes of a trained model and the best coefficients for them."""
    slopes = model.blocks[0].attn.terms["lag"].p.detach().abs().double().numpy()
    return project(_target(lag, length), slopes, kind)


def bound_shape(heads: int, lag: int, kind: Positions) -> float:
    """Return the shape of the theorem's bound: min_n n! H^{−n} (e^{0.01 (n+1) T})^{n+1} for lin,
    and n! H^{−n} (T^{1.01})^{n+1} for log."""

    def at(n: int) -> float:
        far = exp(0.01 * (n + 1) * lag) if kind == "lin" else lag**1.01
        return float(factorial(n) * float(heads) ** -n * far ** (n + 1))

    return min(at(n) for n in range(1, 30))


def heads_needed(table: pd.DataFrame, error: float) -> dict[int, int | None]:
    """Return lag → the smallest number of heads whose median error is at most ``error``; None if
    there is none."""
    middle = medians(table, ["lag", "heads"])
    lags = sorted({lag for lag, _ in middle})
    reached = {
        lag: [h for (at, h), e in middle.items() if at == lag and e <= error] for lag in lags
    }
    return {int(lag): min(map(int, h)) if h else None for lag, h in reached.items()}


def _falls(table: pd.DataFrame, factor: float) -> bool:
    """Return whether at every lag the error with the most heads is at most ``factor`` times that
    with the fewest."""
    few, most = table["heads"].min(), table["heads"].max()
    middle = medians(table, ["lag", "heads"])
    return all(middle[lag, most] <= factor * middle[lag, few] for lag in sorted(set(table["lag"])))


def _grows(needed: Mapping[int, int | None], lags: Sequence[int]) -> bool:
    """Return whether the heads needed never become fewer as the lag grows, and the last lag needs
    more than the first."""
    counts = [needed[lag] or 10**6 for lag in sorted(lags)]
    return counts == sorted(counts) and counts[-1] > counts[0]


def _frame(rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["positions", "lag", "heads", "model", "seed", "error"])


def _words(needed: Mapping[Any, int | None]) -> str:
    return ", ".join("none" if h is None else str(h) for h in needed.values())


def _pairs(values: Mapping[int, float]) -> str:
    return ", ".join(f"{v:.2g}" for v in values.values())


def _drawing(table: pd.DataFrame, kind: str) -> Drawing:
    mine = table[table["positions"] == kind].assign(lag=lambda t: "T = " + t["lag"].astype(str))
    order = [_BEST, _BOUND, *_DESCENDED.values(), _SOLVED, *_STARTS.values()]
    mine = mine.sort_values("model", key=lambda m: m.map(order.index), kind="stable")
    mine = mine.sort_values("lag", key=lambda m: m.str[4:].astype(int), kind="stable")
    figure = sweep(
        mine,
        x="heads",
        across=f"heads H ({kind})",
        by="model",
        panel="lag",
        least=_LEAST,
        label="mean square error, share of variance",
        dashed=(_BEST, _BOUND),
    )
    few, most = mine["heads"].min(), mine["heads"].max()
    middle = mine.groupby(["model", "heads"], sort=False)["error"].median()
    told = "; ".join(
        f"{model} {middle[model, few]:.2g} with {few} heads, {middle[model, most]:.2g} with {most}"
        for model in dict.fromkeys(mine["model"])
        if {few, most} <= {*middle[model].index}
    )
    return Drawing(figure, f"Error against heads, a panel a lag T. Medians over lags: {told}.")


def absolute(setting: Setting) -> Verdict:
    """Test that a head a memory is enough for absolute positions, whatever T (ledger:
    ``memory-absolute``)."""
    options, experiment = setting.options, Experiment(setting)
    ways = {
        "learned positions, dot product": {
            "score": "dot",
            "lag_bias": "none",
            "positions": "learned",
        },
        "lin": {"lag_bias": "lin"},
        "log": {"lag_bias": "log"},
    }
    for way, changes in ways.items():
        for lag in options["lags"]:
            task = RealMemory((lag,), length=options["length"])
            for heads in options["heads"] if way in _KINDS else options["heads"][:2]:
                spec = spec_of(task, options, n_heads=heads, **changes)
                experiment.add({"model": way, "lag": lag, "heads": heads}, task, spec)
    for count in options["memories"]:
        task = RealMemory(tuple(range(1, count + 1)), "maximum", length=options["length"])
        for heads in range(1, max(options["memories"]) + 1):
            spec = spec_of(task, options, n_heads=heads, **ways["learned positions, dot product"])
            labels = {"model": f"{_MANY}{count}", "lag": count, "heads": heads}
            experiment.add(labels, task, spec)
    table, _ = experiment.run(levels=[options["level"]])
    return _absolute_verdict(table, options)


def _absolute_verdict(table: pd.DataFrame, options: Mapping[str, Any]) -> Verdict:
    level, lags = options["level"], options["lags"]
    needed = {
        way: heads_needed(table[table["model"] == way], level)
        for way in ("learned positions, dot product", "lin", "log")
    }
    several = heads_needed(table[table["model"].str.startswith(_MANY)], level)
    statements = {
        "absolute: one head at every lag": all(
            needed["learned positions, dot product"][lag] == 1 for lag in lags
        ),
        "lin needs more heads as T grows": _grows(needed["lin"], lags),
        "log needs more heads as T grows": _grows(needed["log"], lags),
        "absolute: at most M heads for M memories": all(
            (several[m] or m + 1) <= m for m in options["memories"]
        ),
    }
    words = "; ".join(f"{way}: {_words(h)}" for way, h in needed.items())
    words = (
        f"Fewest heads with an error of at most {level} at T = {', '.join(map(str, lags))}: "
        f"{words}. With absolute positions and M = {', '.join(map(str, options['memories']))} "
        f"memories: {_words(several)}."
    )
    held = sum(statements.values())
    numbers = {"statements": statements, "errors": by_seed(table, ["model", "lag", "heads"])}
    single = table[~table["model"].str.startswith(_MANY)]
    figure = sweep(
        single.assign(lag="T = " + single["lag"].astype(str)),
        x="heads",
        across="heads H",
        by="model",
        panel="lag",
        label="mean square error, share of variance",
        levels={f"error {level}": level},
    )
    many = table[table["model"].str.startswith(_MANY)]
    second = sweep(
        many,
        x="heads",
        across="heads H, absolute positions",
        by="model",
        label="mean square error, share of variance",
        levels={f"error {level}": level},
    )
    drawings = {
        "heads-by-lag": Drawing(
            figure, "Error against heads, a panel a lag: absolute positions, lin and log."
        ),
        "heads-by-memories": Drawing(second, "Error against heads for one to three memories."),
    }
    key = f"{held} of {len(statements)} statements hold"
    return Verdict(status_of(statements), words, key, numbers, {"errors": table}, drawings)
