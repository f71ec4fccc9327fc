"""Give access to a model's weights under TransformerLens' names, stacked over layers.

``W_Q, W_K, W_V`` [layer, head, d_model, d_head], ``W_O`` [layer, head, d_head, d_model], ``W_in``
[layer, d_model, d_mlp], ``W_out`` [layer, d_mlp, d_model] and the biases. Layers with fewer or
narrower heads, or fewer neurons, are padded with zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["WeightStacks"]

_STACKED = {
    **dict.fromkeys(("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"), "attn"),
    **dict.fromkeys(("W_in", "W_out", "b_in", "b_out"), "mlp"),
}


class WeightStacks:
    """A mixin for models with ``blocks``, ``embed``, ``pos_embed``, ``ln_final`` and
    ``unembed``."""

    blocks: Any
    embed: Any
    pos_embed: Any
    ln_final: Any
    unembed: Any

    def __getattr__(self, name: str) -> Any:
        """``W_Q`` … ``b_out`` stacked over layers; other names are looked up as in
        ``torch.nn.Module``."""
        if name not in _STACKED:
            return super().__getattr__(name)  # type: ignore[misc]
        return self._stack(_STACKED[name], name)

    @property
    def W_E(self) -> Float[Tensor, "d_in d_model"]:
        """The embedding matrix."""
        return self.embed.W_E

    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"]:
        """The absolute position codes.

        Raises:
            AttributeError: for a model without absolute positions.
        """
        if self.pos_embed is None:
            raise AttributeError("the model has no W_pos: its spec's positions are not absolute")
        return self.pos_embed.W_pos

    @property
    def W_U(self) -> Float[Tensor, "d_model d_out"]:
        """The unembedding matrix."""
        return self.unembed.W_U

    @property
    def b_U(self) -> Float[Tensor, " d_out"]:
        """The unembedding's bias."""
        return self.unembed.b_U

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " d_model"]:
        """The sum of the output biases written before ``layer``; ``mlp_input`` also counts its
        attention."""
        total = torch.zeros_like(self.embed.W_E[0])
        for block in self.blocks[: layer + 1 if mlp_input else layer]:
            total = total + block.attn.b_O
        for block in self.blocks[:layer]:
            if include_mlp_biases and block.mlp is not None:
                total = total + block.mlp.b_out
        return total

    def tokens_to_residual_directions(self, tokens: int | Tensor) -> Float[Tensor, "... d_model"]:
        """The residual-stream directions of output tokens, with the final norm's gain folded in."""
        directions = self.W_U[:, torch.as_tensor(tokens)].movedim(0, -1)
        gain = self.ln_final.w
        return directions if gain is None else directions * gain

    def _stack(self, where: str, name: str) -> Tensor:
        parts = [getattr(block, where, None) for block in self.blocks]
        if not parts or any(getattr(part, name, None) is None for part in parts):
            raise AttributeError(f"this model has no {name}: its spec gives it no such weights")
        weights = [getattr(part, name) for part in parts]
        if len({w.shape for w in weights}) > 1:
            raise AttributeError(f"{name} differs in shape between layers: read it from blocks")
        return torch.stack(weights)
