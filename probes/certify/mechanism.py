"""Covers from roles: which cases a model's parts tell apart, and what they leave open.

    memory-location (a head looks at lag T),    the inputs at these lags are the cases; at others
    memory-mixture (at several)                 they are free, and what leaks is the cell's size
    counter (attention sees no order)           strings with the same counts are one case
    memory kernel (heads hold ρ)                the cases are intervals of m = ρ * x; how the heads'
                                                kernels differ from multiples of ρ is left open
    adaptive memory (the token names the lag)   the cases are the addresses at the judged position
                                                and at the location, values in intervals

Each role is a lemma with a number from the weights. A role that is wrong leaves the inputs that
matter free: its number and the bound are large, and still true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from interp.bounds.affine import Affine
from interp.bounds.passed_on import (
    along,
    named,
    not_along,
    not_named,
    not_orderless,
    values_of,
)
from interp.bounds.rounding import UP, Arithmetic
from probes.certify.cover import Cells
from probes.certify.domains.base import Domain
from probes.certify.domains.reals import Addressed, Averages
from probes.certify.domains.signs import Signs
from probes.certify.domains.strings import Strings

__all__ = ["Mechanism", "lags_of", "mechanism"]

Lags = Mapping[tuple[int, int], tuple[int, ...]]

SLICES = 96
PIECES = 8


@dataclass(frozen=True)
class Mechanism:
    """A cover.

    Attributes:
        cells: Makes the cover.
        data: What the checker needs to make the cover and its lemmas again.
        final: As :func:`~probes.certify.cover.prove` takes it.
    """

    cells: Callable[[], Iterator[Cells]]
    data: dict[str, Any]
    final: Callable[[Any, Cells, Arithmetic], Affine] | None = None


def mechanism(model: Any, domain: Domain, lags: Lags) -> Mechanism | str:
    """The cover that roles suggest, or why there is none.

    Args:
        model: A covered model.
        domain: What the theorem is about.
        lags: (layer, head) → the lags it looks at (:func:`lags_of`).
    """
    if isinstance(domain, Signs):
        return _fixed(model, domain, lags)
    if isinstance(domain, Strings):
        return _counts(model, domain)
    if isinstance(domain, Averages):
        return _kernel(model, domain)
    if isinstance(domain, Addressed):
        return _addressed(model, domain)
    return (
        "what heads pass on keeps the symbol, so each pair of symbols is a case of its own: no "
        "fewer than brute force has"
    )


def lags_of(roles: pd.DataFrame, task: Any) -> dict[tuple[int, int], tuple[int, ...]]:
    """(layer, head) → lags, of heads that look at a memory (the strongest if they have several
    such roles) or at a mixture of them.

    Candidates count too: a wrong one costs tightness, never truth.
    """
    told = getattr(task, "memories", tuple)
    known = {m.name: m.location for m in told() if isinstance(m.location, int)}
    rows = roles[roles["role"].isin(["memory-location", "memory-mixture"])]
    rows = rows.sort_values(["status", "strength"], ascending=[True, False])
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    columns = ["layer", "head", "role", "target", "group"]
    for layer, head, role, target, group in rows[columns].itertuples(index=False):
        names = [target] if role == "memory-location" else str(group).split(" + ")
        lags = tuple(sorted(known[name] for name in names if name in known))
        if lags:
            found.setdefault((int(layer), int(head)), lags)
    return found


def _fixed(model: Any, domain: Signs, said: Lags) -> Mechanism | str:
    named = (0, *sorted({lag for lags in said.values() for lag in lags}))
    if len(named) > 14:
        return f"{len(named)} lags are too many cases"
    heads = [(layer, head, lags) for (layer, head), lags in sorted(said.items())]

    def cells() -> Iterator[Cells]:
        for t in domain.judged:
            yield domain.cases(t, named)

    return Mechanism(cells, {"cover": "cases", "lags": list(named), "heads": heads})


def _counts(model: Any, domain: Strings) -> Mechanism | str:
    if reason := not_orderless(model):
        return reason
    return Mechanism(domain.multisets, {"cover": "multisets"})


def _kernel(model: Any, domain: Averages) -> Mechanism | str:
    if reason := not_along(model):
        return reason

    def cells() -> Iterator[Cells]:
        for t in domain.judged:
            yield domain.slices(t, SLICES)

    def final(m: Any, cells: Cells, ar: Arithmetic) -> Affine:
        t, n, ar.symbols = cells.position, len(cells.weight), cells.symbols
        ends = np.linspace(-domain.reach(t), domain.reach(t), n + 1)
        middle, half = (ends[1:] + ends[:-1]) / 2, (ends[1:] - ends[:-1]) / 2 * UP
        free: Any = cells.inputs
        return along(m, free, domain.rho[: t + 1][::-1], middle, half, ar)

    return Mechanism(cells, {"cover": "slices", "slices": SLICES}, final)


def _addressed(model: Any, domain: Addressed) -> Mechanism | str:
    if domain.task.rounds != 1 or domain.task.concurrent or domain.task.readout != "single":
        return "only one round that is passed on as it is"
    if reason := not_named(model):
        return reason
    every = domain.tokens(PIECES)
    lengths = [t + 1 for t in domain.judged]

    def cells() -> Iterator[Cells]:
        for code in range(len(domain.codes)):
            yield domain.pairs(code, PIECES)

    def final(m: Any, cells: Cells, ar: Arithmetic) -> Affine:
        pair: Any = cells.inputs
        ar.symbols = cells.symbols
        others = values_of(m, every, Arithmetic(ar.dtype, symbols=1))
        lag = int(domain.lags[domain.code_of(pair.centre[0, 1, 1:])])
        return named(m, pair[:, :1], pair[:, 1:], lag, lengths, others, ar)

    return Mechanism(cells, {"cover": "pairs", "pieces": PIECES}, final)
