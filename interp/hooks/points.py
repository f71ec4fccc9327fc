"""A named place in a model where a function can read or replace a tensor.

    y = hook_point(x)        the identity, or what the functions that are attached make of it

The methods, their arguments and what a function is called with, ``fn(tensor, hook=point)``, are
those of TransformerLens' ``HookPoint``, so that its tools and its users' functions work on our
models. It is a class of our own because importing TransformerLens takes a second, which a model
that none of its tools is used on need not pay. What only its bridges need is left out: aliases, and
the conversion of shapes.

A point that never fires changes nothing and says nothing. :class:`~.hooked.HookedModule` raises an
error where a hook that ``run_with_hooks`` or ``run_with_cache`` was asked for by name does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from interp.errors import refuse_unless
from interp.hooks.site import Site

__all__ = ["AttachedHook", "Direction", "HookPoint"]

Direction = Literal["fwd", "bwd", "both"]
"""On the way forward, where functions see values; backward, where they see gradients; or both."""


@dataclass
class AttachedHook:
    """A function that is attached to a point.

    Attributes:
        hook: PyTorch's handle, which takes the function away.
        is_permanent: Whether only a request that names permanent hooks takes it away.
        context_level: How deep in ``with model.hooks(...)`` it was attached; None outside.
        user_hook: The function that is called; ``run_with_hooks`` gives one around the user's.
    """

    hook: RemovableHandle
    is_permanent: bool
    context_level: int | None
    user_hook: Callable[..., Any]

    def fits(self, including_permanent: bool, level: int | None) -> bool:
        """Whether a request means this one: permanent ones are asked for, and ``level`` is None
        for all levels."""
        asked = including_permanent or not self.is_permanent
        return asked and level in (None, self.context_level)


class HookPoint(nn.Module):
    """The identity, with functions attached to it.

    Attributes:
        name: The point's name in its model, such as ``blocks.0.attn.hook_z``; the model sets it.
        ctx: What functions want to keep between calls.
        fwd_hooks: The functions on the way forward, in the order in which they run.
        bwd_hooks: The functions on the way back.
        read_only: Whether the model refuses changes here; :mod:`interp.models.wrap` sets it and
            sees to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fwd_hooks: list[AttachedHook] = []
        self.bwd_hooks: list[AttachedHook] = []
        self.ctx: dict[Any, Any] = {}
        self.name: str | None = None
        self.read_only = False

    def __repr__(self) -> str:
        forward, backward = len(self.fwd_hooks), len(self.bwd_hooks)
        return f"HookPoint(name={self.name!r}, {forward} fwd, {backward} bwd)"

    def forward(self, x: Tensor) -> Tensor:
        """The tensor itself; PyTorch runs the functions on what comes out."""
        return x

    def add_hook(
        self,
        hook: Callable[..., Any],
        dir: Literal["fwd", "bwd"] = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> AttachedHook:
        """Attach ``hook(tensor, hook=point)``: what it returns replaces the tensor, or the
        gradient, unless it is None.

        Args:
            hook: The function.
            dir: Forward, or backward.
            is_permanent: Whether it outlasts :meth:`remove_hooks` as that is called by default.
            level: The depth of the ``with`` that attaches it.
            prepend: Whether it runs before those that are attached already.

        Raises:
            ArgumentError: for another direction.
        """
        refuse_unless(dir in ("fwd", "bwd"), "dir", "must be fwd or bwd", dir, "name one of them")

        def forward(module: nn.Module, inputs: Any, output: Tensor) -> Any:
            return hook(output, hook=self)

        def backward(module: nn.Module, into: Any, out: tuple[Tensor, ...]) -> Any:
            result = hook(out[0], hook=self)
            return result if result is None or isinstance(result, tuple) else (result,)

        if dir == "fwd":
            handle = self.register_forward_hook(forward, prepend=prepend)
        else:
            handle = self.register_full_backward_hook(backward, prepend=prepend)
        attached = AttachedHook(handle, is_permanent, level, hook)
        there = self.fwd_hooks if dir == "fwd" else self.bwd_hooks
        there.insert(0 if prepend else len(there), attached)
        return attached

    def add_perma_hook(self, hook: Callable[..., Any], dir: Literal["fwd", "bwd"] = "fwd") -> None:
        """Attach a function that ordinary calls of ``remove_hooks`` leave in place.

        Only ``remove_hooks(..., including_permanent=True)`` removes it.

        Args:
            hook: Called as ``hook(tensor, hook=self)``. If it returns a tensor, this replaces the
                value; None leaves the value unchanged.
            dir: ``fwd`` for activations, ``bwd`` for gradients.

        Raises:
            ArgumentError: if ``dir`` is neither.
        """
        self.add_hook(hook, dir, is_permanent=True)

    @property
    def is_hooked(self) -> bool:
        """Whether a function is attached, through these methods or PyTorch's own."""
        return bool(self._forward_hooks or self._forward_pre_hooks or self._backward_hooks)

    def has_hooks(
        self, dir: Direction = "both", including_permanent: bool = True, level: int | None = None
    ) -> bool:
        """Whether a function is attached to this point.

        Args:
            dir: Which functions count: ``fwd``, ``bwd`` or ``both``.
            including_permanent: Whether permanent functions count too.
            level: Only functions that were attached at this depth of nested ``hooks`` contexts
                count; None for all depths.
        """
        _need_direction(dir)
        forward, backward = dir in ("fwd", "both"), dir in ("bwd", "both")
        there = [*self.fwd_hooks * forward, *self.bwd_hooks * backward]
        return any(hook.fits(including_permanent, level) for hook in there)

    def remove_hooks(
        self, dir: Direction = "fwd", including_permanent: bool = False, level: int | None = None
    ) -> None:
        """Take the functions away, in a direction and at a level (None for all)."""
        _need_direction(dir)
        for there in (self.fwd_hooks,) * (dir != "bwd") + (self.bwd_hooks,) * (dir != "fwd"):
            for hook in [hook for hook in there if hook.fits(including_permanent, level)]:
                hook.hook.remove()
                there.remove(hook)

    def clear_context(self) -> None:
        """Forget what functions have kept in ``ctx``."""
        self.ctx = {}

    def layer(self) -> int:
        """The layer that the point's name says.

        Raises:
            ArgumentError: for a point outside of the layers.
        """
        found = Site.of(str(self.name)).layer
        rule, advice = "must be that of a hook in a layer to have a number", "read hook.name"
        refuse_unless(found >= 0, "name", rule, self.name, advice)
        return found


def _need_direction(dir: str) -> None:
    good, rule = dir in ("fwd", "bwd", "both"), "must be fwd, bwd or both"
    refuse_unless(good, "dir", rule, dir, "name one of them")
