"""Which components a model's decisions need, and what each needed head does.

    kept        components whose replacement by their mean, together with all that were replaced
                before, would lower the gain below its budget
    primitive   the simplest attention pattern that can replace a head's own in the otherwise
                unchanged model, and loses next to no gain

Everything is measured by the decisions of the model itself. Heads are described in the order of
their layers, in the pruned model. While a head is tried, earlier heads attend as their primitives
say (if these replace them well), and other heads as in the model. A head may do something else
where the current token is a separator: this is searched for separately. LayerNorms stay as they are
here; the resulting program has none.

That a pattern can replace a head's own does not show that the head attends so: if a head's pattern
matters little, several can, and the one chosen is simple and most like the head's own.

*Which tokens a head attends to from which*: a table on (current token, earlier token), read off its
attention pattern.

    weight(q, k) = mean, over positions with these tokens, of attention × number of visible keys
    attended     = weight(q, k) ≥ ½ max_k weight(q, k)

If each token attends to one other, the table becomes a line, ``partner = table(token) …``, with the
condition ``key.token == partner``; if all attend to the same tokens, the condition is ``key.token
in …``; otherwise there is a case for each set. A first token that all rows share is left out if
others are attended to, because heads rest there when there is nothing to attend to. Tables are for
small vocabularies, and for heads that depend on tokens alone; whether a head does is tested as for
every primitive, by replacing its pattern.

*Which head a line of a program stands for*, if the search did not begin with that head. A line that
looks at earlier positions has a pattern: the positions that it picks or counts. The needed head
whose attention overlaps most with it is named, and what remains of the model's decisions is
measured with the line's pattern in place of that head's. This comparison is made afterwards: a
small gain says that no single head does what the line says.
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
    """Describe a head's attention pattern by a table of which tokens attend to which.

    Args:
        model: A hooked model.
        rows: Some rows of its task.
        head: The head's layer and number.
        positions: Whether the model has position information.

    Yields:
        The table as a primitive that attends to all matching tokens and, with position information,
        as one that attends to the last of them. Nothing for more than twelve tokens, or if a
        simpler primitive says the same.
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
    """Return how much attention each token gives to each earlier token, relative to even attention;
    0 for pairs that never occur."""
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
    """Return, for the index of each token, the indices of the tokens that it attends to."""
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
    """Return a condition on (current token, key's token) for a table, and the line it needs, if
    any.

    None for tables that a simpler primitive describes (equal tokens, all tokens) and for more than
    three sets of tokens.

    Args:
        looked: Token → the tokens that it attends to.
        name: The name of the line.
    """
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
"""Largest number of positions that a picture of an attention pattern shows."""
_LIKE = 4.0
"""Weight of the overlap (0 to 1) between a primitive's attention and the head's own, measured in
units of the primitive's cost. It ranks primitives whose gains are nearly equal."""


@dataclass(frozen=True)
class Pruned:
    """A model after pruning: its needed components, with all others replaced by their means.

    Attributes:
        parts: The components that are needed.
        dropped: Component → the gain that is left when it and all dropped before it are replaced by
            their means.
        edits: The edits that replace the dropped components' outputs by their means over positions
            and rows.
        gain: The gain that is left with these edits.
    """

    parts: tuple[Component, ...]
    dropped: dict[Component, float]
    edits: tuple[Edit, ...]
    gain: float


@dataclass(frozen=True)
class HeadDoes:
    """A head with a primitive that can replace its attention pattern.

    Attributes:
        head: The head's layer and number.
        primitive: The pattern that replaces the head's own.
        gain: The gain that is left with the primitive; if ``at`` names a token, the share of
            decisions at that token that stay the same.
        at: Text of the current token where the head does this; empty for everywhere.
        tried: (words, gain) of the primitives with the largest gain; for a line's head, its overlap
            with the line's pattern instead.
    """

    head: Component
    primitive: Primitive
    gain: float
    at: str = ""
    tried: tuple[tuple[str, float], ...] = ()


def prune(trial: DecisionTrial) -> Pruned:
    """Replace components by their means, the least needed first, while the model's decisions stay.

    Args:
        trial: The model on a few dozen rows.

    Returns:
        The components that are left. Each replacement leaves a gain of at least 0.98.
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
    """Find, for each kept head, the primitives that can best replace its attention pattern.

    Args:
        trial: The model on a few dozen rows.
        queries: Rows off the task, on which patterns differ that are alike on the task.
        kept: The pruned model, from :func:`prune`.

    Yields:
        The best primitives of each head, the chosen one first; then what the head does at
        separators, if that differs.
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
    """Return the gain on the decisions at tokens that vary between rows; what a head does at a
    separator is tested separately."""
    rows, truth = trial.rows, trial.truth
    here = np.isin(rows.tokens[rows.asked], rows.content())
    here = here if here.sum() >= _FEW else np.ones_like(here)
    match = agreement(found[here], truth[here])
    base = agreement(trial.table(rows)[here], truth[here])
    return 1 - (1 - match) / (1 - base) if base < 1 else match


def attention(
    model: Any, rows: TokenRows, heads: Sequence[Component]
) -> dict[Component, Float[np.ndarray, "decision key"]]:
    """Return the attention of some heads at the scored positions."""
    sites = {head: Site(head.layer, "pattern", head.head) for head in heads}
    found = activations(model, rows, [*sites.values()])
    return {head: found[site].float().numpy()[rows.asked] for head, site in sites.items()}


def overlap(own: Float[np.ndarray, "decision key"], rows: TokenRows, primitive: Primitive) -> float:
    """Return the mean over scored positions of Σ_key min(head's attention, primitive's attention).

    Args:
        own: The head's attention at the scored positions.
        rows: The rows.
        primitive: The primitive.
    """
    return float(np.minimum(own, ideal(primitive, rows)[rows.asked]).sum(-1).mean())


def _elsewhere(
    trial: DecisionTrial,
    taken: NDArray[Any],
    head: Component,
    tried: Sequence[Primitive],
    run: _Substituted,
) -> Iterator[HeadDoes]:
    """Yield what a head does at current tokens that do not vary, if another primitive does better
    there."""
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
    """Return whether a model has position information: a position encoding or an attention bias by
    lag.

    True for models without a ``spec`` (not built by this package), which are not inspected.
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
    """Return the model's decisions with a head's attention pattern replaced by each of some
    primitives.

    Args:
        kept: The pruned model, whose dropped components are at their means.
        named: Earlier heads, whose patterns are replaced by their primitives as well.
        head: The head.
        trial: The model on some rows.
        primitives: The primitives, tried one by one.

    Returns:
        The decisions for each primitive.
    """

    def attends(part: Component, one: Primitive) -> Edit:
        pattern = torch.from_numpy(ideal(one, trial.rows)).float()
        return Replace(Site(part.layer, "pattern", part.head), Array(pattern, one.words))

    fixed = [*kept.edits, *(attends(one.head, one.primitive) for one in named)]
    return [trial.decisions_with(*fixed, attends(head, one)) for one in primitives]


def _means(trial: DecisionTrial, parts: Sequence[Component]) -> dict[Component, Edit]:
    """Return, for each component, the edit that replaces its output by the mean over the positions
    of all rows, without padding."""
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
    """Find the head that each line of a program stands for, for lines that look at earlier
    positions.

    Args:
        trial: The model on a few dozen rows.
        kept: The pruned model.
        program: The program.
        known: Names of lines that stand for a head already; these are left out.

    Yields:
        The line's name, and the head whose attention overlaps most with the line's pattern, with
        the gain that is left with this pattern in its place.
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
    """Return the first condition on earlier positions in an expression, and how it picks one of
    them.

    None for an expression that does not look at earlier positions; the second is None if all
    positions count.
    """
    for part in children(expression, deep=True):
        if isinstance(part, syntax.Pick):
            by_count = part.which in ("commonest", "rarest")
            return part.where, None if by_count else part.which
        if isinstance(part, syntax.CountWhere | syntax.Average):
            return part.where, None
        if isinstance(part, syntax.Count):
            return part, None
    return None
