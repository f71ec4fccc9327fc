"""How much of what a head does on text its confirmed roles explain: it may do more than its name.

    attention   mean share of its attention on the text (or rows) given that goes to the keys of its
                confirmed roles together
    loss        of the rise of the loss there without the head (its mean in its place), the share
                that is not lost when it keeps its attention to these keys alone
    rest        the tokens that get most of the other attention, with their shares of all of it

Only roles that say where a head looks have keys; a head whose confirmed roles are others is left
out. Where nothing is lost without the head (less than the floor of a role) no share of it is told.
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
from probes.roles.rises import Rises

_KINDS, _TOKENS = ("text", "rows"), 3


def explained(
    evidence: Evidence,
    roles: pd.DataFrame,
    told: Sequence[Found | Lacking],
    word: Callable[[int], str] = str,
) -> pd.DataFrame:
    """What confirmed roles explain of each head, on every kind of rows that was given.

    Args:
        evidence: The evidence that the roles were decided from.
        roles: The role table.
        told: What the table was decided from, with the keys that differ from head to head.
        word: Token id → the token as it is shown.

    Returns:
        A row a head and kind of rows, :class:`~probes.columns.ExplainedRow`; the share of the loss
        is NaN where nothing is lost without the head. Empty without text or rows.
    """
    kinds = [kind for kind in _KINDS if kind in evidence.views]
    rises = Rises(evidence)
    found = [one for one in told if isinstance(one, Found) and one.component == "head"]
    own = {(one.layer, one.head, one.role): one.keys for one in found}
    rows = [
        _row(evidence, rises, place, {name: own.get((*place, name)) for name in names}, kind, word)
        for kind in kinds
        for place, names in _keyed(roles)
    ]
    return pd.DataFrame(rows, columns=columns(ExplainedRow))


def _keyed(roles: pd.DataFrame) -> Iterator[tuple[Place, list[str]]]:
    """Heads with confirmed roles that have keys, and these roles."""
    sure = roles[(roles["status"] == "confirmed") & (roles["component"] == "head")]
    named: dict[Place, list[str]] = {}
    for layer, head, name in zip(sure["layer"], sure["head"], sure["role"], strict=True):
        if name in ROLES and ROLES[name].keys:
            named.setdefault((int(layer), int(head)), []).append(name)
    yield from sorted(named.items())


def _row(
    evidence: Evidence,
    rises: Rises,
    place: Place,
    own: Mapping[str, KeysOf | None],
    kind: str,
    word: Callable[[int], str],
) -> tuple[Any, ...]:
    keys = reduce(or_, (evidence.keys(kind, ROLES[name].keys, own[name]) for name in own))
    batch, pattern = evidence.batch(kind), _pattern(evidence, place, kind)
    share = pattern / pattern.sum(-1, keepdim=True).clamp_min(1e-12)
    mine = float((share * keys).sum(-1)[batch.mask].mean())
    by_key = (share * ~keys * batch.mask[..., None]).sum(1)
    by_token = torch.zeros(int(batch.inputs.max()) + 1, dtype=torch.float64)
    by_token.index_add_(0, batch.inputs.flatten(), by_key.flatten())
    most = by_token.topk(min(_TOKENS, len(by_token)))
    parts = (most.values / batch.mask.sum()).tolist()
    rest = [
        f"{word(i)} {p:.2f}" for i, p in zip(most.indices.tolist(), parts, strict=True) if p > 0
    ]
    lost = _mean(rises.without(kind, (place,)), batch.mask)
    left = _mean(rises.at(kind, rises.only_keys(place, keys)), batch.mask)
    known = lost >= evidence.floors.loss
    loss = min(1.0, max(0.0, 1 - left / lost)) if known else float("nan")
    return (*place, ", ".join(own), kind, mine, loss, ", ".join(rest))


def _pattern(evidence: Evidence, place: Place, kind: str) -> Tensor:
    site = Site(place[0], "pattern", place[1])
    return evidence.run(kind).at([site])[site].double().cpu()


def _mean(values: Tensor, mask: Tensor) -> float:
    return float(values[mask].mean())
