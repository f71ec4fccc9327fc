"""Tiny random checkpoints of many architectures, written as transformers writes the real ones.

A case is a class of transformers, a configuration and, for some, what is done to the files after.
Two layers, four heads, a width of 32 and 64 tokens, wherever the architecture allows; a window, a
softcap, a scale or a bias that an architecture may have is on, so that leaving it out shows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from prooflens.architectures import quiet_transformers, read_tensors, write_tensors

__all__ = ["CASES", "GGUF", "VOCABULARY", "FamilyCase", "write"]

VOCABULARY, LENGTH, HEADS, WIDTH = 64, 64, 4, 32
GGUF = "model.gguf"
_BY_HAND = "by-hand"
_STD = 0.3
_GAIN = 0.2


@dataclass(frozen=True)
class FamilyCase:
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
        lacks: Operation → why it must be refused of a model that is loaded.
        reference: Options with which transformers loads its own from the folder.
        adapter: The folder in it of an adapter that is merged; empty for none.
    """

    name: str
    model: str
    options: Mapping[str, Any]
    group: str
    reason: str = ""
    change: Callable[[Path], None] | None = None
    save: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    lacks: Mapping[str, str] = field(default_factory=dict)
    reference: Mapping[str, Any] = field(default_factory=dict)
    adapter: str = ""


def write(case: FamilyCase, folder: Path) -> None:
    """Write a case's checkpoint to a folder, with a tokenizer of 64 words, in the files that real
    checkpoints of this kind have."""
    import transformers

    kind = getattr(transformers, case.model)
    with quiet_transformers():
        torch.manual_seed(0)
        model = kind(kind.config_class(**case.options))
        _randomise(model)
        model.to(case.dtype).save_pretrained(folder, **case.save)
        if case.name not in _LACKING["texts", "no tokenizer"]:
            _tokenizer(case.name).save_pretrained(folder)
    if case.change is not None:
        case.change(folder)


def _tokenizer(name: str) -> Any:
    """Return a tokenizer of 64 words.

    By a hash of the name, rows begin with a BOS, or a BOS is known but not put in front, or there
    is no BOS. All three occur among real tokenizers (Llama's, GPT-2's, Qwen's).
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ("<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, VOCABULARY)))
    known = {word: i for i, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    manner = sum(name.encode()) % 3
    if manner == 0:
        begin = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        made.post_processor = begin
    special = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
    special |= {} if manner == 1 else {"bos_token": "<s>"}
    build: Any = PreTrainedTokenizerFast
    return build(tokenizer_object=made, **special)


@torch.no_grad()
def _randomise(model: torch.nn.Module) -> None:
    """Give all parameters random values, biases and gains too. The library starts these at 0 and 1,
    so that leaving one out would not show."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * _STD)
        else:
            parameter.add_(noise * _GAIN)


# fmt: off
_IDS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_UNTIED = {"tie_word_embeddings": False}
_SIZES = {
    **_IDS, **_UNTIED, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "max_position_embeddings": LENGTH,
}
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
}
_VISION = {
    "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": HEADS, "image_size": 28, "patch_size": 14,
}
_ROPE = {"rope_type": "default", "rope_theta": 100.0}
_OTHER_INPUTS = {"image_token_index": 63, "image_token_id": 63, "video_token_id": 62}
_CLIP = {**_VISION, "model_type": "clip_vision_model", "projection_dim": WIDTH}
_BERT = {**_FFN, "type_vocab_size": 2}
_T5 = {
    **_IDS, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": HEADS,
    "decoder_start_token_id": 0,
}
_BART = {
    **_IDS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads":
    HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_position_embeddings": LENGTH, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}
_STATE = {**_IDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 4}
_MAMBA = {"mamba_d_state": 4, "mamba_d_conv": 2, "mamba_expand": 2}
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 2,
}
_LABELS = {"num_labels": 1}

Written = tuple[str, Mapping[str, Any]]
"""The class of transformers that writes a checkpoint, and its configuration."""

_DECODERS: Mapping[str, Written] = {
    "GPT-2": ("GPT2LMHeadModel", _GPT2),
    "GPT-2, scores by layer": ("GPT2LMHeadModel",
        {**_GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "GPT-2, untied": ("GPT2LMHeadModel", {**_GPT2, **_UNTIED}),
    "GPT-1": ("OpenAIGPTLMHeadModel", _GPT2),
    "GPT-BigCode": ("GPTBigCodeForCausalLM", {**_GPT2, "multi_query": True}),
    "GPT-Neo": ("GPTNeoForCausalLM",
        {**_IDS, "hidden_size": WIDTH, "num_layers": 2, "num_heads": HEADS,
        "max_position_embeddings": LENGTH, "intermediate_size": 48, "window_size": 5,
        "attention_types": [[["global", "local"], 1]]}),
    "GPT-J": ("GPTJForCausalLM", {**_GPT2, **_UNTIED, "rotary_dim": 4}),
    "CodeGen": ("CodeGenForCausalLM", {**_GPT2, **_UNTIED, "rotary_dim": 4}),
    "GPT-NeoX, parallel": ("GPTNeoXForCausalLM",
        {**_FFN, "rotary_pct": 0.5, "use_parallel_residual": True}),
    "GPT-NeoX, sequential": ("GPTNeoXForCausalLM",
        {**_FFN, "rotary_pct": 0.5, "use_parallel_residual": False}),
    "OPT": ("OPTForCausalLM", {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": WIDTH}),
    "OPT, norms after": ("OPTForCausalLM",
        {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    "XGLM": ("XGLMForCausalLM",
        {**_IDS, "d_model": WIDTH, "num_layers": 2, "attention_heads": HEADS, "ffn_dim": 48,
        "max_position_embeddings": LENGTH}),
    "BioGPT": ("BioGptForCausalLM", _FFN),
    "Llama": ("LlamaForCausalLM", _LLAMA),
    "Llama, tied": ("LlamaForCausalLM", {**_LLAMA, "tie_word_embeddings": True}),
    "Llama, biases": ("LlamaForCausalLM", {**_LLAMA, "attention_bias": True, "mlp_bias": True}),
    "Llama 3, scaled rotary": ("LlamaForCausalLM",
        {**_LLAMA, "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}),
    "Llama 4": ("Llama4ForCausalLM",
        {**_LLAMA, "intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1,
        "attention_chunk_size": 8, "pad_token_id": 0}),
    "Mistral, window": ("MistralForCausalLM", {**_LLAMA, **_WINDOW}),
    "Ministral": ("MinistralForCausalLM", {**_LLAMA, **_MIXED}),
    "Mixtral": ("MixtralForCausalLM", {**_LLAMA, **_EXPERTS}),
    "Qwen 2": ("Qwen2ForCausalLM", _LLAMA),
    "Qwen 2 MoE": ("Qwen2MoeForCausalLM",
        {**_LLAMA, **_NAMED_EXPERTS, "shared_expert_intermediate_size": 24}),
    "Qwen 3": ("Qwen3ForCausalLM", _LLAMA),
    "Qwen 3 MoE": ("Qwen3MoeForCausalLM", {**_LLAMA, **_NAMED_EXPERTS}),
    "Gemma": ("GemmaForCausalLM", {**_LLAMA, "tie_word_embeddings": True}),
    "Gemma 2": ("Gemma2ForCausalLM",
        {**_LLAMA, **_MIXED, "tie_word_embeddings": True, "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "Gemma 3": ("Gemma3ForCausalLM",
        {**_LLAMA, **_MIXED, "tie_word_embeddings": True, "query_pre_attn_scalar": 12}),
    "Gemma 3n": ("Gemma3nForCausalLM",
        {**_LLAMA, **_MIXED, "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0, 0.0]}),
    "VaultGemma": ("VaultGemmaForCausalLM", {**_LLAMA, **_MIXED, "query_pre_attn_scalar": 12}),
    "Granite": ("GraniteForCausalLM",
        {**_LLAMA, "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier":
        0.5, "logits_scaling": 4.0}),
    "Granite MoE": ("GraniteMoeForCausalLM",
        {**_LLAMA, **_EXPERTS, "attention_multiplier": 0.2, "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5, "logits_scaling": 4.0}),
    "Cohere": ("CohereForCausalLM", {**_LLAMA, "logit_scale": 0.25, "use_qk_norm": True}),
    "Cohere 2": ("Cohere2ForCausalLM", {**_LLAMA, **_MIXED, "logit_scale": 0.25}),
    "OLMo": ("OlmoForCausalLM", {**_LLAMA, "clip_qkv": 0.5}),
    "OLMo 2": ("Olmo2ForCausalLM", _LLAMA),
    "OLMo 3": ("Olmo3ForCausalLM", {**_LLAMA, **_MIXED}),
    "OLMoE": ("OlmoeForCausalLM", {**_LLAMA, **_NAMED_EXPERTS}),
    "Phi": ("PhiForCausalLM", {**_LLAMA, "partial_rotary_factor": 0.5, "qk_layernorm": True}),
    "Phi 3": ("Phi3ForCausalLM", {**_LLAMA, **_WINDOW}),
    "Phi MoE": ("PhimoeForCausalLM", {**_LLAMA, **_EXPERTS, "lm_head_bias": True}),
    "StableLM": ("StableLmForCausalLM",
        {**_LLAMA, "partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "StableLM, parallel": ("StableLmForCausalLM",
        {**_LLAMA, "partial_rotary_factor": 0.5, "use_parallel_residual": True, "qk_layernorm":
        True}),
    "Falcon 7B": ("FalconForCausalLM", {**_SIZES, "multi_query": True}),
    "Falcon 40B": ("FalconForCausalLM",
        {**_SIZES, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "Falcon, ALiBi": ("FalconForCausalLM",
        {**_SIZES, "multi_query": False, "alibi": True, "bias": True, "parallel_attn": False}),
    "BLOOM": ("BloomForCausalLM", {**_IDS, "hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS}),
    "MPT": ("MptForCausalLM",
        {**_IDS, "d_model": WIDTH, "n_layers": 2, "n_heads": HEADS, "max_seq_len": LENGTH,
        "expansion_ratio": 2}),
    "GPT-OSS": ("GptOssForCausalLM", {**_LLAMA, **_MIXED, **_EXPERTS, "rope_parameters": _ROPE}),
    "StarCoder 2": ("Starcoder2ForCausalLM", {**_LLAMA, **_WINDOW}),
    "Nemotron": ("NemotronForCausalLM", {**_LLAMA, "partial_rotary_factor": 0.5}),
    "Persimmon": ("PersimmonForCausalLM", {**_FFN, "partial_rotary_factor": 0.5}),
    "GLM": ("GlmForCausalLM", {**_LLAMA, "partial_rotary_factor": 0.5}),
    "GLM 4": ("Glm4ForCausalLM", {**_LLAMA, "partial_rotary_factor": 0.5}),
    "SmolLM 3, no rotary": ("SmolLM3ForCausalLM", {**_LLAMA, "no_rope_layers": [1, 0]}),
    "Helium": ("HeliumForCausalLM", _LLAMA),
    "EXAONE 4": ("Exaone4ForCausalLM", {**_LLAMA, **_MIXED, "sliding_window_pattern": "LG"}),
    "Apertus": ("ApertusForCausalLM", _LLAMA),
    "Arcee": ("ArceeForCausalLM", _LLAMA),
    "Seed-OSS": ("SeedOssForCausalLM", _LLAMA),
    "ERNIE 4.5": ("Ernie4_5ForCausalLM", {**_LLAMA, "use_bias": True}),
    "Hunyuan": ("HunYuanDenseV1ForCausalLM", _LLAMA),
    "NanoChat": ("NanoChatForCausalLM", _LLAMA),
    "BitNet": ("BitNetForCausalLM", _LLAMA),
    "DeepSeek 2": ("DeepseekV2ForCausalLM", _MLA),
    "DeepSeek 3": ("DeepseekV3ForCausalLM", _MLA),
    "DiffLlama": ("DiffLlamaForCausalLM", _LLAMA),
    "dots 1": ("Dots1ForCausalLM",
        {**_LLAMA, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 1}),
    "CTRL": ("CTRLLMHeadModel", {**_GPT2, "dff": 48}),
    "ModernBERT, decoder": ("ModernBertDecoderForCausalLM", _FFN),
}

_WITH_OTHER_INPUTS: Mapping[str, Written] = {
    "Gemma 3, vision": ("Gemma3ForConditionalGeneration",
        {"text_config": {**_LLAMA, **_MIXED, "tie_word_embeddings": True, "query_pre_attn_scalar":
        12}, "vision_config": _VISION, "mm_tokens_per_image": 4, "boi_token_index": 61,
        "eoi_token_index": 60, "image_token_index": 63}),
    "LLaVA": ("LlavaForConditionalGeneration",
        {"text_config": {**_LLAMA, "model_type": "llama"}, "vision_config": _CLIP,
        "image_token_index": 63, **_UNTIED}),
    "Mistral 3, vision": ("Mistral3ForConditionalGeneration",
        {"text_config": {**_LLAMA, "model_type": "mistral"}, "vision_config": {**_VISION,
        "model_type": "pixtral"}, "image_token_index": 63, "spatial_merge_size": 1, **_UNTIED}),
    "Qwen 2.5 VL": ("Qwen2_5_VLForConditionalGeneration",
        {"text_config": {**_LLAMA, "rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]}},
        "vision_config": {"depth": 1, "hidden_size": WIDTH, "intermediate_size": 48, "num_heads":
        HEADS, "out_hidden_size": WIDTH, "fullatt_block_indexes": [0]}, **_OTHER_INPUTS,
        **_UNTIED}),
    "Qwen 3 VL": ("Qwen3VLForConditionalGeneration",
        {"text_config": {**_LLAMA, "rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]}},
        "vision_config": {"depth": 1, "hidden_size": WIDTH, "intermediate_size": 48, "num_heads":
        HEADS, "out_hidden_size": WIDTH, "deepstack_visual_indexes": [0]}, **_OTHER_INPUTS,
        **_UNTIED}),
    "Llama 4, vision": ("Llama4ForConditionalGeneration",
        {"text_config": {**_LLAMA, "intermediate_size_mlp": 48, "num_local_experts": 2,
        "num_experts_per_tok": 1, "attention_chunk_size": 8}, "vision_config": {**_VISION,
        "vision_output_dim": WIDTH, "projector_input_dim": WIDTH, "projector_output_dim": WIDTH,
        "pixel_shuffle_ratio": 0.5}, "image_token_index": 63, "boi_token_index": 61,
        "eoi_token_index": 60}),
}

_NO_DECODERS: Mapping[str, Mapping[str, Written]] = {
    "encoder, norms after": {
        "BERT": ("BertForMaskedLM", _BERT),
        "BERT, without a head": ("BertModel", _BERT),
        "RoBERTa": ("RobertaForMaskedLM", _BERT),
        "DeBERTa 2": ("DebertaV2ForMaskedLM", _BERT),
        "ELECTRA": ("ElectraForMaskedLM", {**_BERT, "embedding_size": WIDTH}),
        "DistilBERT": ("DistilBertForMaskedLM",
            {**_IDS, "dim": WIDTH, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 48}),
        "ALBERT": ("AlbertForMaskedLM", {**_BERT, "embedding_size": 16}),
    },
    "encoder": {
        "ModernBERT": ("ModernBertForMaskedLM", {**_FFN, "local_attention": 4}),
        "T5, encoder": ("T5EncoderModel", _T5),
    },
    "norms after": {
        "BERT, as a decoder": ("BertLMHeadModel", {**_BERT, "is_decoder": True}),
    },
    "encoder-decoder": {
        "T5": ("T5ForConditionalGeneration", _T5),
        "BART": ("BartForConditionalGeneration", _BART),
        "Pegasus": ("PegasusForConditionalGeneration", _BART),
        "Marian": ("MarianMTModel", _BART),
        "Whisper": ("WhisperForConditionalGeneration",
            {**_BART, "num_mel_bins": 8, "max_source_positions": 16,
            "max_target_positions": LENGTH}),
    },
    "not attention": {
        "Mamba": ("MambaForCausalLM", _STATE),
        "Mamba 2": ("Mamba2ForCausalLM", {**_STATE, "num_heads": 8, "head_dim": 8, "n_groups": 1}),
        "Falcon Mamba": ("FalconMambaForCausalLM", _STATE),
        "RWKV": ("RwkvForCausalLM",
            {**_IDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "attention_hidden_size": WIDTH,
            "context_length": LENGTH}),
        "RecurrentGemma": ("RecurrentGemmaForCausalLM",
            {**_LLAMA, "num_hidden_layers": 3, "lru_width": WIDTH, "attention_window_size": 5}),
        "Jamba": ("JambaForCausalLM",
            {**_LLAMA, **_MAMBA, "mamba_dt_rank": 4, "num_experts": 2, "num_experts_per_tok": 1,
            "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}),
        "Bamba": ("BambaForCausalLM",
            {**_LLAMA, **_MAMBA, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1,
            "attn_layer_indices": [1]}),
        "Granite, hybrid": ("GraniteMoeHybridForCausalLM",
            {**_LLAMA, **_MAMBA, **_EXPERTS, "mamba_n_heads": 8, "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "layer_types": ["mamba", "attention"]}),
        "Falcon H1": ("FalconH1ForCausalLM",
            {**_LLAMA, **_MAMBA, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1,
            "mamba_d_ssm": 64}),
        "Zamba 2": ("Zamba2ForCausalLM",
            {**_LLAMA, "mamba_d_state": 4, "mamba_ngroups": 1, "n_mamba_heads": 8,
            "mamba_headdim": 8,
            "layers_block_type": ["mamba", "hybrid"], "num_mem_blocks": 1}),
        "Qwen 3 Next": ("Qwen3NextForCausalLM",
            {**_LLAMA, **_NAMED_EXPERTS, **_LINEAR, "shared_expert_intermediate_size": 24,
            "layer_types": ["linear_attention", "full_attention"]}),
        "Qwen 3.5": ("Qwen3_5ForCausalLM",
            {**_LLAMA, **_LINEAR, "layer_types": ["linear_attention", "full_attention"]}),
        "LFM 2": ("Lfm2ForCausalLM", {**_LLAMA, "layer_types": ["conv", "full_attention"]}),
    },
}
"""Reason for which a model must be refused → {name of the case: its class and configuration}."""

_OTHER_HEADS: Mapping[str, Written] = {
    "GPT-2, classifier": ("GPT2ForSequenceClassification", {**_GPT2, **_LABELS}),
    "Llama, reward model": ("LlamaForSequenceClassification", {**_LLAMA, **_LABELS}),
    "Qwen 2, tokens' labels": ("Qwen2ForTokenClassification", {**_LLAMA, **_LABELS}),
    "Mistral, answers": ("MistralForQuestionAnswering", _LLAMA),
    "Gemma, classifier": ("GemmaForSequenceClassification", {**_LLAMA, **_LABELS}),
}
# fmt: on


def _without_files() -> Iterable[FamilyCase]:
    """Yield the cases that consist of a class and a configuration, with no change to the files."""
    for group, table in (("decoders", _DECODERS), ("with other inputs", _WITH_OTHER_INPUTS)):
        yield from (FamilyCase(name, *one, group) for name, one in table.items())
    for reason, table in _NO_DECODERS.items():
        yield from (FamilyCase(name, *one, "no decoders", reason) for name, one in table.items())
    heads = _OTHER_HEADS.items()
    yield from (FamilyCase(name, *one, "other heads", "other head") for name, one in heads)


def _files() -> Iterable[FamilyCase]:
    def case(name: str, model: str = "LlamaForCausalLM", **more: Any) -> FamilyCase:
        options = _GPT2 if model.startswith("GPT2") else _LLAMA
        return FamilyCase(name, model, options, "files", **more)

    yield case("Llama, value head", reason="unread tensors", change=_value_head)
    yield case("Llama, sharded", save={"max_shard_size": "20KB"})
    yield case("Llama, float16", dtype=torch.float16)
    yield case("Llama, bfloat16", dtype=torch.bfloat16)
    yield case("GPT-2, bfloat16", "GPT2LMHeadModel", dtype=torch.bfloat16)
    yield case("Llama, FP8", reason="quantised", change=_fp8)
    yield case("Llama, FP8 without scales", change=_fp8_unsaid)
    for method in ("bitsandbytes", "gptq", "awq", "compressed-tensors"):
        yield case(f"Llama, {method}", reason="quantised", change=_quantisation_edit(method))
    yield case("LoRA alone", reason="adapter", change=_adapter_alone)
    yield case("LoRA beside weights", change=_adapter)
    by_hand = {"subfolder": _BY_HAND}
    yield case("LoRA merged", change=_adapter_apart, adapter="adapter", reference=by_hand)
    yield case("GGUF", change=_gguf("F32"), reference=by_hand)
    packed = case("GGUF, 8 bits", change=_gguf("Q8_0"), reference={"gguf_file": GGUF})
    yield replace(packed, options={**_LLAMA, "intermediate_size": 64})  # in blocks of 32
    yield case("Llama, pickled", reason="pickled", change=_rename_as_pickle)
    yield case("Llama, undeclared biases", reason="unread tensors", change=_add_undeclared)
    yield case(
        "Llama, a shard lost",
        reason="damaged",
        save={"max_shard_size": "20KB"},
        change=_lose_a_shard,
    )
    yield case("Llama, not finite", reason="damaged", change=_not_finite)
    yield case("Llama, two matrices called tied", change=_declare_tied)
    yield case("Qwen 3, a body alone", "Qwen3Model", reason="no head")


def edit_config(folder: Path, **changes: Any) -> None:
    """Change entries of ``config.json``; a value of None removes the entry."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    kept = {name: value for name, value in config.items() if value is not None}
    file.write_text(json.dumps(kept))


def _edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors, words = read_tensors(folder / "model.safetensors")
    edit(tensors)
    write_tensors(tensors, folder / "model.safetensors", words)


def _value_head(folder: Path) -> None:
    """Write a checkpoint as TRL does: the tensors of a language model, and a head that gives one
    number."""
    added = {"v_head.summary.weight": torch.ones(1, WIDTH), "v_head.summary.bias": torch.ones(1)}
    _edit_tensors(folder, lambda tensors: tensors.update(added))


def _fp8_unsaid(folder: Path) -> None:
    def cast(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in list(tensors.items()):
            if name.endswith("_proj.weight"):
                tensors[name] = tensor.to(torch.float8_e4m3fn)

    _edit_tensors(folder, cast)


def _fp8(folder: Path) -> None:
    _fp8_unsaid(folder)
    edit_config(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [32, 32]})


def _quantisation_edit(method: str) -> Callable[[Path], None]:
    return lambda folder: edit_config(
        folder, quantization_config={"quant_method": method, "bits": 4, "load_in_4bit": True}
    )


def _adapter(folder: Path) -> None:
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "someone/a-base-model",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj"],
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    at = "base_model.model.model.layers.0.self_attn.q_proj."
    tensors = {
        at + "lora_A.weight": torch.ones(2, WIDTH),
        at + "lora_B.weight": torch.ones(WIDTH, 2),
    }
    write_tensors(tensors, folder / "adapter_model.safetensors", {"format": "pt"})


def _adapter_apart(folder: Path) -> None:
    """Write an adapter to one subfolder, and a copy of the model with the merged weights W + (α /
    r) B A to another."""
    kept = _copy_checkpoint(folder)
    (folder / "adapter").mkdir()
    _adapter(folder / "adapter")

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.q_proj.weight"] += 4 / 2 * 2 * torch.ones(WIDTH, WIDTH)

    _edit_tensors(kept, add)


def _gguf(packed: str) -> Callable[[Path], None]:
    def write_packed(folder: Path) -> None:
        import transformers

        from analyses.benchmarks.gguf_writer import write_gguf

        kept = _copy_checkpoint(folder)
        with quiet_transformers():
            model = transformers.LlamaForCausalLM.from_pretrained(kept)
        for file in folder.iterdir():
            if file.is_file():
                file.unlink()
        write_gguf(model, folder / GGUF, packed=packed)

    return write_packed


def _copy_checkpoint(folder: Path) -> Path:
    """Copy the checkpoint into a subfolder of its own, and return this."""
    kept = folder / _BY_HAND
    kept.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            shutil.copy(file, kept)
    return kept


def _adapter_alone(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    _adapter(folder)


def _rename_as_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _add_undeclared(folder: Path) -> None:
    added = {"model.layers.0.self_attn.q_proj.bias": torch.ones(WIDTH)}
    _edit_tensors(folder, lambda tensors: tensors.update(added))


def _lose_a_shard(folder: Path) -> None:
    max(folder.glob("*.safetensors")).unlink()


def _not_finite(folder: Path) -> None:
    _edit_tensors(folder, lambda tensors: tensors["model.norm.weight"].fill_(torch.inf))


def _declare_tied(folder: Path) -> None:
    """Let the configuration say that embedding and unembedding are tied, although the checkpoint
    has two matrices."""
    edit_config(folder, tie_word_embeddings=True)


# fmt: off
_REFUSED = {
    "norms after": ("GPT-1", "OPT, norms after"),
    "latent attention": ("DeepSeek 2", "DeepSeek 3"),
    "hooks": ("OLMo", "BitNet"),  # clipped keys; a norm between heads and their output
    "not wrapped": ("BioGPT", "Ministral", "Gemma 3n", "Phi", "Phi MoE", "Falcon 40B", "Persimmon",
                    "Helium", "DiffLlama", "dots 1", "CTRL", "Qwen 2.5 VL", "Qwen 3 VL"),
}
"""Reason for which a decoder must be refused → names of the cases."""

_LACKING = {
    ("weights", "unknown layout"): (
        "GPT-BigCode", "CodeGen", "XGLM", "Llama 4", "VaultGemma", "Granite", "Granite MoE",
        "Cohere", "Cohere 2", "OLMo 3", "OLMoE", "MPT", "StarCoder 2", "Nemotron", "GLM", "GLM 4",
        "SmolLM 3, no rotary", "EXAONE 4", "Apertus", "Arcee", "Seed-OSS", "ERNIE 4.5", "Hunyuan",
        "NanoChat", "ModernBERT, decoder", "LLaVA", "Mistral 3, vision", "Llama 4, vision",
    ),
    ("weights", "unread tensors"): ("StableLM, parallel",),
    ("weights", "rotary scaling"): ("Gemma 3", "Gemma 3, vision"),
    ("stream", "other terms"): ("XGLM", "NanoChat"),
    ("attribution", "other terms"): ("XGLM", "NanoChat", "ModernBERT, decoder"),
    ("export", "renamed tensors"): ("GPT-BigCode", "CodeGen", "MPT"),
    ("texts", "no tokenizer"): ("Qwen 2",),
}
"""(Operation, reason) → names of the cases that load, but for which the operation must be
refused."""
# fmt: on


def _add_outcome(case: FamilyCase) -> FamilyCase:
    """Return the case with what the tables above say of it: why it must be refused, and which
    operations must be."""
    reason = next((why for why, names in _REFUSED.items() if case.name in names), case.reason)
    lacks = {operation: why for (operation, why), names in _LACKING.items() if case.name in names}
    return replace(case, reason=reason, lacks=lacks)


CASES: tuple[FamilyCase, ...] = tuple(map(_add_outcome, (*_without_files(), *_files())))
