"""The null of a circuit seen in a token basis: random factors through the same matrices.

In the residual basis a random rotation is a null with closed moments. In a token basis
E W_Q W_Kᵀ Eᵀ it is not: embeddings are correlated, so even random factors have a diagonal there.
The null is then sampled: Gaussian factors of the heads' shapes and norms go through the gains,
rotary turn and token matrices of the layer, and every metric is taken of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from interp.heads.metrics import METRICS
from interp.heads.moments import moments
from interp.heads.weight_nulls import Tail, WeightNull
from interp.models.factors.circuit import Circuit

__all__ = ["BasisNull"]


@dataclass(frozen=True)
class BasisNull:
    """Mean and standard deviation of each metric over random heads of one layer's circuit.

    Attributes:
        found: metric → (mean, standard deviation) for factors of norm 1.
    """

    found: dict[str, tuple[float, float]]

    @classmethod
    def sample(cls, circuit: Circuit, names: Sequence[str], draws: int, seed: int) -> BasisNull:
        """Draw ``draws`` random heads shaped as those of ``circuit``, one in memory at a time."""
        generator = torch.Generator().manual_seed(seed)
        spectral = any(METRICS[name].spectral for name in names)
        scores = []
        for _ in range(draws):
            random = replace(
                circuit,
                left=_factor(circuit.left, generator),
                right=_factor(circuit.right, generator),
                identity=None,
                query_bias=None,
                left_inner=None,
                right_inner=None,
            )
            drawn = moments(*random.pair(0), spectrum=spectral)
            scores.append([METRICS[name].score(drawn) for name in names])
        mean, std = np.mean(scores, axis=0), np.std(scores, axis=0, ddof=1)
        return cls({n: (float(mean[i]), float(std[i])) for i, n in enumerate(names)})

    def null(self, name: str, circuit: Circuit, head: int, tail: Tail) -> WeightNull:
        """The null of one head; undefined where an identity is added."""
        if circuit.identity is not None or name not in self.found:
            return WeightNull(math.nan, math.nan)
        mean, std = self.found[name]
        if METRICS[name].scales:
            plain = replace(circuit, left_basis=None, right_basis=None, left_gain=None,
                            right_gain=None)  # fmt: skip
            left, right = plain.pair(head)
            norm = float(left.norm() * right.norm()) / circuit.scale
            mean, std = mean * norm, std * norm
        return WeightNull(mean, std, tail)


def _factor(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    drawn = torch.randn(1, *like.shape[1:], generator=generator, dtype=like.dtype)
    return drawn / drawn.norm()
