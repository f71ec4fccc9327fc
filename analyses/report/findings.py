"""What a role table says, as sentences with their numbers: the first thing on a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from interp.interventions.components import Component

__all__ = ["head_names", "in_words", "role_findings"]

_SHOWN = 8


def role_findings(roles: pd.DataFrame, asked: Sequence[str], *, effect: str = "loss") -> list[str]:
    """A sentence for each role that some head has, confirmed heads first; or that none has any.

    Args:
        roles: A role table's heads.
        asked: The roles that were looked for, in the order of the sentences.
        effect: What an effect is a rise or a change of.
    """
    said = list(_sentences(roles, asked, effect))
    return said or ["No head has the behaviour of any role above its null and floor."]


def head_names(rows: pd.DataFrame) -> list[str]:
    """The names of heads, such as ``L0H1``, of the rows of a table that are heads."""
    places = zip(rows["layer"], rows["head"], strict=True)
    return [Component("head", int(layer), int(head)).name for layer, head in places]


def in_words(names: Sequence[str], *, most: int = _SHOWN) -> str:
    """``a``, ``a and b``, ``a, b and c``; of many the first ones, and how many more there are."""
    shown, more = list(names[:most]), len(names) - most
    last = [f"{more} more"] if more > 0 else shown[-1:]
    first = shown if more > 0 else shown[:-1]
    return " and ".join([", ".join(first), *last]) if first else "".join(last)


def _sentences(roles: pd.DataFrame, asked: Sequence[str], effect: str) -> Iterator[str]:
    for role in asked:
        mine = roles[roles["role"] == role].sort_values("strength", key=abs, ascending=False)
        sure, maybe = mine[mine["status"] == "confirmed"], mine[mine["status"] == "candidate"]
        parts = [f"confirmed {_listed(sure, effect)}"] * bool(len(sure))
        for why, some in maybe.groupby("missing", sort=False):
            reason = f"cause not tested: {why!s}" if why else "behaviour without the cause"
            parts.append(f"candidates ({reason}) {_listed(some, effect)}")
        if parts:
            yield f"{role}: {'; '.join(parts)}."


def _listed(rows: pd.DataFrame, word: str) -> str:
    first = rows.head(_SHOWN)
    named = [
        f"{name} ({size:+.2f}, {_effect(effect, word)})"
        for name, size, effect in zip(
            head_names(first), first["strength"], first["effect"], strict=True
        )
    ]
    more = len(rows) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _effect(effect: float, word: str) -> str:
    return "no cause tested" if effect != effect else f"{word} {effect:+.2f}"
