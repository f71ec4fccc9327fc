"""Classes of keys, by which a program says where a head looks.

A class is a function of a run: which keys of its rows belong to it, or to which part. Most follow
from the rows alone, their positions, tokens and latents. What an earlier head fetched, and what is
predicted before a layer, are what they are in that run, in which programs may stand in the places
of earlier components.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attention.key_sets import lag_key_set, positional_key_sets, token_key_sets
from interp.errors import refuse_unless
from interp.hooks.site import Site
from interp.hooks.transformer_lens_adapter import vocabulary_of
from interp.run import Run
from probes.roles.detectors.composition import Input, fetched_tokens, matching_keys
from probes.roles.detectors.suppression import earlier_places, predicted_tokens
from probes.roles.ffn_tables import can_read, halves, linear_map
from probes.roles.fitting import Fitting, pattern_of, read_places

Keys = Bool[Tensor, "#row query key"]
Classes = Mapping[str, Callable[[Run], Keys | Float[Tensor, "#row query key"]]]
"""Words for a class of keys → which keys belong to it, or to which part, on the rows of a run."""

_KNOTS = (*range(13), 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""The lags at which a table of lags has entries."""
_SYMBOLS = 8
"""The most states of which every pair has a score; each alone up to the square of that."""
_OFFSETS = range(-3, 4)
_LITTLE = 1e-4
"""Attention below which means are not told apart."""
_DIRECTIONS, _FLAT = 6, 1e-4
"""The most directions of a stream of which products are formed, and the share of the first one's
variance below which a direction is left out."""


def position_keys(run: Run, name: str) -> Keys:
    """Keys by their position: ``own``, ``first``, ``previous``."""
    return positional_key_sets(1, run.batch.inputs.shape[1], 1)[name]


def keys_at_lag(run: Run, back: int) -> Keys:
    """The key so many positions back."""
    place = torch.arange(run.batch.inputs.shape[1])
    return (place[:, None] - place == back)[None]


def _hat(run: Run, knot: int, knots: tuple[int, ...]) -> Float[Tensor, "1 query key"]:
    """A table of lags: 1 at one entry and 0 at the others, straight in between (in log lag)."""
    place = torch.arange(run.batch.inputs.shape[1])
    lag, at = (place[:, None] - place).clamp_min(0).numpy(), np.log1p(knots)
    found = np.interp(np.log1p(lag), at, np.eye(len(knots))[knot])
    return torch.from_numpy(found).float()[None]


def token_keys(run: Run, name: str) -> Keys:
    """Keys by the tokens: ``same``, ``after_same``."""
    return token_key_sets(run.batch.inputs)[name]


def equal_keys(run: Run) -> Keys:
    """Keys with the query's token, itself among them."""
    return run.batch.inputs[:, :, None] == run.batch.inputs[:, None]


def every_key(run: Run) -> Keys:
    """The class of all keys of every query, whatever the attention mask, ``[1, query, key]``."""
    return torch.ones(1, *[run.batch.inputs.shape[1]] * 2, dtype=torch.bool)


ByRun = Callable[[Run], Tensor]
"""A run → a number, or several, at every position, ``[row, pos]`` or ``[row, pos, number]``."""


def _once(of: ByRun) -> ByRun:
    """The same function, which remembers what it gave for the run that it was asked of last."""
    last: list[Any] = [None, None]

    def recall(run: Run) -> Tensor:
        if last[0] is not run:
            last[:] = run, of(run)
        value: Tensor = last[1]
        return value

    return recall


def _read_off(told: Fitting, latent: str) -> ByRun | None:
    """What a linear probe reads of a latent off the stream that enters the head's layer, in the run
    that is asked, so that an explanation knows what its own programs carry. None where it cannot be
    read from the stream that the programs leave."""
    site, scored = Site(told.role.layer, "resid_pre"), told.run.batch.mask
    stream = told.changed.at([site])[site].double().cpu()[scored]
    values = told.run.batch.latents[latent][scored].double()
    if not can_read(stream, values, halves(scored)):
        return None
    weights = linear_map(stream, values[:, None])[:, 0]

    def read(run: Run) -> Float[Tensor, "row pos"]:
        stream = run.at([site])[site].double().cpu()
        number: Tensor = stream @ weights[:-1] + weights[-1]
        return number

    return _once(read)


def _state_keys(run: Run, states: ByRun, query: int | None, key: int) -> Keys:
    """The keys of one state, of queries of another, or of all queries."""
    found = states(run)
    keys = (found == key)[:, None].expand(-1, found.shape[1], -1)
    return keys if query is None else (found == query)[:, :, None] & keys


def _program_lines(told: Fitting) -> dict[str, ByRun]:
    """Lines of the task's program that the stream entering a layer tells, and that do not hold
    everywhere: by name, where each holds. The first layer sees tokens alone."""
    found, scored = dict[str, ByRun](), told.run.batch.mask
    for name, values in told.run.batch.latents.items():
        known = values[scored].unique() if values.shape == scored.shape else torch.zeros(0)
        read = _read_off(told, name) if told.role.layer and len(known) == 2 else None
        if read is not None:
            found[name] = partial(_above, of=read, middle=float(known.double().mean()))
    return found


def _above(run: Run, of: ByRun, middle: float) -> Tensor:
    return of(run) > middle


def _around(run: Run, location: ByRun, offset: int) -> Keys:
    return lag_key_set(location(run) + offset)


def _location(told: Fitting, latent: str) -> ByRun | None:
    """How far back a memory lies. The first layer has it from the tokens, which name it; behind it,
    it is the known place that is nearest to what is read off the stream."""
    if told.role.layer == 0:
        return lambda run: run.batch.latents[latent]
    read, known = _read_off(told, latent), told.run.batch.latents[latent].unique()
    if read is None:
        return None
    return _once(lambda run: known[(read(run)[..., None] - known).abs().argmin(-1)])


def lag_classes(told: Fitting) -> Classes:
    """A table of lags."""
    knots = tuple(knot for knot in _KNOTS if knot < told.run.batch.inputs.shape[1])
    return {f"lag {k}": partial(_hat, knot=i, knots=knots) for i, k in enumerate(knots)}


def selected_classes(told: Fitting, which: str) -> Classes:
    """The keys that a rule selects, as it is found in the head's attention: ``fixed``, ``related``
    or ``periodic``."""
    one = getattr(told.head_attention(), which)()

    def keys(run: Run) -> Keys:
        size, selected = run.batch.inputs.shape[1], one.selects(run.batch.inputs)
        longest = selected.shape[-1]
        rule = f"must have at most {longest} positions, as those that {one.words!r} was found on"
        refuse_unless(size <= longest, "judged rows", rule, size, "take shorter rows")
        found: Keys = selected[:, :size, :size]
        return found

    return {one.words: keys}


def fixed_classes(told: Fitting) -> Classes:
    """Return a class for the position that a fixed-position head attends to, and one for each
    position up to three before or after it, because attention is often spread over neighbours."""
    words = str(told.role.target)
    lag = words.removeprefix("i − ")
    if lag.isdigit():
        there: Callable[[Run], Tensor] = partial(keys_at_lag, back=int(lag))
    else:
        ((words, there),) = selected_classes(told, "fixed").items()
    beside = {f"{abs(o)} {'after' if o > 0 else 'before'} that": o for o in _OFFSETS if o}
    return {
        words: there,
        **{said: partial(_beside, keys=there, by=o) for said, o in beside.items()},
    }


def _beside(run: Run, keys: Callable[[Run], Tensor], by: int) -> Keys:
    """Return the keys that lie ``by`` positions after those of a class; before, if negative."""
    found = keys(run)
    moved: Keys = found.roll(by, -1)
    place = torch.arange(found.shape[-1]) - by
    return moved & (place >= 0) & (place < found.shape[-1])


def mean_classes(told: Fitting) -> Classes:
    """Return one class: the logarithm of the head's attention pattern, averaged over rows.

    In longer rows, a query beyond the fitted length gets the last fitted query's attention, moved
    along with it; keys farther back than that reaches get the attention of its first key.
    """
    pattern = pattern_of(told.changed, told.role.layer, told.role.head)
    logarithm = pattern.mean(0).clamp_min(_LITTLE).log()
    last = len(logarithm) - 1

    def keys(run: Run) -> Float[Tensor, "1 query key"]:
        place = torch.arange(run.batch.inputs.shape[1])
        behind = (place - last).clamp_min(0)[:, None]
        found: Tensor = logarithm[place.clamp_max(last)[:, None], (place - behind).clamp(0, last)]
        return found[None]

    return {"the logarithm of its mean attention": keys}


def pair_classes(told: Fitting) -> Classes:
    """Classes of keys by the states of query and key.

    A position's state is its token, and which two-valued latents of the task, read off the stream
    that enters the layer, hold there. With up to 8 states there is a class for each pair of states
    of query and key; with up to 64, one for each state of the key; with more, or for inputs that
    are no tokens, none.

    Args:
        told: The head, and the rows that its surrogate is fitted on.
    """
    if told.tokens.ndim != 2:
        return {}
    lines = _program_lines(told)
    names, size = [*lines], int(told.tokens.max()) + 1
    size = max(vocabulary_of(told.run.model) or 0, size)

    def state(run: Run) -> Int[Tensor, "row pos"]:
        holds = [size * 2**at * one(run) for at, one in enumerate(lines.values())]
        found: Tensor = sum(holds, run.batch.inputs)
        return found

    def words(state: int) -> str:
        holding = [name for at, name in enumerate(names) if state // size >> at & 1]
        return " and ".join([str(state % size), *holding])

    of_states = partial(_state_keys, states=_once(state))
    states = state(told.changed).unique().tolist()
    said = {one: words(one) for one in states}
    if len(states) <= _SYMBOLS:
        pairs = [(q, k) for q in states for k in states]
        return {f"{said[q]} sees {said[k]}": partial(of_states, query=q, key=k) for q, k in pairs}
    if len(states) > _SYMBOLS**2:
        return {}
    return {f"token {said[k]}": partial(of_states, query=None, key=k) for k in states}


def product_classes(told: Fitting) -> Classes:
    """Products of numbers at query and key, which together are a bilinear form of the two.

    The numbers are coordinates along the six directions in which the stream that enters the head's
    layer, behind its norm, varies most. In the first layer there are none: tokens and places tell
    all there is.

    Args:
        told: The head, and the rows that its surrogate is fitted on.
    """
    if told.role.layer == 0:
        return {}
    numbers = _coordinates(told)
    count = range(numbers(told.changed).shape[-1])
    queries = {"": None, **{f" × direction {at + 1} here": at for at in count}}
    return {
        f"direction {key + 1} there{words}": partial(_product, of=numbers, query=query, key=key)
        for words, query in queries.items()
        for key in count
    }


def _coordinates(told: Fitting) -> ByRun:
    """A run → ``[row, pos, direction]``: coordinates along the main directions of the stream that a
    head reads, each with variance one where the programs before it were fitted."""
    normed = Site(told.role.layer, "ln1.hook_normalized")
    known = normed.name in told.run.model.hook_dict
    site = normed if known else Site(told.role.layer, "resid_pre")
    stream = told.changed.at([site])[site].double().cpu()
    seen = stream[read_places(told.run, told.role.layer - 1)]
    middle = seen.mean(0)
    variances, axes = torch.linalg.eigh((seen - middle).T @ (seen - middle) / len(seen))
    kept = (variances > _FLAT * variances[-1]).nonzero()[-_DIRECTIONS:, 0].flip(0)
    axes = axes[:, kept] / variances[kept].sqrt()

    def read(run: Run) -> Float[Tensor, "row pos direction"]:
        found: Tensor = (run.at([site])[site].double().cpu() - middle) @ axes
        return found.float()

    return _once(read)


def _product(run: Run, of: ByRun, query: int | None, key: int) -> Float[Tensor, "row query key"]:
    """Return the coordinate ``key`` at each key, times the coordinate ``query`` at the query if
    one is given."""
    numbers = of(run)
    there = numbers[:, None, :, key].expand(-1, numbers.shape[1], -1)
    return there if query is None else there * numbers[:, :, query, None]


def state_classes(told: Fitting) -> Classes:
    """Classes by the states of query and key, and products of numbers there."""
    return {**pair_classes(told), **product_classes(told)}


def _weights(run: Run) -> Float[Tensor, "row query key"]:
    return run.batch.latents["attention"].clamp_min(1e-6).log()


def table_classes(told: Fitting) -> Classes:
    """Classes of keys for a head whose role says nothing of where it looks.

    Where the task has a latent ``attention`` (the weight of each key, for each query), the one
    class is the logarithm of these weights; else classes are by lag, by the states of query and key
    (:func:`pair_classes`), and by products of numbers there (:func:`product_classes`).
    """
    if told.run.batch.latents.get("attention", torch.zeros(1)).ndim == 3:
        return {"log of the task's weight": _weights}
    return {**lag_classes(told), **state_classes(told)}


def memory_classes(told: Fitting) -> Classes:
    """The place of a memory that is told apart row by row, and those beside it, or a table of
    lags."""
    named = [one for one in told.memories if isinstance(one.location, str)]
    parts = {str(told.role.target), *str(told.role.group or "").split(" + ")}
    latents = [str(one.location) for one in named if one.name in parts]
    mine = {latent: _location(told, latent) for latent in latents}
    found = {
        f"{name}{o:+d}" if o else name: partial(_around, location=location, offset=o)
        for name, location in mine.items()
        if location is not None
        for o in _OFFSETS
    }
    return {**found, **lag_classes(told)}


def matched_classes(told: Fitting) -> Classes:
    """The class of keys for a head that compares tokens with what an earlier head fetched.

    If the role's target begins with ``Q``, the keys hold the token that the earlier head fetched
    at the query. Otherwise (``K``) they are positions at which it fetched the query's token. Keys
    with the query's own token are left out, and for ``K`` those right after it.

    Beside these keys stands how much of its attention the earlier head gave to that token.

    Args:
        told: The head, whose role's target names the earlier head.

    Returns:
        Both by their words; nothing if the target names no earlier head.
    """
    side: Input = "q" if str(told.role.target).startswith("Q") else "k"
    writer = writer_of(told)
    if writer is None:
        return {}

    def keys(run: Run) -> Keys:
        tokens, places = (one[:, None] for one in _tokens_and_places(run, writer))
        found, asked = matching_keys(run.batch.inputs, tokens, places, side)
        both: Keys = (found & asked[..., None])[:, 0]
        return both

    def shares(run: Run) -> Float[Tensor, "row query key"]:
        pattern, tokens = pattern_of(run, *writer), run.batch.inputs
        same = (tokens[:, :, None] == tokens[:, None]).float()
        found: Tensor = pattern @ same
        return found.mT if side == "k" else found

    name = f"L{writer[0]}H{writer[1]}"
    words = "where {} fetched its token" if side == "k" else "what {} fetched for it"
    part = "{}'s attention there on its token" if side == "k" else "{}'s attention on that token"
    return {words.format(name): keys, part.format(name): shares}


def predicted_classes(told: Fitting) -> Classes:
    """Earlier places of the token that is predicted before the head's layer."""
    site = Site(told.role.layer, "resid_pre")

    def keys(run: Run) -> Keys:
        tokens, clear = predicted_tokens(run.model, run.at([site])[site], run.batch.inputs)
        return earlier_places(run.batch.inputs, tokens, clear)

    return {"earlier places of what is predicted": keys}


def relayed_tokens(run: Run, writer: tuple[int, int]) -> Int[Tensor, "row key"]:
    """The token that an earlier head fetched at each key, if it is not the key's own; else −1."""
    tokens, _ = _tokens_and_places(run, writer)
    return torch.where(tokens == run.batch.inputs, -1, tokens)


def writer_of(told: Fitting) -> tuple[int, int] | None:
    """The first earlier head that a role's target names."""
    found = re.search(r"L(\d+)H(\d+)", str(told.role.target))
    return (int(found[1]), int(found[2])) if found else None


def _tokens_and_places(run: Run, writer: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The token that a head fetches at each position, −1 for none, and where it stands."""
    tokens, places = fetched_tokens(pattern_of(run, *writer)[:, None], run.batch.inputs)
    return tokens[:, 0], places[:, 0]
