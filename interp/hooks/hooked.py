"""Run a hooked model so that no mistake passes silently.

TransformerLens' ``HookedRootModule`` ignores hook names that do not exist, goes on when a requested
hook does not fire, and guesses the position axis from a hook's name. The methods here are called
the same way, but raise an error in the first two cases and know the position axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from interp.hooks.hook_names import position_axis, require_hooks
from interp.hooks.transformer_lens_adapter import ActivationCache, HookedRootModule


class HookedModule(HookedRootModule):
    """A ``HookedRootModule`` that raises an error if a hook it is asked for is absent or does not
    fire."""

    def run_with_cache(
        self,
        *inputs: Any,
        names_filter: str | Sequence[str] | Callable[[str], bool] | None = None,
        return_cache_object: bool = True,
        remove_batch_dim: bool = False,
        pos_slice: Any = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Run and keep activations, as TransformerLens does.

        Args:
            inputs: What the model takes.
            names_filter: A hook name, several, or a predicate; everything by default.
            return_cache_object: Give an ``ActivationCache``, not a dict.
            remove_batch_dim: Drop the batch axis of a single row.
            pos_slice: Positions to keep: one, ``(start, stop)``, a list, or a slice. The position
                axis stays, and is known for every hook.
            options: Further keywords of TransformerLens' method and of the model's ``forward``.

        Returns:
            The output, and the cache.

        Raises:
            HookError: for a hook that is absent or did not fire.
        """
        names = None if callable(names_filter) else names_filter
        names = [names] if isinstance(names, str) else names
        if names is not None:
            require_hooks(names, self.hook_dict, "does not have")
            names_filter = list(names)
        output, cache = super().run_with_cache(
            *inputs, names_filter=names_filter, remove_batch_dim=remove_batch_dim, **options
        )
        if names is not None:
            require_hooks(names, cache, "did not fire")
        if pos_slice is not None:
            cache = {
                name: _pick(value, position_axis(name), pos_slice) for name, value in cache.items()
            }
        if not return_cache_object:
            return output, cache
        return output, ActivationCache(cache, self, has_batch_dim=not remove_batch_dim)

    def run_with_hooks(
        self, *inputs: Any, fwd_hooks: Any = (), bwd_hooks: Any = (), **options: Any
    ) -> Any:
        """Run with temporary hooks ``(name, fn)``; ``fn(tensor, hook)`` may replace the tensor.

        Raises:
            HookError: for a hook name that the model does not have, or that did not fire: an
                intervention that never happened would read as one without effect.
        """
        hooks = [*fwd_hooks, *bwd_hooks]
        require_hooks([n for n, _ in hooks if isinstance(n, str)], self.hook_dict, "does not have")
        fired: set[str] = set()
        wrapped = [(name, watched(name, function, fired)) for name, function in fwd_hooks]
        output = super().run_with_hooks(
            *inputs, fwd_hooks=wrapped, bwd_hooks=list(bwd_hooks), **options
        )
        require_hooks([n for n, _ in fwd_hooks if isinstance(n, str)], fired, "did not fire")
        return output


def watched(name: Any, function: Callable[..., Any], fired: set[str]) -> Callable[..., Any]:
    """Wrap ``function`` so that it also notes that the hook of this name fired."""
    if not isinstance(name, str):
        return function

    def call(tensor: Any, hook: Any) -> Any:
        fired.add(name)
        return function(tensor, hook=hook)

    return call


def _pick(value: Tensor, axis: int, positions: Any) -> Tensor:
    """Select ``positions`` (an int, tuple, list or slice) along one axis, which is kept."""
    if isinstance(positions, int):
        positions = [positions]
    if isinstance(positions, tuple):
        positions = slice(*positions)
    return value.index_select(axis, torch.arange(value.shape[axis], device=value.device)[positions])
