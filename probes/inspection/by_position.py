"""Where in a row a head's role holds: its share of attention at early and at late queries.

A strength is a mean over positions, and one that is 0.9 in the first half of a row and 0.1 in the
second reads as 0.5. For every role that is a share of attention, the shares of the queries, on rows
of the requested length, are split at the position where both sides differ most
(:func:`probes.inspection.usable.largest_step`); sides that differ by 0.2 or more are reported. A
strength that holds everywhere says nothing of rows that are longer still.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from torch import Tensor

from interp.attention.key_sets import positional_key_sets, token_key_sets
from interp.run import Run, Site
from interp.tasks.base import Batch
from probes.inspection.usable import largest_step
from probes.roles.profile import Profile

ROLE_KEYS = {
    "previous-token": "previous",
    "sink": "first",
    "duplicate-token": "same",
    "induction": "after_same",
}
"""Roles that are defined by a share of attention → the key set that the attention goes to."""

_TOLD, _LEVEL, _ROWS = 0.2, 0.01, 16


def with_positions(
    roles: pd.DataFrame, model: Any, rows: Mapping[str, Batch], profile: Profile
) -> pd.DataFrame:
    """Return the role table with a column ``by_position``: how the strength changes along a row, in
    words.

    The entry is empty for roles that are not a share of attention, or if there is no clear change.

    Args:
        roles: A role table.
        model: The hooked model.
        rows: Kind → rows of the whole requested length.
        profile: The profile, which says on which kind of rows attention to each key set is read.
    """
    shares = _Shares(model, rows, profile)
    return roles.assign(by_position=[_shares_in_words(one, shares) for one in roles.itertuples()])


class _Shares:
    """The share of attention of every head, query by query, measured once for each layer and key
    set.

    Args:
        model: The hooked model.
        rows: Kind → rows.
        profile: The profile, which says on which kind of rows attention to each key set is read.
    """

    def __init__(self, model: Any, rows: Mapping[str, Batch], profile: Profile) -> None:
        self._runs = {kind: Run(model, batch[:_ROWS]) for kind, batch in rows.items()}
        self._kinds = profile.rows
        self._known: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}

    def of(self, layer: int, name: str) -> tuple[Tensor, Tensor] | None:
        """Return the shares of a layer's heads on a key set, ``[row, head, query]``, and the
        queries that have such keys, ``[row, query]``.

        None if there are no rows of the kind on which this key set is read.
        """
        run = self._runs.get(self._kinds[name])
        if run is None:
            return None
        if (layer, name) not in self._known:
            keys = _keys(run.batch.inputs, name)
            self._known[layer, name] = _share(run, layer, keys), run.batch.mask & keys.any(-1)
        return self._known[layer, name]


def _shares_in_words(one: Any, shares: _Shares) -> str:
    name = ROLE_KEYS.get(one.role) if one.head >= 0 else None
    found = None if name is None else shares.of(int(one.layer), name)
    if found is None:
        return ""
    share, asked = found
    step = largest_step(share[:, int(one.head)], asked)
    if step is None or step.p > _LEVEL or abs(step.after - step.before) < _TOLD:
        return ""
    return f"{step.before:.2f} before position {step.position}, {step.after:.2f} from there on"


def _keys(inputs: Tensor, name: str) -> Tensor:
    if name in ("same", "after_same"):
        return token_key_sets(inputs)[name]
    return positional_key_sets(len(inputs), inputs.shape[1], 1)[name]


def _share(run: Run, layer: int, keys: Tensor) -> Tensor:
    """Return the share of attention that each query gives to some keys, ``[row, head, query]``."""
    site = Site(layer, "pattern")
    pattern = run.at(site)[site].double().cpu()
    share: Tensor = (pattern * keys[:, None]).sum(-1) / pattern.sum(-1).clamp_min(1e-12)
    return share
