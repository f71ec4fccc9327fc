"""The weight metrics of a head's circuit, each with its formula and null.

M is the circuit, n its width, S2 = ‖M‖², a* = tr M / n the multiple of I nearest to M.

    trace_share           tr M / (√n ‖M‖), in [−√(r/n), √(r/n)] for rank r: its sign is the sign of
                          the diagonal (+ matches or copies, − avoids or suppresses)
    diag_ratio            RMS of the diagonal over RMS off the diagonal
    identity_coefficient  a*; the share of ‖M‖² that a*·I explains is trace_share²
    frobenius_norm, spectral_norm (σ_1), spectral_share (σ_1² / S2), effective_rank (exponential
                          of the entropy of σ/Σσ, between 1 and r)
    copying_score         Σ Re λ / Σ|λ|, in [−1, 1]
    symmetric_share       ‖(M + Mᵀ)/2‖² / S2; the rest is antisymmetric
    key_bias_energy       QK with biases: ‖W_K b_Q‖² / (‖W_K b_Q‖² + S2), the share of the score's
                          variance over unit-variance keys that does not depend on the query
    singular_value        σ_k, with target k = 1, 2, …

A circuit of width 1 is one number: it has no entries off the diagonal (those metrics are NaN), and
no rotation changes it (those nulls are undefined).

**When not to use them.** In the residual basis a large diagonal means that the head maps a
direction to itself. It says something about tokens only if tokens' directions are spread over the
coordinates; use a token basis to ask about tokens. A privileged coordinate of large scale shows in
every metric.

**What a positive result does not establish.** That the head matches or copies on any input: norms,
positions and the other circuit of the head decide that too. See the patterns and effects of heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from interp.errors import ArgumentError
from interp.stats.p_values import Tail
from interp.weights.low_rank_circuit import LowRankCircuit
from interp.weights.weight_nulls import (
    SpectrumNull,
    WeightNull,
    diagonal_energy_variance,
    mean_modulus,
)


@dataclass(frozen=True)
class WeightMetric:
    """A number computed from a circuit, and its null.

    Attributes:
        score: a function that computes the metric from the circuit's numbers.
        null: a function that computes the null from the circuit's numbers and the spectra of random
            factors.
        spectral: whether the metric needs singular values, eigenvalues or tr M².
        scales: whether the score grows with the norms of the factors.
        tail: which deviations count, if the null is sampled.
    """

    score: Callable[[LowRankCircuit], float]
    null: Callable[[LowRankCircuit, SpectrumNull], WeightNull]
    spectral: bool = False
    scales: bool = False
    tail: Tail = "two-sided"


Null = Callable[[LowRankCircuit, SpectrumNull], WeightNull]
"""A function from the numbers of a circuit and the spectra of random factors to the null of a
metric."""

_T = TypeVar("_T")
UNDEFINED = WeightNull(math.nan, math.nan)
"""The null of a metric for which no null distribution is defined: mean and standard deviation are
NaN."""


def effective_rank(singular: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the exponential of the entropy of σ/Σσ along the last axis; 0 for a zero matrix."""
    total = singular.sum(-1, keepdims=True)
    share = np.divide(singular, total, out=np.zeros_like(singular), where=total > 0)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(-1)
    return np.asarray(np.exp(entropy) * (total[..., 0] > 0))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0


def _norm(m: LowRankCircuit) -> float:
    return math.sqrt(m.energy)


def _trace_share(m: LowRankCircuit) -> float:
    return _ratio(m.trace, math.sqrt(m.width) * _norm(m))


def _diag_ratio(m: LowRankCircuit) -> float:
    if m.width < 2:
        return math.nan
    off = max(m.energy - m.diagonal_energy, 0.0)
    return math.sqrt(_ratio(m.diagonal_energy * (m.width - 1), off)) if off else math.inf


def _identity_coefficient(m: LowRankCircuit) -> float:
    return m.trace / m.width


def _require_spectrum(found: _T | None) -> _T:
    if found is None:
        raise ArgumentError("spectrum must be True for this metric, got False: ask for it")
    return found


def _sigma(m: LowRankCircuit) -> NDArray[np.float64]:
    return _require_spectrum(m.singular)


def _copying(m: LowRankCircuit) -> float:
    eigen = _require_spectrum(m.eigen)
    return _ratio(float(eigen.real.sum()), float(np.abs(eigen).sum()))


def _symmetric_share(m: LowRankCircuit) -> float:
    return 0.5 + 0.5 * _ratio(_require_spectrum(m.square_trace), m.energy)


def _key_bias(m: LowRankCircuit) -> float:
    return math.nan if m.bias is None else _ratio(m.bias[0], m.bias[0] + m.energy)


def _null_diag_ratio(m: LowRankCircuit, _: SpectrumNull) -> WeightNull:
    mean = m.energy / m.width
    spread = math.sqrt(diagonal_energy_variance(m.width, m.energy, m.fourth))
    # ratio² = (n − 1) T / (S2 − T): its slope at the mean of T is n/(n − 1) a unit of T / E T.
    relative = _ratio(spread, mean) * m.width / (m.width - 1)
    return WeightNull(math.sqrt(max(1 - relative**2 / 4, 0.0)), relative / 2, "gamma")


def _null_copying(m: LowRankCircuit, _: SpectrumNull) -> WeightNull:
    if m.identity:
        return UNDEFINED
    return WeightNull(0.0, _ratio(_norm(m) / math.sqrt(m.width), mean_modulus(m.width, _sigma(m))))


def _null_key_bias(m: LowRankCircuit, _: SpectrumNull) -> WeightNull:
    if m.bias is None:
        return UNDEFINED
    mean, variance = m.bias[1:]
    slope = _ratio(m.energy, (mean + m.energy) ** 2)
    return WeightNull(_ratio(mean, mean + m.energy), slope * math.sqrt(variance))


def _sample_null(of: Callable[[NDArray[np.float64]], NDArray[np.float64]], scales: bool) -> Null:
    """Make the null of a function of the singular values; ``scales``: whether it grows with the
    norms."""

    def null(m: LowRankCircuit, spectrum: SpectrumNull) -> WeightNull:
        if m.identity:
            return UNDEFINED
        drawn = of(spectrum.singular) * (m.factor_norm if scales else 1.0)
        return WeightNull.of(drawn)

    return null


def _signed_null(variance: Callable[[LowRankCircuit], float]) -> Null:
    return _rotation_null(lambda m, _: WeightNull(0.0, math.sqrt(variance(m))))


def _rotation_null(null: Null) -> Null:
    """Leave a null by random rotations undefined for a circuit of width 1, which no rotation
    changes."""
    return lambda m, spectrum: null(m, spectrum) if m.width > 1 else UNDEFINED


METRICS: dict[str, WeightMetric] = {
    "trace_share": WeightMetric(_trace_share, _signed_null(lambda m: m.width**-2)),
    "diag_ratio": WeightMetric(_diag_ratio, _rotation_null(_null_diag_ratio), tail="gamma"),
    "identity_coefficient": WeightMetric(
        _identity_coefficient, _signed_null(lambda m: m.energy / m.width**3), scales=True
    ),
    "frobenius_norm": WeightMetric(
        _norm, _sample_null(lambda s: np.sqrt((s**2).sum(-1)), scales=True), scales=True
    ),
    "spectral_norm": WeightMetric(
        lambda m: float(_sigma(m)[0]),
        _sample_null(lambda s: s[:, 0], scales=True),
        spectral=True,
        scales=True,
    ),
    "spectral_share": WeightMetric(
        lambda m: _ratio(float(_sigma(m)[0]) ** 2, m.energy),
        _sample_null(lambda s: s[:, 0] ** 2 / (s**2).sum(-1), scales=False),
        spectral=True,
    ),
    "effective_rank": WeightMetric(
        lambda m: float(effective_rank(_sigma(m))),
        _sample_null(effective_rank, scales=False),
        spectral=True,
    ),
    "copying_score": WeightMetric(_copying, _rotation_null(_null_copying), spectral=True),
    "symmetric_share": WeightMetric(
        _symmetric_share,
        _rotation_null(lambda m, _: WeightNull(0.5 + 0.5 / m.width, math.sqrt(0.5) / m.width)),
        spectral=True,
    ),
    "key_bias_energy": WeightMetric(_key_bias, _null_key_bias),
}
BASIC = ("trace_share", "diag_ratio", "identity_coefficient")


def choose(metrics: Sequence[str] | None, groups: dict[str, Sequence[str]]) -> list[str]:
    """Expand groups of metrics and return the metrics' names, in the given order; None gives all
    METRICS.

    Raises:
        ArgumentError: naming every name that is neither a metric nor a group, or if none is given.
    """
    if metrics is None:
        return list(METRICS)
    chosen: list[str] = []
    known = {name for group in groups.values() for name in group} | set(METRICS)
    unknown = [name for name in metrics if name not in known and name not in groups]
    if unknown or not metrics:
        raise ArgumentError(
            f"metrics must be groups ({', '.join(groups)}) or names of metrics "
            f"({', '.join(sorted(known))}), got {unknown or list(metrics)}: correct the names"
        )
    for name in metrics:
        chosen += [n for n in groups.get(name, (name,)) if n not in chosen]
    return chosen
