"""Questions about hook names: is it there, is it TransformerLens', which axis is the position?"""

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


def unknown_in_block(name: str) -> bool:
    """Whether a name looks like one of TransformerLens' hooks in a block but is not: surely a typo.

    Names of other tensors are free elsewhere, e.g. ``blocks.0.conv.hook_out``.
    """
    found = re.fullmatch(r"blocks\.\d+\.(?:(\w+)\.)?(\w+)", name)
    if found is None or (found[1] or "") not in _IN_BLOCK:
        return False
    return found[2].removeprefix("hook_") not in _IN_BLOCK[found[1] or ""] or "hook_" not in name


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that are spelled like this one."""
    return difflib.get_close_matches(name, list(known), 3, 0.5)


def position_axis(name: str) -> int:
    """The position axis of a hook's tensor, counted from the end.

    For scores and patterns it is the query axis. TransformerLens guesses it from the name's
    ending and silently cuts another axis of hooks it does not know.
    """
    kind = name.rsplit("hook_", 1)[-1].removesuffix("_grad")
    return -3 if kind in _PER_HEAD else -2


def require_hooks(names: Sequence[str], available: Iterable[str], what: str) -> None:
    """Check that every name is available.

    Args:
        names: The hooks that are asked for.
        available: The hooks that there are.
        what: The verb of the message: ``has no hook`` or ``did not fire the hook``.

    Raises:
        HookError: naming each absent hook and the nearest names there are.
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
