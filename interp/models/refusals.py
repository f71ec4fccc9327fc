"""The reason why a pretrained model is not run, from its config.json.

    kind                  what config.json states
    quantised             quantization_config
    no head, other head   the class: a body, a classifier, a reward model …
    encoder–decoder       is_encoder_decoder
    encoder               a class that ends in EncoderModel; a masked language model's type without
                          is_decoder
    not attention         layer types other than attention; sizes of a state-space model
    latent attention      kv_lora_rank
    norms after           the type, or do_layer_norm_before

The first entry that fits is the reason. Other reasons (no wrapping in TransformerLens, hooks that
carry something else, tensors that are not read) are found when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

_HEADS = ("Classification", "QuestionAnswering", "MultipleChoice")
"""Endings of transformers class names whose output head does not predict tokens."""

_LAYER_TYPES = ("layer_types", "layers_block_type", "block_types")
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
_STATE = ("state_size", "ssm_state_size", "mamba_d_state", "mamba_d_ssm", "lru_width")
"""Configuration entries that give the size of a recurrent state. A model that has one does not
carry information between positions by attention alone."""
_RECURRENT = {"rwkv", "xlstm"}

_NORMS_AFTER = {
    "albert", "bart", "bert", "bert-generation", "big_bird", "blenderbot-small", "camembert",
    "convbert", "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra", "ernie",
    "ibert", "layoutlm", "longformer", "luke", "marian", "mobilebert", "mpnet", "mra", "mvp",
    "nystromformer", "openai-gpt", "plbart", "prophetnet", "rembert", "roberta", "roc_bert",
    "roformer", "squeezebert", "tapas", "xlm", "xlm-roberta", "xlnet", "yoso",
}  # fmt: skip
"""Model types whose layers end with a norm. Their residual stream is therefore not the sum of what
the layers write."""


@dataclass(frozen=True)
class Refusal:
    """A kind of model that prooflens refuses to run.

    Attributes:
        name: A name for the kind.
        reason: Template of the message's text after the model's name; ``{model}`` stands for the
            model's class and ``{found}`` for the result of ``found``.
        found: A function from the configuration to a text that says what in it shows that the model
            is of this kind; the text is empty if the model is not.
    """

    name: str
    reason: str
    found: Callable[[Config], str]


def refusal(config: Config) -> str:
    """Return why a model of this configuration is not run; empty if no reason is known."""
    for one in REFUSALS:
        if found := one.found(config):
            return one.reason.format(model=_class(config), found=found)
    return ""


def stated_class(config: Config) -> str:
    """Return the class that wrote the weights; empty if it is not stated."""
    stated = config.get("architectures")
    return str(stated[0]) if isinstance(stated, list) and stated else ""


def _class(config: Config) -> str:
    name = stated_class(config) or str(config.get("model_type", "model"))
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def _text(config: Config) -> Config:
    """Return the configuration of the language model inside a multimodal model."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def _quantisation(config: Config) -> str:
    given = config.get("quantization_config")
    if not isinstance(given, Mapping):
        return ""
    return str(given.get("quant_method", "an unnamed method"))


def _other_head(config: Config) -> str:
    name = stated_class(config)
    return name if name.endswith(_HEADS) or "Reward" in name else ""


def _no_head(config: Config) -> str:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_MAPPING_NAMES,
    )

    name = stated_class(config)
    bodies = {one for given in MODEL_MAPPING_NAMES.values() for one in _each(given)}
    headed = name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() or not name.endswith("Model")
    return name if name in bodies and not headed else ""


def _each(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _encoder_decoder(config: Config) -> str:
    return "stated" if config.get("is_encoder_decoder") is True else ""


def _encoder(config: Config) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    masked = config.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    looks_back = config.get("is_decoder") is True or config.get("causal") is True
    both_ways = (masked and not looks_back) or stated_class(config).endswith("EncoderModel")
    if not both_ways:
        return ""
    return " with norms after each sublayer," if _norms_after(config) else ","


def _not_attention(config: Config) -> str:
    text = _text(config)
    for key in _LAYER_TYPES:
        if isinstance(kinds := text.get(key), list | tuple):
            return ", ".join(sorted({str(kind) for kind in kinds} - _ATTENTION))
    if text.get("model_type") in _RECURRENT:
        return str(text["model_type"])
    return next((key for key in _STATE if text.get(key)), "")


def _latent(config: Config) -> str:
    return "kv_lora_rank" if _text(config).get("kv_lora_rank") else ""


def _norms_after(config: Config) -> str:
    text = _text(config)
    stated = text.get("do_layer_norm_before") is False
    return "stated" if stated or text.get("model_type") in _NORMS_AFTER else ""


_ALONE = "and only language models are run (weights alone: prooflens weights)"

REFUSALS = (
    Refusal(
        "quantised",
        "is quantised by {found}: dequantise it first, and save it in float32, float16 or bfloat16",
        _quantisation,
    ),
    Refusal(
        "encoder-decoder",
        "is {model}: an encoder and a decoder that reads it, not a decoder alone",
        _encoder_decoder,
    ),
    Refusal(
        "encoder",
        "is {model}: an encoder{found} not a decoder, since tokens see those after them",
        _encoder,
    ),
    Refusal(
        "other head",
        f"is {{model}}: it has no trained map to next tokens, {_ALONE}",
        _other_head,
    ),
    Refusal("no head", f"is {{model}}: it has no map to next tokens, {_ALONE}", _no_head),
    Refusal(
        "not attention",
        "is {model}: it has layers that are not attention alone ({found}), which heads do not "
        "describe",
        _not_attention,
    ),
    Refusal(
        "latent attention",
        "is {model}: its keys and values are made of one short vector ({found}), which hooks do "
        "not show head by head",
        _latent,
    ),
    Refusal(
        "norms after",
        "is {model}: a decoder with norms after each sublayer, whose stream is no sum of what its "
        "parts write",
        _norms_after,
    ),
)
"""All reasons for which a model is refused, in the order in which they are tried."""
