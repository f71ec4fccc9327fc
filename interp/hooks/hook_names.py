"""Questions about hook names: does the model have it, is it TransformerLens' own, and what are its
tensor's axes?

For hooks that TransformerLens knows, the name determines the axes of the activation, such as ``row,
pos, d_model`` or ``row, head, query, key``. For others the shape does, but only if a single axis
can be the position. Otherwise axes are called ``axis1, axis2, …``, and no positions or heads can be
selected from them: slicing a guessed axis could silently give wrong values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from interp.errors import HookError

_PER_HEAD = ("q", "k", "v", "z", "rot_q", "rot_k", "result", "q_input", "k_input", "v_input")
_IN_BLOCK = {
    "": ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "attn_in", "mlp_in"),
    "attn": (*_PER_HEAD, "attn_scores", "pattern"),
    "mlp": ("pre", "post", "pre_linear"),
    "ln1": ("scale", "normalized"),
    "ln2": ("scale", "normalized"),
}


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


def unknown_in_block(name: str) -> bool:
    """Return whether a name is most likely a misspelt TransformerLens hook of a block.

    This is so if it lies directly in a block or in its ``attn``, ``mlp``, ``ln1`` or ``ln2``, and
    TransformerLens has no such hook there. Names in other modules of a block may be anything, e.g.
    ``blocks.0.conv.hook_out``.
    """
    found = re.fullmatch(r"blocks\.\d+\.(?:(\w+)\.)?(\w+)", name)
    if found is None or (found[1] or "") not in _IN_BLOCK:
        return False
    return found[2].removeprefix("hook_") not in _IN_BLOCK[found[1] or ""] or "hook_" not in name


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names that are spelled like this one."""
    return difflib.get_close_matches(name, list(known), 3, 0.5)


def position_axis(name: str) -> int:
    """Return the position axis of a hook's tensor, counted from the end.

    For scores and patterns it is the query axis. TransformerLens guesses it from the name's ending,
    and so slices a wrong axis, without a warning, of hooks that it does not know.
    """
    kind = name.rsplit("hook_", 1)[-1].removesuffix("_grad")
    return -3 if kind in _PER_HEAD else -2


def require_hooks(names: Sequence[str], available: Iterable[str], what: str) -> None:
    """Check that every name is available.

    Args:
        names: The hooks that are asked for.
        available: The hooks that the model has, or that fired.
        what: The verb of the message: ``has no hook`` or ``did not fire the hook``.

    Raises:
        HookError: naming each absent hook and the available names nearest to it.
    """
    present = set(available)
    absent = [name for name in names if name not in present]
    if not absent:
        return
    near = {n for name in absent for n in nearest(name, present)}
    hint = f"; near it: {', '.join(sorted(near))}" if near else ""
    flags = ("q_input", "k_input", "v_input", "mlp_in")
    if what.startswith("did not fire") and any(name.endswith(flags) for name in absent):
        hint = "; call set_use_split_qkv_input(True) or set_use_hook_mlp_in(True) first"
    raise HookError(f"the model {what} {', '.join(absent)}{hint}")


def is_standard(name: str) -> bool:
    """Return whether a hook's name is one of TransformerLens' own, which a store prefers to
    aliases."""
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
        length: The number of positions of the inputs, or None if they have no position axis.
        n_heads: The model's number of heads, if known.
        pos_axis: The position axis, if the hook point says which it is.

    Returns:
        One label per axis, such as ``("row", "pos", "d_model")``.
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
