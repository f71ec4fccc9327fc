"""Read a model in memory as if it were a checkpoint: same names, tensors and configuration, no
copy.

    ours              the weights, which are named as in its checkpoint, and its spec
    Hugging Face's    the weights and the configuration
    a bridge          those of the model inside, with the wrapping taken out of the names; query,
                      key and value matrices that it split are put side by side again

Everything that follows (architecture, circuits, folded norms) is then the same as for a checkpoint,
and the numbers are those that the saved model would give. A tensor is read when it is used, so
weights that were trained or edited in the meantime are seen as they are then. A bridge whose
weights were processed (norms folded, weights centred) is read as it is, with the gains that remain.

When not to use it: for a model that computes its scores in another way than its architecture says
(hooks that change weights during the forward pass are not seen).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from interp.errors import CheckpointError
from interp.weights.head_weights.source import TensorSource
from interp.weights.head_weights.tensors import check_tensor

Make = Callable[[], Tensor]

WRAPPING = "._original_component"
_BY_HEAD = ("p (h k) d -> (h p k) d", "p (h k) -> (h p k)")
_IN_TURN = ("", "")  # all of the query, then key and value, which may be narrower
# model_type → what holds query, key and value side by side, the output, and how, weight and bias
_JOINED: dict[str, tuple[str, str, str, str]] = {
    "gpt2": ("attn.c_attn", "attn.c_proj", "p hk d -> d (p hk)", "p hk -> (p hk)"),
    "gpt_neox": ("attention.query_key_value", "attention.dense", *_BY_HEAD),
    "bloom": ("self_attention.query_key_value", "self_attention.dense", *_BY_HEAD),
    "falcon": ("self_attention.query_key_value", "self_attention.dense", *_BY_HEAD),
    "phi3": ("self_attn.qkv_proj", "self_attn.o_proj", *_IN_TURN),
}

RENAMED = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}}
"""``model_type`` → {name of a tensor in the loaded model: its name in checkpoints}, where the two
differ."""


class LiveTensors:
    """The tensors of a model by name, each with its values at the time when it is read.

    Attributes:
        names: every tensor's name, sorted.
    """

    def __init__(self, tensors: Mapping[str, Make]) -> None:
        """Store the functions that return the tensors, not the tensors."""
        self._make = dict(tensors)
        self.names = sorted(self._make)

    def __contains__(self, name: object) -> bool:
        """Return whether the model has a tensor of this name."""
        return name in self._make

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the tensor's shape."""
        return tuple(self._make[name]().shape)

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return the tensor on the CPU, converted to ``dtype``; changing it does not change the
        model.

        Raises:
            CheckpointError: if it is missing, is not floating point, or holds a value that is not
                finite.
        """
        if name not in self._make:
            raise CheckpointError(f"no tensor {name!r} in the model")
        tensor = self._make[name]().detach()
        kept = check_tensor(tensor.to("cpu"), name, "the model", dtype)
        return kept.clone() if kept.data_ptr() == tensor.data_ptr() else kept


def live_source(model: nn.Module) -> TensorSource:
    """Return a model's tensors under the names that its checkpoint gives them.

    Args:
        model: A :class:`~interp.models.transformer.SequenceTransformer`, a ``TransformerBridge``,
            or a Hugging Face model. The weights of any other module keep their names, for use with
            a mapping.

    Raises:
        CheckpointError: if the model has no weights.
    """
    inner = getattr(model, "original_model", model)
    whole = inner is model  # with buffers; of a bridge the parameters alone, which are what runs
    name = type(model).__name__ + ("" if whole else f" of {type(inner).__name__}")
    tensors = _tensors(
        model.state_dict(keep_vars=True).items() if whole else inner.named_parameters()
    )
    if not tensors:
        raise CheckpointError(f"{name} holds no weights: give a model")
    spec: Any = getattr(model, "spec", None)
    if hasattr(spec, "to_dict"):
        description = {"spec": json.loads(json.dumps(spec.to_dict()))}
        return TensorSource(name, LiveTensors(tensors), {}, description)
    config: Any = getattr(inner, "config", None)
    told = config.to_dict() if hasattr(config, "to_dict") else {}
    kind = str(told.get("model_type", ""))
    if not whole:
        tensors = _rejoin_matrices(tensors, _fused_layout(kind, told), _heads(config))
    for live, saved in RENAMED.get(kind, {}).items():
        if live in tensors:
            tensors[saved] = tensors.pop(live)
    return TensorSource(name, LiveTensors(tensors), told)


def _tensors(state: Iterable[tuple[str, Tensor]]) -> dict[str, Make]:
    """Collect the tensors by name, without a bridge's wrapping; a tied tensor only under its first
    name."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in state:
        first.setdefault(id(tensor), (name.replace(WRAPPING, ""), tensor))
    return {name: partial(_same, tensor) for name, tensor in first.values()}


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _heads(config: Any) -> int:
    return int(getattr(config, "num_attention_heads", 1))


def _fused_layout(kind: str, config: Mapping[str, Any]) -> tuple[str, str, str, str] | None:
    """Return how a family stores query, key and value side by side; None if it stores them
    apart."""
    found = _JOINED.get(kind)
    if kind == "falcon" and found is not None and config.get("multi_query"):
        return (*found[:2], *_IN_TURN)
    return found


def _rejoin_matrices(
    tensors: dict[str, Make], how: tuple[str, str, str, str] | None, heads: int
) -> dict[str, Make]:
    """Join the matrices that a bridge has split, as the checkpoint stores them.

    The bridge runs the split ones, so these are what is read.
    """
    if how is None:
        return tensors
    joined, output, weight, bias = how
    attention = joined.partition(".")[0]
    patterns = {"weight": weight, "bias": bias}
    kept = {}
    for name, make in tensors.items():
        before, inside, end = name.rpartition(f".{attention}.")
        module, _, which = end.partition(".")
        if not inside or module not in ("q", "k", "v", "qkv", "o"):
            kept[name] = make
        elif module == "o":
            kept[f"{before}.{output}.{which}"] = make
        elif module == "q":
            sides = [tensors[f"{before}{inside}{side}.{which}"] for side in "qkv"]
            kept[f"{before}.{joined}.{which}"] = _joining(sides, patterns[which], heads)
    return kept


def _joining(sides: Sequence[Make], pattern: str, heads: int) -> Make:
    if not pattern:
        return lambda: torch.cat([side().detach() for side in sides])
    lengths = {"h": heads} if "(h " in pattern else {}
    return lambda: rearrange([side().detach() for side in sides], pattern, **lengths)
