"""Hook names: is a hook there, and which of its axes is the position?"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Sequence

from interp.errors import HookError

__all__ = ["position_axis", "require_hooks"]

_PER_HEAD = ("q", "k", "v", "z", "rot_q", "rot_k", "result", "q_input", "k_input", "v_input")


def position_axis(name: str) -> int:
    """The position axis of a hook's tensor, counted from the end.

    For scores and patterns it is the query axis. TransformerLens guesses it from the name's
    ending and silently cuts another axis of hooks it does not know.
    """
    kind = name.rsplit("hook_", 1)[-1]
    return -3 if kind in _PER_HEAD else -2


def require_hooks(names: Sequence[str], available: Iterable[str], what: str) -> None:
    """Every name must be available.

    Raises:
        HookError: naming each absent hook and the nearest names there are.
    """
    present: Container[str] = set(available)
    absent = [name for name in names if name not in present]
    if not absent:
        return
    near = {n for name in absent for n in difflib.get_close_matches(name, list(available), 3, 0.5)}
    hint = f"; near it: {', '.join(sorted(near))}" if near else ""
    flags = ("q_input", "k_input", "v_input", "mlp_in")
    if what == "did not fire" and any(name.endswith(flags) for name in absent):
        hint = "; call set_use_split_qkv_input(True) or set_use_hook_mlp_in(True) first"
    raise HookError(f"the model {what} the hook {', '.join(absent)}{hint}")
