"""Small random models of every family, in the shapes of the real ones: groups, partial rotary, fused and biased projections."""

from __future__ import annotations

from typing import Any

import torch

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
    "T5": ("t5", {"d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "d_ff": 16, "vocab_size": 64}),
}


def random_model(case: str, seed: int = 0, **changes: Any) -> torch.nn.Module:
    """A model whose every parameter is random: a forgotten bias or gain must show."""
    from transformers import AutoConfig, AutoModel

    kind, settings = MODELS[case]
    model = AutoModel.from_config(AutoConfig.for_model(kind, **{**settings, **changes}))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return model.eval()
