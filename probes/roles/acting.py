"""Over which positions of a row does a head show its behaviour? The behaviour is then judged there.

    share(t)   mean over rows of the attention that the query at t gives to the role's keys
    chosen     the run of positions over which Σ (share − floor) is largest, on every second row
    judged     the mean share over these positions, and its excess over the null, on the others

The null is even attention. For key sets that depend on tokens, it is the attention that the head
gives to the key set of the previous row. A behaviour over fewer than eight positions, or over fewer
than a quarter of them, does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.roles.change import RowMean, over_rows
from probes.roles.selecting import Seen

_FEWEST = 8
WITHIN = ("previous", "same", "after_same")
"""Key sets for which it is tested whether a head attends to them over a range of positions only."""

LEAST = 1 / 4
"""Least share of the counted positions that such a range must cover."""


@dataclass(frozen=True)
class Acting:
    """A behaviour that a head shows over a range of positions.

    Attributes:
        first, last: The first and the last position of the range, both included.
        share: The share of attention to the keys over this range, on rows that were not used to
            choose the range.
        excess: By how much that share exceeds the null's, on the same rows.
    """

    first: int
    last: int
    share: RowMean
    excess: RowMean


def acting(
    seen: Seen, keys: Bool[Tensor, "#row query key"], floor: float, *, tokens: bool
) -> Acting | None:
    """Find the range of positions over which a head attends to some keys.

    The range is chosen on every second row, and the share of attention is measured on the others.

    Args:
        seen: The head's attention.
        keys: True for the keys of each query.
        floor: The share of attention above which a position counts in favour of the range.
        tokens: Whether the keys depend on tokens. If so, the null is the attention to the keys of
            the previous row; otherwise it is even attention.

    Returns:
        The range and its scores. None if the range covers all counted positions, has too few
        positions, or is left with fewer than two rows to judge it on.
    """
    keys = keys.expand_as(seen.pattern) & seen.allowed
    counted = keys.any(-1) & seen.counted
    share = (seen.pattern * keys).sum(-1).double()
    null = keys.sum(-1) / seen.allowed.sum(-1).clamp_min(1)
    if tokens:
        null = (seen.pattern * keys.roll(1, 0)).sum(-1).double()
    first, last = _run((share - floor)[::2], counted[::2])
    there = counted.any(0).nonzero()[:, 0]
    inside = there[(there >= first) & (there <= last)]
    if len(inside) == len(there) or len(inside) < max(_FEWEST, LEAST * len(there)):
        return None
    first, last = int(inside[0]), int(inside[-1])
    judged = counted[1::2, first : last + 1]
    rows = judged.any(1)
    if int(rows.sum()) < 2:
        return None
    weights = judged[rows].double() / judged[rows].sum(1, keepdim=True)
    over = [
        (value[1::2, first : last + 1][rows] * weights).sum(1).numpy()
        for value in (share, share - null)
    ]
    return Acting(first, last, over_rows(over[0]), over_rows(over[1]))


def _run(above: Float[Tensor, "row pos"], counted: Bool[Tensor, "row pos"]) -> tuple[int, int]:
    """Return the first and the last position of the contiguous range with the largest sum."""
    sums = torch.cat([torch.zeros(1), (above * counted).sum(0).cumsum(0)])
    gains = (sums[None] - sums[:, None]).triu(1)  # [first, last + 1]
    at = int(gains.argmax())
    return at // len(sums), at % len(sums) - 1
