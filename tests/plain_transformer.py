"""The transformer computed from its weights, without the model's code or any hook.

``direct`` lets a test edit any activation on the way, under TransformerLens' names: what a tool
reports can be compared with what ``direct`` gives.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

BASE = {"d_in": 7, "d_out": 5, "n_ctx": 9, "d_model": 6, "n_layers": 2, "n_heads": 2, "d_head": 3,
        "ffn": (4,), "dtype": "float64"}  # fmt: skip

VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "identity": {"identity_qk": True, "identity_ov": True, "identity_multiplier": 2.0,
                 "norm": "layernorm"},
    "layernorm": {"norm": "layernorm", "positions": "learned"},
    "layernorm without gain": {"norm": "layernorm", "norm_gain": False, "ffn": ()},
    "layernorm, final off": {"norm": "layernorm", "norm_final": False},
    "rmsnorm": {"norm": "rmsnorm", "tied_unembedding": True, "d_out": 7},
    "rmsnorm without gain, final off": {"norm": "rmsnorm", "norm_gain": False, "norm_final": False},
    "uneven": {"n_heads": (3, 1), "d_head": (2, 4), "ffn": ((5,), (3,)), "norm": "layernorm"},
    "a layer without FFN": {"ffn": ((), (6,)), "n_heads": (0, 2)},
    "input FFN": {"input_ffn": (5,), "positions": "learned"},
    "deeper FFN": {"ffn": (5, 4), "activation": ("relu", "gelu")},
    "attention only": {"ffn": (), "identity_ov": True},
    "DPF": {"score": "none", "lag_bias": "lin"},
    "no normaliser": {"score": "none", "lag_bias": "log", "normalizer": "none"},
    "bidirectional": {"causal": False},
}  # fmt: skip
Edit = Callable[[str, Tensor], Tensor]


def build(name: str) -> SequenceTransformer:
    """A variant with every parameter moved off its start; what a layer lacks stays zero."""
    model = SequenceTransformer(TransformerSpec(**{**BASE, **VARIANTS[name]}), seed=1)  # type: ignore[arg-type]
    spec, generator = model.spec, torch.Generator().manual_seed(2)

    def move(parameter: Tensor) -> None:
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=generator).double()

    for layer, block in enumerate(model.blocks):
        heads, width = spec.heads[layer], spec.head_widths[layer]
        for key in ("b_Q", "b_K", "b_V"):
            if hasattr(block.attn, key):
                move(getattr(block.attn, key)[:heads, :width])
        for parameter in (block.attn.b_O, *block.attn.terms.parameters()):
            move(parameter) if heads else None
        if spec.identity_ov:
            move(block.attn.b)
        if block.mlp is not None and spec.ffn_widths[layer]:
            move(block.mlp.b_in[: spec.ffn_widths[layer][-1]])
            move(block.mlp.b_out)
    for norm in (model.ln_final, *(b.ln1 for b in model.blocks)):
        for parameter in norm.parameters():
            move(parameter)
    move(model.unembed.b_U)
    return model


def tokens(seed: int, batch: int = 2, n: int = 5) -> Tensor:
    return torch.randint(BASE["d_in"], (batch, n), generator=torch.Generator().manual_seed(seed))  # type: ignore[call-overload]


def apply_norm(norm: Any, spec: TransformerSpec, x: Tensor, active: bool = True) -> Tensor:
    if spec.norm == "none" or not active:
        return x
    if spec.norm == "layernorm":
        x = F.layer_norm(x, x.shape[-1:], eps=spec.norm_eps)
    else:
        x = x * (x.square().mean(-1, keepdim=True) + spec.norm_eps).rsqrt()
    x = x if norm.w is None else x * norm.w
    return x if norm.b is None else x + norm.b


def pointwise(ffn: Any, x: Tensor, edit: Edit, at: str = "") -> Tensor:
    acts = {"relu": F.relu, "gelu": F.gelu}
    for hidden in ffn.hidden:
        x = acts[hidden.kind](x @ hidden.W + hidden.b)
    return (
        edit(at + "mlp.hook_post", acts[ffn.kind](x @ ffn.W_in + ffn.b_in)) @ ffn.W_out + ffn.b_out
    )


def attend(model: SequenceTransformer, layer: int, resid: Tensor, edit: Edit) -> Tensor:
    """[batch, pos, head, d_model]: what each head writes."""
    spec, block, at = model.spec, model.blocks[layer], f"blocks.{layer}.attn."
    attn, heads, n = block.attn, block.attn.W_V.shape[0], resid.shape[1]
    copies = resid[:, :, None].expand(-1, -1, heads, -1)
    xq, xk, xv = (apply_norm(block.ln1, spec, edit(f"{at}hook_{c}_input", copies)) for c in "qkv")
    lag = torch.arange(n)[:, None] - torch.arange(n)
    scores = torch.zeros(len(resid), heads, n, n, dtype=torch.float64)
    if spec.score == "dot":
        q = edit(at + "hook_q", torch.einsum("bphm,hmd->bphd", xq, attn.W_Q) + attn.b_Q)
        k = edit(at + "hook_k", torch.einsum("bphm,hmd->bphd", xk, attn.W_K) + attn.b_K)
        scores = scores + torch.einsum("bqhd,bkhd->bhqk", q, k) / sqrt(spec.head_widths[layer])
    if spec.identity_qk:
        a = spec.identity_multiplier * attn.terms["identity"].a
        scores = scores + torch.einsum("bqhm,bkhm,h->bhqk", xq, xk, a)
    if spec.lag_bias in ("lin", "log"):
        phi = lag.abs().double() if spec.lag_bias == "lin" else lag.abs().double().log1p()
        scores = scores - attn.terms["lag"].p.abs()[:, None, None] * phi
    if spec.causal:
        scores = scores.masked_fill(lag < 0, -torch.inf)
    softmax = spec.normalizer == "softmax"
    pattern = edit(at + "hook_pattern", scores.softmax(-1) if softmax else scores.exp())
    v = edit(at + "hook_v", torch.einsum("bphm,hmd->bphd", xv, attn.W_V) + attn.b_V)
    z = edit(at + "hook_z", torch.einsum("bhqk,bkhd->bqhd", pattern, v))
    result = torch.einsum("bqhd,hdm->bqhm", z, attn.W_O)
    if spec.identity_ov:
        b = spec.identity_multiplier * attn.b * (torch.arange(heads) < spec.heads[layer])
        result = result + torch.einsum("bhqk,bkhm,h->bqhm", pattern, xv, b)
    return edit(at + "hook_result", result)


def direct(
    model: SequenceTransformer, inputs: Tensor, edit: Edit = lambda name, x: x
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output and every activation (after ``edit``), from the weights alone."""
    spec, seen = model.spec, {}

    def at(name: str, x: Tensor) -> Tensor:
        seen[name] = edit(name, x)
        return seen[name]

    x = model.embed.W_E[inputs] if spec.input == "tokens" else inputs @ model.embed.W_E
    position = model.pos_embed.W_pos[: x.shape[1]] if model.pos_embed is not None else 0
    if model.input_ffn is not None:
        x = x + position
        x = at("hook_embed", x + pointwise(model.input_ffn, x, lambda name, y: y))
    else:
        x = at("hook_embed", x) + position
    for layer, block in enumerate(model.blocks):
        name = f"blocks.{layer}."
        x = at(name + "hook_resid_pre", x)
        out = at(name + "hook_attn_out", attend(model, layer, x, at).sum(2) + block.attn.b_O)
        x = at(name + "hook_resid_mid", x + out)
        if block.mlp is not None:
            y = apply_norm(block.ln2, spec, at(name + "hook_mlp_in", x))
            x = x + at(name + "hook_mlp_out", pointwise(block.mlp, y, at, name))
        x = at(name + "hook_resid_post", x)
    return apply_norm(model.ln_final, spec, x, spec.norm_final) @ model.W_U + model.b_U, seen


def activations(model: SequenceTransformer, inputs: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return direct(model, inputs)[1]


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        got.double(), expected.double(), rtol=tolerance, atol=tolerance, check_device=False
    )


def patched_metric(model: SequenceTransformer, corrupt: Tensor, clean: dict[str, Tensor], name: str,
            *at: object) -> Tensor:  # fmt: skip
    """The metric when the entries ``at`` of one activation take their clean values."""

    def edit(here: str, x: Tensor) -> Tensor:
        if here != name:
            return x
        x = x.clone()
        x[at] = clean[name][at]
        return x

    return metric(direct(model, corrupt, edit)[0])


def metric(output: Tensor) -> Tensor:
    return (output[:, -1, 1] - output[:, -1, 2]).mean()
