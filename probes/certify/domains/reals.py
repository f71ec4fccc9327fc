"""Boxes of real inputs, for memories of real values (`memory` §1.2, Tasks II and III)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
from jaxtyping import Float64

from interp.bounds.affine import Affine, box, exactly
from interp.bounds.relaxation import sine
from interp.bounds.rounding import UP
from interp.tasks.memory import AdaptiveMemory, KernelMemory
from interp.tasks.memory.kernels import MemoryKernel
from probes.certify.cover import Cells
from probes.certify.domains.base import Domain

__all__ = ["Addressed", "Averages"]


class Averages(Domain):
    """Every sequence of ``length`` real inputs |x| ≤ ``box``, and a sine of their moving average.

    m = Σ_s ρ(s) x_{t−s}, y = sin(ω m), at every position. ρ is taken at its float64 values.
    """

    kind = "error"

    def __init__(self, task: KernelMemory, length: int, box: float) -> None:
        self.task, self.length, self.box = task, length, box
        self.rho = MemoryKernel.parse(task.kernels[0]).values(np.arange(length, dtype=np.float64))
        most = self.reach(length - 1) * task.frequency
        self.trivial = 1.0 if most >= np.pi / 2 else float(np.sin(most))

    @property
    def judged(self) -> range:
        """Positions that have an answer."""
        return range(self.task.burn_in, self.length)

    @property
    def size(self) -> None:
        """Not countable."""
        return None

    @property
    def statement(self) -> str:
        """In words."""
        return f"all sequences of {self.length} real inputs of size at most {self.box:g}"

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """See :class:`~probes.certify.domains.base.Domain`."""
        return "real", 1, 1, self.length

    def describe(self) -> dict[str, Any]:
        """As JSON data."""
        task = self.task.to_dict()
        return {"kind": "averages", "task": task, "length": self.length, "box": self.box}

    def reach(self, t: int) -> float:
        """The largest |m| at position t."""
        return float(np.abs(self.rho[: t + 1]).sum() * self.box * UP)

    def points(self) -> Iterator[Cells]:
        """None."""
        yield from ()

    def boxes(self) -> Iterator[Cells]:
        """All inputs free."""
        for t in self.judged:
            yield self.slices(t, 1)

    def slices(self, t: int, n: int) -> Cells:
        """The box n times over, with m in n intervals that together hold all its values.

        The target is a sine of the last symbol, which is m's; the inputs use the others. That m is
        made of the inputs is not said here.
        """
        ends = np.linspace(-self.reach(t), self.reach(t), n + 1)
        middle, half = (ends[1:] + ends[:-1]) / 2, (ends[1:] - ends[:-1]) / 2 * UP
        centre, rise, rest = sine(self.task.frequency, middle, half)
        generators = np.zeros((t + 2, n, 1))
        generators[-1, :, 0] = rise
        targets = Affine(centre[:, None], generators, rest[:, None])
        return Cells(
            box(np.zeros((n, t + 1, 1)), np.full((t + 1, 1), self.box)),
            targets,
            np.ones(n),
            symbols=t + 2,
            names=(*(f"input at lag {t - s}" for s in range(t + 1)), "average in its interval"),
        )

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """Random sequences, half of them at the corners of the box."""
        for t in self.judged:
            x = rng.uniform(-self.box, self.box, (n, t + 1))
            x[n // 2 :] = np.sign(x[n // 2 :]) * self.box
            m = x[:, ::-1] @ self.rho[: t + 1]
            y = np.sin(self.task.frequency * m)
            yield Cells(exactly(x[..., None]), exactly(y[:, None]), np.ones(n))


class Addressed(Domain):
    """Every sequence of addresses (±1 bits) and real values |x| ≤ ``box``; the answer is the value
    at the lag that the last address names, or the mean of it and the last value.
    """

    kind = "error"

    def __init__(self, task: AdaptiveMemory, length: int, box: float) -> None:
        self.task, self.length, self.box = task, length, box
        self.trivial = box
        self.codes = np.array(list(product((-1.0, 1.0), repeat=task.bits)))
        self.lags = np.array(task.location_tables()[0])

    @property
    def judged(self) -> range:
        """Positions that have an answer."""
        return range(max(self.task.locations), self.length)

    @property
    def size(self) -> None:
        """Not countable."""
        return None

    @property
    def statement(self) -> str:
        """In words."""
        return (
            f"all sequences of {self.length} tokens with {self.task.bits} address bits ±1 and a "
            f"real value of size at most {self.box:g}"
        )

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """See :class:`~probes.certify.domains.base.Domain`."""
        return "real", 1 + self.task.bits, 1, self.length

    def describe(self) -> dict[str, Any]:
        """As JSON data."""
        task = self.task.to_dict()
        return {"kind": "addressed", "task": task, "length": self.length, "box": self.box}

    def points(self) -> Iterator[Cells]:
        """None."""
        yield from ()

    def boxes(self) -> Iterator[Cells]:
        """Of each position, the cases of the last address: the right answer depends on it."""
        bits = self.task.bits
        for t in self.judged:
            for code, lag in enumerate(self.lags.tolist()):
                centre, reach = np.zeros((1, t + 1, 1 + bits)), np.ones((t + 1, 1 + bits))
                reach[:, 0] = self.box
                centre[0, t, 1:], reach[t, 1:] = self.codes[code], 0.0
                inputs = box(centre, reach)
                symbols = len(inputs.generators)
                yield Cells(inputs, inputs[:, t - lag, :1], np.ones(1), symbols=symbols)

    def code_of(self, bits: Float64[np.ndarray, " bit"]) -> int:
        """The number of an address."""
        return int(np.flatnonzero((self.codes == bits).all(-1))[0])

    def tokens(self, pieces: int) -> Affine:
        """Every token: all addresses, values in intervals, ``[cell, 1, 1 + bits]``; one symbol."""
        ends = np.linspace(-self.box, self.box, pieces + 1)
        half = (ends[1] - ends[0]) / 2 * UP
        rows = [((a + b) / 2, *code) for code in self.codes for a, b in pairwise(ends)]
        centre = np.array(rows)[:, None]
        noise = np.zeros((1, *centre.shape))
        noise[..., 0] = half
        return Affine(centre, noise, np.zeros_like(centre))

    def pairs(self, code: int, pieces: int) -> Cells:
        """Every token with every last token of an address: what is fetched, and what names it.

        Inputs are ``[cell, 2, 1 + bits]``; the first symbol moves the last token's value, the
        second the fetched one's.
        """
        every = self.tokens(pieces)
        last = every[code * pieces : (code + 1) * pieces]
        n, m = len(every.centre), pieces
        centre = np.concatenate((np.repeat(every.centre, m, 0), np.tile(last.centre, (n, 1, 1))), 1)
        noise = np.zeros((2, *centre.shape))
        noise[0, :, 1, 0] = noise[1, :, 0, 0] = every.generators[0, 0, 0, 0]
        inputs = Affine(centre, noise, np.zeros_like(centre))
        names = ("last value in its interval", "fetched value in its interval")
        return Cells(inputs, inputs[:, 0, :1], np.ones(n * m), symbols=2, names=names)

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """Random rows."""
        for t in self.judged:
            x = rng.uniform(-self.box, self.box, (n, t + 1))
            x[n // 2 :] = np.sign(x[n // 2 :]) * self.box
            code = rng.integers(len(self.codes), size=(n, t + 1))
            inputs = np.concatenate((x[..., None], self.codes[code]), axis=-1)
            y: Float64[np.ndarray, " cell"] = x[np.arange(n), t - self.lags[code[:, -1]]]
            yield Cells(exactly(inputs), exactly(y[:, None]), np.ones(n))
