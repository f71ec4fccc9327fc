"""Signed combinations of heads of one layer, whose attention is measured like a head's.

    pattern_c(i, j) = |Σ_h c_h pattern_h(i, j)|

where c_h says how much, and with which sign, head h writes of what the heads have in common: heads
that each attend most to the query itself can select one lag together (`memory` §1.4). Shares,
classes and nulls are then those of any pattern. Coefficients along a residual direction come from
:func:`probes.kernels.layer_kernels`; a combination with arbitrary ones says nothing of the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import Problems
from interp.store.attention_mask import Pattern

__all__ = ["Combinations", "Named", "name_columns", "with_combinations"]

Combinations = Mapping[int, Mapping[str, Sequence[float] | np.ndarray]]
"""Layer → name → a coefficient for each head that the patterns hold."""

Named = tuple[int | str, ...]
"""How the rows of a pattern are named: heads by number, combinations by name."""


def with_combinations(
    layer: int, pattern: Pattern, heads: Sequence[int], combinations: Combinations | None
) -> tuple[Named, Float[Tensor, "row named query key"]]:
    """A layer's patterns followed by those of its combinations, with the name of each.

    Raises:
        ArgumentError: for coefficients that are not one finite number a head, or all zero.
    """
    problems, found = Problems("combinations"), (combinations or {}).get(layer, {})
    for name, given in found.items():
        values = np.asarray(given, dtype=np.float64)
        good = values.shape == (len(heads),) and np.isfinite(values).all() and values.any()
        rule = f"must be {len(heads)} finite numbers, one a head of layer {layer}, not all zero"
        problems.need(bool(good), name, rule, values.tolist(), "see layer_kernels")
    problems.raise_if_any()
    if not found:
        return tuple(heads), pattern
    pattern = pattern.double()
    weights = torch.from_numpy(np.stack([np.asarray(c, np.float64) for c in found.values()]))
    together = torch.einsum("ch,rhqk->rcqk", weights, pattern).abs()
    return (*heads, *found), torch.cat([pattern, together], dim=1)


def name_columns(named: int | str) -> dict[str, Any]:
    """The columns that name a head, or a combination of heads, in a head table."""
    if isinstance(named, str):
        return {"component": "group", "group": named}
    return {"component": "head", "head": named}
