"""Tiny random checkpoints of many architectures, written as transformers writes the real ones.

A case is a class of transformers, a configuration and, for some, what is done to the files after.
Two layers, four heads, a width of 32 and 64 tokens, wherever the architecture allows; a window, a
softcap, a scale or a bias that an architecture may have is on, so that leaving it out shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

__all__ = ["CASES", "VOCABULARY", "Case", "write"]

VOCABULARY, LENGTH, HEADS, WIDTH = 64, 64, 4, 32
_STD = 0.3
_GAIN = 0.2


@dataclass(frozen=True)
class Case:
    """A checkpoint.

    Attributes:
        name: What the table calls it.
        model: The class of transformers that writes it.
        options: Entries of its configuration.
        group: The part of the table it is in.
        reason: Why it must be refused, as a name in ``REASONS``; empty where it must be loaded.
        change: What is done to the folder after it was written.
        save: Options of ``save_pretrained``.
        dtype: The number format that it is saved in.
    """

    name: str
    model: str
    options: Mapping[str, Any]
    group: str
    reason: str = ""
    change: Callable[[Path], None] | None = None
    save: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32


def write(case: Case, folder: Path) -> None:
    """Write the checkpoint and a tokenizer of 64 words, as the real ones of the kind have it."""
    import transformers

    from prooflens.architectures import quiet_transformers

    kind = getattr(transformers, case.model)
    with quiet_transformers():
        torch.manual_seed(0)
        model = kind(kind.config_class(**case.options))
        _randomise(model)
        model.to(case.dtype).save_pretrained(folder, **case.save)
    if case.change is not None:
        case.change(folder)


@torch.no_grad()
def _randomise(model: torch.nn.Module) -> None:
    """Biases and gains too: the library starts them at 0 and 1, where a loss does not show."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * _STD)
        else:
            parameter.add_(noise * _GAIN)


_IDS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_UNTIED = {"tie_word_embeddings": False}
_SIZES = {
    **_IDS, **_UNTIED, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "max_position_embeddings": LENGTH,
}  # fmt: skip
_FFN = {**_SIZES, "intermediate_size": 48}
_LLAMA = {**_FFN, "num_key_value_heads": 2, "head_dim": 8}
_GPT2 = {**_IDS, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": LENGTH}
_WINDOW = {"sliding_window": 5}
_MIXED = {**_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_NAMED_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_MLA = {
    **_FFN, "num_key_value_heads": HEADS, "q_lora_rank": 16, "kv_lora_rank": 8,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
_VISION = {
    "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": HEADS, "image_size": 28, "patch_size": 14,
}  # fmt: skip
_ROPE = {"rope_type": "default", "rope_theta": 100.0}


def _decoders() -> Iterable[Case]:
    def case(name: str, model: str, options: Mapping[str, Any], **more: Any) -> Case:
        return Case(name, model, options, "decoders", **more)

    yield case("GPT-2", "GPT2LMHeadModel", _GPT2)
    yield case("GPT-2, scores by layer", "GPT2LMHeadModel",
               {**_GPT2, "scale_attn_by_inverse_layer_idx": True})  # fmt: skip
    yield case("GPT-2, untied", "GPT2LMHeadModel", {**_GPT2, **_UNTIED})
    yield case("GPT-1", "OpenAIGPTLMHeadModel", _GPT2)
    yield case("GPT-BigCode", "GPTBigCodeForCausalLM", {**_GPT2, "multi_query": True})
    yield case("GPT-Neo", "GPTNeoForCausalLM",
               {**_IDS, "hidden_size": WIDTH, "num_layers": 2, "num_heads": HEADS,
                "max_position_embeddings": LENGTH, "intermediate_size": 48, "window_size": 5,
                "attention_types": [[["global", "local"], 1]]})  # fmt: skip
    yield case("GPT-J", "GPTJForCausalLM", {**_GPT2, **_UNTIED, "rotary_dim": 4})
    yield case("CodeGen", "CodeGenForCausalLM", {**_GPT2, **_UNTIED, "rotary_dim": 4})
    yield case("GPT-NeoX, parallel", "GPTNeoXForCausalLM",
               {**_FFN, "rotary_pct": 0.5, "use_parallel_residual": True})  # fmt: skip
    yield case("GPT-NeoX, sequential", "GPTNeoXForCausalLM",
               {**_FFN, "rotary_pct": 0.5, "use_parallel_residual": False})  # fmt: skip
    yield case("OPT", "OPTForCausalLM", {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": WIDTH})
    yield case("OPT, norms after", "OPTForCausalLM",
               {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 16,
                "do_layer_norm_before": False})  # fmt: skip
    yield case("XGLM", "XGLMForCausalLM",
               {**_IDS, "d_model": WIDTH, "num_layers": 2, "attention_heads": HEADS,
                "ffn_dim": 48, "max_position_embeddings": LENGTH})  # fmt: skip
    yield case("BioGPT", "BioGptForCausalLM", _FFN)
    yield case("Llama", "LlamaForCausalLM", _LLAMA)
    yield case("Llama, tied", "LlamaForCausalLM", {**_LLAMA, "tie_word_embeddings": True})
    yield case("Llama, biases", "LlamaForCausalLM",
               {**_LLAMA, "attention_bias": True, "mlp_bias": True})  # fmt: skip
    yield case("Llama 3, scaled rotary", "LlamaForCausalLM",
               {**_LLAMA, "rope_parameters": {
                   "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0,
                   "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 32}})  # fmt: skip
    yield case("Llama 4", "Llama4ForCausalLM",
               {**_LLAMA, "intermediate_size_mlp": 48, "num_local_experts": 2,
                "num_experts_per_tok": 1, "attention_chunk_size": 8,
                "pad_token_id": 0})  # fmt: skip
    yield case("Mistral, window", "MistralForCausalLM", {**_LLAMA, **_WINDOW})
    yield case("Ministral", "MinistralForCausalLM", {**_LLAMA, **_MIXED})
    yield case("Mixtral", "MixtralForCausalLM", {**_LLAMA, **_EXPERTS})
    yield case("Qwen 2", "Qwen2ForCausalLM", _LLAMA)
    yield case("Qwen 2 MoE", "Qwen2MoeForCausalLM",
               {**_LLAMA, **_NAMED_EXPERTS, "shared_expert_intermediate_size": 24})  # fmt: skip
    yield case("Qwen 3", "Qwen3ForCausalLM", _LLAMA)
    yield case("Qwen 3 MoE", "Qwen3MoeForCausalLM", {**_LLAMA, **_NAMED_EXPERTS})
    yield case("Gemma", "GemmaForCausalLM", {**_LLAMA, "tie_word_embeddings": True})
    yield case("Gemma 2", "Gemma2ForCausalLM",
               {**_LLAMA, **_MIXED, "tie_word_embeddings": True, "query_pre_attn_scalar": 12,
                "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0})  # fmt: skip
    yield case("Gemma 3", "Gemma3ForCausalLM",
               {**_LLAMA, **_MIXED, "tie_word_embeddings": True,
                "query_pre_attn_scalar": 12})  # fmt: skip
    yield case("Gemma 3n", "Gemma3nForCausalLM",
               {**_LLAMA, **_MIXED, "vocab_size_per_layer_input": VOCABULARY,
                "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "laurel_rank": 4,
                "activation_sparsity_pattern": [0.0, 0.0]})  # fmt: skip
    yield case("VaultGemma", "VaultGemmaForCausalLM",
               {**_LLAMA, **_MIXED, "query_pre_attn_scalar": 12})  # fmt: skip
    yield case("Granite", "GraniteForCausalLM",
               {**_LLAMA, "attention_multiplier": 0.2, "embedding_multiplier": 3.0,
                "residual_multiplier": 0.5, "logits_scaling": 4.0})  # fmt: skip
    yield case("Granite MoE", "GraniteMoeForCausalLM",
               {**_LLAMA, **_EXPERTS, "attention_multiplier": 0.2, "embedding_multiplier": 3.0,
                "residual_multiplier": 0.5, "logits_scaling": 4.0})  # fmt: skip
    yield case("Cohere", "CohereForCausalLM",
               {**_LLAMA, "logit_scale": 0.25, "use_qk_norm": True})  # fmt: skip
    yield case("Cohere 2", "Cohere2ForCausalLM", {**_LLAMA, **_MIXED, "logit_scale": 0.25})
    yield case("OLMo", "OlmoForCausalLM", {**_LLAMA, "clip_qkv": 0.5})
    yield case("OLMo 2", "Olmo2ForCausalLM", _LLAMA)
    yield case("OLMo 3", "Olmo3ForCausalLM", {**_LLAMA, **_MIXED})
    yield case("OLMoE", "OlmoeForCausalLM", {**_LLAMA, **_NAMED_EXPERTS})
    yield case("Phi", "PhiForCausalLM",
               {**_LLAMA, "partial_rotary_factor": 0.5, "qk_layernorm": True})  # fmt: skip
    yield case("Phi 3", "Phi3ForCausalLM", {**_LLAMA, **_WINDOW})
    yield case("Phi MoE", "PhimoeForCausalLM", {**_LLAMA, **_EXPERTS, "lm_head_bias": True})
    yield case("StableLM", "StableLmForCausalLM",
               {**_LLAMA, "partial_rotary_factor": 0.5, "use_qkv_bias": True})  # fmt: skip
    yield case("StableLM, parallel", "StableLmForCausalLM",
               {**_LLAMA, "partial_rotary_factor": 0.5, "use_parallel_residual": True,
                "qk_layernorm": True})  # fmt: skip
    yield case("Falcon 7B", "FalconForCausalLM", {**_SIZES, "multi_query": True})
    yield case("Falcon 40B", "FalconForCausalLM",
               {**_SIZES, "new_decoder_architecture": True, "num_kv_heads": 2})  # fmt: skip
    yield case("Falcon, ALiBi", "FalconForCausalLM",
               {**_SIZES, "multi_query": False, "alibi": True, "bias": True,
                "parallel_attn": False})  # fmt: skip
    yield case("BLOOM", "BloomForCausalLM",
               {**_IDS, "hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS})  # fmt: skip
    yield case("MPT", "MptForCausalLM",
               {**_IDS, "d_model": WIDTH, "n_layers": 2, "n_heads": HEADS,
                "max_seq_len": LENGTH, "expansion_ratio": 2})  # fmt: skip
    yield case("GPT-OSS", "GptOssForCausalLM",
               {**_LLAMA, **_MIXED, **_EXPERTS, "rope_parameters": _ROPE})  # fmt: skip
    yield case("StarCoder 2", "Starcoder2ForCausalLM", {**_LLAMA, **_WINDOW})
    yield case("Nemotron", "NemotronForCausalLM", {**_LLAMA, "partial_rotary_factor": 0.5})
    yield case("Persimmon", "PersimmonForCausalLM", {**_FFN, "partial_rotary_factor": 0.5})
    yield case("GLM", "GlmForCausalLM", {**_LLAMA, "partial_rotary_factor": 0.5})
    yield case("GLM 4", "Glm4ForCausalLM", {**_LLAMA, "partial_rotary_factor": 0.5})
    yield case("SmolLM 3, no rotary", "SmolLM3ForCausalLM",
               {**_LLAMA, "no_rope_layers": [1, 0]})  # fmt: skip
    yield case("Helium", "HeliumForCausalLM", _LLAMA)
    yield case("EXAONE 4", "Exaone4ForCausalLM",
               {**_LLAMA, **_MIXED, "sliding_window_pattern": "LG"})  # fmt: skip
    yield case("Apertus", "ApertusForCausalLM", _LLAMA)
    yield case("Arcee", "ArceeForCausalLM", _LLAMA)
    yield case("Seed-OSS", "SeedOssForCausalLM", _LLAMA)
    yield case("ERNIE 4.5", "Ernie4_5ForCausalLM", {**_LLAMA, "use_bias": True})
    yield case("Hunyuan", "HunYuanDenseV1ForCausalLM", _LLAMA)
    yield case("NanoChat", "NanoChatForCausalLM", _LLAMA)
    yield case("BitNet", "BitNetForCausalLM", _LLAMA)
    yield case("DeepSeek 2", "DeepseekV2ForCausalLM", _MLA)
    yield case("DeepSeek 3", "DeepseekV3ForCausalLM", _MLA)
    yield case("DiffLlama", "DiffLlamaForCausalLM", _LLAMA)
    yield case("dots 1", "Dots1ForCausalLM",
               {**_LLAMA, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                "topk_group": 1, "moe_intermediate_size": 24,
                "first_k_dense_replace": 1})  # fmt: skip
    yield case("CTRL", "CTRLLMHeadModel", {**_GPT2, "dff": 48})
    yield case("ModernBERT, decoder", "ModernBertDecoderForCausalLM", _FFN)


CASES: tuple[Case, ...] = tuple(_decoders())
