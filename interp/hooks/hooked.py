"""A model with hook points, run so that no mistake passes silently.

The methods are those of TransformerLens' ``HookedRootModule`` and are called the same way, so that
its tools, and what its users know, work on our models. TransformerLens ignores hook names that do
not exist, goes on when a requested hook does not fire, and guesses the position axis from a hook's
name; the methods here raise an error in the first two cases and know the position axis.

TransformerLens itself is imported where something of it is asked for: an ``ActivationCache``, or
one of its less common methods, which are its own and work on our hook points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from interp.errors import refuse_unless
from interp.hooks.hook_names import position_axis, require_hooks
from interp.hooks.points import Direction

__all__ = ["HookedModule", "note_firing"]

_OF_TRANSFORMER_LENS = (
    "add_caching_hooks",
    "cache_all",
    "cache_some",
    "get_caching_hooks",
    "list_hooks",
)
"""Methods that are taken unchanged from TransformerLens' ``HookedRootModule``. Its
``check_hooks_to_add`` is not among them: subclasses override it there, but hooks are never added
through it here."""

Names = str | Callable[[str], bool]
"""The name of a hook, or a function that is True for the names of the hooks that are meant."""


class HookedModule(nn.Module):
    """A module with hook points. A hook that is asked for by name exists and fires in
    ``run_with_hooks`` and ``run_with_cache``; otherwise an error is raised.

    Attributes:
        hook_dict: Hook name → hook point; :meth:`setup` fills it.
        mod_dict: Name → submodule.
        context_level: The number of nested ``with model.hooks(...)`` that are active now.
        is_caching: Whether a cache was asked for since the last :meth:`reset_hooks`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_caching, self.context_level = False, 0
        self.mod_dict: dict[str, nn.Module] = {}
        self.hook_dict: dict[str, Any] = {}

    def setup(self) -> None:
        """Give every submodule its name and collect the hook points, ours and TransformerLens'.

        Call it last in ``__init__``.
        """
        self.mod_dict, self.hook_dict = {}, {}
        for name, module in self.named_modules():
            if name:
                module.name = name
                self.mod_dict[name] = module
                if hasattr(module, "fwd_hooks"):
                    self.hook_dict[name] = module

    def __getattr__(self, name: str) -> Any:
        if name in _OF_TRANSFORMER_LENS:
            from interp.hooks.transformer_lens_adapter import HookedRootModule

            return MethodType(getattr(HookedRootModule, name), self)
        return super().__getattr__(name)

    def hook_points(self) -> Any:
        """Return the hook points, in the order in which their modules were registered."""
        return self.hook_dict.values()

    def add_hook(
        self,
        name: Names,
        hook: Callable[..., Any],
        dir: Literal["fwd", "bwd"] = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Attach a function until hooks are reset; see :meth:`.points.HookPoint.add_hook`.

        Args:
            name: A hook's name, or a predicate on names.
            hook: The function, called as ``hook(tensor, hook=point)``.
            dir: ``fwd`` for activations, ``bwd`` for gradients.
            is_permanent: Whether the function stays when :meth:`reset_hooks` is called with its
                defaults.
            level: The depth of the ``with`` that attaches it.
            prepend: Whether it runs before the functions that are attached already.

        Raises:
            HookError: if the model does not have a hook of this name.
        """
        if not isinstance(name, str):
            points = [point for known, point in self.hook_dict.items() if name(known)]
        elif name in self.hook_dict:
            points = [self.hook_dict[name]]
        else:
            points = []
            require_hooks([name], self.hook_dict, "has no hook")
        for point in points:
            point.add_hook(hook, dir, is_permanent, level, prepend)

    def add_perma_hook(
        self, name: Names, hook: Callable[..., Any], dir: Literal["fwd", "bwd"] = "fwd"
    ) -> None:
        """Attach a function that stays until hooks are reset with ``including_permanent=True``."""
        self.add_hook(name, hook, dir, is_permanent=True)

    def remove_all_hook_fns(
        self,
        direction: Direction = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Remove the hook functions of all hook points.

        Args:
            direction: Which functions: ``fwd``, ``bwd`` or ``both``.
            including_permanent: Whether permanent functions are removed too.
            level: Only functions that were attached at this depth of nested :meth:`hooks` contexts;
                None for all depths.
        """
        for point in self.hook_points():
            point.remove_hooks(direction, including_permanent, level)

    def clear_contexts(self) -> None:
        """Empty the context ``ctx`` of every hook point, in which functions keep values between
        calls."""
        for point in self.hook_points():
            point.clear_context()

    def reset_hooks(
        self,
        clear_contexts: bool = True,
        direction: Direction = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Remove the hook functions of all hook points, as :meth:`remove_all_hook_fns` does.

        Args:
            clear_contexts: Whether to empty the hook points' contexts, too.
            direction: Which functions: ``fwd``, ``bwd`` or ``both``.
            including_permanent: Whether permanent functions are removed too.
            level: Only functions that were attached at this depth of nested :meth:`hooks` contexts;
                None for all depths.
        """
        if clear_contexts:
            self.clear_contexts()
        self.remove_all_hook_fns(direction, including_permanent, level)
        self.is_caching = False

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Sequence[tuple[Names, Callable[..., Any]]] = (),
        bwd_hooks: Sequence[tuple[Names, Callable[..., Any]]] = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator[HookedModule]:
        """Attach functions inside the ``with``.

        Args:
            fwd_hooks: Pairs of a hook's name, or a predicate on names, and a function of
                activations.
            bwd_hooks: The same, for functions of gradients.
            reset_hooks_end: Whether the functions are removed at the end.
            clear_contexts: Whether the hook points' contexts are emptied at the end, too.

        Raises:
            HookError: if the model does not have a hook of a given name.
        """
        self.context_level += 1
        try:
            for name, function in fwd_hooks:
                self.add_hook(name, function, "fwd", level=self.context_level)
            for name, function in bwd_hooks:
                self.add_hook(name, function, "bwd", level=self.context_level)
            yield self
        finally:
            if reset_hooks_end:
                self.reset_hooks(clear_contexts, level=self.context_level)
            self.context_level -= 1

    def run_with_cache(
        self,
        *inputs: Any,
        names_filter: str | Sequence[str] | Callable[[str], bool] | None = None,
        device: torch.device | str | None = None,
        remove_batch_dim: bool = False,
        incl_bwd: bool = False,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        pos_slice: Any = None,
        return_cache_object: bool = True,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Run the model and cache activations, as TransformerLens does.

        Args:
            inputs: The arguments of the model.
            names_filter: A hook name, several, or a predicate; everything by default.
            device: The device of the cached activations; by default they stay where they are.
            remove_batch_dim: Whether to drop the batch axis of a single row.
            incl_bwd: Whether to call ``backward`` on the output, which must be one number, and to
                cache gradients as well, under the hook's name with ``_grad``.
            reset_hooks_end: Whether the functions that cache activations are removed at the end.
            clear_contexts: Whether the hook points' contexts are emptied at the end.
            pos_slice: The positions to keep: one, ``(start, stop)``, a list, or a slice. The
                position axis stays, and is known for every hook.
            return_cache_object: Whether to return an ``ActivationCache`` instead of a dict.
            options: Further keywords of the model's ``forward``.

        Returns:
            The output, and the cache.

        Raises:
            HookError: if a requested hook is absent or did not fire.
            ArgumentError: if ``remove_batch_dim`` is set and there are several rows.
        """
        named = list[str]()
        if callable(names_filter):
            chosen = [name for name in self.hook_dict if names_filter(name)]
        elif names_filter is None:
            chosen = [*self.hook_dict]
        else:
            named = [names_filter] if isinstance(names_filter, str) else [*names_filter]
            chosen = [*dict.fromkeys(named)]
        require_hooks(named, self.hook_dict, "has no hook")
        given = inputs[0] if inputs and isinstance(inputs[0], Tensor) else torch.zeros(())
        rows = len(given) if given.ndim else 1
        rule, advice = "needs a single row", "give one row, or keep the batch axis"
        refuse_unless(rows == 1 or not remove_batch_dim, "remove_batch_dim", rule, rows, advice)
        cache: dict[str, Tensor] = {}
        keep = partial(_keep, cache=cache, device=device, first=remove_batch_dim)
        forward = [(name, partial(keep, ending="")) for name in chosen]
        backward = [(name, partial(keep, ending="_grad")) for name in chosen if incl_bwd]
        self.is_caching = True
        with self.hooks(forward, backward, reset_hooks_end, clear_contexts):
            output = self(*inputs, **options)
            if incl_bwd:
                output.backward()
        require_hooks(named, cache, "did not fire the hook")
        if pos_slice is not None:
            cache = {
                name: _pick(value, position_axis(name), pos_slice) for name, value in cache.items()
            }
        if not return_cache_object:
            return output, cache
        from interp.hooks.transformer_lens_adapter import ActivationCache

        return output, ActivationCache(cache, self, has_batch_dim=not remove_batch_dim)

    def run_with_hooks(
        self,
        *inputs: Any,
        fwd_hooks: Sequence[tuple[Names, Callable[..., Any]]] = (),
        bwd_hooks: Sequence[tuple[Names, Callable[..., Any]]] = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        **options: Any,
    ) -> Any:
        """Run with temporary hooks ``(name, fn)``; ``fn(tensor, hook)`` may replace the tensor.

        Args:
            inputs: The arguments of the model.
            fwd_hooks: Pairs of a hook's name, or a predicate, and a function.
            bwd_hooks: The same, for gradients; they need ``reset_hooks_end=False``, so that they
                are still there when ``backward`` is called.
            reset_hooks_end: Whether the functions are removed at the end.
            clear_contexts: Whether the hook points' contexts are emptied at the end, too.
            options: Further keywords of the model's ``forward``.

        Raises:
            HookError: if the model does not have a named hook, or the hook did not fire: an
                intervention that never happened would otherwise look like one without effect.
            ArgumentError: if backward hooks would be removed before ``backward`` is called.
        """
        asked = [name for name, _ in [*fwd_hooks, *bwd_hooks] if isinstance(name, str)]
        require_hooks(asked, self.hook_dict, "has no hook")
        rule = "must be False with bwd_hooks, which would be gone before backward is called"
        lasting, advice = not (bwd_hooks and reset_hooks_end), "call reset_hooks() after backward"
        refuse_unless(lasting, "reset_hooks_end", rule, reset_hooks_end, advice)
        fired: set[str] = set()
        wrapped = [(name, note_firing(name, function, fired)) for name, function in fwd_hooks]
        with self.hooks(wrapped, bwd_hooks, reset_hooks_end, clear_contexts):
            output = self.forward(*inputs, **options)
        named = [name for name, _ in fwd_hooks if isinstance(name, str)]
        require_hooks(named, fired, "did not fire the hook")
        return output


def note_firing(name: Any, function: Callable[..., Any], fired: set[str]) -> Callable[..., Any]:
    """Wrap ``function`` so that each call also adds the hook's name to ``fired``."""
    if not isinstance(name, str):
        return function

    def call(tensor: Any, hook: Any) -> Any:
        fired.add(name)
        return function(tensor, hook=hook)

    return call


def _keep(
    value: Tensor,
    hook: Any,
    *,
    cache: dict[str, Tensor],
    device: torch.device | str | None,
    first: bool,
    ending: str,
) -> None:
    """Put a hook's tensor into the cache. With ``first``, a first axis of length 1 is dropped."""
    kept = value.detach().to(device)
    single = first and kept.ndim > 0 and len(kept) == 1
    cache[f"{hook.name}{ending}"] = kept[0] if single else kept


def _pick(value: Tensor, axis: int, positions: Any) -> Tensor:
    """Select ``positions`` (an int, tuple, list or slice) along one axis, which is kept."""
    if isinstance(positions, int):
        positions = [positions]
    if isinstance(positions, tuple):
        positions = slice(*positions)
    return value.index_select(axis, torch.arange(value.shape[axis], device=value.device)[positions])
