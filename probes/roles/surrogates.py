"""What runs in a component's place if its role is all it does: a short program with fitted numbers.

    where it looks    attention ∝ exp(Σ_c a_c · [key in class c])    one number a class of keys
    what it writes    what it writes of a key is c · (the logit of the key's token), or a table
    what it computes  a table over numbers that an FFN reads off its stream
                      (:mod:`probes.roles.ffn_tables`)

A role names the classes, the tokens or the numbers (:class:`Surrogate`); how strong each is, is
fitted on some rows (:func:`fitted`), and holds for all others. Beside a role's classes there are
always two, the query itself and the first position, so that a head may rest somewhere. Heads whose
scores are not normalised get a level as well. Roles of one component are fitted together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.attention.key_sets import lag_key_set, positional_key_sets, token_key_sets
from interp.attribution.unembedding import unembedding
from interp.errors import refuse_unless
from interp.hooks.site import Site
from interp.run import Array, Edit, Lookup, Replace, Run
from interp.store.attention_mask import AttentionMask, attention_mask_of
from interp.tasks.base import Batch, Memory
from probes.roles.ffn_tables import can_read, ffn_table
from probes.roles.reader import lagged_contents
from probes.roles.selecting import Seen
from probes.roles.views import first_alone

Keys = Bool[Tensor, "#row query key"]
Classes = Mapping[str, Callable[[Batch], Keys | Float[Tensor, "#row query key"]]]
"""Words for a class of keys → which keys belong to it, or to which part, on some rows."""

_KNOTS = (*range(13), 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""The lags at which a table of lags has entries."""

_SMALL = 1e-3
"""How much large scores cost: keys that are never attended to would have none."""

_STEPS = 60
_SYMBOLS = 8
"""The most tokens of which every pair has a score; each token alone up to the square of that."""
_OFFSETS = range(-3, 4)


@dataclass(frozen=True)
class Fitting:
    """What a role's surrogate is made from.

    Attributes:
        role: The confirmed row of the role table.
        run: The model on the rows that numbers are fitted on.
        changed: The same with programs, or means, in place of all components before this one.
        memories: The contents that the task says are fetched.
        answers: Latent → the latents that it is computed from.
    """

    role: Any
    run: Run
    changed: Run
    memories: Sequence[Memory] = ()
    answers: Mapping[str, Sequence[str]] | None = None

    @property
    def mask(self) -> AttentionMask:
        """Which keys a query may attend to."""
        return attention_mask_of(self.run.model) or AttentionMask(self.run.causal)

    @property
    def tokens(self) -> Tensor:
        """The tokens of the rows."""
        return self.run.batch.inputs

    def seen(self) -> Seen:
        """The head's attention on the rows."""
        pattern = _pattern(self.run, self.role.layer, self.role.head)
        inputs = self.run.batch.inputs
        begun = inputs.ndim == 2 and first_alone(inputs)
        counted = torch.ones(pattern.shape[:2], dtype=torch.bool)
        return Seen(pattern, inputs, counted, self.mask.keys(pattern.shape[-1]), begun)


@dataclass(frozen=True)
class Surrogate:
    """What a role says of a component, so that it can be run in its place.

    Attributes:
        kind: ``where`` a head looks, ``what`` it writes, or what an ``ffn`` computes.
        of: What is told of a component → for ``where`` classes of keys; for ``what`` whether it
            raises the ``tokens`` themselves or their ``images`` (each has an entry in a table); for
            ``ffn`` the latents that it computes from, as far as they are told. Empty of a head
            where the role does not tell.
    """

    kind: str
    of: Callable[[Fitting], Any]


@dataclass(frozen=True)
class Fitted:
    """A surrogate with its numbers.

    Attributes:
        words: The program, in a line.
        edits: A run → what is changed in it, so that the program runs in the component's place.
    """

    words: str
    edits: Callable[[Run], tuple[Edit, ...]]


def fitted(kind: str, found: Sequence[Any], told: Fitting) -> Fitted | None:
    """Fit what the roles of one component say, together, on the rows; None where no short program
    says most of what it does.

    Args:
        kind: The surrogates' kind, ``where``, ``what`` or ``ffn``.
        found: What :attr:`Surrogate.of` gave for each role.
        told: What is told of the component.
    """
    if kind == "where":
        return _looking({words: keys for some in found for words, keys in some.items()}, told)
    if kind == "what":
        return _writing("images" not in found, told)
    return _computing([*dict.fromkeys(name for some in found for name in some)], told)


# Where a head looks.


def _pattern(run: Run, layer: int, head: int) -> Float[Tensor, "row query key"]:
    site = Site(layer, "pattern", head)
    return run.at(site)[site].float().cpu()


def _columns(
    classes: Classes, batch: Batch, mask: AttentionMask
) -> tuple[Float[Tensor, "#row query key class"], Bool[Tensor, "query key"]]:
    length = batch.inputs.shape[1]
    keys = [found(batch).float() for found in classes.values()]
    rows = max((len(one) for one in keys), default=1)
    stacked = torch.stack([one.expand(rows, -1, -1) for one in keys], -1)
    return stacked, mask.keys(length)


def _looking(named: Classes, told: Fitting) -> Fitted:
    always = {
        "itself": partial(_position, name="own"),
        "the first": partial(_position, name="first"),
    }
    mask, classes = told.mask, dict[str, Any](named) | always
    layer, head = told.role.layer, told.role.head
    pattern = _pattern(told.run, layer, head)
    columns, allowed = _columns(classes, told.run.batch, mask)
    level = bool((pattern.sum(-1) - 1).abs().max() > 1e-2)
    scores = _scores(columns, allowed, pattern, level=level)

    def edits(run: Run) -> tuple[Edit, ...]:
        some, able = _columns(classes, run.batch, mask)
        values = Array(_attention(some, able, scores, level=level), words)
        return (Replace(Site(layer, "pattern", head), values),)

    said = [f"{score:+.1f}·[{name}]" for name, score in zip(classes, scores.tolist(), strict=False)]
    few = [one for one, score in zip(said, scores.tolist(), strict=False) if abs(score) >= 0.05]
    words = f"attention ∝ exp({' '.join(few) or '0'})"
    return Fitted(words, edits)


def _attention(
    columns: Tensor, allowed: Tensor, scores: Tensor, *, level: bool
) -> Float[Tensor, "#row query key"]:
    found = columns @ scores[: columns.shape[-1]] + (scores[-1] if level else 0.0)
    found = found.masked_fill(~allowed, -torch.inf)
    return found.exp() if level else found.softmax(-1).nan_to_num(0.0)


def _scores(
    columns: Tensor, allowed: Tensor, pattern: Tensor, *, level: bool
) -> Float[Tensor, " class"]:
    """The scores with which attention is likeliest: least cross-entropy, or least Poisson loss."""
    if len(columns) == 1:
        pattern = pattern.mean(0, keepdim=True)
    count = pattern.shape[0] * pattern.shape[1]
    scores = torch.zeros(columns.shape[-1] + level, requires_grad=True)
    optimizer = torch.optim.LBFGS([scores], max_iter=_STEPS, line_search_fn="strong_wolfe")
    sums = torch.einsum("rqk,rqkc->c", pattern * allowed, columns.expand(len(pattern), -1, -1, -1))
    if level:
        sums = torch.cat([sums, pattern.sum()[None]])

    def loss() -> Tensor:
        optimizer.zero_grad()
        score = columns @ scores[: columns.shape[-1]] + (scores[-1] if level else 0.0)
        score = score.masked_fill(~allowed, -torch.inf)
        if level:
            whole = score.exp().sum() * (len(pattern) / len(score))
        else:
            total = score.logsumexp(-1)
            whole = torch.where(total.isfinite(), total, 0.0)
            whole = (whole * pattern.sum(-1)).sum()
        value = (whole - sums @ scores) / count + _SMALL * scores.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return scores.detach()


def _position(batch: Batch, name: str) -> Keys:
    return positional_key_sets(1, batch.inputs.shape[1], 1)[name]


def _lag(batch: Batch, lag: int) -> Keys:
    place = torch.arange(batch.inputs.shape[1])
    return (place[:, None] - place == lag)[None]


def _hat(batch: Batch, knot: int, knots: tuple[int, ...]) -> Float[Tensor, "1 query key"]:
    """A table of lags: 1 at one entry and 0 at the others, straight in between (in log lag)."""
    place = torch.arange(batch.inputs.shape[1])
    lag, at = (place[:, None] - place).clamp_min(0).numpy(), np.log1p(knots)
    found = np.interp(np.log1p(lag), at, np.eye(len(knots))[knot])
    return torch.from_numpy(found).float()[None]


def _token_keys(batch: Batch, name: str) -> Keys:
    return token_key_sets(batch.inputs)[name]


def _equal(batch: Batch) -> Keys:
    return batch.inputs[:, :, None] == batch.inputs[:, None]


def _every(batch: Batch) -> Keys:
    return torch.ones(1, *[batch.inputs.shape[1]] * 2, dtype=torch.bool)


def _pair(batch: Batch, query: int | None, key: int, lines: tuple[str, ...], size: int) -> Keys:
    states = _states(batch, lines, size)
    keys = (states == key)[:, None].expand(-1, states.shape[1], -1)
    return keys if query is None else (states == query)[:, :, None] & keys


def _states(batch: Batch, lines: Sequence[str], size: int) -> Tensor:
    """What a position is, as one number: its token, and which lines of the program hold there."""
    found = batch.inputs
    for at, name in enumerate(lines):
        found = found + size * 2**at * (batch.latents[name] > 0)
    return found


def _around(batch: Batch, latent: str, offset: int) -> Keys:
    return lag_key_set(batch.latents[latent] + offset)


def _by_lag(told: Fitting) -> Classes:
    knots = tuple(knot for knot in _KNOTS if knot < told.run.batch.inputs.shape[1])
    return {f"lag {k}": partial(_hat, knot=i, knots=knots) for i, k in enumerate(knots)}


def _selection(told: Fitting, which: str) -> Classes:
    one = getattr(told.seen(), which)()

    def keys(batch: Batch) -> Keys:
        size, selected = batch.inputs.shape[1], one.selects(batch.inputs)
        longest = selected.shape[-1]
        rule = f"must have at most {longest} positions, as those that {one.words!r} was found on"
        refuse_unless(size <= longest, "judged rows", rule, size, "take shorter rows")
        found: Keys = selected[:, :size, :size]
        return found

    return {one.words: keys}


def _fixed(told: Fitting) -> Classes:
    words = str(told.role.target)
    lag = words.removeprefix("i − ")
    return {words: partial(_lag, lag=int(lag))} if lag.isdigit() else _selection(told, "fixed")


def _pairs(told: Fitting) -> Classes:
    symbols = told.tokens.unique().tolist() if told.tokens.ndim == 2 else []
    lines, size = _lines(told), max(symbols, default=0) + 1
    of_pair = partial(_pair, lines=lines, size=size)
    states = _states(told.run.batch, lines, size).unique().tolist() if symbols else []
    said = {state: _state_in_words(state, lines, size) for state in states}
    if len(states) <= _SYMBOLS:
        pairs = [(q, k) for q in states for k in states]
        return {f"{said[q]} sees {said[k]}": partial(of_pair, query=q, key=k) for q, k in pairs}
    if len(states) > _SYMBOLS**2:
        return {}
    return {f"token {said[k]}": partial(of_pair, query=None, key=k) for k in states}


def _lines(told: Fitting) -> tuple[str, ...]:
    """Lines of the task's program that a head can see: a line reads them off the stream that enters
    its layer, and they do not hold everywhere. Not for the first layer, which sees tokens."""
    batch, site = told.run.batch, Site(told.role.layer, "resid_pre")
    if told.role.layer == 0 or batch.inputs.ndim != 2:
        return ()
    scored = batch.mask
    stream = told.run.at([site])[site].double().cpu()[scored]
    named = {
        name: values[scored].double()
        for name, values in batch.latents.items()
        if values.shape == scored.shape and len(values[scored].unique()) == 2
    }
    return tuple(name for name, values in named.items() if can_read(stream, values))


def _state_in_words(state: int, lines: Sequence[str], size: int) -> str:
    holding = [name for at, name in enumerate(lines) if state // size >> at & 1]
    return " and ".join([str(state % size), *holding])


def _weights(batch: Batch) -> Float[Tensor, "row query key"]:
    return batch.latents["attention"].clamp_min(1e-6).log()


def _table(told: Fitting) -> Classes:
    """Where a head without a name looks: as the task's average weighs, where the task has one, or
    by a table of lags and of pairs of tokens."""
    if told.run.batch.latents.get("attention", torch.zeros(1)).ndim == 3:
        return {"log of the task's weight": _weights}
    return {**_by_lag(told), **_pairs(told)}


def _memory(told: Fitting) -> Classes:
    named = [one for one in told.memories if isinstance(one.location, str)]
    parts = {str(told.role.target), *str(told.role.group or "").split(" + ")}
    mine = [str(one.location) for one in named if one.name in parts]
    if not mine:
        return _by_lag(told)
    return {
        f"{name}{o:+d}" if o else name: partial(_around, latent=name, offset=o)
        for name in mine
        for o in _OFFSETS
    }


def _of_keys(**classes: Callable[[Batch], Keys]) -> Surrogate:
    """The surrogate of a role whose classes of keys need nothing of the component."""
    found = {name.replace("_", " "): keys for name, keys in classes.items()}
    return Surrogate("where", lambda told: found)


PREVIOUS = _of_keys(the_token_before=partial(_lag, lag=1))
SINK = _of_keys(the_first=partial(_position, name="first"))
DUPLICATE = _of_keys(earlier_equal_tokens=partial(_token_keys, name="same"))
INDUCTION = _of_keys(what_followed_equal_tokens=partial(_token_keys, name="after_same"))
EQUAL, UNIFORM = _of_keys(equal_tokens=_equal), _of_keys(everything=_every)
LAGS, FIXED, PAIRS = (Surrogate("where", of) for of in (_by_lag, _fixed, _pairs))
RELATED = Surrogate("where", partial(_selection, which="related"))
PERIODIC = Surrogate("where", partial(_selection, which="periodic"))
MEMORY, DENSE = Surrogate("where", _memory), Surrogate("where", _table)


def others(kind: str, roles: Sequence[Any], made: Fitted, told: Fitting) -> Iterator[Fitted]:
    """Yield programs of other roles of the same kind, to see how much any would do: heads look at
    other classes of keys, write for the tokens of another row, FFNs have their entries shuffled.

    Args:
        kind: The surrogates' kind, ``where``, ``what`` or ``ffn``.
        roles: The component's own surrogates.
        made: The program that they make.
        told: What is told of the component.
    """
    tried = (PREVIOUS, SINK, UNIFORM, DUPLICATE, INDUCTION)
    if kind == "where":
        able = tried[: 5 if told.tokens.ndim == 2 else 3]
        yield from (_looking(one.of(told), told) for one in able if one not in roles)
    else:
        yield Fitted(made.words, lambda run: tuple(map(_mixed_up, made.edits(run))))


def _mixed_up(edit: Edit) -> Edit:
    if isinstance(edit, Lookup):
        entries = edit.entries.tensor
        order = torch.randperm(len(entries), generator=torch.Generator().manual_seed(0))
        return replace(edit, entries=Array(entries[order], "a shuffled table"))
    if isinstance(edit, Replace):
        return replace(edit, values=Array(edit.values.tensor.roll(1, 0), "another row's"))
    return edit


# What a head writes.


def _raised(told: Fitting, which: str = "tokens") -> str:
    return which if getattr(told.run.model, "spec", None) is not None else ""


def _writing(itself: bool, told: Fitting) -> Fitted:
    layer, head, model = told.role.layer, told.role.head, told.run.model
    site = Site(layer, "v", head)
    values = told.run.at(site)[site].double().cpu().flatten(0, 1)
    tokens = told.tokens.flatten()
    mean, words = values.mean(0), "what it writes of a token is a table's entry"
    read = unembedding(model).double().cpu()
    if itself:
        seen = model.W_O[layer][head].detach().double().cpu() @ (read - read.mean(1, keepdim=True))
        nearest = torch.linalg.pinv(seen)  # [token, d_head]: what raises a token most nearly
        ideal, own = nearest[tokens] @ seen, (values - mean) @ seen
        ideal = ideal - ideal.mean(0)
        times = (own * ideal).sum() / ideal.square().sum().clamp_min(1e-12)
        table = mean + times * (nearest - nearest[tokens].mean(0))
        raised = float(times * (nearest * seen.T).sum(1).mean())
        words = f"it raises the logit of a token that it attends to by {raised:.2g}"
    else:
        sums = torch.zeros(read.shape[1], values.shape[1], dtype=torch.float64)
        count = torch.bincount(tokens, minlength=len(sums))[:, None]
        table = torch.where(count > 0, sums.index_add(0, tokens, values) / count, mean)

    def edits(run: Run) -> tuple[Edit, ...]:
        return (Replace(site, Array(table[run.batch.inputs].float(), words)),)

    return Fitted(words, edits)


COPY, TABLE = Surrogate("what", _raised), Surrogate("what", partial(_raised, which="images"))


# What an FFN computes.


def _arguments(told: Fitting) -> list[str]:
    return [*(told.answers or {}).get(str(told.role.target), ())]


ANSWER, COMPUTED = Surrogate("ffn", _arguments), Surrogate("ffn", lambda told: [])


def _computing(names: Sequence[str], told: Fitting) -> Fitted | None:
    layer, run = told.role.layer, told.run
    lags = lagged_contents(run.batch, told.memories)
    table = ffn_table(run, layer, names, {**run.batch.latents, **lags}, changed=told.changed)
    if table is None:
        return None
    words, lookup = table
    return Fitted(words, lambda run: (lookup,))
