"""A role table in sentences with their numbers: the first thing on a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from probes.roles.decision import MEANINGS, STATUSES

_SHOWN = 8

STATUS_WORDS = "What a status says of a component. " + " ".join(
    f"{name[0].upper()}{name[1:]}: {about.replace('`', '')}." for name, about in MEANINGS.items()
)
"""A sentence on the meaning of each status of a role, for the small print of a page."""

_IN_BRIEF = {
    "necessary, not specific": "needed for more than this",
    "rejected": "the model does not rely on it",
}


def status_counts(roles: pd.DataFrame) -> str:
    """Return how many rows of a role table have each status: ``2 confirmed, 1 rejected``."""
    counts = roles["status"].value_counts()
    told = [f"{counts.get('confirmed', 0)} confirmed"]
    told += [f"{counts[status]} {status}" for status in STATUSES[1:] if status in counts]
    return ", ".join(told)


def without_groups(roles: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a role table that are about one component; rows of groups repeat their
    members'."""
    return roles[roles["component"] != "group"] if "component" in roles else roles


def role_findings(roles: pd.DataFrame, asked: Sequence[str], *, effect: str = "loss") -> list[str]:
    """Return a sentence for each role that some head has, confirmed heads first; or one that says
    that no head has any.

    Args:
        roles: The rows of a role table that are about heads.
        asked: The roles that were tested for, in the order of the sentences.
        effect: The quantity that effects change, such as ``loss``.
    """
    said = list(_sentences(roles, asked, effect))
    return said or ["No head has the behaviour of any role above its null and floor."]


def head_names(rows: pd.DataFrame) -> list[str]:
    """Return the names, such as ``L0H1``, of the rows of a table that are about heads."""
    places = zip(rows["layer"], rows["head"], strict=True)
    return [f"L{int(layer)}H{int(head)}" for layer, head in places]


def part_name(row: Any) -> str:
    """Return the name of a row's component: ``L0H1``, ``L0 FFN`` or ``L0``."""
    component = row.get("component", "head")
    if component == "group":
        return str(row["group"])
    if component == "layer":
        return f"L{row['layer']}"
    if component == "ffn":
        return f"L{row['layer']} FFN"
    return f"L{int(row['layer'])}H{int(row['head'])}"


def part_names(rows: pd.DataFrame) -> list[str]:
    """Return :func:`part_name` of every row."""
    return [part_name(row) for _, row in rows.iterrows()]


def role_phrases(rows: pd.DataFrame, word: str = "") -> list[str]:
    """Return each role with its target and strength: ``induction (0.93)``."""
    columns = rows["role"], rows["target"], rows["strength"]
    return [
        f"{role}{' of ' if target else ''}{target} ({word}{strength:.2f})"
        for role, target, strength in zip(*columns, strict=True)
    ]


def fact_lines(about: Mapping[str, Any], *, leave: Sequence[str] = ()) -> list[str]:
    """Return the settings of a measurement as lines ``name: value``, for the small print of a page.

    Args:
        about: Name → value. Empty values and ``environment`` are left out.
        leave: Names of further entries to leave out.
    """
    return [
        f"{name}: {json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value}"
        for name, value in about.items()
        if name not in (*leave, "environment") and value not in (None, "", [])
    ]


def in_words(names: Sequence[str], *, most: int = _SHOWN) -> str:
    """Return names as ``a``, ``a and b``, or ``a, b and c``; of many names the first ones, and how
    many more there are."""
    shown, more = list(names[:most]), len(names) - most
    last = [f"{more} more"] if more > 0 else shown[-1:]
    first = shown if more > 0 else shown[:-1]
    return " and ".join([", ".join(first), *last]) if first else "".join(last)


def _sentences(roles: pd.DataFrame, asked: Sequence[str], effect: str) -> Iterator[str]:
    heads = roles[roles["head"] >= 0]
    for role in asked:
        mine = heads[heads["role"] == role].sort_values("strength", key=abs, ascending=False)
        parts = []
        for status in STATUSES:
            some = mine[mine["status"] == status]
            if status == "candidate":
                for why, part in some.groupby(some["missing"].map(_reasons), sort=False):
                    parts.append(f"candidates ({why!s}) {_list_heads(part, effect)}")
            elif len(some):
                about = f" ({_IN_BRIEF[status]})" if status in _IN_BRIEF else ""
                parts.append(f"{status}{about} {_list_heads(some, effect)}")
        if parts:
            yield f"{role}: {'; '.join(parts)}."


def _reasons(missing: str) -> str:
    """Return why a row is a candidate, without the tests' numbers: ``cause undecided, it needs
    …``."""
    parts = [why.split(": ")[0] if " undecided" in why else why for why in missing.split("; ")]
    return "; ".join(dict.fromkeys(parts))


def _list_heads(rows: pd.DataFrame, word: str) -> str:
    first = rows.head(_SHOWN)
    columns = head_names(first), first["strength"], first["effect"], of_groups(first)
    named = [
        f"{name} ({size:+.2f}, {_effect(effect, word)}{_with_group(group)})"
        for name, size, effect, group in zip(*columns, strict=True)
    ]
    more = len(rows) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def of_groups(rows: pd.DataFrame) -> pd.Series:
    """Return, for each row of a role table, the effect of ablating all heads of its group; NaN for
    a role without a group."""
    known = rows.get("effect_of_group", pd.Series(float("nan"), index=rows.index))
    return pd.to_numeric(known, errors="coerce").astype(float)


def loss_without(rows: pd.DataFrame) -> pd.Series:
    """Return, for each row of a role table, the effect of ablating its component, or its whole
    group if it is in one."""
    return of_groups(rows).fillna(rows["effect"].astype(float))


def _with_group(effect: float) -> str:
    return "" if effect != effect else f", with its group {effect:+.2f}"


def _effect(effect: float, word: str) -> str:
    return "no cause tested" if effect != effect else f"{word} {effect:+.2f}"
