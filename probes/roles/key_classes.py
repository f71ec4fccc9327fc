"""Classes of keys, by which a program says where a head looks.

A class is a function of a run: which keys of its rows belong to it, or to which part. Most follow
from the rows alone, their positions, tokens and latents. What an earlier head fetched, and what is
predicted before a layer, are what they are in that run, in which programs may stand in the places
of earlier components.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

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
from probes.roles.ffn_tables import can_read, halves, line
from probes.roles.fitting import Fitting, pattern_of

Keys = Bool[Tensor, "#row query key"]
Classes = Mapping[str, Callable[[Run], Keys | Float[Tensor, "#row query key"]]]
"""Words for a class of keys → which keys belong to it, or to which part, on the rows of a run."""

_KNOTS = (*range(13), 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""The lags at which a table of lags has entries."""
_SYMBOLS = 8
"""The most states of which every pair has a score; each alone up to the square of that."""
_OFFSETS = range(-3, 4)


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
    """All keys."""
    return torch.ones(1, *[run.batch.inputs.shape[1]] * 2, dtype=torch.bool)


@dataclass(frozen=True)
class _States:
    """What a position is, as one number: its token, and which lines of the program hold there, as
    the stream that enters a layer says in the run that is asked.

    Attributes:
        layer: The layer.
        names: The lines.
        read: How each is read off the stream (:func:`probes.roles.ffn_tables.line`).
        middle: Above which value each holds.
        size: The number of tokens.
    """

    layer: int
    names: tuple[str, ...]
    read: Float[Tensor, "feature_and_one line"]
    middle: Float[Tensor, " line"]
    size: int

    def of(self, run: Run) -> Int[Tensor, "row pos"]:
        """The state of every position."""
        found = run.batch.inputs
        if not self.names:
            return found
        site = Site(self.layer, "resid_pre")
        stream = run.at([site])[site].double().cpu()
        holds = stream @ self.read[:-1] + self.read[-1] > self.middle
        return found + self.size * (holds * 2 ** torch.arange(len(self.names))).sum(-1)

    def words(self, state: int) -> str:
        """``1 and E2``: a token, and the lines that hold."""
        holding = [name for at, name in enumerate(self.names) if state // self.size >> at & 1]
        return " and ".join([str(state % self.size), *holding])

    def keys(self, run: Run, query: int | None, key: int) -> Keys:
        """The keys of one state, of queries of another, or of all queries."""
        states = self.of(run)
        keys = (states == key)[:, None].expand(-1, states.shape[1], -1)
        return keys if query is None else (states == query)[:, :, None] & keys


def _states_of(told: Fitting) -> _States:
    """The states that a head can see: the tokens, and lines of the task's program that the stream
    entering its layer tells, and that do not hold everywhere. The first layer sees tokens."""
    batch, site = told.run.batch, Site(told.role.layer, "resid_pre")
    scored, size = batch.mask, max(vocabulary_of(told.run.model) or 0, int(batch.inputs.max()) + 1)
    none = torch.zeros(1, 0, dtype=torch.float64)
    if told.role.layer == 0:
        return _States(0, (), none, none[0], size)
    stream = told.changed.at([site])[site].double().cpu()[scored]
    half, named = halves(scored), dict[str, Tensor]()
    for name, values in batch.latents.items():
        if values.shape == scored.shape and len(values[scored].unique()) == 2:
            value = values[scored].double()
            named |= {name: value} if can_read(stream, value, half) else {}
    if not named:
        return _States(told.role.layer, (), none, none[0], size)
    wanted = torch.stack([*named.values()], -1)
    least, most = wanted.aminmax(dim=0)
    return _States(told.role.layer, (*named,), line(stream, wanted), (least + most) / 2, size)


def _around(run: Run, latent: str, offset: int) -> Keys:
    return lag_key_set(run.batch.latents[latent] + offset)


def lag_classes(told: Fitting) -> Classes:
    """A table of lags."""
    knots = tuple(knot for knot in _KNOTS if knot < told.run.batch.inputs.shape[1])
    return {f"lag {k}": partial(_hat, knot=i, knots=knots) for i, k in enumerate(knots)}


def selected_classes(told: Fitting, which: str) -> Classes:
    """The keys that a rule selects, as it is found in the head's attention: ``fixed``, ``related``
    or ``periodic``."""
    one = getattr(told.seen(), which)()

    def keys(run: Run) -> Keys:
        size, selected = run.batch.inputs.shape[1], one.selects(run.batch.inputs)
        longest = selected.shape[-1]
        rule = f"must have at most {longest} positions, as those that {one.words!r} was found on"
        refuse_unless(size <= longest, "judged rows", rule, size, "take shorter rows")
        found: Keys = selected[:, :size, :size]
        return found

    return {one.words: keys}


def fixed_classes(told: Fitting) -> Classes:
    """The one position that follows from the query's own."""
    words = str(told.role.target)
    lag = words.removeprefix("i − ")
    return (
        {words: partial(keys_at_lag, back=int(lag))}
        if lag.isdigit()
        else selected_classes(told, "fixed")
    )


def pair_classes(told: Fitting) -> Classes:
    """What a query sees of a key by the states of both, where states are few: their tokens, and the
    lines of the program that hold there; else by the key's token."""
    if told.tokens.ndim != 2:
        return {}
    kinds = _states_of(told)
    states = kinds.of(told.changed).unique().tolist()
    said = {state: kinds.words(state) for state in states}
    if len(states) <= _SYMBOLS:
        pairs = [(q, k) for q in states for k in states]
        return {f"{said[q]} sees {said[k]}": partial(kinds.keys, query=q, key=k) for q, k in pairs}
    if len(states) > _SYMBOLS**2:
        return {}
    return {f"token {said[k]}": partial(kinds.keys, query=None, key=k) for k in states}


def _weights(run: Run) -> Float[Tensor, "row query key"]:
    return run.batch.latents["attention"].clamp_min(1e-6).log()


def table_classes(told: Fitting) -> Classes:
    """Where a head without a name looks: as the task's average weighs, where the task has one, or
    by a table of lags and of pairs of tokens."""
    if told.run.batch.latents.get("attention", torch.zeros(1)).ndim == 3:
        return {"log of the task's weight": _weights}
    return {**lag_classes(told), **pair_classes(told)}


def memory_classes(told: Fitting) -> Classes:
    """The place of a memory that the tokens name, and those beside it, or a table of lags."""
    named = [one for one in told.memories if isinstance(one.location, str)]
    parts = {str(told.role.target), *str(told.role.group or "").split(" + ")}
    mine = [str(one.location) for one in named if one.name in parts]
    if not mine:
        return lag_classes(told)
    return {
        f"{name}{o:+d}" if o else name: partial(_around, latent=name, offset=o)
        for name in mine
        for o in _OFFSETS
    }


def matched_classes(told: Fitting) -> Classes:
    """Where an earlier head fetched the query's token (``K``), or what it fetched for the query
    stands (``Q``)."""
    side: Input = "q" if str(told.role.target).startswith("Q") else "k"
    writer = writer_of(told)
    if writer is None:
        return {}

    def keys(run: Run) -> Keys:
        tokens, places = (one[:, None] for one in _fetched(run, writer))
        found, asked = matching_keys(run.batch.inputs, tokens, places, side)
        both: Keys = (found & asked[..., None])[:, 0]
        return both

    name = f"L{writer[0]}H{writer[1]}"
    words = "where {} fetched its token" if side == "k" else "what {} fetched for it"
    return {words.format(name): keys}


def predicted_classes(told: Fitting) -> Classes:
    """Earlier places of the token that is predicted before the head's layer."""
    site = Site(told.role.layer, "resid_pre")

    def keys(run: Run) -> Keys:
        tokens, clear = predicted_tokens(run.model, run.at([site])[site], run.batch.inputs)
        return earlier_places(run.batch.inputs, tokens, clear)

    return {"earlier places of what is predicted": keys}


def relayed_tokens(run: Run, writer: tuple[int, int]) -> Int[Tensor, "row key"]:
    """The token that an earlier head fetched at each key, if it is not the key's own; else −1."""
    tokens, _ = _fetched(run, writer)
    return torch.where(tokens == run.batch.inputs, -1, tokens)


def writer_of(told: Fitting) -> tuple[int, int] | None:
    """The first earlier head that a role's target names."""
    found = re.search(r"L(\d+)H(\d+)", str(told.role.target))
    return (int(found[1]), int(found[2])) if found else None


def _fetched(run: Run, writer: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The token that a head fetches at each position, −1 for none, and where it stands."""
    tokens, places = fetched_tokens(pattern_of(run, *writer)[:, None], run.batch.inputs)
    return tokens[:, 0], places[:, 0]
