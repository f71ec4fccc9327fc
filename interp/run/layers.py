"""Run a model from a layer on, with functions that read or replace values at sites.

    streams = layers.streams(inputs)              the stream that enters each layer, and the last
    with layers.acting({site: function}):
        stream = layers.block(streams[l], l)      layer l again, on any number of copies of the rows
    layers.head(stream)                           outputs of some places, and of no other

A function gets a site's value and returns its replacement, or None to read only. Everything before
the first change is unchanged, so an edited run starts at the layer of the first edit. The other
arguments of the layers (masks, position embeddings) are recorded on one row and used for all rows
of that length. Replaying is checked on two rows when a model is first seen
(:func:`interp.run.plain.runners_of`). Models that cannot be replayed (wrapped modules, layers that
need more of a row than its stream) run as a whole at their hooks (:func:`run_whole`): the numbers
are the same, but it takes longer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from interp.errors import ArgumentError
from interp.hooks.hook_names import require_hooks
from interp.hooks.site import Site

Acts = Mapping[Site, Callable[[Tensor], Tensor | None]]
"""Site of all heads of a layer → the function that reads or replaces its value."""

_RELATIVE = 1e-4
"""Largest deviation, as a share of the largest value, with which a replay from a middle layer
counts as equal to the full forward pass."""

_CACHES = ("past_key_value", "past_key_values", "layer_past", "cache_position", "use_cache")
_SPLIT = ("q_input", "k_input", "v_input")


class _LastLayerRan(BaseException):
    """Ends a forward pass early; not an ``Exception``, so that no model's code can catch it."""


class Layers(ABC):
    """A model's layers, which can be run one by one from a given residual stream.

    Attributes:
        layers: The layers' modules, in order.
    """

    layers: Sequence[nn.Module]

    def __init__(self) -> None:
        self._arguments: dict[int, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}

    @abstractmethod
    def knows(self, site: Site) -> bool:
        """Return whether the value at the site can be read and replaced."""

    @abstractmethod
    def head(self, stream: Tensor) -> Tensor:
        """Return the outputs ``[place, output]`` for final streams ``[place, d_model]``."""

    @abstractmethod
    def acting(self, acts: Acts) -> Any:
        """Return a context manager inside which functions read or replace the values at sites."""

    @abstractmethod
    def _forward(self, inputs: Tensor) -> None:
        """Run the model on ``inputs``; the caller stops it after the last layer."""

    def streams(self, inputs: Tensor) -> list[Tensor]:
        """Return the stream ``[row, pos, d_model]`` that enters each layer, and the final one."""
        self.prepare(inputs)
        found: list[Tensor] = []

        def enter(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            found.append(args[0] if args else keywords["hidden_states"])

        def leave(module: nn.Module, args: Any, out: Any) -> None:
            found.append(_tensor(out))
            raise _LastLayerRan

        last = self.layers[-1]
        with self._entering(enter), last.register_forward_hook(leave), suppress(_LastLayerRan):
            self._forward(inputs)
        return found

    def block(self, stream: Tensor, layer: int) -> Tensor:
        """Run one layer on a stream ``[copies·row, pos, d_model]`` and return the stream after
        it."""
        arguments, keywords = self._arguments[stream.shape[1]][layer]
        return _tensor(self.layers[layer](stream, *arguments, **keywords))

    def agrees(self, inputs: Tensor, output: Tensor) -> bool:
        """Return whether running layer by layer gives the model's own residual streams and
        ``output``.

        False, too, if replaying raises an error other than being out of memory.
        """
        with torch.no_grad():
            try:
                streams = self.streams(inputs)
                for layer in range(len(self.layers)):
                    if not close(self.block(streams[layer], layer), streams[layer + 1]):
                        return False
                again = self.head(streams[-1].flatten(0, 1))
            except torch.OutOfMemoryError:
                raise
            except Exception:  # layers of other makes may lack anything, in any way
                return False
        return len(streams) == len(self.layers) + 1 and close(again, output.flatten(0, 1))

    def prepare(self, inputs: Tensor) -> None:
        """Record the layers' other arguments for inputs of this length, from their first row.

        A length that was recorded before is not recorded again.
        """
        if inputs.shape[1] in self._arguments:
            return
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def record(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            kept = {k: v for k, v in keywords.items() if k not in ("hidden_states", *_CACHES)}
            calls.append((tuple(_drop_cache(value) for value in args[1:]), kept))

        with self._entering(record):
            self._forward(inputs[:1])
        self._arguments[inputs.shape[1]] = calls

    @contextmanager
    def _entering(self, act: Callable[..., None]) -> Iterator[None]:
        """Call ``act`` before each layer's call, with the layer and its arguments, inside the
        ``with``."""
        with ExitStack() as stack, torch.no_grad():
            for layer in self.layers:
                stack.enter_context(layer.register_forward_pre_hook(act, with_kwargs=True))
            yield


class HookedLayers(Layers):
    """The layers of one of our models or of a bridge, with its own hooks.

    Args:
        model: A model with ``blocks``, ``ln_final`` and ``unembed``.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.layers = model, list(model.blocks)

    def knows(self, site: Site) -> bool:  # noqa: D102
        return site.layer >= 0 and site.name in self.model.hook_dict

    def head(self, stream: Tensor) -> Tensor:  # noqa: D102
        found: Tensor = self.model.unembed(self.model.ln_final(stream[None]))[0]
        return found

    @contextmanager
    def acting(self, acts: Acts) -> Iterator[None]:  # noqa: D102
        with hook_model(self.model, acts):
            yield

    def _forward(self, inputs: Tensor) -> None:
        self.model(inputs)


def run_whole(model: Any, inputs: Tensor, acts: Acts) -> Tensor:
    """Run a whole hooked model with functions at sites, and return its output ``[row, pos,
    output]``.

    Raises:
        ArgumentError: if an id or a position is outside of the model's embedding tables.
        HookError: if the model lacks a site's hook, or the hook did not fire.
    """
    with hook_model(model, acts):
        try:
            found: Tensor = model(inputs)
        except IndexError as error:
            raise ArgumentError(
                f"inputs must be ids and positions that {type(model).__name__} has in its tables, "
                f"got {tuple(inputs.shape)}, on which it stops ({error}): give smaller ids or "
                "shorter rows"
            ) from error
    return found


@contextmanager
def hook_model(model: Any, acts: Acts) -> Iterator[None]:
    """Attach functions to the hooks of a model, inside the ``with``.

    Raises:
        HookError: if the model lacks a site's hook, or the hook did not fire.
    """
    require_hooks([site.name for site in acts], model.hook_dict, "has no hook")
    kinds = {site.kind for site in acts}
    with ExitStack() as stack:
        if kinds & {*_SPLIT}:
            stack.enter_context(_flag(model, "use_split_qkv_input"))
        if "mlp_in" in kinds:
            stack.enter_context(_flag(model, "use_hook_mlp_in"))
        called = stack.enter_context(all_called(acts))
        hooks = [(s.name, lambda value, hook, act=act: act(value)) for s, act in called.items()]
        stack.enter_context(model.hooks(fwd_hooks=hooks))
        yield


@contextmanager
def all_called(acts: Acts) -> Iterator[Acts]:
    """Give the functions at sites, and check at the end of the ``with`` that each of them was
    called.

    Raises:
        HookError: if a function was not called, naming its site. A change that never happened would
            otherwise look like one without effect.
    """
    called: set[str] = set()

    def call(value: Tensor, site: Site) -> Tensor | None:
        called.add(site.name)
        return acts[site](value)

    yield {site: partial(call, site=site) for site in acts}
    require_hooks([site.name for site in acts], called, "did not fire the hook")


@contextmanager
def _flag(model: Any, name: str) -> Iterator[None]:
    before = bool(getattr(model.cfg, name, False))
    getattr(model, f"set_{name}")(True)
    try:
        yield
    finally:
        getattr(model, f"set_{name}")(before)


def close(found: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors agree up to rounding, relative to the largest entry."""
    kind = torch.finfo(expected.dtype)
    scale = expected.abs().max().clamp_min(kind.tiny)
    return found.shape == expected.shape and bool(
        (found - expected).abs().max() <= max(_RELATIVE, 4 * kind.eps) * scale
    )


def _tensor(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out[0]


def _drop_cache(value: Any) -> Any:
    return None if hasattr(value, "get_seq_length") else value
