"""Small random models of every family, in the shapes of the real ones: groups, partial rotary, fused and biased projections."""

from __future__ import annotations

from typing import Any

import torch

from attractor.models import silence_transformers

DECODER = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "vocab_size": 64,
}
GROUPED = {**DECODER, "num_key_value_heads": 2}
ENCODER = DECODER
GPT = {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 64}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LATENT = {
    **DECODER,
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "attention_bias": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
NEO = {"hidden_size": 32, "num_heads": 4, "num_layers": 2, "vocab_size": 64, **IDS}
MODERN = {**ENCODER, **IDS, "num_hidden_layers": 4, "cls_token_id": 1, "sep_token_id": 2}
SOUND = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "decoder_start_token_id": 1,
    "vocab_size": 64,
    **IDS,
}
PICTURES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "image_size": 12,
    "patch_size": 4,
}

EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 8,
    "short_factor": [1.0, 1.2, 1.4, 1.6],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
SEQ2SEQ = {
    **{name: SOUND[name] for name in SOUND if name.endswith(("_layers", "_heads", "_dim"))},
    "d_model": 32,
    "max_position_embeddings": 64,
    "vocab_size": 64,
    **IDS,
}
T5_SIZES = {"d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "d_ff": 16, "vocab_size": 64}
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 4, "mamba_d_conv": 2, "mamba_expand": 2}
DISENTANGLED = {
    **ENCODER,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
    "max_position_embeddings": 32,
}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
TEXT = {**ENCODER, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

# what is special, model type, settings
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("gpt2", {**GPT, **IDS}),
    "GPT-2, scores divided by the layer": ("gpt2", {**GPT, **IDS, "scale_attn_by_inverse_layer_idx": True}),
    "GPT-Neo, global and local": ("gpt_neo", {**NEO, "attention_types": [[["global", "local"], 1]], "window_size": 5}),
    "Pythia, a quarter turned": ("gpt_neox", {**DECODER, "rotary_pct": 0.25, "attention_bias": True, **IDS}),
    "GPT-J": ("gptj", {**GPT, "rotary_dim": 4, **IDS}),
    "Llama, grouped": ("llama", {**GROUPED, "attention_bias": True}),
    "Llama 3 angles": ("llama", {**GROUPED, "rope_parameters": LLAMA3, "max_position_embeddings": 128}),
    "Llama, YaRN angles": ("llama", {**GROUPED, "rope_parameters": YARN, "max_position_embeddings": 64}),
    "Mistral, window, wide heads": ("mistral", {**GROUPED, "sliding_window": 5, "head_dim": 16}),
    "Qwen 2, biases": ("qwen2", GROUPED),
    "Qwen 2, windows": ("qwen2", {**GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "Qwen 3, q/k norm": ("qwen3", {**GROUPED, "head_dim": 16, **IDS}),
    "Gemma, one key head": ("gemma", {**DECODER, "num_key_value_heads": 1, "head_dim": 16}),
    "Gemma 2, capped scores": (
        "gemma2",
        {**GROUPED, "head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0},
    ),
    "Gemma 3, q/k norm, two rates": (
        "gemma3_text",
        {**GROUPED, "head_dim": 16, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], **IDS},
    ),
    "EmbeddingGemma, both directions": (
        "gemma3_text",
        {
            **GROUPED,
            "head_dim": 16,
            "sliding_window": 8,
            "use_bidirectional_attention": True,
            **IDS,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "Phi 2, half turned": ("phi", {**DECODER, "partial_rotary_factor": 0.5, **IDS}),
    "Phi, q/k norm": ("phi", {**DECODER, "partial_rotary_factor": 0.5, "qk_layernorm": True, **IDS}),
    "Phi 3, fused": ("phi3", {**GROUPED, "sliding_window": 5, **IDS}),
    "OLMo": ("olmo", {**GROUPED, **IDS}),
    "OLMo 2, norm over all heads": ("olmo2", {**GROUPED, **IDS}),
    "Falcon 7B, one key head": ("falcon", {**DECODER, "multi_query": True, "bias": True, **IDS}),
    "Falcon 40B, grouped": ("falcon", {**DECODER, "new_decoder_architecture": True, "num_kv_heads": 2, **IDS}),
    "Falcon RW, ALiBi": (
        "falcon",
        {**DECODER, "multi_query": False, "alibi": True, "parallel_attn": False, "bias": True, **IDS},
    ),
    "DeepSeek V2": ("deepseek_v2", {**LATENT, "q_lora_rank": None}),
    "DeepSeek V3": ("deepseek_v3", {**LATENT, "q_lora_rank": 10}),
    "DeepSeek V3, YaRN": (
        "deepseek_v3",
        {
            **LATENT,
            "q_lora_rank": 10,
            "rope_interleave": False,
            "max_position_embeddings": 64,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
        },
    ),
    "BERT, MiniLM": ("bert", ENCODER),
    "RoBERTa": ("roberta", ENCODER),
    "ModernBERT": ("modernbert", {**MODERN, "local_attention": 6, "attention_bias": True, "norm_bias": True}),
    "ESM-2": ("esm", {**ENCODER, "position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 4}),
    "ViT": ("vit", PICTURES),
    "DeiT": ("deit", PICTURES),
    "DINOv2": ("dinov2", {**PICTURES, "mlp_ratio": 1}),
    "Whisper": ("whisper", SOUND),
    "BLOOM, 6 heads": ("bloom", {"hidden_size": 48, "n_head": 6, "n_layer": 2, "vocab_size": 64, **IDS}),
    "T5": ("t5", T5_SIZES),
    "mT5": ("mt5", T5_SIZES),
    "umT5, biases in every layer": ("umt5", T5_SIZES),
    "Mixtral": ("mixtral", {**GROUPED, **EXPERTS}),
    "Ministral, windows": (
        "ministral",
        {**GROUPED, "head_dim": 16, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "Seed-OSS": ("seed_oss", {**GROUPED, "attention_bias": True, **IDS}),
    "Arcee": ("arcee", GROUPED),
    "Llama, dynamic angles": ("llama", {**GROUPED, "rope_parameters": DYNAMIC, "max_position_embeddings": 8}),
    "Phi 3, beyond the original context": (
        "phi3",
        {
            **GROUPED,
            "rope_parameters": LONG,
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 8,
            **IDS,
        },
    ),
    "OLMo, clipped": ("olmo", {**GROUPED, "clip_qkv": 0.5, **IDS}),
    "Qwen 2 MoE": ("qwen2_moe", {**GROUPED, **EXPERTS, "qkv_bias": True}),
    "Qwen 3 MoE": ("qwen3_moe", {**GROUPED, **EXPERTS, "head_dim": 16}),
    "SmolLM 3, a layer without RoPE": ("smollm3", {**GROUPED, "no_rope_layers": [1, 0], **IDS}),
    "Granite 3": (
        "granite",
        {**GROUPED, "attention_multiplier": 0.3, "residual_multiplier": 0.2, "attention_bias": True},
    ),
    "Granite MoE": ("granitemoe", {**GROUPED, **EXPERTS, "attention_multiplier": 0.3, "residual_multiplier": 0.2}),
    "Command R": ("cohere", {**GROUPED, **IDS}),
    "Command R+, q/k norm": ("cohere", {**GROUPED, "use_qk_norm": True, **IDS}),
    "Command R7B": (
        "cohere2",
        {**GROUPED, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], **IDS},
    ),
    "GLM-4 9B": ("glm", {**GROUPED, "head_dim": 8, "attention_bias": True, **IDS}),
    "GLM-4 0414": ("glm4", {**GROUPED, "head_dim": 8, "attention_bias": True, **IDS}),
    "StarCoder 2": ("starcoder2", {**GROUPED, "sliding_window": 5, "use_bias": True, **IDS}),
    "Nemotron": ("nemotron", {**GROUPED, "head_dim": 8, "attention_bias": True, **IDS}),
    "OLMo 3": (
        "olmo3",
        {**GROUPED, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], **IDS},
    ),
    "GPT-OSS, sinks": ("gpt_oss", {**GROUPED, **EXPERTS, "head_dim": 16, "sliding_window": 5, **IDS}),
    "Llama 4, chunks, temperature": (
        "llama4_text",
        {
            **GROUPED,
            **EXPERTS,
            "head_dim": 8,
            "intermediate_size_mlp": 16,
            "attention_chunk_size": 5,
            "floor_scale": 4,
            "no_rope_layers": [1, 0],
            **IDS,
        },
    ),
    "Gemma 3n, shared keys and values": (
        "gemma3n_text",
        {
            **GROUPED,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "sliding_window": 5,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.0] * 4,
            "intermediate_size": [16] * 4,
            "vocab_size_per_layer_input": 64,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            **IDS,
        },
    ),
    "Jamba": (
        "jamba",
        {
            **GROUPED,
            **EXPERTS,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 4,
            "mamba_d_conv": 2,
            **IDS,
        },
    ),
    "Nemotron-H": (
        "nemotron_h",
        {
            **{name: value for name, value in GROUPED.items() if name != "num_hidden_layers"},
            "layers_block_type": ["linear_attention", "full_attention", "mlp"],
            "head_dim": 8,
            "ssm_state_size": 4,
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "n_groups": 1,
            **IDS,
        },
    ),
    "Granite 4, hybrid": (
        "granitemoehybrid",
        {
            **GROUPED,
            **MAMBA,
            "num_local_experts": 0,
            "shared_intermediate_size": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.2,
        },
    ),
    "Qwen3-Next": (
        "qwen3_next",
        {
            **GROUPED,
            **EXPERTS,
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "ALBERT, two groups": (
        "albert",
        {**ENCODER, "num_hidden_layers": 4, "num_hidden_groups": 2, "embedding_size": 16},
    ),
    "DistilBERT": ("distilbert", {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 16, "vocab_size": 64}),
    "MPNet": ("mpnet", {**ENCODER, "relative_attention_num_buckets": 32}),
    "DeBERTa v2, plain distances": ("deberta-v2", {**DISENTANGLED, "conv_kernel_size": 3}),
    "DeBERTa v3, buckets": (
        "deberta-v2",
        {**DISENTANGLED, "position_buckets": 6, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    ),
    "OPT": ("opt", {**ENCODER, "ffn_dim": 16, "word_embed_proj_dim": 32, "max_position_embeddings": 64, **IDS}),
    "OPT 350M, post-norm": (
        "opt",
        {
            **ENCODER,
            "ffn_dim": 16,
            "word_embed_proj_dim": 16,
            "do_layer_norm_before": False,
            "max_position_embeddings": 64,
            **IDS,
        },
    ),
    "BART": ("bart", SEQ2SEQ),
    "Marian": ("marian", SEQ2SEQ),
    "mBART": ("mbart", SEQ2SEQ),
    "Pegasus": ("pegasus", SEQ2SEQ),
    "M2M-100": ("m2m_100", SEQ2SEQ),
    "Blenderbot": ("blenderbot", SEQ2SEQ),
    "CLIP": ("clip", {"text_config": {**TEXT, "hidden_size": 16}, "vision_config": PICTURES, "projection_dim": 8}),
    "CLIP, text tower": ("clip_text_model", TEXT),
    "CLIP, image tower": ("clip_vision_model", PICTURES),
    "SigLIP": ("siglip", {"text_config": {**TEXT, "projection_size": 32}, "vision_config": PICTURES}),
    "DINOv3": ("dinov3_vit", {**PICTURES, "num_register_tokens": 2, "key_bias": True}),
    "I-JEPA": ("ijepa", PICTURES),
    "ViT MSN": ("vit_msn", PICTURES),
    "DINOv2 with registers": ("dinov2_with_registers", {**PICTURES, "mlp_ratio": 1, "num_register_tokens": 2}),
    "SigLIP, image tower": ("siglip_vision_model", PICTURES),
    "XLM-RoBERTa": ("xlm-roberta", ENCODER),
    "CamemBERT": ("camembert", ENCODER),
    "ELECTRA": ("electra", {**ENCODER, "embedding_size": 16}),
    "BERT for generation": ("bert-generation", TEXT),
    "Data2Vec, text": ("data2vec-text", ENCODER),
    "ERNIE": ("ernie", ENCODER),
    "LayoutLM": ("layoutlm", ENCODER),
    "MarkupLM": ("markuplm", ENCODER),
    "RoCBert": ("roc_bert", {**ENCODER, "pronunciation_vocab_size": 8, "shape_vocab_size": 8}),
    "Splinter": ("splinter", ENCODER),
    "GPT-SW3": ("gpt-sw3", {**GPT, **IDS}),
    "PLBART": ("plbart", SEQ2SEQ),
    "Blenderbot, small": ("blenderbot-small", SEQ2SEQ),
    "NLLB MoE": ("nllb-moe", {**SEQ2SEQ, "num_experts": 2, "expert_capacity": 4}),
    "Switch": ("switch_transformers", {**T5_SIZES, "num_experts": 2, "num_sparse_encoder_layers": 1}),
    "CWM, windows": (
        "cwm",
        {**GROUPED, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8, **IDS},
    ),
    "Ernie 4.5": ("ernie4_5", {**GROUPED, "head_dim": 8, "use_bias": True, **IDS}),
    "Ernie 4.5 MoE": (
        "ernie4_5_moe",
        {**GROUPED, "head_dim": 8, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 8, **IDS},
    ),
    "Helium": ("helium", {**GROUPED, "head_dim": 8, **IDS}),
    "Granite MoE, shared experts": (
        "granitemoeshared",
        {**GROUPED, **EXPERTS, "attention_multiplier": 0.3, "residual_multiplier": 0.2, "shared_intermediate_size": 8},
    ),
    "OLMoE": ("olmoe", {**GROUPED, **EXPERTS, **IDS}),
    "FlexOlmo": ("flex_olmo", {**GROUPED, **EXPERTS, **IDS}),
    "StableLM 2": ("stablelm", {**GROUPED, "use_qkv_bias": True, "partial_rotary_factor": 0.5, **IDS}),
    "StableLM, parallel": ("stablelm", {**GROUPED, "use_parallel_residual": True, **IDS}),
    "Qwen2-VL, text": ("qwen2_vl_text", {**GROUPED, **IDS, "rope_parameters": SECTIONS}),
    "Qwen2.5-VL, text": ("qwen2_5_vl_text", {**GROUPED, **IDS, "rope_parameters": SECTIONS}),
    "Qwen3-VL, text": ("qwen3_vl_text", {**GROUPED, "head_dim": 8, **IDS, "rope_parameters": SECTIONS}),
    "Qwen3-VL MoE, text": (
        "qwen3_vl_moe_text",
        {**GROUPED, **EXPERTS, "head_dim": 8, **IDS, "rope_parameters": SECTIONS},
    ),
}

# multimodal models, whose parts have configurations of their own
MULTIMODAL: dict[str, dict[str, Any]] = {
    "llava": {
        "text_config": {"model_type": "llama", **GROUPED},
        "vision_config": {"model_type": "clip_vision_model", **PICTURES},
        "image_token_index": 60,
    },
    "gemma3": {"text_config": {**GROUPED, "head_dim": 16}, "vision_config": PICTURES, "mm_tokens_per_image": 4},
    "qwen2_vl": {
        "text_config": {**GROUPED, **IDS, "rope_parameters": SECTIONS},
        "vision_config": {"embed_dim": 32, "depth": 2, "num_heads": 4, "hidden_size": 32},
    },
    "qwen3_vl": {
        "text_config": {**GROUPED, "head_dim": 8, **IDS, "rope_parameters": SECTIONS},
        "vision_config": {
            "hidden_size": 32,
            "depth": 2,
            "num_heads": 4,
            "intermediate_size": 16,
            "out_hidden_size": 32,
        },
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **GROUPED},
        "vision_config": {"model_type": "pixtral", **PICTURES},
    },
    "smolvlm": {"text_config": {"model_type": "llama", **GROUPED, **IDS}, "vision_config": PICTURES},
    "internvl": {
        "text_config": {"model_type": "qwen2", **GROUPED},
        "vision_config": {**PICTURES, "image_size": [12, 12], "patch_size": [4, 4]},
    },
    "llama4": {
        "text_config": MODELS["Llama 4, chunks, temperature"][1],
        "vision_config": {
            **PICTURES,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
    },
}


def multimodal_model(kind: str) -> torch.nn.Module:
    """A small multimodal model with random weights."""
    from transformers import AutoConfig, AutoModel

    with silence_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **MULTIMODAL[kind])
        config._experts_implementation = "eager"
        return AutoModel.from_config(config).eval()


# types without a family, which are traced by their structure; sizes are those in TINY
STRUCTURAL = (
    "afmoe", "apertus", "bitnet", "diffllama", "doge", "eurobert", "exaone4", "gpt_bigcode", "gpt_neox_japanese", "hunyuan_v1_dense",
    "jetmoe", "minimax_m2", "ministral3", "moshi", "mpt", "nanochat", "olmo_hybrid", "openai-gpt", "persimmon", "phimoe", "vaultgemma",
    "xglm", "biogpt", "ctrl", "imagegpt", "modernbert-decoder", "glm4_moe", "lfm2", "minimax", "qwen3_5_text", "falcon_mamba", "mamba",
    "recurrent_gemma", "rwkv", "xlstm", "big_bird", "convbert", "deberta", "fnet", "megatron-bert", "mobilebert", "nomic_bert",
    "nystromformer", "rembert", "roberta-prelayernorm", "roformer", "longformer", "fsmt", "longt5", "mvp", "pegasus_x", "beit",
    "data2vec-vision", "dpt", "yolos",
)  # fmt: skip
TINY = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "dff"), 16),
    **dict.fromkeys(("head_dim", "d_kv", "moe_intermediate_size", "patch_size"), 8),
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions"), 64),
    "n_routed_experts": 4,
    "image_size": 32,
    **IDS,
}


def structural_model(kind: str, seed: int = 0) -> torch.nn.Module:
    """A small model of a type without a family, as its own code initialises it."""
    from transformers import AutoConfig, AutoModel

    with silence_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        usual = AutoConfig.for_model(kind)
        known = {name: getattr(usual, name, False) for name in TINY}
        sizes = {name: TINY[name] for name, value in known.items() if value is None or type(value) is int}
        sizes |= {"image_size": [32, 32]} if kind == "yolos" else {}
        config = AutoConfig.for_model(kind, **sizes)
        config._experts_implementation = "eager"
        return AutoModel.from_config(config).eval()


def draw_inputs(model: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """Eight token ids, or an image."""
    draw, config = torch.Generator().manual_seed(seed), model.config
    if getattr(model, "main_input_name", "") == "pixel_values":
        size = getattr(config, "vision_config", config).image_size
        sides = [size, size] if isinstance(size, int) else size
        return {"pixel_values": torch.randn(1, 3, *sides, generator=draw)}
    return {"input_ids": torch.randint(3, 64, (1, 8), generator=draw)}


def random_model(case: str, seed: int = 0, **changes: Any) -> torch.nn.Module:
    """A model whose every parameter is random: a forgotten bias or gain must show."""
    from transformers import AutoConfig, AutoModel

    kind, settings = MODELS[case]
    with silence_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the same weights whatever ran before
        config = AutoConfig.for_model(kind, **{**settings, **changes})
        config._experts_implementation = "eager"  # the others have no float64
        model = AutoModel.from_config(config)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return model.eval()
