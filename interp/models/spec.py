"""The options of the transformer :class:`~interp.models.transformer.SequenceTransformer`.

A spec is frozen, is checked as a whole (all problems in one error) and can be saved as JSON. One
class of models covers the four papers, because attention is a *sum of score terms, then a
normaliser*, and the spec names the terms. Options that would have no effect are refused rather than
ignored: a query-side scalar under a softmax, for instance, cancels (`memory` §1.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field

from interp.errors import Problems
from interp.schema import check_fields, from_fields

Input = Literal["real", "tokens"]
Score = Literal["dot", "scalar_gate", "slope", "none"]
LagBias = Literal["none", "lin", "log", "table", "relative_keys", "bump"]
Positions = Literal["none", "learned", "sinusoidal", "rope"]
Normalizer = Literal["softmax", "none"]
Norm = Literal["none", "layernorm", "rmsnorm"]
Activation = Literal["relu", "gelu", "pair_sign"]
Dtype = Literal["float32", "float64", "bfloat16", "float16"]

Size = Annotated[int, Field(ge=1, le=1 << 24)]
"""A number of channels, tokens or positions, from 1 to 2^24."""
Width = Annotated[int, Field(ge=1, le=1 << 20)]
"""The number of components of a vector, from 1 to 2^20."""
HeadCount = Annotated[int, Field(ge=0, le=1 << 14)]
"""The number of heads of a layer, from 0 to 2^14."""
Finite = Annotated[float, Field(gt=-1e30, lt=1e30)]
"""A number between −10^30 and 10^30."""


@dataclass(frozen=True)
class TransformerSpec:
    """Sizes and options of a transformer; see `memory` §1.1 for the formulas.

    Attributes:
        d_in: Channels of a real-valued input, or size of the vocabulary.
        d_out: Size of the output at each position.
        n_ctx: Longest input, in positions.
        d_model: Width of the residual stream.
        n_layers: Number of blocks; 0 is embedding then unembedding.
        n_heads: Heads in a layer, or one number per layer (0 for a layer that does not attend).
        d_head: Width of a head, or one number per layer.
        ffn: Widths of the FFN's hidden layers: ``()`` for attention-only, ``(64,)`` for the usual
            one, ``(64, 32)`` for a deeper one; or one such tuple per layer.
        input: ``real`` ([batch, pos, d_in]) or ``tokens`` ([batch, pos]).
        score: ``dot`` ⟨W_Q x_t, W_K x_j⟩/√d_head; ``scalar_gate`` ⟨w_h, x_t⟩; ``slope`` a
            query-dependent slope (p_h + ⟨w_h, x_t⟩) φ(s); ``none`` (dot-product-free).
        lag_bias: ``lin`` −p_h s; ``log`` −p_h log(1 + s); ``table`` one bias per lag;
            ``relative_keys`` ⟨W_Q x_t, r_s⟩/√d_head; ``bump`` −p_h s²/2 + (c_h + ⟨w_h, x_t⟩) s.
        positions: What is added to (or rotates) the input: ``none``, ``learned``, ``sinusoidal``,
            ``rope`` (rotates queries and keys).
        normalizer: ``softmax``, or ``none``: the numerator exp(score) alone.
        causal: Whether queries attend to the past only; otherwise to every position, and ``lin``
            and ``log`` use |s|.
        mask_self: Whether a position is kept from attending to itself.
        identity_qk: Whether a_h · X Xᵀ is added to the scores (`template` §2.2), a_h starting at 0.
        identity_ov: Whether b_h · pattern @ X is added to each head's result, b_h starting at 0.
        identity_mask_self: Whether the diagonal (a position's match with itself) is left out of a_h
            · X Xᵀ.
        identity_multiplier: A factor on a_h and b_h, which acts as a larger learning rate for them.
        norm: The norm before each sublayer: ``none``, ``layernorm`` or ``rmsnorm``.
        norm_gain: Whether the norm has a trained gain (and, for LayerNorm, a bias).
        norm_final: Whether there is a norm before the unembedding too.
        norm_eps: What is added to the variance (LayerNorm) or mean square (RMSNorm).
        residual: Whether blocks add to their input; otherwise they replace it.
        activation: The FFN's activation: ``relu``, ``gelu``, ``pair_sign`` (`depth` §3.3), or one
            per hidden layer.
        input_ffn: Hidden widths of a pointwise FFN before the first block; ``()`` for none.
        tied_unembedding: Whether the unembedding is the embedding transposed, W_U = W_Eᵀ.
        dtype: Dtype of the parameters.

    Raises:
        ArgumentError: naming every option that is out of range, unknown, or without effect.
    """

    d_in: Size
    d_out: Size
    n_ctx: Size
    d_model: Width
    n_layers: Annotated[int, Field(ge=0, le=4096)]
    n_heads: HeadCount | tuple[HeadCount, ...] = 1
    d_head: Width | tuple[Width, ...] = 16
    ffn: tuple[Width, ...] | tuple[tuple[Width, ...], ...] = ()
    input: Input = "tokens"
    score: Score = "dot"
    lag_bias: LagBias = "none"
    positions: Positions = "none"
    normalizer: Normalizer = "softmax"
    causal: bool = True
    mask_self: bool = False
    identity_qk: bool = False
    identity_ov: bool = False
    identity_mask_self: bool = False
    identity_multiplier: Finite = 1.0
    norm: Norm = "none"
    norm_gain: bool = True
    norm_final: bool = True
    norm_eps: Annotated[float, Field(ge=0, lt=1e30)] = 1e-5
    residual: bool = True
    activation: Activation | tuple[Activation, ...] = "relu"
    input_ffn: tuple[Width, ...] = ()
    tied_unembedding: bool = False
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        problems = Problems("TransformerSpec")
        if check_fields(self, problems):
            _check_sizes(self, problems)
            _check_attention(self, problems)
            _check_rest(self, problems)
        problems.raise_if_any()

    @property
    def heads(self) -> tuple[int, ...]:
        """The number of heads of each layer."""
        return _per_layer(self.n_heads, self.n_layers)

    @property
    def head_widths(self) -> tuple[int, ...]:
        """The head width d_head of each layer."""
        return _per_layer(self.d_head, self.n_layers)

    @property
    def ffn_widths(self) -> tuple[tuple[int, ...], ...]:
        """The hidden widths of each layer's FFN."""
        if self.ffn and isinstance(self.ffn[0], tuple):
            return self.ffn
        return (cast("tuple[int, ...]", self.ffn),) * self.n_layers

    @property
    def uses_queries(self) -> bool:
        """Whether a score term needs queries, so that the model has W_Q."""
        return self.score == "dot" or self.lag_bias == "relative_keys"

    @property
    def uses_keys(self) -> bool:
        """Whether a score term needs keys, so that the model has W_K."""
        return self.score == "dot"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The parameters' dtype."""
        return cast("torch.dtype", getattr(torch, self.dtype))

    @property
    def least_weights(self) -> int:
        """A lower bound on the number of weights of a model of this spec, from its largest
        matrices."""
        inside = sum(
            4 * heads * width * self.d_model
            for heads, width in zip(self.heads, self.head_widths, strict=True)
        )
        return (self.d_in + self.d_out) * self.d_model + inside

    def activation_of(self, hidden: int) -> Activation:
        """Return the activation of the FFN's hidden layer ``hidden``, counted from 0."""
        return self.activation if isinstance(self.activation, str) else self.activation[hidden]

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TransformerSpec:
        """Rebuild the spec from the result of :meth:`to_dict`.

        Raises:
            ArgumentError: if keys are unknown or missing, or the spec refuses a value.
        """
        stated = {k: data[k] for k in _NUMBERS if type(data.get(k)) is int}
        whole = {k: float(v) for k, v in stated.items() if abs(v) < 1e300}
        return from_fields(cls, {**data, **whole}, Problems("TransformerSpec"))


_NUMBERS = ("identity_multiplier", "norm_eps")
"""Options that are read as floats even if a file has whole numbers, so that 1 and 1.0 give the same
hash of a recipe."""


def _per_layer(value: int | tuple[int, ...], n_layers: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * n_layers


def _check_sizes(spec: TransformerSpec, problems: Problems) -> None:
    need = problems.need
    for name, per_layer in (("n_heads", spec.heads), ("d_head", spec.head_widths)):
        value = getattr(spec, name)
        good = len(per_layer) == spec.n_layers
        need(good, name, f"must have n_layers = {spec.n_layers} entries", value, "one a layer")
    good = len(spec.ffn_widths) == spec.n_layers
    need(good, "ffn", f"must have n_layers = {spec.n_layers} entries", spec.ffn, "one a layer")


def _check_attention(spec: TransformerSpec, problems: Problems) -> None:
    need = problems.need
    softmax = spec.normalizer == "softmax"
    gate_acts = spec.score != "scalar_gate" or not softmax
    advice = "use normalizer='none', or score='slope' with lag_bias lin or log"
    rule = "scalar_gate cancels under a softmax"
    need(gate_acts, "score", rule, (spec.score, spec.normalizer), advice)
    slope_acts = spec.score != "slope" or spec.lag_bias in ("lin", "log")
    need(slope_acts, "score", "slope needs lag_bias lin or log", spec.lag_bias, "set lag_bias")
    rotates = spec.positions != "rope" or spec.score == "dot"
    need(rotates, "positions", "rope rotates queries and keys: needs score dot", spec.score, "set")
    even = spec.positions != "rope" or all(d % 2 == 0 for d in spec.head_widths)
    need(even, "d_head", "must be even with rope", spec.d_head, "use an even width")
    acts, rule = (
        spec.identity_qk or not spec.identity_mask_self,
        "has no effect without identity_qk",
    )
    need(acts, "identity_mask_self", rule, spec.identity_mask_self, "leave it false")
    scales = spec.identity_multiplier != 1.0
    used = spec.identity_qk or spec.identity_ov
    rule = "has no effect without identity_qk or identity_ov"
    need(used or not scales, "identity_multiplier", rule, spec.identity_multiplier, "leave it 1.0")
    good = spec.identity_multiplier > 0
    need(good, "identity_multiplier", "must be positive", spec.identity_multiplier, "raise it")


def _check_rest(spec: TransformerSpec, problems: Problems) -> None:
    need = problems.need
    for name, default in (("norm_gain", True), ("norm_final", True), ("norm_eps", 1e-5)):
        value = getattr(spec, name)
        acts = spec.norm != "none" or value == default
        need(acts, name, "has no effect with norm none", value, f"leave it {default}")
    hidden = [w for w in (*spec.ffn_widths, spec.input_ffn) if w]
    if isinstance(spec.activation, tuple):
        good = all(len(w) == len(spec.activation) for w in hidden)
        rule = "as a tuple must have one entry a hidden layer of every FFN"
        need(good and bool(hidden), "activation", rule, spec.activation, "or name one for all")
    else:
        acts = bool(hidden) or spec.activation == "relu"
        need(acts, "activation", "has no effect without an FFN", spec.activation, "set ffn")
    if not isinstance(spec.activation, tuple) or all(
        len(w) == len(spec.activation) for w in hidden
    ):
        widths = [
            w[i] for w in hidden for i in range(len(w)) if spec.activation_of(i) == "pair_sign"
        ]
        need(
            all(w % 2 == 0 for w in widths), "ffn", "must be even for pair_sign", spec.ffn, "pairs"
        )
    whole = spec.residual or (
        all(spec.heads) and (all(spec.ffn_widths) or not any(spec.ffn_widths))
    )
    rule, advice = "false needs heads (and an FFN, if any has one) in every layer", "or keep it"
    need(whole, "residual", rule, spec.residual, advice)
    tied = spec.tied_unembedding
    rule = "must equal d_in for a tied unembedding"
    need(not tied or spec.d_in == spec.d_out, "d_out", rule, spec.d_out, f"use {spec.d_in}")
