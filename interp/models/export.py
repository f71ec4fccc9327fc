"""Export models to Hugging Face's format.

    a pretrained model          its own architecture, weights as they are now, its tokenizer
    a transformer of ours       GPT-2, if GPT-2 can express it (:mod:`interp.models.export`)

``transformers`` and TransformerLens load the folder, and ``huggingface_hub`` uploads it:
``huggingface_hub.upload_folder(folder_path=…, repo_id=…)``. Nothing is uploaded from here.

*A transformer of ours as a GPT-2 folder* is the same function under GPT-2's names.

    config.json           sizes, activation, ε; no tokenizer, since our tokens are numbers
    model.safetensors     GPT-2's names and layouts (matrices are [in, out], Q K V side by side)

The export is exact for what GPT-2 can express: token input, added positions, dot-product scores
with a softmax over the past, LayerNorm with gain and bias before every part and at the end, one
hidden layer or none (an attention-only model gets an FFN of one neuron that is zero). GPT-2 has no
bias on the logits; ours is moved into the final norm's bias if the unembedding can map it there,

    b_final W_U = b_U   (solvable whenever the tokens are fewer than the model is wide).

Anything else is refused with every option that does not fit: an approximation would run and be
wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from einops import rearrange
from torch import Tensor

from interp.errors import ArgumentError, Problems, need
from interp.models.norm import Norm
from interp.models.spec import TransformerSpec
from interp.models.tensor_files import write_tensors
from interp.models.transformer import Block, SequenceTransformer
from interp.output import output_folder
from interp.weights.head_weights.live import RENAMED, WRAPPING, live_source

_ABSORBED = 1e-5  # of the largest logit bias: what the final norm's bias may miss
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu"}
_FIXED: dict[str, Any] = {
    "input": "tokens",
    "score": "dot",
    "lag_bias": "none",
    "normalizer": "softmax",
    "causal": True,
    "mask_self": False,
    "identity_qk": False,
    "identity_ov": False,
    "identity_mask_self": False,
    "norm": "layernorm",
    "norm_gain": True,
    "norm_final": True,
    "residual": True,
    "input_ffn": (),
}


def export_gpt2(
    model: SequenceTransformer, folder: str | Path, *, bos: int = -1, overwrite: bool = False
) -> Path:
    """Write ``model`` as a folder that Hugging Face and TransformerBridge load as a GPT-2.

    Args:
        model: A model that uses only options that GPT-2 has.
        folder: The folder to write; a failure leaves no half-written one.
        bos: Token id that begins a row, recorded in the configuration; −1 for none.
        overwrite: Replace an existing folder of this kind.

    Raises:
        ArgumentError: naming every option that GPT-2 does not have.
        OutputError: if the folder exists and may not be replaced, or cannot be written.
    """
    folder = Path(folder)
    _check(model.spec, bos)
    tensors = _tensors(model)
    with output_folder(folder, overwrite=overwrite, marker="config.json") as draft:
        write_tensors(tensors, draft / "model.safetensors", {"format": "pt"})
        text = json.dumps(_config(model.spec, bos), indent=2, sort_keys=True)
        (draft / "config.json").write_text(text + "\n", encoding="utf-8")
    return folder


def _check(spec: TransformerSpec, bos: int) -> None:
    problems = Problems("export_gpt2")
    need = problems.need
    for name, value in _FIXED.items():
        found = getattr(spec, name)
        need(found == value, name, f"must be {value!r}", found, "GPT-2 has nothing else")
    added = spec.positions in ("learned", "sinusoidal")  # sines are a table like any other
    rule = "must be learned or sinusoidal"
    need(added, "positions", rule, spec.positions, "GPT-2 adds a table of positions")
    need(spec.d_in == spec.d_out, "d_out", "must be d_in", spec.d_out, "GPT-2 predicts its tokens")
    need(spec.n_layers > 0, "n_layers", "must be at least 1", spec.n_layers, "add a layer")
    alike = len(set(spec.heads)) <= 1 and len(set(spec.head_widths)) <= 1
    need(alike, "n_heads", "must be the same in all layers", spec.n_heads, "train another")
    width = max(spec.heads, default=0) * max(spec.head_widths, default=0)
    rule = f"times d_head must be d_model = {spec.d_model}"
    need(width == spec.d_model, "n_heads", rule, width, "GPT-2 splits the width over its heads")
    plain = len(set(spec.ffn_widths)) <= 1 and all(len(w) <= 1 for w in spec.ffn_widths)
    need(plain, "ffn", "must be one hidden layer, alike in all layers", spec.ffn, "or none")
    known = not any(spec.ffn_widths) or spec.activation_of(0) in _ACTIVATIONS
    need(
        known, "activation", f"must be one of {', '.join(_ACTIVATIONS)}", spec.activation, "retrain"
    )
    need(-1 <= bos < spec.d_in, "bos", "must be a token, or −1 for none", bos, "take one of them")
    problems.raise_if_any()


def _config(spec: TransformerSpec, bos: int) -> dict[str, Any]:
    token = None if bos < 0 else bos
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": spec.d_in,
        "n_positions": spec.n_ctx,
        "n_embd": spec.d_model,
        "n_layer": spec.n_layers,
        "n_head": max(spec.heads),
        "n_inner": _hidden_width(spec),
        "activation_function": _ACTIVATIONS[str(spec.activation_of(0))],
        "layer_norm_epsilon": spec.norm_eps,
        "tie_word_embeddings": spec.tied_unembedding,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": token,
        "eos_token_id": token,
        "dtype": spec.dtype,
    }


def _hidden_width(spec: TransformerSpec) -> int:
    return max((widths[0] for widths in spec.ffn_widths if widths), default=1)


@torch.no_grad()
def _tensors(model: SequenceTransformer) -> dict[str, Tensor]:
    found = {
        "transformer.wte.weight": model.W_E,
        "transformer.wpe.weight": model.W_pos,
        "transformer.ln_f.weight": model.ln_final.w,
        "transformer.ln_f.bias": model.ln_final.b + _norm_bias(model),
    }
    if not model.spec.tied_unembedding:
        found["lm_head.weight"] = model.W_U.T
    for layer, block in enumerate(model.blocks):
        mine = _block(block, model.spec)
        found |= {f"transformer.h.{layer}.{name}": tensor for name, tensor in mine.items()}
    return {name: tensor.detach().contiguous().clone() for name, tensor in found.items()}


def _block(block: Block, spec: TransformerSpec) -> dict[str, Tensor]:
    attn, mlp = block.attn, block.mlp
    joined: list[Tensor] = [
        rearrange(w, "h m d -> m (h d)") for w in (attn.W_Q, attn.W_K, attn.W_V)
    ]
    biases = [b.flatten() for b in (attn.b_Q, attn.b_K, attn.b_V)]
    wide, hidden, like = spec.d_model, _hidden_width(spec), attn.W_O
    empty: dict[str, Tensor] = {
        "ln_2.weight": like.new_ones(wide),
        "ln_2.bias": like.new_zeros(wide),
        "mlp.c_fc.weight": like.new_zeros(wide, hidden),
        "mlp.c_fc.bias": like.new_zeros(hidden),
        "mlp.c_proj.weight": like.new_zeros(hidden, wide),
        "mlp.c_proj.bias": like.new_zeros(wide),
    }
    if mlp is not None:
        filled = (*_affine(block.ln2), mlp.W_in, mlp.b_in, mlp.W_out, mlp.b_out)
        empty = dict(zip(empty, filled, strict=True))
    gain, shift = _affine(block.ln1)
    return {
        "ln_1.weight": gain,
        "ln_1.bias": shift,
        "attn.c_attn.weight": torch.cat(joined, dim=1),
        "attn.c_attn.bias": torch.cat(biases),
        "attn.c_proj.weight": rearrange(attn.W_O, "h d m -> (h d) m"),
        "attn.c_proj.bias": attn.b_O,
        **empty,
    }


def _affine(norm: Norm) -> tuple[Tensor, Tensor]:
    """Return the gain and bias of a LayerNorm that has both."""
    return cast("tuple[Tensor, Tensor]", (norm.w, norm.b))


def _norm_bias(model: SequenceTransformer) -> Tensor:
    """Return the bias of the final norm that makes the logits include b_U, by least squares in
    float64."""
    wanted, W_U = model.unembed.b_U.double(), model.W_U.double()
    if not wanted.any():
        return torch.zeros_like(model.ln_final.b)
    shift = torch.linalg.lstsq(W_U.T, wanted[:, None], driver="gelsd").solution[:, 0]
    missed = float((shift @ W_U - wanted).abs().max() / wanted.abs().max())
    rule = "must lie in the span of the unembedding's rows, for GPT-2 has no bias on its logits"
    advice = "train with fewer tokens than d_model, or with b_U kept at 0"
    need("export_gpt2", missed <= _ABSORBED, "b_U", rule, f"a rest of {missed:.2g}", advice)
    return shift.to(model.ln_final.b.dtype)


def export(model: Any, folder: str | Path, *, bos: int = -1, overwrite: bool = False) -> Path:
    """Write a model as a folder that Hugging Face loads, and return the folder.

    Args:
        model: A model from ``pl.load``, a ``TransformerBridge``, or a transformer of ours.
        folder: The folder to write; a failure leaves no half-written one.
        bos: The token id that begins a row of a transformer of ours; −1 for none. Other models know
            theirs.
        overwrite: Whether to replace an existing folder of this kind.

    Raises:
        ArgumentError: if the model has no such format, naming every option that GPT-2 lacks.
        OutputError: if the folder exists and may not be replaced, or cannot be written.
    """
    if isinstance(model, SequenceTransformer):
        return export_gpt2(model, folder, bos=bos, overwrite=overwrite)
    hugging: Any = getattr(model, "original_model", None)
    if not hasattr(hugging, "config"):
        raise ArgumentError(
            f"model must have a Hugging Face format, got a {type(model).__name__}: keep it with "
            "save_checkpoint, or as it was saved"
        )
    tensors = _loaded_tensors(model, hugging)
    tokenizer = getattr(getattr(model, "card", None), "tokenizer", None)
    folder = Path(folder)
    with output_folder(folder, overwrite=overwrite, marker="config.json") as draft:
        write_tensors(tensors, draft / "model.safetensors", {"format": "pt"})
        hugging.config.save_pretrained(draft)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)
    return folder


def _loaded_tensors(model: Any, hugging: Any) -> dict[str, torch.Tensor]:
    """Return the model's tensors under the names of its architecture, which must all be there."""
    files = live_source(model).files
    saved = RENAMED.get(hugging.config.model_type, {})
    with torch.device("meta"):
        plain = type(hugging)(hugging.config)
    wanted = {saved.get(name, name): one.dtype for name, one in plain.named_parameters()}
    beside = _beside(hugging, plain)
    if lacking := sorted(set(wanted) - set(files.names)):
        raise ArgumentError(
            f"model must have every tensor of a {type(hugging).__name__}, got one in which "
            f"{len(lacking)} go by other names, first {lacking[0]!r}: export the files it came from"
        )
    return beside | {name: files.read(name, dtype).contiguous() for name, dtype in wanted.items()}


def _beside(hugging: Any, plain: Any) -> dict[str, torch.Tensor]:
    """Return what is saved beside the parameters: buffers, and an unembedding that is called tied
    but has values of its own."""
    each = (*hugging.named_parameters(), *hugging.named_buffers())  # of tied ones the first
    live = {name.replace(WRAPPING, ""): tensor for name, tensor in each}
    beside = set(plain.state_dict()) - {name for name, _ in plain.named_parameters()}
    kept = sorted(beside & set(live))
    return {name: live[name].detach().cpu().clone().contiguous() for name in kept}
