"""The inputs that a theorem is about: every input of a task, with its right answer.

A domain yields its inputs one by one (if they can be counted), as a few boxes, and at random; finer
splits are up to a strategy. Positions are judged one at a time: the output at position t of a
causal model is the output at the last position of the first t + 1 inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice, pairwise, permutations, product
from math import comb, perm
from typing import Any

import numpy as np
from jaxtyping import Float64, Int

from interp.bounds.affine import UP, Affine, box, exactly
from interp.bounds.network import sine
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.depth.languages import language
from interp.tasks.depth.strings import lengths_within, to_inputs, whole_strings
from interp.tasks.maximum import Maximum
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory
from interp.tasks.memory.kernels import MemoryKernel
from interp.tasks.template import TemplateTask
from interp.tasks.template.task import is_wildcard, wildcards
from probes.certify.cover import UNKNOWN, Cells, chunks

CHUNK = 1024
"""Number of cells that are bounded in one pass. It bounds memory; the result does not depend on
it."""


class Domain(ABC):
    """Every input of a task, with the right answers.

    Attributes:
        kind: What is bounded: ``error`` or ``accuracy``.
        trivial: The error or accuracy of the best constant answer.
    """

    kind: str
    trivial: float

    @property
    @abstractmethod
    def size(self) -> int | None:
        """The number of inputs of the domain; None if they are real numbers and cannot be
        counted."""

    @property
    def cells(self) -> int | None:
        """The number of cells that :meth:`points` makes."""
        return self.size

    @property
    @abstractmethod
    def shape(self) -> tuple[str, int, int, int]:
        """The shape that a model must have: ``(kind, d_in, d_out, positions)``.

        ``kind`` is the kind of input, ``real`` or ``tokens``, and ``positions`` the least context.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the domain as JSON data, from which the checker makes it again."""

    @property
    @abstractmethod
    def statement(self) -> str:
        """The inputs of the domain, in words."""

    @abstractmethod
    def points(self) -> Iterator[Cells]:
        """Cover the domain with cells that leave no input open, for the proof by brute force.

        Yields:
            Batches of cells, each with one sequence up to the position that is judged; none if the
            inputs are real numbers and cannot be counted.
        """

    @abstractmethod
    def boxes(self) -> Iterator[Cells]:
        """Cover the domain with a few large cells, for the black-box proof.

        A cell is a set of inputs for which one bound is proved. Here a cell leaves the inputs free
        over all their values in the domain; it fixes only what determines the right answer (an
        address, membership in the language) where the bound needs it. Most domains have one cell
        per position at which the output is judged.

        Yields:
            Batches of cells whose inputs have the same length.
        """

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """Yield random inputs as cells with the weights of the domain; for measuring, not for
        proofs.

        Args:
            n: The number of inputs for each case, such as each judged position.
            rng: The random generator.
        """


class Signs(Domain):
    """All 2^length sequences of ``length`` inputs ±1, for a fixed-memory task.

    The right answer f = ±1 is a function of the current input and the inputs at the task's lags.
    It exists at positions max(lags) … length − 1, and the model's output is judged there. The
    error is |output − f|; a constant output of 0 has error 1.

    Args:
        task: The task, which gives the lags and the truth table of f.
        length: Number of inputs in a sequence.
    """

    kind = "error"
    trivial = 1.0

    def __init__(self, task: FixedMemory, length: int) -> None:
        self.task, self.length = task, length
        table = task.truth_table()
        self._table = np.array([float(table[c]) for c in product((-1, 1), repeat=self.arguments)])

    @property
    def arguments(self) -> int:
        """The number of inputs that f depends on: the current one and one at each lag."""
        return len(self.task.lags) + 1

    @property
    def lags(self) -> tuple[int, ...]:
        """The lags of f's arguments, 0 (the current input) first."""
        return (0, *self.task.lags)

    @property
    def judged_positions(self) -> range:
        """The positions that have an answer."""
        return range(max(self.task.lags), self.length)

    @property
    def size(self) -> int:
        """The number of sequences, 2^length."""
        return int(2**self.length)

    @property
    def statement(self) -> str:
        """The inputs and positions that a proof is about, in words."""
        first, last = self.judged_positions[0], self.judged_positions[-1]
        where = f"positions {first} to {last}" if first < last else f"position {first}"
        return f"all 2^{self.length} sequences of {self.length} inputs ±1, at {where}"

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """The shape that a model must have (:attr:`Domain.shape`): one number per position in and
        out."""
        return "real", 1, 1, self.length

    def describe(self) -> dict[str, Any]:
        """Return the domain as JSON data."""
        return {"kind": "signs", "task": self.task.to_dict(), "length": self.length}

    def answers(
        self, arguments: Float64[np.ndarray, "cell argument"]
    ) -> Float64[np.ndarray, " cell"]:
        """Return f for each cell's arguments, which are ±1."""
        place = 2 ** np.arange(self.arguments - 1, -1, -1)
        return self._table[((arguments > 0) * place).sum(-1)]

    def points(self) -> Iterator[Cells]:
        """Yield every sequence up to every judged position as a cell."""
        for t in self.judged_positions:
            for start, end in chunks(2 ** (t + 1), CHUNK):
                codes = np.arange(start, end)[:, None] >> np.arange(t, -1, -1)
                yield self._cells(2.0 * (codes & 1) - 1.0)

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """Yield n random sequences for each judged position."""
        for t in self.judged_positions:
            yield self._cells(rng.choice([-1.0, 1.0], size=(n, t + 1)))

    def _cells(self, x: Float64[np.ndarray, "cell pos"]) -> Cells:
        last = x.shape[1] - 1
        f = self.answers(x[:, [last - lag for lag in self.lags]])
        return Cells(exactly(x[..., None]), exactly(f[:, None]), np.ones(len(x)))

    def boxes(self) -> Iterator[Cells]:
        """Yield one cell per judged position, with every input free and f between its extremes."""
        for t in self.judged_positions:
            yield self.cases(t, ())

    def cases(self, t: int, lags: Sequence[int]) -> Cells:
        """Split the inputs up to position t into cells, by the values ±1 of those at some lags.

        In a cell the inputs at ``lags`` are fixed and every other input is free in [−1, 1]. The
        target is an interval from the least to the largest f on the cell, a single value if all
        arguments of f are fixed.

        Args:
            t: The position at which the output is judged.
            lags: Lags of the inputs to fix, counted back from t; others than 0 … t are ignored.

        Returns:
            One cell for each of the 2^k assignments of the k fixed inputs.
        """
        known = sorted({lag for lag in lags if 0 <= lag <= t})
        corners = np.array(list(product((-1.0, 1.0), repeat=len(known)))).reshape(
            2 ** len(known), len(known)
        )
        centre = np.zeros((len(corners), t + 1, 1))
        centre[:, [t - lag for lag in known], 0] = corners
        free = [place for place in range(t + 1) if t - place not in known]
        reach = np.zeros((t + 1, 1))
        reach[free] = 1.0
        low, high = self._range(known, corners)
        middle, half = (low + high) / 2, (high - low) / 2
        targets = Affine(middle[:, None], np.zeros((0, len(corners), 1)), half[:, None])
        weight = np.full(len(corners), 2.0 ** len(free))
        inputs = box(centre, reach)
        names = tuple(f"input at lag {t - place}" for place in free)
        return Cells(inputs, targets, weight, symbols=len(free), names=names)

    def _range(
        self, known: Sequence[int], corners: Float64[np.ndarray, "cell lag"]
    ) -> tuple[Float64[np.ndarray, " cell"], Float64[np.ndarray, " cell"]]:
        """Return the least and the largest f on each cell."""
        unknown = [lag for lag in self.lags if lag not in known]
        found = []
        for values in product((-1.0, 1.0), repeat=len(unknown)):
            filled = dict(zip(unknown, values, strict=True))
            columns = [
                np.full(len(corners), filled[lag])
                if lag in filled
                else corners[:, known.index(lag)]
                for lag in self.lags
            ]
            found.append(self.answers(np.stack(columns, axis=1)))
        return np.min(found, axis=0), np.max(found, axis=0)


class Averages(Domain):
    """All sequences of ``length`` real inputs with |x| ≤ ``box``, for a kernel-memory task.

    The right answer at position t is sin(ω m), where m = Σ_s ρ(s) x_{t−s} is a weighted sum of the
    inputs up to t, ρ the task's first kernel (as float64 values), and ω its frequency. The model's
    output is judged at positions burn_in … length − 1 by its absolute error.

    Args:
        task: The task, which gives the kernel, the frequency and ``burn_in``.
        length: Number of inputs in a sequence.
        box: Largest absolute value of an input.
    """

    kind = "error"

    def __init__(self, task: KernelMemory, length: int, box: float) -> None:
        self.task, self.length, self.box = task, length, box
        self.rho = MemoryKernel.parse(task.kernels[0]).values(np.arange(length, dtype=np.float64))
        most = self.reach(length - 1) * task.frequency
        self.trivial = 1.0 if most >= np.pi / 2 else float(np.sin(most))

    @property
    def judged_positions(self) -> range:
        """The positions that have an answer."""
        return range(self.task.burn_in, self.length)

    @property
    def size(self) -> None:
        """None: the inputs are real numbers, which cannot be counted."""
        return None

    @property
    def statement(self) -> str:
        """The inputs and positions that a proof is about, in words."""
        return f"all sequences of {self.length} real inputs of size at most {self.box:g}"

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """The shape that a model must have (:attr:`Domain.shape`)."""
        return "real", 1, 1, self.length

    def describe(self) -> dict[str, Any]:
        """Return the domain as JSON data."""
        task = self.task.to_dict()
        return {"kind": "averages", "task": task, "length": self.length, "box": self.box}

    def reach(self, t: int) -> float:
        """Return the largest |m| at position t."""
        return float(np.abs(self.rho[: t + 1]).sum() * self.box * UP)

    def points(self) -> Iterator[Cells]:
        """Yield nothing: the inputs cannot be counted."""
        yield from ()

    def boxes(self) -> Iterator[Cells]:
        """Yield one cell per judged position, with all inputs free."""
        for t in self.judged_positions:
            yield self.slices(t, 1)

    def slices(self, t: int, n: int) -> Cells:
        """Return n cells up to position t with all inputs free, and the average m in one of n
        intervals that together contain its values.

        The target is a sine of m, whose noise symbol is the last; the inputs use the others. The
        cells do not say that m is the average of the inputs.

        Args:
            t: The position at which the output is judged.
            n: The number of intervals.
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
        """Yield n random sequences for each judged position, half of them at corners of the box."""
        for t in self.judged_positions:
            x = rng.uniform(-self.box, self.box, (n, t + 1))
            x[n // 2 :] = np.sign(x[n // 2 :]) * self.box
            m = x[:, ::-1] @ self.rho[: t + 1]
            y = np.sin(self.task.frequency * m)
            yield Cells(exactly(x[..., None]), exactly(y[:, None]), np.ones(n))


class Addressed(Domain):
    """All sequences of addresses (±1 bits) and real values |x| ≤ ``box``, for an adaptive-memory
    task.

    The right answer is the value at the lag that the last address names. The model's output is
    judged at positions max(locations) … length − 1 by its absolute error.

    Args:
        task: The task, with one round and the readout ``single``.
        length: Number of tokens in a sequence.
        box: Largest absolute value of a value.
    """

    kind = "error"

    def __init__(self, task: AdaptiveMemory, length: int, box: float) -> None:
        self.task, self.length, self.box = task, length, box
        self.trivial = box
        self.codes = np.array(list(product((-1.0, 1.0), repeat=task.bits)))
        self.lags = np.array(task.location_tables()[0])

    @property
    def judged_positions(self) -> range:
        """The positions that have an answer."""
        return range(max(self.task.locations), self.length)

    @property
    def size(self) -> None:
        """None: the inputs are real numbers, which cannot be counted."""
        return None

    @property
    def statement(self) -> str:
        """The inputs and positions that a proof is about, in words."""
        return (
            f"all sequences of {self.length} tokens with {self.task.bits} address bits ±1 and a "
            f"real value of size at most {self.box:g}"
        )

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """The shape that a model must have (:attr:`Domain.shape`)."""
        return "real", 1 + self.task.bits, 1, self.length

    def describe(self) -> dict[str, Any]:
        """Return the domain as JSON data."""
        task = self.task.to_dict()
        return {"kind": "addressed", "task": task, "length": self.length, "box": self.box}

    def points(self) -> Iterator[Cells]:
        """Yield nothing: the inputs cannot be counted."""
        yield from ()

    def boxes(self) -> Iterator[Cells]:
        """Yield one cell for each judged position and last address, on which the right answer
        depends."""
        bits = self.task.bits
        for t in self.judged_positions:
            for code, lag in enumerate(self.lags.tolist()):
                centre, reach = np.zeros((1, t + 1, 1 + bits)), np.ones((t + 1, 1 + bits))
                reach[:, 0] = self.box
                centre[0, t, 1:], reach[t, 1:] = self.codes[code], 0.0
                inputs = box(centre, reach)
                symbols = len(inputs.generators)
                yield Cells(inputs, inputs[:, t - lag, :1], np.ones(1), symbols=symbols)

    def code_of(self, bits: Float64[np.ndarray, " bit"]) -> int:
        """Return the number of an address."""
        return int(np.flatnonzero((self.codes == bits).all(-1))[0])

    def tokens(self, pieces: int) -> Affine:
        """Return every token as a cell: each address, with its value in each of ``pieces``
        intervals, ``[cell, 1, 1 + bits]``.

        All cells share one noise symbol.
        """
        ends = np.linspace(-self.box, self.box, pieces + 1)
        half = (ends[1] - ends[0]) / 2 * UP
        rows = [((a + b) / 2, *code) for code in self.codes for a, b in pairwise(ends)]
        centre = np.array(rows)[:, None]
        noise = np.zeros((1, *centre.shape))
        noise[..., 0] = half
        return Affine(centre, noise, np.zeros_like(centre))

    def pairs(self, code: int, pieces: int) -> Cells:
        """Return cells that pair every fetched token with every last token of one address.

        Inputs are ``[cell, 2, 1 + bits]``: the fetched token, then the last one. The first noise
        symbol moves the last token's value, the second the fetched one's.

        Args:
            code: The number of the address.
            pieces: The number of intervals of values.
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
        """Yield n random sequences for each judged position, half of them with values at the ends
        of their range."""
        for t in self.judged_positions:
            x = rng.uniform(-self.box, self.box, (n, t + 1))
            x[n // 2 :] = np.sign(x[n // 2 :]) * self.box
            code = rng.integers(len(self.codes), size=(n, t + 1))
            inputs = np.concatenate((x[..., None], self.codes[code]), axis=-1)
            y: Float64[np.ndarray, " cell"] = x[np.arange(n), t - self.lags[code[:, -1]]]
            yield Cells(exactly(inputs), exactly(y[:, None]), np.ones(n))


class OfLetters(Domain):
    """Strings of letters whose length lies in a task's bins and is at most ``length``.

    Args:
        task: The task, which gives the language and the bins.
        length: The longest string.
    """

    kind = "accuracy"

    def __init__(self, task: PrefixPrediction | Membership, length: int) -> None:
        self.task, self.length = task, length
        self.spoken = language(task.language)
        letters = np.arange(len(self.spoken.letters))[None]
        ids = to_inputs(task.program, letters, self.spoken.letters, letters.size)
        self._ids = ids[0, 1:].numpy()
        self.lengths = lengths_within(task, length)

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """The shape that a model must have (:attr:`Domain.shape`)."""
        return "tokens", int(self._ids.max()) + 1, 2, self.lengths[-1] + 1

    def describe(self) -> dict[str, Any]:
        """Return the domain as JSON data."""
        return {"kind": "strings", "task": self.task.to_dict(), "length": self.length}

    def tokens(self, letters: Int[np.ndarray, "cell pos"]) -> Int[np.ndarray, "cell one_more"]:
        """Return token ids: BOS, then the ids of letters given by their numbers 0, 1 …"""
        return np.pad(self._ids[letters], ((0, 0), (1, 0)))


class Members(OfLetters):
    """Every string over a language's letters; the answer is whether it is in the language."""

    def __init__(self, task: Membership, length: int) -> None:
        super().__init__(task, length)
        yes = sum(self.spoken.size(n) for n in self.lengths)
        self.trivial = max(yes, self.size - yes) / self.size

    @property
    def size(self) -> int:
        """The number of strings over the letters, of all lengths of the domain."""
        return sum(len(self._ids) ** n for n in self.lengths)

    @property
    def statement(self) -> str:
        """The inputs and positions that a proof is about, in words."""
        first, last = self.lengths[0], self.lengths[-1]
        letters, name = " ".join(self.spoken.letters), self.task.language
        return f"whether in {name}, every string of {letters} of length {first} to {last}"

    def points(self) -> Iterator[Cells]:
        """Yield every string as a cell."""
        for ids, answers, weight in whole_strings(self.task, self.length, most=CHUNK):  # type: ignore[arg-type]
            yield Cells(ids, answers, np.array(weight, dtype=np.float64))

    def boxes(self) -> Iterator[Cells]:
        """Yield, for each length, a cell for the strings in the language and one for the others."""
        for n, member in product(self.lengths, (False, True)):
            ids = np.full((1, n + 1), UNKNOWN)
            ids[:, 0] = 0
            weight = np.array([float(self.spoken.size(n, member=member))])
            if weight.any():
                yield Cells(ids, np.array([int(member)]), weight, vocabulary=self._ids)

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """Yield n random members and n other strings of each length, if there are any."""
        for length, member in product(self.lengths, (False, True)):
            if size := self.spoken.size(length, member=member):
                codes = self.spoken.draw(np.full(n, length), rng, member=member)
                yield Cells(self.tokens(codes), np.full(n, int(member)), np.full(n, size / n))


class Strings(OfLetters):
    """Every scored position of every string of L_k whose length lies in the task's bins.

    L_k = k alternating blocks, a⁺b⁺a⁺ …. A prefix with j blocks belongs to L_k exactly when j = k,
    and a causal model's answer depends on the prefix alone; so an input of the domain is a (string,
    scored position) pair, and a prefix stands for as many of them as there are strings that begin
    with it: of length n, C(n − i, k − j) for a prefix of length i with j < k blocks, 1 for j = k.
    """

    def __init__(self, task: PrefixPrediction, length: int) -> None:
        super().__init__(task, length)
        self.blocks = int(task.language.removeprefix("L_"))
        total = self._count(lambda i, j: True)
        yes = self._count(lambda i, j: j == self.blocks)
        self.trivial = max(yes, total - yes) / total

    @property
    def size(self) -> int:
        """The number of (string, scored position) pairs."""
        return self._count(lambda i, j: True)

    @property
    def cells(self) -> int:
        """The number of prefixes."""
        return sum(comb(i - 1, j - 1) for i, j in self.prefixes())

    @property
    def statement(self) -> str:
        """The inputs and positions that a proof is about, in words."""
        first, last = self.lengths[0], self.lengths[-1]
        return f"every position of every string of {self.task.language} of length {first} to {last}"

    def weight(self, i: int, j: int) -> int:
        """Return the number of the domain's strings that begin with one given prefix.

        Args:
            i: The length of the prefix.
            j: The number of its blocks.
        """
        if j == self.blocks:
            return sum(n >= i for n in self.lengths)
        return sum(comb(n - i, self.blocks - j) for n in self.lengths if n >= i)

    def prefixes(self) -> Iterator[tuple[int, int]]:
        """Yield (length, number of blocks) for the prefixes of strings of the domain."""
        for i in range(1, self.lengths[-1] + 1):
            for j in range(1, min(i, self.blocks) + 1):
                if self.weight(i, j):
                    yield i, j

    def _count(self, which: Any) -> int:
        return sum(
            comb(i - 1, j - 1) * self.weight(i, j) for i, j in self.prefixes() if which(i, j)
        )

    def points(self) -> Iterator[Cells]:
        """Yield every prefix as a cell of its own, in batches.

        The weight of a cell is the number of the domain's strings that begin with the prefix.
        """
        for i, j in self.prefixes():
            rows: list[tuple[int, ...]] = []
            for cuts in combinations(range(1, i), j - 1):
                rows.append(cuts)
                if len(rows) == CHUNK:
                    yield self._cells(i, j, rows)
                    rows = []
            if rows:
                yield self._cells(i, j, rows)

    def _cells(self, i: int, j: int, cuts: list[tuple[int, ...]]) -> Cells:
        begins = np.zeros((len(cuts), i), dtype=np.int64)
        if j > 1:
            begins[np.arange(len(cuts))[:, None], np.array(cuts)] = 1
        letters = begins.cumsum(1) % 2
        weight = np.full(len(cuts), float(self.weight(i, j)))
        return Cells(self.tokens(letters), self.answers(j, len(cuts)), weight)

    def answers(self, j: int, n: int) -> Int[np.ndarray, " cell"]:
        """Return the right answers for n prefixes of j blocks: all 1 if these are in the language,
        else 0."""
        return np.full(n, int(j == self.blocks))

    def boxes(self) -> Iterator[Cells]:
        """Yield a cell for each length and number of blocks of prefixes, with all letters free."""
        for i, j in self.prefixes():
            ids = np.full((1, i + 1), UNKNOWN)
            ids[:, 0] = 0
            weight = np.array([float(comb(i - 1, j - 1) * self.weight(i, j))])
            yield Cells(ids, self.answers(j, 1), weight, vocabulary=self._ids)

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """Yield n random prefixes of each length and number of blocks."""
        for i, j in self.prefixes():
            places = [np.sort(rng.choice(i - 1, j - 1, replace=False)) + 1 for _ in range(n)]
            drawn = self._cells(i, j, [tuple(at.tolist()) for at in places])
            yield replace(drawn, weight=drawn.weight * comb(i - 1, j - 1) / n)

    def multisets(self) -> Iterator[Cells]:
        """Yield, for each length, a cell for each combination of last letter, number of a's, and
        answer.

        One string stands for all with the same counts, for a model that does not depend on order.
        """
        for i in range(1, self.lengths[-1] + 1):
            rows: dict[tuple[int, int, int], float] = {}
            for j in range(1, min(i, self.blocks) + 1):
                strings = self.weight(i, j)
                of_a, of_b = (j + 1) // 2, j // 2
                for a in range(of_a, i - of_b + 1) if strings else ():
                    ways = comb(a - 1, of_a - 1) * (comb(i - a - 1, of_b - 1) if of_b else a == i)
                    key = (a, (j - 1) % 2, int(j == self.blocks))
                    if ways:
                        rows[key] = rows.get(key, 0.0) + float(ways * strings)
            if rows:
                yield self._cells_by_count(i, rows)

    def _cells_by_count(self, i: int, rows: dict[tuple[int, int, int], float]) -> Cells:
        letters = np.zeros((len(rows), i), dtype=np.int64)
        for row, (a, last, _) in enumerate(rows):
            letters[row, : i - a] = 1  # b's first, then a's, and the last letter in its place
            letters[row, -1] = last
            if last == 1:
                letters[row, :-1] = [1] * (i - a - 1) + [0] * a
        answers = np.array([answer for _, _, answer in rows])
        return Cells(self.tokens(letters), answers, np.array(list(rows.values())))


class Templates(Domain):
    """Every string that fills a template's wildcards with distinct symbols of the task's alphabet.

    For real labels the domain measures the error |output − label|; the best constant output, the
    middle of the labels' range, has half that range as its error. For token labels it measures
    accuracy: the share of strings whose answer has the largest logit.
    """

    def __init__(self, task: TemplateTask) -> None:
        self.task = task
        self.kind = "accuracy" if task.symbolic else "error"
        self.symbols = np.array(task.symbols)
        labels = [float(v) for v in task.labels if not isinstance(v, str)]
        self.trivial = 1 / len(self.symbols) if task.symbolic else (max(labels) - min(labels)) / 2

    @property
    def size(self) -> int:
        """The number of strings, each counted with its template."""
        return sum(perm(len(self.symbols), len(wildcards(z))) for z in self.task.templates)

    @property
    def statement(self) -> str:
        """The inputs and positions that a proof is about, in words."""
        first, last = self.symbols[0], self.symbols[-1]
        names = ", ".join(self.task.templates)
        return f"every string of the templates {names} with symbols {first} to {last}"

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """The shape that a model must have (:attr:`Domain.shape`)."""
        v = self.task.vocabulary
        return "tokens", v, v if self.task.symbolic else 1, self.task.length

    def describe(self) -> dict[str, Any]:
        """Return the domain as JSON data."""
        return {"kind": "templates", "task": self.task.to_dict()}

    def points(self) -> Iterator[Cells]:
        """Yield every string of every template as a cell of its own, in batches."""
        for index, template in enumerate(self.task.templates):
            drawn = permutations(self.symbols.tolist(), len(wildcards(template)))
            wild, label = wildcards(template), self.task.labels[index]
            asked = wild.index(label) if label in wild else 0
            while piece := list(islice(drawn, CHUNK)):
                symbols = np.array(piece)  # the one that is asked for varies slowest
                symbols[:, [0, asked]] = symbols[:, [asked, 0]]
                yield self._cells(index, symbols)

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """Yield n random strings of each template."""
        for index, template in enumerate(self.task.templates):
            count = len(wildcards(template))
            drawn = [rng.choice(self.symbols, count, replace=False) for _ in range(n)]
            cells = self._cells(index, np.array(drawn))
            yield replace(cells, weight=cells.weight * perm(len(self.symbols), count) / n)

    def _cells(self, index: int, symbols: Int[np.ndarray, "cell wildcard"]) -> Cells:
        """Return the cells of one template, given the symbols of its wildcards, which may be
        :data:`UNKNOWN`."""
        template, label = self.task.templates[index], self.task.labels[index]
        places = {c: symbols[:, i] for i, c in enumerate(wildcards(template))}
        known = {c: np.full(len(symbols), i) for i, c in enumerate(self.task.regular)}
        token = places | known
        ids = np.stack([token[c] for c in template], axis=1).astype(np.int64)
        targets: Any
        if isinstance(label, str):
            targets = token[label] if is_wildcard(label) else known[label]
        else:
            targets = exactly(np.full((len(ids), 1), float(label)))
        weight = np.ones(len(ids)) * (
            perm(len(self.symbols), symbols.shape[1]) if (symbols == UNKNOWN).any() else 1
        )
        return Cells(ids, targets, weight, vocabulary=self.symbols)

    def boxes(self) -> Iterator[Cells]:
        """Yield each template as a cell with unknown symbols; which symbols are equal or differ is
        lost."""
        for index, template in enumerate(self.task.templates):
            yield self._cells(index, np.full((1, len(wildcards(template))), UNKNOWN))


class AllRows(Domain):
    """All vocabulary^K rows of K tokens, for the task of naming the largest token of a row.

    The best constant answer is always to name the vocabulary's largest token.

    Args:
        task: The task, which gives the vocabulary and K.
    """

    kind = "accuracy"

    def __init__(self, task: Maximum) -> None:
        self.task = task
        v, k = task.vocabulary, task.length
        self.trivial = (v**k - (v - 1) ** k) / v**k

    @property
    def size(self) -> int:
        """The number of rows, v^K."""
        return int(self.task.vocabulary**self.task.length)

    @property
    def statement(self) -> str:
        """The inputs and positions that a proof is about, in words."""
        v, k = self.task.vocabulary, self.task.length
        return f"all {v}^{k} rows of {k} tokens"

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """The shape that a model must have (:attr:`Domain.shape`)."""
        return "tokens", self.task.vocabulary, self.task.vocabulary, self.task.length

    def describe(self) -> dict[str, Any]:
        """Return the domain as JSON data."""
        return {"kind": "rows", "task": self.task.to_dict()}

    def points(self) -> Iterator[Cells]:
        """Yield every row as a cell of its own, in batches; its right answer is its largest
        token."""
        v, k = self.task.vocabulary, self.task.length
        for start, end in chunks(v**k, CHUNK):
            yield self._cells(np.arange(start, end)[:, None] // v ** np.arange(k - 1, -1, -1) % v)

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """Yield n random rows."""
        yield self._cells(rng.integers(self.task.vocabulary, size=(n, self.task.length)))

    def _cells(self, ids: Any) -> Cells:
        return Cells(ids, ids.max(1), np.ones(len(ids)))

    def boxes(self) -> Iterator[Cells]:
        """Yield a cell for each query token and maximum, with the other tokens unknown."""
        v, k = self.task.vocabulary, self.task.length
        pairs = np.array([(q, m) for q, m in product(range(v), repeat=2) if m >= q])
        ids = np.full((len(pairs), k), UNKNOWN)
        ids[:, -1] = pairs[:, 0]
        q, m = pairs.T
        weight = (m + 1.0) ** (k - 1) - np.where(m > q, m, 0.0) ** (k - 1)
        for start, end in chunks(len(pairs), 64):
            piece = slice(start, end)
            yield Cells(ids[piece], m[piece], weight[piece])
