"""An FFN as a table over a few numbers that it reads off the stream, and a linear map of it.

    s          the stream before the norm
    n          the numbers, each a linear function of s
    w ≈ Σ_e m_e(n) · entry_e (+ M s),    m the weight of each entry: what lies between two entries
                                         is interpolated (:class:`interp.run.Lookup`)

Numbers that can be read are those that a linear map finds in the stream (r² ≥ .9): latents of the
task, the position, which token stands there, how often it came so far, what stood at the lags of a
memory, and the directions in which the input, or what each head wrote, varies most. All but the
directions are *named*: they are known without the model. They are chosen one at a time, or two
where no single one helps, by what a table fitted on half of the rows explains of what the FFN
writes in the others. Those that a task names as arguments come first. A number that follows from
chosen ones is left out, and so is one without which a table explains as much. The linear map is
added where the table misses more than a hundredth, and the map halves that.

A table that explains all says that the FFN depends on these numbers alone, on the rows at hand. It
does not say that the FFN reads them one by one, nor that others would not do as well. A linear map
says that the FFN passes on what it reads, and not what that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.hooks.site import Site
from interp.interventions.components import components, read_by_ffn
from interp.run import Array, Lookup, Run, output_site
from probes.roles.fitting import read_places

_ENTRIES = 1000
"""The most entries of a table."""
_WIDEST, _FINEST = 17, 65
"""The most entries along a number, and along the first one of the table that is kept."""
_SEEN = 8
"""The least places for each entry that a fine table has more."""
_FILLED, _LEAST_ENTRIES = 4, 16
"""A short table has at most an entry for each four places that it is fitted on, or sixteen."""
_MOST = 9
"""The most numbers: of two values each they have half of the entries."""
_GAIN, _ENOUGH = 0.002, 0.999
"""The least share of the write that a further number must explain, and a share that is all."""
_HALVED = 0.5
"""A linear map is added where no more than this share of what a table misses is then missed."""
_LEAST = 0.5
"""The least share of the write that a table must explain to stand for the FFN."""
_PAIRS = 0.005
"""The least share that two further numbers must explain together."""
_READABLE, _SAME = 0.9, 0.99
"""The least r² of a number that is read, and of one that follows from others."""
_DIRECTIONS = 3
"""How many directions of what a head writes are told apart."""
_SYMBOLS, _CHANNELS = 8, 4
"""The most tokens of a task for each to count as a number, and the most channels of a latent."""
_RIDGE = 1e-4
_PLACES = 4096
"""How many places tables are compared on; the one that is chosen is fitted on all."""

Numbers = Mapping[str, Float[Tensor, " place"]]


def ffn_table(
    run: Run,
    layer: int,
    names: Sequence[str],
    latents: Mapping[str, Tensor],
) -> tuple[str, Lookup] | None:
    """Fit a table, and a linear map where that helps, to what an FFN writes at scored positions.

    Args:
        run: The run whose rows it is fitted on; components before the FFN may be changed in it.
        layer: The FFN's layer.
        names: Latents that are known to be its arguments.
        latents: Name → values ``[row, pos]``, or ``[row, pos, number]``.

    Returns:
        The program in words, and as an edit; None where it explains less than half of what the FFN
        writes at places that it was not fitted on.
    """
    before, after = read_by_ffn(run.model, layer), Site(layer, "mlp_out")
    scored = run.batch.mask
    half = halves(scored)
    stream = run.at([before])[before].double().cpu()[scored]
    written = run.at([after])[after].double().cpu()[scored]
    every = {**dict(_named_numbers(run, scored, latents)), **dict(_directions(run, layer, scored))}
    numbers = {name: values for name, values in every.items() if can_read(stream, values, half)}
    told = [name for name in numbers if {name, name.split(".")[0]} & {*names}][:_MOST]
    made = _Table(before, after, stream, written, half)
    chosen, linear, explained = _choose_form(made, numbers, told)
    if explained < _LEAST:
        return None
    values = [numbers[name] for name in chosen]
    sizes = made.sizes(values, fine=True)
    words = _words(chosen, prod(sizes), linear=linear)
    return words, replace(made, linear=linear).fit(values, sizes, torch.ones_like(half), words)


def short_tables(
    run: Run, layer: int, latents: Mapping[str, Tensor], most: int
) -> Iterator[tuple[tuple[str, ...], Float[Tensor, "row pos d_model"]]]:
    """Yield tables of what an FFN writes over one number, over two, and so on: of named numbers
    alone, and then of directions as well.

    They are fitted at the places that can reach a scored output, on each half of the rows for the
    other half. The numbers are chosen with all rows in view.

    Args:
        run: The run on whose rows they are fitted.
        layer: The FFN's layer.
        latents: Name → values ``[row, pos]``, or ``[row, pos, number]``.
        most: The most numbers.

    Yields:
        The names of the numbers, and what the table says that the FFN writes on each row; nothing
        if no such number can be read off the stream.
    """
    before, after = read_by_ffn(run.model, layer), Site(layer, "mlp_out")
    found, places = run.at([before, after]), read_places(run, layer)
    stream, written = (found[site].double().cpu() for site in (before, after))
    first, half = _half_of_rows(places), halves(places)
    entries = max(_LEAST_ENTRIES, min(_ENTRIES, int(half.sum()) // _FILLED))
    made = _Table(before, after, stream[places], written[places], half, entries=entries)
    numbers: dict[str, Tensor] = {}
    for more in (_named_numbers(run, places, latents), _directions(run, layer, places)):
        numbers |= {name: one for name, one in more if can_read(made.stream, one, half)}
        few = {name: values[:_PLACES] for name, values in numbers.items()}
        chosen, _ = _choose_numbers(made.first_places(), few, (), most)
        for count in range(1, len(chosen) + 1):
            values, said = [numbers[name] for name in chosen[:count]], torch.empty_like(written)
            for fitted, judged in ((half, ~first), (~half, first)):
                table = made.fit(values, made.sizes(values), fitted)
                said[judged] = table.instead(written[judged], stream[judged])
            yield tuple(chosen[:count]), said


def _words(chosen: Sequence[str], entries: int, *, linear: bool) -> str:
    table = f"a table's entry, {entries} over {len(chosen)} numbers: {', '.join(chosen)}"
    parts = ["a linear map of what it reads"] * linear + [table] * bool(chosen)
    return f"what it writes is {' and '.join(parts)}"


def halves(scored: Bool[Tensor, "row pos"]) -> Bool[Tensor, " place"]:
    """Split the scored positions into two halves by rows: for fitting, and for held-out tests.

    Args:
        scored: The positions that count.

    Returns:
        For each scored position, row by row, whether it is in the half for fitting, which is every
        second one of the rows that have scored positions.
    """
    return _half_of_rows(scored)[:, None].expand_as(scored)[scored]


def _half_of_rows(scored: Tensor) -> Bool[Tensor, " row"]:
    return scored.any(1).long().cumsum(0) % 2 == 1


def can_read(
    stream: Float[Tensor, "place d_model"],
    values: Float[Tensor, " place"],
    half: Bool[Tensor, " place"],
) -> bool:
    """Whether a number can be read off the residual stream by a linear map, with r² ≥ 0.9 at the
    places that the map is not fitted on.

    Args:
        stream: The residual stream at some places.
        values: The number at each place.
        half: The places that the map is fitted on.
    """
    return _linear_r2(stream, values, half) >= _READABLE


def linear_map(
    stream: Float[Tensor, "place feature"], wanted: Float[Tensor, "place number"]
) -> Float[Tensor, "feature_and_one number"]:
    """The linear map by which numbers are read off a stream; its last row is what is added."""
    return _least_squares(_with_one(stream), wanted)


def _with_one(stream: Tensor) -> Tensor:
    return torch.cat([stream, torch.ones(len(stream), 1, dtype=stream.dtype)], -1)


def _linear_r2(stream: Tensor, values: Tensor, half: Tensor) -> float:
    """The share of a number's variance that a linear map explains at the places that it is not
    fitted on."""
    if not (half.any() and (~half).any()):
        return 0.0
    missed = (
        _with_one(stream[~half]) @ linear_map(stream[half], values[half, None])
        - values[~half, None]
    )
    spread = (values[~half] - values[half].mean()).square().sum().clamp_min(1e-30)
    return 1 - float(missed.square().sum() / spread)


def _choose_form(
    made: _Table, numbers: Numbers, told: Sequence[str]
) -> tuple[list[str], bool, float]:
    """Choose the numbers that index the table, and whether a linear map is added to it.

    Candidates are compared on the first 4,096 places.

    Returns:
        The chosen numbers' names, whether the map is added, and the held-out r² of the result.
    """
    few, numbers = made.first_places(), {n: values[:_PLACES] for n, values in numbers.items()}
    chosen, explained = _choose_numbers(few, numbers, told)
    if explained < _ENOUGH:
        more, better = _choose_numbers(replace(few, linear=True), numbers, told)
        if 1 - better <= _HALVED * (1 - explained):
            return more, True, better
    return chosen, False, explained


def _choose_numbers(
    made: _Table, numbers: Numbers, told: Sequence[str], most: int = _MOST
) -> tuple[list[str], float]:
    """The numbers that a table needs, ``most`` at most, in the order in which they were chosen, and
    the share of the FFN's write that the table explains with them."""
    chosen = [*told]
    best = made.held_out_r2([numbers[name] for name in chosen])

    def best_addition(more: Sequence[tuple[str, ...]]) -> tuple[float, tuple[str, ...]]:
        scores = [
            (made.held_out_r2([numbers[name] for name in (*chosen, *some)]), some) for some in more
        ]
        return max(scores, default=(0.0, ()))

    while len(chosen) < most and best < _ENOUGH:
        rest = [name for name in numbers if made.is_new(numbers, name, chosen)]
        score, some = best_addition([(name,) for name in rest])
        if score < best + _GAIN and len(chosen) < most - 1:
            score, some = best_addition([*combinations(rest, 2)])
            if score < best + _PAIRS:
                break
        elif score < best + _GAIN:
            break
        chosen += some
        best = score
        for name in [one for one in chosen[:-1] if one not in told]:
            rest = [one for one in chosen if one != name]
            score = made.held_out_r2([numbers[one] for one in rest])
            if score >= best:
                chosen, best = rest, score
    return chosen, best


def _named_numbers(
    run: Run, places: Bool[Tensor, "row pos"], latents: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Everything that varies and that is known without the model, at some places, by name."""
    batch = run.batch
    for name, values in latents.items():
        if values.shape == places.shape:
            yield from _varying(name, values[places])
        elif values.shape[:2] == places.shape and values.ndim == 3 and values.shape[2] <= _CHANNELS:
            for at, value in enumerate(values[places].unbind(-1)):
                yield from _varying(f"{name}.{at}", value)
    position = torch.arange(places.shape[1]).expand(places.shape)
    yield from _varying("the position", position[places])
    tokens = batch.inputs.unique().tolist() if batch.inputs.ndim == 2 else []
    for token in tokens[1:] if len(tokens) <= _SYMBOLS else []:
        here = (batch.inputs == token).double()
        yield from _varying(f"the token {token}", here[places])
        if run.causal:
            share = here.cumsum(1) / torch.arange(1, here.shape[1] + 1)
            yield from _varying(f"the share of token {token} so far", share[places])


def _directions(run: Run, layer: int, places: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The directions in which the input, and what each head before the FFN wrote, vary most, at
    some places."""
    what = "the token" if run.batch.inputs.ndim == 2 else "the input"
    yield from _main_directions(what, _embedding(run)[places])
    own = read_by_ffn(run.model, layer).kind != "resid_pre"  # else the block is parallel
    for part in components(run.model):
        if part.kind == "head" and part.layer < layer + own:
            site = output_site(run.model, part.layer, part.head)
            yield from _main_directions(f"what {part.name} wrote", run.at([site])[site][places])


def _embedding(run: Run) -> Float[Tensor, "row pos d_model"]:
    """What the input adds to the stream; with what its position adds, where the model does not
    tell the two apart."""
    start = Site(-1, "embed")
    if start.name not in run.model.hook_dict:
        start = Site(0, "resid_pre")
    return run.at([start])[start]


def _main_directions(what: str, values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Along each of the directions in which something varies most, how far it is there."""
    values = values.double().cpu()
    values = values - values.mean(0)
    axes = torch.linalg.eigh(values.T @ values).eigenvectors.flip(1)
    for at in range(min(_DIRECTIONS, axes.shape[1])):
        yield from _varying(f"direction {at + 1} of {what}", values @ axes[:, at])


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
        half: The places that tables are fitted on, to be judged on the others.
        linear: Whether a linear map of what the FFN reads is added to the table's entry.
        entries: The most entries.
    """

    before: Site
    after: Site
    stream: Float[Tensor, "place d_model"]
    written: Float[Tensor, "place d_model"]
    half: Bool[Tensor, " place"]
    linear: bool = False
    entries: int = _ENTRIES

    def first_places(self) -> _Table:
        """The same at the first 4,096 places, where numbers are chosen."""
        parts = {name: getattr(self, name)[:_PLACES] for name in ("stream", "written", "half")}
        return replace(self, **parts)

    def is_new(self, numbers: Numbers, name: str, chosen: Sequence[str]) -> bool:
        """Whether a number does not follow from those that were chosen, by a linear map."""
        if name in chosen:
            return False
        seen = torch.stack([numbers[one] for one in chosen], -1) if chosen else None
        return seen is None or _linear_r2(seen, numbers[name], self.half) < _SAME

    def sizes(self, values: Sequence[Tensor], *, fine: bool = False) -> list[int]:
        """Return how many knots a table has along each number.

        A number of two values has two. The others have as many as the entries allow, each the same
        and at most 17; a fine table has as many more of the first as there is room for, at most 65,
        and places to fit them on.
        """
        sizes = [2 if len(one.unique()) <= 2 else 0 for one in values]
        many = [at for at, size in enumerate(sizes) if not size]
        room = self.entries // 2 ** (len(sizes) - len(many))
        for at in many:
            sizes[at] = max(2, min(_WIDEST, int(room ** (1 / len(many)) + 1e-9)))
        if fine and many:
            first = many[0]
            more = min(_ENTRIES, len(self.stream) // _SEEN) * sizes[first] // prod(sizes)
            sizes[first] = max(sizes[first], min(_FINEST, more))
        return sizes

    def held_out_r2(self, values: Sequence[Tensor]) -> float:
        """The r² of a table that is fitted on half of the places, at the other places: the share of
        the FFN's output variance that it explains.

        Args:
            values: The numbers by which the table is indexed, each with a value at every place.

        Returns:
            The r²; −1 if the table would have too many entries, or if no places are left to test.
        """
        sizes = self.sizes(values)
        if prod(sizes) > _ENTRIES or not (~self.half).any():
            return -1.0
        table = self.fit(values, sizes, self.half)
        own, rest = self.written, ~self.half
        missed = table.instead(own[rest], self.stream[rest]) - own[rest]
        spread = (own[rest] - own[self.half].mean(0)).square().sum().clamp_min(1e-30)
        return 1 - float(missed.square().sum() / spread)

    def fit(
        self, values: Sequence[Tensor], sizes: Sequence[int], places: Tensor, words: str = ""
    ) -> Lookup:
        """Fit the table.

        Args:
            values: The numbers by which it is indexed, each with a value at every place.
            sizes: How many knots it has along each number.
            places: True for the places that it is fitted on.
            words: The table in words.
        """
        stream, written = self.stream[places], self.written[places]
        none = stream[:, :0]
        wanted = torch.stack([one[places] for one in values], -1) if values else none
        least, most = wanted.aminmax(dim=0)
        knots = torch.full((len(sizes), max(sizes, default=2)), torch.nan, dtype=stream.dtype)
        for at, size in enumerate(sizes):
            steps = torch.linspace(0, 1, size, dtype=stream.dtype)
            knots[at, :size] = least[at] + (most[at] - least[at]) * steps
        table = Lookup(
            self.after,
            reads=self.before,
            weights=Array(linear_map(stream, wanted)),
            knots=Array(knots),
            entries=Array(torch.zeros(prod(sizes), written.shape[-1])),
        )
        weights = table.entry_weights(stream)
        middle = written.mean(0)  # an entry that no place tells of is the mean
        terms = torch.cat([weights, stream if self.linear else none], -1)
        fitted = _least_squares(terms, written - middle)
        entries, linear = fitted.split([weights.shape[-1], fitted.shape[0] - weights.shape[-1]])
        table = replace(table, entries=Array(entries + middle, words or "a table"))
        return replace(table, linear=Array(linear, "fitted")) if self.linear else table


def _least_squares(x: Tensor, y: Tensor) -> Tensor:
    gram = x.T @ x
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(gram + ridge, x.T @ y)
