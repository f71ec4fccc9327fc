"""The terms whose sum is the attention score.

Each term is one small module that gives ``[batch, head, query, key]`` (or a shape that broadcasts
to it) and fires ``hook_score`` with its contribution, in full shape, so a measurement can ask what
each term does. With lag s = query − key (|s| in lin and log when attention looks both ways):

    dot            ⟨W_Q x_t, W_K x_j⟩ / √d_head            (with RoPE, both rotated first)
    identity       a_h ⟨x_t, x_j⟩                          `template` §2.2
    gate           ⟨w_h, x_t⟩                              `memory` §1.1, Prop. 4.3
    lag            −p_h φ(s), or −(p_h + ⟨w_h, x_t⟩) φ(s)  φ = s (lin) or log(1 + s) (log)
    table          one bias per lag                        T5-like
    relative_keys  ⟨W_Q x_t, r_s⟩ / √d_head
    bump           −p_h s²/2 + (c_h + ⟨w_h, x_t⟩) s        ours, not the papers'

The paper writes log s for s ≥ 1; we shift by one so that lag 0 is finite. p_h enters as |p_h|: the
theory wants it positive, and the absolute value keeps constructed values exact. A term that is
large need not matter: under a softmax, anything constant along the keys cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.hooks.transformer_lens_adapter import HookPoint
from interp.models.spec import TransformerSpec

__all__ = ["ScoreInputs", "score_terms"]

Scores = Float[Tensor, "#batch #head query #key"]


@dataclass(frozen=True)
class ScoreInputs:
    """The quantities that a score term may be computed from.

    Attributes:
        x_query, x_key: The (normed) residual stream ``[batch, pos, 1 or head, d_model]``.
        q, k: Queries and keys ``[batch, pos, head, d_head]``; empty where the model has no W_Q or
        W_K.
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
        """The term's contribution to the scores."""
        scores = self.score(inputs)
        n = inputs.lags.shape[0]
        full: Tensor = self.hook_score(scores.expand(len(inputs.x_query), scores.shape[1], n, n))
        return full

    def score(self, inputs: ScoreInputs) -> Scores:
        """The term's scores ``[batch, head, query, key]``, before they are masked."""
        raise NotImplementedError


class Dot(ScoreTerm):
    """The dot product of query and key, ⟨q_t, k_j⟩ / √d_head."""

    def __init__(self, d_head: int) -> None:
        super().__init__()
        self.scale = 1 / sqrt(d_head)

    def score(self, inputs: ScoreInputs) -> Scores:
        """The scaled dot product."""
        q, k = inputs.q, inputs.k
        return einsum(q, k, "b query h d, b key h d -> b h query key") * self.scale


class Identity(ScoreTerm):
    """a_h ⟨x_t, x_j⟩, the symbol-equality matrix when embeddings are orthonormal.

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
        """The inner products a_h ⟨x_t, x_j⟩ of the residual stream at query and key."""
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
        """The gate's value at each query, broadcast over keys."""
        return _query_scalar(inputs, self.w)


class Lag(ScoreTerm):
    """A bias −p_h φ(s) that falls with the lag s; with ``adaptive`` the query adds to the slope
    p_h."""

    def __init__(
        self, n_heads: int, d_model: int, log: bool, adaptive: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.log = log
        slopes = 2.0 ** -torch.arange(n_heads, dtype=dtype)
        self.p = nn.Parameter(slopes)
        self.w = nn.Parameter(torch.zeros(n_heads, d_model, dtype=dtype)) if adaptive else None

    def score(self, inputs: ScoreInputs) -> Scores:
        """The bias −slope · φ(|lag|)."""
        phi = inputs.lags.abs().to(_wide(self.p))
        phi = phi.log1p() if self.log else phi
        slope = self.p.abs()[None, :, None, None]
        if self.w is not None:
            slope = slope + _query_scalar(inputs, self.w)
        return (-slope * phi).to(self.p.dtype)


class Table(ScoreTerm):
    """One learned bias per head and lag, for lags of both signs when attention looks both ways."""

    def __init__(self, n_heads: int, n_ctx: int, causal: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.offset = 0 if causal else n_ctx - 1
        self.bias = nn.Parameter(torch.zeros(n_heads, n_ctx + self.offset, dtype=dtype))

    def score(self, inputs: ScoreInputs) -> Scores:
        """The learned bias of each pair's lag; future lags, which are masked anyway, read lag 0."""
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
        """The scaled product of each query with the key of the pair's lag."""
        n = inputs.lags.shape[0]
        first = max(self.offset - (n - 1), 0)
        keys = self.r[:, first : self.offset + n]
        by_lag = einsum(inputs.q, keys, "b query h d, h lag d -> b h query lag") * self.scale
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
        """A parabola in the lag; the query moves the lag at which it is largest."""
        s = inputs.lags.to(_wide(self.p))
        top = self.c[None, :, None, None] + _query_scalar(inputs, self.w)
        return (-self.p.abs()[:, None, None] * s**2 / 2 + top * s).to(self.p.dtype)


def _wide(weight: Tensor) -> torch.dtype:
    """The weight's dtype, but at least float32: half precision counts exactly only to 256 or
    2048."""
    return torch.promote_types(weight.dtype, torch.float32)


def _query_scalar(
    inputs: ScoreInputs, w: Float[Tensor, "head d_model"]
) -> Float[Tensor, "batch head query 1"]:
    x = inputs.x_query
    if x.shape[2] == 1:
        return einsum(x[:, :, 0], w, "b query d, h d -> b h query")[..., None]
    return einsum(x, w, "b query h d, h d -> b h query")[..., None]


def score_terms(spec: TransformerSpec, layer: int) -> dict[str, ScoreTerm]:
    """The terms that ``spec`` names, in the order they are added.

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
        terms["table"] = Table(heads, spec.n_ctx, spec.causal, dtype)
    if spec.lag_bias == "relative_keys":
        terms["relative_keys"] = RelativeKeys(heads, d_head, width, spec.n_ctx, spec.causal, dtype)
    if spec.lag_bias == "bump":
        terms["bump"] = Bump(heads, d_model, dtype)
    return terms
