"""GGUF files: rows permuted as llama.cpp does, read back as transformers reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from small_models import random_model

import attractor as at
from attractor.errors import CheckpointError, UnsupportedError

NAMES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "input_layernorm": "attn_norm",
}


def written(path: Path, model: Any, architecture: str = "llama", divisors: list[float] | None = None) -> Path:
    """The attention tensors of a Llama as llama.cpp's converter stores them: q and k rows in neighbouring pairs."""
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for name, value in model.state_dict().items():
        parts = name.split(".")
        if parts[-2] in NAMES:
            array = value.numpy()
            if architecture == "llama" and parts[-2] in ("q_proj", "k_proj"):
                heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}[parts[-2]]
                array = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2)
                array = array.reshape(value.shape)
            writer.add_tensor(f"blk.{parts[1]}.{NAMES[parts[-2]]}.{parts[-1]}", np.ascontiguousarray(array))
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


FILES = {
    "gemma": ("Gemma, one key head", {}),
    "gemma2": ("Gemma 2, capped scores", {"query_pre_attn_scalar": 16, "layer_types": None}),
    "gemma3": (
        "Gemma 3, q/k norm, two rates",
        {"num_hidden_layers": 6, "layer_types": None, "query_pre_attn_scalar": 16},
    ),
    "olmo2": ("OLMo 2, norm over all heads", {}),
    "granite": ("Granite 3", {}),
    "qwen3moe": ("Qwen 3 MoE", {}),
    "arcee": ("Arcee", {}),
    "cohere2": ("Command R7B", {"num_hidden_layers": 4, "layer_types": None}),
    "command-r": ("Command R", {}),
    "nemotron": ("Nemotron", {"attention_bias": False}),
    "olmo": ("OLMo, clipped", {}),
    "phi3": ("Phi 3, fused", {}),
    "qwen2moe": ("Qwen 2 MoE", {}),
    "seed_oss": ("Seed-OSS", {}),
    "smollm3": ("SmolLM 3, a layer without RoPE", {"num_hidden_layers": 4, "no_rope_layers": None}),
    "starcoder2": ("StarCoder 2", {"sliding_window": None}),
}
HALVES = ("granite", "arcee", "olmo", "smollm3")  # rows of q and k are permuted


def written_whole(path: Path, model: Any, architecture: str, **stored: float) -> Path:
    """All tensors of a dense model as llama.cpp's converter stores them, with the settings of its architecture; ``stored`` replaces
    settings, with __ for a point."""
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    kind = gguf.MODEL_ARCH[architecture.upper().replace("-", "_")]
    table = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    numbers: dict[str, float] = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    }
    numbers |= {"attention.sliding_window": 5} if architecture in ("gemma2", "gemma3", "cohere2", "phi3") else {}
    if architecture == "nemotron":
        share = config.rope_parameters["partial_rotary_factor"]
        numbers["rope.dimension_count"] = int(share * numbers["attention.key_length"])
    numbers |= (
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 8} if "moe" in architecture else {}
    )
    other = {name.replace("__", "."): value for name, value in stored.items()}
    numbers |= {name: other[name] for name in numbers if name in other}
    for name, value in numbers.items():
        writer.add_uint32(f"{architecture}.{name}", int(value))
    names = ("layer_norm_eps", "norm_eps", "norm_epsilon")
    bare = next((getattr(config, name) for name in names if hasattr(config, name)), 1e-5)
    root = hasattr(config, "rms_norm_eps") and architecture != "olmo"
    floats = (
        {"attention.layer_norm_rms_epsilon": config.rms_norm_eps} if root else {"attention.layer_norm_epsilon": bare}
    )
    floats |= {"attention.clamp_kqv": config.clip_qkv} if architecture == "olmo" else {}
    floats |= {"logit_scale": config.logit_scale} if architecture in ("cohere2", "command-r") else {}
    floats |= {"attn_logit_softcapping": 2.0} if architecture == "gemma2" else {}
    own = config.rope_parameters.get("rope_theta", 1e6)  # Gemma 3 has one for each type of layer
    floats |= {"rope.freq_base": own}
    floats |= (
        {
            "attention.scale": config.attention_multiplier,
            "residual_scale": config.residual_multiplier,
            "embedding_scale": config.embedding_multiplier,
            "logit_scale": config.logits_scaling,
        }
        if architecture == "granite"
        else {}
    )
    floats |= {name: other[name] for name in floats if name in other}
    for name, value in floats.items():
        writer.add_float32(f"{architecture}.{name}", value)
    for name, value in model.state_dict().items():
        base, _, suffix = name.rpartition(".")
        short = table.get_name(f"model.{base}")
        if short is None:
            continue
        array = value.numpy()
        part = base.split(".")[-1]
        if architecture in HALVES and part in ("q_proj", "k_proj"):
            heads = config.num_attention_heads if part == "q_proj" else config.num_key_value_heads
            array = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2)
            array = array.reshape(value.shape)
        array = (
            array + 1.0 if architecture.startswith(("gemma", "nemotron")) and name.endswith("norm.weight") else array
        )
        writer.add_tensor(f"{short}.{suffix}", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("architecture", FILES)
def test_architectures_of_gguf(architecture: str, tmp_path: Path) -> None:
    """Laws, verification and, but for experts, the trace are those of the model in memory."""
    case, changes = FILES[architecture]
    model: Any = random_model(case, **changes)
    opened, live = at.checkpoint(written_whole(tmp_path / "model.gguf", model, architecture)), at.checkpoint(model)
    assert opened.family is live.family
    x = at.Tokens.gaussian(9, 32, seed=3)
    for first, second in zip(opened.layers, live.layers, strict=True):
        torch.testing.assert_close(
            at.velocity(first.attention, x), at.velocity(second.attention, x), rtol=1e-5, atol=1e-6
        )
        if first.norm is not None and second.norm is not None:
            torch.testing.assert_close(first.norm(x.points), second.norm(x.points), rtol=1e-5, atol=1e-6)
    assert opened.verify().error < 1e-12
    assert at.audit(opened, nulls=0).heads
    if "moe" not in architecture:
        ids = [3, 9, 27, 14, 5, 8, 30]
        torch.testing.assert_close(at.trace(opened, ids).points, at.trace(model, ids).points, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("case", "architecture"), [("Llama, grouped", "llama"), ("Qwen 2, biases", "qwen2")])
def test_a_gguf_file_gives_the_laws_of_its_model(case: str, architecture: str, tmp_path: Path) -> None:
    model = random_model(case)
    opened, live = at.checkpoint(written(tmp_path / "model.gguf", model, architecture)), at.checkpoint(model)
    for first, second in zip(opened.layers, live.layers, strict=True):
        for name in ("query", "key", "value", "output", "query_bias", "key_bias"):
            torch.testing.assert_close(getattr(first.attention, name), getattr(second.attention, name))
    assert opened.verify().error < 1e-12


ZEROS = {
    "gemma2": ({"attention__sliding_window": 0, "attn_logit_softcapping": 0.0}, {"attn_logit_softcapping": None}),
    "cohere2": ({"logit_scale": 0.0}, {"logit_scale": 1.0}),
    "olmo": ({"attention__clamp_kqv": 0.0}, {"clip_qkv": None}),
    "granite": (
        {"attention__scale": 0.0, "residual_scale": 0.0, "embedding_scale": 0.0},
        {"residual_multiplier": 1.0, "embedding_multiplier": 1.0, "attention_multiplier": 8**-0.5},
    ),
}


@pytest.mark.parametrize("architecture", ZEROS)
def test_stored_zeros_switch_off(architecture: str, tmp_path: Path) -> None:
    """llama.cpp takes 0 for no window, no cap and no factor; the defaults of transformers are other numbers."""
    stored, expected = ZEROS[architecture]
    case, changes = FILES[architecture]
    model: Any = random_model(case, **changes)
    opened = at.checkpoint(written_whole(tmp_path / "model.gguf", model, architecture, **stored))
    assert {name: getattr(opened.config, name) for name in expected} == expected
    if "attention__sliding_window" in stored:
        assert set(opened.config.layer_types) == {"full_attention"}
    assert opened.verify().error < 1e-12


def test_a_stored_zero_that_means_nothing_is_damage(tmp_path: Path) -> None:
    model: Any = random_model(*FILES["qwen3moe"][:1])
    with pytest.raises(CheckpointError, match="stores 0 for num_experts_per_tok"):
        at.checkpoint(written_whole(tmp_path / "model.gguf", model, "qwen3moe", expert_used_count=0))


def test_angles_with_divisors(tmp_path: Path) -> None:
    """Llama 3 files divide every angle by a number of its own."""
    divisors = [1.0, 1.0, 4.0, 8.0]
    path = written(tmp_path / "model.gguf", random_model("Llama, grouped"), divisors=divisors)
    opened = at.checkpoint(path)
    angles = opened.layers[0].attention.positions.frequencies(8)  # type: ignore[union-attr]
    torch.testing.assert_close(angles, at.Rotary(1e4).frequencies(8) / torch.tensor(divisors))
    assert opened.verify().error < 1e-12


def test_quantised_weights_are_said_to_be(tmp_path: Path) -> None:
    opened = at.checkpoint(written(tmp_path / "model.gguf", random_model("Llama, grouped")))
    assert "F32" in opened.notes[0]


def test_damage(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", random_model("Llama, grouped"))
    whole = path.read_bytes()
    for keep in (len(whole) - 5000, 200, 3):
        path.write_bytes(whole[:keep])
        with pytest.raises(CheckpointError, match="truncated or not a GGUF file"):
            at.checkpoint(path)
    with pytest.raises(
        UnsupportedError, match="architecture 'mamba'; attractor reads llama, qwen2, qwen3, qwen3moe, gemma"
    ):
        at.checkpoint(written(tmp_path / "other.gguf", random_model("Llama, grouped"), "mamba"))


def test_a_file_without_heads_is_one_sentence(tmp_path: Path) -> None:
    model = random_model("Qwen 2, biases")
    model.config.num_attention_heads = 0
    with pytest.raises(CheckpointError, match=r"says qwen2\.attention\.head_count = 0, and a model has at least 1"):
        at.checkpoint(written(tmp_path / "model.gguf", model, "qwen2"))


def test_a_refined_gguf_model_is_saved(tmp_path: Path) -> None:
    """transformers calls its weights quantised and does not save them, although they are floating-point numbers."""
    from types import SimpleNamespace

    from transformers import GgufConfig

    model: Any = random_model("Llama, grouped")
    model.config.quantization_config = GgufConfig()
    model.hf_quantizer, model.is_quantized = SimpleNamespace(quantization_config=GgufConfig()), True
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained(tmp_path)
    at.nn.refine(model, "shift").save_pretrained(tmp_path)
    assert at.nn.is_refined(at.nn.load_refined(tmp_path, type(model)))
