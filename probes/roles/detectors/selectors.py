"""Detect heads that attend by a simple rule: to a fixed position, by a relation of tokens, or with
a period.

    fixed-position        one position that follows from the query's own, i → f(i)
    token-comparison      all keys whose token is equal to, smaller than, … the query's
    positional-periodic   every p-th position

The rule is chosen on every second row and tested on the others (:mod:`probes.roles.selecting`).
Attention must be close to even attention over the rule's keys, and closer than chance: than to the
keys that another row's tokens give, or than even attention over all keys is. The cause is tested by
removing the attention to these keys.

A rule about positions must also hold on rows made of the same tokens that repeat with periods of
their own, which separates positions from tokens. If there are no such rows and the token at f(i) is
the same in every row, the causal test cannot be made, and ``missing`` says so; with too few tokens
or positions the role is not tested for. Relations are between the tokens' numbers: an order that
the numbers do not have is not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from probes.roles.change import over_rows
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.evidence import Evidence, Keys, Place
from probes.roles.examined import Examined, of_head
from probes.roles.selecting import OTHERS, Chosen, Seen, closeness

_KEYS = {
    "fixed-position": "fixed",
    "token-comparison": "related",
    "positional-periodic": "periodic",
}
_SYMBOLS, _POSITIONS = 4, 8
_ALIKE = (
    "cause: the token there is the same in every row, so that its position and the token are not "
    "told apart"
)


def rules(evidence: Evidence) -> tuple[dict[str, str], list[Lacking]]:
    """Return the roles that can be tested for, and why the others cannot.

    Args:
        evidence: The model and its rows.

    Returns:
        Role → its kind of predicate (``fixed``, ``related`` or ``periodic``); and the roles that
        cannot be tested for, with the reason.
    """
    if evidence.model is None:
        return {}, [Lacking(role, "no model can be run") for role in _KEYS]
    inputs = evidence.views["given"].batch.inputs
    if inputs.shape[1] < _POSITIONS:
        words = f"rows have {inputs.shape[1]} positions, and {_POSITIONS} are needed"
        return {}, [Lacking(role, words) for role in _KEYS]
    symbols = len(inputs[:, 1:].unique()) if inputs.ndim == 2 else 0
    asked = {r: keys for r, keys in _KEYS.items() if keys != "related" or symbols >= _SYMBOLS}
    words = f"{symbols} tokens are in use, and {_SYMBOLS} are needed"
    few = inputs.ndim == 2 and symbols < _SYMBOLS
    return asked, [Lacking("token-comparison", words)] if few else []


def examine_selection(of: Examined, place: Place, asked: Mapping[str, str]) -> Iterator[Found]:
    """Test whether one head attends evenly to the keys that a simple predicate selects.

    For each role, a predicate of its kind is fitted to the head's attention on rows 0, 2, 4, … and
    tested on rows 1, 3, 5, …. If the behaviour tests pass and a model can be run, the causal test
    removes the head's attention to the selected keys.

    Args:
        of: The model's evidence, and the effects of ablations on it.
        place: The head, as (layer, head).
        asked: Role name → kind of predicate: ``fixed`` (one position that depends on the query's
            position), ``related`` (a relation between the two tokens) or ``periodic`` (every p-th
            position). See :func:`rules`.

    Yields:
        One finding per role, whether or not its tests pass.
    """
    if not asked:
        return
    seen = of.evidence.head_attention(place)
    for role, keys in asked.items():
        yield _of(of, place, role, keys, seen)


def _of(of: Examined, place: Place, role: str, keys: str, seen: Seen) -> Found:
    """Make the finding of one role for one head."""
    evidence, judged = of.evidence, seen.half(1)
    chosen: Chosen = getattr(seen.half(0), keys)()

    def own(kind: str) -> Keys:
        return chosen.selects(evidence.batch(kind).inputs)

    tests = [
        *_behaviour(evidence, judged, chosen, keys),
        *_new_rule_tests(evidence, seen, chosen, keys),
    ]
    if keys != "related" and holds(tests) and "repeated" in evidence.views:
        tests.append(_elsewhere(evidence, place, chosen, keys))
    cause: list[Test] | None = None
    if of.effects is not None:
        cause = []
        if holds(tests):
            told = keys != "fixed" or _tokens_differ(evidence, judged, chosen)
            untested = Test(_ALIKE, 0.0, 1.0, 1.0, untested=_ALIKE)
            cause = of.effects.without_keys(place, keys, own) if told else [untested]
    return of_head(place, role, tests, cause, target=chosen.words, keys=own)


def _behaviour(evidence: Evidence, judged: Seen, chosen: Chosen, keys: str) -> list[Test]:
    """Test whether attention is close to even attention over the rule's keys, and closer than
    chance."""
    floors, selected = evidence.floors, chosen.selects(judged.inputs)
    close = closeness(judged, selected)
    if keys == "related":
        chance, words = (
            closeness(judged, chosen.selects(judged.inputs.roll(1, 0))),
            "other rows' tokens",
        )
    else:
        even = judged.allowed / judged.allowed.sum(-1, keepdim=True).clamp_min(1)
        even = even.to(judged.pattern).expand_as(judged.pattern)
        chance, words = closeness(replace(judged, pattern=even), selected), "even attention"
    kept = ~(close.isnan() | chance.isnan())
    share, beyond = (over_rows(some[kept].numpy()) for some in (close, close - chance))
    least = floors.share if keys == "fixed" else floors.selected
    return [
        share.test(f"closeness to even attention over those keys ({chosen.words})", least, keys),
        beyond.test(f"beyond {words}", floors.excess, f"{keys} beyond"),
    ]


def _elsewhere(evidence: Evidence, place: Place, chosen: Chosen, keys: str) -> Test:
    """Test whether the rule also holds on the ``repeated`` rows, in which tokens stand at other
    positions."""
    floors, other = evidence.floors, evidence.head_attention(place, "repeated")
    close = closeness(other, chosen.selects(other.inputs))
    found = over_rows(close[~close.isnan()].numpy())
    least = floors.share if keys == "fixed" else floors.selected
    return found.test(
        "the same on rows in which tokens stand elsewhere", least, f"{keys} elsewhere"
    )


def _new_rule_tests(evidence: Evidence, seen: Seen, chosen: Chosen, keys: str) -> list[Test]:
    """Test that the rule is not one that another role is about."""
    if keys == "related":
        other = chosen.words.startswith(OTHERS)
        return [Test("the relation is none that another role is about,", float(not other), 1.0)]
    if keys == "periodic":
        return []
    size = seen.allowed.shape[-1]
    at, own = chosen.selects(seen.inputs)[0].long().argmax(-1), torch.arange(size)
    named = (at == own) | (at == own - 1) | (at == 0)
    queries = seen.counted.any(0)
    share = float((~named[queries]).double().mean()) if bool(queries.any()) else 0.0
    words = "queries whose position is not their own, the one before or the first, a share of"
    return [Test(words, share, 1 - evidence.floors.share)]


def _tokens_differ(evidence: Evidence, judged: Seen, chosen: Chosen) -> bool:
    """Return whether a rule about positions can be told from one about tokens.

    It can on ``repeated`` rows, or if for at least half of the queries the token at the selected
    position differs between rows.
    """
    if judged.inputs.ndim != 2 or "repeated" in evidence.views:
        return True
    at = chosen.selects(judged.inputs)[0].long().argmax(-1)
    there: Tensor = judged.inputs[:, at[judged.counted.any(0)]]
    return float((there != there[:1]).any(0).double().mean()) >= 0.5
