"""Where on a row does a head act? A behaviour that is there over some positions is judged there.

    share(t)   mean over rows of the attention that the query at t gives to the role's keys
    chosen     the run of positions over which Σ (share − floor) is largest, on every second row
    judged     the mean share over these positions, and its excess over the null, on the others

The null is even attention; of keys that are made of tokens it is what the head gives to the keys of
the row before. Fewer than a quarter of the positions, or than eight, are no behaviour.
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
"""Classes of keys that a head may attend to over some positions alone."""

LEAST = 1 / 4
"""The least share of the positions that a behaviour must be there over."""


@dataclass(frozen=True)
class Acting:
    """A behaviour over some positions.

    Attributes:
        first, last: The positions, both included.
        share: The share of attention there, on rows that did not choose them.
        excess: Its excess over the null.
    """

    first: int
    last: int
    share: RowMean
    excess: RowMean


def acting(
    seen: Seen, keys: Bool[Tensor, "#row query key"], floor: float, *, tokens: bool
) -> Acting | None:
    """Over which positions a head gives its attention to some keys.

    Args:
        seen: The head's attention.
        keys: The keys.
        floor: The share of attention above which a position counts for the head.
        tokens: Whether the keys are made of tokens, so that those of another row are a null.

    Returns:
        None if it does so over all counted positions alike, over too few, or on too few rows.
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
    """The first and the last of the neighbouring positions whose sum is largest."""
    sums = torch.cat([torch.zeros(1), (above * counted).sum(0).cumsum(0)])
    gains = (sums[None] - sums[:, None]).triu(1)  # [first, last + 1]
    at = int(gains.argmax())
    return at // len(sums), at % len(sums) - 1
