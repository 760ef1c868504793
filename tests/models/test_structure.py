"""Models without a family, wrapped models, and hidden states from elsewhere."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import MULTIMODAL, STRUCTURAL, draw_inputs, multimodal_model, random_model, structural_model
from torch import nn

import attractor as at
from attractor.errors import InputError, UnsupportedError
from attractor.models import Checkpoint
from attractor.models.structure import StructuralFamily, unwrap, use_eager_attention
from attractor.models.tensors import LiveTensors

IDS = [5, 9, 2, 33, 17, 8, 41, 3]
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 16, "vocab_size": 64}
SEQUENCE = {
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "vocab_size": 64,
    "decoder_start_token_id": 1,
}
EXPERTS = {**SIZES, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# model type, settings, blocks whose attention weights the model returns (None: all)
TYPES: dict[str, tuple[dict[str, Any], int | None]] = {
    "albert": ({**SIZES, "embedding_size": 16}, None),
    "persimmon": (SIZES, None),
    "stablelm": ({**SIZES, "num_key_value_heads": 2}, None),
    "mpt": ({"d_model": 32, "n_heads": 4, "n_layers": 3, "vocab_size": 64}, None),
    "xglm": ({"d_model": 32, "num_layers": 3, "attention_heads": 4, "ffn_dim": 16, "vocab_size": 64}, None),
    "ctrl": ({"n_embd": 32, "n_head": 4, "n_layer": 3, "dff": 16, "vocab_size": 64}, None),
    "bart": (SEQUENCE, None),
    "mixtral": (EXPERTS, None),
    "minimax": ({**EXPERTS, "num_hidden_layers": 4}, 2),
    "mamba": ({"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 64, "state_size": 4}, 0),
}


def build(kind: str, **changes: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(kind, **{**TYPES[kind][0], **ENDS, **changes})).eval()


def open_structurally(model: Any) -> Checkpoint:
    """The model as one without a family, whatever its type."""
    kind = model.config.model_type
    return Checkpoint(kind, StructuralFamily(kind), model.config, LiveTensors(model), torch.float64, model)


@pytest.mark.parametrize("kind", TYPES)
def test_states_and_weights_are_those_that_the_model_reports(kind: str) -> None:
    """Hidden states and entropies equal those of ``output_hidden_states`` and ``output_attentions``."""
    model, weighted = build(kind), TYPES[kind][1]
    run = at.trace(open_structurally(model), IDS)
    part: Any = model.get_encoder() if kind == "bart" else model  # type: ignore[operator]
    part.config._attn_implementation = "eager"
    with torch.no_grad():
        known = part(
            torch.tensor([IDS]), output_hidden_states=True, **({} if kind == "mamba" else {"output_attentions": True})
        )
    states = torch.cat(known.hidden_states).double()
    count = len(states) - 1
    assert run.points.shape == (count + 1, len(IDS), 32)
    # most models report the last state after the final norm, and Mamba does not report the first one
    own = run.points[1:] if kind == "mamba" else run.points[:-1]
    torch.testing.assert_close(own, states[:-1], rtol=0, atol=0)
    assert run.measurements is not None
    moved = (run.points[1] - run.points[0]).square().sum(-1).mean().sqrt()
    torch.testing.assert_close(run.measurements.blocks["displacement"][0], moved)
    assert "attention" not in run.measurements.blocks
    if weighted == 0:
        assert run.measurements.heads == {}
        return
    heads = run.measurements.heads["attention_entropy"]
    measured = ~heads.isnan().any(-1)
    assert int(measured.sum()) == (count if weighted is None else weighted)
    weights = [one for one in known.attentions if one is not None]
    expected = torch.stack([-(w.double() * w.double().clamp_min(1e-300).log()).sum(-1).mean(-1)[0] for w in weights])
    if weighted is None:
        torch.testing.assert_close(heads, expected, rtol=1e-5, atol=1e-6)


# the cache of the first two rejects their own hidden states; those of the third are tuples
UNREPORTED = ("qwen3_5_text", "xlstm", "pegasus_x")


@pytest.mark.parametrize("kind", STRUCTURAL)
def test_types_without_a_family_are_traced(kind: str) -> None:
    """States are those that the model reports; many models report the last one after their final norm, some not the first."""
    model: Any = structural_model(kind)
    inputs = draw_inputs(model)
    run = at.trace(model, inputs)
    assert run.points.shape[0] == 3
    assert run.points.isfinite().all()
    if "input_ids" in inputs:
        assert run.n == 8
    if kind in UNREPORTED:
        return
    part = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    with torch.no_grad(), use_eager_attention(part):
        known = part(**inputs, output_hidden_states=True).hidden_states
    assert len(known) >= 3
    known = [state.reshape(-1, state.shape[-1])[: run.n].double() for state in known]
    equal = [any(torch.allclose(state, own, rtol=1e-5, atol=1e-6) for own in known) for state in run.points]
    assert sum(equal) >= 2


def test_blocks_that_the_stream_passes_by_are_no_blocks() -> None:
    """The feed-forward parts of XLM are a list of modules from hidden states to hidden states, but not its blocks."""
    from transformers import AutoConfig, AutoModel

    model = AutoModel.from_config(AutoConfig.for_model("xlm", emb_dim=32, n_heads=4, n_layers=3, n_words=64)).eval()
    with pytest.raises(UnsupportedError, match="not the residual stream"):
        at.trace(model, IDS)


def test_the_models_attention_implementation_is_restored() -> None:
    model: Any = build("persimmon")
    before = model.config._attn_implementation
    at.trace(model, IDS)
    assert model.config._attn_implementation == before


def test_a_type_without_a_family_is_opened_from_a_folder(tmp_path: Path) -> None:
    model: Any = build("persimmon")
    model.save_pretrained(tmp_path / "model")
    run = at.trace(tmp_path / "model", IDS)
    torch.testing.assert_close(run.points, at.trace(open_structurally(model), IDS).points)
    assert any("found by structure" in note for note in run.notes)
    with pytest.raises(UnsupportedError, match="family"):
        at.audit(tmp_path / "model")


def test_a_decoder_is_chosen_by_name() -> None:
    model = build("bart")
    ids = torch.tensor([IDS])
    inputs = {"input_ids": ids, "decoder_input_ids": ids[:, :5]}
    run = at.trace(open_structurally(model), inputs, stack="decoder.layers")
    assert run.points.shape == (3, 5, 32)
    with pytest.raises(InputError, match=r"encoder\.layers"):
        at.trace(open_structurally(model), inputs, stack="vision")


class TokenMixer(nn.Module):
    """A model that is not of transformers: one block, applied several times to hidden states."""

    def __init__(self, loops: int = 4, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(width, 2, 8, dropout=0.0, batch_first=True)])
        self.loops = loops

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for _ in range(self.loops):
            x = self.blocks[0](x)
        return x


class Mixing(TokenMixer):
    """A model that adds the embedding again before every block."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = first = self.embed(tokens)
        for block in (self.blocks[0],) * self.loops:
            x = block(0.9 * x + 0.1 * first)
        return x


def test_a_stream_that_changes_between_blocks_is_traced_with_a_note() -> None:
    torch.manual_seed(0)
    assert any("changes the stream" in note for note in at.trace(Mixing().eval(), IDS).notes)


def test_a_module_of_ones_own_with_a_shared_block() -> None:
    torch.manual_seed(0)
    model = TokenMixer().eval()
    run = at.trace(model, IDS)
    x = model.embed(torch.tensor([IDS]))
    expected = [x]
    for _ in range(4):
        expected.append(model.blocks[0](expected[-1]))
    torch.testing.assert_close(run.points, torch.cat(expected).double().detach(), rtol=1e-5, atol=1e-6)


def test_wrappers_are_opened(tmp_path: Path) -> None:
    """torch.compile and data parallel wrappers give the same trace as the model inside."""
    model = random_model("GPT-2")
    expected = at.trace(model, IDS).points
    for wrapped in (torch.compile(model, backend="eager"), nn.DataParallel(model)):
        assert unwrap(wrapped) is model
        torch.testing.assert_close(at.trace(wrapped, IDS).points, expected, rtol=0, atol=0)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        torch.testing.assert_close(at.trace(parallel, IDS).points, expected, rtol=0, atol=0)
        assert len(at.audit(parallel, verify=False, nulls=0).heads) == 8
        sharded = copy.deepcopy(model)
        for block in sharded.h:  # type: ignore[union-attr]
            torch.distributed.fsdp.fully_shard(block)
        torch.distributed.fsdp.fully_shard(sharded)
        torch.testing.assert_close(at.trace(sharded, IDS).points, expected, rtol=1e-5, atol=1e-5)
        assert at.audit(sharded, nulls=0).heads == at.audit(model, nulls=0).heads
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", MULTIMODAL)
def test_the_text_part_of_a_multimodal_model(kind: str, tmp_path: Path) -> None:
    """Live and from files, the text part is opened by its family; the whole is traced by structure to the same states."""
    model: Any = multimodal_model(kind)
    model.save_pretrained(tmp_path / kind)
    live, stored = at.checkpoint(model), at.checkpoint(tmp_path / kind)
    assert live.config.model_type == stored.config.model_type == model.config.text_config.model_type
    assert live.verify().error < 1e-12
    assert stored.verify().error < 1e-12
    assert f"text part of a {kind}" in stored.notes[0]
    assert len(at.audit(tmp_path / kind, nulls=0, detail="heads").heads) == 8
    expected = at.trace(live, IDS).points
    torch.testing.assert_close(at.trace(stored, IDS).points, expected, rtol=0, atol=0)
    torch.testing.assert_close(at.trace(model, IDS).points, expected, rtol=1e-4, atol=1e-5)


def test_a_text_part_that_reads_in_both_directions_is_rejected() -> None:
    """PaliGemma reads its prompt without a causal mask, whatever the code of Gemma alone does."""
    from transformers import AutoConfig, AutoModel

    text = {"model_type": "gemma", **MULTIMODAL["llava"]["text_config"], "num_key_value_heads": 1, "head_dim": 8}
    vision = {**MULTIMODAL["llava"]["vision_config"], "model_type": "siglip_vision_model"}
    config = AutoConfig.for_model("paligemma", text_config={**text, "model_type": "gemma"}, vision_config=vision)
    model = AutoModel.from_config(config).eval()
    with pytest.raises(UnsupportedError, match="both directions"):
        at.audit(model)
    assert at.trace(model, IDS).points.shape == (3, len(IDS), 32)


@pytest.mark.parametrize("kind", ["llava", "gemma3"])
def test_the_image_tower_of_a_multimodal_model(kind: str, tmp_path: Path) -> None:
    model: Any = multimodal_model(kind)
    model.save_pretrained(tmp_path / kind)
    live, stored = at.checkpoint(model, part="vision"), at.checkpoint(tmp_path / kind, part="vision")
    assert live.family.name == stored.family.name == "clip"
    assert stored.verify().error < 1e-12
    assert at.audit(stored, nulls=0).heads == at.audit(live, nulls=0).heads
    picture = {"pixel_values": torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(0))}
    torch.testing.assert_close(at.trace(stored, picture).points, at.trace(model, picture).points, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="no part 'audio'; it has text, vision"):
        at.checkpoint(tmp_path / kind, part="audio")
    with pytest.raises(InputError, match="no part 'vision'"):
        at.checkpoint(random_model("GPT-2"), part="vision")


class LowRankLinear(nn.Module):
    """A linear layer with adapters, with the attributes of the one in PEFT."""

    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.ModuleDict({"one": nn.Linear(base_layer.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"one": nn.Linear(2, base_layer.out_features, bias=False)})
        self.lora_embedding_A = nn.ParameterDict()
        self.lora_variant: dict[str, Any] = {}
        self.active_adapters, self.merged, self.disable_adapters = ["one"], False, False

    def get_delta_weight(self, adapter: str) -> torch.Tensor:
        return 3.0 * self.lora_B[adapter].weight @ self.lora_A[adapter].weight  # type: ignore[operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + (0.0 if self.disable_adapters else x @ self.get_delta_weight("one").mT)


def test_adapters_in_memory_are_merged_when_they_are_read() -> None:
    torch.manual_seed(0)
    model: Any = random_model("Llama, grouped")
    merged = copy.deepcopy(model)
    for own, other in zip(model.layers, merged.layers, strict=True):
        for name in ("q_proj", "v_proj"):
            layer = LowRankLinear(getattr(own.self_attn, name))
            setattr(own.self_attn, name, layer)
            getattr(other.self_attn, name).weight.data += layer.get_delta_weight("one").detach()
    found, expected = at.audit(model, nulls=0), at.audit(merged, nulls=0)
    assert found.card.verified is not None
    assert found.card.verified.passed
    for name in ("value_radius", "interaction_index"):
        columns = ([head.quantities[name] for head in one.heads] for one in (found, expected))
        np.testing.assert_allclose(*columns, rtol=1e-5)
    torch.testing.assert_close(at.trace(model, IDS).points, at.trace(merged, IDS).points, rtol=1e-4, atol=1e-5)
    model.layers[0].self_attn.q_proj.lora_variant = {"one": "DoRA"}
    with pytest.raises(UnsupportedError, match="not plain LoRA"):
        at.audit(model)


def test_envoys_of_nnsight_and_bridges_of_transformer_lens() -> None:
    model: Any = random_model("GPT-2")
    expected = at.trace(model, IDS).points
    envoy = type("NNsight", (), {"__module__": "nnsight.modeling.base"})()
    envoy._module = model
    torch.testing.assert_close(at.trace(envoy, IDS).points, expected, rtol=0, atol=0)

    class Bridge(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            self.add_module("_original_component", part)

        def forward(self, *given: Any, **options: Any) -> Any:
            return self._original_component(*given, **options)  # type: ignore[operator]

    bridged = copy.deepcopy(model)
    for block in bridged.h:
        block.attn = Bridge(block.attn)
    bridge: Any = type("TransformerBridge", (), {"original_model": bridged, "compatibility_mode": False})()
    torch.testing.assert_close(at.trace(bridge, IDS).points, expected, rtol=1e-4, atol=1e-5)
    assert at.audit(bridge, nulls=0).heads == at.audit(model, nulls=0).heads
    bridge.compatibility_mode = True
    with pytest.raises(UnsupportedError, match="folded"):
        at.trace(bridge, IDS)


def test_a_folded_transformer_lens_model_is_rejected() -> None:
    kind = type("HookedTransformer", (TokenMixer,), {})
    model: Any = kind()
    model.cfg = SimpleNamespace(normalization_type="LNPre")
    with pytest.raises(UnsupportedError, match="folded"):
        at.trace(model, IDS)
    model.cfg.normalization_type = "LN"
    assert at.trace(model, IDS).points.shape == (5, len(IDS), 6)


def test_models_without_a_chain_of_blocks_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match="no blocks"):
        at.trace(nn.Sequential(nn.Embedding(64, 4), nn.Linear(4, 4)), IDS)
    with pytest.raises(UnsupportedError, match="attention cannot be removed"):
        at.trace(build("persimmon"), IDS, without=["attention"])
    with pytest.raises(UnsupportedError, match="cannot be run on"):
        at.trace(TokenMixer(), {"pixel_values": torch.zeros(1, 3, 4, 4)})


# ---------------------------------------------------------------- hidden states from elsewhere


@pytest.fixture
def states(rng: np.random.Generator) -> np.ndarray:
    return np.cumsum(rng.normal(size=(4, 7, 5)), axis=0)


@pytest.fixture
def attentions(rng: np.random.Generator) -> np.ndarray:
    weights = rng.random(size=(3, 2, 7, 7))
    return weights / weights.sum(-1, keepdims=True)


def write(path: Path, **arrays: np.ndarray) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    elif path.suffix == ".npy":
        np.save(path, arrays["states"])
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file(arrays, path)
    else:
        import zarr

        group = zarr.create_group(store=str(path))
        for name, array in arrays.items():
            group.create_array(name, data=array)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".zarr"])
def test_hidden_states_of_a_file(tmp_path: Path, suffix: str, states: np.ndarray, attentions: np.ndarray) -> None:
    arrays = {"states": states} | ({} if suffix == ".npy" else {"attentions": attentions})
    run = at.trace(states=write(tmp_path / f"given{suffix}", **arrays))
    np.testing.assert_array_equal(run.points.numpy(), states)
    assert run.measurements is not None
    np.testing.assert_allclose(run.observe("token_norm"), np.linalg.norm(states, axis=-1).mean(-1))
    if suffix != ".npy":
        entropy = -(attentions * np.log(attentions)).sum(-1).mean(-1)
        np.testing.assert_allclose(run.measurements.heads["attention_entropy"].numpy(), entropy)


def test_hidden_states_of_transformers_are_those_of_the_trace() -> None:
    model: Any = random_model("GPT-2")
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        found = model(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True)
    run, known = at.trace(states=found.hidden_states, attentions=found.attentions), at.trace(model, IDS)
    assert run.measurements is not None
    assert known.measurements is not None
    for name in ("attention_entropy", "self_weight", "first_weight"):
        torch.testing.assert_close(run.measurements.heads[name], known.measurements.heads[name], rtol=1e-4, atol=1e-5)


def test_a_saved_trace_is_read_again(tmp_path: Path) -> None:
    model = random_model("GPT-2")
    run = at.trace(model, IDS)
    run.save(tmp_path / "trace.npz")
    again = at.trace(states=tmp_path / "trace.npz")
    torch.testing.assert_close(again.points, run.points, rtol=0, atol=0)
    assert again.words == run.words
    with pytest.raises(InputError, match="npz"):
        run.save(tmp_path / "trace.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.npz"]


def spoil(array: np.ndarray, place: tuple[int, ...], value: float) -> np.ndarray:
    array = array.copy()
    array[place] = value
    return array


def test_bad_hidden_states_are_rejected(tmp_path: Path, states: np.ndarray, attentions: np.ndarray) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"states": spoil(states, (2, 3, 1), np.nan)}, "state 2, token 3"),
        ({"states": spoil(states, (1, 0, 0), np.inf)}, "not finite"),
        ({"states": states[:1]}, "at least one block"),
        ({"states": states[:, :1]}, "at least two tokens"),
        ({"states": [states[0], states[1, :, :3]]}, "different shapes"),
        ({"states": states[0]}, "shape"),
        ({"states": states.astype(str)}, "array of"),
        ({"states": states, "attentions": spoil(attentions, (1, 1, 4, 0), 0.9)}, "block 1, head 1, token 4"),
        ({"states": states, "attentions": spoil(attentions, (0, 0, 0, 0), -0.1)}, "non-negative"),
        ({"states": states, "attentions": spoil(attentions, (2, 0, 0, 0), np.nan)}, "block 2"),
        ({"states": states, "attentions": attentions[:2]}, "2 blocks"),
        ({"states": states, "attentions": attentions[..., :5]}, "shape"),
        ({"states": states, "words": ["a"]}, "1 words"),
        ({"states": tmp_path / "missing.npz"}, "no file"),
        ({"states": {"a": states, "b": states}}, "called 'states'"),
        ({}, "a model and a text"),
        ({"words": ["a"], "source": "minilm", "text": "some words"}, "belong to states"),
    ]
    for arguments, message in bad:
        with pytest.raises(InputError, match=message):
            at.trace(**arguments)
    (tmp_path / "cut.npz").write_bytes(write(tmp_path / "whole.npz", states=states).read_bytes()[:200])
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    (tmp_path / "bad.safetensors").write_bytes(b"\x00" * 20)
    (tmp_path / "empty").mkdir()
    for name in ("cut.npz", "objects.npy", "bad.safetensors", "empty"):
        with pytest.raises(InputError, match=r"cannot be read|called 'states'"):
            at.trace(states=tmp_path / name)
