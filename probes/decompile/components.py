"""Which components a model's decisions need, and what each head that is needed does.

    kept        components whose replacement by their mean, together with all that were replaced
                before, would lower the gain below its budget
    primitive   the simplest pattern that can stand in for a head's own while the rest of the model
                goes on as it was, and loses next to no gain

All is measured in the decisions of the model itself. Heads are named in the order of their layers,
in the pruned model, each while those named before it attend as their primitives say (where these
stand in well) and the others as they did; a head may do something else where the current token is
a separator: that is looked for by itself. LayerNorms stay as they are here; the
program that comes of it has none.

That a pattern can stand in does not show that the head attends so: where a head's pattern matters
little, several can, and the one is taken that is simple and most like the head's own.

*Which tokens a head looks at from which*: a table on (token here, earlier token), read off its own
pattern.

    weight(q, k) = mean, over positions with these tokens, of attention × number visible
    looked at    = weight(q, k) ≥ ½ max_k weight(q, k)

Where each token looks at one other, the table is a line, ``partner = table(token) …``, and the
condition ``key.token == partner``; where all look at the same ones it is ``key.token in …``; else a
case for each set. A first token that all rows share is left out where others are looked at: heads
rest there when there is nothing to see. For small vocabularies, and for a head that knows tokens
alone; whether it does so is judged as of every primitive, by putting the pattern in its place.

*Which head a line of a program stands for*, where the search did not begin with that head. A line
that looks back has a pattern: the positions that it picks or counts. Of the heads that the model
needs the one is named whose attention shares most with it, and what is left of the model's
decisions with the line's pattern in that head's place is measured. That is a comparison made
afterwards: a small gain says that no single head does what the line says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from interp.interventions.components import Component, components
from interp.interventions.replacement import sites_of
from interp.program import syntax
from interp.program.evaluation import NONE
from interp.program.syntax import Assignment, Expression, Program, children
from interp.run import Array, Edit, Replace, Site
from probes.decompile.decisions import DecisionTrial, activations, agreement
from probes.decompile.primitives import Primitive, ideal, primitives
from probes.decompile.rows import TokenRows

_MOST, _SETS, _SHARE = 12, 3, 0.5


def by_pairs(
    model: Any, rows: TokenRows, head: Component, *, positions: bool
) -> Iterator[Primitive]:
    """The table of a head's pattern, as what counts such tokens and as what picks the last one;
    nothing for large vocabularies and where a simpler primitive says the same.

    Args:
        model: Hooked.
        rows: Some of what it is asked.
        head: The head's layer and number.
        positions: Whether the model knows positions.
    """
    codes = np.unique(rows.tokens[rows.read])
    if not 2 <= len(codes) <= _MOST:
        return
    site = Site(head.layer, "pattern", head.head)
    own = activations(model, rows, [site])[site].float().numpy()
    looked = _attended_tokens(_weights(own, rows, codes), rows, codes)
    texts = [rows.vocabulary.texts[code] for code in codes]
    told = {texts[q]: tuple(texts[k] for k in keys) for q, keys in looked.items()}
    found = _condition(told, f"partner_{head.name.lower()}")
    if found is None:
        return
    where, lines = found
    words = f"{head.name} table of tokens"
    yield Primitive(words, where, None, 5, lines)
    if positions:
        yield Primitive(f"the last of the {words}", where, "last", 6, lines)


def _weights(
    pattern: Float[np.ndarray, "row query key"], rows: TokenRows, codes: np.ndarray
) -> Float[np.ndarray, "token token"]:
    """How much more than evenly each token is looked at from each; 0 for pairs that never meet."""
    place = np.searchsorted(codes, np.where(rows.read, rows.tokens, codes[0]))
    n = rows.tokens.shape[1]
    seen = np.tril(np.ones((n, n), dtype=bool)) & rows.read[:, :, None] & rows.read[:, None, :]
    pairs = (place[:, :, None] * len(codes) + place[:, None, :])[seen]
    relative = (pattern * np.arange(1, n + 1)[None, :, None])[seen]
    size = len(codes) ** 2
    total, times = np.bincount(pairs, relative, size), np.bincount(pairs, minlength=size)
    return np.asarray((total / np.maximum(times, 1)).reshape(len(codes), len(codes)))


def _attended_tokens(
    weights: Float[np.ndarray, "token token"], rows: TokenRows, codes: np.ndarray
) -> dict[int, list[int]]:
    """Place of a token → places of those that it looks at."""
    first = np.unique(rows.tokens[:, 0][rows.tokens[:, 0] != NONE])
    rest = int(np.searchsorted(codes, first[0])) if len(first) == 1 else -1
    found = {}
    for q, row in enumerate(weights):
        if q == rest or not row.any():
            continue
        keys = np.flatnonzero(row >= _SHARE * row.max()).tolist()
        others = np.delete(np.arange(len(row)), rest) if rest >= 0 else np.arange(len(row))
        if rest in keys and row[others].max() >= 1:
            keys = others[row[others] >= _SHARE * row[others].max()].tolist()
        found[q] = keys
    return found


def _condition(
    looked: dict[str, tuple[str, ...]], name: str
) -> tuple[Expression, tuple[Assignment, ...]] | None:
    """A condition that says so, and the lines it needs: one of that name, if any."""
    sets = sorted(set(looked.values()))
    same = all(keys == (token,) for token, keys in looked.items())
    everything = len(sets) == 1 and (len(sets[0]) == 1 or set(sets[0]) >= set(looked))
    if not sets or same or everything:
        return None
    if len(sets) == 1:
        return _among(syntax.Key("token"), sets[0]), ()
    if all(len(keys) == 1 for keys in sets):
        entries = tuple(((token,), syntax.Literal_(keys[0])) for token, keys in looked.items())
        line = Assignment(name, syntax.Table((syntax.Token(),), entries, syntax.Nothing()))
        return syntax.Comparison("==", syntax.Key("token"), syntax.Name(name)), (line,)
    if len(sets) > _SETS:
        return None
    cases: list[Expression] = [
        syntax.And(
            _among(syntax.Token(), tuple(t for t, own in looked.items() if own == keys)),
            _among(syntax.Key("token"), keys),
        )
        for keys in sets
    ]
    return reduce(syntax.Or, cases), ()


def _among(value: Expression, tokens: tuple[str, ...]) -> Expression:
    return (
        syntax.Comparison("==", value, syntax.Literal_(tokens[0]))
        if len(tokens) == 1
        else syntax.In(value, tokens)
    )


_BUDGET, _NEAR, _FEW, _STANDS_IN = 0.98, 0.03, 8, 0.9
_WELL, _BETTER = 0.98, 0.02
_FIRST_ROWS, _FINALISTS = 8, 8
_ALTERNATIVES = 2
_DRAWN = 24
"""Positions of a picture of a pattern, at most."""
_LIKE = 4.0
"""What looking like the head's own pattern is worth, beside being simple, among equals."""


@dataclass(frozen=True)
class Pruned:
    """What is left of a model.

    Attributes:
        parts: Components that are needed.
        dropped: Component → what is left of the gain when it and all dropped before it are replaced
            by their means.
        edits: Replace what was dropped by its mean over positions and rows.
        gain: The gain that is left when these components alone are kept.
    """

    parts: tuple[Component, ...]
    dropped: dict[Component, float]
    edits: tuple[Edit, ...]
    gain: float


@dataclass(frozen=True)
class HeadDoes:
    """What one head does.

    Attributes:
        head: The head's layer and number.
        primitive: The pattern that stands in for its own.
        gain: What is left of the gain with it (of decisions at that token, where ``at`` names one).
        at: Text of the current token where it does this; empty for everywhere.
        tried: (words, gain) of the next best.
    """

    head: Component
    primitive: Primitive
    gain: float
    at: str = ""
    tried: tuple[tuple[str, float], ...] = ()


def prune(trial: DecisionTrial) -> Pruned:
    """Replace components by their means, the least needed first, as long as decisions stay.

    Args:
        trial: The model on a few dozen rows.
    """
    parts = components(trial.model)
    means = _means(trial, parts)

    def gain(without: Sequence[Component]) -> float:
        return trial.gain(trial.decisions_with(*(means[part] for part in without)))

    alone = {part: gain([part]) for part in parts}
    dropped: dict[Component, float] = {}
    left = 1.0
    for part in sorted(parts, key=lambda p: -alone[p]):
        if alone[part] < _BUDGET:
            break
        found = gain([*dropped, part])
        if found >= _BUDGET:
            dropped[part] = left = found
    kept = tuple(part for part in parts if part not in dropped)
    return Pruned(kept, dropped, tuple(means[part] for part in dropped), left)


def head_primitives(trial: DecisionTrial, queries: TokenRows, kept: Pruned) -> Iterator[HeadDoes]:
    """What each kept head does: the best primitives of each, the first the one that is taken.

    Args:
        trial: The model on a few dozen rows.
        queries: Some off the task, on which patterns that are alike on the task differ.
        kept: From :func:`prune`.
    """
    named: list[HeadDoes] = []
    shortest = np.argsort(trial.rows.lengths, kind="stable")[:_FIRST_ROWS]
    first = DecisionTrial(trial.model, trial.rows[shortest], trial.table)
    for part in kept.parts:
        if part.kind == "head":
            found = list(
                _name_head(
                    trial, first, queries, part, partial(substitution_decisions, kept, named)
                )
            )
            yield from found
            named += [one for one in found[:1] if one.gain >= _STANDS_IN]


def head_tables(trial: DecisionTrial, kept: Pruned) -> Iterator[HeadDoes]:
    """Describe heads by tables that say which key tokens each query token attends to.

    A table is read off the head's own attention pattern. Heads for which none can be made (too many
    different tokens, or a simpler primitive says the same) are left out.

    Args:
        trial: The model on a few dozen rows.
        kept: The components that pruning has kept, from :func:`prune`.

    Yields:
        For each kept head and each of its tables, the table and how well the model still decides
        when this table replaces the head's pattern.
    """
    model, rows = trial.model, trial.rows
    for part in kept.parts:
        if part.kind == "head":
            tables = list(by_pairs(model, rows, part, positions=knows_positions(model)))
            every = substitution_decisions(kept, [], part, trial, tables)
            for one, found in zip(tables, every, strict=True):
                yield HeadDoes(part, one, trial.gain(found))


_Substituted = Callable[[Component, DecisionTrial, Sequence[Primitive]], list[NDArray[Any]]]


def _name_head(
    trial: DecisionTrial,
    first: DecisionTrial,
    queries: TokenRows,
    head: Component,
    run: _Substituted,
) -> Iterator[HeadDoes]:
    model = trial.model
    tried = primitives(trial.rows, deep=head.layer > 0, positions=knows_positions(model))
    rough = [_gain_on_content(first, decisions) for decisions in run(head, first, tried)]
    finalists = sorted(range(len(tried)), key=lambda k: (-rough[k], tried[k].cost))[:_FINALISTS]
    chosen = [tried[k] for k in sorted(finalists)]
    found = list(zip(chosen, run(head, trial, chosen), strict=True))
    gains = [trial.gain(decisions) for _, decisions in found]
    inner = [_gain_on_content(trial, decisions) for _, decisions in found]
    best = max(inner)
    near = [k for k in range(len(found)) if inner[k] >= best - _NEAR]
    looked = [rows for rows in (trial.rows, queries) if len(rows)]
    own = [attention(model, rows, [head])[head] for rows in looked]
    like = {
        k: float(np.mean([overlap(*both, found[k][0]) for both in zip(own, looked, strict=True)]))
        for k in near
    }
    near = sorted(near, key=lambda k: found[k][0].cost - _LIKE * like[k])[:_ALTERNATIVES]
    if best < _STANDS_IN and tried[0] not in [found[k][0] for k in near]:
        found.append(
            (tried[0], run(head, trial, tried[:1])[0])
        )  # uneven as it is, it may count all the same
        gains.append(trial.gain(found[-1][1]))
        near = [*near, len(found) - 1]
    others = sorted(((found[k][0].words, gains[k]) for k in range(len(found))), key=lambda x: -x[1])
    for k in near:
        yield HeadDoes(head, found[k][0], gains[k], tried=tuple(others[:5]))
    yield from _elsewhere(trial, found[near[0]][1], head, tried, run)


def _gain_on_content(trial: DecisionTrial, found: NDArray[Any]) -> float:
    """Gain on the decisions at tokens that vary: what is done at a separator is asked apart."""
    rows, truth = trial.rows, trial.truth
    here = np.isin(rows.tokens[rows.asked], rows.content())
    here = here if here.sum() >= _FEW else np.ones_like(here)
    match = agreement(found[here], truth[here])
    base = agreement(trial.table(rows)[here], truth[here])
    return 1 - (1 - match) / (1 - base) if base < 1 else match


def attention(
    model: Any, rows: TokenRows, heads: Sequence[Component]
) -> dict[Component, Float[np.ndarray, "decision key"]]:
    """Heads' patterns where something is asked."""
    sites = {head: Site(head.layer, "pattern", head.head) for head in heads}
    found = activations(model, rows, [*sites.values()])
    return {head: found[site].float().numpy()[rows.asked] for head, site in sites.items()}


def overlap(own: Float[np.ndarray, "decision key"], rows: TokenRows, primitive: Primitive) -> float:
    """Share of a head's attention, where something is asked, that a primitive's pattern shares."""
    return float(np.minimum(own, ideal(primitive, rows)[rows.asked]).sum(-1).mean())


def _elsewhere(
    trial: DecisionTrial,
    taken: NDArray[Any],
    head: Component,
    tried: Sequence[Primitive],
    run: _Substituted,
) -> Iterator[HeadDoes]:
    """What a head does where the current token is one that does not vary."""
    rows, truth = trial.rows, trial.truth
    tokens, content = rows.tokens[rows.asked], rows.content()
    every: list[NDArray[Any]] = []
    for code in np.unique(tokens).tolist():
        here = tokens == code
        own = agreement(taken[here], truth[here])
        if code in content or here.sum() < _FEW or own >= _WELL:
            continue
        every = every or run(head, trial, tried)
        shares = [agreement(one[here], truth[here]) for one in every]
        best = max(shares)
        if best < own + _BETTER:
            continue
        near = [k for k in range(len(tried)) if shares[k] >= best - _BETTER / 2]
        pick = min(near, key=lambda k: tried[k].cost)
        yield HeadDoes(head, tried[pick], shares[pick], at=rows.vocabulary.texts[code])


def knows_positions(model: Any) -> bool:
    """Whether a model has position information: a position encoding or an attention bias by lag.

    True for models without a ``spec`` (not built by this package), which are not looked into.
    """
    spec = getattr(model, "spec", None)
    return spec is None or (spec.positions, spec.lag_bias) != ("none", "none")


def substitution_decisions(
    kept: Pruned,
    named: Sequence[HeadDoes],
    head: Component,
    trial: DecisionTrial,
    primitives: Sequence[Primitive],
) -> list[NDArray[Any]]:
    """Decisions with a head attending as each of some primitives says, those named before it as
    theirs say, and all that was dropped at its mean."""

    def attends(part: Component, one: Primitive) -> Edit:
        pattern = torch.from_numpy(ideal(one, trial.rows)).float()
        return Replace(Site(part.layer, "pattern", part.head), Array(pattern, one.words))

    fixed = [*kept.edits, *(attends(one.head, one.primitive) for one in named)]
    return [trial.decisions_with(*fixed, attends(head, one)) for one in primitives]


def _means(trial: DecisionTrial, parts: Sequence[Component]) -> dict[Component, Edit]:
    """The edits that put the mean over the positions of all rows, padding left out, in the place of
    what each part writes."""
    there = torch.from_numpy(trial.rows.tokens != NONE)
    sites = {part: next(sites_of(trial.model, part)) for part in parts}
    wanted = [*{site.every_head for site in sites.values()}]
    every = activations(trial.model, trial.rows, wanted)
    means = {part: site.take(every[site.every_head])[there].mean(0) for part, site in sites.items()}
    return {
        part: Replace(site, Array(means[part][None, None], "its mean"))
        for part, site in sites.items()
    }


def mean_patterns(
    model: Any, rows: TokenRows, head: Component, primitive: Primitive
) -> tuple[Float[np.ndarray, "query key"], Float[np.ndarray, "query key"]]:
    """Compute a head's attention pattern and a primitive's on one row, for plotting.

    Args:
        model: A hooked model.
        rows: The rows, of which the longest is used.
        head: The head.
        primitive: The attention pattern in closed form with which the head is compared.

    Returns:
        The head's pattern and the primitive's on the first 24 positions of this row (all of them if
        it is shorter).
    """
    longest = rows[np.argsort(-rows.lengths, kind="stable")[:1]]
    site = Site(head.layer, "pattern", head.head)
    n = min(int(longest.lengths[0]), _DRAWN)
    own = activations(model, longest, [site])[site][0, :n, :n].float().numpy()
    return own, ideal(primitive, longest)[0, :n, :n]


def line_heads(
    trial: DecisionTrial, kept: Pruned, program: Program, known: set[str]
) -> Iterator[tuple[str, HeadDoes]]:
    """(name of a line, the head it stands for) for the lines that look back and are not known.

    Args:
        trial: The model on a few dozen rows.
        kept: Components that are needed.
        program: The program whose lines are asked about.
        known: Names of lines that a head stands for already.
    """
    heads = [part for part in kept.parts if part.kind == "head"]
    if not heads:
        return
    patterns = attention(trial.model, trial.rows, heads)
    for number, line in enumerate(program.lines):
        looked = _looks(line.expression)
        if line.name in known or looked is None:
            continue
        where, which = looked
        words = f"as the line {line.name} says"
        one = Primitive(words, where, which, lines=program.lines[:number])
        shared = {head: overlap(own, trial.rows, one) for head, own in patterns.items()}
        head = max(heads, key=lambda h: shared[h])
        [found] = substitution_decisions(kept, [], head, trial, [one])
        gain = trial.gain(found)
        yield line.name, HeadDoes(head, one, gain, tried=((f"shares {shared[head]:.2f}", gain),))


def _looks(expression: Expression) -> tuple[Expression, syntax.Which | None] | None:
    """The first condition that a line looks back with, and how it picks."""
    for part in children(expression, deep=True):
        if isinstance(part, syntax.Pick):
            by_count = part.which in ("commonest", "rarest")
            return part.where, None if by_count else part.which
        if isinstance(part, syntax.CountWhere | syntax.Average):
            return part.where, None
        if isinstance(part, syntax.Count):
            return part, None
    return None
