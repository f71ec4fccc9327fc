"""Detect roles of heads that are defined by where they attend.

    previous-token, sink, local       share of attention to t − 1, to the first position, to the
                                      last few positions (neither t nor t − 1 alone)
    duplicate-token, induction        share to earlier equal tokens (not itself), to the tokens
                                      after them; induction also depends on what earlier heads
                                      wrote about the previous token
    positional                        the same attention on all rows, unless another name fits
    uniform                           even over all earlier positions
    dense                             uneven, and none of these (nor on its own position)
    fixed-position and others         what a predicate selects
                                      (:mod:`probes.roles.detectors.selectors`)

A share must be large, and larger than under a null: permuted keys, or other rows' tokens. Under the
latter, a head that attends by position alone has no excess. The cause is tested by ablating the
attention, or the head. An induction head's share must also fall when earlier heads lose their
attention to the previous token and nothing else, because the head finds its keys by what they wrote
about it. A head with less attention to the previous token than the floor still counts as a
previous-token head if an induction head's share falls when this head alone loses that attention.

Untrained heads attend evenly too, or unevenly in no way that has a name. Where little but the
average of a row reaches the output, as in narrow networks, such heads matter as well. Uniform and
dense heads are therefore compared with freshly initialised models
(:mod:`probes.roles.reinit_null`). If the task is an average, a dense head may implement its weights
instead: exchanging its attention pattern between rows moves the answers as exchanging the weights
would.

Not for attention that is not normalised, for which a share is not defined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from interp.tasks.counterfactual import Variable
from probes.roles.acting import Acting
from probes.roles.change import over_rows
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.detectors.selectors import examine_selection, rules
from probes.roles.effects import Effects
from probes.roles.evidence import Evidence, Place
from probes.roles.examined import Examined, of_head
from probes.roles.exchange import exchange_tests
from probes.roles.looking import NO_KEYS, single_lags
from probes.roles.selecting import closeness

_BY_POSITION = {
    "previous-token": ("previous", "the previous token"),
    "sink": ("first", "the first position"),
    "local": ("local", "the last few positions"),
}
_BY_TOKEN = {
    "duplicate-token": ("same", "earlier equal tokens"),
    "induction": ("after_same", "what followed equal tokens"),
}
_FRESH = {
    "gain": "steeper effect than in untrained models",
    "even": "more even than in untrained models, whose heads are not,",
    "both": "more uneven and of steeper effect than in untrained models",
}

_BEYOND = 0.95
"""The least 1 − p against fresh heads."""

_SAME_WRITE = (
    "cause: what it writes is the same on every row, so that its effect is not compared with fresh "
    "heads'"
)


def attention_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test every head for the roles that are defined by where it attends.

    Yields:
        A finding for each head and role, whether its tests pass or not; and the roles that could
        not be tested for. Nothing if attention is not normalised.
    """
    evidence, effects = of.evidence, of.effects
    if not evidence.normalised:
        return
    weights = [variable for variable in of.sought if variable.role == "dense"]
    asked, lacking = rules(evidence) if "uniform" in evidence.profile.rows else ({}, [])
    yield from lacking
    if effects is not None:
        effects.expect([*_heads_to_ablate(evidence)])
    found: dict[Place, list[Found | Lacking]] = {}
    # Late layers first: a fresh model is run from the head's layer on, and with heads known that
    # are far out, fewer fresh models settle the next.
    for place in of.watch(evidence.heads[::-1]):
        first = list(examine_selection(of, place, asked))
        named = any(holds(one.behaviour) for one in first)
        found[place] = [*first, *_of(evidence, effects, place, weights, named=named)]
    for place in evidence.heads:
        yield from found[place]


def _heads_to_ablate(evidence: Evidence) -> Iterator[tuple[Place, str]]:
    """Yield each head whose causal test will be needed, with the key set to which its attention is
    removed; an empty name stands for ablating the head."""
    for place in evidence.heads:
        for role, (keys, _) in (_BY_POSITION | _BY_TOKEN).items():
            known = keys in evidence.profile.rows and evidence.share(place, keys) is not None
            tests = _behaviour(evidence, place, role) if known else []
            if tests and holds(tests) and not _missing(evidence, role):
                yield place, keys
        tests = [] if "uniform" in evidence.profile.rows else _alike(evidence, place)
        if tests and holds(tests):
            yield place, ""


def _of(
    evidence: Evidence,
    effects: Effects | None,
    place: Place,
    weights: Sequence[Variable],
    *,
    named: bool,
) -> Iterator[Found | Lacking]:
    rows = evidence.profile.rows
    for role, (keys, _) in (_BY_POSITION | _BY_TOKEN).items():
        if keys not in rows:
            continue
        if evidence.share(place, keys) is None:
            yield Lacking(role, f"no {rows[keys]} rows of tokens are there to look at")
            continue
        tests = _behaviour(evidence, place, role)
        acting = None if holds(tests) else evidence.acting(place, keys)
        within = [] if acting is None else _at_positions(acting, tests)
        if role == "previous-token" and not holds(tests) and effects is not None:
            tests = _read_later(evidence, effects, place) or tests
        at = (acting.first, acting.last) if acting and not holds(tests) and holds(within) else ()
        tests = within if at else tests
        named |= holds(tests)
        cause = _cause(evidence, effects, place, role, tests)
        found = of_head(place, role, tests, cause, missing=_missing(evidence, role))
        yield replace(found, positions=at)
    if "uniform" not in rows:
        yield from _positional(evidence, effects, place)
        return
    tests = _even(evidence, place)
    if not holds(tests):
        tests = _even_but_some(evidence, place) or tests
    named |= holds(tests)
    cause = _matters(evidence, effects, place, "gain") if holds(tests) else []
    yield of_head(place, "uniform", tests, cause)
    own = _score(evidence, place, "own")
    if not named and own < evidence.floors.share:
        away, floor = 1 - _score(evidence, place, "uniform"), 1 - evidence.floors.even
        tests = [Test("distance from even attention", away, floor)]
        cause = _uneven(evidence, effects, place, weights) if holds(tests) else []
        yield of_head(place, "dense", tests, cause)


def _missing(evidence: Evidence, role: str) -> str:
    """Return why the cause of a role about equal tokens is not tested, if no rows that repeat can
    be made; else an empty string."""
    if role in _BY_TOKEN and evidence.kind("same") == "given" and evidence.model is not None:
        return "cause: these rows are too short, or have too few tokens, to be made to repeat"
    return ""


def _score(evidence: Evidence, place: Place, keys: str) -> float:
    share = evidence.share(place, keys)
    return 0.0 if share is None else share.score


def _behaviour(evidence: Evidence, place: Place, role: str) -> list[Test]:
    floors = evidence.floors
    keys, words = (_BY_POSITION | _BY_TOKEN)[role]
    kind = evidence.kind(keys)
    on = "" if kind == "given" else f", {kind} rows"
    null = "positions" if kind == "given" else "tokens" if role in _BY_TOKEN else "positions"
    share = evidence.share(place, keys, null) or NO_KEYS
    beyond = "other rows' tokens" if null == "tokens" else "even attention"
    least = floors.local if role == "local" else floors.share
    tests = [
        share.test(f"share of attention to {words}{on}", least),
        share.beyond(f"beyond {beyond}", floors.excess),
    ]
    if role == "local":
        lags = [_score(evidence, place, lag) for lag in single_lags(floors.window)]
        tests.append(Test("kept from any one position", 1 - max(lags), 1 - floors.share))
    if role == "duplicate-token" and floors.elsewhere > 0:
        own = _score(evidence, place, "own")
        tests.append(Test("attention kept from itself", 1 - own, floors.elsewhere))
    return tests


def _at_positions(found: Acting, tests: Sequence[Test]) -> list[Test]:
    """Make the tests of a share of attention and its excess over the range of positions where the
    head acts."""
    at, shares = f" at positions {found.first} to {found.last}", (found.share, found.excess)
    within = [
        change.test(test.name + at, test.floor, test.name)
        for change, test in zip(shares, tests[:2], strict=True)
    ]
    return [*within, *tests[2:]]


def _even(evidence: Evidence, place: Place) -> list[Test]:
    share = evidence.share(place, "uniform")
    if share is None:
        return [Test("closeness to even attention", 0.0, evidence.floors.even, 1.0)]
    return [share.test("closeness to even attention", evidence.floors.even)]


def _even_but_some(evidence: Evidence, place: Place) -> list[Test]:
    """Test whether attention is even over a subset of positions: all but the first, or all up to
    the query.

    The subset is chosen on every second row and tested on the others. Empty if the test fails or
    there is no model.
    """
    if evidence.model is None:
        return []
    seen = evidence.head_attention(place)
    chosen, judged = seen.half(0).even(), seen.half(1)
    close = closeness(judged, chosen.selects(judged.inputs), whole=True)
    found = over_rows(close[~close.isnan()].numpy())
    name = f"closeness to even attention over {chosen.words}"
    tests = [found.test(name, evidence.floors.even, "even over some")]
    return tests if holds(tests) else []


def _cause(
    evidence: Evidence, effects: Effects | None, place: Place, role: str, tests: list[Test]
) -> list[Test] | None:
    """Return the tests that removing the head's attention to the role's keys matters.

    For induction they also include that the share falls without earlier heads' attention to the
    previous token and, if targets are known, that the loss rises. None without a model; empty if
    the behaviour fails.
    """
    if effects is None:
        return None
    if not holds(tests) or _missing(evidence, role):
        return []
    keys, _ = (_BY_POSITION | _BY_TOKEN)[role]
    if role != "induction":
        return effects.without_keys(place, keys)
    lost = [*effects.losing_keys(place, keys), *effects.without_keys(place, keys)]
    first = _composition(evidence, effects, place)
    if not first.untested and first.score < first.floor and holds(lost):
        # The head is needed, so it finds its keys somehow: who tells it where was not seen.
        why = f"cause: {first.name} {first.score:.2f}, where {first.floor:g} is asked"
        first = replace(first, untested=why)
    return [first, *lost]


def _composition(evidence: Evidence, effects: Effects, place: Place) -> Test:
    """Test whether an induction head's share falls when earlier heads lose their attention to the
    previous token.

    The earlier heads are those with enough attention on the previous token over whole rows; if
    there are none, those with enough of it at the keys that this head reads; if there are none
    either, all earlier heads, among which it may be spread.
    """
    floor, least = evidence.floors.fall, evidence.floors.writer
    earlier = [other for other in evidence.heads if other[0] < place[0]]
    like = [one for one in evidence.heads if _score(evidence, one, "previous") >= least]
    writers = [one for one in like if one[0] < place[0]]
    without = [one for one in like if one != place]  # the same for most heads: run once
    if not writers:
        writers = [one for one in earlier if _at_read_keys(evidence, place, one) >= least]
        writers = without = writers or earlier
    if not writers:
        why = "cause: there is no earlier head that could tell it of the token before"
        return Test(why, 0.0, floor, 1.0, untested=why)
    writers = sorted(writers, key=lambda one: -_score(evidence, one, "previous"))  # to be named
    names = ", ".join(f"L{layer}H{head}" for layer, head in writers[:4])
    names += " …" * (len(writers) > 4)
    words = f"without what earlier heads ({names}) see of the token before that share falls by"
    return effects.falls.without(place, "after_same", without, "previous").test(
        words, floor, "composition"
    )


def _at_read_keys(evidence: Evidence, reader: Place, other: Place) -> float:
    """Return an earlier head's share of attention on the previous token, averaged over the
    positions that another head attends to, weighted by that head's attention to what followed equal
    tokens."""
    kind = evidence.kind("after_same")
    layers = {place[0]: torch.cat(evidence.patterns(kind, place[0])) for place in (reader, other)}
    keys = evidence.keys(kind, "after_same")
    read = (layers[reader[0]][:, reader[1]] * keys).sum(1)[:, 1:]
    before = layers[other[0]][:, other[1]].diagonal(-1, 1, 2)
    return float((read * before).sum() / read.sum().clamp_min(1e-12))


def _read_later(evidence: Evidence, effects: Effects, place: Place) -> list[Test]:
    """Test whether a head with some attention on the previous token is read by a later induction
    head.

    Empty if the head's share or its excess is too small, or if no later head has the behaviour of
    induction.
    """
    if "after_same" not in evidence.profile.rows or evidence.share(place, "after_same") is None:
        return []
    share, floors = evidence.share(place, "previous") or NO_KEYS, evidence.floors
    if min(share.score - floors.writer, share.effect - floors.excess) < 0:
        return []
    later = [other for other in evidence.heads if other[0] > place[0]]
    readers = [r for r in later if holds(_behaviour(evidence, r, "induction"))]
    fallen = {
        reader: effects.falls.without(reader, "after_same", [place], "previous")
        for reader in readers
    }
    if not fallen:
        return []
    reader = max(fallen, key=lambda one: fallen[one].score)
    words = f"of L{reader[0]}H{reader[1]}'s attention to what followed equal tokens, lost without"
    return [
        share.test("share of attention to the previous token, which is read,", floors.writer),
        share.beyond("beyond even attention", floors.excess),
        fallen[reader].test(words, floors.fall, "read later"),
    ]


def _uneven(
    evidence: Evidence, effects: Effects | None, place: Place, weights: Sequence[Variable]
) -> list[Test] | None:
    """Return the causal tests of a dense head.

    These are that exchanging its attention between rows moves the answers as exchanging the weights
    of the task's average would; or, if they do not pass or the task has no average, that the head
    matters more than fresh heads do. None without a model.
    """
    if effects is None:
        return None
    for variable in weights:
        moved = exchange_tests(evidence, place, "attention", variable)
        if holds(moved):
            return [*moved, *effects.without_head(place, over="later")]
    return _matters(evidence, effects, place, "both")


def _matters(
    evidence: Evidence, effects: Effects | None, place: Place, score: str
) -> list[Test] | None:
    """Test whether ablating a head matters and, if it does, whether it matters more than for fresh
    heads.

    Args:
        evidence: The model and its rows.
        effects: The effects of ablations; None without a model.
        place: Layer and number of the head.
        score: What is compared with fresh heads: ``gain`` (or evenness, if fresh heads are not
            even) or ``both``.

    Returns:
        The tests; None without a model.
    """
    if effects is None:
        return None
    over = "all" if score == "gain" else "later"
    cause = effects.without_head(place, over=over)
    if cause[-1].score < cause[-1].floor:
        return cause
    found, words = None, _FRESH["even"]
    if score == "gain":
        found = evidence.fresh.evenness(*place, evidence.floors.even)
        uneven = found is None or 1 - found.p < _BEYOND
        if uneven and effects.writes.same_on_all_rows(place):
            untested = Test(_SAME_WRITE, 0.0, _BEYOND, 1.0, family="fresh", untested=_SAME_WRITE)
            return [untested, *cause]
    if found is None:
        found, words = getattr(evidence.fresh, score)(*place), _FRESH[score]
    name = f"{words} (1 − p, against {found.draws} fresh heads)"
    return [Test(name, 1 - found.p, _BEYOND, found.p, family="fresh"), *cause]


def _positional(
    evidence: Evidence, effects: Effects | None, place: Place
) -> Iterator[Found | Lacking]:
    """Test whether a head's attention is the same on all rows, and neither on the previous token
    nor on the first position."""
    alike, tests = evidence.score(place, "positional", "shuffled"), _alike(evidence, place)
    if alike is None:
        yield Lacking("positional", "no shuffled rows of tokens are there to look at")
        return
    cause: list[Test] | None = None
    if effects is not None:
        cause = effects.without_head(place) if holds(tests) else []
    yield of_head(place, "positional", tests, cause, alike.score)


def _alike(evidence: Evidence, place: Place) -> list[Test]:
    """Return the tests that attention is the same on all rows; none if that was not measured."""
    alike, floors = evidence.score(place, "positional", "shuffled"), evidence.floors
    if alike is None:
        return []
    shares = [evidence.share(place, keys) for keys in ("previous", "first")]
    named = max((share.effect for share in shares if share is not None), default=0.0)
    return [
        alike.beyond("cosine of attention on different rows above the null", floors.positional),
        Test("attention kept from the token before and the first", 1 - named, 1 - floors.excess),
    ]
