"""Which of a head's roles say nothing new beside another one.

Several roles describe the same head more or less strictly: a head that compares tokens is no longer
only ``dense``, one that has its part in a memory's kernel neither that nor ``local``, and one that
shares several memories with others has none of its own. The loose names are left out of the table;
that a head bears a strict one does not show that it does nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

_MEMORY = ("memory-location", "memory-correction")
_SELECTED = ("fixed-position", "token-comparison", "positional-periodic")
_LOOSE = {
    "dense": ("symbol-equality", *_SELECTED, *_MEMORY),
    "local": _MEMORY,
    "fixed-position": _MEMORY,
    "token-comparison": ("symbol-equality",),
    "positional-periodic": _MEMORY,
}
"""Role → the roles beside which it says nothing new."""
_OWN = {
    "successor": ("copying",),
    "counting": ("dense", "uniform"),
    "memory-mixture": (
        "dense",
        "uniform",
        "local",
        "previous-token",
        "sink",
        *_SELECTED,
        *_MEMORY,
    ),
}
"""Role → the roles that say nothing new beside it where it is confirmed."""


def without_loose_names(roles: pd.DataFrame, lacks: Mapping[str, str]) -> pd.DataFrame:
    """A role table without the rows of loose names.

    Args:
        roles: A role table (:func:`probes.roles.decision.decide`).
        lacks: Role → why it could not be looked for.

    Returns:
        The table without loose names of heads that have a stricter one. Where the stricter role
        could not be looked for, the loose row stays, and ``missing`` says so.
    """
    where = ["component", "layer", "head"]
    places = pd.MultiIndex.from_frame(roles[where])
    loose = pd.Series(False, index=roles.index)
    for role, strict in _LOOSE.items():
        named = roles.loc[roles["role"].isin(strict), where]
        loose |= (roles["role"] == role) & places.isin(pd.MultiIndex.from_frame(named))
    for role, others in _OWN.items():
        named = roles.loc[(roles["role"] == role) & (roles["status"] == "confirmed"), where]
        loose |= roles["role"].isin(others) & places.isin(pd.MultiIndex.from_frame(named))
    return _standing_in(roles[~loose].reset_index(drop=True), lacks)


def _standing_in(roles: pd.DataFrame, lacks: Mapping[str, str]) -> pd.DataFrame:
    """The table, in which rows of a loose name say which stricter roles could not be looked for."""
    for role, strict in _LOOSE.items():
        unseen = [one for one in strict if one in lacks]
        reasons = [f"{one} (in whose place this may stand): {lacks[one]}" for one in unseen]
        rows = roles["role"] == role
        if reasons and rows.any():
            told = [[text, *reasons] for text in roles.loc[rows, "missing"]]
            roles.loc[rows, "missing"] = ["; ".join(filter(None, one)) for one in told]
    return roles
