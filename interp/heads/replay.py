"""One forward pass, kept so that what follows any layer can be run again on other streams.

Ablating a component of layer l changes nothing before it: the residual stream up to there is
computed once, and only the rest runs again, for many changed copies in one batch.

    trace = Trace.of(model, inputs)
    trace.finish(trace.after(0) + change, 1)          # blocks 1 …, final norm, unembedding

Blocks are called with the arguments they had in the recorded pass (masks, position embeddings),
repeated for the copies; key-value caches are left out. A trace is checked when it is made: the
replay of the unchanged streams must give the recorded ones and the recorded output, or else
there is a :exc:`ConformanceError`, as for blocks whose FFN does not read the stream between
(parallel blocks, post-norms) or models that scale their logits. There
:func:`interp.heads.effects.run_without` works, one forward pass a component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.errors import ConformanceError, HookError
from interp.lens import HookedModel

__all__ = ["Stream", "Trace"]

Stream = Float[Tensor, "row pos d_model"]
_RELATIVE = 1e-4
_PARTS = ("blocks", "ln_final", "unembed")
_CACHES = ("past_key_value", "past_key_values", "layer_past", "cache_position", "use_cache")


@dataclass(frozen=True)
class Trace:
    """A recorded forward pass.

    Attributes:
        model: Which.
        inputs: What it ran on, ``[row, pos(, channel)]``.
        output: What came out.
        cache: Hook → tensor: what was kept of every layer.
        arguments: Per layer: what its block was called with, besides the stream.
    """

    model: Any
    inputs: Tensor
    output: Tensor
    cache: Mapping[str, Tensor]
    arguments: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]

    @classmethod
    def of(
        cls, model: HookedModel, inputs: Tensor, keep: Sequence[str] = (), *, check: bool = True
    ) -> Trace:
        """Run ``model`` on ``inputs`` and keep the residual stream around every sublayer.

        Args:
            model: With ``blocks``, ``ln_final`` and ``unembed``, as ours and bridges have.
            inputs: ``[row, pos(, channel)]``.
            keep: Hooks to keep besides.
            check: Whether to replay it; not needed where only what was recorded is read.

        Raises:
            ConformanceError: if the model cannot be replayed.
            HookError: for a hook that is not there, or a model without these parts.
        """
        lacking = [name for name in _PARTS if not hasattr(model, name)]
        if lacking:
            raise HookError(
                f"{type(model).__name__} cannot be run from the middle on: it has no "
                f"{', '.join(lacking)}; a wrapped module can be ablated (interp.heads.ablate), one "
                "forward pass a component"
            )
        calls: list[Any] = []
        layers = range(model.cfg.n_layers)
        names = [f"blocks.{layer}.hook_resid_{at}" for layer in layers for at in ("pre", "post")]
        names += [f"blocks.{layer}.hook_resid_mid" for layer in layers]
        names += [f"blocks.{layer}.hook_mlp_out" for layer in layers if has_ffn(model, layer)]
        with ExitStack() as stack, torch.no_grad():
            for block in model.blocks:  # type: ignore[attr-defined]
                handle = block.register_forward_pre_hook(_recorder(calls), with_kwargs=True)
                stack.callback(handle.remove)
            output, cache = model.run_with_cache(
                inputs, names_filter=sorted({*names, *keep}), return_cache_object=False
            )
        trace = cls(model, inputs, output, dict(cache), calls)
        if check:
            trace._check()
        return trace

    @property
    def n_layers(self) -> int:
        """How many blocks there are."""
        return int(self.model.cfg.n_layers)

    def before(self, layer: int) -> Stream:
        """The stream that enters a layer; the last one's output for ``n_layers``."""
        last = self.n_layers - 1
        if layer > last:
            return self.cache[f"blocks.{last}.hook_resid_post"]
        return self.cache[f"blocks.{layer}.hook_resid_pre"]

    def between(self, layer: int) -> Stream:
        """The stream between a layer's attention and its FFN."""
        return self.cache[f"blocks.{layer}.hook_resid_mid"]

    def after_attention(self, mid: Stream, layer: int, read: Stream | None = None) -> Stream:
        """The stream after a layer, from the one between its sublayers.

        Args:
            mid: ``[copies·row, pos, d_model]``.
            layer: Which.
            read: What the FFN reads, if not ``mid``.
        """
        if not has_ffn(self.model, layer):
            return mid
        block = self.model.blocks[layer]
        written: Stream = block.mlp(block.ln2(mid if read is None else read))
        return mid + written if getattr(block, "residual", True) else written

    def block(self, stream: Stream, layer: int) -> Stream:
        """One block on other streams, ``[copies·row, pos, d_model]``."""
        arguments, keywords = self.arguments[layer]
        copies = len(stream) // len(self.inputs)
        out = self.model.blocks[layer](
            stream,
            *(_repeated(value, copies, len(self.inputs)) for value in arguments),
            **{name: _repeated(v, copies, len(self.inputs)) for name, v in keywords.items()},
        )
        return out if isinstance(out, Tensor) else out[0]

    @torch.no_grad()
    def finish(self, stream: Stream, layer: int) -> Tensor:
        """The output, from streams that enter ``layer`` (``n_layers``: the final norm)."""
        for index in range(layer, self.n_layers):
            stream = self.block(stream, index)
        output: Tensor = self.model.unembed(self.model.ln_final(stream))
        return output

    def _check(self) -> None:
        wrong = [f"layer {layer}" for layer in range(self.n_layers) if not self._layer_fits(layer)]
        if not wrong and not _close(self.finish(self.before(self.n_layers), self.n_layers),
                                    self.output):  # fmt: skip
            wrong = ["final norm and unembedding"]
        if wrong:
            raise ConformanceError(
                f"{type(self.model).__name__} cannot be replayed: its {', '.join(wrong)} gave "
                "other values again: ablate with run_without, one forward pass a component"
            )

    @torch.no_grad()
    def _layer_fits(self, layer: int) -> bool:
        after = self.before(layer + 1)
        from_mid = self.after_attention(self.between(layer), layer)
        return _close(from_mid, after) and _close(self.block(self.before(layer), layer), after)


def has_ffn(model: Any, layer: int) -> bool:
    """Whether a layer has an FFN."""
    spec = getattr(model, "spec", None)
    return bool(spec.ffn_widths[layer]) if spec is not None else not model.cfg.attn_only


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
    scale = expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
    return bool((found - expected).abs().max() <= _RELATIVE * scale)
