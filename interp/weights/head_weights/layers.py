"""The head weights of a model, read layer by layer without building the model.

``HeadWeights`` has the sizes and returns layers. A ``LayerHeadWeights`` reads a matrix when it is
used and keeps nothing, so the memory in use is that of what the caller holds. The MLP is never
read, and the embedding only for a token basis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from interp.errors import ArgumentError, CheckpointError
from interp.weights.head_weights.circuit import Circuit
from interp.weights.head_weights.layout import Layout, PartName, WeightPart, at_layer
from interp.weights.head_weights.rope import Rope
from interp.weights.head_weights.source import Tensors

BASES = ("residual", "token")


@dataclass(frozen=True)
class HeadWeights:
    """W_Q, W_K, W_V, W_O of every head of a checkpoint or model, read on demand.

    Attributes:
        name: the folder, file or hub id that it was opened from, or the class of a model.
        layout: how the architecture stores them (sizes, norm, rotary positions, notes).
        files: the tensors, read on demand.
        dtype: the dtype that tensors are converted to when they are read.
        analysed: one line that says which model the weights are of.
    """

    name: str
    layout: Layout
    files: Tensors
    dtype: torch.dtype = torch.float32
    analysed: str = ""

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self.layout.sizes.n_layers

    @property
    def n_heads(self) -> int:
        """Number of query heads in a layer (the largest, if layers differ)."""
        return self.layout.sizes.n_heads

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.layout.sizes.d_model

    @property
    def d_head(self) -> int:
        """Width of a head (the largest, if layers differ)."""
        return self.layout.sizes.d_head

    def layer(self, index: int) -> LayerHeadWeights:
        """Return the weights of layer ``index``, without reading them yet.

        Raises:
            ArgumentError: if there is no such layer.
        """
        if not 0 <= index < self.n_layers:
            raise ArgumentError(
                f"layer must be in 0..{self.n_layers - 1}, got {index}: {self.name} has "
                f"{self.n_layers} layers"
            )
        return LayerHeadWeights(self, index)

    def __iter__(self) -> Iterator[LayerHeadWeights]:
        """Iterate over the layers."""
        return (self.layer(i) for i in range(self.n_layers))

    def __len__(self) -> int:
        """Return the number of layers."""
        return self.n_layers

    def token_matrix(self, which: Literal["embedding", "unembedding"]) -> Tensor:
        """Return the embedding W_E or the transposed unembedding W_Uᵀ, [vocab, d_model].

        Raises:
            CheckpointError: if the checkpoint does not hold it.
        """
        part: WeightPart | None = getattr(self.layout.tokens, which, None)
        if part is None or part.name not in self.files:
            raise CheckpointError(
                f"{self.name} holds no {which}: the token basis needs it, use the residual basis"
            )
        tensor = self.files.read(part.name, self.dtype)
        return part.arrange(tensor, {"d": self.d_model})


@dataclass(frozen=True)
class LayerHeadWeights:
    """The head weights of one layer; every property reads its tensor again."""

    model: HeadWeights
    index: int

    def has(self, part: PartName) -> bool:
        """Return whether the layer has this part (such as ``b_Q``)."""
        found = self.model.layout.parts.get(part)
        return found is not None and at_layer(found.name, self.index) in self.model.files

    def read(self, name: PartName) -> Tensor:
        """Read a part, with the axes of the property of its name.

        Raises:
            CheckpointError: if the layer has no such part, or its tensor is damaged.
        """
        part = self.model.layout.parts.get(name)
        if part is None:
            raise CheckpointError(f"{self.model.name}: a {self.model.layout.family} has no {name}")
        tensor = self.model.files.read(at_layer(part.name, self.index), self.model.dtype)
        layout = self.model.layout
        trim = None if layout.trims is None else layout.trims[self.index]
        return part.arrange(tensor, layout.sizes.axes, trim)

    def read_if_there(self, name: PartName) -> Tensor | None:
        """Read a part, or return None if the layer does not have it."""
        return self.read(name) if self.has(name) else None

    @property
    def W_Q(self) -> Tensor:
        """The query weights, [head, d_model, d_head]."""
        return self.read("W_Q")

    @property
    def W_K(self) -> Tensor:
        """The key weights, [group, d_model, d_head]; under grouped-query attention heads share a
        group."""
        return self.read("W_K")

    @property
    def W_V(self) -> Tensor:
        """The value weights, [group, d_model, d_head]; under grouped-query attention heads share a
        group."""
        return self.read("W_V")

    @property
    def W_O(self) -> Tensor:
        """The output weights, [head, d_head, d_model]."""
        return self.read("W_O")

    @property
    def circuits(self) -> tuple[str, ...]:
        """Names of the circuits that the layer has: ``QK`` and ``OV``, and those with an identity
        scalar."""
        qk, ov = self.has("W_Q") and self.has("W_K"), self.has("W_V") and self.has("W_O")
        names = {
            "QK": qk,
            "OV": ov,
            "QK+aI": self.has("identity_a"),
            "OV+bI": ov and self.has("identity_b"),
        }
        return tuple(name for name, there in names.items() if there)

    def circuit(
        self, name: str, *, fold_norm: bool = False, lag: int = 0, basis: str = "residual"
    ) -> Circuit:
        """Return one circuit of every head of the layer.

        Args:
            name: ``QK``, ``OV``, ``QK+aI`` or ``OV+bI``.
            fold_norm: multiply the scale of the norm before attention into the circuit: on both
                sides of QK, on the left of OV (and a norm after attention on its right). The
                centring of a LayerNorm, a projection that removes one direction of d_model, is left
                out.
            lag: query minus key position, for models with rotary positions.
            basis: ``residual``, or ``token``: W_E M W_Eᵀ for QK and W_E M W_U for OV.

        Raises:
            ArgumentError: if the layer has no such circuit, or a lag is given without rotary
                positions.
            CheckpointError: if a tensor is missing or damaged.
        """
        self._check(name, lag, basis)
        if name.startswith("QK"):
            return self._qk(name, fold_norm, lag, basis)
        return self._ov(name, fold_norm, basis)

    def _check(self, name: str, lag: int, basis: str) -> None:
        if name not in self.circuits:
            raise ArgumentError(
                f"circuit must be one of {list(self.circuits)} in layer {self.index} of "
                f"{self.model.name}, got {name!r}: the layer has no such factors"
            )
        if basis not in BASES:
            raise ArgumentError(f"basis must be one of {list(BASES)}, got {basis!r}: pick one")
        if lag and self.model.layout.rope is None:
            raise ArgumentError(
                f"lag must be 0, got {lag}: a {self.model.layout.family} has no rotary positions"
            )

    def _qk(self, name: str, fold_norm: bool, lag: int, basis: str) -> Circuit:
        gain = self.read_if_there("norm_gain") if fold_norm else None
        embedding = self.model.token_matrix("embedding") if basis == "token" else None
        q_gain = self.read_if_there("q_gain")
        bias = self._query_bias(q_gain, fold_norm)  # before the factors: it reads W_Q too
        left, right = (self.W_Q, self.W_K) if "QK" in self.circuits else self._nothing()
        d_head = left.shape[-1]
        return Circuit(
            name,
            left=left,
            right=right,
            identity=self.read("identity_a") if name == "QK+aI" else None,
            scale=1 / math.sqrt(d_head) if name == "QK+aI" else 1.0,
            left_gain=gain,
            right_gain=gain,
            left_inner=q_gain,
            right_inner=self.read_if_there("k_gain"),
            rope=self._rope(d_head),
            lag=lag,
            query_bias=bias,
            left_basis=embedding,
            right_basis=embedding,
        )

    def _ov(self, name: str, fold_norm: bool, basis: str) -> Circuit:
        tokens = basis == "token"
        return Circuit(
            name,
            left=self.W_V,
            right=self.W_O.mT,
            identity=self.read("identity_b") if name == "OV+bI" else None,
            left_gain=self.read_if_there("norm_gain") if fold_norm else None,
            right_gain=self.read_if_there("out_gain") if fold_norm else None,
            left_basis=self.model.token_matrix("embedding") if tokens else None,
            right_basis=self.model.token_matrix("unembedding") if tokens else None,
        )

    def _nothing(self) -> tuple[Tensor, Tensor]:
        """Return the factors of a zero circuit, for a model whose scores are a·X Xᵀ alone."""
        zeros = torch.zeros(len(self.read("identity_a")), self.model.d_model, 1)
        return zeros.to(self.model.dtype), zeros.to(self.model.dtype)

    def _rope(self, d_head: int) -> Rope | None:
        rope = self.model.layout.rope
        return rope and replace(rope, width=min(rope.width, d_head))

    def _query_bias(self, q_gain: Tensor | None, fold_norm: bool) -> Tensor | None:
        """Return b_Q [head, d_head]; with ``fold_norm``, the norm's bias times W_Q is added."""
        bias = self.read_if_there("b_Q")
        if fold_norm and (shift := self.read_if_there("norm_bias")) is not None:
            carried = torch.einsum("d,hdk->hk", shift, self.W_Q)
            bias = carried if bias is None else bias + carried
        return bias if bias is None or q_gain is None else bias * q_gain
