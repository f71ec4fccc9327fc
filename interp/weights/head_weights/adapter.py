"""LoRA adapters, merged into the weights that they were trained with.

    W + s B A,   s = α / r, or α / √r for rank-stabilised ones
    A            [r, in]
    B            [out, r]

W is [out, in], and transposed in GPT-2's ``Conv1D`` (``fan_in_fan_out``). ``adapter_config.json``
and ``adapter_model.safetensors`` are those of the peft package. An adapter is refused, with the
name of what is not understood, unless every entry of the configuration that changes the arithmetic
is one of these or off, and every tensor has its place. Merging is done in float32. The files do not
prove which base model the adapter was trained with, so the base that the adapter names is repeated
in the line that says what is analysed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from interp.errors import CheckpointError
from interp.weights.head_weights.source import ADAPTER_CONFIG, Tensors, TensorSource
from interp.weights.head_weights.tensors import TensorFiles, read_json

_WEIGHTS = "adapter_model.safetensors"
_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc|q_attn)$")  # of the types below
_TRANSPOSED = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer"}
_ANY = {
    "peft_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "r",
    "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "task_type", "use_rslora",
    "fan_in_fan_out", "layers_to_transform", "layers_pattern", "peft_version", "megatron_core",
    "qalora_group_size", "eva_config",
}  # fmt: skip
"""Entries of a LoRA configuration that may have any value: they are read here, or only say how the
adapter was trained. All other entries must be off."""
_OFF: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),  # others change the base
}


@dataclass(frozen=True)
class LoraAdapter:
    """A LoRA adapter as it is stored.

    Attributes:
        name: The folder as the user gave it.
        base: The base model that it names; empty if it names none.
        rank: The rank r.
        scale: The factor s.
        transposed: Whether it says that weights are ``[in, out]``.
        pairs: Module → A and B, as in the formula.
    """

    name: str
    base: str
    rank: int
    scale: float
    transposed: bool
    pairs: Mapping[str, tuple[Tensor, Tensor]]

    @property
    def summary(self) -> tuple[Path, str]:
        """The adapter's folder, and a sentence that says what was merged."""
        base = f"; made for {self.base}" if self.base else ""
        size = f"rank {self.rank}, {len(self.pairs)} matrices"
        return Path(self.name), f"LoRA {self.name} merged ({size}{base})"

    def weight_update(self, module: str, shape: tuple[int, ...], kind: str) -> Tensor:
        """Return the matrix that is added to a module's weight.

        Args:
            module: The module's name.
            shape: The shape of the module's weight.
            kind: The ``model_type`` of the model.

        Raises:
            CheckpointError: if the shapes do not fit, or only one of the adapter and the model
                calls the weight transposed.
        """
        A, B = self.pairs[module]
        transposed = kind in _TRANSPOSED and _CONV1D.search(module) is not None
        if transposed != self.transposed:
            raise CheckpointError(
                f"{self.name} has fan_in_fan_out = {self.transposed}, and {module} of a {kind} "
                f"needs {transposed}: it was made for another model"
            )
        found = self.scale * (B @ A)
        found = found.T if transposed else found
        if tuple(found.shape) != shape:
            raise CheckpointError(
                f"{self.name} adds {[*found.shape]} to {module}, whose weight is {[*shape]}: it "
                f"was made for {self.base or 'another model'}"
            )
        return found


class AdaptedTensors:
    """The tensors of a checkpoint with an adapter merged into them."""

    def __init__(self, files: Tensors, adapter: LoraAdapter, kind: str) -> None:
        """Find the tensor of every module of the adapter.

        Raises:
            CheckpointError: if a module's tensor is missing, or the adapter does not fit it.
        """
        self._files, self._added = files, {}
        for module in adapter.pairs:
            # a body's files leave out the first part of the names, as GPT-2's on the hub do
            places = [f"{name}.weight" for name in (module, module.partition(".")[2])]
            name = next((name for name in places if name in files), None)
            if name is None:
                raise CheckpointError(f"{adapter.name} adapts {module!r}, which the model has not")
            self._added[name] = partial(adapter.weight_update, module, files.shape(name), kind)
            self._added[name]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def __contains__(self, name: object) -> bool:
        """Return whether the checkpoint holds a tensor of this name."""
        return name in self._files

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return the tensor, merged in float32 and converted to ``dtype``.

        Raises:
            CheckpointError: if it is missing or damaged.
        """
        if name not in self._added:
            return self._files.read(name, dtype)
        whole = self._files.read(name, torch.promote_types(dtype, torch.float32))
        return (whole + self._added[name]()).to(dtype)


def read_adapter(folder: str | Path) -> LoraAdapter:
    """Read a LoRA adapter from its folder.

    Raises:
        CheckpointError: if it is missing or damaged, or holds something that is not understood.
    """
    place, name = Path(folder), str(folder)
    if not (place / ADAPTER_CONFIG).is_file() or not (place / _WEIGHTS).is_file():
        raise CheckpointError(
            f"adapter {name!r} must be a folder with {ADAPTER_CONFIG} and {_WEIGHTS}: it lacks them"
        )
    config = read_json(place / ADAPTER_CONFIG)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if config.get("peft_type") != "LORA" or not isinstance(rank, int) or rank < 1:
        raise CheckpointError(f"{name} is a {config.get('peft_type')} of rank {rank}, and no LoRA")
    if not isinstance(alpha, int | float):
        raise CheckpointError(f"{name} must state lora_alpha, got {alpha!r}")
    for key, value in config.items():
        if key not in _ANY and value and value not in _OFF.get(key, ()):
            raise CheckpointError(f"{name} has {key} = {value!r}, which is not understood")
    return LoraAdapter(
        name=name,
        base=str(config.get("base_model_name_or_path") or ""),
        rank=rank,
        scale=alpha / (rank**0.5 if config.get("use_rslora") else rank),
        transposed=bool(config.get("fan_in_fan_out")),
        pairs=_pairs(TensorFiles([place / _WEIGHTS]), name, rank),
    )


def _pairs(files: TensorFiles, name: str, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    sides: dict[str, dict[str, Tensor]] = {}
    for tensor in files.names:
        found = _NAME.fullmatch(tensor)
        if found is None:
            raise CheckpointError(f"{name} has the tensor {tensor!r}, which is not understood")
        sides.setdefault(found["module"], {})[found["side"]] = files.read(tensor, torch.float32)
    if not sides:
        raise CheckpointError(f"{name} holds no tensors")
    for module, pair in sides.items():
        shapes = {side: [*one.shape] for side, one in pair.items()}
        ends = [shapes.get("A", [])[:1], shapes.get("B", [])[1:]]
        if ends != [[rank], [rank]]:
            raise CheckpointError(f"{name} has {shapes} for {module}, not A and B of rank {rank}")
    return {module: (pair["A"], pair["B"]) for module, pair in sides.items()}


def merge_adapter(source: TensorSource, adapter: LoraAdapter) -> TensorSource:
    """Return a checkpoint whose tensors have the adapter merged when they are read.

    Raises:
        CheckpointError: if the checkpoint is one of prooflens' own, or the adapter does not fit.
    """
    kind = str(source.config.get("model_type"))
    if source.description is not None or not source.config:
        raise CheckpointError(f"{adapter.name} needs a base model with config.json: {source.name}")
    files: Any = AdaptedTensors(source.files, adapter, kind)
    return replace(source, files=files, merged=adapter.summary)


@torch.no_grad()
def merge(model: Any, adapter: LoraAdapter) -> None:
    """Merge an adapter into a transformers model, in place.

    Raises:
        CheckpointError: if the model lacks a module of the adapter, the adapter does not fit, or a
            module's weight is also the embedding.
    """
    modules: dict[str, nn.Module] = dict(model.named_modules())
    kind, embedding = str(model.config.model_type), model.get_input_embeddings().weight
    for module in adapter.pairs:
        weight = getattr(modules.get(module), "weight", None)
        if weight is None:
            raise CheckpointError(f"{adapter.name} adapts {module!r}, which the model has not")
        if weight is embedding:
            raise CheckpointError(
                f"{adapter.name} adapts {module!r}, which is one matrix with the embedding: "
                "merging would change both"
            )
        weight += adapter.weight_update(module, tuple(weight.shape), kind).to(weight)
