"""Heavy and light tails: which positions hold which kernel, in the fits and when trained.

y_t = (ρ * x)(t) of Gaussian inputs, one layer of heads and nothing else. *heavy*,
1/((1 + s)(1 + log(1 + s))²), falls more slowly than any summable power helps it to, and so does
1/(1 + s^1.5), of another shape near 0; *light*, exp(−(s/6)^1.3), faster than any exponential.
(1 + s)^{−q} and e^{−s} themselves decide nothing: one head of their own kind is exact.

*light*: three errors stand side by side, of the fits (ℓ1 over all lags, a bound for every bounded
input), of the best sum over the row's lags by variable projection (mean square, white inputs), and
of models trained from slopes 2^−h or from the grid's, the better of the two medians.

*heavy*: rows are so long that the tail is there, so nothing is trained: the mean square of white
inputs is known for every sum of heads. It is told for the best sums and for gradient descent on the
slopes with the linear part solved at every step, over all lags and, of the same sums, over those
beyond lag 64 as a share of what the kernel has there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.figures.sweep import sweep
from analyses.fits.sums import fit_sum
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import Experiment, by_seed, decide, medians, status_of, verdict
from analyses.papers.memory.models import spec_of
from analyses.papers.memory.projection import Projected, descend, grid_start, search
from prooflens.errors import Problems
from prooflens.proofs import Positions
from prooflens.tasks import KernelMemory, MemoryKernel

__all__ = ["heavy", "light", "statements"]

_KINDS: tuple[Positions, ...] = ("lin", "log")
_FIT, _BEST, _TRAINED = "fit, ℓ1 over all lags", "best sum, mean square", "trained, mean square"
_FAR = 64
_BEST_FAR, _DESCENT = f"best sum, beyond lag {_FAR}", "descent, mean square"
_DESCENT_FAR = f"descent, beyond lag {_FAR}"
_HEAVY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "heavy(2)": MemoryKernel.parse("heavy(2)").values,
    "1/(1+s^1.5)": lambda s: 1 / (1 + s**1.5),
}
_APART, _LEAST = 0.1, 1e-12
_STARTS = ("2^−h", "grid")


def heavy(setting: Setting) -> Verdict:
    """Test that one log head beats many lin heads on a heavy tail (ledger:
    ``memory-heavy-tail``).

    Raises:
        ArgumentError: if ``length`` leaves no lags beyond 64.
    """
    problems, length = Problems("claims run"), setting.options["length"]
    rule = f"must be at least {_FAR + 2}: errors beyond lag {_FAR} are told"
    problems.need(length >= _FAR + 2, "--option length", rule, length, "raise it")
    problems.raise_if_any()
    table = pd.concat([_tails(setting, name) for name in _HEAVY], ignore_index=True)
    found = {
        f"{kernel}: {said}": held
        for kernel, rows in table.groupby("kernel", sort=False)
        for said, held in statements(rows, "log").items()
    }
    sums = [held for said, held in found.items() if "best sum" in said and "one head" in said]
    middle = medians(table, ["kernel", "error of", "positions", "heads"])
    few, most = min(setting.options["heads"]), max(setting.options["heads"])
    told = [
        f"{kernel}, {name}: "
        + ", ".join(
            f"{kind} "
            + " / ".join(f"{middle[kernel, name, kind, h]:.2g}" for h in setting.options["heads"])
            for kind in _KINDS
        )
        for kernel in _HEAVY
        for name in dict.fromkeys(table["error of"])
    ]
    failed = [said for said, held in found.items() if not held]
    words = f"Errors with {' / '.join(map(str, setting.options['heads']))} heads. "
    words += "; ".join(told) + "." + (f" Not so: {'; '.join(failed)}." if failed else "")
    key = "; ".join(
        f"{kernel}: {few} log head {middle[kernel, _BEST, 'log', few]:.2g}, {most} lin "
        f"{middle[kernel, _BEST, 'lin', most]:.2g}; beyond lag {_FAR} "
        f"{middle[kernel, _BEST_FAR, 'log', few]:.2g}, {middle[kernel, _BEST_FAR, 'lin', most]:.2g}"
        for kernel in _HEAVY
    )
    numbers = {
        "statements": found,
        "errors": by_seed(table, ["kernel", "error of", "positions", "heads"]),
    }
    drawings = {
        f"errors-{number}": Drawing(
            _by_heads(rows, least=_LEAST), f"Errors of lin and log heads on {kernel}."
        )
        for number, (kernel, rows) in enumerate(table.groupby("kernel", sort=False), 1)
    }
    status = decide(all(found.values()), any(sums))
    return Verdict(status, words, key, numbers, {"errors": table}, drawings)


def _tails(setting: Setting, name: str) -> pd.DataFrame:
    """Return the errors of sums of heads on a kernel, over all lags and beyond lag 64.

    For gradient descent these are the errors of the start with the smaller median. Each seed starts
    from slopes that differ by about a tenth.
    """
    options, rows = setting.options, []
    target = _HEAVY[name](np.arange(options["length"], dtype=float))
    for kind, heads in product(_KINDS, options["heads"]):
        best = search(target, heads, kind)
        rows += [(kind, heads, _BEST, 0, best.error)]
        rows += [(kind, heads, _BEST_FAR, 0, _beyond(target, best, kind))]
        starts = (2.0 ** -np.arange(heads), grid_start(target, heads, kind).slopes)
        tried = [
            [
                descend(
                    target,
                    p * np.exp(_APART * np.random.default_rng(seed).standard_normal(heads)),
                    kind,
                    **options["descent"],
                )
                for seed in setting.seeds
            ]
            for p in starts
        ]
        better = min(tried, key=lambda found: float(np.median([one.error for one in found])))
        for seed, one in zip(setting.seeds, better, strict=True):
            rows += [(kind, heads, _DESCENT, seed, one.error)]
            rows += [(kind, heads, _DESCENT_FAR, seed, _beyond(target, one, kind))]
    columns = ["positions", "heads", "error of", "seed", "error"]
    return pd.DataFrame(rows, columns=columns).assign(kernel=name)


def _beyond(target: np.ndarray, sums: Projected, kind: Positions) -> float:
    """Return Σ (target − sum)² over the lags beyond 64, divided by Σ target² there."""
    left = target - sums.values(len(target), kind)
    return float((left[_FAR + 1 :] ** 2).sum() / (target[_FAR + 1 :] ** 2).sum())


def light(setting: Setting) -> Verdict:
    """Test that lin beats log on a light tail (ledger: ``memory-light-tail``)."""
    table = _errors(setting)
    found = {k: v for k, v in statements(table, "lin").items() if "one head" not in k}
    return _verdict(setting, table, found, status_of(found))


def statements(table: pd.DataFrame, better: str) -> dict[str, bool]:
    """The statements that the rules need, from a table of :func:`heavy` or :func:`light`.

    For each error: whether ``better`` is below the other positions at every number of heads, and
    whether its one head is below the other's at every number.
    """
    other = "lin" if better == "log" else "log"
    found = {}
    for name in dict.fromkeys(table["error of"]):
        middle = medians(table[table["error of"] == name], ["positions", "heads"])
        heads = sorted({h for _, h in middle})
        every = all(middle[better, h] < middle[other, h] for h in heads)
        one = all(middle[better, 1] < middle[other, h] for h in heads)
        found[f"{name}: {better} better at every H"] = every
        found[f"{name}: one head of {better} beats {other} of any H"] = one
    return found


def _errors(setting: Setting) -> pd.DataFrame:
    """Return a table of errors by positions, heads and method. For trained models it has those of
    the better start."""
    options, rows = setting.options, []
    target = MemoryKernel.parse(options["kernel"]).values(np.arange(options["length"], dtype=float))
    for kind in _KINDS:
        for heads in options["heads"]:
            fit = fit_sum(options["kernel"], heads, positions=kind)
            rows.append((kind, heads, _FIT, 0, fit.error))
            rows.append((kind, heads, _BEST, 0, search(target, heads, kind).error))
    columns = ["positions", "heads", "error of", "seed", "error"]
    return pd.concat(
        [
            pd.DataFrame(rows, columns=columns),
            _trained_errors(setting, target)[[*columns, "start"]],
        ],
        ignore_index=True,
    )


def _trained_errors(setting: Setting, target: np.ndarray) -> pd.DataFrame:
    options = setting.options
    task = KernelMemory((options["kernel"],), length=options["length"])
    experiment = Experiment(setting)
    for kind in _KINDS:
        for heads in options["heads"]:
            spec = spec_of(
                task,
                options,
                n_heads=heads,
                ffn=(),
                lag_bias=kind,
                normalizer="none",
                residual=False,
            )
            grid = tuple(map(float, grid_start(target, heads, kind).slopes))
            for start in _STARTS:
                labels = {"positions": kind, "heads": heads, "start": start}
                slopes = grid if start == "grid" else ()
                experiment.add(labels, task, spec, slopes=slopes)
    table, _ = experiment.run()
    table["error of"] = _TRAINED
    middle = medians(table, ["positions", "heads", "start"])
    better = [
        row.start == min(_STARTS, key=lambda s: middle[row.positions, row.heads, s])
        for row in table.itertuples()
    ]
    return table[better]


def _verdict(
    setting: Setting, table: pd.DataFrame, found: Mapping[str, bool], status: Any
) -> Verdict:
    middle = {
        name: medians(table[table["error of"] == name], ["positions", "heads"])
        for name in (_FIT, _BEST, _TRAINED)
    }
    heads = sorted(set(table["heads"]))
    told = []
    for name, values in middle.items():
        lines = [f"{kind} {' / '.join(f'{values[kind, h]:.2g}' for h in heads)}" for kind in _KINDS]
        told.append(f"{name}: {', '.join(lines)}")
    failed = [name for name, good in found.items() if not good]
    words = f"Errors with {' / '.join(map(str, heads))} heads. {'; '.join(told)}."
    words += f" Not so: {'; '.join(failed)}." if failed else ""
    trained = middle[_TRAINED]
    key = f"trained, {heads[0]} / {heads[-1]} heads: " + ", ".join(
        f"{kind} {trained[kind, heads[0]]:.2g} / {trained[kind, heads[-1]]:.2g}" for kind in _KINDS
    )
    drawing = Drawing(
        _by_heads(table), f"Errors of lin and log heads on {setting.options['kernel']}."
    )
    numbers = {
        "statements": dict(found),
        "errors": by_seed(table, ["error of", "positions", "heads"]),
        "starts": {
            f"{k}, {h} heads": str(rows["start"].iloc[0])
            for (k, h), rows in table[table["error of"] == _TRAINED].groupby(["positions", "heads"])
        },
    }
    return verdict(status, words, key, numbers, name="errors", table=table, drawing=drawing)


def _by_heads(table: pd.DataFrame, least: float = 0.0) -> Figure:
    return sweep(
        table,
        x="heads",
        across="heads H",
        by="positions",
        panel="error of",
        label="error (squares: of the variance)",
        least=least,
    )
