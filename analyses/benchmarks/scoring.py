"""Precision, recall and F1 of confirmed roles against the known ones, and false alarms on decoys.

A claim (component, layer, head, role, target) is a hit when it was confirmed and is true; only
confirmed roles count. A role with fewer than five positives counts 0 in ``min_role_f1``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from prooflens.roles import SHIPPED

__all__ = ["COMPOSED", "LANGUAGE_ROLES", "PEERS", "ROLES", "Claim", "Outcome", "is_open", "score"]

_UNTOLD = (
    "memory-correction",
    "memory-mixture",
    "counting",
    "gating",
    "unmixing",
    "sharpening",
    "passing-on",
)
"""Roles of the task profile that are not scored, because no construction has them:
``memory-correction`` counts as ``memory-location``, and FFNs other than readouts are planted in
models of their own (:mod:`analyses.benchmarks.planted_ffns`)."""

_BESIDE = ("positional", "lookup")
"""Roles of a task that hold beside a component's job, such as a table of what it computes. Lists of
true roles do not have them, so that they count in decoys alone."""

ROLES = tuple(
    role.name
    for role in SHIPPED
    if "task" in role.profiles and role.name not in {*_UNTOLD, *_BESIDE}
)
"""Roles of the task profile that are scored."""

LANGUAGE_ROLES = tuple(
    role.name for role in SHIPPED if "language" in role.profiles and role.name not in _UNTOLD
)
"""Roles of the language profile that are scored."""

COMPOSED = ("virtual-copying", "composed-equality")
"""Roles of heads that read what earlier heads wrote. Their target names the earlier head."""

PEERS = {
    "previous-token": "previous_token_head",
    "duplicate-token": "duplicate_token_head",
    "induction": "induction_head",
}
"""Role → the name of the same pattern in TransformerLens' ``detect_head``."""

_ATTENDING = ("previous-token", "sink", "local", "dense")
"""Roles that only say at which positions a head looks, whatever the tokens are."""
_FEWEST = 5

Claim = tuple[str, int, int, str, str]
"""A role of a component: component, layer, head, role, target."""


class Outcome(dict[str, Any]):
    """What was found in one model, beside what is true of it.

    Its keys are ``name``; ``decoy``; ``truth`` and ``found`` (sets of claims); ``unscored``
    (components with a job of another kind); ``exempt`` (claims that count neither as right nor as
    wrong); ``peers`` (what TransformerLens' detector found); and ``named``: for a decoy whose one
    head is needed for everything, whether it was called so, else None.
    """


def score(outcomes: Sequence[Outcome], roles: Sequence[str] = ROLES) -> dict[str, Any]:
    """Score what was found in some models.

    Args:
        outcomes: What was found in each model.
        roles: The roles that are scored.

    Returns:
        Precision, recall and F1 of each role and of all together, and how often roles were
        confirmed in decoys. The keys are described in :mod:`analyses.benchmarks.roles`.
    """
    real = [o for o in outcomes if not o["decoy"]]
    fakes = [o for o in outcomes if o["decoy"]]
    hits, alarms, misses = Counter[str](), Counter[str](), Counter[str]()
    wrong = []
    for one in real:
        found = _scored_claims(one, roles)
        hits.update(c[3] for c in found & one["truth"])
        alarms.update(c[3] for c in found - one["truth"])
        misses.update(c[3] for c in one["truth"] - found)
        wrong += [f"{one['name']}: false {c}" for c in sorted(found - one["truth"])]
        wrong += [f"{one['name']}: missed {c}" for c in sorted(one["truth"] - found)]
    taken = [(o["name"], sorted(c for c in o["found"] if not is_open(c, o))) for o in fakes]
    wrong += [f"{name}: decoy {claim}" for name, claims in taken for claim in claims]
    needed = [one for one in fakes if one.get("named") is not None]
    wrong += [f"{one['name']}: not called needed" for one in needed if not one["named"]]
    rates = {role: _rates(hits[role], alarms[role], misses[role]) for role in roles}
    known = [r["f1"] if r["positives"] >= _FEWEST else 0.0 for r in rates.values()]
    return {
        "f1": _rates(hits.total(), alarms.total(), misses.total())["f1"],
        "min_role_f1": min(known),
        "decoy_rate": sum(bool(claims) for _, claims in taken) / max(len(fakes), 1),
        "needed": len(needed),
        "needed_named": sum(one["named"] for one in needed) / max(len(needed), 1),
        "cases": len(real),
        "decoys": len(fakes),
        "roles": rates,
        "confusion": _confusion(real, roles).to_dict(),
        "detect_head": _peer_rates(real) if any(one["peers"] is not None for one in real) else {},
        "wrong": wrong,
    }


def _scored_claims(one: Outcome, roles: Sequence[str]) -> set[Claim]:
    """Return the confirmed claims of a model whose truth is known.

    Left out are components with a job of another kind, exempt claims, roles that hold beside a job
    and are in no list, and roles that only say where a head looks, if the mechanism says of the
    head that it copies and no more.
    """
    told: dict[tuple[str, int, int], set[str]] = {}
    for claim in one["truth"]:
        told.setdefault(claim[:3], set()).add(claim[3])
    return {
        claim
        for claim in one["found"]
        if claim[:3] not in one["unscored"]
        and not is_open(claim, one)
        and (claim[3] not in _BESIDE or claim[3] in roles)
        and not (claim[3] in _ATTENDING and told.get(claim[:3]) == {"copying"})
    }


def is_open(claim: Claim, one: Outcome) -> bool:
    """Return whether a claim is exempt, so that it counts neither as right nor as wrong. An exempt
    claim without a target exempts all targets."""
    return claim in one["exempt"] or (*claim[:4], "") in one["exempt"]


def _rates(hits: int, alarms: int, misses: int) -> dict[str, float]:
    return {
        "positives": hits + misses,
        "precision": hits / (hits + alarms) if hits + alarms else 0.0,
        "recall": hits / (hits + misses) if hits + misses else 0.0,
        "f1": 2 * hits / (2 * hits + alarms + misses) if hits + alarms + misses else 0.0,
    }


def _confusion(real: Sequence[Outcome], roles: Sequence[str]) -> pd.DataFrame:
    """Count, for each true role, as what its component was confirmed."""
    pairs = Counter[tuple[str, str]]()
    for one in real:
        for claim in one["truth"]:
            taken = {c[3] for c in one["found"] if c[:3] == claim[:3]} or {"none"}
            others = taken - {c[3] for c in one["truth"] if c[:3] == claim[:3]}
            said = {claim[3]} if claim in one["found"] else others or {"none"}
            pairs.update((claim[3], role) for role in said)
    table = pd.DataFrame(0, index=[*roles, "none"], columns=list(roles))
    for (true, confirmed), count in pairs.items():
        table.loc[confirmed, true] = count
    return table


def _peer_rates(real: Sequence[Outcome]) -> dict[str, Any]:
    rates = {}
    for role in PEERS:
        mine = [o for o in real if o["peers"] is not None]
        truth = [{c for c in o["truth"] if c[3] == role} for o in mine]
        found = [{c for c in o["peers"] if c[3] == role} for o in mine]
        hits = sum(len(t & f) for t, f in zip(truth, found, strict=True))
        alarms = sum(len(f - t) for t, f in zip(truth, found, strict=True))
        misses = sum(len(t - f) for t, f in zip(truth, found, strict=True))
        rates[role] = _rates(hits, alarms, misses)
    return rates
