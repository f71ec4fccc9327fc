"""How much of what a head does on text its confirmed roles explain; it may do more than its name
says.

    attention   the mean share of its attention, on the given text (or rows), that goes to the
                keys of its confirmed roles together
    loss        the share of the loss rise under mean ablation of the head that is avoided when it
                keeps its attention to these keys alone
    rest        the tokens that get most of the other attention, with their shares of all of it

The role table has the first two for each role by itself, and the share of attention on the first
token, where heads rest that find nothing.

Only roles that say where a head attends have keys; a head with other confirmed roles alone is left
out. If ablating the head costs less than the floor of a role, no share of the loss is given.
Attention to a role's keys that is not used counts as explained: the share of the loss says more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from interp.run import Site
from probes.columns import ExplainedRow, columns
from probes.roles.decision import Found, Lacking
from probes.roles.evidence import Evidence, KeysOf, Place
from probes.roles.registry import ROLES
from probes.roles.rises import LossRises

GIVEN_KINDS, _TOKENS = ("text", "rows"), 3


def explain_heads(
    evidence: Evidence,
    roles: pd.DataFrame,
    told: Sequence[Found | Lacking],
    word: Callable[[int], str] = str,
) -> pd.DataFrame:
    """Measure how much confirmed roles explain of each head, on every kind of rows that was given.

    Args:
        evidence: The evidence that the roles were decided from.
        roles: The role table.
        told: The findings that the table was made from, which hold keys that differ from head to
            head.
        word: A function from a token id to the token as it is shown.

    Returns:
        One row for each head and kind of rows, :class:`~probes.columns.ExplainedRow`; the share of
        the loss is NaN if nothing is lost without the head. Empty without text or rows.
    """
    kinds = [kind for kind in GIVEN_KINDS if kind in evidence.views]
    rises = LossRises(evidence)
    own = _own_keys(told)
    rows = [
        _row(evidence, rises, place, {name: own.get((*place, name)) for name in names}, kind, word)
        for kind in kinds
        for place, names in _heads_with_keys(roles)
    ]
    return pd.DataFrame(rows, columns=columns(ExplainedRow))


def with_text(
    roles: pd.DataFrame, evidence: Evidence, told: Sequence[Found | Lacking]
) -> pd.DataFrame:
    """Return the role table with the columns ``text_attention``, ``text_loss`` and ``text_first``.

    They are for heads whose role says where they attend; ``text_loss`` is for confirmed roles
    alone. The table is unchanged if no text or rows were given.

    Args:
        roles: The role table.
        evidence: The evidence that the roles were decided from.
        told: The findings that the table was made from.
    """
    kind = next((kind for kind in GIVEN_KINDS if kind in evidence.views), None)
    if kind is None:
        return roles
    rises, mask, layers = LossRises(evidence), evidence.batch(kind).mask, dict[int, Tensor]()
    own = _own_keys(told)
    found = []
    for one in roles.to_dict("records"):
        role = one["role"]
        name = ROLES[role].keys if one["component"] == "head" and role in ROLES else ""
        if not name:
            found.append((float("nan"),) * 3)
            continue
        place = int(one["layer"]), int(one["head"])
        if place[0] not in layers:
            layers = {place[0]: _patterns(evidence, place[0], kind)}  # the last one is kept
        share = layers[place[0]][:, place[1]]
        keys = evidence.keys(kind, name, own.get((*place, role)))
        mine, first = float((share * keys).sum(-1)[mask].mean()), float(share[..., 0][mask].mean())
        sure = one["status"] == "confirmed"
        lost = _kept_loss(evidence, rises, place, keys, kind) if sure else float("nan")
        found.append((mine, lost, first))
    names = ("text_attention", "text_loss", "text_first")
    return roles.assign(**dict(zip(names, zip(*found, strict=True), strict=True)) if found else {})


def _own_keys(told: Sequence[Found | Lacking]) -> dict[tuple[int, int, str], KeysOf | None]:
    """Return (layer, head, role) → the keys of this head, or None if the role's key set is the same
    for all heads."""
    found = [one for one in told if isinstance(one, Found) and one.component == "head"]
    return {(one.layer, one.head, one.role): one.keys for one in found}


def _heads_with_keys(roles: pd.DataFrame) -> Iterator[tuple[Place, list[str]]]:
    """Yield the heads that have confirmed roles with keys, with the names of these roles."""
    sure = roles[(roles["status"] == "confirmed") & (roles["component"] == "head")]
    named: dict[Place, list[str]] = {}
    for layer, head, name in zip(sure["layer"], sure["head"], sure["role"], strict=True):
        if name in ROLES and ROLES[name].keys:
            named.setdefault((int(layer), int(head)), []).append(name)
    yield from sorted(named.items())


def _row(
    evidence: Evidence,
    rises: LossRises,
    place: Place,
    own: Mapping[str, KeysOf | None],
    kind: str,
    word: Callable[[int], str],
) -> tuple[Any, ...]:
    keys = reduce(or_, (evidence.keys(kind, ROLES[name].keys, own[name]) for name in own))
    batch, share = evidence.batch(kind), _patterns(evidence, place[0], kind)[:, place[1]]
    mine = float((share * keys).sum(-1)[batch.mask].mean())
    by_key = (share * ~keys * batch.mask[..., None]).sum(1)
    by_token = torch.zeros(int(batch.inputs.max()) + 1, dtype=torch.float64)
    by_token.index_add_(0, batch.inputs.flatten(), by_key.flatten())
    most = by_token.topk(min(_TOKENS, len(by_token)))
    parts = (most.values / batch.mask.sum()).tolist()
    rest = [
        f"{word(i)} {p:.2f}" for i, p in zip(most.indices.tolist(), parts, strict=True) if p > 0
    ]
    loss = _kept_loss(evidence, rises, place, keys, kind)
    return (*place, ", ".join(own), kind, mine, loss, ", ".join(rest))


def _kept_loss(
    evidence: Evidence, rises: LossRises, place: Place, keys: Tensor, kind: str
) -> float:
    """Return the share of the loss rise without a head that is avoided when the head keeps its
    attention to some keys alone.

    NaN if nothing is lost without the head.
    """
    mask = evidence.batch(kind).mask
    lost = _mean(rises.at(kind, rises.away(kind, (place,))), mask)
    if lost < evidence.floors.loss:
        return float("nan")
    left = _mean(rises.at(kind, rises.only_keys(place, keys)), mask)
    return min(1.0, max(0.0, 1 - left / lost))


def _patterns(evidence: Evidence, layer: int, kind: str) -> Tensor:
    """Return the attention patterns of a layer's heads, normalised to sum to one, ``[row, head,
    query, key]``."""
    site = Site(layer, "pattern")
    pattern = evidence.run(kind).at([site])[site].double().cpu()
    return pattern / pattern.sum(-1, keepdim=True).clamp_min(1e-12)


def _mean(values: Tensor, mask: Tensor) -> float:
    return float(values[mask].mean())
