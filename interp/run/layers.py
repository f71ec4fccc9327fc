"""Run a model from a layer on, with functions acting at sites.

    streams = layers.streams(inputs)              the stream that enters each layer, and the last
    with layers.acting({site: function}):
        stream = layers.block(streams[l], l)      layer l again, on any number of copies of the rows
    layers.head(stream)                           outputs of some places, and of no other

A function gets a site's value and returns what stands in, or None to read only. What comes before
the first change is as it was, so a changed run starts at its layer; arguments of layers (masks,
position embeddings) are recorded on one row and hold for all rows of that length. Replaying is
checked on two rows when a model is first seen (:func:`interp.run.plain.runners_of`). What cannot be
replayed (wrapped modules, layers that need more of a row than its stream) runs as a whole at its
hooks (:func:`run_whole`), with the same numbers, later.
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
"""What happens at sites of all heads."""

_RELATIVE = 1e-4
"""The largest deviation, as a share of the largest value, of a replay that counts as equal."""

_CACHES = ("past_key_value", "past_key_values", "layer_past", "cache_position", "use_cache")
_SPLIT = ("q_input", "k_input", "v_input")


class _LastLayerRan(BaseException):
    """Ends a forward pass early; not an ``Exception``, so that no model's code can catch it."""


class Layers(ABC):
    """A model's layers, to be run one after the other.

    Attributes:
        layers: The modules.
    """

    layers: Sequence[nn.Module]

    def __init__(self) -> None:
        self._arguments: dict[int, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}

    @abstractmethod
    def knows(self, site: Site) -> bool:
        """Whether a value at the site can be read and replaced."""

    @abstractmethod
    def head(self, stream: Tensor) -> Tensor:
        """The outputs ``[place, output]`` of streams ``[place, d_model]`` after the last layer."""

    @abstractmethod
    def acting(self, acts: Acts) -> Any:
        """A context manager in which functions act at sites of layers."""

    @abstractmethod
    def _forward(self, inputs: Tensor) -> None:
        """Run the model; it is stopped after the last layer."""

    def streams(self, inputs: Tensor) -> list[Tensor]:
        """The streams ``[row, pos, d_model]`` that enter each layer, and the one after the last."""
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
        """The stream after a layer, from the one before it: ``[copies·row, pos, d_model]``."""
        arguments, keywords = self._arguments[stream.shape[1]][layer]
        return _tensor(self.layers[layer](stream, *arguments, **keywords))

    def agrees(self, inputs: Tensor, output: Tensor) -> bool:
        """Whether running layer by layer gives the model's own residual streams and ``output``.

        False, too, where replaying raises an error other than being out of memory.
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
        """Record the arguments of layers for rows of this length, on one row; once a length."""
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
        """A function sees what each layer is called with."""
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
    """The output ``[row, pos, output]`` of a hooked model with functions acting at sites.

    Raises:
        ArgumentError: for ids or positions that the model's tables do not have.
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
    """Functions act at the hooks of a model.

    Raises:
        HookError: for a hook that the model lacks, or that did not fire.
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
    """The functions at sites, each of which must have been called in the end.

    Raises:
        HookError: naming the sites whose functions were not: a change that never happened would
            read as one without effect.
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
    """Whether two tensors of one shape agree up to rounding, relative to the largest entry."""
    kind = torch.finfo(expected.dtype)
    scale = expected.abs().max().clamp_min(kind.tiny)
    return found.shape == expected.shape and bool(
        (found - expected).abs().max() <= max(_RELATIVE, 4 * kind.eps) * scale
    )


def _tensor(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out[0]


def _drop_cache(value: Any) -> Any:
    return None if hasattr(value, "get_seq_length") else value
