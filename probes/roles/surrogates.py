"""What runs in a component's place if its role is all it does: a short program with fitted numbers.

    where it looks    attention ∝ exp(Σ_c a_c · [key in class c])    one number a class of keys
    what it writes    what it writes of a key is c · (the logit of the key's token), or a table
    what it computes  a table over numbers that an FFN reads off its stream, and a linear map of the
                      stream where that helps (:mod:`probes.roles.ffn_tables`)

A role names the classes, the tokens or the numbers (:class:`Surrogate`); how strong each is, is
fitted on some rows (:func:`fit_roles`), and holds for all others. Beside a role's classes there are
always two, the query itself and the first position, so that a head may rest somewhere. Heads whose
scores are not normalised get a level as well. Roles of one component are fitted together, to what
the component does behind the programs before it, at positions from which a scored output can be
reached. A class may also be graded: a number for each query and key in place of 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attribution.unembedding import unembedding
from interp.hooks.site import Site
from interp.run import Array, Edit, Lookup, Replace, Run
from interp.store.rows import AttentionMask
from probes.roles.ffn_tables import ffn_table
from probes.roles.fitting import Fitting, pattern_of, read_places
from probes.roles.key_classes import (
    Classes,
    Keys,
    equal_keys,
    every_key,
    fixed_classes,
    keys_at_lag,
    lag_classes,
    matched_classes,
    mean_classes,
    memory_classes,
    position_keys,
    predicted_classes,
    relayed_tokens,
    selected_classes,
    state_classes,
    table_classes,
    token_keys,
    writer_of,
)
from probes.roles.reader import lagged_contents

_SMALL = 1e-4
"""How much large scores cost: keys that are never attended to would have none."""

_STEPS = 60
_SAID, _TOLD = 12, 0.05
"""The most terms of a score that are said, and the least number of one."""


@dataclass(frozen=True)
class Surrogate:
    """How a role becomes a short program that can be run in a component's place.

    Attributes:
        kind: What the program replaces: ``where`` a head attends, ``what`` it writes, or what an
            ``ffn`` computes.
        of: A function from the data for a component's fit to the parts of its program. For
            ``where``: name → class of keys. For ``what``: whose logits the head raises, its keys'
            ``tokens``, their ``images`` (by a table with an entry for each token), or the tokens
            that an earlier head ``fetched`` there. For ``ffn``: the latents that it computes from,
            as far as the task tells them. If it is empty for a head, no program is made.
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


def fit_roles(kind: str, found: Sequence[Any], told: Fitting) -> Fitted | None:
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
        return _writing([one for some in found for one in some], told)
    return _computing([*dict.fromkeys(name for some in found for name in some)], told)


# Where a head looks.


def _columns(
    classes: Classes, run: Run, mask: AttentionMask
) -> tuple[Float[Tensor, "#row query key class"], Bool[Tensor, "query key"]]:
    length = run.batch.inputs.shape[1]
    keys = [found(run).float() for found in classes.values()]
    rows = max((len(one) for one in keys), default=1)
    stacked = torch.stack([one.expand(rows, -1, -1) for one in keys], -1)
    return stacked, mask.keys(length)


def _looking(named: Classes, told: Fitting) -> Fitted:
    always = {
        "itself": partial(position_keys, name="own"),
        "the first": partial(position_keys, name="first"),
    }
    mask, classes = told.mask, dict[str, Any](named) | always
    layer, head = told.role.layer, told.role.head
    pattern = pattern_of(told.changed, layer, head)
    columns, allowed = _columns(classes, told.changed, mask)
    level = bool((pattern.sum(-1) - 1).abs().max() > 1e-2)
    read = read_places(told.run, layer)
    scores = _scores(columns, allowed, pattern, read, level=level)

    def edits(run: Run) -> tuple[Edit, ...]:
        some, able = _columns(classes, run, mask)
        values = Array(_attention(some, able, scores, level=level), words)
        return (Replace(Site(layer, "pattern", head), values),)

    words = f"attention ∝ exp({_terms(dict(zip(classes, scores.tolist(), strict=False)))})"
    return Fitted(words, edits)


def _terms(scores: Mapping[str, float]) -> str:
    """The largest terms of a score, in the order of the classes, and how many are left out."""
    told = sorted(scores, key=lambda name: -abs(scores[name]))[:_SAID]
    few = [name for name in scores if name in told and abs(scores[name]) >= _TOLD]
    more = sum(abs(score) >= _TOLD for score in scores.values()) - len(few)
    said = " ".join(f"{scores[name]:+.1f}·[{name}]" for name in few) or "0"
    return f"{said} and {more} smaller terms" if more else said


def _attention(
    columns: Tensor, allowed: Tensor, scores: Tensor, *, level: bool
) -> Float[Tensor, "#row query key"]:
    found = columns @ scores[: columns.shape[-1]] + (scores[-1] if level else 0.0)
    found = found.masked_fill(~allowed, -torch.inf)
    return found.exp() if level else found.softmax(-1).nan_to_num(0.0)


def _scores(
    columns: Tensor, allowed: Tensor, pattern: Tensor, read: Tensor, *, level: bool
) -> Float[Tensor, " class"]:
    """The scores with which attention is likeliest at the queries that are read: least
    cross-entropy, or least Poisson loss."""
    weight = read.float()[..., None]
    pattern = pattern * weight
    if len(columns) == 1:
        pattern, weight = pattern.mean(0, keepdim=True), weight.mean(0, keepdim=True)
    count = float(weight.sum())
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
            whole = (score.exp() * weight).sum()
        else:
            total = score.logsumexp(-1)
            whole = torch.where(total.isfinite(), total, 0.0)
            whole = (whole * pattern.sum(-1)).sum()
        value = (whole - sums @ scores) / count + _SMALL * scores.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return scores.detach()


def _of_keys(**classes: Callable[[Run], Keys]) -> Surrogate:
    """The surrogate of a role whose classes of keys need nothing of the component."""
    found = {name.replace("_", " "): keys for name, keys in classes.items()}
    return Surrogate("where", lambda told: found)


PREVIOUS = _of_keys(the_token_before=partial(keys_at_lag, back=1))
SINK = _of_keys(the_first=partial(position_keys, name="first"))
DUPLICATE = _of_keys(earlier_equal_tokens=partial(token_keys, name="same"))
INDUCTION = _of_keys(what_followed_equal_tokens=partial(token_keys, name="after_same"))
EQUAL, UNIFORM = _of_keys(equal_tokens=equal_keys), _of_keys(everything=every_key)
LAGS, FIXED = Surrogate("where", lag_classes), Surrogate("where", fixed_classes)
RELATED = Surrogate("where", partial(selected_classes, which="related"))
PERIODIC = Surrogate("where", partial(selected_classes, which="periodic"))
STATES, DENSE = Surrogate("where", state_classes), Surrogate("where", table_classes)
MEAN = Surrogate("where", mean_classes)
MEMORY, MATCHED = Surrogate("where", memory_classes), Surrogate("where", matched_classes)
PREDICTED = Surrogate("where", predicted_classes)


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
        yield Fitted(made.words, lambda run: tuple(map(_shuffle_values, made.edits(run))))


def _shuffle_values(edit: Edit) -> Edit:
    if isinstance(edit, Lookup):
        entries = edit.entries.tensor
        made = replace(edit, entries=Array(_shuffle(entries), "a shuffled table"))
        linear = edit.linear and Array(_shuffle(edit.linear.tensor), "a shuffled map")
        return replace(made, linear=linear)
    if isinstance(edit, Replace):
        return replace(edit, values=Array(edit.values.tensor.roll(1, 0), "another row's"))
    return edit


def _shuffle(values: Tensor) -> Tensor:
    return values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))]


# What a head writes.


Tokens = Int[Tensor, "row key"]


def _token_sources(told: Fitting, which: str) -> list[tuple[str, Any]]:
    """Which tokens it writes for, where the model's weights are named: its keys' own, their
    ``images``, or those that an earlier head ``fetched`` there."""
    named = getattr(told.run.model, "spec", None) is not None
    writer = writer_of(told) if which == "fetched" else ()
    return [(which, writer)] if named and writer is not None else []


def _writing(found: Sequence[tuple[str, Any]], told: Fitting) -> Fitted:
    layer, head, model = told.role.layer, told.role.head, told.run.model
    site, meant = Site(layer, "v", head), partial(_target_tokens, dict(found))
    tokens = meant(told.changed).flatten()
    values = told.changed.at(site)[site].double().cpu().flatten(0, 1)
    mean, words = values.mean(0), "what it writes of a token is a table's entry"
    values, tokens = values[tokens >= 0], tokens[tokens >= 0]
    read = unembedding(model).double().cpu()
    if "images" not in dict(found):
        seen = model.W_O[layer][head].detach().double().cpu() @ (read - read.mean(1, keepdim=True))
        nearest = torch.linalg.pinv(seen)  # [token, d_head]: what raises a token most nearly
        ideal, own = nearest[tokens] @ seen, (values - mean) @ seen
        ideal = ideal - ideal.mean(0)
        times = (own * ideal).sum() / ideal.square().sum().clamp_min(1e-12)
        table = mean + times * (nearest - nearest[tokens].mean(0))
        raised = float(times * (nearest * seen.T).sum(1).mean())
        which = "that was fetched where" if "fetched" in dict(found) else "that"
        words = f"it raises the logit of a token {which} it attends to by {raised:.2g}"
    else:
        sums = torch.zeros(read.shape[1], values.shape[1], dtype=torch.float64)
        count = torch.bincount(tokens, minlength=len(sums))[:, None]
        table = torch.where(count > 0, sums.index_add(0, tokens, values) / count, mean)
    table = torch.cat([table, mean[None]])  # the last is that of no token

    def edits(run: Run) -> tuple[Edit, ...]:
        return (Replace(site, Array(table[meant(run)].float(), words)),)

    return Fitted(words, edits)


def _target_tokens(found: Mapping[str, Any], run: Run) -> Tokens:
    """The token that a head writes for at each key, −1 for none."""
    own: Tokens = run.batch.inputs
    if "fetched" not in found:
        return own
    fetched = relayed_tokens(run, found["fetched"])
    return torch.where(fetched < 0, own, fetched) if "tokens" in found else fetched


COPY, TABLE, RELAYED = (
    Surrogate("what", partial(_token_sources, which=which))
    for which in ("tokens", "images", "fetched")
)


# What an FFN computes.


def _arguments(told: Fitting) -> list[str]:
    return [*(told.answers or {}).get(str(told.role.target), ())]


ANSWER, COMPUTED = Surrogate("ffn", _arguments), Surrogate("ffn", lambda told: [])
TABLED = Surrogate("ffn", lambda told: str(told.role.target).split(", "))


def _computing(names: Sequence[str], told: Fitting) -> Fitted | None:
    run = told.changed
    lags = lagged_contents(run.batch, told.memories)
    table = ffn_table(run, told.role.layer, names, {**run.batch.latents, **lags})
    if table is None:
        return None
    words, lookup = table
    return Fitted(words, lambda run: (lookup,))
