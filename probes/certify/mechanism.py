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
from interp.bounds.attention import pattern
from interp.bounds.network import after_attention, after_ffn, embedded, normed
from interp.bounds.passed_on import (
    along,
    named,
    not_along,
    not_named,
    not_orderless,
    values_of,
    weights_of_keys,
)
from interp.bounds.rounding import UP, Arithmetic
from interp.bounds.scores import score_forms
from probes.certify.cover import Cells, Lemma
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
    """A cover and what it rests on.

    Attributes:
        cells: Makes the cover.
        lemmas: One a role.
        data: What the checker needs to make the cover again.
        final: As :func:`~probes.certify.cover.prove` takes it.
    """

    cells: Callable[[], Iterator[Cells]]
    lemmas: tuple[Lemma, ...]
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
    lemmas = tuple(
        Lemma(
            "memory-location" if len(lags) == 1 else "memory-mixture",
            f"head {layer}.{head}",
            f"attention outside lag {' and '.join(map(str, lags))} is at most this, at every "
            "judged position",
            _elsewhere(model, domain, layer, head, lags),
        )
        for (layer, head), lags in sorted(said.items())
    )

    def cells() -> Iterator[Cells]:
        for t in domain.judged:
            yield domain.cases(t, named)

    return Mechanism(cells, lemmas, {"cover": "cases", "lags": list(named)})


def _elsewhere(model: Any, domain: Signs, layer: int, head: int, lags: tuple[int, ...]) -> float:
    """Most attention that a head gives to other lags, over all inputs and judged positions."""
    most, spec = 0.0, model.spec
    for t in domain.judged:
        ar = Arithmetic("real", budget=0)
        x = embedded(model, domain.cases(t, ()).inputs, ar)
        for block in model.blocks[:layer]:
            x = after_ffn(block, after_attention(block, x, ar, last_only=False), ar)
        seen = normed(model.blocks[layer].ln1, x, ar)
        back = t - np.arange(t + 1)
        scores = score_forms(model.blocks[layer].attn, seen[:, -1:], seen, back[None], ar)
        softmax = spec.normalizer == "softmax"
        _, high = pattern(scores, (back >= 0)[None], softmax, ar)
        others = [j for j in range(t + 1) if t - j not in lags]
        most = max(most, float(high[:, head, 0][:, others].sum(-1).max()))
    return most * UP


def _counts(model: Any, domain: Strings) -> Mechanism | str:
    if reason := not_orderless(model):
        return reason
    spread = _score_spread(model, domain) if model.spec.n_layers else 0.0
    lemmas = (
        Lemma(
            "counter",
            "layer 0",
            "neither scores nor values see positions: what the order of earlier tokens changes",
            0.0,
        ),
        Lemma("counter", "layer 0", "largest difference of scores (0: uniform attention)", spread),
    )
    return Mechanism(domain.multisets, lemmas, {"cover": "multisets"})


def _score_spread(model: Any, domain: Strings) -> float:
    ar = Arithmetic("real", budget=0)
    ids = np.array([[0, *domain._ids]])
    x = normed(model.blocks[0].ln1, embedded(model, ids, ar), ar)
    lags = np.zeros((ids.shape[1], ids.shape[1]), dtype=np.int64)
    low, high = score_forms(model.blocks[0].attn, x, x, lags, ar)[0].bounds()
    return float((high.max(-1) - low.min(-1)).max() * UP)


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

    lemmas = (
        Lemma(
            "memory-location",
            "layer 0",
            "what heads pass on besides a multiple of the moving average, as a share of the whole",
            _left_open(model, domain),
        ),
    )
    return Mechanism(cells, lemmas, {"cover": "slices", "slices": SLICES}, final)


def _left_open(model: Any, domain: Averages) -> float:
    t = domain.length - 1
    ar = Arithmetic("real")
    cells = domain.slices(t, 1)
    ar.symbols = cells.symbols
    stream = after_attention(model.blocks[0], embedded(model, cells.inputs, ar), ar, last_only=True)
    own = stream.generators[: t + 1, 0, 0]
    rho = domain.rho[: t + 1][::-1]
    rest = own - np.outer(rho, rho @ own / (rho @ rho))
    return float(np.abs(rest).sum() / np.abs(own).sum())


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

    lemmas = []
    for code, lag in enumerate(domain.lags.tolist()):
        pair: Any = domain.pairs(code, PIECES).inputs
        low, _ = weights_of_keys(model, pair[:, 1:], lag, lengths, Arithmetic("real", symbols=2))
        for head, share in enumerate(low[:, :, 0, 0].min(0).tolist()):
            words = f"attention outside lag {lag}, which token {code} names, is at most this"
            place = f"head {model.spec.n_layers - 1}.{head}"
            lemmas.append(Lemma("memory-location", place, words, (1 - share) * UP))
    return Mechanism(cells, tuple(lemmas), {"cover": "pairs", "pieces": PIECES}, final)
