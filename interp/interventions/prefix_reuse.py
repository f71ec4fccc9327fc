"""Keep one forward pass, so that the layers after any point can be run again on changed streams.

Ablating a component of layer l changes nothing before it: the residual stream up to there is
computed once, and only the rest runs again, for many changed copies in one batch.

    trace = Trace.of(model, inputs)
    trace.finish(trace.before(1) + change, 1)         # blocks 1 …, final norm, unembedding

A trace holds the streams that enter layers and nothing else; what happens inside a layer is
computed again when it is asked for, a layer at a time. Blocks are called with the arguments they
had in the recorded pass (masks, position embeddings), repeated for the copies; key-value caches
are left out. A trace is checked when it is made: its streams must be finite, and the replay of the
unchanged streams must give the recorded ones and the recorded output, or else there is a
:exc:`ConformanceError`, as for blocks whose FFN does not read the stream between (parallel blocks,
post-norms) or models that scale their logits. :func:`can_replay` asks beforehand, on two rows; such
models are run as a whole (:class:`interp.interventions.clean_run.CleanRun`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.errors import ArgumentError, ConformanceError, HookError
from interp.hooks.capture import evaluating
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.components import has_ffn

__all__ = ["Stream", "Trace", "can_replay", "head_hook", "need_replay", "not_finite"]

Stream = Float[Tensor, "row pos d_model"]
_RELATIVE = 1e-4
_PARTS = ("blocks", "ln_final", "unembed")
_CACHES = ("past_key_value", "past_key_values", "layer_past", "cache_position", "use_cache")


@dataclass(frozen=True)
class Trace:
    """A forward pass whose residual streams are kept, so that it can be run again from any layer.

    Attributes:
        model: The model that was run.
        inputs: The inputs it was run on, ``[row, pos(, channel)]``.
        output: The output it gave, ``[row, pos, output]``.
        streams: Layer → the residual stream that enters it; ``n_layers`` → the last one.
        arguments: For each layer, the arguments of its block besides the stream.
    """

    model: Any
    inputs: Tensor
    output: Tensor
    streams: Mapping[int, Stream]
    arguments: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]

    @classmethod
    def of(
        cls,
        model: HookedModel,
        inputs: Tensor,
        layers: Collection[int] | None = None,
        *,
        check: bool = True,
    ) -> Trace:
        """Run ``model`` on ``inputs`` and keep the residual streams that enter layers.

        Args:
            model: A model with ``blocks``, ``ln_final`` and ``unembed``, as ours and bridges have.
            inputs: ``[row, pos(, channel)]``.
            layers: The layers before which the stream is kept; all, and the last layer's output, by
                default.
            check: Whether to replay the run; not needed where only what was recorded is read.

        Raises:
            ArgumentError: if a stream is not finite.
            ConformanceError: if the model cannot be replayed.
            HookError: for a model without these parts.
        """
        need_replay(model)
        calls: list[Any] = []
        depth = int(model.cfg.n_layers)
        names = {layer: f"blocks.{layer}.hook_resid_pre" for layer in range(depth)}
        names[depth] = f"blocks.{depth - 1}.hook_resid_post"
        with ExitStack() as stack, evaluating(model):
            for block in model.blocks:  # type: ignore[attr-defined]
                handle = block.register_forward_pre_hook(_recorder(calls), with_kwargs=True)
                stack.callback(handle.remove)
            output, cache = model.run_with_cache(
                inputs, names_filter=sorted(names.values()), return_cache_object=False
            )
        streams = {layer: cache[name] for layer, name in names.items()}
        if not all(bool(stream.isfinite().all()) for stream in streams.values()):
            raise not_finite(model, inputs)
        trace = cls(model, inputs, output, streams, calls)
        if check:
            trace._check()
        kept = streams.keys() if layers is None else layers
        return cls(model, inputs, output, {layer: streams[layer] for layer in kept}, calls)

    @property
    def n_layers(self) -> int:
        """The number of blocks."""
        return int(self.model.cfg.n_layers)

    def before(self, layer: int) -> Stream:
        """The stream that enters a layer; for ``n_layers`` the last layer's output."""
        return self.streams[layer]

    def inside(self, layer: int) -> dict[str, Tensor]:
        """The activations inside a layer, computed again: its parts' writes and the streams
        between.

        Returns:
            Hook → ``[row, pos, …]``: ``hook_resid_pre``, the heads' :func:`head_hook`,
            ``hook_resid_mid``, ``hook_mlp_out`` where there is an FFN, and ``hook_resid_post``.
        """
        at, found = f"blocks.{layer}.", {}

        def keep(value: Tensor, hook: Any, name: str) -> None:
            found[name] = value

        names = [head_hook(self.model, layer), at + "hook_resid_mid"]
        names += [at + "hook_mlp_out"] if has_ffn(self.model, layer) else []
        hooks = [(name, partial(keep, name=name)) for name in names]
        with evaluating(self.model), self.model.hooks(fwd_hooks=hooks):
            found[at + "hook_resid_pre"] = self.before(layer)
            found[at + "hook_resid_post"] = self.block(self.before(layer), layer)
        return found

    def after_attention(self, mid: Stream, layer: int, read: Stream | None = None) -> Stream:
        """The stream after a layer, given the stream between its attention and its FFN.

        Args:
            mid: The stream between the sublayers, ``[copies·row, pos, d_model]``.
            layer: The layer.
            read: What the FFN reads, if that is not ``mid``.
        """
        if not has_ffn(self.model, layer):
            return mid
        block = self.model.blocks[layer]
        written: Stream = block.mlp(block.ln2(mid if read is None else read))
        return mid + written if getattr(block, "residual", True) else written

    def block(self, stream: Stream, layer: int) -> Stream:
        """Run one block on other streams ``[copies·row, pos, d_model]``."""
        arguments, keywords = self.arguments[layer]
        copies = len(stream) // len(self.inputs)
        out = self.model.blocks[layer](
            stream,
            *(_repeated(value, copies, len(self.inputs)) for value in arguments),
            **{name: _repeated(v, copies, len(self.inputs)) for name, v in keywords.items()},
        )
        return out if isinstance(out, Tensor) else out[0]

    def finish(self, stream: Stream, layer: int, scored: Tensor | None = None) -> Tensor:
        """The model's output, given streams that enter ``layer`` (``n_layers``: the final norm).

        Args:
            stream: ``[copies·row, pos, d_model]``.
            layer: The layer.
            scored: Where the output is wanted, ``[row, pos]``: the result is then ``[1,
                copies·scored, output]``, and the unembedding is left out elsewhere.
        """
        with evaluating(self.model):
            for index in range(layer, self.n_layers):
                stream = self.block(stream, index)
            if scored is not None:
                copies = len(stream) // len(scored)
                stream = stream[scored.to(stream.device).repeat(copies, 1)][None]
            output: Tensor = self.model.unembed(self.model.ln_final(stream))
        return output

    def _check(self) -> None:
        advice = "ablate it instead, or run it as a whole (interp.interventions.clean_run)"
        try:
            wrong = self._wrong()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # blocks of other makes may lack anything, in any way
            raise ConformanceError(
                f"{type(self.model).__name__} cannot be replayed: running its blocks again failed "
                f"({type(error).__name__}: {error}): {advice}"
            ) from error
        if wrong:
            raise ConformanceError(
                f"{type(self.model).__name__} cannot be replayed: its {', '.join(wrong)} gave "
                f"other values again: {advice}"
            )

    def _wrong(self) -> list[str]:
        wrong = [f"layer {layer}" for layer in range(self.n_layers) if not self._layer_fits(layer)]
        last = self.before(self.n_layers)[:1]  # a row is enough: these know nothing of others
        if not wrong and not _close(self.finish(last, self.n_layers), self.output[:1]):
            wrong = ["final norm and unembedding"]
        return wrong

    def _layer_fits(self, layer: int) -> bool:
        after, inside = self.before(layer + 1), self.inside(layer)
        mid, again = (inside[f"blocks.{layer}.hook_resid_{at}"] for at in ("mid", "post"))
        with evaluating(self.model):
            from_mid = self.after_attention(mid, layer)
        return _close(from_mid, after) and _close(again, after)


def need_replay(model: HookedModel) -> None:
    """Raise :exc:`HookError` for a model that cannot be run from a middle layer on."""
    lacking = [name for name in _PARTS if not hasattr(model, name)]
    if lacking:
        raise HookError(
            f"{type(model).__name__} cannot be run from the middle on: it has no "
            f"{', '.join(lacking)}; a wrapped module can be ablated (interp.interventions.ablate), "
            "one forward pass a component"
        )


def can_replay(model: HookedModel, inputs: Tensor) -> bool:
    """Whether a model can be run from the middle on: tried on the first two rows.

    Raises:
        ArgumentError: if a stream is not finite there.
    """
    try:
        Trace.of(model, inputs[:2], [])
    except (ConformanceError, HookError):
        return False
    return True


def head_hook(model: Any, layer: int) -> str:
    """The hook with what a layer's heads write: z, or the result where that is not z W_O."""
    spec = getattr(model, "spec", None)
    name = "hook_result" if spec is not None and spec.identity_ov else "hook_z"
    return f"blocks.{layer}.attn.{name}"


def _first_not_finite(model: HookedModel, inputs: Tensor) -> str:
    """The first hook whose activation is infinite or not a number, or else the output.

    Scores and patterns are left out: a score of −∞ is a mask.
    """
    found: list[str] = []

    def look(value: Any, hook: Any) -> None:
        if isinstance(value, Tensor) and not bool(value.isfinite().all()):
            found.append(str(hook.name))

    def counts(name: str) -> bool:
        return not name.endswith(("scores", "pattern", "score"))

    with evaluating(model):
        model.run_with_hooks(inputs, fwd_hooks=[(counts, look)])
    return found[0] if found else "the output"


def not_finite(model: HookedModel, inputs: Tensor) -> ArgumentError:
    """The error that says where a model's activations are first infinite or not a number."""
    return ArgumentError(
        f"{type(model).__name__} gives activations that are infinite or not a number, first at "
        f"{_first_not_finite(model, inputs)}: look at its weights and at its inputs there"
    )


def _recorder(calls: list[Any]) -> Any:
    def record(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        kept = {k: v for k, v in keywords.items() if k not in ("hidden_states", *_CACHES)}
        calls.append((tuple(_without_cache(value) for value in args[1:]), kept))

    return record


def _without_cache(value: Any) -> Any:
    return None if hasattr(value, "get_seq_length") else value


def _repeated(value: Any, copies: int, rows: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_repeated(item, copies, rows) for item in value)
    if not isinstance(value, Tensor) or value.ndim == 0 or len(value) != rows or rows == 1:
        return value
    return value.repeat(copies, *[1] * (value.ndim - 1))


def _close(found: Tensor, expected: Tensor) -> bool:
    kind = torch.finfo(expected.dtype)
    scale = expected.abs().max().clamp_min(kind.tiny)
    return bool((found - expected).abs().max() <= max(_RELATIVE, 4 * kind.eps) * scale)
