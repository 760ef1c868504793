"""GGUF files: quantised tensors in one file, dequantised one at a time."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attractor.errors import CheckpointError, UnsupportedError, missing
from attractor.models.checkpoints import Checkpoint
from attractor.models.family import find_family

# architectures of llama.cpp and their families; their tensors agree up to the order of rows, see to_half_split
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "olmo2": "olmo2",
    "granite": "granite",
    "arcee": "arcee",
    "cohere2": "cohere2",
    "command-r": "cohere",
    "nemotron": "nemotron",
    "olmo": "olmo",
    "phi3": "phi3",
    "qwen2moe": "qwen2_moe",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "starcoder2": "starcoder2",
}
PERMUTED = ("llama", "granite", "arcee", "olmo", "smollm3")  # rows of q and k are stored as neighbouring pairs
SHIFTED = ("gemma", "gemma2", "gemma3", "nemotron")  # gains of norms are stored as 1 + weight
# name of the epsilon of a LayerNorm in the configuration; None if it is a constant of the code
EPSILONS = {
    "cohere2": "layer_norm_eps",
    "command-r": "layer_norm_eps",
    "nemotron": "norm_eps",
    "olmo": None,
    "starcoder2": "norm_epsilon",
}
PARTIAL = ("nemotron",)  # a part of each head may be rotated
# entries of single architectures: name in the configuration, name in the file
OFF = {
    "sliding_window": 2**30,  # longer than any text; some models need a number
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "clip_qkv": None,
    "residual_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
}
SPECIAL: dict[str, dict[str, str]] = {
    "qwen3moe": {
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    },
    "gemma2": {
        "sliding_window": "attention.sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "gemma3": {"sliding_window": "attention.sliding_window"},
    "cohere2": {"sliding_window": "attention.sliding_window", "logit_scale": "logit_scale"},
    "command-r": {"logit_scale": "logit_scale"},
    "olmo": {"clip_qkv": "attention.clamp_kqv"},
    "phi3": {"sliding_window": "attention.sliding_window"},
    "qwen2moe": {
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    },
    "granite": {
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "embedding_multiplier": "embedding_scale",
        "logits_scaling": "logit_scale",
    },
}
LARGEST = {
    "gemma2": 46,
    "gemma3": 62,
}  # layers of the 27B models, whose scores are scaled by the width instead of the head
LOCAL_THETA = 1e4  # of the local layers of Gemma 3, a constant of llama.cpp
FIELDS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
}


def open_gguf(path: Path, dtype: torch.dtype) -> Checkpoint:
    """Open a GGUF file."""
    tensors = GGUFTensors(path)
    architecture = tensors.field("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{path} is a GGUF file of architecture {architecture!r}; attractor reads {', '.join(ARCHITECTURES)} from GGUF, "
            "and other families from safetensors"
        )
    family = find_family(ARCHITECTURES[architecture], str(path))
    config = _make_config(tensors, architecture)
    tensors.map_names(config, permuted=architecture in PERMUTED, shifted=architecture in SHIFTED)
    note = f"the weights are quantised ({', '.join(tensors.formats())}), so spectra are approximate"
    return Checkpoint(str(path), family, config, tensors, dtype, notes=(note,))


class GGUFTensors:
    """The tensors of a GGUF file under their names in transformers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._gguf: Any = __import__("gguf")
        except ImportError:
            raise missing("gguf", "checkpoints") from None
        try:
            self._reader = self._gguf.GGUFReader(path)
            self._stored = {tensor.name: tensor for tensor in self._reader.tensors}
        except Exception as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}): it is truncated or not a GGUF file; fetch it again"
            ) from None
        self._names: dict[str, str] = {}
        self._heads: dict[str, int] = {}
        self._shifted = False

    def field(self, key: str, default: Any = None) -> Any:
        """An entry of the file's metadata."""
        found = self._reader.fields.get(key)
        return default if found is None else found.contents()

    def __contains__(self, stored: str) -> bool:
        """Whether the file has a tensor of this name of llama.cpp."""
        return stored in self._stored

    def map_names(self, config: Any, permuted: bool, shifted: bool = False) -> None:
        """Map names of transformers to stored ones; with ``permuted`` the rows of q and k are stored as neighbouring pairs, with
        ``shifted`` the gains of norms as 1 + weight."""
        self._shifted = shifted
        architecture = self._gguf.MODEL_ARCH[self.field("general.architecture").upper().replace("-", "_")]
        table = self._gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
        parts = ["q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "q_norm", "k_norm"]
        inside = [f"self_attn.{part}" for part in parts] + ["input_layernorm", "post_attention_layernorm"]
        inside += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        architecture_name = self.field("general.architecture")
        inside += FEED_FORWARD.get(architecture_name, ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"])
        wanted = [f"model.layers.{index}.{part}" for index in range(config.num_hidden_layers) for part in inside]
        for name in [*wanted, "model.embed_tokens", "model.norm", "lm_head"]:
            short = table.get_name(name)
            for suffix in (".weight", ".bias"):
                if short is not None and short + suffix in self._stored:
                    self._names[name + suffix] = short + suffix
        if permuted:
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
            self._heads = {name: heads[part] for name in self._names if (part := name.split(".")[-2]) in heads}

    def names(self) -> Collection[str]:
        return self._names.keys()

    def without_grid(self) -> list[str]:
        """Formats of attention matrices whose grid is not known."""
        from attractor.models.quantisation import FLOATS, LAYOUTS, TABLES

        return [kind for kind in self.formats() if kind not in {*FLOATS, *LAYOUTS, *TABLES}]

    def formats(self) -> list[str]:
        """The storage formats of attention matrices."""
        matrices = [tensor for name, tensor in self._stored.items() if ".attn_" in name and len(tensor.shape) > 1]
        return sorted({tensor.tensor_type.name for tensor in matrices})

    def read(self, name: str) -> Tensor:
        stored = self._stored[self._names[name]]
        try:
            values = torch.from_numpy(self._gguf.dequantize(stored.data, stored.tensor_type).copy())
        except NotImplementedError:
            raise UnsupportedError(
                f"the tensor {name} of {self.path} is stored as {stored.tensor_type.name}, which gguf cannot read"
            ) from None
        if self._shifted and name.endswith("norm.weight"):
            values = values - 1.0
        return self._permute(name, values)

    def step(self, name: str) -> Tensor | None:
        """The grid step of every entry of a tensor; None where its format has no uniform grid."""
        from attractor.models.quantisation import steps

        stored = self._stored[self._names[name]]
        found = steps(self._gguf, stored.data, stored.tensor_type)
        if found is None:
            return None
        return self._permute(name, torch.from_numpy(found))

    def _permute(self, name: str, values: Tensor) -> Tensor:
        heads = self._heads.get(name)
        return values if heads is None else to_half_split(values, heads)

    def describe(self) -> str:
        return str(self.path)


# names of the feed-forward matrices, where they are not gate_proj, up_proj and down_proj
FEED_FORWARD = {
    "arcee": ["mlp.up_proj", "mlp.down_proj"],
    "nemotron": ["mlp.up_proj", "mlp.down_proj"],
    "phi3": ["mlp.gate_up_proj", "mlp.down_proj"],
    "starcoder2": ["mlp.c_fc", "mlp.c_proj"],
}


def to_half_split(rows: Tensor, heads: int) -> Tensor:
    """Permute rows of heads from neighbouring rotary pairs to half-split ones, the order of transformers."""
    half = rows.shape[0] // heads // 2
    return rows.unflatten(0, (heads, half, 2)).transpose(1, 2).reshape(rows.shape)


def _make_config(tensors: GGUFTensors, architecture: str) -> Any:
    """A configuration of transformers from the metadata."""
    from transformers import AutoConfig

    fields = dict(FIELDS)
    if architecture in EPSILONS:
        del fields["rms_norm_eps"]
        epsilon = EPSILONS[architecture]
        fields |= {} if epsilon is None else {epsilon: "attention.layer_norm_epsilon"}
    found = {name: tensors.field(f"{architecture}.{key}") for name, key in fields.items()}
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", *(one for one in fields if "eps" in one)):
        if found[name] is None:
            raise CheckpointError(f"{tensors.path} does not say its {architecture}.{fields[name]}")
    settings = {name: value for name, value in found.items() if value is not None}
    for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"):
        value = settings.get(name)
        if isinstance(value, Integral) and int(value) < 1:
            raise CheckpointError(
                f"{tensors.path} says {architecture}.{FIELDS[name]} = {value}, and a model has at least 1: it is damaged"
            )
    if settings["num_hidden_layers"] > len(tensors._stored):
        raise CheckpointError(
            f"{tensors.path} says {architecture}.block_count = {settings['num_hidden_layers']} and holds "
            f"{len(tensors._stored)} tensors: it is damaged"
        )
    if "token_embd.weight" in tensors:  # a size in the metadata is optional
        settings["vocab_size"] = int(tensors._stored["token_embd.weight"].shape[-1])
    biased = "blk.0.attn_q.bias" in tensors
    settings |= dict.fromkeys(("attention_bias", "qkv_bias", "use_bias"), biased)
    if architecture == "seed_oss":
        settings["attention_out_bias"] = "blk.0.attn_output.bias" in tensors
    if architecture == "command-r":
        settings["use_qk_norm"] = "blk.0.attn_q_norm.weight" in tensors
    if architecture == "phi3" and not tensors.field("phi3.attention.sliding_window"):
        settings["sliding_window"] = None
    special = {name: tensors.field(f"{architecture}.{key}") for name, key in SPECIAL.get(architecture, {}).items()}
    settings |= {name: value for name, value in special.items() if value is not None}
    _switch_off(tensors, settings, [name for name, value in special.items() if value is not None and value == 0])
    settings["rope_parameters"] = _rope(tensors, architecture, settings)
    head_dim = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
    if architecture == "granite" and not special["attention_multiplier"]:
        settings["attention_multiplier"] = head_dim**-0.5
    if architecture in LARGEST:
        wide = settings["num_hidden_layers"] == LARGEST[architecture]
        share = settings["hidden_size"] // settings["num_attention_heads"]
        settings["query_pre_attn_scalar"] = share if wide else head_dim
    if architecture == "gemma3":
        theta = float(tensors.field("gemma3.rope.freq_base_swa", LOCAL_THETA))
        local = {"rope_type": "default", "rope_theta": theta}
        settings["rope_parameters"] = {"sliding_attention": local, "full_attention": settings["rope_parameters"]}
    config = AutoConfig.for_model(ARCHITECTURES[architecture], **settings)
    if (getattr(config, "pad_token_id", None) or 0) >= settings.get("vocab_size", config.vocab_size):
        config.pad_token_id = None  # a default for a larger vocabulary
    return config


def _switch_off(tensors: GGUFTensors, settings: dict[str, Any], zeros: list[str]) -> None:
    """Replace values for which a file stores 0 by what llama.cpp takes 0 for: no window, no cap, no factor."""
    for name in zeros:
        if name == "attention_multiplier":  # the usual scale, see below
            continue
        if name not in OFF:
            raise CheckpointError(f"{tensors.path} stores 0 for {name}: it is damaged")
        settings[name] = OFF[name]
        if name == "sliding_window":
            settings["layer_types"] = ["full_attention"] * int(settings["num_hidden_layers"])


def _rope(tensors: GGUFTensors, architecture: str, settings: dict[str, Any]) -> dict[str, Any]:
    theta = float(tensors.field(f"{architecture}.rope.freq_base", 1e4))
    kind = tensors.field(f"{architecture}.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise UnsupportedError(f"{tensors.path} scales rotary positions by {kind!r}, which is not read from GGUF files")
    head_dim = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
    turned = tensors.field(f"{architecture}.rope.dimension_count", head_dim)
    if turned != head_dim and architecture not in PARTIAL:
        raise UnsupportedError(f"{tensors.path} rotates only a part of each head, which is not read from GGUF files")
    if any(name in tensors for name in ("rope_factors_long.weight", "rope_factors_short.weight")):
        raise UnsupportedError(
            f"{tensors.path} scales rotary positions by two lists of factors, which are not read from GGUF files"
        )
    part = {} if turned == head_dim else {"partial_rotary_factor": turned / head_dim}
    divisors = tensors._stored.get("rope_freqs.weight")
    if divisors is not None:
        # Llama 3 stores one divisor for each angle; transformers' longrope has the same form
        factors = [float(value) for value in divisors.data]
        same = {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
        limit = settings.get("max_position_embeddings", 2048)
        return {"rope_type": "longrope", "rope_theta": theta, "original_max_position_embeddings": limit, **same}
    if kind == "linear":
        return {
            "rope_type": "linear",
            "rope_theta": theta,
            "factor": float(tensors.field(f"{architecture}.rope.scaling.factor")),
            **part,
        }
    return {"rope_type": "default", "rope_theta": theta, **part}
