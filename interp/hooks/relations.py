"""Which activations of a block are determined by which others.

A relation has one hook on the left and the hooks it follows from on the right; it holds inside a
block, or from a block to the next. The forms depend on what the model says of itself: without a
residual, with attention and FFN side by side, attention-only, with or without a normaliser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Values = Mapping[str, Tensor]
Of = Callable[..., Tensor]
Compare = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

PRE, MID, POST = "hook_resid_pre", "hook_resid_mid", "hook_resid_post"
ATTN_OUT, MLP_OUT, RESULT = "hook_attn_out", "hook_mlp_out", "attn.hook_result"
SCORES, PATTERN = "attn.hook_attn_scores", "attn.hook_pattern"
V, Z = "attn.hook_v", "attn.hook_z"


def _as_they_are(got: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    return got, expected


@dataclass(frozen=True)
class Relation:
    """One equation between hooks: ``left`` = ``of``(the hooks on the ``right``).

    The left hook is in the same block, or in the next one if ``step`` is 1. ``compare`` brings both
    sides into the form in which they should be equal.
    """

    name: str
    left: str
    right: tuple[str, ...]
    of: Of
    step: int = 0
    compare: Compare = _as_they_are

    def layers(self, values: Values) -> list[int]:
        """Layers that fire at least one hook of the relation and have the block it leads to."""
        parts = (name.split(".") for name in values if name.startswith("blocks."))
        layers = {int(part[1]) for part in parts if part[1].isdigit()}
        kinds = {self.left, *self.right}
        named = {i for i in layers if any(f"blocks.{i}.{kind}" in values for kind in kinds)}
        return sorted(i for i in named if i + self.step in layers)

    def absent(self, values: Values, layer: int) -> list[str]:
        """The relation's hooks that did not fire in this layer."""
        names = self._names(layer)
        return [name for name in names if name not in values]

    def sides(self, values: Values, layer: int) -> tuple[Tensor, Tensor]:
        """The value of the left hook, and the value computed from the right ones."""
        left, *right = (values[name] for name in self._names(layer))
        return self.compare(left, self.of(*right, layer=layer))

    def _names(self, layer: int) -> list[str]:
        right = [f"blocks.{layer}.{kind}" for kind in self.right]
        return [f"blocks.{layer + self.step}.{self.left}", *right]


def block_relations(
    model: Any, normalizer: Callable[[Tensor], Tensor] | None = None
) -> tuple[Relation, ...]:
    """The relations that should hold in a model with this configuration."""
    return (*_stream(model), *_attention(model, normalizer))


def _stream(model: Any) -> tuple[Relation, ...]:
    cfg, spec = getattr(model, "cfg", None), getattr(model, "spec", None)

    def total(*parts: Tensor, layer: int) -> Tensor:
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0)

    following = Relation("next resid_pre = resid_post", PRE, (POST,), total, step=1)
    if getattr(cfg, "parallel_attn_mlp", False):
        name = "resid_post = resid_pre + attn_out + mlp_out"
        return (Relation(name, POST, (PRE, ATTN_OUT, MLP_OUT), total), following)
    adds = getattr(spec, "residual", True)
    name = "resid_mid = resid_pre + attn_out" if adds else "resid_mid = attn_out"
    after_attention = Relation(name, MID, (PRE, ATTN_OUT) if adds else (ATTN_OUT,), total)
    if getattr(cfg, "attn_only", False):
        after_ffn = Relation("resid_post = resid_mid", POST, (MID,), total)
    else:
        name = "resid_post = resid_mid + mlp_out" if adds else "resid_post = mlp_out"
        after_ffn = Relation(name, POST, (MID, MLP_OUT) if adds else (MLP_OUT,), total)
    return (after_attention, after_ffn, following)


def _attention(model: Any, normalizer: Callable[[Tensor], Tensor] | None) -> tuple[Relation, ...]:
    spec = getattr(model, "spec", None)
    softmax = normalizer is None and getattr(spec, "normalizer", "softmax") == "softmax"
    given = normalizer or torch.exp
    empty_rows = getattr(spec, "mask_self", False)

    def pattern(scores: Tensor, layer: int) -> Tensor:
        return scores.softmax(-1).nan_to_num() if softmax else given(scores)

    def attending(got: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides for the queries that have a key to attend to; with the diagonal masked the
        first query has none."""
        rows = (got != 0).any(-1) if empty_rows else torch.ones_like(got[..., 0], dtype=torch.bool)
        return got[rows], expected[rows]

    def to_one(got: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        rows, _ = attending(got, got)
        return rows.sum(-1), torch.ones_like(rows[..., 0])

    def mixed(pattern: Tensor, v: Tensor, layer: int) -> Tensor:
        shared = v.repeat_interleave(max(pattern.shape[1] // v.shape[2], 1), dim=2)
        return torch.einsum("bhqk,bkhd->bqhd", pattern.to(shared.dtype), shared)

    def summed(result: Tensor, layer: int) -> Tensor:
        bias = _output_bias(model, layer)
        return result.sum(2) if bias is None else result.sum(2) + bias

    def constant_apart(got: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
        rest = (got - expected).mean(dim=(0, 1))
        return got, expected + rest

    of_scores = "softmax(scores)" if softmax else "exp(scores)" if normalizer is None else "…"

    def one(layer: int) -> Tensor:
        return torch.ones(())

    known = _output_bias(model, 0) is not None
    name = "attn_out = Σ result + b_O" if known else "attn_out = Σ result + a constant"
    relations = [Relation(f"pattern = {of_scores}", PATTERN, (SCORES,), pattern, compare=attending)]
    if softmax:
        relations.append(Relation("pattern rows sum to 1", PATTERN, (), one, compare=to_one))
    same = Relation(name, ATTN_OUT, (RESULT,), summed)
    apart = Relation(name, ATTN_OUT, (RESULT,), summed, compare=constant_apart)
    return (
        *relations,
        Relation("z = pattern @ v", Z, (PATTERN, V), mixed),
        same if known else apart,
    )


def _output_bias(model: Any, layer: int) -> Tensor | None:
    try:
        bias = model.blocks[layer].attn.b_O
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
    return bias if isinstance(bias, Tensor) else None
