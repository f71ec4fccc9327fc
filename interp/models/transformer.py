"""One transformer for all four papers, with TransformerLens' hooks.

    x_0 = embed(input) (+ positions) (→ input FFN)
    x ← x + Attention(norm(x));  x ← x + FFN(norm(x))         each block
    output = norm(x) W_U + b_U

Hook names, shapes and meaning are TransformerLens', so its ``ActivationCache``, ``patching``,
``head_detector`` and ``tools.analysis`` work on these models as they are. ``hook_embed`` (plus
``hook_pos_embed`` if it exists) is always what enters block 0: with an input FFN the raw embedding
is ``hook_input_ffn_in`` and ``hook_embed`` is the FFN's output.

Limits, all tested with the tools themselves:

- With ``residual=False`` a block replaces its input: decompositions of the residual stream into
summands do not apply then. - With ``identity_ov``, the output of the identity term b is in
``hook_result`` and not in ``hook_z``. Tools that take a head's output to be ``hook_z W_O`` miss it:
``patching.get_act_patch_direct_path``, node (not edge) attribution, patching of ``z``, and
``stack_head_results`` on a cache that was filtered to leave ``hook_result`` out. - Heads that a
narrower layer lacks write nothing, but have patterns (even, or as the lag bias says): pass
``heads=`` to ``detect_head``. - A bias of the final norm belongs to no component: attributions sum
to the logit without it (and without b_U). - Real-valued inputs need ``index_df`` in ``patching``
functions that iterate over positions (TransformerLens takes the last axis, the channels, for
positions); ``attribution_patch`` takes only token ids, and only models with an FFN. -
``interchange.reinitialized`` refuses these models: build one with another seed. - Without layers
only ``decompose_resid`` is of use.

*How a sequence enters and leaves.* Real inputs are embedded linearly (``x W_E``, in the model's
dtype), tokens by row; the output is read linearly. Sinusoidal positions are fixed: dimension 2i is
sin(t·10000^{−2i/D}), 2i+1 the cosine.

*Weights* have TransformerLens' names, stacked over layers:

``W_Q, W_K, W_V`` [layer, head, d_model, d_head], ``W_O`` [layer, head, d_head, d_model], ``W_in``
[layer, d_model, d_mlp], ``W_out`` [layer, d_mlp, d_model] and the biases. Layers with fewer or
narrower heads, or fewer neurons, are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.errors import Problems, need, refuse_unless
from interp.hooks.hooked import HookedModule
from interp.hooks.points import HookPoint
from interp.models.attention.heads import Attention
from interp.models.ffn import FFN
from interp.models.init import initialize
from interp.models.norm import Norm
from interp.models.spec import TransformerSpec


class Embed(nn.Module):
    """The embedding ``W_E`` [d_in, d_model]: linear for real inputs, a lookup for tokens."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.real = spec.input == "real"
        self.W_E = nn.Parameter(torch.zeros(spec.d_in, spec.d_model, dtype=spec.torch_dtype))

    def forward(
        self, inputs: Float[Tensor, "batch pos d_in"] | Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the embedded sequence ``[batch, pos, d_model]``."""
        if self.real:
            return inputs.to(self.W_E.dtype) @ self.W_E
        return F.embedding(inputs, self.W_E)  # refuses ids out of range, negative ones too


class PosEmbed(nn.Module):
    """The absolute positions ``W_pos`` [n_ctx, d_model], learned or sinusoidal."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        if spec.positions == "learned":
            self.W_pos = nn.Parameter(torch.zeros(spec.n_ctx, spec.d_model, dtype=spec.torch_dtype))
        else:
            waves = sinusoids(spec.n_ctx, spec.d_model).to(spec.torch_dtype)
            self.register_buffer("W_pos", waves, persistent=False)

    def forward(
        self, embedded: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the code of each position, expanded to every row of the batch."""
        # A copy: a hook may edit it in place, and must not reach the parameter.
        return self.W_pos[: embedded.shape[1]].expand_as(embedded).clone()


def sinusoids(n_ctx: int, d_model: int) -> Float[Tensor, "n_ctx d_model"]:
    """Return sinusoidal position codes in float64."""
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = torch.arange(n_ctx, dtype=torch.float64)[:, None] * 10_000.0 ** (-even / d_model)
    waves = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(start_dim=1)
    return waves[:, :d_model]


class Unembed(nn.Module):
    """The unembedding ``x W_U + b_U`` with ``W_U`` [d_model, d_out]."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        dtype = spec.torch_dtype
        self.W_U = nn.Parameter(torch.zeros(spec.d_model, spec.d_out, dtype=dtype))
        self.b_U = nn.Parameter(torch.zeros(spec.d_out, dtype=dtype))

    def forward(
        self, resid: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos d_out"]:
        """Return the model's output at every position ``[batch, pos, d_out]``."""
        return resid @ self.W_U + self.b_U


class TiedUnembed(nn.Module):
    """The unembedding ``x W_Eᵀ + b_U``, whose weight is the embedding's and stored there."""

    embed: Embed

    def __init__(self, spec: TransformerSpec, embed: Embed) -> None:
        super().__init__()
        object.__setattr__(self, "embed", embed)  # not a submodule: W_E is listed once
        self.b_U = nn.Parameter(torch.zeros(spec.d_out, dtype=spec.torch_dtype))

    @property
    def W_U(self) -> Float[Tensor, "d_model d_out"]:
        """The embedding matrix, transposed."""
        return self.embed.W_E.T

    def forward(
        self, resid: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "batch pos d_out"]:
        """Return the model's output at every position ``[batch, pos, d_out]``."""
        return resid @ self.W_U + self.b_U


_STACKED = {
    **dict.fromkeys(("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"), "attn"),
    **dict.fromkeys(("W_in", "W_out", "b_in", "b_out"), "mlp"),
}


class WeightStacks:
    """A mixin that gives a model's weights under TransformerLens' names.

    These are ``W_E``, ``W_pos``, ``W_U``, ``b_U``, and the blocks' weights stacked over layers,
    such as ``W_Q``. The model must have ``blocks``, ``embed``, ``pos_embed``, ``ln_final`` and
    ``unembed``.
    """

    blocks: Any
    embed: Any
    pos_embed: Any
    ln_final: Any
    unembed: Any

    def __getattr__(self, name: str) -> Any:
        """Return ``W_Q`` … ``b_out`` stacked over layers; look up other names as
        ``torch.nn.Module`` does."""
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
            AttributeError: if the model has no absolute positions.
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
        """Return the sum of the output biases written before ``layer``.

        Args:
            layer: The layer.
            mlp_input: Whether to include the bias of this layer's attention.
            include_mlp_biases: Whether to include the biases of FFNs.
        """
        total = torch.zeros_like(self.embed.W_E[0])
        for block in self.blocks[: layer + 1 if mlp_input else layer]:
            total = total + block.attn.b_O
        for block in self.blocks[:layer]:
            if include_mlp_biases and block.mlp is not None:
                total = total + block.mlp.b_out
        return total

    def tokens_to_residual_directions(self, tokens: int | Tensor) -> Float[Tensor, "... d_model"]:
        """Return the residual-stream directions of output tokens, with the final norm's gain folded
        in."""
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


Residual = Float[Tensor, "batch pos d_model"]


class Block(nn.Module):
    """One block: attention, then FFN, each after a pre-norm and added to (or replacing) its
    input."""

    hook_out_is_single_residual_stream = True
    """TransformerLens reads this: the block's output is a single residual stream."""

    def __init__(self, spec: TransformerSpec, layer: int, cfg: Any) -> None:
        super().__init__()
        self.residual, self.cfg = spec.residual, cfg
        self.hook_resid_pre, self.hook_resid_mid = HookPoint(), HookPoint()
        self.hook_resid_post, self.hook_attn_out = HookPoint(), HookPoint()
        self.ln1 = Norm(spec)
        self.attn = Attention(spec, layer, cfg)
        self.mlp: FFN | None = None
        if any(spec.ffn_widths):
            widths = spec.ffn_widths[layer]
            self.ln2 = Norm(spec)
            self.mlp = FFN(spec, widths, max(w[-1] for w in spec.ffn_widths if w))
            self.hook_mlp_in, self.hook_mlp_out = HookPoint(), HookPoint()

    def forward(self, resid_pre: Residual) -> Residual:
        """Return the residual stream after the block."""
        resid = self.hook_resid_pre(resid_pre)
        attn_out = self.hook_attn_out(self.attn(resid, self.ln1))
        resid = self.hook_resid_mid(resid + attn_out if self.residual else attn_out)
        if self.mlp is not None:
            # A copy: what a hook changes in place is what the FFN reads, not the stream.
            mlp_in = self.hook_mlp_in(resid.clone()) if self.cfg.use_hook_mlp_in else resid
            mlp_out = self.hook_mlp_out(self.mlp(self.ln2(mlp_in)))
            resid = resid + mlp_out if self.residual else mlp_out
        out: Residual = self.hook_resid_post(resid)
        return out


class SequenceTransformer(WeightStacks, HookedModule):
    """A transformer built from a :class:`~interp.models.spec.TransformerSpec`.

    Args:
        spec: Sizes and options.
        seed: Seed of the initial weights; the same seed gives the same weights.

    Attributes:
        cfg: TransformerLens' configuration of the same model. Set ``cfg.use_split_qkv_input`` or
            ``cfg.use_hook_mlp_in`` (or call the setters) to make those hooks fire.
    """

    def __init__(self, spec: TransformerSpec, *, seed: int = 0) -> None:
        super().__init__()
        rule, advice = "must be a TransformerSpec", "TransformerSpec(**options) makes one"
        refuse_unless(isinstance(spec, TransformerSpec), "spec", rule, spec, advice)
        self.spec = spec
        self.cfg = lens_config(spec)
        self.embed = Embed(spec)
        self.hook_embed = HookPoint()
        self.pos_embed: PosEmbed | None = None
        if spec.positions in ("learned", "sinusoidal"):
            self.pos_embed = PosEmbed(spec)
        self.input_ffn: FFN | None = None
        if spec.input_ffn:
            self.hook_input_ffn_in = HookPoint()
            self.input_ffn = FFN(spec, spec.input_ffn, spec.input_ffn[-1])
        elif self.pos_embed is not None:
            self.hook_pos_embed = HookPoint()
        self.blocks = nn.ModuleList(Block(spec, i, self.cfg) for i in range(spec.n_layers))
        self.ln_final = Norm(spec, active=spec.norm_final)
        tied = spec.tied_unembedding
        self.unembed = TiedUnembed(spec, self.embed) if tied else Unembed(spec)
        initialize(self, seed)
        self.setup()
        self.eval()

    def forward(
        self, inputs: Tensor, stop_at_layer: int | None = None
    ) -> Float[Tensor, "batch pos d_out"] | Residual:
        """Return the output, or the residual stream that enters layer ``stop_at_layer``.

        Args:
            inputs: ``[batch, pos, d_in]`` real values or ``[batch, pos]`` token ids, as the spec
                says.
            stop_at_layer: The layer to stop before; the result is then ``[batch, pos, d_model]``.

        Raises:
            ArgumentError: if the inputs do not fit the spec.
        """
        self._check_inputs(inputs)
        resid = self._enter(inputs)
        for block in self.blocks[:stop_at_layer]:
            resid = block(resid)
        if stop_at_layer is not None:
            return resid
        output: Tensor = self.unembed(self.ln_final(resid))
        return output

    def set_use_attn_result(self, use: bool) -> None:
        """Fire ``attn.hook_result`` in every run (it also fires if a function is attached to
        it)."""
        self.cfg.use_attn_result = use

    def set_use_split_qkv_input(self, use: bool) -> None:
        """Give each head its own copy of the residual stream, with hooks."""
        self.cfg.use_split_qkv_input = use

    def set_use_hook_mlp_in(self, use: bool) -> None:
        """Fire ``hook_mlp_in``, the FFN's own copy of the residual stream."""
        self.cfg.use_hook_mlp_in = use

    def to_tokens(self, tokens: Tensor, **_: Any) -> Int[Tensor, "batch pos"]:
        """Return token tensors unchanged, as ``detect_head`` needs; there is no tokenizer.

        Raises:
            ArgumentError: if the argument is no tensor of token ids.
        """
        good = isinstance(tokens, Tensor) and not tokens.is_floating_point()
        rule, advice = "must be a tensor of token ids", "these models have no tokenizer"
        need("SequenceTransformer.to_tokens", good, "tokens", rule, type(tokens).__name__, advice)
        return tokens if tokens.ndim == 2 else tokens[None]

    def to_single_token(self, token: int) -> int:
        """Return the token id unchanged; there is no tokenizer."""
        return int(token)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SequenceTransformer:
        """Update ``cfg``, which TransformerLens reads, when ``to``, ``double`` … change the
        parameters."""
        super()._apply(fn, recurse)
        self.cfg.device, self.cfg.dtype = str(self.W_E.device), self.W_E.dtype
        return self

    def _enter(self, inputs: Tensor) -> Residual:
        embedded: Tensor = self.embed(inputs)
        if self.input_ffn is not None:
            embedded = embedded if self.pos_embed is None else embedded + self.pos_embed(embedded)
            embedded = self.hook_input_ffn_in(embedded)
            out = self.input_ffn(embedded)
            entered: Tensor = self.hook_embed(embedded + out if self.spec.residual else out)
            return entered
        embedded = self.hook_embed(embedded)
        if self.pos_embed is None:
            return embedded
        return embedded + self.hook_pos_embed(self.pos_embed(embedded))

    def _check_inputs(self, inputs: Tensor) -> None:
        spec, problems = self.spec, Problems("SequenceTransformer")
        shape = tuple(inputs.shape)
        if spec.input == "real":
            good = inputs.ndim == 3 and shape[-1] == spec.d_in and inputs.is_floating_point()
            rule = f"must be real [batch, pos, {spec.d_in}]"
        else:
            integer = not (inputs.is_floating_point() or inputs.dtype == torch.bool)
            good = inputs.ndim == 2 and integer
            rule = "must be token ids [batch, pos]"
        problems.need(good, "inputs", rule, (shape, str(inputs.dtype)), "reshape or convert them")
        if inputs.ndim >= 2:
            rule, advice = f"must have at most n_ctx = {spec.n_ctx} positions", "shorten them"
            problems.need(shape[1] <= spec.n_ctx, "inputs", rule, shape[1], advice)
        problems.raise_if_any()


def lens_config(spec: TransformerSpec) -> SimpleNamespace:
    """Build the object that TransformerLens' tools read as ``model.cfg``.

    Its fields have the names of TransformerLens' own configuration. ``normalization_type`` is None
    for a model without norms. In a model with norms but without a final one, ``final_rms`` is true
    and the scale of ``ln_final`` is 1, so that TransformerLens neither centres nor rescales the
    last residual stream.
    """
    kinds = {"none": None, "layernorm": "LN", "rmsnorm": "RMS"}
    folded = "" if spec.norm_gain or spec.norm == "none" else "Pre"
    kind = kinds[spec.norm]
    return SimpleNamespace(
        d_model=spec.d_model,
        d_head=max(spec.head_widths, default=1),
        n_heads=max(spec.heads, default=1),
        n_layers=spec.n_layers,
        n_ctx=spec.n_ctx,
        d_mlp=max((w[-1] for w in spec.ffn_widths if w), default=0),
        d_vocab=spec.d_in if spec.input == "tokens" else spec.d_out,
        device="cpu",
        attn_only=not any(spec.ffn_widths),
        eps=spec.norm_eps,
        normalization_type=None if kind is None else kind + folded,
        final_rms=spec.norm == "rmsnorm" or not spec.norm_final,
        default_prepend_bos=False,
        dtype=spec.torch_dtype,
        act_fn=spec.activation_of(0) if any(spec.ffn_widths) else "relu",
        uses_rms_norm=spec.norm == "rmsnorm",
        use_attn_result=False,
        use_split_qkv_input=False,
        use_hook_mlp_in=False,
        n_key_value_heads=None,
        positional_embedding_type="standard",
        gated_mlp=False,
        layer_norm_folding=False,
        num_experts=None,
        experts_per_token=None,
    )
