"""The nulls of weight metrics: their values if a head's directions meant nothing.

**The null.** Keep the singular values σ of a circuit M (n × n) and turn its input and output
bases by independent uniformly random rotations: M → U M Vᵀ. Norms, rank and spectrum are those of
the head; only the relation between what is read and what is written is lost. With S2 = Σσ² = ‖M‖²
and S4 = Σσ⁴, moments of orthogonal matrices give, exactly for every n ≥ 2,

    E tr M = 0,                        Var tr M = S2/n,  hence Var trace share = 1/n²
    E Σ M_ii² = S2/n,                  Var by :func:`diagonal_energy_variance`
    E Σ_{i≠j} M_ij = 0,                Var = S2 (1 − 1/n), uncorrelated with the trace
    E tr M² = S2/n,                    Var tr M² → 2 S2²/n²

and the delta method gives the metrics that are ratios or roots of these. The copying score is
tr M / Σ|λ|: Σ|λ| barely varies and is :func:`mean_modulus`.

Metrics of the spectrum do not move under rotations: for them the null is two Gaussian factors of
the same shapes and norms, sampled once a shape (:class:`SpectrumNull`, Bartlett's decomposition:
r × r numbers a draw whatever n is).

**p** is :mod:`interp.stats.p_values`'s: where the moments are exact, the two-sided tail of a normal
distribution for signed metrics and the upper tail of a gamma distribution for ratios and shares of
energy; where heads are drawn, that of the draws. Draws are pooled: heads of one shape are
exchangeable under the null (norms scale out), so one sample serves all of them, in all layers. The
least p is 1/(10 · draws), and the least q of a single head among m is then m/(10 · draws): to tell
one of many, draw more.

**What a small p does not establish.** That the head is special: nearly every trained head differs
from a random one. Look at the effect, and at what the head does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from interp.stats.p_values import Null, Tail, from_draws, from_moments
from interp.threads import workers

_AT_ONCE = 8
_MOST_WORKERS = 4


@dataclass(frozen=True)
class WeightNull:
    """The null distribution of a metric for one head.

    Attributes:
        mean, std: The mean and standard deviation, exact or of ``drawn``; NaN if the null is not
            defined for a circuit.
        tail: Which deviations count: ``gamma`` for large ratios and shares of energy.
        drawn: The metric's values for random heads, if the moments are not known exactly.
    """

    mean: float
    std: float
    tail: Tail = "two-sided"
    drawn: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, drawn: NDArray[np.float64], tail: Tail = "two-sided") -> WeightNull:
        """Make the null from a sample of random heads; undefined if some of their values
        overflowed."""
        if not np.isfinite(drawn).all():
            return cls(float("nan"), float("nan"), tail)
        return cls(float(drawn.mean()), float(drawn.std()), tail, drawn)

    def against(self, score: float) -> Null:
        """Return the null with the p-value of a head's score; the p-value is NaN if the null has no
        spread."""
        if not self.std > 0:
            return Null(self.mean, self.std, float("nan"), "rotations")
        if self.drawn is None:
            return from_moments(score, self.mean, self.std, name="rotations", tail=self.tail)
        return from_draws(score, self.drawn, name="factors", two_sided=self.tail == "two-sided")


def diagonal_energy_variance(n: int, energy: float, fourth: float) -> float:
    """Return the variance of Σ M_ii² over random rotations, for n ≥ 2.

    Σ_ij E[M_ii² M_jj²] with M_ii = Σ_k σ_k u_ik v_ik. U and V are independent, so every term is the
    square of a fourth moment of one orthogonal matrix: for i = j these are 3/(n(n+2)) (one column)
    and 1/(n(n+2)) (two columns); for i ≠ j they are 1/(n(n+2)) (one column), (n+1)/(n(n−1)(n+2))
    (each row its own column) and −1/(n(n−1)(n+2)) (columns crossed).

    Args:
        n: The width of the circuit.
        energy: Σσ².
        fourth: Σσ⁴.
    """
    pairs = energy**2 - fourth
    base = 1 / (n * (n + 2))
    same = (3 * pairs + 9 * fourth) * base**2
    apart = (n + 1) * base / (n - 1)
    crossed = base / (n - 1)
    differ = fourth * base**2 + pairs * (apart**2 + 2 * crossed**2)
    return max(n * same + n * (n - 1) * differ - (energy / n) ** 2, 0.0)


def mean_modulus(n: int, singular: NDArray[np.float64], points: int = 32) -> float:
    """Return Σ|λ| of S·W for W the corner of a random rotation, in the limit of large rank.

    S·W with W Gaussian of variance 1/n has a separable variance profile; the share g of its r
    eigenvalues beyond the radius s solves Σ_i σ_i² / (n s² + r g σ_i²) = 1 (the master equation of
    random matrices with a variance profile, which for this profile is a single equation). The mean
    modulus is ∫₀¹ s(g) dg, by Gauss-Legendre nodes and bisection on s².

    Args:
        n: The width of the circuit.
        singular: The singular values σ, the diagonal of S.
        points: The number of Gauss-Legendre nodes.
    """
    squares = singular[singular > singular[0] * 1e-12] ** 2
    if not len(squares):
        return 0.0
    r = len(squares)
    nodes, weights = np.polynomial.legendre.leggauss(points)
    g, weights = (nodes + 1) / 2, weights / 2
    low, high = np.zeros(points), np.full(points, squares.sum() / n)
    for _ in range(60):
        middle = (low + high) / 2
        beyond = (squares / (n * middle[:, None] + r * g[:, None] * squares)).sum(-1) > 1
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return float(r * (weights * np.sqrt(high)).sum())


@dataclass(frozen=True)
class SpectrumNull:
    """Monte Carlo null of the singular values of L Rᵀ for random factors L and R.

    L and R have shape [n, r] and independent standard normal entries, and each is divided by its
    Frobenius norm. The draws are made when :attr:`singular` is first read.

    Args:
        n, r: the shape of each factor.
        draws: how many pairs of factors to draw.
        seed: seed of the random draws.
    """

    n: int
    r: int
    draws: int = 1000
    seed: int = 0

    @cached_property
    def singular(self) -> NDArray[np.float64]:
        """The singular values of every draw, [draw, min(n, r)], largest first."""
        rng = np.random.default_rng((self.seed, self.n, self.r))
        found: list[NDArray[np.float64]] = []
        side_by_side = min(_MOST_WORKERS, torch.get_num_threads())
        with workers(side_by_side) as pool:
            for start in range(0, self.draws, side_by_side * _AT_ONCE):
                stop = min(self.draws, start + side_by_side * _AT_ONCE)
                sizes = [min(_AT_ONCE, stop - k) for k in range(start, stop, _AT_ONCE)]
                drawn = [(self._roots(rng, size), self._roots(rng, size)) for size in sizes]
                found += pool.map(_singular, drawn)
        return np.concatenate(found)[:, : min(self.n, self.r)]

    def _roots(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw [count, r, r] matrices T such that TᵀT is distributed as GᵀG for Gaussian G [n, r].

        For n < r the matrices have the shape [count, n, r].
        """
        if self.n < self.r:
            return rng.standard_normal((count, self.n, self.r))
        roots = np.zeros((count, self.r, self.r))
        above, i = np.triu_indices(self.r, 1), np.arange(self.r)
        roots[:, above[0], above[1]] = rng.standard_normal((count, len(above[0])))
        roots[:, i, i] = np.sqrt(rng.chisquare(self.n - i, (count, self.r)))
        return roots


def _singular(factors: tuple[NDArray[np.float64], NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the singular values [draw, r] of the products, for factors of norm 1."""
    left, right = factors
    norms = np.linalg.norm(left, axis=(1, 2)) * np.linalg.norm(right, axis=(1, 2))
    product = torch.from_numpy(left) @ torch.from_numpy(right).mT
    return np.asarray(torch.linalg.svdvals(product).numpy() / norms[:, None])
