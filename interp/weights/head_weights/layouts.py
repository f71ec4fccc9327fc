"""The layouts of known families: one table of names, patterns and facts.

A row says by which tensor of the first layer a family is recognised, which tensors of a layer hold
the factors and how their axes are arranged, which entries of ``config.json`` are the sizes, which
norm precedes attention, how rotary positions work, and what a reader of the numbers should know.
What depends on the configuration in other ways is a function of the finished layout: Falcon's three
orders of one matrix, Phi-3's slots, OPT's norm that may come after attention.

A new family is a row here and a case in ``analyses/benchmarks/family_cases.py``, whose name goes
into ``CHANGED`` of ``tests/interp/weights/test_head_weights_families.py``; a type that transformers
lacks has a test there instead, on a Llama's tensors renamed.

Axes: ``h`` query heads, ``g`` key/value heads that they share, ``d`` model width, ``k`` head width,
``p`` matrices side by side, ``s`` slots of a head's width (:mod:`.layout`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from interp.errors import CheckpointError
from interp.weights.head_weights.config import count, rope_of
from interp.weights.head_weights.layout import HeadSizes, Layout, PartName, Tokens, WeightPart
from interp.weights.head_weights.rope import Rope

Config = Mapping[str, Any]
Parts = dict[PartName, WeightPart]

SINKS = "attention sinks: a head's attention to tokens sums to less than 1, the rest goes to none"
_QK_NORM = (
    "queries and keys are normalised per token before the product: gains are in the QK circuit, "
    "the positive per-token factors are not"
)
_SCALED = "embeddings enter multiplied by √d_model, which scales token-basis circuits only"
_PARALLEL = "parallel block: attention and FFN read the same stream, so no FFN acts between them"
_PLAIN = "its norms have no gains: folding changes nothing"
_AFTER = "no norm before attention: its output is normalised instead (post-norm)"
_FUSED = "query, key and value are stored in one matrix"
_ALIBI = "positions by ALiBi: scores fall with the lag at a slope a head, which no circuit shows"
_NORMED = "embeddings are normalised before the first layer, which token-basis circuits leave out"


def _sliding(config: Config) -> str:
    size, kinds = config.get("sliding_window"), config.get("layer_types") or ()
    some = sum(kind == "sliding_attention" for kind in kinds)
    if not size or not config.get("use_sliding_window", True) or (kinds and not some):
        return ""
    where = f"{some} of {len(kinds)} layers" if kinds else "its layers"
    return f"sliding window: {where} look back {size} positions at most"


def _cap_note(config: Config) -> str:
    words = "scores are soft-capped, which keeps their order: the QK circuit is the one before it"
    return words if config.get("attn_logit_softcapping") else ""


def _clip_note(config: Config) -> str:
    clip = config.get("clip_qkv")
    return f"queries, keys and values are clipped to ±{clip}, which no circuit shows" * bool(clip)


def _parallel(config: Config) -> str:
    return _PARALLEL if config.get("use_parallel_residual") else ""


def _rope_rule(share: float = 1.0, key: str = "") -> Callable[[Config, int], Rope]:
    """Make a rule for rotary positions on a share of a head, read from the entry ``key`` if it is
    there."""
    return lambda config, d_head: rope_of(config, d_head, float(config.get(key) or share))


def _neighbours(config: Config, d_head: int) -> Rope:
    return Rope(width=count(config, "rotary_dim", d_head), neighbours=True)


def _apart(at: str, out: str = "o_proj") -> Parts:
    """Parts of models with separate query, key, value and output matrices, output dimension
    first."""
    return {
        "W_Q": WeightPart(at + "q_proj.weight", "(h k) d -> h d k"),
        "W_K": WeightPart(at + "k_proj.weight", "(g k) d -> g d k"),
        "W_V": WeightPart(at + "v_proj.weight", "(g k) d -> g d k"),
        "W_O": WeightPart(at + out + ".weight", "d (h k) -> h k d"),
        "b_Q": WeightPart(at + "q_proj.bias", "(h k) -> h k"),
        "b_K": WeightPart(at + "k_proj.bias", "(g k) -> g k"),
        "b_V": WeightPart(at + "v_proj.bias", "(g k) -> g k"),
        "b_O": WeightPart(at + out + ".bias", "d -> d"),
    }


def _together(matrix: str, rows: str, flat: str, out: str, output: str) -> Parts:
    """Parts of models whose query, key and value are side by side in one matrix, with one bias."""
    weight, bias = matrix + ".weight", matrix + ".bias"
    return {
        "W_Q": WeightPart(weight, rows, 0),
        "W_K": WeightPart(weight, rows, 1),
        "W_V": WeightPart(weight, rows, 2),
        "W_O": WeightPart(out + ".weight", output),
        "b_Q": WeightPart(bias, flat, 0),
        "b_K": WeightPart(bias, flat, 1),
        "b_V": WeightPart(bias, flat, 2),
        "b_O": WeightPart(out + ".bias", "d -> d"),
    }


def _by_head(at: str) -> Parts:
    """Parts of models with one matrix that holds, head by head, its query, key and value."""
    rows, flat = "(h p k) d -> p h d k", "(h p k) -> p h k"
    return _together(at + "query_key_value", rows, flat, at + "dense", "d (h k) -> h k d")


def _norm(at: str, *, bias: bool = True, offset: float = 0.0) -> Parts:
    gain: Parts = {"norm_gain": WeightPart(at + ".weight", "d -> d", offset=offset)}
    return gain | ({"norm_bias": WeightPart(at + ".bias", "d -> d")} if bias else {})


def _qk_norm(queries: str = "k -> 1 k", keys: str = "k -> 1 k", offset: float = 0.0) -> Parts:
    return {
        "q_gain": WeightPart("self_attn.q_norm.weight", queries, offset=offset),
        "k_gain": WeightPart("self_attn.k_norm.weight", keys, offset=offset),
    }


def _out_norm(offset: float = 0.0) -> Parts:
    return {"out_gain": WeightPart("post_attention_layernorm.weight", "d -> d", offset=offset)}


def _opt(config: Config, layout: Layout) -> Layout:
    """Adapt the layout to OPT: its 350M model has the norm after attention and a narrower
    embedding."""
    width = layout.sizes.d_model
    if count(config, "word_embed_proj_dim", width) != width:
        layout = replace(layout, tokens=None)
    if config.get("do_layer_norm_before", True):
        return layout
    parts = {name: part for name, part in layout.parts.items() if "norm" not in name}
    return replace(layout, norm=None, parts=parts)


def _phi3(config: Config, layout: Layout) -> Layout:
    """Adapt the layout to Phi-3: one matrix with all query heads, then all keys, then all
    values."""
    sizes, parts, begin = layout.sizes, dict(layout.parts), 0
    counts = (sizes.n_heads, sizes.n_kv_heads, sizes.n_kv_heads)
    names: tuple[PartName, ...] = ("W_Q", "W_K", "W_V")
    for name, slots in zip(names, counts, strict=True):
        parts[name] = replace(parts[name], slots=(begin, begin + slots))
        begin += slots
    return replace(layout, parts=parts)


def _falcon(config: Config, layout: Layout) -> Layout:
    """Adapt the layout to Falcon's one matrix in its three orders: head by head; all query heads,
    then one key and one value (7B); or, group by group, its query heads, key and value (40B,
    180B)."""
    heads, parts = layout.sizes.n_heads, dict(layout.parts)
    grouped, groups = bool(config.get("new_decoder_architecture")), heads
    matrix, bias = parts["W_Q"].name, parts["b_Q"].name
    if grouped:
        groups = count(config, "num_kv_heads", heads)
        queries = heads // groups
        rows, flat, first = "(g s k) d -> s g d k", "(g s k) -> s g k", (0, queries)
        parts |= {
            "W_Q": WeightPart(matrix, rows, slots=first, then="s g d k -> (g s) d k"),
            "W_K": WeightPart(matrix, rows, queries),
            "W_V": WeightPart(matrix, rows, queries + 1),
            "b_Q": WeightPart(bias, flat, slots=first, then="s g k -> (g s) k"),
            "b_K": WeightPart(bias, flat, queries),
            "b_V": WeightPart(bias, flat, queries + 1),
        }
        if config.get("num_ln_in_parallel_attn") in (None, 2):
            before = parts["norm_gain"].name.replace("input_layernorm.weight", "ln_attn")
            parts |= _norm(before)
    elif config.get("multi_query", True):
        groups = 1
        rows, flat, last = "(s k) d -> s d k", "(s k) -> s k", heads + 1
        slots = {"Q": (0, heads), "K": (heads, last), "V": (last, last + 1)}
        parts |= {
            "W_Q": WeightPart(matrix, rows, slots=slots["Q"]),
            "W_K": WeightPart(matrix, rows, slots=slots["K"]),
            "W_V": WeightPart(matrix, rows, slots=slots["V"]),
            "b_Q": WeightPart(bias, flat, slots=slots["Q"]),
            "b_K": WeightPart(bias, flat, slots=slots["K"]),
            "b_V": WeightPart(bias, flat, slots=slots["V"]),
        }
    alibi = bool(config.get("alibi"))
    side = grouped or bool(config.get("parallel_attn", True))
    return replace(
        layout,
        sizes=replace(layout.sizes, n_kv_heads=groups),
        parts=parts,
        rope=None if alibi else layout.rope,
        notes=(*(_ALIBI,) * alibi, *(_PARALLEL,) * side),
    )


_SIZES = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "head_dim",
)
_WHOLE = _rope_rule()


@dataclass(frozen=True)
class Family:
    """How the models of a family store their attention.

    Attributes:
        mark: A tensor of layer 0 that identifies the family; what precedes it in the tensor's full
            name is the prefix.
        parts: The tensors of a layer that hold the factors, each by its name within the layer:
            ``self_attn.q_proj.weight`` where the mark is ``layers.0.self_attn.q_proj.weight``.
        name: The family's name for readers; the model_type by default.
        attention: The prefix, within the layer, of the names of its attention tensors. Every tensor
            with this prefix must be a part, or the checkpoint is refused.
        norm: The norm before attention whose scale can be folded.
        sizes: The entries of the configuration with the number of layers, query heads, key/value
            heads, the model's width and a head's width. Alternatives are separated by blanks; an
            empty one is computed from the others.
        rope: A function from a configuration and a head's width to the rotary positions; None if
            the family has none.
        tokens: The tensors of the embedding, by its name after the prefix that precedes the mark,
            and of the unembedding, whose name may have that prefix, another or none.
        notes: What a reader should know: texts, or functions from a configuration to a text.
        fitted: A function that adapts the finished layout to a configuration.
    """

    mark: str
    parts: Parts
    name: str = ""
    attention: str = "self_attn."
    norm: Literal["LayerNorm", "RMSNorm"] | None = "RMSNorm"
    sizes: tuple[str, str, str, str, str] = _SIZES
    rope: Callable[[Config, int], Rope] | None = _WHOLE
    tokens: tuple[str, str] = ("embed_tokens.weight", "lm_head.weight")
    notes: tuple[str | Callable[[Config], str], ...] = ()
    fitted: Callable[[Config, Layout], Layout] = lambda config, layout: layout

    def layout(self, config: Config, prefix: str, *, tied: bool, unembedding: str = "") -> Layout:
        """Return the layout of a checkpoint.

        Args:
            config: The model's configuration.
            prefix: What precedes the mark in the tensors' names.
            tied: Whether the unembedding is the embedding.
            unembedding: The unembedding's name in the checkpoint; by default that of the row.

        Raises:
            CheckpointError: if a size is missing or not a positive integer.
        """
        at = prefix + self.mark.partition(".0.")[0] + ".{layer}."
        said = [_stated_entry(config, keys) for keys in self.sizes]
        layers, heads, width = (count(config, said[i]) for i in (0, 1, 3))
        groups = count(config, said[2], heads) if said[2] else heads
        d_head = count(config, said[4], width // heads) if said[4] else width // heads
        notes = (one if isinstance(one, str) else one(config) for one in self.notes)
        embedding, unembeds = self.tokens
        plain = Layout(
            family=self.name or str(config["model_type"]),
            sizes=HeadSizes(layers, heads, groups, width, d_head),
            parts={name: replace(part, name=at + part.name) for name, part in self.parts.items()},
            attention=at + self.attention,
            norm=self.norm,
            rope=None if self.rope is None else self.rope(config, d_head),
            tokens=Tokens.rows(prefix + embedding, unembedding or unembeds, tied=tied),
            notes=tuple(filter(None, notes)),
        )
        return self.fitted(config, plain)


def check_own_keys(config: Config) -> None:
    """Refuse another ``num_key_value_heads`` than heads in a family whose heads share no keys.

    Nothing in these families reads the entry, except for tools that take it for the number of heads
    that share keys.

    Raises:
        CheckpointError: if the entry is stated and is another number.
    """
    family, stated = FAMILIES.get(str(config.get("model_type"))), config.get("num_key_value_heads")
    if family is None or stated is None or family.sizes[2] or family.fitted is _falcon:
        return
    entry = _stated_entry(config, family.sizes[1])
    if stated != config.get(entry):
        raise CheckpointError(
            f"num_key_value_heads in the model's configuration must be {entry}, "
            f"{config.get(entry)}, as heads of {family.name or 'this family'} share no keys, got "
            f"{stated!r}: correct it or leave it out"
        )


def _stated_entry(config: Config, keys: str) -> str:
    """Return the first of some entries that a configuration has, or else the last one."""
    names = keys.split() or [""]
    return next((name for name in names if config.get(name)), names[-1])


_LLAMA = "layers.0.self_attn.q_proj.weight"
_GPT = ("n_layer", "n_head", "", "n_embd", "")
_PLAIN_HEADS = ("num_hidden_layers", "num_attention_heads", "", "hidden_size", "")
_H_TOKENS = ("wte.weight", "lm_head.weight")
_WORDS = ("word_embeddings.weight", "lm_head.weight")
_RMS = _apart("self_attn.") | _norm("input_layernorm", bias=False)
_LAYERED = _apart("self_attn.") | _norm("input_layernorm")
_LLAMA_PARTS = _RMS | _qk_norm()
_GEMMA_PARTS = (
    _apart("self_attn.") | _norm("input_layernorm", bias=False, offset=1.0) | _qk_norm(offset=1.0)
)  # Gemma's norms store 1 + w
_FALCON_PARTS = _by_head("self_attention.") | _norm("input_layernorm")
_PHI3 = "self_attn.qkv_proj.weight"
_SLOTS = WeightPart(_PHI3, "(s k) d -> s d k")

_LLAMAS = Family(_LLAMA, _LLAMA_PARTS, notes=(_sliding,))
_NORMED_LLAMAS = replace(_LLAMAS, notes=(_sliding, _QK_NORM))
_GEMMAS = Family(_LLAMA, _GEMMA_PARTS | _out_norm(1.0), notes=(_SCALED, _cap_note, _sliding))
_NORMED_GEMMAS = replace(_GEMMAS, notes=(*_GEMMAS.notes, _QK_NORM))

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        "h.0.attn.c_attn.weight",
        _together(
            "attn.c_attn", "d (p h k) -> p h d k", "(p h k) -> p h k", "attn.c_proj",
            "(h k) d -> h k d",
        ) | _norm("ln_1"),
        "GPT-2", "attn.", "LayerNorm", _GPT, None, _H_TOKENS,
    ),
    "gpt_neo": Family(
        "h.0.attn.attention.q_proj.weight",
        _apart("attn.attention.", "out_proj") | _norm("ln_1"),
        "GPT-Neo", "attn.", "LayerNorm", ("num_layers", "num_heads", "", "hidden_size", ""), None,
        _H_TOKENS,
    ),
    "gptj": Family(
        "h.0.attn.q_proj.weight",
        _apart("attn.", "out_proj") | _norm("ln_1"),
        "GPT-J", "attn.", "LayerNorm", _GPT, _neighbours, _H_TOKENS,
    ),
    "gpt_neox": Family(
        "layers.0.attention.query_key_value.weight",
        _by_head("attention.") | _norm("input_layernorm"),
        "GPT-NeoX", "attention.", "LayerNorm", _PLAIN_HEADS, _rope_rule(key="rotary_pct"),
        ("embed_in.weight", "embed_out.weight"),
    ),
    "opt": Family(
        _LLAMA,
        _apart("self_attn.", "out_proj") | _norm("self_attn_layer_norm"),
        "OPT", norm="LayerNorm", sizes=_PLAIN_HEADS, rope=None, fitted=_opt,
    ),
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen2_moe"), _LLAMAS),
    **dict.fromkeys(("qwen3", "qwen3_moe"), _NORMED_LLAMAS),
    "olmo": Family(
        _LLAMA, _apart("self_attn.") | _qk_norm(), "OLMo", norm="LayerNorm",
        notes=(_PLAIN, _clip_note),
    ),
    "olmo2": Family(
        _LLAMA,
        _apart("self_attn.") | _qk_norm("(h k) -> h k", "(g k) -> g k") | _out_norm(),
        "OLMo 2", norm=None, notes=(_AFTER, _QK_NORM),
    ),
    "phi": Family(
        _LLAMA, _apart("self_attn.", "dense") | _norm("input_layernorm"),
        "Phi", norm="LayerNorm", rope=_rope_rule(0.5, "partial_rotary_factor"), notes=(_PARALLEL,),
    ),
    "phi3": Family(
        "layers.0." + _PHI3,
        _LLAMA_PARTS | {"W_Q": _SLOTS, "W_K": _SLOTS, "W_V": _SLOTS},
        "Phi-3", rope=_rope_rule(1.0, "partial_rotary_factor"), notes=(_FUSED, _sliding),
        fitted=_phi3,
    ),
    "stablelm": Family(
        _LLAMA, _LAYERED, "StableLM", norm="LayerNorm",
        rope=_rope_rule(0.25, "partial_rotary_factor"), notes=(_parallel,),
    ),
    "falcon": Family(
        "h.0.self_attention.query_key_value.weight", _FALCON_PARTS, "Falcon", "self_attention.",
        "LayerNorm", _PLAIN_HEADS, tokens=_WORDS, fitted=_falcon,
    ),
    "bloom": Family(
        "h.0.self_attention.query_key_value.weight", _FALCON_PARTS, "BLOOM", "self_attention.",
        "LayerNorm",
        ("n_layer num_hidden_layers", "n_head num_attention_heads", "", "hidden_size n_embed", ""),
        None, _WORDS, (_ALIBI, _NORMED),
    ),
    "gpt_oss": Family(
        _LLAMA, _LLAMA_PARTS | {"sinks": WeightPart("self_attn.sinks", "h -> h")}, "gpt-oss",
        notes=(SINKS, _sliding),
    ),
    "gemma": replace(_GEMMAS, parts=_GEMMA_PARTS),
    "gemma2": _GEMMAS,
    **dict.fromkeys(("gemma3", "gemma3_text"), _NORMED_GEMMAS),
}  # fmt: skip
"""``model_type`` → the layout of the weights of this family of models."""


_OWN_NORMS: dict[str, Any] = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}


def own_layout(description: Mapping[str, Any]) -> Layout:
    """Return the layout of a prooflens checkpoint from its ``model.json``.

    Tensors carry TransformerLens' names and stacks. Layers with fewer or narrower heads are padded
    with zeros on disk and trimmed here. A model whose scores use no dot product has no QK circuit;
    the trainable identity scalars a and b (`template` §2.2) give the effective circuits QK+aI and
    OV+bI, with the factor that multiplies them in the model.

    Raises:
        CheckpointError: if the description has no spec, one without the sizes, or another model's.
    """
    spec = description.get("spec")
    if not isinstance(spec, Mapping):
        raise CheckpointError("model.json has no spec: it is not a prooflens checkpoint")
    kind = spec.get("kind", "transformer")
    if kind != "transformer":
        raise CheckpointError(f"a model of kind {kind!r} has no heads: give a transformer")
    for key in {"d_in", "d_out", "n_ctx"} & spec.keys():
        _size(spec, key)
    layers, d_model = _size(spec, "n_layers"), _size(spec, "d_model")
    heads, widths = _by_layer(spec, "n_heads", layers), _by_layer(spec, "d_head", layers)
    most, widest = max(heads, default=1), max(widths, default=1)
    at, scale = "blocks.{layer}.", float(spec.get("identity_multiplier", 1.0))
    parts: dict[PartName, WeightPart] = {
        "W_Q": WeightPart(at + "attn.W_Q", "h d k -> h d k"),
        "W_K": WeightPart(at + "attn.W_K", "h d k -> h d k"),
        "W_V": WeightPart(at + "attn.W_V", "h d k -> h d k"),
        "W_O": WeightPart(at + "attn.W_O", "h k d -> h k d"),
        "b_Q": WeightPart(at + "attn.b_Q", "h k -> h k"),
        "b_K": WeightPart(at + "attn.b_K", "h k -> h k"),
        "b_V": WeightPart(at + "attn.b_V", "h k -> h k"),
        "b_O": WeightPart(at + "attn.b_O", "d -> d"),
        "norm_gain": WeightPart(at + "ln1.w", "d -> d"),
        "norm_bias": WeightPart(at + "ln1.b", "d -> d"),
        "identity_a": WeightPart(at + "attn.terms.identity.a", "h -> h", factor=scale),
        "identity_b": WeightPart(at + "attn.b", "h -> h", factor=scale),
    }
    embedding = WeightPart("embed.W_E", "v d -> v d")
    tied = bool(spec.get("tied_unembedding"))
    unembedding = embedding if tied else WeightPart("unembed.W_U", "d v -> v d")
    return Layout(
        family="prooflens",
        sizes=HeadSizes(layers, most, most, d_model, widest),
        parts=parts,
        norm=_OWN_NORMS.get(str(spec.get("norm"))),
        rope=Rope(width=widest) if spec.get("positions") == "rope" else None,
        tokens=Tokens(embedding, unembedding) if spec.get("input") == "tokens" else None,
        trims=tuple({"h": h, "k": k} for h, k in zip(heads, widths, strict=True)),
        needed=("W_V", "W_O"),
    )


_MOST = {"n_layers": 4096, "n_heads": 1 << 14, "d_model": 1 << 20, "d_head": 1 << 20}
"""Largest values that are accepted for sizes in a layout, beyond those of any existing model. A
larger one is refused before anything is read by it."""


def _size(spec: Mapping[str, Any], key: str) -> int:
    value = spec.get(key)
    most = _MOST.get(key, 1 << 24)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise CheckpointError(
            f"spec.{key} in model.json must be a count up to {most:,}, got {value!r}"
        )
    return value


def _by_layer(spec: Mapping[str, Any], key: str, layers: int) -> list[int]:
    value = spec.get(key)
    if isinstance(value, list) and len(value) == layers:
        return [_size({key: v}, key) for v in value]
    return [_size(spec, key)] * layers
