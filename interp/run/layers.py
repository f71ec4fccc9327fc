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
hooks (:class:`Whole`), with the same numbers, later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from interp.errors import ArgumentError, HookError
from interp.hooks.hook_names import nearest
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

        with ExitStack() as stack, torch.no_grad():
            for layer in self.layers:
                handle = layer.register_forward_pre_hook(enter, with_kwargs=True)
                stack.callback(handle.remove)
            stack.callback(self.layers[-1].register_forward_hook(leave).remove)
            with suppress(_LastLayerRan):
                self._forward(inputs)
        return found

    def block(self, stream: Tensor, layer: int) -> Tensor:
        """The stream after a layer, from the one before it: ``[copies·row, pos, d_model]``."""
        arguments, keywords = self._arguments[stream.shape[1]][layer]
        return _tensor(self.layers[layer](stream, *arguments, **keywords))

    def agrees(self, inputs: Tensor, output: Tensor) -> bool:
        """Whether replaying some rows gives the streams and the output of the model."""
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
            calls.append((tuple(_uncached(value) for value in args[1:]), kept))

        with ExitStack() as stack, torch.no_grad():
            for layer in self.layers:
                handle = layer.register_forward_pre_hook(record, with_kwargs=True)
                stack.callback(handle.remove)
            self._forward(inputs[:1])
        self._arguments[inputs.shape[1]] = calls


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
        with hooked(self.model, acts):
            yield

    def _forward(self, inputs: Tensor) -> None:
        self.model(inputs)


class Whole:
    """A hooked model that is run as a whole.

    Args:
        model: Any hooked model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def output(self, inputs: Tensor, acts: Acts) -> Tensor:
        """The model's output ``[row, pos, output]`` with functions acting at sites.

        Raises:
            ArgumentError: for ids or positions that the model's tables do not have.
        """
        with hooked(self.model, acts):
            try:
                found: Tensor = self.model(inputs)
            except IndexError as error:
                raise out_of_tables(self.model, inputs, error) from error
        return found


def out_of_tables(model: Any, inputs: Any, error: IndexError) -> ArgumentError:
    """The error that says that a model stopped on its inputs."""
    shape = tuple(getattr(inputs, "shape", ()))
    return ArgumentError(
        f"inputs must be ids and positions that {type(model).__name__} has in its tables, got "
        f"{shape}, on which it stops ({error}): give smaller ids or shorter rows"
    )


@contextmanager
def hooked(model: Any, acts: Acts) -> Iterator[None]:
    """Functions act at the hooks of a model.

    Raises:
        HookError: for a hook that the model lacks, or that did not fire: a change that never
            happened would read as one without effect.
    """
    lacking = [site.name for site in acts if site.name not in model.hook_dict]
    if lacking:
        near = sorted({near for name in lacking for near in nearest(name, model.hook_dict)})
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise HookError(f"{type(model).__name__} has no hook {', '.join(lacking)}{hint}")
    fired: set[Site] = set()

    def called(site: Site, act: Callable[[Tensor], Tensor | None]) -> Callable[..., Any]:
        def call(value: Tensor, hook: Any) -> Tensor | None:
            fired.add(site)
            return act(value)

        return call

    kinds = {site.kind for site in acts}
    with ExitStack() as stack:
        if kinds & {*_SPLIT}:
            stack.enter_context(_flag(model, "use_split_qkv_input"))
        if "mlp_in" in kinds:
            stack.enter_context(_flag(model, "use_hook_mlp_in"))
        hooks = [(site.name, called(site, act)) for site, act in acts.items()]
        stack.enter_context(model.hooks(fwd_hooks=hooks))
        yield
    silent = [site.name for site in acts if site not in fired]
    if silent:
        raise HookError(f"{type(model).__name__} did not fire the hook {', '.join(silent)}")


@contextmanager
def _flag(model: Any, name: str) -> Iterator[None]:
    before = bool(getattr(model.cfg, name, False))
    getattr(model, f"set_{name}")(True)
    try:
        yield
    finally:
        getattr(model, f"set_{name}")(before)


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two values agree up to the rounding of their number format."""
    kind = torch.finfo(expected.dtype)
    scale = expected.abs().max().clamp_min(kind.tiny)
    return found.shape == expected.shape and bool(
        (found - expected).abs().max() <= max(_RELATIVE, 4 * kind.eps) * scale
    )


def _tensor(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out[0]


def _uncached(value: Any) -> Any:
    return None if hasattr(value, "get_seq_length") else value
