"""Do two role tables of one model agree, as far as both had the evidence?

A row is a component, a role and a target; its status is one of
:data:`probes.roles.decision.STATUSES`, or no row.

    all the evidence on both sides     the same rows with the same statuses
    no causes (a store alone)          every row is a candidate, and says what is missing; groups of
                                       heads, which a cause finds, are not there
    a role that cannot be looked for   no row, or one of the same or a lower status; the table says
    (no weights, not these rows)       which role that is and why

Less evidence never gives more: a status above the other table's is a disagreement whatever was
missing. One row is none: the loose name (``dense``) of a component which the other table has under
a stricter one that could not be looked for, if the row says so. Numbers (strength, q) are not
compared: two doors may sum in another order.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

__all__ = ["differences", "statuses"]

Place = tuple[str, int, int, str, str, str]
"""What a row is about: component, layer, head, group, role, target."""

_RANK = {"none": 0, "rejected": 1, "candidate": 1, "necessary, not specific": 2, "confirmed": 3}
"""How much each status claims; a higher number claims more. Without a tested cause a candidate
claims no more than a rejected role."""


def statuses(roles: pd.DataFrame) -> dict[Place, str]:
    """Return the status of every row: (component, layer, head, group, role, target) → status."""
    columns = ["component", "layer", "head", "group", "role", "target", "status"]
    told = _comparable(roles[columns]).itertuples(index=False, name=None)
    return {
        (str(c), int(layer), int(head), str(group), str(role), str(target)): str(status)
        for c, layer, head, group, role, target, status in told
    }


def differences(
    reference: pd.DataFrame,
    asked: pd.DataFrame,
    *,
    causes: bool = True,
    unsought: Mapping[str, str] | None = None,
) -> list[str]:
    """Return a sentence for each difference between two role tables; an empty list if they agree.

    Args:
        reference: The role table of a door with all the evidence.
        asked: The role table of another door.
        causes: Whether the other door could run the model.
        unsought: Role → why the other door could not look for it.
    """
    first, second, unsought = statuses(reference), statuses(asked), unsought or {}
    first = first if causes else _drop_groups(first)
    missing = _missing(asked)
    found = []
    for place in sorted({*first, *second}):
        here, there = first.get(place, "none"), second.get(place, "none")
        wanted = "candidate" if here != "none" and not causes else here
        if _RANK[there] > _RANK[here]:
            if _in_its_place(place, _RANK[there], first, missing.get(place, ""), unsought):
                continue
            found.append(f"{_words(place)} is {there}, more than {here}")
        elif place[4] in unsought:
            if not unsought[place[4]]:
                found.append(f"{_words(place)} was not looked for, and no reason is given")
        elif there != wanted:
            found.append(f"{_words(place)} is {there}, not {wanted}")
        elif there != here and not missing.get(place, ""):
            found.append(f"{_words(place)} is {there} and does not say what is missing")
    return found


def _drop_groups(roles: Mapping[Place, str]) -> dict[Place, str]:
    """Return the rows of single components, without the names of groups of heads that share a
    job."""
    return {
        (*place[:3], "" if "+L" in place[3] else place[3], *place[4:]): status
        for place, status in roles.items()
        if place[0] != "group"
    }


def _in_its_place(
    place: Place, rank: int, first: Mapping[Place, str], missing: str, unsought: Mapping[str, str]
) -> bool:
    """Return whether a row stands in for a stricter role that could not be tested, and says so."""
    return any(
        other[:3] == place[:3]
        and other[4] in unsought
        and f"{other[4]} (in whose place" in missing
        and _RANK[status] >= rank
        for other, status in first.items()
    )


def _missing(roles: pd.DataFrame) -> dict[Place, str]:
    """Return, for each row, what could not be tested."""
    if "missing" not in roles:
        return {}
    return dict(zip(statuses(roles), _comparable(roles)["missing"].astype(str), strict=True))


def _comparable(roles: pd.DataFrame) -> pd.DataFrame:
    """Return the table with empty text in place of missing values."""
    return roles.astype(object).where(roles.notna(), "")


def _words(place: Place) -> str:
    component, layer, head, group, role, target = place
    where = f"{component} {layer}" + (f".{head}" if head >= 0 else "")
    return " ".join(part for part in (where, group, role, target) if part)
