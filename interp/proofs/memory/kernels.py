"""The constructive proof for `memory` Task III, and for Task I with real readouts (§1.4).

    attention   kernel ρ_i has H dot-product-free heads, Σ_h a_h e^{−p_h φ(s)} ≈ ρ_i(s); they write
                (ρ_i * x)(t) into its own slot. A lag T is the kernel 1[s = T].
    FFN         f, a ReLU network

    |output − y| ≤ L √(Σ_i ε_i²) + E_FFN + rounding,   L the readout's Lipschitz constant (or a
                   sum over the network's weights, if that is less)
    ε_i = B max_t Σ_{s ≤ t} |ρ_i(s) − Σ_h a_h (Z_∞/Z_t) e^{−p_h φ(s)}| + rounding,   |x| ≤ B

Without a normaliser Z_∞/Z_t is 1. A softmax divides each head by Z_t = Σ_{s ≤ t} e^{−p φ(s)}, and
its coefficient is multiplied by the limit Z_∞. At early positions Z_t is still far from its limit,
so the certificate holds from the task's burn-in on. The sum over s is finite, and computed in
extended precision. Inputs beyond B are outside of the domain: no bound on unbounded inputs exists.

*The fit* of a kernel on the lags of a row, by a sum of H exponentials or powers, is fast and in
float64:

    minimise   Σ_s |ρ(s) − Σ_h a_h e^{−p_h φ(s)}| + price · Σ_h |a_h| Σ_s e^{−p_h φ(s)}

by iteratively reweighted least squares on a searched grid of slopes. Kernels are smooth, so unlike
lags they need no cancellation beyond float64. The certificate does not rely on the fit's own error:
it evaluates the stored numbers lag by lag.

*Lipschitz readouts* of real arguments as ReLU networks (`memory` §1.2, §1.4):

    single, mean   one linear form, ⟨w, u⟩ = relu(⟨w, u⟩) − relu(−⟨w, u⟩)            exact
    maximum        max(m, u_k) = relu(m − u_k) + u_k, one hidden layer an argument   exact
    network        its own sixteen neurons                                           exact
    waves          sin, piecewise linear between knots Δ apart: error at most Δ²/8 inside the knots

The error of the inexact one is E_FFN of the theorems. Errors of the arguments are passed on, times
the readout's Lipschitz constant: they cannot be removed, because there is no margin between reals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, Literal, get_args

import mpmath
import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import minimize

from interp.errors import Problems
from interp.models.ffn import FFN
from interp.models.transformer import SequenceTransformer
from interp.proofs.lagfits import (
    DIGITS,
    Positions,
    errors_so_far,
    grid,
    phi_values,
    tail,
)
from interp.proofs.mechanism import Certificate, Construction, Mechanism
from interp.proofs.memory.one_layer import HeadGroup, one_layer
from interp.proofs.memory.rounding import Summation, read_error, select_lag, sum_rounding
from interp.tasks.memory import KernelMemory, RealMemory
from interp.tasks.memory.readouts import Readout

_KNOTS_APART = 0.1
Layer = tuple[Float64[np.ndarray, "_ _"], Float64[np.ndarray, " _"]]


@dataclass(frozen=True)
class ReluNet:
    """A ReLU network with a linear output.

    Attributes:
        hidden: (weights ``[reads, neurons]``, biases ``[neurons]``) of each hidden layer.
        out: The weights of the output, ``[neurons]``.
        bias: The bias of the output.
        error: A bound on |network − f| on the box that it was made for.
    """

    hidden: tuple[Layer, ...]
    out: Float64[np.ndarray, " neurons"]
    bias: float = 0.0
    error: float = 0.0

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of neurons in each hidden layer."""
        return tuple(len(b) for _, b in self.hidden)

    def output_error_bound(self, errors: Sequence[float], lipschitz: float) -> float:
        """Return a bound on the output's error if argument i has an error of at most ``errors[i]``.

        The bound is L ‖errors‖₂ with L = ``lipschitz``. With one hidden layer it is Σ_i errors_i
        S_i if that is less, because |∂f/∂u_i| is at most S_i. For S_i, multiply each neuron's
        weight from u_i by its output weight, sum the positive and the negative products separately,
        and take the larger absolute value.
        """
        whole = lipschitz * float(np.linalg.norm(errors))
        if len(self.hidden) > 1:
            return whole
        slopes = self.hidden[0][0] * self.out
        steepest = np.maximum(slopes.clip(min=0).sum(1), (-slopes).clip(min=0).sum(1))
        return min(whole, float(np.array(errors) @ steepest))

    def write(self, ffn: FFN, reads: Sequence[int], slot: int) -> None:
        """Write the network into an FFN of these widths; it reads the coordinates ``reads`` and
        adds to ``slot``."""
        inner: list[Any] = list(ffn.hidden)
        layers = [(layer.W, layer.b) for layer in inner] + [(ffn.W_in, ffn.b_in)]
        rows = list(reads)
        for (W, b), (weights, biases) in zip(layers, self.hidden, strict=True):
            W[rows] = torch.from_numpy(weights).to(W.dtype)
            b.copy_(torch.from_numpy(biases))
            rows = list(range(len(biases)))
        ffn.W_out[:, slot] = torch.from_numpy(self.out).to(ffn.W_out.dtype)
        ffn.b_out[slot] = self.bias

    def rounding(
        self, sizes: Sequence[float], unit: float, *, width: int = 0, reach: float = 0.0
    ) -> float:
        """Return a bound on the output's rounding error.

        Args:
            sizes: Bounds on the absolute values of the arguments.
            unit: The unit roundoff of the floating-point format.
            width: Width of the residual stream, if the basis is a rotated one.
            reach: Bound on the residual stream's norm, in the same case.
        """
        size, off = np.array(sizes, dtype=np.float64), np.zeros(len(sizes))
        for number, (weights, biases) in enumerate(self.hidden):
            absolute = np.abs(weights)
            passed = off @ absolute
            size = size @ absolute + np.abs(biases)
            off = passed + (len(weights) + 4) * unit * size
            if width and number == 0:
                off = off + read_error(width) * unit * reach * np.sqrt((weights**2).sum(0))
        out = np.abs(self.out)
        total = float(size @ out) + abs(self.bias) + reach
        return float(off @ out) + (len(self.out) + 6 + 2 * width) * unit * total


def readout_net(readout: Readout, sizes: Sequence[float]) -> ReluNet:
    """Return a ReLU network that computes a real readout.

    Args:
        readout: One of :data:`~interp.tasks.memory.readouts.REAL`.
        sizes: Bounds on its arguments' absolute values, within which the network's ``error`` holds.
    """
    n = readout.n
    if readout.name == "maximum":
        return _maximum(n)
    if readout.name == "network":
        weights, bias, signs = (part.double().numpy() for part in readout.neurons())
        return ReluNet(((weights, bias),), signs / len(signs))
    if readout.name == "waves":
        return _waves(readout.frequency / sqrt(n), sizes)
    form = np.full(n, 1 / n) if readout.name == "mean" else np.eye(n)[-1]
    return ReluNet(((np.stack([form, -form], axis=1), np.zeros(2)),), np.array([1.0, -1.0]))


def _maximum(n: int) -> ReluNet:
    """Return the maximum's network: one argument per layer; later ones are carried as relu(u) and
    relu(−u)."""
    hidden: list[Layer] = []
    now = np.eye(n)
    for _ in range(max(n - 1, 1)):
        first, second, rest = now[:, 0], now[:, -1] if n == 1 else now[:, 1], now[:, 2:]
        carried = [column for u in (second, *rest.T) for column in (u, -u)]
        weights = np.stack([first - second, *carried], axis=1)
        hidden.append((weights, np.zeros(weights.shape[1])))
        pairs = (weights.shape[1] - 1) // 2
        back = np.zeros((weights.shape[1], pairs))
        back[0, 0] = 1
        for k in range(pairs):
            back[1 + 2 * k, k], back[2 + 2 * k, k] = 1, -1
        now = back
    return ReluNet(tuple(hidden), now[:, 0])


def _waves(factor: float, sizes: Sequence[float]) -> ReluNet:
    """Return a piecewise linear interpolation of sin(z), z = factor · Σ u."""
    n, far = len(sizes), factor * sum(sizes)
    count = ceil(2 * far / _KNOTS_APART)
    knots = np.linspace(-far, far, count + 1)
    slopes = np.diff(np.sin(knots)) / np.diff(knots)
    bends = np.diff(slopes, prepend=0.0)
    weights = np.full((n, count), factor)
    apart = 2 * far / count
    return ReluNet(((weights, -knots[:-1]),), bends, float(np.sin(-far)), apart**2 / 8)


_ROUNDS = 12
_STARTS = ((-4.0, 0.0), (-2.0, 0.0), (0.0, 0.0), (2.0, 0.0), (2.0, 1.0), (4.0, 1.0))


@dataclass(frozen=True)
class HeadSum:
    """The heads of one memory: the slopes and coefficients of a sum.

    Attributes:
        slopes: The slopes p_h, ``[head]``.
        coefficients: The coefficients a_h, ``[head]``.
    """

    slopes: Float64[np.ndarray, " head"]
    coefficients: Float64[np.ndarray, " head"]


def fit_kernel(
    values: Float64[np.ndarray, " lag"], heads: int, positions: Positions, *, price: float = 1e-13
) -> HeadSum:
    """Return the best sum found for ``values`` at lags 0, 1, ….

    Args:
        values: The kernel ρ on the lags of a row, ``[lag]``.
        heads: The number of terms H.
        positions: ``lin`` or ``log``.
        price: The weight of Σ_h |a_h| Σ_s e^{−p_h φ(s)} in the objective.
    """
    phi = phi_values(positions, np.arange(len(values), dtype=np.float64))

    def solve_at(at: Float64[np.ndarray, " two"]) -> tuple[float, HeadSum]:
        slopes = grid(positions, heads, float(at[0]), float(at[1]))
        return _solve(values, np.exp(-np.outer(phi, slopes)), slopes, price)

    def value(at: Float64[np.ndarray, " two"]) -> float:
        return solve_at(at)[0]

    start = min((np.array(place) for place in _STARTS), key=value)
    simplex = start + np.array([[0.0, 0.0], [0.8, 0.0], [0.0, 0.4]])
    options = {"maxfev": 80, "xatol": 1e-3, "fatol": 0.0, "initial_simplex": simplex}
    return solve_at(minimize(value, start, method="Nelder-Mead", options=options).x)[1]


def _solve(
    values: Float64[np.ndarray, " lag"],
    powers: Float64[np.ndarray, "lag head"],
    slopes: Float64[np.ndarray, " head"],
    price: float,
) -> tuple[float, HeadSum]:
    """Return the value of the objective and the best sum, for given slopes."""
    masses = powers.sum(0)
    columns, weights = powers / masses, np.ones(len(values))
    best = (np.inf, np.zeros_like(slopes))
    for step in range(_ROUNDS):
        scaled, wanted = columns * weights[:, None], values * weights
        b = np.linalg.lstsq(scaled, wanted, rcond=1e-13)[0]
        errors = np.abs(values - columns @ b)
        total = float(errors.sum() + price * np.abs(b).sum())
        if total < best[0]:
            best = (total, b / masses)
        weights = 1 / np.sqrt(np.hypot(errors, errors.mean() * 0.5**step + 1e-300))
    return best[0], HeadSum(slopes, best[1])


Normalizer = Literal["none", "softmax"]
_UNIT = 2.0**-53
_SHARE = 0.25


def construct_kernel_memory(
    task: KernelMemory | RealMemory,
    *,
    heads: int = 6,
    positions: Positions = "lin",
    normalizer: Normalizer = "none",
    largest: float = 6.0,
) -> Construction:
    """Build a float64 model with one layer of dot-product-free attention that computes the task.

    Args:
        task: A task with kernels, or with lags and a real readout.
        heads: Number of heads per kernel; a lag T always has T + 1.
        positions: ``lin`` (exponentials) or ``log`` (powers); lags have ``lin``.
        normalizer: ``none`` or ``softmax``.
        largest: The bound B on Gaussian inputs; inputs of ±1 have B = 1.

    Raises:
        ArgumentError: if an argument is out of range, or a coordinate's error exceeds a quarter of
            its range; the message has the numbers.
    """
    problems = Problems("construct_kernel_memory")
    need = problems.need
    need(heads >= 1, "heads", "must be at least 1", heads, "add heads")
    need(positions in get_args(Positions), "positions", "must be lin or log", positions, "pick one")
    lags = isinstance(task, RealMemory)
    need(positions == "lin" or not lags, "positions", "must be lin for lags", positions, "lin")
    known = get_args(Normalizer)
    need(normalizer in known, "normalizer", "must be none or softmax", normalizer, "pick one")
    need(largest > 0, "largest", "must be positive", largest, "6 covers normal inputs")
    problems.raise_if_any()
    bound = largest if task.inputs == "gaussian" else 1.0
    plan = _KernelPlan(task, positions, normalizer, bound, _fits(task, heads, positions))
    _check_slots(plan)
    model, mechanism = _model(plan)
    name = f"constructed-{task.name}-{positions}" + ("-softmax" if normalizer != "none" else "")
    return Construction(name, task, model, mechanism, _certificate(plan))


@dataclass(frozen=True)
class _KernelPlan:
    """The choices for a construction, and bounds on the error of each residual coordinate."""

    task: KernelMemory | RealMemory
    positions: Positions
    normalizer: Normalizer
    bound: float
    fits: tuple[HeadSum, ...]

    @property
    def memories(self) -> tuple[str, ...]:
        """The names of the latents that heads write."""
        return tuple(memory.name for memory in self.task.memories())

    @property
    def start(self) -> int:
        """The first position of the domain on which the certificate holds."""
        return self.task.start

    @property
    def reads_now(self) -> bool:
        """Whether x_t itself is among the arguments of f."""
        return len(self.task.arguments) > len(self.fits)

    @property
    def reads(self) -> list[int]:
        """The coordinates of the arguments of f."""
        return list(range(0 if self.reads_now else 1, len(self.fits) + 1))

    @property
    def width(self) -> int:
        """The number of coordinates: x_t, one per memory, and the answer."""
        return len(self.fits) + 2

    def target_weights(self, memory: int) -> Float64[np.ndarray, " lag"]:
        """Return the weights ρ_i that memory i should give to every lag of a row."""
        location = self.task.memories()[memory].location
        if isinstance(location, int):
            return (np.arange(self.task.length) == location).astype(np.float64)
        return np.asarray(location)

    def limits(self, memory: int) -> Float64[np.ndarray, " head"]:
        """Return the limit Z_∞ of each head's normaliser, or 1 without a normaliser."""
        slopes = self.fits[memory].slopes
        if self.normalizer == "none":
            return np.ones(len(slopes))
        with mpmath.workdps(DIGITS):
            exact = [mpmath.mpf(float(p)) for p in slopes]
            return np.array([float(z) for z in tail(self.positions, exact, 0)])

    def kernel_errors(self, memory: int) -> Float64[np.ndarray, " pos"]:
        """Return the kernel's error Σ_{s ≤ t} |ρ(s) − held_t(s)| at each position t of the
        domain."""
        slopes, coefficients = self.fits[memory].slopes.tolist(), self.fits[memory].coefficients
        found = errors_so_far(
            self.positions,
            slopes,
            coefficients.tolist(),
            self.target_weights(memory),
            softmax=self.normalizer == "softmax",
        )
        return found[self.start :]

    def slot(self, memory: int) -> float:
        """Return the bound ε_i on the error of memory i's coordinate."""
        return self.bound * (float(self.kernel_errors(memory).max()) + self._rounding([memory], 0))

    def spread(self) -> float:
        """Return a bound on the rounding error in every direction if the basis is rotated."""
        return self.bound * self._rounding(range(len(self.fits)), self.width)

    def _rounding(self, memories: range | list[int], width: int) -> float:
        p = np.concatenate([self.fits[i].slopes for i in memories])
        a = np.concatenate(
            [self.fits[i].coefficients * self._normalizer_ratio(i) for i in memories]
        )
        how = Summation(
            _UNIT,
            keys=self.task.length,
            heads=len(p),
            log=self.positions == "log",
            softmax=self.normalizer == "softmax",
            width=width,
            reach=self.reach / self.bound,
        )
        return sum_rounding(p, a, how)

    def _normalizer_ratio(self, memory: int) -> Float64[np.ndarray, " head"]:
        """Return the ratio Z_∞/Z_t at the start of the domain, where it is largest."""
        if self.normalizer == "none":
            return np.ones(len(self.fits[memory].slopes))
        s = np.arange(self.start + 1, dtype=np.float64)
        held = np.exp(-np.outer(phi_values(self.positions, s), self.fits[memory].slopes)).sum(0)
        return self.limits(memory) / held

    @property
    def sizes(self) -> list[float]:
        """Bounds on the arguments of f, which allow for errors of a quarter of their range."""
        averages = [
            (1 + 2 * _SHARE) * self.bound * float(np.abs(self.target_weights(i)).sum())
            for i in range(len(self.fits))
        ]
        return [self.bound, *averages] if self.reads_now else averages

    @property
    def reach(self) -> float:
        """A bound on the norm of the residual stream."""
        inside = sqrt(self.bound**2 + sum(size**2 for size in self.sizes))
        return (1 + max(self.task.f.lipschitz, 1.0)) * inside + 1

    @property
    def net(self) -> ReluNet:
        """The ReLU network that computes the readout f."""
        return readout_net(self.task.f, self.sizes)


def _fits(task: KernelMemory | RealMemory, heads: int, positions: Positions) -> tuple[HeadSum, ...]:
    """Fit the sums of all memories: kernels on a row's lags, single lags on all lags."""
    return tuple(_fit(memory.location, task.length, heads, positions) for memory in task.memories())


def _fit(location: Any, length: int, heads: int, positions: Positions) -> HeadSum:
    """Fit the heads for a kernel ``[lag]``, or for one lag."""
    if not isinstance(location, int):
        return fit_kernel(location, heads, positions)
    fit = select_lag(location, Summation(_UNIT, keys=length, heads=location + 1))
    return HeadSum(fit.slopes, fit.coefficients)


def _check_slots(plan: _KernelPlan) -> None:
    problems = Problems("construct_kernel_memory")
    for i, name in enumerate(plan.memories):
        share = plan.slot(i) / (2 * plan.bound * float(np.abs(plan.target_weights(i)).sum()))
        rule = f"must be held within {_SHARE} of its range ({name} is off by {share:.2g} of it)"
        advice = "use more heads, other positions, nearer lags, or a longer burn-in"
        problems.need(share < _SHARE, "heads", rule, len(plan.fits[i].slopes), advice)
    problems.raise_if_any()


def _model(plan: _KernelPlan) -> tuple[SequenceTransformer, Mechanism]:
    groups = []
    for number, (memory, fit) in enumerate(zip(plan.task.memories(), plan.fits, strict=True)):
        lag = memory.location if isinstance(memory.location, int) else None
        held = fit.coefficients * plan.limits(number)
        groups.append(HeadGroup(memory.name, fit.slopes, held, lag))
    model, mechanism = one_layer(
        groups,
        {name: at for at, name in enumerate(("x[t]", *plan.memories, "f"))},
        length=plan.task.length,
        ffn=plan.net.widths,
        lag_bias=plan.positions,
        normalizer=plan.normalizer,
    )
    with torch.no_grad():
        plan.net.write(model.blocks[0].mlp, plan.reads, plan.width - 1)
    return model, mechanism


def _certificate(plan: _KernelPlan) -> Certificate:
    net, task, L = plan.net, plan.task, plan.task.f.lipschitz
    slots = [plan.slot(i) for i in range(len(plan.fits))]
    rounding = net.rounding(plan.sizes, _UNIT)
    parts = {f"slot of {name}": slot for name, slot in zip(plan.memories, slots, strict=True)}
    if plan.normalizer == "softmax":
        for i, name in enumerate(plan.memories):
            settling = plan.kernel_errors(i)
            parts[f"burn-in of {name}"] = plan.bound * float(settling.max() - settling.min())
    parts |= {"Lipschitz constant": L, "readout": net.error, "rounding of the readout": rounding}
    spread = plan.spread()
    errors = [0.0] * (len(plan.reads) - len(slots)) + slots
    moved = [error + spread for error in errors]
    turned = net.rounding(plan.sizes, _UNIT, width=plan.width, reach=plan.reach)
    domain = (
        f"inputs |x| ≤ {plan.bound:g} of at most {task.length} positions, "
        f"at positions ≥ {plan.start}"
    )
    return Certificate(
        net.output_error_bound(errors, L) + net.error + rounding,
        parts,
        domain,
        error_in_any_basis=net.output_error_bound(moved, L) + net.error + turned + spread,
    )
