"""Essentially sparse memory (`memory` §1.2, Task III): functions of weighted averages of the
history.

    y_t = f((ρ_1 * x)(t), …, (ρ_M * x)(t)),   (ρ * x)(t) = Σ_{s=0}^{t} ρ(s) x_{t−s}

Kernels are written as sums of terms, ``weight shape(parameters)``:

    exponential(rate)      e^{−rate·s}                               exact with one lin head
    polynomial(power)      (1 + s)^{−power}, power > 1               exact with one log head
    bump(lag, width)       e^{−(s − lag)² / 2 width²}
    light(scale, power)    e^{−(s/scale)^power}, power > 1           lighter than any exponential
    heavy(power)           1 / ((1 + s) (1 + log(1 + s))^power), power > 1   heavier than any power

e.g. ``"0.5 exponential(0.3) + 2 bump(8, 1.5)"``. ``light`` and ``heavy`` (ours) are the pair for
comparing lin with log positions; the first two cannot compare them, because one head of the right
kind is exact. Nothing precedes position 0, so the targets are exact at every position; a model with
a softmax needs a burn-in until its normaliser is close to its limit. That a model predicts y says
that its summed heads approximate the kernels on these inputs, not that any head represents one of
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.errors import ArgumentError, Problems
from interp.tasks.base import Batch, Memory, sampler
from interp.tasks.counterfactual import Variable
from interp.tasks.memory.readouts import INPUTS, REAL, Readout, inputs_like

Lags = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """A family of kernels: its parameters, the smallest value each must exceed, its formula."""

    parameters: tuple[str, ...]
    above: tuple[float, ...]
    formula: Callable[..., Lags]


SHAPES = {
    "exponential": Shape(("rate",), (0.0,), lambda s, rate: np.exp(-rate * s)),
    "polynomial": Shape(("power",), (1.0,), lambda s, power: (1 + s) ** -power),
    "bump": Shape(
        ("lag", "width"), (-1.0, 0.0), lambda s, lag, width: np.exp(-(((s - lag) / width) ** 2) / 2)
    ),
    "light": Shape(
        ("scale", "power"), (0.0, 1.0), lambda s, scale, power: np.exp(-((s / scale) ** power))
    ),
    "heavy": Shape(("power",), (1.0,), lambda s, power: 1 / ((1 + s) * (1 + np.log1p(s)) ** power)),
}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TERM = re.compile(
    rf"\s*(?:(?P<weight>{_NUMBER})\s+)?(?P<shape>[a-z]+)\((?P<parameters>[^()]*)\)\s*"
)


@dataclass(frozen=True)
class KernelTerm:
    """One term of a memory kernel: a weight times a function of the lag.

    Attributes:
        weight: The factor.
        shape: The name of the function, one of :data:`SHAPES`.
        parameters: The function's parameters, in the order that its entry there gives.
    """

    weight: float
    shape: str
    parameters: tuple[float, ...]

    def __str__(self) -> str:
        inside = ", ".join(f"{value!r}" for value in self.parameters)
        return f"{self.weight!r} {self.shape}({inside})"


@dataclass(frozen=True)
class MemoryKernel:
    """A memory kernel: the weight ρ(s) of the input at each lag s, given as a sum of terms."""

    terms: tuple[KernelTerm, ...]

    @classmethod
    def parse(cls, text: str) -> MemoryKernel:
        """Read the kernel from text, e.g. ``"0.5 exponential(0.3) + 2 bump(8, 1.5)"``.

        Raises:
            ArgumentError: if the text is not a sum of terms, a shape is unknown, or a shape refuses
                its parameters; all problems are named at once.
        """
        problems = Problems("MemoryKernel")
        terms = [_term(part, problems) for part in re.split(r"(?<=\))\s*\+", text)]
        problems.raise_if_any()
        return cls(tuple(term for term in terms if term is not None))

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))

    def values(self, s: Lags) -> Lags:
        """Return the values ρ(s) at lags ``s`` ≥ 0, in the shape of ``s``."""
        total = np.zeros_like(s, dtype=np.float64)
        with np.errstate(over="ignore"):  # of what is divided by, or stands in a falling exponent
            for term in self.terms:
                total += term.weight * SHAPES[term.shape].formula(s, *term.parameters)
        return total


def _term(text: str, problems: Problems) -> KernelTerm | None:
    found = _TERM.fullmatch(text)
    advice = 'write e.g. "0.5 exponential(0.3) + 2 bump(8, 1.5)"'
    problems.need(found is not None, "kernel", "must be terms weight shape(…)", text, advice)
    if found is None:
        return None
    name, inside = found["shape"], [p.strip() for p in found["parameters"].split(",")]
    problems.need(name in SHAPES, "shape", f"must be one of {', '.join(SHAPES)}", name, "pick one")
    numeric = all(re.fullmatch(_NUMBER, part) for part in inside)
    problems.need(numeric, name, "must have numbers as parameters", found["parameters"], advice)
    if name not in SHAPES or not numeric:
        return None
    shape, values = SHAPES[name], tuple(map(float, inside))
    weight = float(found["weight"] or 1)
    finite = all(map(isfinite, (weight, *values)))
    problems.need(finite, name, "must have finite numbers", text.strip(), "use smaller exponents")
    names = ", ".join(shape.parameters)
    fits = len(values) == len(shape.parameters)
    problems.need(fits, name, f"must have the parameters {names}", values, advice)
    for parameter, value, least in zip(shape.parameters, values, shape.above, strict=False):
        rule = f"must have a {parameter} above {least}"
        problems.need(value > least, name, rule, value, "the kernel must be summable")
    return KernelTerm(weight, name, values)


@dataclass(frozen=True)
class KernelMemory:
    """A Lipschitz function of kernel averages of the inputs (`memory` Task III).

    Attributes:
        kernels: The kernels ρ_1, …, ρ_M as texts, e.g. ``"0.5 exponential(0.3)"``.
        readout: The function f of the M averages: ``single``, ``mean``, ``maximum``, ``waves``,
            ``network``.
        inputs: ``gaussian`` (standard normal) or ``signs`` (±1).
        length: Positions of a row.
        burn_in: The first position that is scored.
        readout_seed: Seed of the readout ``network``.
        frequency: Frequency of the readout ``waves``.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    kernels: tuple[str, ...]
    readout: str = "single"
    inputs: str = "gaussian"
    length: int = 64
    burn_in: int = 0
    readout_seed: int = 0
    frequency: float = 1.0

    def __post_init__(self) -> None:
        problems = Problems("KernelMemory")
        need = problems.need
        some = len(self.kernels) > 0
        need(some, "kernels", "must name at least one", self.kernels, 'e.g. ("heavy(2)",)')
        for text in self.kernels:
            try:
                MemoryKernel.parse(text)
            except ArgumentError as refusal:
                problems.found.append(str(refusal).removeprefix("MemoryKernel: "))
        rule = "must be at least 0 and below the length"
        inside = 0 <= self.burn_in < self.length
        need(inside, "burn_in", rule, self.burn_in, f"length is {self.length}")
        rule = f"must be one of {', '.join(INPUTS)}"
        need(self.inputs in INPUTS, "inputs", rule, self.inputs, "pick one")
        self.f.check(problems, REAL, "kernels")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``kernel-memory-single-heavy``."""
        kernels = [MemoryKernel.parse(text) for text in self.kernels]
        shapes = ["+".join(term.shape for term in kernel.terms) for kernel in kernels]
        return "-".join(["kernel-memory", self.readout, *shapes])

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the latents that f reads: ``rho_i*x``, counted from 1."""
        return tuple(f"rho_{i}*x" for i in range(1, len(self.kernels) + 1))

    @property
    def start(self) -> int:
        """The first scored position."""
        return self.burn_in

    @property
    def f(self) -> Readout:
        """The function f that is applied to the averages; x_t is not among its arguments."""
        m, seed = len(self.kernels), self.readout_seed
        return Readout(self.readout, m, now=False, seed=seed, frequency=self.frequency)

    def memories(self) -> tuple[Memory, ...]:
        """Return one memory per kernel: the average, with the kernel's value at every lag of a
        row."""
        lags = np.arange(self.length, dtype=np.float64)
        return tuple(
            Memory(name, MemoryKernel.parse(text).values(lags))
            for name, text in zip(self.arguments, self.kernels, strict=True)
        )

    def answers(self) -> dict[str, tuple[str, ...]]:
        """Return the latent that is computed: ``f``, from :attr:`arguments`."""
        return {"f": self.arguments}

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, 1]``, targets ``[batch, pos, 1]``.

        Latents: ``x[t]``, the averages of :attr:`arguments` (summed in float64), the answer ``f``.
        """
        x = inputs_like(self.inputs, n, self.length, torch.Generator().manual_seed(seed))
        s = np.arange(self.length)
        lags = np.maximum(s[:, None] - s, 0).astype(np.float64)
        kernels = [np.tril(MemoryKernel.parse(text).values(lags)) for text in self.kernels]
        averages = [(x.double() @ torch.from_numpy(kernel.T)).float() for kernel in kernels]
        f = self.f(averages)
        latents = {"x[t]": x} | dict(zip(self.arguments, averages, strict=True)) | {"f": f}
        mask = (torch.arange(self.length) >= self.start).expand(n, -1).clone()
        return Batch(x[..., None], f[..., None], mask, latents).to(device)

    def variables(self) -> Iterator[Variable]:
        """Yield every average; the part of it from before t (``rho_1*x before t``, because x_t
        itself need not be attended to); all averages together if there are several; and the answer
        ``f``."""
        for name in self.arguments:
            yield Variable(name, partial(self._answer_if, (name,)))
            yield Variable(f"{name} before t", partial(self._answer_if_past, name))
        if len(self.arguments) > 1:
            yield Variable("averages", partial(self._answer_if, self.arguments))
        yield Variable("f", lambda base, source: source.targets)

    def _answer_if(self, names: tuple[str, ...], base: Batch, source: Batch) -> Tensor:
        held = [(source if name in names else base).latents[name] for name in self.arguments]
        return self.f(held)[..., None]

    def _answer_if_past(self, name: str, base: Batch, source: Batch) -> Tensor:
        now = (
            MemoryKernel.parse(self.kernels[self.arguments.index(name)]).values(np.zeros(1)).item()
        )
        change = now * (base.latents["x[t]"] - source.latents["x[t]"])
        held = {each: base.latents[each] for each in self.arguments}
        return self.f(list((held | {name: source.latents[name] + change}).values()))[..., None]

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "kernel_memory", **asdict(self)}
