"""An FFN as a table over a few numbers that it reads off the stream.

    n          the numbers, each a linear function of the stream before the norm
    w ≈ Σ_e m_e(n) · entry_e,    m the weight of each entry: what lies between two entries is
                                 interpolated (:class:`interp.run.Lookup`)

Numbers that can be read are those that a line finds in the stream (r² ≥ .9): latents of the task,
which token stands there, what stood at the lags of a memory, and the directions in which what each
head wrote varies most. They are chosen one at a time, or two where no single one helps, by what a
table fitted on half of the places explains of what the FFN writes on the others. The numbers that a
task names as arguments come first.

A table that explains all says that the FFN depends on these numbers alone, on the rows at hand. It
does not say that the FFN reads them one by one, nor that others would not do as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.site import Site
from interp.interventions.components import components, read_by_ffn
from interp.run import Array, Lookup, Run, written_by

_ENTRIES = 1000
"""The most entries of a table."""
_WIDEST = 17
"""The most entries along one number."""
_MOST = 9
"""The most numbers: of two values each they have half of the entries."""
_GAIN, _ENOUGH = 0.005, 0.99
"""The least share of the write that a further number must explain, and a share that is all."""
_LEAST = 0.5
"""The least share of the write that a table must explain to stand for the FFN."""
_PAIRS = 0.02
"""The least share that two further numbers must explain together."""
_READABLE = 0.9
_DIRECTIONS = 3
"""How many directions of what a head writes are told apart."""
_SYMBOLS, _CHANNELS = 8, 4
_RIDGE = 1e-4

Numbers = Mapping[str, Float[Tensor, " place"]]


def ffn_table(
    run: Run,
    layer: int,
    names: Sequence[str],
    latents: Mapping[str, Tensor],
    *,
    changed: Run | None = None,
) -> tuple[str, Lookup] | None:
    """Fit a table to what an FFN writes at the scored positions of a run.

    Args:
        run: The model on the rows that it is fitted on.
        layer: The FFN's layer.
        names: Latents that are known to be its arguments.
        latents: Name → values ``[row, pos]``, or ``[row, pos, number]``.
        changed: The run whose stream is read, where what comes before the FFN is changed; what is
            to be written is that of ``run``.

    Returns:
        The table in words, and as an edit; None where it explains less than half of what the FFN
        writes at places that it was not fitted on.
    """
    before, after = read_by_ffn(run.model, layer), Site(layer, "mlp_out")
    scored, seen = run.batch.mask, changed or run
    stream = seen.at([before])[before].double().cpu()[scored]
    made = _Table(before, after, stream, run.at([after])[after].double().cpu()[scored])
    numbers = dict(_numbers(seen, layer, latents))
    known = {name: values for name, values in numbers.items() if can_read(stream, values)}
    told = [name for name in numbers if name.split(".")[0] in names]
    chosen = _chosen(made, {name: numbers[name] for name in told} | known, told)
    values = [numbers[name] for name in chosen]
    if made.explained(values) < _LEAST:
        return None
    size = made.size(values)
    words = f"what it writes is a table's entry, {size} × {len(chosen)} numbers: "
    return words + ", ".join(chosen), made.lookup(values, words)


def can_read(stream: Float[Tensor, "place d_model"], values: Float[Tensor, " place"]) -> bool:
    """Whether a line finds a number in the stream, with an r² of .9."""
    with_one = torch.cat([stream, torch.ones(len(stream), 1)], -1)
    missed = with_one @ _least_squares(with_one, values[:, None]) - values[:, None]
    spread = (values - values.mean()).square().sum()
    return float(missed.square().sum() / spread) <= 1 - _READABLE


def _chosen(made: _Table, numbers: Numbers, told: Sequence[str]) -> list[str]:
    """The numbers that a table needs, in the order in which they were chosen."""
    chosen = [*told]
    best = made.explained([numbers[name] for name in chosen]) if chosen else 0.0

    def tried(more: Sequence[tuple[str, ...]]) -> tuple[float, tuple[str, ...]]:
        scores = [
            (made.explained([numbers[name] for name in (*chosen, *some)]), some) for some in more
        ]
        return max(scores, default=(0.0, ()))

    while len(chosen) < _MOST and best < _ENOUGH:
        rest = [name for name in numbers if name not in chosen]
        score, some = tried([(name,) for name in rest])
        if score < best + _GAIN and len(chosen) < _MOST - 1:
            score, some = tried([*combinations(rest, 2)])
            if score < best + _PAIRS:
                break
        elif score < best + _GAIN:
            break
        chosen += some
        best = score
    return chosen or [next(iter(numbers))]


def _numbers(run: Run, layer: int, latents: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Everything that varies and that an FFN might read, at the scored positions, by name."""
    batch, scored = run.batch, run.batch.mask
    for name, values in latents.items():
        if values.shape == scored.shape:
            yield from _varying(name, values[scored])
        elif values.shape[:2] == scored.shape and values.ndim == 3 and values.shape[2] <= _CHANNELS:
            for at, value in enumerate(values[scored].unbind(-1)):
                yield from _varying(f"{name}.{at}", value)
    tokens = batch.inputs.unique().tolist() if batch.inputs.ndim == 2 else []
    if len(tokens) <= _SYMBOLS:
        for token in tokens[1:]:
            yield from _varying(f"the token {token}", batch.inputs[scored] == token)
    for part in components(run.model):
        if part.kind == "head" and part.layer <= layer:
            site = written_by(run.model, part.layer, part.head)
            written = run.at([site])[site].double().cpu()[scored]
            written = written - written.mean(0)
            axes = torch.linalg.eigh(written.T @ written).eigenvectors.flip(1)
            for at in range(min(_DIRECTIONS, axes.shape[1])):
                name = f"what {part.name} wrote.{at}"
                yield from _varying(name, written @ axes[:, at])


def _varying(name: str, values: Tensor) -> Iterator[tuple[str, Tensor]]:
    number = values.double()
    if float(number.std()) > 1e-6 * (1 + float(number.abs().max())):
        yield name, number


@dataclass(frozen=True)
class _Table:
    """Tables of one FFN: what it reads, and what it writes, at some places.

    Attributes:
        before, after: The sites.
        stream: What it reads.
        written: What it writes.
    """

    before: Site
    after: Site
    stream: Float[Tensor, "place d_model"]
    written: Float[Tensor, "place d_model"]

    def size(self, values: Sequence[Tensor]) -> int:
        """How many entries a table has along each number: two where each number has two values."""
        if all(len(one.unique()) <= 2 for one in values):
            return 2
        return max(2, min(_WIDEST, int(_ENTRIES ** (1 / len(values)) + 1e-9)))

    def explained(self, values: Sequence[Tensor]) -> float:
        """What a table fitted on every second place explains of the others; −1 where it would have
        too many entries."""
        if self.size(values) ** len(values) > _ENTRIES:
            return -1.0
        mixed, own = self._empty(values).mixed(self.stream), self.written - self.written.mean(0)
        entries = _least_squares(mixed[::2], own[::2])
        missed = mixed[1::2] @ entries - own[1::2]
        return 1 - float(missed.square().sum() / own[1::2].square().sum().clamp_min(1e-30))

    def lookup(self, values: Sequence[Tensor], words: str) -> Lookup:
        """The table, fitted on all places."""
        empty = self._empty(values)
        entries = _least_squares(empty.mixed(self.stream), self.written)
        return replace(empty, entries=Array(entries, words))

    def _empty(self, values: Sequence[Tensor]) -> Lookup:
        wanted = torch.stack([*values], -1)
        (least, most), size = wanted.aminmax(dim=0), self.size(values)
        knots = least[:, None] + (most - least)[:, None] * torch.linspace(0, 1, size).double()
        edit = partial(Lookup, self.after, reads=self.before, weights=Array(self._weights(wanted)))
        entries = torch.zeros(size ** len(values), self.written.shape[-1])
        return edit(knots=Array(knots), entries=Array(entries))

    def _weights(self, wanted: Tensor) -> Tensor:
        with_one = torch.cat([self.stream, torch.ones(len(self.stream), 1)], -1)
        return _least_squares(with_one, wanted)


def _least_squares(x: Tensor, y: Tensor) -> Tensor:
    gram = x.T @ x
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(gram + ridge, x.T @ y)
