"""A tidy table of weight metrics of every head, computed from its factors alone.

For each head and circuit (QK, OV, and QK+aI, OV+bI in models with those scalars) it has the metrics
of :mod:`interp.weights.metrics`, each with its null, p, q and effect; for each pair of heads the
compositions of :mod:`interp.weights.composition`. Nothing of size d_model × d_model is formed and
one layer is in memory at a time.

Columns are those of every head table (:mod:`interp.stats.head_table`). null is ``rotations`` or
``factors``, and draws is the number of random heads in the null, 0 if its moments are exact. q is
over all heads within a circuit and metric, and for singular values within an index. Draws are
pooled over heads of one shape, and no p is below what its tail supports
(:mod:`interp.weights.weight_nulls`).

A small q says that a head is not random, which trained heads rarely are: rank by effect. Source:
`memory` and `template` ask for these diagonals (`template` §2.2, §2.4).

*The null in a token basis* is random factors through the same token matrices. In the residual basis
a random rotation is a null with closed moments. In a token basis E W_Q W_Kᵀ Eᵀ it is not:
embeddings are correlated, so even random factors have a diagonal there. The null is then sampled:
Gaussian factors of the heads' shapes and norms are multiplied by the gains and token matrices, and
every metric is computed of the result. A rotary rotation changes nothing: it leaves Gaussian
factors Gaussian.

Heads of one shape are exchangeable under this null in all layers with the same gains and token
matrices (without folded norms, all layers), so one sample of at least a thousand draws is pooled
over them. All metrics but diag_ratio need the Gram matrix of [E_left, E_right] alone, of twice the
model width and not of the vocabulary: with TᵀT that matrix, T L and T R have every product that E L
and E R have. Σ M_ii², which diag_ratio needs, does take the vocabulary, and is computed draw by
draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import Problems
from interp.stats.head_table import head_table, score_row
from interp.stats.p_values import Tail
from interp.weights.composition import composition_table
from interp.weights.head_weights.circuit import Circuit
from interp.weights.head_weights.families import head_weights
from interp.weights.head_weights.layers import BASES, LayerHeadWeights
from interp.weights.low_rank_circuit import LowRankCircuit, low_rank_circuit, low_rank_circuits
from interp.weights.metric_names import COMPOSITIONS, SINGULAR
from interp.weights.metrics import BASIC, METRICS, UNDEFINED, choose
from interp.weights.weight_nulls import SpectrumNull, WeightNull


@dataclass(frozen=True)
class BasisNull:
    """The distribution of each metric over random heads of the same shapes as those of one circuit.

    Attributes:
        found: metric → its values ``[draw]`` for factors of norm 1.
    """

    found: dict[str, NDArray[np.float64]]

    @classmethod
    def sample(cls, circuit: Circuit, names: Sequence[str], draws: int, seed: int) -> BasisNull:
        """Draw ``draws`` random heads of the shape of those of ``circuit``, one in memory at a
        time."""
        generator = torch.Generator().manual_seed(seed)
        spectral = any(METRICS[name].spectral for name in names)
        sight = _Sight.of(circuit, entries="diag_ratio" in names)
        scores = []
        for _ in range(draws):
            left, right = _factor(circuit.left, generator), _factor(circuit.right, generator)
            drawn = sight.moments(left, right, spectral)
            scores.append([METRICS[name].score(drawn) for name in names])
        return cls(dict(zip(names, np.array(scores, dtype=np.float64).T, strict=True)))

    def null(self, name: str, circuit: Circuit, head: int, tail: Tail) -> WeightNull:
        """Return the null of one head's metric; undefined for a circuit with an identity scalar."""
        if circuit.identity is not None or name not in self.found:
            return UNDEFINED
        drawn = self.found[name]
        if METRICS[name].scales:
            plain = replace(
                circuit, left_basis=None, right_basis=None, left_gain=None, right_gain=None
            )
            left, right = plain.pair(head)
            norm = float(left.norm() * right.norm()) / circuit.scale
            drawn = drawn * norm
        return WeightNull.of(drawn, tail)


@dataclass(frozen=True)
class _Sight:
    """The token matrices [vocab, d_model] of a circuit's two sides, with gains multiplied in.

    Attributes:
        left, right: The token matrices.
        roots: Smaller matrices with the same products as the token matrices.
        entries: Whether single diagonal entries are needed.
    """

    left: Tensor
    right: Tensor
    roots: tuple[Tensor, Tensor]
    entries: bool

    @classmethod
    def of(cls, circuit: Circuit, *, entries: bool) -> _Sight:
        """Compute the token matrices of a circuit, which must have both bases."""
        left = _scale_basis(circuit.left_basis, circuit.left_gain, circuit.left)
        right = _scale_basis(circuit.right_basis, circuit.right_gain, circuit.right)
        same = torch.equal(left, right)
        wide = left if same else torch.cat((left, right), dim=1)
        if len(wide) > wide.shape[1]:
            values, vectors = torch.linalg.eigh((wide.mT @ wide).double())
            wide = (vectors * values.clamp_min(0).sqrt()).mT.to(wide.dtype)
        n = left.shape[1]
        roots = (wide[:, :n].contiguous(), wide[:, -n:].contiguous())
        return cls(left, right, roots, entries)

    def moments(self, left: Tensor, right: Tensor, spectral: bool) -> LowRankCircuit:
        """Compute what metrics need (trace, norms, spectrum) of a circuit in the token basis.

        The circuit is M = (L · left)(R · right)ᵀ, [vocab, vocab], for the token matrices L and R.
        M itself is never formed.

        Args:
            left, right: The factors in the residual basis, [d_model, d_head].
            spectral: Whether to compute singular values, eigenvalues and tr M², too.

        Returns:
            The numbers of M; ``diagonal_energy`` is NaN unless ``entries`` is set.
        """
        found = low_rank_circuit(self.roots[0] @ left, self.roots[1] @ right, spectrum=spectral)
        energy = math.nan
        if self.entries:
            diagonal = ((self.left @ left) * (self.right @ right)).sum(-1).double()
            energy = float(diagonal @ diagonal)
        return replace(found, width=len(self.left), diagonal_energy=energy)


def _scale_basis(basis: Tensor | None, gain: Tensor | None, factor: Tensor) -> Tensor:
    seen = torch.eye(factor.shape[1], dtype=factor.dtype) if basis is None else basis
    return seen if gain is None else seen * gain


def _factor(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(*like.shape[1:], generator=generator, dtype=like.dtype)
    return drawn / drawn.norm()


GROUPS: dict[str, Sequence[str]] = {
    "basic": BASIC,
    "heads": tuple(METRICS),
    "composition": COMPOSITIONS,
    SINGULAR: (SINGULAR,),
    "all": (*METRICS, *COMPOSITIONS, SINGULAR),
}

Watch = Callable[[Iterable[LayerHeadWeights]], Iterable[LayerHeadWeights]]
"""A function that passes on the layers that it gets, and may show progress meanwhile."""


def weight_table(
    model: Any,
    metrics: Sequence[str] | None = None,
    *,
    fold_norm: bool = False,
    lag: int = 0,
    basis: str = "residual",
    draws: int = 1000,
    seed: int = 0,
    watch: Watch = iter,
) -> pd.DataFrame:
    """Compute the weight metrics of every head of a model, with their nulls.

    Args:
        model: a model in memory, a folder, a file, a hub id, or the result of
            :func:`interp.weights.head_weights.head_weights`.
        metrics: names or groups (``basic``, ``heads``, ``composition``, ``singular_value``,
            ``all``); None is ``heads``, every metric of single heads.
        fold_norm: whether to fold the scale of the norm before attention into the circuits.
        lag: query minus key position, for models with rotary positions (QK only).
        basis: ``residual`` or ``token``. With ``token`` every null is sampled; with ``fold_norm``
            this is repeated for each layer, which takes long if diag_ratio is asked for and the
            vocabulary is large.
        draws, seed: number of draws and seed of the sampled nulls; fewer than 1000 draws are for
            trying things out.
        watch: a wrapper of the iteration over layers, such as a progress bar.

    Returns:
        One row per head, circuit and metric (the target is the index of a singular value, or the
        writing head "L0H5" of a composition).

    Raises:
        ArgumentError: naming every argument that breaks a rule.
        CheckpointError: if a tensor is missing or damaged.
    """
    factors, problems = head_weights(model), Problems("weight_table")
    problems.need(draws >= 2, "draws", "must be at least 2", draws, "a spread needs two")
    problems.need(basis in BASES, "basis", "must be residual or token", basis, "pick one")
    rotary = factors.layout.rope is not None
    problems.need(lag == 0 or rotary, "lag", "must be 0 without rotary positions", lag, "drop it")
    problems.raise_if_any()
    chosen = choose(metrics, GROUPS)
    single = [name for name in chosen if name not in COMPOSITIONS]
    rows: list[dict[str, Any]] = []
    nulls = _BasisNulls(draws, seed, shared=not fold_norm)
    if single:
        for layer in watch(factors):
            for name in layer.circuits:
                at = lag if name.startswith("QK") else 0
                circuit = layer.circuit(name, fold_norm=fold_norm, lag=at, basis=basis)
                rows += _circuit_rows(circuit, layer.index, single, nulls)
                del circuit  # before the next one is read
    table = head_table(rows)
    pairs = [name for name in chosen if name in COMPOSITIONS]
    if pairs:
        joint = composition_table(factors, pairs, fold_norm=fold_norm, watch=watch)
        table = pd.concat([table, joint], ignore_index=True) if len(table) else joint
    return table


class _BasisNulls:
    """Nulls in a token basis, one for all layers with heads of one shape and the same token
    matrices."""

    def __init__(self, draws: int, seed: int, *, shared: bool) -> None:
        self.draws, self.seed, self._shared = draws, seed, shared
        self._found: dict[tuple[object, ...], BasisNull] = {}

    def of(self, circuit: Circuit, layer: int, names: Sequence[str]) -> BasisNull | None:
        """Return the null for a circuit: None in the residual basis, empty for a circuit with an
        identity."""
        if circuit.left_basis is None:
            return None
        if circuit.identity is not None:
            return BasisNull({})
        place = -1 if self._shared else layer
        key = (circuit.name, circuit.left.shape[1:], circuit.right.shape[1:], place)
        if key not in self._found:
            drawn = [name for name in names if name not in (SINGULAR, "key_bias_energy")]
            self._found[key] = BasisNull.sample(circuit, drawn, self.draws, self.seed)
        return self._found[key]


def _circuit_rows(
    circuit: Circuit, layer: int, names: Sequence[str], nulls: _BasisNulls
) -> Iterator[dict[str, Any]]:
    spectrum = any(name == SINGULAR or METRICS[name].spectral for name in names)
    in_tokens = nulls.of(circuit, layer, names)
    for head, found in enumerate(low_rank_circuits(circuit, spectrum=spectrum)):
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
                yield _row(name, score, null, layer, head, circuit.name)


@lru_cache(maxsize=16)
def _spectrum_null(n: int, r: int, draws: int, seed: int) -> SpectrumNull:
    return SpectrumNull(n, r, draws, seed)


def _singular_rows(
    circuit: str, layer: int, head: int, found: LowRankCircuit, random: SpectrumNull | None
) -> Iterator[dict[str, Any]]:
    values = np.zeros(0) if found.singular is None else found.singular[: found.rank]
    scaled = None if random is None else random.singular * found.factor_norm
    for k, value in enumerate(values.tolist()):
        null = UNDEFINED if scaled is None else WeightNull.of(scaled[:, k])
        yield _row(SINGULAR, value, null, layer, head, circuit, str(k + 1))


def _row(
    metric: str,
    score: float,
    null: WeightNull,
    layer: int,
    head: int,
    circuit: str,
    target: str = "",
) -> dict[str, Any]:
    return score_row(
        metric,
        score,
        null.against(score),
        component="head",
        layer=layer,
        head=head,
        circuit=circuit,
        target=target,
    )


def circuit_crop(
    model: Any, layer: int, head: int, circuit: str, *, size: int = 100, **options: Any
) -> NDArray[np.float32]:
    """Return the top left size × size corner of a head's circuit, from that many rows of its
    factors.

    Args:
        model: a checkpoint or model, as for :func:`weight_table`.
        layer, head: the head, both counted from 0.
        circuit: ``QK``, ``OV``, ``QK+aI`` or ``OV+bI``.
        size: the number of rows and columns (fewer if the basis is smaller).
        options: ``fold_norm``, ``lag`` and ``basis``, as in :func:`weight_table`.
    """
    stack = head_weights(model).layer(layer).circuit(circuit, **options)
    left, right = (factor[:size] for factor in stack.pair(head))
    crop = left @ right.mT
    return (
        (crop + stack.identity_scalar(head) * torch.eye(*crop.shape, dtype=crop.dtype))
        .float()
        .numpy()
    )
