"""Which keys a query may attend to, and how its attention is shared among them.

    share(i, j) = pattern(i, j) / Σ_j pattern(i, j)      over the keys that query i may attend to

Nulls count these keys, so they must be known: from a model's spec, from the spec in a store's
manifest, or, for any other model, from its patterns, where a key that is masked has exactly zero
attention in every row, head and query. Attention on a key that should be masked, and attention that
is not a number, are errors. Not for windows: a key masked because it is far counts as one that
gets nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from interp.errors import Problems
from interp.hooks.site import Site
from interp.store import ActivationStore

Pattern = Float[Tensor, "row head query key"]


@dataclass(frozen=True)
class AttentionMask:
    """Which keys a query may attend to.

    Attributes:
        causal: Whether keys after the query's own position are masked.
        mask_self: Whether the query's own position is masked.
    """

    causal: bool = True
    mask_self: bool = False

    def keys(self, length: int) -> Bool[Tensor, "query key"]:
        """True where a query may attend to a key."""
        every = torch.ones(length, length, dtype=torch.bool)
        seen = every.tril() if self.causal else every
        return seen & ~torch.eye(length, dtype=torch.bool) if self.mask_self else seen


def attention_mask_of(source: Any) -> AttentionMask | None:
    """The attention mask that a model's spec or a store's manifest declares, or None if neither
    says whether attention is causal.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
    """
    if isinstance(source, ActivationStore):
        spec = (source.manifest["plan"].get("model") or {}).get("spec")
    else:
        own = getattr(source, "spec", None)
        spec = None if own is None else own.to_dict()
    if not spec or "causal" not in spec:
        return None
    return AttentionMask(bool(spec["causal"]), bool(spec.get("mask_self", False)))


def mask_from_patterns(patterns: Iterable[Pattern]) -> AttentionMask:
    """What patterns show: causal if no query attends to a later key in any row, head or layer;
    ``mask_self`` if none but the first attends to itself."""
    causal = mask_self = True
    for pattern in patterns:
        most = pattern.abs().amax((0, 1))
        causal &= not bool(most.triu(1).any())
        mask_self &= len(most) > 1 and not bool(most.diagonal()[1:].any())
    return AttentionMask(causal, mask_self)


def attention_shares(
    layer: int, pattern: Pattern, seen: Bool[Tensor, "query key"], heads: Sequence[int | str]
) -> Float64[Tensor, "row head query key"]:
    """Each query's attention as shares of one; zero where it attends to nothing at all.

    Args:
        layer: The layer, named in error messages.
        pattern: Attention, normalised or not.
        seen: Which keys a query may attend to, ``[query, key]``.
        heads: The names of the heads.

    Raises:
        ArgumentError: if attention is not finite, or lies on keys that cannot be attended to.
    """
    pattern = pattern.double()
    total = pattern.sum(-1, keepdim=True)
    lost = (~total.isfinite()).any(dim=2).any(dim=0)[:, 0]
    away = pattern.abs().amax(0).masked_fill(seen, 0.0).flatten(1).any(1) & ~lost
    problems, name = Problems("attention"), Site(layer, "pattern").name
    for wrong, rule, advice in (
        (lost, "must be finite", "the model's weights or inputs are damaged"),
        (away, "must be zero on the keys that are masked", "say what the model masks"),
    ):
        found = [head for head, bad in zip(heads, wrong.tolist(), strict=True) if bad]
        where = f"layer {layer}, head{'s'[: len(found) > 1]} {', '.join(map(str, found))}"
        problems.need(not found, name, rule, where, advice)
    problems.raise_if_any()
    return torch.where(total > 0, pattern / total.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
