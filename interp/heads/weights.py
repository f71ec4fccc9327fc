"""What every head's weights say, from its factors alone: a tidy table.

For each head and circuit (QK, OV, and QK+aI, OV+bI where a model has those scalars) the metrics of
:mod:`interp.heads.metrics`, each with its null, p, q and effect; for each pair of heads the
compositions of :mod:`interp.heads.composition`. Nothing of size d_model × d_model is formed and
one layer is in memory at a time.

Columns are those of the product's head tables: component, layer, head, group, circuit, metric,
target, score, null_mean, null_std, p, q, effect, and ``draws``: how many random heads the null is
made of, 0 where its moments are exact. ``effect`` is score − null_mean, in the metric's own unit;
q is Benjamini-Hochberg over all heads within a circuit and metric. Draws are pooled over heads of
one shape, and no p is below what its tail supports (:mod:`interp.heads.weight_nulls`).

A small q says that a head is not random, which trained heads rarely are: rank by effect. Source:
`memory` and `template` ask for these diagonals (`template` §2.2, §2.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from interp.errors import Problems
from interp.heads.basis_null import BasisNull
from interp.heads.composition import COMPOSITIONS, compositions
from interp.heads.metrics import BASIC, METRICS, choose
from interp.heads.moments import Moments, circuit_moments
from interp.heads.table import COLUMNS, adjust
from interp.heads.weight_nulls import SpectrumNull, WeightNull, p_value
from interp.models.factors.circuit import Circuit
from interp.models.factors.layers import BASES, Factors, LayerFactors

__all__ = ["GROUPS", "Watch", "circuit_crop", "singular_values", "weight_table"]

SINGULAR = "singular_value"
GROUPS: dict[str, Sequence[str]] = {
    "basic": BASIC,
    "heads": tuple(METRICS),
    "composition": COMPOSITIONS,
    SINGULAR: (SINGULAR,),
    "all": (*METRICS, *COMPOSITIONS, SINGULAR),
}

Watch = Callable[[Iterable[LayerFactors]], Iterable[LayerFactors]]
"""Something that passes layers through and may show how far it is."""

_Row = tuple[int, int, str, str, str, float, float, float, float, int]


def weight_table(
    factors: Factors,
    metrics: Sequence[str] | None = None,
    *,
    fold_norm: bool = False,
    lag: int = 0,
    basis: str = "residual",
    draws: int = 1000,
    seed: int = 0,
    watch: Watch = iter,
) -> pd.DataFrame:
    """The weight metrics of every head of a model.

    Args:
        factors: from :func:`interp.models.factors.open_factors`.
        metrics: names or groups (``basic``, ``heads``, ``composition``, ``singular_value``,
            ``all``); None is ``heads``, every metric of single heads.
        fold_norm: fold the scale of the norm before attention into the circuits.
        lag: query minus key position, for models with rotary positions (QK only).
        basis: ``residual`` or ``token`` (then every null is sampled; with ``fold_norm`` for each
            layer anew, which takes long where single diagonal entries of a large vocabulary are
            asked for: diag_ratio, diag_std, offdiag_std, diag_contrast).
        draws, seed: of the sampled nulls; fewer than 1000 are for trying things out.
        watch: wraps the iteration over layers, for a progress bar.

    Returns:
        One row a head, circuit and metric (the target is the index of a singular value, or the
        sending head "L0H5" of a composition).

    Raises:
        ArgumentError: naming every argument that breaks a rule.
        CheckpointError: if a tensor is missing or damaged.
    """
    problems = Problems("weight_table")
    problems.need(draws >= 2, "draws", "must be at least 2", draws, "a spread needs two")
    problems.need(basis in BASES, "basis", "must be residual or token", basis, "pick one")
    rotary = factors.layout.rope is not None
    problems.need(lag == 0 or rotary, "lag", "must be 0 without rotary positions", lag, "drop it")
    problems.raise_if_any()
    chosen = choose(metrics, GROUPS)
    single = [name for name in chosen if name not in COMPOSITIONS]
    rows: list[_Row] = []
    nulls = _BasisNulls(draws, seed, shared=not fold_norm)
    if single:
        for layer in watch(factors):
            for name in layer.circuits:
                at = lag if name.startswith("QK") else 0
                circuit = layer.circuit(name, fold_norm=fold_norm, lag=at, basis=basis)
                rows += _circuit_rows(circuit, layer.index, single, nulls)
                del circuit  # before the next one is read
    table = _finish(rows)
    pairs = [name for name in chosen if name in COMPOSITIONS]
    if pairs:
        joint = compositions(factors, pairs, fold_norm=fold_norm, watch=watch).assign(draws=0)
        table = pd.concat([table, joint], ignore_index=True) if len(table) else joint
    return table


class _BasisNulls:
    """Nulls in a token basis, one for all layers whose heads are shaped and see tokens alike."""

    def __init__(self, draws: int, seed: int, *, shared: bool) -> None:
        self.draws, self.seed, self._shared = draws, seed, shared
        self._found: dict[tuple[object, ...], BasisNull] = {}

    def of(self, circuit: Circuit, layer: int, names: Sequence[str]) -> BasisNull | None:
        """None in the residual basis, and for circuits with an identity, which have no null."""
        if circuit.left_basis is None:
            return None
        if circuit.identity is not None:
            return BasisNull({}, 0)
        place = -1 if self._shared else layer
        key = (circuit.name, circuit.left.shape[1:], circuit.right.shape[1:], place)
        if key not in self._found:
            drawn = [name for name in names if name not in (SINGULAR, "key_bias_energy")]
            self._found[key] = BasisNull.sample(circuit, drawn, self.draws, self.seed)
        return self._found[key]


def _circuit_rows(
    circuit: Circuit, layer: int, names: Sequence[str], nulls: _BasisNulls
) -> Iterator[_Row]:
    spectrum = any(name == SINGULAR or METRICS[name].spectral for name in names)
    in_tokens = nulls.of(circuit, layer, names)
    for head, found in enumerate(circuit_moments(circuit, spectrum=spectrum)):
        random = _spectrum_null(found.width, found.columns, nulls.draws, nulls.seed)
        for name in names:
            if name == SINGULAR:
                known = None if in_tokens or found.identity else random
                yield from _singular_rows(circuit.name, layer, head, found, known)
            elif name != "key_bias_energy" or found.bias is not None:
                if in_tokens is None:
                    null = METRICS[name].null(found, random)
                else:
                    null = in_tokens.null(name, circuit, head, METRICS[name].tail)
                score = METRICS[name].score(found)
                p = p_value(score, null)
                yield (layer, head, circuit.name, name, "", score, null.mean, null.std, p,
                       null.draws)  # fmt: skip


@lru_cache(maxsize=16)
def _spectrum_null(n: int, r: int, draws: int, seed: int) -> SpectrumNull:
    return SpectrumNull(n, r, draws, seed)


def _singular_rows(
    circuit: str, layer: int, head: int, found: Moments, random: SpectrumNull | None
) -> Iterator[_Row]:
    values = np.zeros(0) if found.singular is None else found.singular[: found.rank]
    mean = std = np.full_like(values, np.nan)
    if random is not None:
        scaled = random.singular * found.factor_norm
        mean, std = scaled.mean(0), scaled.std(0, ddof=1)
    for k, value in enumerate(values.tolist()):
        null = WeightNull(
            float(mean[k]), float(std[k]), draws=0 if random is None else random.draws
        )
        p = p_value(value, null)
        yield (layer, head, circuit, SINGULAR, str(k + 1), value, null.mean, null.std, p,
               null.draws)  # fmt: skip


def _finish(rows: Sequence[_Row]) -> pd.DataFrame:
    names = ["layer", "head", "circuit", "metric", "target", "score", "null_mean", "null_std", "p",
             "draws"]  # fmt: skip
    table = pd.DataFrame(rows, columns=names)
    family = table.groupby(["circuit", "metric", "target"], sort=False)["p"]
    table["q"] = family.transform(lambda p: adjust(p.to_numpy()))
    table["effect"] = table["score"] - table["null_mean"]
    table["component"], table["group"] = "head", ""
    return table[[*COLUMNS, "draws"]]


def singular_values(factors: Factors, circuit: str, **options: Any) -> NDArray[np.float64]:
    """Singular values of one circuit of every head, [layer, head, k], largest first.

    Args:
        factors: the model; every layer must have the circuit and the same shapes.
        circuit: ``QK``, ``OV``, ``QK+aI`` or ``OV+bI``.
        options: fold_norm, lag, basis, as in :func:`weight_table`.
    """
    found = [
        [known.singular for known in circuit_moments(stack, spectrum=True)]
        for stack in (layer.circuit(circuit, **options) for layer in factors)
    ]
    return np.array(found)


def circuit_crop(
    factors: Factors, layer: int, head: int, circuit: str, *, size: int = 100, **options: Any
) -> NDArray[np.float32]:
    """The top left size × size corner of a head's circuit, from that many rows of its factors.

    Args:
        factors: the model.
        layer, head: which head.
        circuit: ``QK``, ``OV``, ``QK+aI`` or ``OV+bI``.
        size: rows and columns (fewer where the basis is smaller).
        options: fold_norm, lag, basis, as in :func:`weight_table`.
    """
    stack = factors.layer(layer).circuit(circuit, **options)
    left, right = (factor[:size] for factor in stack.pair(head))
    crop = left @ right.mT
    return (crop + stack.added(head) * torch.eye(*crop.shape, dtype=crop.dtype)).float().numpy()
