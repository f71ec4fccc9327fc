"""Covers from roles: which cases a model's parts tell apart, and what they leave open.

    memory-location (a head looks at lag T)     the inputs at these lags are the cases; at others
                                                they are free, and what leaks is the cell's size
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
from interp.bounds.rounding import UP, Arithmetic
from interp.bounds.scores import score_forms
from probes.certify.cover import Cells, Lemma
from probes.certify.domains.base import Domain
from probes.certify.domains.reals import Addressed, Averages
from probes.certify.domains.signs import Signs
from probes.certify.domains.strings import Strings

__all__ = ["Mechanism", "lags_of", "mechanism"]

SLICES = 96
PIECES = 4


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


def mechanism(model: Any, domain: Domain, lags: Mapping[tuple[int, int], int]) -> Mechanism | str:
    """The cover that roles suggest, or why there is none.

    Args:
        model: A covered model.
        domain: What the theorem is about.
        lags: (layer, head) → the lag it looks at (:func:`lags_of`).
    """
    if isinstance(domain, Signs):
        return _fixed(model, domain, lags)
    if isinstance(domain, Strings):
        return _counts(model, domain)
    if isinstance(domain, Averages):
        return _kernel(model, domain)
    if isinstance(domain, Addressed):
        return _addressed(domain)
    return "no role of this task is turned into cases"


def lags_of(roles: pd.DataFrame, task: Any) -> dict[tuple[int, int], int]:
    """(layer, head) → lag, of heads with a ``memory-location`` role; the strongest if several.

    Candidates count too: a wrong one costs tightness, never truth.
    """
    told = getattr(task, "memories", tuple)
    known = {m.name: m.location for m in told() if isinstance(m.location, int)}
    rows = roles[(roles["role"] == "memory-location") & roles["target"].isin(list(known))]
    rows = rows.sort_values(["status", "strength"], ascending=[True, False])
    found: dict[tuple[int, int], int] = {}
    for layer, head, target in rows[["layer", "head", "target"]].itertuples(index=False):
        found.setdefault((int(layer), int(head)), known[target])
    return found


def _fixed(model: Any, domain: Signs, lags: Mapping[tuple[int, int], int]) -> Mechanism | str:
    named = (0, *sorted(set(lags.values())))
    if len(named) > 14:
        return f"{len(named)} lags are too many cases"
    lemmas = tuple(
        Lemma(
            "memory-location",
            f"head {layer}.{head}",
            f"attention outside lag {lag} is at most this, at every judged position",
            _elsewhere(model, domain, layer, head, lag),
        )
        for (layer, head), lag in sorted(lags.items())
    )

    def cells() -> Iterator[Cells]:
        for t in domain.judged:
            yield domain.cases(t, named)

    return Mechanism(cells, lemmas, {"cover": "cases", "lags": list(named)})


def _elsewhere(model: Any, domain: Signs, layer: int, head: int, lag: int) -> float:
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
        most = max(most, float(np.delete(high[:, head, 0], t - lag, axis=-1).sum(-1).max()))
    return most * UP


def _counts(model: Any, domain: Strings) -> Mechanism | str:
    spec = model.spec
    ordered = spec.positions != "none" or spec.lag_bias != "none"
    if spec.n_layers > 1 or ordered:
        return "with more than one layer, or with positions, the order of the tokens is seen"
    spread = _score_spread(model, domain) if spec.n_layers else 0.0
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
    s = score_forms(model.blocks[0].attn, x, x, lags, ar).centre[0]
    return float((s.max(-1) - s.min(-1)).max())


def _kernel(model: Any, domain: Averages) -> Mechanism | str:
    spec = model.spec
    plain = spec.n_layers == 1 and spec.score == "none" and spec.norm == "none"
    fixed = spec.lag_bias in ("lin", "log", "table", "none") and spec.positions == "none"
    if not (plain and fixed) or spec.input_ffn:
        return "the stream before the FFN is no fixed linear function of the inputs"

    def cells() -> Iterator[Cells]:
        for t in domain.judged:
            yield domain.slices(t, SLICES)

    def final(m: Any, cells: Cells, ar: Arithmetic) -> Affine:
        return along_kernel(m, domain, cells, ar)

    lemmas = (
        Lemma(
            "memory-location",
            "layer 0",
            "what heads pass on besides a multiple of the moving average, as a share of the whole",
            _left_open(model, domain),
        ),
    )
    return Mechanism(cells, lemmas, {"cover": "slices", "slices": SLICES}, final)


def along_kernel(model: Any, domain: Averages, cells: Cells, ar: Arithmetic) -> Affine:
    """The stream at the end, m's interval known.

    Before the FFN the stream is c + Σ_s x_{t−s} C_s, exactly. With m = Σ_s ρ_s x_{t−s} and any
    direction g, it is c + m g + Σ_s x_{t−s} (C_s − ρ_s g): m lies in its interval, the rest in the
    box. g is the least-squares direction; another one would be sound too.
    """
    ar.symbols = cells.symbols
    t = cells.position
    stream = after_attention(model.blocks[0], embedded(model, cells.inputs, ar), ar, last_only=True)
    rho = domain.rho[: t + 1][::-1]
    own = stream.generators[: t + 1, 0, 0] / domain.box  # the same in every cell
    g = rho @ own / (rho @ rho)
    rest = stream.generators[: t + 1] - (rho[:, None] * g * domain.box)[:, None, None]
    n = len(cells.weight)
    ends = np.linspace(-domain.reach(t), domain.reach(t), n + 1)
    middle, half = (ends[1:] + ends[:-1]) / 2, (ends[1:] - ends[:-1]) / 2 * UP
    centre = stream.centre + middle[:, None, None] * g
    generators = np.concatenate((rest, (half[:, None, None] * g)[None]))
    sizes = (np.abs(own).max(0) + np.abs(g) * np.abs(rho).max()) * domain.box * (t + 2)
    rounding = (sizes + np.abs(stream.centre) + np.abs(domain.reach(t) * g)) * 2.0**-48
    moved = Affine(centre, generators, (stream.radius + rounding) * UP)
    return after_ffn(model.blocks[0], moved, ar)[:, -1]


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


def _addressed(domain: Addressed) -> Mechanism | str:
    if domain.task.rounds != 1 or domain.task.concurrent or domain.task.readout != "single":
        return "only one round that is passed on as it is"

    def cells() -> Iterator[Cells]:
        for t in domain.judged:
            for code, lag in enumerate(domain.lags):
                whole = domain.cases(t, code, (int(lag),), PIECES)
                n = len(whole.weight)
                for row in range(0, n, 4):
                    piece = slice(row, min(row + 4, n))
                    inputs, targets = whole.inputs[piece], whole.targets[piece]
                    yield Cells(inputs, targets, whole.weight[piece], whole.symbols)

    lemmas = (
        Lemma(
            "memory-location",
            "layer 1",
            "cases are the addresses at the judged position and at the location; intervals a value",
            float(PIECES),
        ),
    )
    return Mechanism(cells, lemmas, {"cover": "addresses", "pieces": PIECES})
