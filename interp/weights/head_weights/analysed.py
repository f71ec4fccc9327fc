"""Say in one line what is analysed: the model that the numbers are of, and what was left out.

    LlamaForCausalLM; float32 from bfloat16; unembedding of its own; RMSNorm; logits × 0.25;
    left out: vision_tower (26 tensors)

The line is made from what is stated and stored (config.json, the files' headers), not from a name.
A scale that the line does not list is still applied if transformers applies it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from interp.weights.head_weights.gguf_files import SUFFIX, origin
from interp.weights.head_weights.layouts import FAMILIES
from interp.weights.head_weights.source import TensorSource

TOWERS = frozenset({
    "vision_tower", "vision_model", "vision_encoder", "visual", "audio_tower", "audio_model",
    "multi_modal_projector",
})  # fmt: skip
"""Names of the vision and audio parts of multimodal models. Their layers are named like those of
the text model, and must not be taken for them."""
_UNEMBEDDINGS = ("lm_head.weight", "embed_out.weight", "decoder.weight")
"""Names of the unembedding matrix that are tried for model types that have no entry in the table of
layouts."""
_NORMS = {
    "rms_norm_eps": "RMSNorm", "layer_norm_eps": "LayerNorm", "layer_norm_epsilon": "LayerNorm",
    "norm_epsilon": "LayerNorm", "norm_eps": "a norm",
}  # fmt: skip
_NORMED = {"opt": "LayerNorm", "bloom": "LayerNorm", "mpt": "LayerNorm", "olmo": "LayerNorm"}
_SCALES = {
    "embedding_multiplier": "embeddings × {}", "residual_multiplier": "what parts write × {}",
    "attention_multiplier": "scores × {}", "logit_scale": "logits × {}",
    "logits_scaling": "logits ÷ {}", "attn_logit_softcapping": "scores capped at {}",
    "final_logit_softcapping": "logits capped at {}", "lm_head_multiplier": "logits × {}",
}  # fmt: skip
_SCALED = ("gemma", "vaultgemma")  # begins a type whose embeddings enter times √d_model
_FORMATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
            "F8_E4M3": "float8", "F8_E5M2": "float8"}  # fmt: skip


def names_of(source: TensorSource, tensor: str) -> list[str]:
    """Return the names in a checkpoint of a tensor of its text model, with or without a prefix.

    Tensors of vision or audio towers are not among them.
    """
    return [
        name
        for name in source.files.names
        if (name == tensor or name.endswith("." + tensor)) and not TOWERS & {*name.split(".")}
    ]


def describe_model(source: TensorSource, *, run_in: str = "") -> str:
    """Describe in one line the model whose weights are analysed: its class, number format, whether
    its embeddings are tied, its norm and scales, and what else the checkpoint holds.

    Args:
        source: The opened checkpoint.
        run_in: The number format that the model is run in; empty if it is not run.
    """
    if source.description is not None:
        return _own(source.description, run_in)
    config = source.config
    text = {**config, **(config.get("text_config") or {})}
    stated = config.get("architectures")
    named = str(
        stated[0] if isinstance(stated, list) and stated else config.get("model_type", "a model")
    )
    made_of = origin(source.folder) if source.folder is not None else {}
    stored = _gguf_summary(made_of) if made_of else _file_formats(source)
    form = f"{run_in} from {stored}" if run_in and stored not in ("", run_in) else stored or run_in
    parts = [named, form, _tying_note(source, text), *_norm(text), *_scales(text)]
    if source.merged is not None:
        parts.append(source.merged[1])
    if left := list(_left_out(source, packed=bool(made_of))):
        parts.append(f"left out: {', '.join(left)}")
    return "; ".join(filter(None, parts))


def _own(description: Mapping[str, Any], run_in: str) -> str:
    spec: Mapping[str, Any] = description.get("spec") or {}
    stored = str(spec.get("dtype", ""))
    form = f"{run_in} from {stored}" if run_in and run_in != stored else stored
    tied = "unembedding tied" if spec.get("tied_unembedding") else "unembedding of its own"
    norm = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}.get(str(spec.get("norm")), "no norm")
    return "; ".join(filter(None, ("SequenceTransformer", form, tied, norm)))


def _file_formats(source: TensorSource) -> str:
    """Return the number formats of the files' tensors, the most frequent first; empty if there are
    none."""
    formats = getattr(source.files, "formats", list)
    counts = Counter(_FORMATS.get(one, one) for one in formats())
    return " and ".join(name for name, _ in counts.most_common())


def _gguf_summary(made_of: Mapping[str, Any]) -> str:
    """Return a GGUF file's quantisation, the formats of its tensors by size, and its licence."""
    licence = made_of["licence"] or "of no stated licence"
    formats = ", ".join(made_of["formats"])
    return f"GGUF {made_of['quantisation']} ({formats}; {licence}), dequantised".replace("  ", " ")


def _tying_note(source: TensorSource, config: Mapping[str, Any]) -> str:
    """Return a note on whether the unembedding is tied; empty if nothing says so."""
    family = FAMILIES.get(str(source.config.get("model_type")))
    called = _UNEMBEDDINGS if family is None else (family.tokens[1],)
    has_own = any(names_of(source, one) for one in called)
    stated = config.get("tie_word_embeddings")
    if has_own:
        return "unembedding of its own" + ", though it is called tied" * (stated is True)
    if stated is False:
        return "its unembedding is not in the files"
    return "unembedding tied" if stated is True or family is not None else ""


def _norm(config: Mapping[str, Any]) -> Iterator[str]:
    kind = str(config.get("model_type"))
    found = _NORMED.get(kind) or next((n for key, n in _NORMS.items() if key in config), "")
    if kind.startswith("cohere"):
        found = "LayerNorm"
    yield found


def _scales(config: Mapping[str, Any]) -> Iterator[str]:
    if str(config.get("model_type")).startswith(_SCALED):
        yield "embeddings × √d_model"
    for key, words in _SCALES.items():
        value = config.get(key)
        if isinstance(value, int | float) and value not in (0, 1):
            yield words.format(f"{value:g}")


def _left_out(source: TensorSource, *, packed: bool) -> Iterator[str]:
    towers = Counter(
        part for name in source.files.names for part in name.split(".") if part in TOWERS
    )
    yield from (f"{part} ({count} tensors)" for part, count in sorted(towers.items()))
    folder = Path(source.name)
    if folder.is_dir():
        if source.merged is None or not source.merged[0].samefile(folder):
            yield from (f.name for f in sorted(folder.glob("adapter_model*")) if f.is_file())
        if not packed:
            yield from (f.name for f in sorted(folder.glob(f"*{SUFFIX}")))
