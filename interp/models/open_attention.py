"""Open PyTorch's own attention, so that its queries, patterns and heads can be hooked.

``nn.MultiheadAttention`` computes the pattern inside one call, and a layer of
``nn.TransformerEncoder`` may run as one fused kernel, so no submodule has a head's tensors.
:func:`open_attention` copies a module with each ``nn.MultiheadAttention`` replaced by an
:class:`OpenAttention`, which computes the same in steps,

    scores = q kᵀ / √d_head + mask   pattern = softmax(scores)   z = pattern v   out = z W_O + b_O

and passes each of these tensors through a submodule of that name. The copy shares the parameters:
training either trains both. It is slower than the fused kernel and keeps the patterns in memory, so
use it for the analysis and keep the original for the rest.

Not for attention with appended keys (``add_bias_kv``, ``add_zero_attn``), whose pattern is not
[query, key], and not for decoders with cross-attention. Equal outputs show that the steps are
right; they say nothing about what the heads do.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from interp.errors import Problems, need


class OpenAttention(nn.Module):
    """``nn.MultiheadAttention`` in steps: the same parameters, arguments and results.

    Submodules pass on the tensors of their names: ``q``, ``k``, ``v``, ``z`` ``[batch, pos, head,
    d_head]``; ``scores`` and ``pattern`` (before dropout) ``[batch, head, query, key]``.

    Args:
        closed: The attention whose parameters it shares.

    Raises:
        ArgumentError: if the attention appends keys.
    """

    q: nn.Identity
    k: nn.Identity
    v: nn.Identity
    z: nn.Identity
    scores: nn.Identity
    pattern: nn.Identity
    out_proj: nn.Linear
    in_proj_weight: Tensor
    in_proj_bias: Tensor | None

    def __init__(self, closed: nn.MultiheadAttention) -> None:
        super().__init__()
        appended = closed.bias_k is not None or closed.add_zero_attn
        rule, advice = "must not append keys", "build it without add_bias_kv and add_zero_attn"
        need("OpenAttention", not appended, "closed", rule, type(closed).__name__, advice)
        for name, value in closed.named_parameters(recurse=False):
            self.register_parameter(name, value)
        if closed.in_proj_bias is None:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = closed.out_proj
        self.num_heads, self.dropout = closed.num_heads, closed.dropout
        self.embed_dim, self.batch_first = closed.embed_dim, closed.batch_first
        self._packed = bool(closed._qkv_same_embed_dim)
        # Read by nn.TransformerEncoderLayer: with False it never takes its fused path.
        self._qkv_same_embed_dim = False
        for name in ("q", "k", "v", "scores", "pattern", "z"):
            self.add_module(name, nn.Identity())
        self.training = closed.training

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention with the arguments and results of ``nn.MultiheadAttention``.

        ``is_causal`` is ignored: it is only a hint that the mask, which must be given with it, is
        causal.
        """
        batched = query.dim() == 3
        q, k, v = self._project_inputs([self._batch_first(x, batched) for x in (query, key, value)])
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        scores = _mask_scores(scores, attn_mask, key_padding_mask)
        pattern = self.pattern(self.scores(scores).softmax(-1))
        mixed = nn.functional.dropout(pattern, self.dropout, self.training)
        z = self.z(torch.einsum("bhqk,bkhd->bqhd", mixed, v))
        out = self.out_proj(rearrange(z, "b q h d -> b q (h d)"))
        if not batched:
            out = out[0]
        elif not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        weights = mixed.mean(1) if average_attn_weights else mixed
        return out, weights if batched else weights[0]

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _project_inputs(self, given: list[Tensor]) -> list[Tensor]:
        """Return queries, keys and values, ``[batch, pos, head, d_head]``."""
        weights: Any = (
            self.in_proj_weight.chunk(3)
            if self._packed
            else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        )
        bias = self.in_proj_bias
        biases: Any = (None,) * 3 if bias is None else bias.chunk(3)
        points = (self.q, self.k, self.v)
        return [
            point(
                rearrange(nn.functional.linear(x, w, b), "b n (h d) -> b n h d", h=self.num_heads)
            )
            for point, x, w, b in zip(points, given, weights, biases, strict=True)
        ]


def open_attention(module: nn.Module) -> nn.Module:
    """Return a copy of a module, with the same parameters, whose attention can be hooked.

    Args:
        module: Any module; each ``nn.MultiheadAttention`` in it is replaced.

    Returns:
        The copy: an :class:`OpenAttention` if the module itself is one attention.

    Raises:
        ArgumentError: if an attention appends keys.
    """
    shared = {id(value): value for value in (*module.parameters(), *module.buffers())}
    found = copy.deepcopy(module, memo=dict(shared))
    if isinstance(found, nn.MultiheadAttention):
        return OpenAttention(found)
    for parent in list(found.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                setattr(parent, name, OpenAttention(child))
    return found


def encoder_names(module: nn.Module) -> dict[str, str]:
    """Return TransformerLens' hook names for the layers of ``nn.TransformerEncoder`` in a module.

    Layers are counted in the order in which the module names them. For layers that normalise before
    attention (``norm_first=True``) ``hook_resid_mid`` is named too, for reading. With the norm
    after attention no tensor between the two sublayers is the sum that this name stands for.

    Args:
        module: A module from :func:`open_attention`.

    Returns:
        Hook name → site, for :func:`interp.models.wrap.wrap`; empty without such layers.

    Raises:
        ArgumentError: if a layer has the batch on the second axis.
    """
    layers = [
        (path, layer)
        for path, layer in module.named_modules()
        if isinstance(layer, nn.TransformerEncoderLayer)
    ]
    problems, names = Problems("encoder_names"), dict[str, str]()
    for number, (path, layer) in enumerate(layers):
        attention: Any = layer.self_attn
        rule, advice = "must have batch_first=True", "build the layer with it, or name the sites"
        problems.need(attention.batch_first, path or "module", rule, False, advice)
        names |= _layer_names(f"blocks.{number}", f"{path}." if path else "", layer)
    problems.raise_if_any()
    return names


def _layer_names(block: str, path: str, layer: nn.TransformerEncoderLayer) -> dict[str, str]:
    whole = path.removesuffix(".")
    names = {f"{block}.hook_resid_pre": f"{whole}:in"}
    for name in ("q", "k", "v", "z", "pattern"):
        names[f"{block}.attn.hook_{name}"] = f"{path}self_attn.{name}"
    names |= {
        f"{block}.attn.hook_attn_scores": f"{path}self_attn.scores",
        f"{block}.hook_attn_out": f"{path}dropout1",
        f"{block}.mlp.hook_pre": f"{path}linear1",
        f"{block}.mlp.hook_post": f"{path}linear2:in",
        f"{block}.hook_mlp_out": f"{path}dropout2",
        f"{block}.hook_resid_post": whole,
    }
    if layer.norm_first:
        names[f"{block}.hook_resid_mid"] = f"{path}norm2:read"
    return names


def block_names(module: nn.Module) -> dict[str, str]:
    """Return TransformerLens' hook names for blocks of the user's own around
    ``nn.MultiheadAttention``.

    A block consists of an attention and an MLP, with a norm before each sublayer:

        x = x + attention(norm1(x))      x = x + mlp(norm2(x))

    It is the module that contains an attention, however deep, and a norm beside it. Its other
    parts, besides attention, norms and dropout, are its MLP: one submodule, or linear layers in
    order. The names are found without running the module; the conformance check of
    :func:`interp.models.wrap.wrap` tests whether they are right.

    Args:
        module: A module from :func:`open_attention`.

    Returns:
        Hook name → site, for :func:`interp.models.wrap.wrap`; empty without such blocks.

    Raises:
        ArgumentError: if an attention has the batch on the second axis.
    """
    problems, names = Problems("block_names"), dict[str, str]()
    parts = dict(module.named_modules())
    found = [path for path, part in parts.items() if isinstance(part, OpenAttention)]
    for number, path in enumerate(found):
        attention = parts[path]
        rule, advice = "must have batch_first=True", "build it so, or name the sites"
        problems.need(bool(attention.batch_first), path or "module", rule, False, advice)
        whole = _block_around(path, parts)
        if whole is not None:
            names |= _block_names(f"blocks.{number}", whole, path, parts[whole])
    problems.raise_if_any()
    return names


def _block_around(path: str, parts: dict[str, nn.Module]) -> str | None:
    """Return the innermost module around an attention with a norm beside it; None without one."""
    while path:
        path = path.rpartition(".")[0]
        if any(_is_norm(child) for child in parts[path].children()):
            return path
    return None


def _block_names(block: str, whole: str, attention: str, module: nn.Module) -> dict[str, str]:
    start = f"{whole}." if whole else ""
    names = {f"{block}.hook_resid_pre": f"{whole}:in", f"{block}.hook_resid_post": whole}
    for name in ("q", "k", "v", "z", "pattern"):
        names[f"{block}.attn.hook_{name}"] = f"{attention}.{name}"
    names[f"{block}.attn.hook_attn_scores"] = f"{attention}.scores"
    inside = attention.removeprefix(start).partition(".")[0]
    own = f"{start}{inside}"
    names[f"{block}.hook_attn_out"] = f"{own}:out[0]" if own == attention else own
    children = [(name, part) for name, part in module.named_children() if name != inside]
    norms = [name for name, part in children if _is_norm(part)]
    rest = [
        (name, part)
        for name, part in children
        if not _is_norm(part) and any(True for _ in part.parameters())
    ]
    if len(norms) > 1:
        names[f"{block}.hook_resid_mid"] = f"{start}{norms[1]}:read"
    if len(rest) > 1 and all(isinstance(part, nn.Linear) for _, part in rest):
        names[f"{block}.mlp.hook_pre"] = f"{start}{rest[0][0]}"
        names[f"{block}.mlp.hook_post"] = f"{start}{rest[-1][0]}:in"
    if rest:
        names[f"{block}.hook_mlp_out"] = f"{start}{rest[-1][0]}"
    return names


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Norm")


def _mask_scores(scores: Tensor, mask: Tensor | None, padding: Tensor | None) -> Tensor:
    """Return scores ``[batch, head, query, key]`` with a mask ``[query, key]`` or ``[batch·head,
    query, key]`` and a padding mask ``[batch, key]`` added; in Boolean masks, True forbids
    attention."""
    if mask is not None:
        mask = mask.view(scores.shape) if mask.dim() == 3 else mask
        scores = scores + _additive_mask(mask, scores)
    if padding is not None:
        padding = padding[None] if padding.dim() == 1 else padding
        scores = scores + _additive_mask(padding, scores)[:, None, None]
    return scores


def _additive_mask(mask: Tensor, scores: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(scores.dtype)
    return torch.zeros(mask.shape).to(scores).masked_fill(mask, -torch.inf)
