"""Affine forms: the possible values of a quantity, as a linear function of shared noise symbols.

    x = c + Σ_k g_k ε_k + ρ,    ε_k ∈ [−1, 1] shared by all quantities,  |ρ| ≤ r its own

c is the centre, g_k the generators, r the radius. Linear maps keep the dependence on ε exact, so
what cancels in the model cancels in the bound; intervals would add it up. A nonlinear function is
replaced by a linear one and a new symbol for the rest (:mod:`interp.bounds.network`).

*Soundness.* Say that a form contains a number if the equation holds for some ε. Each function here
returns a form that contains the operation's real result and every rounded one, whenever its
arguments contained theirs, with the same values of the old symbols: what the operation's own
rounding, and ours, can add (below) is put into the radius. By induction over the operations, this
holds for a model.

All arrays are float64; ``centre`` and ``radius`` are ``[*shape]``, ``generators`` ``[symbol,
*shape]``. Forms of one computation share one :class:`~interp.bounds.affine.Arithmetic`; a form with
fewer generators has zeros for the rest.

A wide bound shows nothing about the model: only that this cover of the domain did not suffice.

*Rounding* is how far a floating-point computation can be from the real number that it approximates.
Two things are rounded: the *model*, which is evaluated in its own dtype, and *our own* arithmetic
in float64. For a sum of n products in any order, with or without fused operations,

    |computed − real| ≤ γ_n Σ|a_i||b_i|,    γ_n = n u / (1 − n u)

with u the unit roundoff (Higham, *Accuracy and Stability of Numerical Algorithms*, §3.1). Every
operation of :mod:`interp.bounds.affine` adds γ_n for both to the radius of its result. So a bound
holds for the model as a real function of its stored weights *and* for every evaluation of it in its
dtype or a wider one, in any order of summation.

Functions are less exact than sums. A library's e^x is assumed to be within :data:`EXP` units, since
torch's vectorised softmax only promises 20 units in the last place (its float32 softmax was
measured 68 units from the real one).

Not covered: TF32 or bfloat16 multiplication inside a float32 model, and results that overflow (the
bound is then infinite). Underflow adds at most the smallest normal number of the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nextafter

import numpy as np
from jaxtyping import Float, Float64

UP = 1.0 + 2.0**-36
"""Factor that turns a float64 sum of at most 2^15 non-negative numbers into an upper bound of the
exact sum. The relative rounding error of such a sum is below 2^15 · 2^-53 = 2^-38."""

EXP = 48
"""Assumed largest relative error of a library's e^x, in units of roundoff. torch's vectorised
softmax promises 20 units in the last place, which are up to 40 units of roundoff."""

DTYPES = {
    "float64": (2.0**-53, 2.0**-1022, 2.0**1023),
    "float32": (2.0**-24, 2.0**-126, 2.0**127),
    "real": (0.0, 0.0, inf),
}
"""Dtype → (unit roundoff, smallest normal number, largest size of a number for which bounds are
given). ``real`` stands for the model as a function of real numbers: then only the rounding of the
bound's own computation is covered."""

_OURS, _TINY = 2.0**-53, 2.0**-1020


def gamma(n: int, u: float) -> float:
    """Return γ_n = n u / (1 − n u), rounded up; infinite if n u ≥ ½."""
    return inf if n * u >= 0.5 else n * u / (1 - n * u) * UP


def share(right: int, total: int) -> float:
    """Return right/total of whole numbers, rounded down; 1 only if they are equal."""
    return 1.0 if right == total else max(0.0, nextafter(right / total, 0.0))


@dataclass
class Arithmetic:
    """The arithmetic whose rounding a bound covers, and how much work was done for it.

    Attributes:
        dtype: The arithmetic in which the model is evaluated, one of :data:`DTYPES`.
        multiplications: The number so far, of centres and generators. The sums of absolute values
            that bound the rounding are not counted.
        symbols: The number of noise symbols made so far.
        budget: The most float64 numbers that the generators of one form may have; beyond that, new
            noise is put into the radius.
    """

    dtype: str = "real"
    multiplications: int = 0
    symbols: int = 0
    budget: int = 2**24

    def error(
        self, n: int, magnitude: Float64[np.ndarray, "*shape"]
    ) -> Float64[np.ndarray, "*shape"]:
        """Return the largest error of n rounded operations on terms of this total size.

        ``magnitude`` is Σ|a_i||b_i| for a sum of products, |y| for n operations on one number.
        """
        unit, tiny, most = DTYPES[self.dtype]
        relative = gamma(n, unit) + gamma(n, _OURS)
        off = magnitude * (relative * UP) + n * (tiny + _TINY)
        known = magnitude <= most
        return np.asarray(off if known.all() else np.where(known, off, inf))


Array = Float64[np.ndarray, "..."]


@dataclass(frozen=True)
class Affine:
    """An array of affine forms, one for each entry of ``centre``.

    Attributes:
        centre: The centres c, ``[*shape]``.
        generators: The generators g, ``[symbol, *shape]``.
        radius: The radii r ≥ 0, ``[*shape]``.
    """

    centre: Array
    generators: Array
    radius: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the quantities."""
        return self.centre.shape

    @property
    def deviation(self) -> Array:
        """Σ|g_k| + r, rounded up: no value is further from the centre."""
        if not len(self.generators):
            return self.radius
        up = UP + len(self.generators) * 2.0**-52  # however many symbols there are
        return (np.abs(self.generators).sum(0) + self.radius) * up

    @property
    def magnitude(self) -> Array:
        """The largest absolute value, rounded up."""
        return (np.abs(self.centre) + self.deviation) * UP

    def bounds(self) -> tuple[Array, Array]:
        """Return the least and largest values, rounded outward; infinite where no bound is
        known."""
        centre, deviation = self.centre, self.deviation
        known = np.isfinite(centre) & np.isfinite(deviation)
        if not known.all():
            centre, deviation = np.where(known, centre, 0.0), np.where(known, deviation, np.inf)
        return (
            np.nextafter(centre - deviation, -np.inf),
            np.nextafter(centre + deviation, np.inf),
        )

    def __getitem__(self, index: object) -> Affine:
        """Return the forms at an index into their shape; the symbol axis is not indexed."""
        where = index if isinstance(index, tuple) else (index,)
        return Affine(
            self.centre[where], self.generators[(slice(None), *where)], self.radius[where]
        )

    def reshape(self, *shape: int) -> Affine:
        """Return the same forms in another shape."""
        centre = self.centre.reshape(shape)
        generators = self.generators.reshape(len(self.generators), *centre.shape)
        return Affine(centre, generators, self.radius.reshape(shape))


def exactly(values: Float[np.ndarray, "..."]) -> Affine:
    """Return forms of known numbers, without rounding: float32 values are float64 values too."""
    centre = np.asarray(values, dtype=np.float64)
    return Affine(centre, np.zeros((0, *centre.shape)), np.zeros(centre.shape))


def box(centre: Float64[np.ndarray, " cell *rest"], reach: Float64[np.ndarray, "*rest"]) -> Affine:
    """Return affine forms of numbers that may lie anywhere in [centre − reach, centre + reach].

    Each entry of ``reach`` that is not 0 has a noise symbol of its own, which all cells share;
    where it is 0, the number is exactly its centre.
    """
    free = np.flatnonzero(reach)
    noise = np.zeros((len(free), *centre.shape))
    noise.reshape(len(free), len(centre), reach.size)[np.arange(len(free)), :, free] = (
        reach.reshape(-1)[free, None]
    )
    return Affine(centre, noise, np.zeros(centre.shape))


def span(
    low: Float64[np.ndarray, "*shape"], high: Float64[np.ndarray, "*shape"], ar: Arithmetic
) -> Affine:
    """Return forms of independent quantities in [low, high], with a new symbol for each that is not
    a single number.

    Along the first axis (the cells of a cover) the symbols are shared, because cells are never
    compared.
    """
    centre = (low + high) / 2
    deviation = np.maximum(high - centre, centre - low) * UP
    return fresh(exactly(centre), np.where(high > low, deviation, 0.0), ar)


def fresh(a: Affine, deviation: Array, ar: Arithmetic) -> Affine:
    """Return ``a`` plus independent noise of at most ``deviation``, one new symbol for each
    quantity.

    Symbols are shared along the first axis, as in :func:`span`. When the budget is spent, the noise
    is put into the radius, which is sound too: a radius is noise that no other quantity shares.
    """
    deviation = np.where(np.isnan(deviation), np.inf, deviation)  # what is not known may be all
    kept = np.flatnonzero(deviation.reshape(len(deviation), -1).max(0, initial=0.0) > 0)
    cells, wide = len(deviation), int(np.prod(a.shape[1:]))
    if (ar.symbols + len(kept)) * cells * wide > ar.budget:
        return Affine(a.centre, a.generators, (a.radius + deviation) * UP)
    new = np.zeros((len(kept), cells, wide))
    new[np.arange(len(kept)), :, kept] = deviation.reshape(cells, -1)[:, kept].T
    old = pad_symbols(a.generators, ar.symbols)
    ar.symbols += len(kept)
    generators = np.concatenate((old, new.reshape(len(kept), *a.shape)))
    return Affine(a.centre, generators, a.radius)


def add(a: Affine, b: Affine, ar: Arithmetic) -> Affine:
    """Return a + b, with shapes broadcast; one rounding."""
    n = max(len(a.generators), len(b.generators))
    centre = a.centre + b.centre
    dims = centre.ndim
    generators = pad_symbols(add_axes(a.generators, dims), n) + pad_symbols(
        add_axes(b.generators, dims), n
    )
    size = (a.magnitude + b.magnitude) * UP
    radius = (a.radius + b.radius + ar.error(2, size)) * UP
    return Affine(centre, generators, np.broadcast_to(radius, centre.shape))


def subtract(a: Affine, b: Affine, ar: Arithmetic) -> Affine:
    """Return a − b, with shapes broadcast; one rounding."""
    return add(a, Affine(-b.centre, -b.generators, b.radius), ar)


def scale(a: Affine, factor: Float64[np.ndarray, "..."], ar: Arithmetic) -> Affine:
    """Return a · factor, for known factors that broadcast to the shape of ``a``; one rounding."""
    size = a.magnitude * np.abs(factor)
    ar.multiplications += a.centre.size * (1 + len(a.generators))
    radius = (a.radius * np.abs(factor) + ar.error(2, size * UP)) * UP
    return Affine(a.centre * factor, a.generators * factor, radius)


def linear(
    a: Affine,
    weight: Float64[np.ndarray, "n m"],
    bias: Float64[np.ndarray, " m"] | None,
    ar: Arithmetic,
) -> Affine:
    """Return x W + b along the last axis: n products and a bias, rounded in any order.

    The error is at most γ_{n+2} (Σ_i |x_i||W_ij| + |b_j|); the generators' own rounding is the same
    sum over the noise, which the magnitudes include.
    """
    n, m = weight.shape
    ar.multiplications += a.centre.size * m * (1 + len(a.generators))
    positive = np.abs(weight)
    size, centre = _times(a.magnitude, positive), _times(a.centre, weight)
    if bias is not None:
        size, centre = size + np.abs(bias), centre + bias
    radius = _times(a.radius, positive) + ar.error(n + 2, size * UP)
    return Affine(centre, _times(a.generators, weight), radius * UP)


def dot(a: Affine, b: Affine, ar: Arithmetic) -> Affine:
    """Return Σ_i a_i b_i along the last axis, with the other axes broadcast.

    With a = c + n, b = d + m (n and m the noise), ab = cd + cm + dn + nm; the first three are an
    affine form and |nm| ≤ deviation(a) · deviation(b) is put into the radius.
    """
    n, dims = a.shape[-1], max(len(a.shape), len(b.shape))
    symbols = max(len(a.generators), len(b.generators))
    c, d = a.centre, b.centre
    centre = (c * d).sum(-1)
    ar.multiplications += centre.size * n * (1 + 2 * symbols)
    ga = (add_axes(a.generators, dims) * d).sum(-1)
    gb = (add_axes(b.generators, dims) * c).sum(-1)
    generators = pad_symbols(ga, symbols) + pad_symbols(gb, symbols)
    noise = (a.deviation * b.deviation).sum(-1)
    noise = noise + (a.radius * np.abs(d)).sum(-1) + (b.radius * np.abs(c)).sum(-1)
    size = (a.magnitude * b.magnitude).sum(-1)
    radius = (noise * UP + ar.error(n + 4, size * UP)) * UP
    return Affine(centre, generators, np.broadcast_to(radius, centre.shape))


def _times(x: Array, weight: Float64[np.ndarray, "n m"]) -> Array:
    """Return x W as one product of two matrices; a stack of small products would be slow."""
    n, m = weight.shape
    return (x.reshape(-1, n) @ weight).reshape(*x.shape[:-1], m)


def add_axes(generators: Array, dims: int) -> Array:
    """Insert axes of length 1 after the first axis, so that generators can be broadcast.

    Args:
        generators: Generators of an affine form, ``[symbol, *shape]``.
        dims: How many axes shall follow the symbol axis.

    Returns:
        The same numbers, ``[symbol, 1, …, 1, *shape]``.
    """
    missing = dims - (generators.ndim - 1)
    return generators.reshape(len(generators), *(1,) * missing, *generators.shape[1:])


def pad_symbols(generators: Array, symbols: int) -> Array:
    """Append zero generators for the symbols that a form does not have, up to ``symbols``."""
    missing = symbols - len(generators)
    if missing <= 0:
        return generators
    return np.concatenate((generators, np.zeros((missing, *generators.shape[1:]))))
