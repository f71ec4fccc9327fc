"""Multi-head attention from score terms, with TransformerLens' hooks.

    scores  = Σ terms(x)                       hook_attn_scores   [batch, head, query, key]
    pattern = normalize(mask(scores))          hook_pattern       [batch, head, query, key]
    z       = pattern @ (x W_V + b_V)          hook_z             [batch, pos, head, d_head]
    result  = z W_O (+ b_h · pattern @ x)      hook_result        [batch, pos, head, d_model]
    out     = Σ_heads result + b_O             hook_attn_out of the block

``hook_result`` fires if it carries the identity term b (`template` §2.2), if
``cfg.use_attn_result`` is set, and whenever a function is attached to it. ``hook_q_input``,
``hook_k_input``, ``hook_v_input`` are per-head copies of the residual stream *before* the norm, as
TransformerLens' path patching needs them; they fire if ``cfg.use_split_qkv_input`` is set.

Layers may differ in heads and head width. Weights are allocated at the largest, because
TransformerLens stacks layers; the surplus is exactly zero, and gradients keep it so.

Scores that do not depend on tokens are the same for every row of a batch: unless a function is
attached to them they are computed once, with a batch axis of length one.

*The pattern* is computed from the scores by a softmax or by its numerator alone:

    softmax   exp(score) / Σ_keys exp(score)
    none      exp(score)

The paper's section on adaptive memories drops the denominator, because it depends on the tokens
(`memory` §1.1). Without it the pattern's rows do not sum to one: read it as a kernel, not as a
distribution.

*Rotary positions* (RoPE) rotate queries and keys by an angle that grows with the position. Pairs
(i, i + d/2) of a head's dimensions are rotated by t·θ_i with θ_i = 10000^{−2i/d}, so the dot
product of a query at t and a key at j depends on t − j only.

*The terms* add up to the attention score. Each term is one small module that returns ``[batch,
head, query, key]`` (or a shape that broadcasts to it) and fires ``hook_score`` with its
contribution, in full shape, so the contribution of each term can be measured. With lag s = query −
key (|s| in lin and log if attention is bidirectional):

    dot            ⟨W_Q x_t, W_K x_j⟩ / √d_head            (with RoPE, both rotated first)
    identity       a_h ⟨x_t, x_j⟩                          `template` §2.2
    gate           ⟨w_h, x_t⟩                              `memory` §1.1, Prop. 4.3
    lag            −p_h φ(s), or −(p_h + ⟨w_h, x_t⟩) φ(s)  φ = s (lin) or log(1 + s) (log)
    table          one bias per lag                        T5-like
    relative_keys  ⟨W_Q x_t, r_s⟩ / √d_head
    bump           −p_h s²/2 + (c_h + ⟨w_h, x_t⟩) s        ours, not the papers'

The paper writes log s for s ≥ 1; we shift by one so that lag 0 is finite. p_h enters as |p_h|: the
theory needs it positive, and the absolute value keeps constructed values exact. A term that is
large need not matter: under a softmax, anything constant along the keys cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from einops import einsum, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.hooks.points import HookPoint
from interp.models.norm import Norm
from interp.models.spec import TransformerSpec


def allowed_keys(
    n: int, *, causal: bool, mask_self: bool, device: torch.device
) -> Bool[Tensor, "query key"]:
    """Return the attention mask, true where a query may attend to a key."""
    allowed = torch.ones(n, n, dtype=torch.bool, device=device)
    if causal:
        allowed = allowed.tril()
    if mask_self:
        allowed = allowed & ~torch.eye(n, dtype=torch.bool, device=device)
    return allowed


def normalize(
    scores: Float[Tensor, "#batch head query key"], softmax: bool
) -> Float[Tensor, "#batch head query key"]:
    """Return the attention pattern of masked scores, which are −inf where a query may not attend.

    For a query that may not attend to any key, pass finite scores; its row of the pattern is then
    meaningless.
    """
    return scores.softmax(dim=-1) if softmax else scores.exp()


_BASE = 10_000.0


def rotate(
    x: Float[Tensor, "batch pos head d_head"], width: int
) -> Float[Tensor, "batch pos head d_head"]:
    """Rotate the first ``width`` dimensions of each vector by its position; the others are
    padding."""
    half = width // 2
    exact = torch.promote_types(x.dtype, torch.float32)  # half precision cannot count past 256
    inverse = _BASE ** (-torch.arange(half, device=x.device, dtype=exact) / half)
    angle = torch.arange(x.shape[1], device=x.device, dtype=exact)[:, None] * inverse
    cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
    first, second, padding = x[..., :half], x[..., half:width], x[..., width:]
    turned = (first * cos - second * sin, second * cos + first * sin, padding)
    return torch.cat(turned, dim=-1)


Scores = Float[Tensor, "#batch #head query #key"]


@dataclass(frozen=True)
class ScoreInputs:
    """The quantities that a score term may be computed from.

    Attributes:
        x_query, x_key: The (normalised) residual stream ``[batch, pos, 1 or head, d_model]``.
        q, k: Queries and keys ``[batch, pos, head, d_head]``; empty if the model has no W_Q or W_K.
        lags: The lag of each pair ``[query, key]``, query position − key position.
    """

    x_query: Float[Tensor, "batch query #head d_model"]
    x_key: Float[Tensor, "batch key #head d_model"]
    q: Tensor
    k: Tensor
    lags: Int[Tensor, "query key"]


class ScoreTerm(nn.Module):
    """Base class of score terms: :meth:`score` is the formula, ``hook_score`` fires with its
    value."""

    def __init__(self) -> None:
        super().__init__()
        self.hook_score = HookPoint()

    def forward(self, inputs: ScoreInputs) -> Scores:
        """Return the term's contribution to the scores, after firing ``hook_score``."""
        scores = self.score(inputs)
        n = inputs.lags.shape[0]
        full: Tensor = self.hook_score(scores.expand(len(inputs.x_query), scores.shape[1], n, n))
        return full

    def score(self, inputs: ScoreInputs) -> Scores:
        """Return the term's scores ``[batch, head, query, key]``, before they are masked."""
        raise NotImplementedError


class Dot(ScoreTerm):
    """The dot product of query and key, ⟨q_t, k_j⟩ / √d_head."""

    def __init__(self, d_head: int) -> None:
        super().__init__()
        self.scale = 1 / sqrt(d_head)

    def score(self, inputs: ScoreInputs) -> Scores:
        """Return the dot products ⟨q_t, k_j⟩ / √d_head of every query with every key, for each
        head."""
        q, k = inputs.q, inputs.k
        return einsum(q * self.scale, k, "b query h d, b key h d -> b h query key")


class Identity(ScoreTerm):
    """The score a_h ⟨x_t, x_j⟩, proportional to the symbol-equality matrix if embeddings are
    orthonormal.

    It is added after the 1/√d_head scaling of the dot product, so W_Q W_Kᵀ/√d_head + aI is the
    effective circuit. With ``mask_self`` the matches j = t are left out.
    """

    multiplier: Tensor

    def __init__(
        self, n_heads: int, multiplier: float, mask_self: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.mask_self = mask_self
        self.a = nn.Parameter(torch.zeros(n_heads, dtype=dtype))
        # A buffer, so that a stack of models can hold one for each.
        self.register_buffer("multiplier", torch.tensor(multiplier, dtype=dtype), persistent=False)

    def score(self, inputs: ScoreInputs) -> Scores:
        """Return the inner products a_h ⟨x_t, x_j⟩ of the residual stream at query and key."""
        products = einsum(inputs.x_query, inputs.x_key, "b query h d, b key h d -> b h query key")
        if self.mask_self:
            products = products.masked_fill(inputs.lags == 0, 0.0)
        return products * (self.multiplier * self.a)[:, None, None]


class Gate(ScoreTerm):
    """A gate ⟨w_h, x_t⟩ that is the same for every key; it has an effect only without a softmax."""

    def __init__(self, n_heads: int, d_model: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(n_heads, d_model, dtype=dtype))

    def score(self, inputs: ScoreInputs) -> Scores:
        """Return the gate's value at each query, broadcast over keys."""
        return _query_scalar(inputs, self.w)


class Lag(ScoreTerm):
    """A bias −|p_h| φ(|s|) on the scores of head h, where s is the lag between query and key.

    φ(|s|) is |s|, or log(1 + |s|) with ``log``. The slope |p_h| is learned; with ``adaptive``,
    ⟨w_h, x_t⟩ is added to it, so that it depends on the residual stream x_t at the query.
    """

    def __init__(
        self, n_heads: int, d_model: int, log: bool, adaptive: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.log = log
        slopes = 2.0 ** -torch.arange(n_heads, dtype=dtype)
        self.p = nn.Parameter(slopes)
        self.w = nn.Parameter(torch.zeros(n_heads, d_model, dtype=dtype)) if adaptive else None

    def score(self, inputs: ScoreInputs) -> Scores:
        """Return the bias −slope · φ(|lag|)."""
        phi = inputs.lags.abs().to(_wide(self.p))
        phi = phi.log1p() if self.log else phi
        slope = self.p.abs()[None, :, None, None]
        if self.w is not None:
            slope = slope + _query_scalar(inputs, self.w)
        return (-slope * phi).to(self.p.dtype)


class BiasTable(ScoreTerm):
    """One learned bias per head and lag, for lags of both signs if attention is bidirectional."""

    def __init__(self, n_heads: int, n_ctx: int, causal: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.offset = 0 if causal else n_ctx - 1
        self.bias = nn.Parameter(torch.zeros(n_heads, n_ctx + self.offset, dtype=dtype))

    def score(self, inputs: ScoreInputs) -> Scores:
        """Return the learned bias of each pair's lag; future lags, which are masked anyway, read
        lag 0."""
        return self.bias[:, (inputs.lags + self.offset).clamp(min=0)][None]


class RelativeKeys(ScoreTerm):
    """The dot product ⟨q_t, r_s⟩ / √d_head of the query with a learned key per head and lag."""

    def __init__(
        self, n_heads: int, d_head: int, width: int, n_ctx: int, causal: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.scale = 1 / sqrt(d_head)
        self.offset = 0 if causal else n_ctx - 1
        self.r = nn.Parameter(torch.zeros(n_heads, n_ctx + self.offset, width, dtype=dtype))

    def score(self, inputs: ScoreInputs) -> Scores:
        """Return the scaled product of each query with the key of the pair's lag."""
        n = inputs.lags.shape[0]
        first = max(self.offset - (n - 1), 0)
        keys = self.r[:, first : self.offset + n]
        by_lag = einsum(inputs.q * self.scale, keys, "b query h d, h lag d -> b h query lag")
        index = (inputs.lags + (self.offset - first)).clamp(min=0)
        return by_lag.gather(-1, index.expand(*by_lag.shape[:3], n))


class Bump(ScoreTerm):
    """A bump −p_h s²/2 + (c_h + ⟨w_h, x_t⟩) s, which centres attention at lag (c_h + ⟨w_h,
    x_t⟩)/p_h."""

    def __init__(self, n_heads: int, d_model: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(n_heads, dtype=dtype))
        self.c = nn.Parameter(torch.arange(n_heads, dtype=dtype))
        self.w = nn.Parameter(torch.zeros(n_heads, d_model, dtype=dtype))

    def score(self, inputs: ScoreInputs) -> Scores:
        """Return the scores −|p_h| s²/2 + (c_h + ⟨w_h, x_t⟩) s of each pair, quadratic in its lag
        s.

        The lag with the largest score depends on the residual stream x_t at the query.
        """
        s = inputs.lags.to(_wide(self.p))
        top = self.c[None, :, None, None] + _query_scalar(inputs, self.w)
        return (-self.p.abs()[:, None, None] * s**2 / 2 + top * s).to(self.p.dtype)


def _wide(weight: Tensor) -> torch.dtype:
    """Return the weight's dtype, but at least float32: half precision is exact only up to 256 or
    2048."""
    return torch.promote_types(weight.dtype, torch.float32)


def _query_scalar(
    inputs: ScoreInputs, w: Float[Tensor, "head d_model"]
) -> Float[Tensor, "batch head query 1"]:
    x = inputs.x_query
    if x.shape[2] == 1:
        return einsum(x.squeeze(2), w, "b query d, h d -> b h query")[..., None]
    return einsum(x, w, "b query h d, h d -> b h query")[..., None]


def score_terms(spec: TransformerSpec, layer: int) -> dict[str, ScoreTerm]:
    """Return the terms that ``spec`` names, in the order in which they are added.

    Heads and head widths are allocated at the largest of all layers (see
    :class:`~interp.models.attention.heads.Attention`); the scaling is that of the layer's own.
    """
    heads, width = max(spec.heads), max(spec.head_widths)
    d_head, d_model, dtype = spec.head_widths[layer], spec.d_model, spec.torch_dtype
    terms: dict[str, ScoreTerm] = {}
    if spec.score == "dot":
        terms["dot"] = Dot(d_head)
    if spec.identity_qk:
        terms["identity"] = Identity(
            heads, spec.identity_multiplier, spec.identity_mask_self, dtype
        )
    if spec.score == "scalar_gate":
        terms["gate"] = Gate(heads, d_model, dtype)
    if spec.lag_bias in ("lin", "log"):
        log, adaptive = spec.lag_bias == "log", spec.score == "slope"
        terms["lag"] = Lag(heads, d_model, log, adaptive, dtype)
    if spec.lag_bias == "table":
        terms["table"] = BiasTable(heads, spec.n_ctx, spec.causal, dtype)
    if spec.lag_bias == "relative_keys":
        terms["relative_keys"] = RelativeKeys(heads, d_head, width, spec.n_ctx, spec.causal, dtype)
    if spec.lag_bias == "bump":
        terms["bump"] = Bump(heads, d_model, dtype)
    return terms


Residual = Float[Tensor, "batch pos d_model"]


class Attention(nn.Module):
    """The attention heads of one layer.

    Parameters are TransformerLens': ``W_Q, W_K, W_V`` [head, d_model, d_head], ``W_O`` [head,
    d_head, d_model], ``b_Q, b_K, b_V`` [head, d_head], ``b_O`` [d_model]; W_Q and W_K exist only if
    a score term needs them. ``b`` [head] is the paper's identity scalar of the OV circuit.
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
        """Return the sum of the heads' outputs, given the residual stream and the norm before
        attention."""
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
        """The identity scalar b of each head, times the multiplier; zero for unused heads."""
        return self.multiplier * self.b * self.used_heads

    def _fires_result(self) -> bool:
        hooked = self.hook_result.is_hooked
        return self.spec.identity_ov or self.cfg.use_attn_result or hooked

    def _is_watched(self) -> bool:
        """Return whether a hook function is attached to the scores or the pattern."""
        terms: list[Any] = [term.hook_score for term in self.terms.values()]
        return any(point.is_hooked for point in (*terms, self.hook_attn_scores, self.hook_pattern))

    def _inputs(self, resid: Residual, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalised stream for queries, keys and values, ``[batch, pos, #head,
        d_model]``."""
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
        n, watched = x_query.shape[1], self._is_watched()
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


def _project(
    x: Float[Tensor, "batch pos #head d_model"], w: Float[Tensor, "head d_model d_head"]
) -> Float[Tensor, "batch pos head d_head"]:
    if x.shape[2] == 1:
        return einsum(x.squeeze(2), w, "b pos m, h m d -> b pos h d")
    return einsum(x, w, "b pos h m, h m d -> b pos h d")
