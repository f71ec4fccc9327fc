"""Heavy and light tails: which positions hold which kernel, in the fits and when trained.

y_t = (ρ * x)(t) of Gaussian inputs, one layer of heads and nothing else. *heavy*,
1/((1 + s)(1 + log(1 + s))²), falls more slowly than any summable power helps it to; *light*,
exp(−(s/6)^1.3), faster than any exponential. (1 + s)^{−q} and e^{−s} themselves decide nothing: one
head of their own kind is exact; and 1/(1 + s^1.5), a heavy tail too, is better held by exponentials
because of its shape near 0: a verdict here is about these two kernels.

Three errors stand side by side: of the fits (ℓ1 over all lags, a bound for every bounded input), of
the best sum over the row's lags by variable projection (mean square, white inputs), and of models
trained from slopes 2^−h or from the grid's, the better of the two medians.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import Experiment, by_seed, medians, status_of, verdict
from analyses.papers.memory.models import spec_of
from analyses.papers.memory.projection import grid_start, search
from interp.figures.sweeps import sweep
from interp.proofs.lagfits.positions import Positions
from interp.proofs.lagfits.sums import fit_sum
from interp.tasks.memory import KernelMemory
from interp.tasks.memory.kernels import MemoryKernel

__all__ = ["heavy", "light", "statements"]

_KINDS: tuple[Positions, ...] = ("lin", "log")
_FIT, _BEST, _TRAINED = "fit, ℓ1 over all lags", "best sum, mean square", "trained, mean square"
_STARTS = ("2^−h", "grid")


def heavy(setting: Setting) -> Verdict:
    """Test that one log head beats many lin heads on a heavy tail (ledger:
    ``memory-heavy-tail``)."""
    table = _errors(setting)
    found = statements(table, "log")
    needed = ["trained: log better at every H", "best sum: log better at every H"]
    return _verdict(setting, table, found, status_of(found, needed=needed))


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
    for name, short in ((_FIT, "fit"), (_BEST, "best sum"), (_TRAINED, "trained")):
        middle = medians(table[table["error of"] == name], ["positions", "heads"])
        heads = sorted({h for _, h in middle})
        every = all(middle[better, h] < middle[other, h] for h in heads)
        one = all(middle[better, 1] < middle[other, h] for h in heads)
        found[f"{short}: {better} better at every H"] = every
        found[f"{short}: one head of {better} beats {other} of any H"] = one
    return found


def _errors(setting: Setting) -> pd.DataFrame:
    """A table of errors by positions, heads and method; for trained models of the better start."""
    options, rows = setting.options, []
    target = MemoryKernel.parse(options["kernel"]).values(np.arange(options["length"], dtype=float))
    for kind in _KINDS:
        for heads in options["heads"]:
            fit = fit_sum(options["kernel"], heads, positions=kind)
            rows.append((kind, heads, _FIT, 0, fit.error))
            rows.append((kind, heads, _BEST, 0, search(target, heads, kind).error))
    columns = ["positions", "heads", "error of", "seed", "error"]
    return pd.concat(
        [pd.DataFrame(rows, columns=columns), _trained(setting, target)[[*columns, "start"]]],
        ignore_index=True,
    )


def _trained(setting: Setting, target: np.ndarray) -> pd.DataFrame:
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
    figure = sweep(
        table,
        x="heads",
        across="heads H",
        by="positions",
        panel="error of",
        label="error (squares: of the variance)",
    )
    drawing = Drawing(figure, f"Errors of lin and log heads on {setting.options['kernel']}.")
    numbers = {
        "statements": dict(found),
        "errors": by_seed(table, ["error of", "positions", "heads"]),
        "starts": {
            f"{k}, {h} heads": str(rows["start"].iloc[0])
            for (k, h), rows in table[table["error of"] == _TRAINED].groupby(["positions", "heads"])
        },
    }
    return verdict(status, words, key, numbers, name="errors", table=table, drawing=drawing)
