"""A head's circuit as two thin factors.

Row vectors, as in TransformerLens: a query x and a key y have the score x W_Q W_Kᵀ yᵀ, and a source
y is written to the destination as y W_V W_O. Both circuits are M = left · rightᵀ of rank d_head:

    QK: left = W_Q, right = W_K        (W_K W_Qᵀ, as `template` writes it, is the transpose)
    OV: left = W_V, right = W_Oᵀ       (column-vector papers write W_O W_V: the transpose)

Trace, norms, diagonal, singular values and eigenvalues are those of the transpose too. With the
trainable scalars of `template` §2.2 the effective circuits are ``QK+aI`` = W_Q W_Kᵀ/√d_head + aI
and ``OV+bI`` = W_V W_O + bI.

A circuit does not contain biases (they are kept beside it: :meth:`Circuit.inner_bias`), the
division by the norm's scale and by per-token query/key norms, soft capping, or anything that
earlier layers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from interp.weights.head_weights.rope import Rope

CIRCUITS = ("QK", "OV", "QK+aI", "OV+bI")


@dataclass(frozen=True)
class Circuit:
    """One circuit (QK or OV, with or without its identity scalar) of every head of a layer.

    Attributes:
        name: the circuit's name, one of :data:`CIRCUITS`.
        left, right: the factors of all heads, [head or group, d_model, d_head]; a factor that heads
            share under grouped-query attention is stored once per group.
        identity: the scalar on I of each head [head], or None.
        scale: the factor on left · rightᵀ (1/√d_head if an identity is added after it).
        left_gain, right_gain: per-coordinate scales [d_model] of the basis, or None.
        left_inner, right_inner: per-coordinate scales [head or group, d_head] inside the head.
        rope, lag: the rotary positions, applied to the left factor at this lag (query − key
            position).
        query_bias: b_Q [head, d_head] with its inner scale applied, or None.
        left_basis, right_basis: token matrices [vocab, d_model], or None for the residual basis.
    """

    name: str
    left: Tensor
    right: Tensor
    identity: Tensor | None = None
    scale: float = 1.0
    left_gain: Tensor | None = None
    right_gain: Tensor | None = None
    left_inner: Tensor | None = None
    right_inner: Tensor | None = None
    rope: Rope | None = None
    lag: int = 0
    query_bias: Tensor | None = None
    left_basis: Tensor | None = None
    right_basis: Tensor | None = None

    @property
    def n_heads(self) -> int:
        """Number of query heads."""
        return max(len(self.left), len(self.right))

    def pair(self, head: int) -> tuple[Tensor, Tensor]:
        """Factorise the head's circuit matrix as M = left · rightᵀ.

        Gains, inner scales, rotary positions and token matrices are applied here, head by head, so
        that no second copy of a layer is kept in memory. The term c · I of an identity scalar is
        left out, unless gains or token matrices act on it, because then it is no multiple of the
        identity any more (with token matrices it is c · W_E W_Eᵀ). In that case it is included in
        the factors as d_model additional columns.

        Args:
            head: the number of the query head.

        Returns:
            left and right, each [basis, d_head] or, with the additional columns,
            [basis, d_head + d_model]. A side's basis is the residual stream (d_model) or the
            vocabulary.
        """
        left = _head_factor(self.left, self.left_gain, self.left_inner, head, self.n_heads)
        right = _head_factor(self.right, self.right_gain, self.right_inner, head, self.n_heads)
        if self.rope is not None:
            left = self.rope.rotate(left, self.lag)
        left = left if self.scale == 1.0 else left * self.scale
        if self.identity is not None and self._turns_identity:
            unit = torch.eye(left.shape[0], dtype=left.dtype)
            sides = (
                _head_factor(unit[None], self.left_gain, None, 0, 1),
                _head_factor(unit[None], self.right_gain, None, 0, 1),
            )
            left = torch.cat((left, float(self.identity[head]) * sides[0]), dim=1)
            right = torch.cat((right, sides[1]), dim=1)
        if self.left_basis is not None:
            left = self.left_basis @ left
        if self.right_basis is not None:
            right = self.right_basis @ right
        return left, right

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the factors (:meth:`pair`) of every head."""
        return (self.pair(head) for head in range(self.n_heads))

    def identity_scalar(self, head: int) -> float:
        """Return the head's scalar on the identity; 0 if it has none or the factors contain it."""
        if self.identity is None or self._turns_identity:
            return 0.0
        return float(self.identity[head])

    @property
    def _turns_identity(self) -> bool:
        """Whether a gain or a token matrix acts on the identity term, so that it is no multiple of
        I."""
        sides = (self.left_gain, self.right_gain, self.left_basis, self.right_basis)
        return any(side is not None for side in sides)

    def inner_bias(self, head: int) -> Tensor | None:
        """Return the query's bias in the head's own basis [d_head], rotated and scaled as left is,
        or None.

        right · inner_bias [basis] is what it adds to the score of each key. The other bias terms of
        a score do not depend on the key's content (with rotary positions only on its lag).
        """
        if self.query_bias is None:
            return None
        bias = self.query_bias[head]
        if self.rope is not None:
            bias = self.rope.rotate(bias, self.lag)
        return bias * self.scale

    def dense(self, head: int) -> Tensor:
        """Return the circuit M [basis, basis] as a dense matrix, for small models, crops and
        checks."""
        left, right = self.pair(head)
        dense = left @ right.mT
        if self.identity is not None:
            dense = dense + self.identity_scalar(head) * torch.eye(len(dense), dtype=dense.dtype)
        return dense


def _head_factor(
    stack: Tensor, gain: Tensor | None, inner: Tensor | None, head: int, n_heads: int
) -> Tensor:
    factor = stack[head * len(stack) // n_heads]
    if gain is not None:
        factor = gain[:, None] * factor
    return factor if inner is None else factor * inner[head * len(inner) // n_heads]
