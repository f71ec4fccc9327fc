"""A named place in a model where a function can read or replace a tensor.

    y = hook_point(x)        x itself, or what the attached functions replace it by

The methods, their arguments and the call of a function, ``fn(tensor, hook=point)``, are those of
TransformerLens' ``HookPoint``, so that its tools and its users' functions work on our models. It is
a class of our own because importing TransformerLens takes a second, which users who need none of
its tools should not have to wait for. Features that only TransformerLens' bridges need are left
out: aliases, and the conversion of shapes.

A point that never fires changes nothing and raises nothing. :class:`~.hooked.HookedModule` raises
an error if a hook that ``run_with_hooks`` or ``run_with_cache`` was asked for by name does not
fire.
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
"""``fwd`` for the forward pass, in which functions receive activations; ``bwd`` for the backward
pass, in which they receive gradients; ``both`` for both."""


@dataclass
class AttachedHook:
    """A function that is attached to a hook point.

    Attributes:
        hook: PyTorch's handle, which removes the function.
        is_permanent: Whether the function is removed only on request
            (``including_permanent=True``).
        context_level: The depth of the ``with model.hooks(...)`` that attached it; None outside of
            one.
        user_hook: The function that is called; for ``run_with_hooks`` a wrapper of the user's
            function.
    """

    hook: RemovableHandle
    is_permanent: bool
    context_level: int | None
    user_hook: Callable[..., Any]

    def fits(self, including_permanent: bool, level: int | None) -> bool:
        """Return whether a request to remove or count functions includes this one.

        Args:
            including_permanent: Whether the request includes permanent functions.
            level: The depth of ``with`` that the request is limited to; None for all depths.
        """
        asked = including_permanent or not self.is_permanent
        return asked and level in (None, self.context_level)


class HookPoint(nn.Module):
    """The identity function, to whose output other functions can be attached.

    Attributes:
        name: The point's name in its model, such as ``blocks.0.attn.hook_z``; the model sets it.
        ctx: A dict in which functions can keep values between calls.
        fwd_hooks: The functions of activations, in the order in which they run.
        bwd_hooks: The functions of gradients.
        read_only: Whether the model refuses changes here; set and enforced by
            :mod:`interp.models.wrap`.
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
        """Return the tensor itself; PyTorch then calls the attached functions on it."""
        return x

    def add_hook(
        self,
        hook: Callable[..., Any],
        dir: Literal["fwd", "bwd"] = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> AttachedHook:
        """Attach ``hook(tensor, hook=point)``; what it returns replaces the tensor or the gradient,
        unless it returns None.

        Args:
            hook: The function.
            dir: ``fwd`` for activations, ``bwd`` for gradients.
            is_permanent: Whether the function stays when :meth:`remove_hooks` is called with its
                defaults.
            level: The depth of the ``with`` that attaches it.
            prepend: Whether it runs before the functions that are attached already.

        Returns:
            The attached function with its handle.

        Raises:
            ArgumentError: if ``dir`` is neither.
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
        """Whether a function is attached, by the methods of this class or by PyTorch's own."""
        return bool(self._forward_hooks or self._forward_pre_hooks or self._backward_hooks)

    def has_hooks(
        self, dir: Direction = "both", including_permanent: bool = True, level: int | None = None
    ) -> bool:
        """Return whether a function is attached to this point.

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
        """Remove functions from this point.

        Args:
            dir: Which functions: ``fwd``, ``bwd`` or ``both``.
            including_permanent: Whether permanent functions are removed too.
            level: Only functions that were attached at this depth of nested ``hooks`` contexts;
                None for all depths.
        """
        _need_direction(dir)
        for there in (self.fwd_hooks,) * (dir != "bwd") + (self.bwd_hooks,) * (dir != "fwd"):
            for hook in [hook for hook in there if hook.fits(including_permanent, level)]:
                hook.hook.remove()
                there.remove(hook)

    def clear_context(self) -> None:
        """Empty ``ctx``."""
        self.ctx = {}

    def layer(self) -> int:
        """Return the layer number in the point's name.

        Raises:
            ArgumentError: if the point is not in a layer.
        """
        found = Site.of(str(self.name)).layer
        rule, advice = "must be that of a hook in a layer to have a number", "read hook.name"
        refuse_unless(found >= 0, "name", rule, self.name, advice)
        return found


def _need_direction(dir: str) -> None:
    good, rule = dir in ("fwd", "bwd", "both"), "must be fwd, bwd or both"
    refuse_unless(good, "dir", rule, dir, "name one of them")
