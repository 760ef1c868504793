"""Refined models of transformers as checkpoints: in memory and saved, audits, traces and verification contain the refinement."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import attractor as at
from attractor.errors import CheckpointError, UnsupportedError
from attractor.models import checkpoint

transformers: Any = pytest.importorskip("transformers", reason="comes with attractor[checkpoints]")
SIZES: dict[str, Any] = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 16, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4}
TEXT = torch.arange(1, 12)


def make(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=50, n_embd=24, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
        return transformers.GPT2LMHeadModel(config).eval()
    name = {"llama": "Llama", "qwen3": "Qwen3", "bert": "Bert", "nemotron": "Nemotron"}[kind]
    grouped = {} if kind == "bert" else {"num_key_value_heads": 2, "head_dim": 6}
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **grouped, **changes})
    return getattr(transformers, f"{name}Model" if kind == "bert" else f"{name}ForCausalLM")(config).eval()


def spread(model: Any) -> Any:
    """Random strengths, a different one everywhere."""
    torch.manual_seed(1)
    for name, part in model.named_parameters():
        if name.endswith("refinement.theta"):
            part.data.normal_()
    return model


@pytest.mark.parametrize("refinement", ["shift", "slice"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3", "bert"])
def test_the_laws_of_a_refined_model_are_its_own(kind: str, refinement: Any, tmp_path: Path) -> None:
    """Against the model's own code with the refinement, in memory and saved; without it they would differ."""
    model = spread(at.nn.refine(make(kind), refinement, sign="-"))
    found = checkpoint(model)
    assert found.verify().error < 1e-14
    tokens = at.Tokens(torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    moved = at.velocity(found.layers[1].attention, tokens)
    model.save_pretrained(tmp_path)
    saved = checkpoint(tmp_path)
    assert saved.verify().error < 1e-14
    assert torch.equal(at.velocity(saved.layers[1].attention, tokens), moved)
    without = at.velocity(checkpoint(at.nn.unrefine(model)).layers[1].attention, tokens)
    assert float((without - moved).norm() / moved.norm()) > 1e-4


def fold(model: Any) -> Any:
    """The shift of a Nemotron model in q, k, v and o, by hand: heads of twice the dimension, of which positions turn the first half."""
    config = copy.deepcopy(model.config)
    k, h, g, d = config.head_dim, config.num_attention_heads, config.num_key_value_heads, config.hidden_size
    turned = int(k * config.rope_parameters["partial_rotary_factor"])
    wide = make(
        "nemotron",
        head_dim=2 * k,
        rope_parameters={**config.rope_parameters, "partial_rotary_factor": turned / (2 * k)},
    )
    state = {name: part for name, part in model.state_dict().items() if "refinement" not in name}
    for index, block in enumerate(model.model.layers):
        path, own = f"model.layers.{index}.self_attn.", block.self_attn
        strength = own.refinement.strength.detach().double()
        q, key, v = (getattr(own, f"{name}_proj").weight.detach().double().view(-1, k, d) for name in "qkv")
        o = own.o_proj.weight.detach().double().view(d, h, k)
        zeros = torch.zeros(g, k, d, dtype=torch.float64)
        more = strength.view(h, 1, 1) * o.permute(1, 2, 0)
        # scores are divided by the root of the dimension of heads
        state[path + "q_proj.weight"] = torch.cat((q, more), 1).flatten(0, 1) * 2**0.5
        state[path + "k_proj.weight"] = torch.cat((key, v), 1).flatten(0, 1)
        state[path + "v_proj.weight"] = torch.cat((v, zeros), 1).flatten(0, 1)
        state[path + "o_proj.weight"] = torch.cat((o, torch.zeros_like(o)), -1).flatten(1)
    wide = wide.double()
    wide.load_state_dict({name: part.double() for name, part in state.items()})
    return wide


def test_the_audit_is_that_of_the_folded_model() -> None:
    model = spread(at.nn.refine(make("nemotron", head_dim=4), "shift")).double()
    folded = fold(model)
    with torch.no_grad():
        torch.testing.assert_close(model(TEXT[None]).logits, folded(TEXT[None]).logits, rtol=1e-6, atol=1e-6)
    mine, other = (at.audit(one, nulls=0, verify=False) for one in (model, folded))
    plain = at.audit(at.nn.unrefine(copy.deepcopy(model)), nulls=0, verify=False)
    assert "the refinement (shift of sign 'free') is contained in the interactions" in mine.notes
    frames = [one.frame().select_dtypes("number") for one in (mine, other, plain)]
    names = [name for name in frames[0] if name not in ("head_dim", "k", "r")]
    for name in names:
        one, two = (torch.tensor(frame[name].to_numpy(dtype=float)) for frame in frames[:2])
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10, equal_nan=True, msg=name)
    assert abs(frames[0]["metric_index"] - frames[2]["metric_index"]).max() > 1e-3
    assert [head.label for head in mine.heads] == [head.label for head in other.heads]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_saved_model_is_traced_with_its_refinement(kind: str, tmp_path: Path) -> None:
    model = spread(at.nn.refine(make(kind), "shift"))
    model.save_pretrained(tmp_path)
    live, saved = at.trace(model, TEXT), at.trace(tmp_path, TEXT)
    with torch.no_grad():
        own = model(TEXT[None], output_hidden_states=True).hidden_states
    for index in range(2):
        assert torch.equal(live.points[index], own[index][0].double())
    assert torch.equal(live.points, saved.points)
    assert live.measurements is not None
    assert saved.measurements is not None
    plain = at.trace(at.nn.unrefine(model), TEXT)
    assert plain.measurements is not None
    entropy = [one.measurements.heads["attention_entropy"] for one in (live, saved, plain)]  # type: ignore[union-attr]
    assert torch.equal(entropy[0], entropy[1])
    assert float((entropy[0] - entropy[2]).abs().max()) > 1e-6


def test_a_refined_folder_is_not_loaded_without_its_refinement(tmp_path: Path) -> None:
    model = spread(at.nn.refine(make("gpt2"), "shift"))
    model.save_pretrained(tmp_path)
    # a process without attractor does not know this function, and transformers raises for it
    assert json.loads((tmp_path / "config.json").read_text())["attn_implementation"] == "attractor_sdpa"
    with pytest.raises(ValueError, match="attractor-gpt2"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    bare = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="was saved with a refinement, which from_pretrained left out"):
        bare(TEXT[None])
    again = at.nn.load_refined(tmp_path)
    with torch.no_grad():
        assert torch.equal(again(TEXT[None]).logits, model(TEXT[None]).logits)
    assert again.config.model_type == "gpt2"
    config = pickle.loads(pickle.dumps(model.config))
    assert config.to_diff_dict() == copy.deepcopy(model).config.to_diff_dict() == model.config.to_diff_dict()
    plain = at.nn.unrefine(model)
    plain.save_pretrained(tmp_path / "plain")
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")


def test_a_damaged_refinement_is_an_error(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    at.nn.refine(make("gpt2"), "shift").save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    name = "transformer.h.0.attn.refinement.form_letters"
    state[name] = state[name].flip(0)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="of an unknown kind"):
        checkpoint(tmp_path).layers[0]


def test_a_monitor_measures_a_refined_model() -> None:
    model = at.nn.refine(make("llama"), "shift", sign="+")
    monitor = at.monitor(model, every=1)
    model(TEXT[None], labels=TEXT[None]).loss.backward()
    record = monitor.step(1.0)
    assert record is not None
    assert "block0/entropy" in record or any(name.startswith("block0/") for name in record)


NARROW = {name: size for name, size in SIZES.items() if name != "vocab_size"}
PIXELS = {"image_size": 8, "patch_size": 4}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
OPT = {"vocab_size": 50, "hidden_size": 24, "ffn_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
T5 = {"vocab_size": 50, "d_model": 24, "d_kv": 6, "d_ff": 16, "num_layers": 2, "num_heads": 4}
BIGCODE = {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**SIZES, "hidden_size": 32, "rotary_pct": 0.5}),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", {**SIZES, "num_key_value_heads": 2, "pad_token_id": 0}),
    "OPT": ("OPTForCausalLM", "OPTConfig", {**OPT, "word_embed_proj_dim": 24, "max_position_embeddings": 32}),
    "ModernBERT": ("ModernBertModel", "ModernBertConfig", {**SIZES, **TOKENS, "cls_token_id": 0, "sep_token_id": 1}),
    "ViT": ("ViTModel", "ViTConfig", {**NARROW, **PIXELS}),
    "T5 encoder": ("T5EncoderModel", "T5Config", T5),
    "CLIP text": ("CLIPTextModel", "CLIPTextConfig", {**SIZES, **TOKENS, "max_position_embeddings": 32}),
    "CLIP vision": ("CLIPVisionModel", "CLIPVisionConfig", {**NARROW, **PIXELS}),
    "GPTBigCode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", BIGCODE),
}


def run(model: Any) -> torch.Tensor:
    images = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(pixel_values=images) if model.main_input_name == "pixel_values" else model(TEXT[None])
    return found[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of GPTBigCode
@pytest.mark.parametrize("refinement", ["shift", "slice"])
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, refinement: Any, tmp_path: Path) -> None:
    """Nothing changes at strength zero; with strengths the model's code has our law, and cache, file and both implementations agree."""
    kind, config, settings = FAMILIES[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
    plain = run(model)
    at.nn.refine(model, refinement, sign="free")
    assert torch.equal(run(model), plain)
    refined = run(spread(model))
    assert float((refined - plain).abs().max()) > 1e-6
    if name != "GPTBigCode":  # which has no family
        assert checkpoint(model).verify().error < 1e-14
    model.save_pretrained(tmp_path)
    assert torch.equal(run(at.nn.load_refined(tmp_path, type(model))), refined)
    if kind.endswith("LM"):
        texts = [
            model.generate(TEXT[None], max_new_tokens=4, do_sample=False, use_cache=cached, pad_token_id=0)
            for cached in (True, False)
        ]
        assert torch.equal(*texts)
    at.nn.unrefine(model)
    model.set_attn_implementation("eager")
    spread(at.nn.refine(model, refinement, sign="free"))
    torch.testing.assert_close(run(model), refined, rtol=1e-4, atol=1e-5)


def test_encoders_with_decoders() -> None:
    """Self-attention of both stacks, which have configurations of their own; cross-attention is left alone."""
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, decoder_start_token_id=0)).eval()
    at.nn.refine(model, "shift")
    names = [name for name, _ in model.named_parameters() if name.endswith("theta")]
    assert len(names) == 4
    assert all("SelfAttention" in name for name in names)
    assert checkpoint(spread(model)).verify().error < 1e-14


def adapted(model: Any, **options: Any) -> Any:
    peft: Any = pytest.importorskip("peft", reason="adapters are tested where PEFT is installed")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], **options)
    return peft.get_peft_model(model, config).eval()


def draw(model: Any) -> Any:
    torch.manual_seed(5)
    for name, part in model.named_parameters():
        if "lora_" in name or "theta" in name:
            part.data.normal_(std=0.3)
    return model


@pytest.mark.parametrize("first", ["refine", "adapt", "save"])
def test_adapters_of_peft(first: str, tmp_path: Path) -> None:
    """The shift reads the output projection with its adapter, so merging changes nothing; audits see both."""
    if first == "adapt":
        model = adapted(make("llama"))
        plain = run(model)
        assert torch.equal(run(at.nn.refine(model, "shift")), plain)
    else:
        refined = at.nn.refine(make("llama"), "shift")
        model = adapted(refined, modules_to_save=["refinement"] if first == "save" else None)
    draw(model)
    logits = run(model)
    found = checkpoint(model)
    assert found.verify().error < 1e-14
    assert "the refinement" in found.layers[0].notes[-1]
    if first == "save":
        model.save_pretrained(tmp_path / "adapter")
        peft: Any = pytest.importorskip("peft")
        again = peft.PeftModel.from_pretrained(at.nn.refine(make("llama"), "shift"), tmp_path / "adapter").eval()
        assert torch.equal(run(again), logits)
    tokens = at.Tokens(torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    moved = at.velocity(found.layers[1].attention, tokens)
    merged = model.merge_and_unload()
    torch.testing.assert_close(run(merged), logits, rtol=1e-5, atol=2e-6)
    assert torch.allclose(at.velocity(checkpoint(merged).layers[1].attention, tokens), moved, rtol=1e-5, atol=1e-7)
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(run(at.nn.load_refined(tmp_path / "merged")), logits, rtol=1e-5, atol=2e-6)


def test_adapters_that_are_not_low_rank_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match="an adapter that is not plain LoRA"):
        at.nn.refine(adapted(make("llama"), use_dora=True), "shift")
