"""Multi-head attention from score terms, with TransformerLens' hooks.

    scores  = Σ terms(x)                       hook_attn_scores   [batch, head, query, key]
    pattern = normalize(mask(scores))          hook_pattern       [batch, head, query, key]
    z       = pattern @ (x W_V + b_V)          hook_z             [batch, pos, head, d_head]
    result  = z W_O (+ b_h · pattern @ x)      hook_result        [batch, pos, head, d_model]
    out     = Σ_heads result + b_O             hook_attn_out of the block

``hook_result`` fires when it carries the identity term b (`template` §2.2), when
``cfg.use_attn_result`` is set, and whenever something is hooked to it. ``hook_q_input``,
``hook_k_input``, ``hook_v_input`` are per-head copies of the residual stream *before* the norm,
as TransformerLens' path patching wants them; they fire when ``cfg.use_split_qkv_input`` is set.

Layers may differ in heads and head width. Weights are allocated at the largest, because
TransformerLens stacks layers; the surplus is exactly zero, and gradients keep it so.

Scores that read no token are the same for every row of a batch: unless something is hooked to them
they are computed once, with a batch axis of one.
"""

from __future__ import annotations

from typing import Any

import torch
from einops import einsum, repeat
from jaxtyping import Float
from torch import Tensor, nn

from interp.hooks.transformer_lens_adapter import HookPoint
from interp.models.attention.normalizer import allowed_keys, normalize
from interp.models.attention.rotary import rotate
from interp.models.attention.terms import ScoreInputs, score_terms
from interp.models.norm import Norm
from interp.models.spec import TransformerSpec

__all__ = ["Attention"]

Residual = Float[Tensor, "batch pos d_model"]


class Attention(nn.Module):
    """The attention heads of one layer.

    Parameters are TransformerLens': ``W_Q, W_K, W_V`` [head, d_model, d_head], ``W_O`` [head,
    d_head, d_model], ``b_Q, b_K, b_V`` [head, d_head], ``b_O`` [d_model]; W_Q and W_K exist only
    where a score term reads them. ``b`` [head] is the paper's identity scalar of the OV circuit.
    """

    used_heads: Tensor
    multiplier: Tensor

    def __init__(self, spec: TransformerSpec, layer: int, cfg: Any) -> None:
        super().__init__()
        self.spec, self.cfg = spec, cfg
        heads, width, dtype = max(spec.heads), max(spec.head_widths), spec.torch_dtype

        def zeros(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(*shape, dtype=dtype))

        if spec.uses_queries:
            self.W_Q, self.b_Q = zeros(heads, spec.d_model, width), zeros(heads, width)
            self.hook_q = HookPoint()
        if spec.uses_keys:
            self.W_K, self.b_K = zeros(heads, spec.d_model, width), zeros(heads, width)
            self.hook_k = HookPoint()
        self.W_V, self.b_V = zeros(heads, spec.d_model, width), zeros(heads, width)
        self.W_O, self.b_O = zeros(heads, width, spec.d_model), zeros(spec.d_model)
        if spec.identity_ov:
            self.b = zeros(heads)
            used = torch.arange(heads) < spec.heads[layer]
            self.register_buffer("used_heads", used.to(dtype), persistent=False)
            scale = torch.tensor(spec.identity_multiplier, dtype=dtype)
            self.register_buffer("multiplier", scale, persistent=False)
        self.terms = nn.ModuleDict(score_terms(spec, layer))
        self.rotary = spec.positions == "rope"
        self.rotary_dim = spec.head_widths[layer]
        if self.rotary:
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
        self.hook_q_input, self.hook_k_input = HookPoint(), HookPoint()
        self.hook_v_input = HookPoint()
        self.hook_v, self.hook_z, self.hook_result = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()

    def forward(self, resid: Residual, norm: Norm) -> Residual:
        """The sum of what the heads write to the stream, given the residual stream and the norm
        before it."""
        x_query, x_key, x_value = self._inputs(resid, norm)
        pattern = self._pattern(x_query, x_key)
        v = self.hook_v(_project(x_value, self.W_V) + self.b_V)
        z = self.hook_z(einsum(pattern, v, "b h query key, b key h d -> b query h d"))
        if not self._fires_result():
            return einsum(z, self.W_O, "b query h d, h d m -> b query m") + self.b_O
        result = einsum(z, self.W_O, "b query h d, h d m -> b query h m")
        if self.spec.identity_ov:
            seen = einsum(
                pattern,
                x_value.expand(-1, -1, self.W_O.shape[0], -1),
                "b h query key, b key h m -> b query h m",
            )
            result = result + self.effective_b[:, None] * seen
        return self.hook_result(result).sum(dim=2) + self.b_O

    @property
    def effective_b(self) -> Float[Tensor, " head"]:
        """The effective identity scalar b of each head: times the multiplier, zero for unused
        heads."""
        return self.multiplier * self.b * self.used_heads

    def _fires_result(self) -> bool:
        hooked = _hooked(self.hook_result)
        return self.spec.identity_ov or self.cfg.use_attn_result or hooked

    def _watched(self) -> bool:
        """Whether a hook function is attached to the scores or the pattern."""
        terms = [term.hook_score for term in self.terms.values()]
        return any(map(_hooked, (*terms, self.hook_attn_scores, self.hook_pattern)))

    def _inputs(self, resid: Residual, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
        """The normed residual for queries, keys and values, ``[batch, pos, #head, d_model]``."""
        x = norm(resid)[:, :, None]
        if not self.cfg.use_split_qkv_input:
            return x, x, x
        per_head = repeat(resid, "b pos m -> b pos h m", h=self.W_V.shape[0])
        hooks = (self.hook_q_input, self.hook_k_input, self.hook_v_input)
        # Copies: a hook that edits its tensor in place must not reach another one's.
        query, key, value = (norm.apply_to(hook(per_head.clone())) for hook in hooks)
        # Scores that read no query or key still give a gradient there, zero: TransformerLens'
        # edge attribution asks for it.
        return query, key, value + 0.0 * (query + key)

    def _pattern(self, x_query: Tensor, x_key: Tensor) -> Float[Tensor, "#batch head query key"]:
        q = k = x_query.new_empty(0)
        if self.spec.uses_queries:
            q = self.hook_q(_project(x_query, self.W_Q) + self.b_Q)
        if self.spec.uses_keys:
            k = self.hook_k(_project(x_key, self.W_K) + self.b_K)
        if self.rotary:
            q = self.hook_rot_q(rotate(q, self.rotary_dim))
            k = self.hook_rot_k(rotate(k, self.rotary_dim))
        n, watched = x_query.shape[1], self._watched()
        position = torch.arange(n, device=x_query.device)
        inputs = ScoreInputs(x_query, x_key, q, k, position[:, None] - position)
        allowed = allowed_keys(
            n, causal=self.spec.causal, mask_self=self.spec.mask_self, device=x_query.device
        )
        masked = ~allowed & allowed.any(dim=-1, keepdim=True)
        rows = len(x_query) if watched else 1
        scores = x_query.new_zeros(n, n).masked_fill(masked, -torch.inf)
        scores = scores.expand(rows, self.W_V.shape[0], n, n)
        terms: Any = self.terms.values()
        added = [term(inputs) if watched else term.score(inputs) for term in terms]
        for part in sorted(added, key=Tensor.numel):  # what is the same for every row first
            scores = scores + part
        scores = self.hook_attn_scores(scores.contiguous())
        pattern = normalize(scores, self.spec.normalizer == "softmax")
        if watched or self.spec.mask_self:  # a new tensor, which a hook may change in place
            pattern = pattern.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
        return self.hook_pattern(pattern)


def _hooked(hook: HookPoint) -> bool:
    """Whether a hook function is attached, through TransformerLens' methods or PyTorch's."""
    return bool(hook._forward_hooks or hook._forward_pre_hooks or hook._backward_hooks)


def _project(
    x: Float[Tensor, "batch pos #head d_model"], w: Float[Tensor, "head d_model d_head"]
) -> Float[Tensor, "batch pos head d_head"]:
    if x.shape[2] == 1:
        return einsum(x[:, :, 0], w, "b pos m, h m d -> b pos h d")
    return einsum(x, w, "b pos h m, h m d -> b pos h d")
