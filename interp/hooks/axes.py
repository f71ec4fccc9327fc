"""Name the axes of an activation, such as ``row, pos, d_model`` or ``row, head, query, key``.

For hooks that TransformerLens knows, the hook's name says what the axes are. For others the shape
does, but only where a single axis can be the position. Otherwise axes are called ``axis1, axis2,
…`` and no positions or heads can be picked from them: slicing a guessed axis would be silently
wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ATTENTION = ("head", "query", "key")
_HEADS = ("pos", "head", "d_head")
_WIDTH = ("pos", "d_model")
_STANDARD: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"attn\.hook_(pattern|attn_scores)", _ATTENTION),
    (r"attn\.hook_[qkvz]", _HEADS),
    (r"attn\.hook_result", ("pos", "head", "d_model")),
    (r"hook_(embed|pos_embed|resid_pre|resid_mid|resid_post|attn_out|mlp_out|mlp_in)", _WIDTH),
    (r"(ln1|ln2|ln_final)\.hook_normalized", _WIDTH),
    (r"(ln1|ln2|ln_final)\.hook_scale", ("pos", "scale")),
    (r"mlp\.hook_(pre|post)", ("pos", "d_mlp")),
    (r"hook_unembed", ("pos", "output")),
)
_BRIDGE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"attn\.[qkv]\.hook_out", _HEADS),
    (r"attn\.o\.hook_in", _HEADS),
    (r"unembed\.hook_out", ("pos", "output")),
)


def is_standard(name: str) -> bool:
    """Whether a hook's name is one of TransformerLens' own, which are preferred in a store."""
    return any(re.search(rf"(^|\.){pattern}$", name) for pattern, _ in _STANDARD)


def axis_labels(
    name: str,
    shape: Sequence[int],
    *,
    length: int | None,
    n_heads: int | None = None,
    pos_axis: int | None = None,
) -> tuple[str, ...]:
    """Label each axis of an activation of shape ``[row, …]``.

    Args:
        name: The hook's name.
        shape: The shape of the activation that the hook fired.
        length: Positions of the input that was run, or ``None`` if it has no position axis.
        n_heads: Heads of the model, if it says so.
        pos_axis: The position axis, if the hook point says which it is.
    """
    for pattern, labels in (*_STANDARD, *_BRIDGE):
        if re.search(rf"(^|\.){pattern}$", name) and _fits(labels, shape, length):
            return ("row", *labels)
    guess = ["row", *(f"axis{axis}" for axis in range(1, len(shape)))]
    if pos_axis is not None and 0 < pos_axis < len(shape):
        guess[pos_axis] = "pos"
        return tuple(guess)
    return _from_shape(guess, shape, length, n_heads)


def _fits(labels: Sequence[str], shape: Sequence[int], length: int | None) -> bool:
    sizes = dict(zip(labels, shape[1:], strict=False))
    return len(shape) == len(labels) + 1 and all(
        sizes.get(axis, length) == length for axis in ("pos", "query")
    )


def _from_shape(
    guess: list[str], shape: Sequence[int], length: int | None, n_heads: int | None
) -> tuple[str, ...]:
    at = [axis for axis in range(1, len(shape)) if shape[axis] == length]
    if length is None or length == 1:
        return tuple(guess)
    if len(shape) == 4 and at == [2, 3]:
        guess[1:] = _ATTENTION
    elif at == [1]:
        guess[1] = "pos"
        if len(shape) == 4 and shape[2] == n_heads:
            guess[2] = "head"
    elif len(at) == 1:
        guess[at[0]] = "pos"
    return tuple(guess)
