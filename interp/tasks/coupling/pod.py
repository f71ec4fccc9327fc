"""A softmax average whose scores have a chosen rank (`coupling` §4.1, §4.3).

    y(t) = Σ_s softmax_s[ρ(x(t), x(s))] x(s),   ρ(u, v) = Σ_{k ≤ r} σ_k φ_k(u) ψ_k(v)

x is uniform on [0, 1], F and f are the identity, and the sum is the proper orthogonal decomposition
of ρ: φ and ψ are orthonormal bases and σ_k decreases. A model whose heads have width m_h has scores
of rank at most m_h, so its error should vanish at m_h = r. A small error says that the model
computes the average, not that its scores are ρ: a softmax does not depend on what is constant along
a row.

*Bases* are orthonormal in L²[0, 1]:

    sine          φ_k(x) = √2 sin(2πkx)              cosine    φ_k(x) = √2 cos(2πkx)
    legendre      φ_k(x) = √(2k+1) P_k(2x − 1)       k = 1, 2, …

All have mean zero, so a coupling Σ σ_k φ_k(u) ψ_k(v) has none of the row shifts that a softmax
ignores. With sines on both sides and σ_k = k^{−α} the infinite sum has a closed form:

    ρ(u, v) = C_α(u − v) − C_α(u + v),   C_α(x) = Σ_k k^{−α} cos(2πkx),
    C_1(x) = −log(2 |sin πx|),
    C_α(x) = Γ(1−α) sin(πα/2) (2πx)^{α−1} + Σ_j (−1)^j ζ(α − 2j) (2πx)^{2j} / (2j)!,  0 < x ≤ 1/2.

For α ≤ 1 it is infinite at u = v: a position that may attend to itself then attends to nothing
else, and the target is the input. Use it with positions that do not attend to themselves, or a
finite rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import pi, sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import Problems
from interp.tasks.base import Batch, sampler
from interp.tasks.counterfactual import Variable

_CLOSEST = 2.0**-26
"""Least distance of two points at which the coupling is evaluated; closer points are treated as
this far apart. It is 2^-26, the float32 spacing just below 1/2."""

_TERMS = 40


@dataclass(frozen=True)
class Basis:
    """An orthonormal basis φ_1, φ_2, … on [0, 1].

    Attributes:
        values: A function of x ``[...]`` and a count to float64 φ_1 … φ_count at x, ``[...,
            count]``.
        largest: A function from k to sup |φ_k|.
        curvature: A function from k to a bound on |φ_k″|.
        polynomial: Whether quadrature is Gauss–Legendre, which is exact, rather than equally
            spaced.
    """

    values: Callable[[Tensor, int], Tensor]
    largest: Callable[[int], float]
    curvature: Callable[[int], float]
    polynomial: bool = False

    def quadrature(self, degree: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return nodes and weights on [0, 1], exact for products of basis functions of summed order
        up to ``degree``."""
        if self.polynomial:
            nodes, weights = np.polynomial.legendre.leggauss(degree // 2 + 1)
            return (nodes + 1) / 2, weights / 2
        count = degree + 1
        return (np.arange(count) + 0.5) / count, np.full(count, 1 / count)


def _sines(x: Tensor, count: int) -> Tensor:
    k = torch.arange(1, count + 1, dtype=torch.float64, device=x.device)
    return sqrt(2) * torch.sin(2 * pi * x.double()[..., None] * k)


def _cosines(x: Tensor, count: int) -> Tensor:
    k = torch.arange(1, count + 1, dtype=torch.float64, device=x.device)
    return sqrt(2) * torch.cos(2 * pi * x.double()[..., None] * k)


def _legendre(x: Tensor, count: int) -> Tensor:
    """Return the Legendre basis, by the recurrence (k + 1) P_{k+1} = (2k + 1) z P_k − k P_{k−1}."""
    z = 2 * x.double() - 1
    found = [torch.ones_like(z), z]
    for k in range(1, count):
        found.append(((2 * k + 1) * z * found[k] - k * found[k - 1]) / (k + 1))
    return torch.stack([sqrt(2 * k + 1) * found[k] for k in range(1, count + 1)], dim=-1)


def _legendre_curvature(k: int) -> float:
    """Return sup |φ_k″|: d²/dx² = 4 d²/dz², and |P_k″| is largest at z = ±1: (k−1) k (k+1) (k+2) /
    8."""
    return 4 * sqrt(2 * k + 1) * (k - 1) * k * (k + 1) * (k + 2) / 8


def _wave_curvature(k: int) -> float:
    return sqrt(2) * (2 * pi * k) ** 2


BASES: dict[str, Basis] = {
    "sine": Basis(_sines, lambda k: sqrt(2), _wave_curvature),
    "cosine": Basis(_cosines, lambda k: sqrt(2), _wave_curvature),
    "legendre": Basis(_legendre, lambda k: sqrt(2 * k + 1), _legendre_curvature, polynomial=True),
}


def infinite_sine_coupling(
    u: Float64[Tensor, "..."], v: Float64[Tensor, "..."], alpha: float
) -> Float64[Tensor, "..."]:
    """Return Σ_{k ≥ 1} k^{−α} · √2 sin(2πku) · √2 sin(2πkv), for 1/2 < α < 2.

    Values of u and v that are closer than 2^{−26} count as 2^{−26} apart, so that the result is
    finite.
    """
    return _cosine_sum(u - v, alpha) - _cosine_sum(u + v, alpha)


def _cosine_sum(x: Tensor, alpha: float) -> Tensor:
    """Return C_α at any real x, by period and symmetry."""
    x = (x - x.round()).abs().clamp_min(_CLOSEST)
    if alpha == 1:
        return -torch.log(2 * torch.sin(pi * x))
    singular, regular = _coefficients(alpha)
    angle = 2 * pi * x
    square, total = angle**2, torch.zeros_like(x)
    for coefficient in reversed(regular):
        total = total * square + coefficient
    return singular * angle ** (alpha - 1) + total


@lru_cache(maxsize=16)
def _coefficients(alpha: float) -> tuple[float, tuple[float, ...]]:
    """Return the coefficients of (2πx)^{α−1} and of (2πx)^{2j}; at x = 1/2 term j is of order
    4^{−j}."""
    import mpmath  # a seventh of a second, for this coupling alone

    singular = mpmath.gamma(1 - alpha) * mpmath.sin(mpmath.pi * alpha / 2)
    regular = [
        (-1) ** j * mpmath.zeta(alpha - 2 * j) / mpmath.factorial(2 * j) for j in range(_TERMS)
    ]
    return float(singular), tuple(float(value) for value in regular)


_CHUNK, _NAMED = 512, 16


@dataclass(frozen=True)
class PodCoupling:
    """Softmax averages under a coupling with chosen singular values and bases.

    Attributes:
        rank: The number r of terms in the sum, or ``infinite`` (sines on both sides, σ_k = k^{−α},
            in closed form).
        alpha: The exponent of the singular values, σ_k = k^{−alpha}. It must exceed 1/2, and stay
            below 2 for an infinite rank.
        sigmas: The singular values σ_1 ≥ σ_2 ≥ … > 0 themselves, in place of ``alpha``; ``rank``
            must then be their number.
        left, right: The bases of φ and of ψ: ``sine``, ``cosine`` or ``legendre``.
        mask_self: Whether a position is left out of its own average. An infinite rank with alpha ≤
            1 needs this, because ρ(u, u) is infinite.
        features: How many exact basis functions φ_1 … φ_n (and ψ_1 … ψ_n if the bases differ) the
            model gets as inputs beside x, as a fixed feature map; 0 for none.
        length: Positions of a row.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    rank: int | str = 2
    alpha: float = 1.0
    sigmas: tuple[float, ...] = ()
    left: str = "sine"
    right: str = "sine"
    mask_self: bool = False
    features: int = 0
    length: int = 16

    def __post_init__(self) -> None:
        problems = Problems("PodCoupling")
        need, infinite = problems.need, self.rank == "infinite"
        whole = isinstance(self.rank, int) and not isinstance(self.rank, bool) and self.rank >= 1
        need(whole or infinite, "rank", "must be at least 1 or 'infinite'", self.rank, "e.g. 2")
        need(self.alpha > 0.5, "alpha", "must exceed 1/2", self.alpha, "σ must be square-summable")
        for name in ("left", "right"):
            value, rule = getattr(self, name), f"must be one of {', '.join(BASES)}"
            need(value in BASES, name, rule, value, "pick one")
        falls = list(self.sigmas) == sorted(self.sigmas, reverse=True)
        good = falls and all(s > 0 for s in self.sigmas)
        need(good, "sigmas", "must be positive and fall", self.sigmas, "sort them, largest first")
        counted = not self.sigmas or len(self.sigmas) == self.rank
        need(counted, "rank", f"must be the number of sigmas {len(self.sigmas)}", self.rank, "set")
        if infinite:
            sines = self.left == self.right == "sine"
            bases = (self.left, self.right)
            need(sines, "left", "must be sine on both sides at infinite rank", bases, "or cut it")
            need(self.alpha < 2, "alpha", "must be below 2 at infinite rank", self.alpha, "cut it")
            rule = "must be true at infinite rank with alpha ≤ 1: ρ(u, u) is infinite"
            finite = self.mask_self or self.alpha > 1
            need(finite, "mask_self", rule, self.mask_self, "set it, or give a finite rank")
        need(self.features >= 0, "features", "must not be negative", self.features, "0 is none")
        need(self.length >= 2, "length", "must be at least 2", self.length, "an average needs two")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``pod-coupling-2``."""
        ends = ["others"] * self.mask_self + ["features"] * bool(self.features)
        return "-".join(["pod-coupling", str(self.rank), *ends])

    @property
    def d_in(self) -> int:
        """Number of input channels: x and the features."""
        return 1 + self.features * (1 if self.left == self.right else 2)

    @property
    def n_recorded(self) -> int:
        """Number of basis functions that are recorded as latents: the rank, but at most 16."""
        return _NAMED if self.rank == "infinite" else min(int(self.rank), _NAMED)

    def sigma(self, count: int) -> Float64[Tensor, " count"]:
        """Return the singular values σ_1 … σ_count, zero beyond the rank."""
        k = torch.arange(1, count + 1, dtype=torch.float64)
        if self.sigmas:
            found = torch.zeros(count, dtype=torch.float64)
            known = torch.tensor(self.sigmas[:count], dtype=torch.float64)
            found[: len(known)] = known
            return found
        return k**-self.alpha * (k <= (count if self.rank == "infinite" else int(self.rank)))

    def coupling(
        self, u: Float[Tensor, "*batch query"], v: Float[Tensor, "*batch key"], rank: int = 0
    ) -> Float64[Tensor, "*batch query key"]:
        """Return ρ(u, v) in float64; with ``rank`` > 0 only the sum of its first ``rank`` terms."""
        u, v = u.double(), v.double()
        if self.rank == "infinite" and rank == 0:
            queries, keys = torch.broadcast_tensors(u[..., :, None], v[..., None, :])
            return infinite_sine_coupling(queries, keys, self.alpha)
        limit = rank or int(self.rank)
        total = u.new_zeros((*u.shape, v.shape[-1]))
        sigma = self.sigma(limit).to(u.device)
        for start in range(0, limit, _CHUNK):
            stop = min(start + _CHUNK, limit)
            phi = BASES[self.left].values(u, stop)[..., start:]
            psi = BASES[self.right].values(v, stop)[..., start:]
            total = total + (phi * sigma[start:stop]) @ psi.mT
        return total

    def attention(
        self, coupling: Float64[Tensor, "*batch pos pos"]
    ) -> Float64[Tensor, "*batch pos pos"]:
        """Return the softmax over each row of a coupling, without the diagonal if ``mask_self`` is
        set."""
        if self.mask_self:
            itself = torch.eye(coupling.shape[-1], dtype=torch.bool, device=coupling.device)
            coupling = coupling.masked_fill(itself, -torch.inf)
        return coupling.softmax(dim=-1)

    def average(
        self, x: Float[Tensor, "*batch pos"], rank: int = 0
    ) -> Float64[Tensor, "*batch pos"]:
        """Return the targets y for inputs x; with ``rank`` > 0, under the coupling truncated to
        that many terms."""
        attention = self.attention(self.coupling(x, x, rank))
        return (attention @ x.double()[..., None])[..., 0]

    def inputs(self, x: Float[Tensor, "*batch pos"]) -> Float[Tensor, "*batch pos channel"]:
        """Return the model's inputs for the values x: x itself, then the basis functions as
        features."""
        parts = [x[..., None]]
        if self.features:
            names = dict.fromkeys((self.left, self.right))
            parts += [BASES[name].values(x, self.features).to(x.dtype) for name in names]
        return torch.cat(parts, dim=-1)

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, d_in]``, targets ``[batch, pos, 1]``.

        Latents: ``x``, ``coupling`` ρ(x(t), x(s)) ``[batch, query, key]`` (0 at a masked position),
        ``attention``, its softmax, and ``phi[k]``, ``psi[k]`` [batch, pos], the bases at x for k up
        to :attr:`n_recorded`.
        """
        x = torch.rand(n, self.length, generator=torch.Generator().manual_seed(seed))
        coupling = self.coupling(x, x)
        attention = self.attention(coupling)
        y = (attention @ x.double()[..., None]).float()
        if self.mask_self:
            coupling = coupling * (1 - torch.eye(self.length, dtype=torch.float64))
        latents = {"x": x, "coupling": coupling.float(), "attention": attention.float()}
        for letter, basis in (("phi", self.left), ("psi", self.right)):
            values = BASES[basis].values(x, self.n_recorded).float()
            latents |= {f"{letter}[{k + 1}]": values[..., k] for k in range(self.n_recorded)}
        scored = torch.ones(n, self.length, dtype=torch.bool)
        return Batch(self.inputs(x), y, scored, latents).to(device)

    def variables(self) -> Iterator[Variable]:
        """Yield the variables of the task: ``attention``, the average's weights at a position, and
        the average ``y`` itself."""
        yield Variable("attention", _answer_if_attention, role="dense")
        yield Variable("y", lambda base, source: source.targets)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "pod_coupling", **asdict(self)}


def _answer_if_attention(base: Batch, source: Batch) -> Tensor:
    return (source.latents["attention"] @ base.latents["x"][..., None]).to(base.targets.dtype)
