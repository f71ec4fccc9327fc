"""Adaptive sparse memory (`memory` §1.2, Task II): the locations to read depend on what was read.

A token is a value x_t and an address a_t of ``bits`` channels ±1. One memory per round for K
rounds, then C memories at once:

    t_1 = g_1(a_t),   t_2 = g_2(a_{t−t_1}),   …,   t_K = g_K(a_{t−t_{K−1}})
    t_{K+c} = g_{K+c}(a_{t−t_K}),   c = 1 … C        (a_t itself when K = 0)
    y_t = f(x_t, x_{t−t_1}, …, x_{t−t_{K+C}})

All locations count from t. R = K + 1[C > 0] rounds follow one another; R = 1 is the adaptive task
without nesting. Each g_i is a random table of the address, as balanced as possible and *not* affine
in the channels, so that no embedding supplies a location and the first one needs an FFN. Memories
that are fetched together never coincide.

It does not measure whether content matters at two locations: width replaces depth there. That a
model solves R rounds does not show that it runs them one after another: it may read every location
and choose (a range of A locations costs A head groups).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import Problems
from interp.tasks.base import Batch, Memory, sampler
from interp.tasks.counterfactual import Variable
from interp.tasks.memory.readouts import BOOLEAN, INPUTS, REAL, Readout, inputs_like

_MOST_BITS = 8


@dataclass(frozen=True)
class AdaptiveMemory:
    """The task of fetching earlier values from lags that the tokens determine (`memory` Task II).

    The target is a function f of the current value and of the fetched ones, the memories. The lag
    of memory i is looked up in a fixed random table g_i by a token's address.

    Attributes:
        locations: The lags that occur in the tables g_i, distinct and at least 1.
        rounds: The number K of memories that are fetched one after another.
        concurrent: The number C of memories that are fetched together after those.
        bits: The number of address channels of a token.
        readout: The function f: any readout if inputs are ``signs``, a real one if ``gaussian``.
        inputs: How values are drawn: ``signs`` (±1) or ``gaussian`` (standard normal).
        length: Positions of a row; targets count from position max(locations) on.
        table_seed: Seed of the tables g_i.
        readout_seed: Seed of the readouts ``table`` and ``network``.
        frequency: Frequency of the readout ``waves``.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    locations: tuple[int, ...]
    rounds: int = 1
    concurrent: int = 0
    bits: int = 2
    readout: str = "single"
    inputs: str = "signs"
    length: int = 32
    table_seed: int = 0
    readout_seed: int = 0
    frequency: float = 1.0

    def __post_init__(self) -> None:
        problems = Problems("AdaptiveMemory")
        need, lags = problems.need, self.locations
        need(len(lags) >= 2, "locations", "must be two or more", lags, "one is a fixed memory")
        need(all(lag >= 1 for lag in lags), "locations", "must be at least 1", lags, "0 is x_t")
        distinct = len(set(lags)) == len(lags)
        need(distinct, "locations", "must be distinct", lags, "drop duplicates")
        need(self.rounds >= 0, "rounds", "must be at least 0", self.rounds, "0 nests nothing")
        rule = f"must be at least 0 and at most the {len(lags)} locations"
        fits = 0 <= self.concurrent <= len(lags)
        need(fits, "concurrent", rule, self.concurrent, "memories fetched together must differ")
        some = self.rounds + self.concurrent > 0
        rule = "and concurrent must make at least one memory"
        need(some, "rounds", rule, self.rounds, "set rounds to 1")
        rule = f"must be 2 to {_MOST_BITS}"
        wide = 2 <= self.bits <= _MOST_BITS
        need(wide, "bits", rule, self.bits, "every table of one bit is affine")
        rule = f"must give an address to each of {len(lags)} locations"
        need(not wide or len(lags) <= 2**self.bits, "bits", rule, self.bits, "add bits")
        longest = max(lags, default=0)
        rule = f"must exceed the largest location {longest}"
        advice = "addresses would point before the start at every position"
        need(self.length > longest, "length", rule, self.length, advice)
        rule = f"must be one of {', '.join(INPUTS)}"
        need(self.inputs in INPUTS, "inputs", rule, self.inputs, "pick one")
        allowed = (*REAL, *BOOLEAN) if self.inputs == "signs" else REAL
        self.f.check(problems, allowed, "rounds and concurrent")
        problems.raise_if_any()

    @property
    def memory_count(self) -> int:
        """The number M = K + C of memories, those of the sequential rounds and the concurrent
        ones."""
        return self.rounds + self.concurrent

    @property
    def sequential_rounds(self) -> int:
        """The number R of rounds that follow one another: K, and one more if C > 0."""
        return self.rounds + (self.concurrent > 0)

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``adaptive-memory-single-2+0-at-1-2-4``."""
        depth = f"{self.rounds}+{self.concurrent}"
        return "-".join(["adaptive-memory", self.readout, depth, "at", *map(str, self.locations)])

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the latents that f reads: ``x[t]`` and one ``x[t-t_i]`` per memory."""
        return ("x[t]", *(f"x[t-t_{i}]" for i in range(1, self.memory_count + 1)))

    @property
    def f(self) -> Readout:
        """The function f that is applied to the current input and the memories."""
        seed, frequency = self.readout_seed, self.frequency
        return Readout(self.readout, self.memory_count, seed=seed, frequency=frequency)

    def location_tables(self) -> tuple[tuple[int, ...], ...]:
        """Return the tables g_1 … g_M, each a lag per address; an address is read as a binary
        number whose highest digit is the first channel.

        Memories that are fetched together share one table, shifted by one location each.
        """
        generator = torch.Generator().manual_seed(self.table_seed)
        tables = [self._tables(1, generator)[0] for _ in range(self.rounds)]
        if self.concurrent:
            tables += self._tables(self.concurrent, generator)
        return tuple(tables)

    def _tables(self, count: int, generator: torch.Generator) -> list[tuple[int, ...]]:
        """Draw ``count`` tables until none of them is an affine function of the address channels.

        In the smallest case (two bits, two locations) at most two in three draws are rejected, in
        larger ones fewer.
        """
        lags, codes = sorted(self.locations), 2**self.bits
        while True:
            order = torch.randperm(codes, generator=generator) % len(lags)
            found = [tuple(lags[(k + j) % len(lags)] for k in order.tolist()) for j in range(count)]
            if not any(_is_affine(table, self.bits) for table in found):
                return found

    def memories(self) -> tuple[Memory, ...]:
        """Return the M contents that the task fetches, in order.

        The location of ``x[t-t_i]`` is the latent ``t_i``, a lag; its round is i for the K
        sequential memories and K + 1 for the concurrent ones.
        """
        return tuple(
            Memory(f"x[t-t_{i}]", f"t_{i}", min(i, self.rounds + 1))
            for i in range(1, self.memory_count + 1)
        )

    def answers(self) -> dict[str, tuple[str, ...]]:
        """Return the latents that are computed: ``f`` from :attr:`arguments`, and locations from
        addresses."""
        locations = [f"t_{i}" for i in range(1, self.memory_count + 1)]
        return {"f": self.arguments} | dict.fromkeys(locations, ())

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, 1 + bits]``, targets ``[batch, pos, 1]``.

        Latents: the contents of :attr:`arguments`, the locations ``t_i`` = g_i, the addresses
        ``a[t]`` and ``a[t-t_i]`` that later locations are read from (``[batch, pos, bits]``) and
        the answer ``f``; a latent is 0 if it would lie before the start.
        """
        generator = torch.Generator().manual_seed(seed)
        x = inputs_like(self.inputs, n, self.length, generator)
        shape = (n, self.length, self.bits)
        address = torch.randint(2, shape, generator=generator) * 2.0 - 1.0
        latents = {"x[t]": x, "a[t]": address} | self._fetch_latents(x, address)
        mask = torch.arange(self.length) >= max(self.locations)
        f = self.f([latents[name] for name in self.arguments]) * mask
        inputs = torch.cat([x[..., None], address], dim=-1)
        latents = latents | {"f": f}
        return Batch(inputs, f[..., None], mask.expand(n, -1).clone(), latents).to(device)

    def _fetch_latents(
        self,
        x: Float[Tensor, "batch pos"],
        address: Float[Tensor, "batch pos bit"],
        pointer: Float[Tensor, "batch pos bit"] | None = None,
        given: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return the locations, contents and addresses that are fetched, memory after memory.

        Args:
            x, address: Values and addresses of the tokens that are fetched from.
            pointer: The addresses from which the first location is read; ``address`` by default.
            given: Latents that are set to these values instead of being computed.
        """
        found: dict[str, Tensor] = {}
        given, pointer = given or {}, address if pointer is None else pointer
        for i, table in enumerate(self.location_tables(), start=1):
            lag = torch.tensor(table)[_code(pointer)] * pointer.ne(0).all(-1)
            lag = given.get(f"t_{i}", lag).long()
            found[f"t_{i}"] = lag.to(x.dtype)
            found[f"x[t-t_{i}]"] = given.get(f"x[t-t_{i}]", _fetch(x[..., None], lag)[..., 0])
            if i <= self.rounds and i < self.memory_count:
                pointer = found[f"a[t-t_{i}]"] = given.get(f"a[t-t_{i}]", _fetch(address, lag))
        return found

    def variables(self) -> Iterator[Variable]:
        """Yield the variables that an interchange intervention can set, with the answers that
        follow.

        They are every fetched location, content and address; the content and address of one round
        together, as ``token[t-t_i]``; all locations, and all contents, of the concurrent memories
        together; ``window``, all tokens that memories may be fetched from, while the current value
        and address stay the base's (held by a model that gathers all candidates before it selects
        one); and the answer ``f``.
        """
        count = len(self.arguments)
        for i in range(1, count):
            passes_on = i <= self.rounds and i < count - 1
            names = [f"t_{i}", f"x[t-t_{i}]", *[f"a[t-t_{i}]"] * passes_on]
            yield from (Variable(name, partial(self._answer_if, (name,))) for name in names)
            if passes_on:
                yield Variable(f"token[t-t_{i}]", partial(self._answer_if, tuple(names[1:])))
        if self.concurrent > 1:
            last = range(self.rounds + 1, count)
            for name in ("t_{}", "x[t-t_{}]"):
                names = [name.format(i) for i in last]
                yield Variable(", ".join(names), partial(self._answer_if, tuple(names)))
        yield Variable("window", self._answer_if_window)
        yield Variable("f", lambda base, source: source.targets)

    def _answer_if(self, names: tuple[str, ...], base: Batch, source: Batch) -> Tensor:
        given = {name: source.latents[name] for name in names}
        return self._read(base, base, given)

    def _answer_if_window(self, base: Batch, source: Batch) -> Tensor:
        return self._read(base, source, {})

    def _read(self, base: Batch, fetched: Batch, given: Mapping[str, Tensor]) -> Tensor:
        """Return the answers of ``base`` if its memories are fetched from ``fetched``, with some
        latents set."""
        x, address = fetched.latents["x[t]"], fetched.latents["a[t]"]
        found = self._fetch_latents(x, address, base.latents["a[t]"], given)
        f = self.f([base.latents["x[t]"], *(found[name] for name in self.arguments[1:])])
        return (f * base.mask)[..., None]

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "adaptive_memory", **asdict(self)}


def _code(address: Float[Tensor, "batch pos bit"]) -> Int[Tensor, "batch pos"]:
    place = 2 ** torch.arange(address.shape[-1] - 1, -1, -1)
    return ((address > 0) * place).sum(-1)


def _fetch(
    values: Float[Tensor, "batch pos channel"], lag: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos channel"]:
    """Return values_{t−lag}; 0 before the start and where the lag is unknown (0)."""
    source = torch.arange(values.shape[1]) - lag
    index = source.clamp_min(0)[..., None].expand_as(values)
    return values.gather(1, index) * ((source >= 0) & (lag > 0))[..., None]


def _is_affine(table: tuple[int, ...], bits: int) -> bool:
    """Return whether the table is c_0 + Σ_b c_b · channel_b: flipping one channel always adds the
    same."""
    value = dict(zip(product((0, 1), repeat=bits), table, strict=True))
    for bit in range(bits):
        steps = {
            value[(*code[:bit], 1, *code[bit + 1 :])] - value[code]
            for code in value
            if code[bit] == 0
        }
        if len(steps) > 1:
            return False
    return True
