"""The null of a circuit seen in a token basis: random factors through the same matrices.

In the residual basis a random rotation is a null with closed moments. In a token basis
E W_Q W_Kᵀ Eᵀ it is not: embeddings are correlated, so even random factors have a diagonal there.
The null is then sampled: Gaussian factors of the heads' shapes and norms go through the gains and
token matrices, and every metric is taken of them. A rotary turn changes nothing: it leaves Gaussian
factors Gaussian.

Heads of one shape are exchangeable under this null, in all layers that see tokens alike (without
folded norms, all), so one sample of at least a thousand draws is pooled over them. All metrics but
those of single diagonal entries need the Gram matrix of [E_left, E_right] alone, of twice the model
width and not of the vocabulary: with TᵀT that matrix, T L and T R have every product that E L and
E R have. Σ M_ii² does need the vocabulary, and is taken of it draw by draw where it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.stats.p_values import Tail
from interp.weights.head_weights.circuit import Circuit
from interp.weights.low_rank_circuit import LowRankCircuit, low_rank_circuit
from interp.weights.metrics import METRICS, UNDEFINED
from interp.weights.weight_nulls import WeightNull

__all__ = ["BasisNull"]

_ENTRIES = ("diag_ratio", "diag_std", "offdiag_std", "diag_contrast")


@dataclass(frozen=True)
class BasisNull:
    """The distribution of each metric over random heads of the same shapes as those of one circuit.

    Attributes:
        found: metric → its values ``[draw]`` for factors of norm 1.
    """

    found: dict[str, NDArray[np.float64]]

    @classmethod
    def sample(cls, circuit: Circuit, names: Sequence[str], draws: int, seed: int) -> BasisNull:
        """Draw ``draws`` random heads shaped as those of ``circuit``, one in memory at a time."""
        generator = torch.Generator().manual_seed(seed)
        spectral = any(METRICS[name].spectral for name in names)
        sight = _Sight.of(circuit, entries=any(name in _ENTRIES for name in names))
        scores = []
        for _ in range(draws):
            left, right = _factor(circuit.left, generator), _factor(circuit.right, generator)
            drawn = sight.moments(left, right, spectral)
            scores.append([METRICS[name].score(drawn) for name in names])
        return cls(dict(zip(names, np.array(scores, dtype=np.float64).T, strict=True)))

    def null(self, name: str, circuit: Circuit, head: int, tail: Tail) -> WeightNull:
        """The null of one head's metric; undefined where an identity is added to the circuit."""
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
    """The token matrices [vocab, d_model] through which circuits are seen, gains included."""

    left: Tensor
    right: Tensor
    roots: tuple[Tensor, Tensor]
    sums: tuple[Tensor, Tensor]
    entries: bool

    @classmethod
    def of(cls, circuit: Circuit, *, entries: bool) -> _Sight:
        """The token matrices of a circuit; both of its bases must be there."""
        left = _gained(circuit.left_basis, circuit.left_gain, circuit.left)
        right = _gained(circuit.right_basis, circuit.right_gain, circuit.right)
        same = torch.equal(left, right)
        wide = left if same else torch.cat((left, right), dim=1)
        if len(wide) > wide.shape[1]:
            values, vectors = torch.linalg.eigh((wide.mT @ wide).double())
            wide = (vectors * values.clamp_min(0).sqrt()).mT.to(wide.dtype)
        n = left.shape[1]
        roots = (wide[:, :n].contiguous(), wide[:, -n:].contiguous())
        return cls(left, right, roots, (left.sum(0), right.sum(0)), entries)

    def moments(self, left: Tensor, right: Tensor, spectral: bool) -> LowRankCircuit:
        """The numbers of the circuit in the token basis, for factors [d_model, d_head]."""
        found = low_rank_circuit(self.roots[0] @ left, self.roots[1] @ right, spectrum=spectral)
        energy = math.nan
        if self.entries:
            diagonal = ((self.left @ left) * (self.right @ right)).sum(-1).double()
            energy = float(diagonal @ diagonal)
        total = float(((self.sums[0] @ left) * (self.sums[1] @ right)).sum())
        return replace(
            found, width=len(self.left), diagonal_energy=energy, total=total if spectral else None
        )


def _gained(basis: Tensor | None, gain: Tensor | None, factor: Tensor) -> Tensor:
    seen = torch.eye(factor.shape[1], dtype=factor.dtype) if basis is None else basis
    return seen if gain is None else seen * gain


def _factor(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(*like.shape[1:], generator=generator, dtype=like.dtype)
    return drawn / drawn.norm()
