"""Every family against its own code, on random models of its real shape."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import MODELS, STRUCTURAL, draw_inputs, random_model

import attractor as at
from attractor.errors import UnsupportedError
from attractor.laws import LatentAttention
from attractor.models import list_families
from attractor.models.families.llama import Llama

SEPARATE = (
    "Pythia, a quarter turned",
    "Llama, grouped",
    "BERT, MiniLM",
    "BLOOM, 6 heads",
    "T5",
    "GPT-2",
    "Qwen 3, q/k norm",
)


@pytest.mark.parametrize("case", MODELS)
def test_our_attention_is_the_models_own(case: str) -> None:
    opened = at.checkpoint(random_model(case))
    found = opened.verify()
    assert [check.name for check in found.layers] == [opened.layers[index].name for index in opened.attention_layers]
    assert found.layers
    assert found.error < 1e-12
    assert found
    joint = not isinstance(opened.first.source, LatentAttention) and opened.first.source.joint  # type: ignore[union-attr]
    assert all((check.heads is None) == joint for check in found.layers)


def test_every_family_has_a_case() -> None:
    tried = {kind for kind, _ in MODELS.values()}
    assert {family.name for family in list_families() if not tried & set(family.model_types)} == set()


def test_every_model_type_is_traced_and_audited() -> None:
    """At least 54 model types: 50 are traced and of 45 heads are audited; no case fails."""
    traced, audited = set(STRUCTURAL), set()
    for case, (kind, _) in MODELS.items():
        model = random_model(case)
        inputs = {"input_features": torch.randn(1, 8, 40)} if kind == "whisper" else draw_inputs(model)
        run = at.trace(model, inputs, attention=False)
        assert run.points.isfinite().all()
        traced.add(kind)
        found = at.audit(model, nulls=0, detail="heads", verify=False)
        assert len(found.layers) + len(found.undefined) == len(at.checkpoint(model).layers)
        assert all(row.reason for row in found.undefined)
        audited |= {kind} if found.heads else set()
    assert len(traced) >= 50
    assert len(audited) >= 45


def test_the_table_of_the_documentation_has_every_row() -> None:
    table = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    assert {f"`{kind}`" for kind in STRUCTURAL} <= set(table.replace(",", " ").split()), (
        "run python docs/families_table.py"
    )
    rows = {tuple(line.strip("| ").split(" | ")[:2]) for line in table.splitlines() if line.startswith("| ")}
    wanted = {
        (family.title, case)
        for family in list_families()
        for case, (kind, _) in MODELS.items()
        if kind in family.model_types
    }
    assert wanted <= rows, "run python docs/families_table.py"


@pytest.mark.parametrize("case", [*SEPARATE, "DeepSeek V3"])
def test_heads_add_up_to_the_layer(case: str) -> None:
    layer = at.checkpoint(random_model(case)).layers[1]
    tokens = at.Tokens.gaussian(7, layer.dim, seed=1)
    total = sum(at.velocity(layer.head(index), tokens) for index in range(layer.heads))
    inner = getattr(layer.attention, "attention", layer.attention)
    total = total if inner.output_bias is None else total + inner.output_bias
    torch.testing.assert_close(at.velocity(layer.attention, tokens), total, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", SEPARATE)
def test_a_folded_norm_changes_nothing(case: str) -> None:
    """law(N(x)) = folded law(x-hat), with x-hat what the norm gives without gain and bias."""
    layer = at.checkpoint(random_model(case)).layers[1]
    x = at.Tokens.gaussian(7, layer.dim, seed=2).points
    assert layer.norm is not None
    assert layer.bare_norm is not None
    plain = at.velocity(layer.law(), at.Tokens(layer.norm(x)))
    folded = at.velocity(layer.law(fold=True), at.Tokens(layer.bare_norm(x)))
    torch.testing.assert_close(folded, plain, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(
        at.velocity(layer.head(2, fold=True), at.Tokens(layer.bare_norm(x))),
        at.velocity(layer.head(2), at.Tokens(layer.norm(x))),
        rtol=1e-11,
        atol=1e-11,
    )


def test_a_head_flows() -> None:
    head = at.checkpoint(random_model("Llama, grouped")).layers[0].head(3)
    run = at.flow(head, at.Tokens.gaussian(6, 32, seed=0), space=at.Sphere(), until=0.1)
    assert run.outcome.name == "reached"


def test_what_does_not_exist_is_said() -> None:
    normed = at.checkpoint(random_model("Qwen 3, q/k norm")).layers[0]
    assert "not bilinear" in normed.undefined["interaction"]
    assert not isinstance(normed.head(0), at.Attention)  # nothing that speaks of W can be asked of it
    latent = at.checkpoint(random_model("DeepSeek V2")).layers[0]
    assert set(latent.undefined) == {"interaction", "value_map"}
    with pytest.raises(UnsupportedError, match="not folded"):
        latent.law(fold=True)
    joint = at.checkpoint(random_model("OLMo 2, norm over all heads")).layers[0]
    with pytest.raises(UnsupportedError, match="no head stands alone"):
        joint.head(0)


def test_clipped_projections_are_exact_and_said_to_be() -> None:
    opened = at.checkpoint(random_model("OLMo, clipped"))
    assert "clipped at 0.5" in opened.layers[0].notes[0]
    assert opened.verify(layers=[0]).error < 1e-12
    model: Any = random_model("OLMo")
    unclipped = at.checkpoint(model).layers[0].attention
    tokens = at.Tokens.gaussian(7, 32, seed=1)
    difference = at.velocity(unclipped, tokens) - at.velocity(opened.layers[0].attention, tokens)
    assert float(difference.abs().max()) > 1e-3
    assert any("clipped at 0.5" in note for note in at.audit(opened, nulls=0, verify=False).notes)


def test_angles_change_beyond_the_original_context() -> None:
    """LongRoPE takes its long factors from the first token beyond the original context on, as the model's own code does."""
    opened = at.checkpoint(random_model("Phi 3, beyond the original context"))
    for tokens in (8, 9):
        assert opened.verify(layers=[0], tokens=tokens).error < 1e-12
    positions = opened.layers[0].attention.positions
    short, beyond = (positions.frequencies_for(8, at.Tokens.gaussian(n, 32)) for n in (8, 9))
    assert bool((short > beyond).all())


def test_hybrids_have_attention_in_some_blocks() -> None:
    opened = at.checkpoint(random_model("Nemotron-H"))
    assert len(opened.layers) == 3
    assert opened.attention_layers == (1,)
    assert [layer.heads for layer in opened.layers] == [0, 4, 0]
    found = at.audit(opened, nulls=0)
    assert {(head.layer, head.name) for head in found.heads} == {(1, "layer 1")}
    assert {row.name: row.reason for row in found.undefined} == {
        "layer 0": "a linear-attention or state-space block (Gated DeltaNet, Mamba) has no softmax attention",
        "layer 2": "a feed-forward block has no attention",
    }
    with pytest.raises(UnsupportedError, match=r"layer 0 has no law: .*Mamba"):
        opened.layers[0].law()
    run = at.trace(opened, [3, 4, 5, 6])
    assert run.measurements is not None
    assert run.points.shape == (4, 4, 32)
    assert run.measurements.heads["attention_entropy"].isnan().all(1).tolist() == [True, False, True]


def test_shared_layers_are_traced_in_their_order() -> None:
    """ALBERT runs one module several times: the blocks of a trace are its calls, as its own hidden states are."""
    model: Any = random_model("ALBERT, two groups")
    run = at.trace(model, [3, 4, 5, 6, 7])
    with torch.no_grad():
        own = model(input_ids=torch.tensor([[3, 4, 5, 6, 7]]), output_hidden_states=True).hidden_states
    assert len(run.points) == 5
    for ours, theirs in zip(run.points[1:], own[-4:], strict=True):
        torch.testing.assert_close(ours, theirs[0].double())
    layers = at.checkpoint(model).layers
    same = [torch.equal(layers[0].law().query, layers[index].law().query) for index in range(4)]  # type: ignore[attr-defined]
    assert same == [True, True, False, False]


PERI = (
    "Gemma 2, capped scores",
    "Gemma 3, q/k norm, two rates",
    "OLMo 2, norm over all heads",
    "GLM-4 0414",
    "Granite 3",
)


@pytest.mark.parametrize("case", PERI)
def test_attention_is_what_is_added_to_the_stream(case: str) -> None:
    """Norms after attention and multipliers belong to the law: it is the difference of the model's own residual stream."""
    model: Any = random_model(case).double()
    model.set_attn_implementation("eager")
    seen: dict[str, torch.Tensor] = {}
    block = model.layers[0]
    after = {"Gemma 2": "pre_feedforward_layernorm", "Gemma 3": "pre_feedforward_layernorm", "OLMo 2": "mlp"}
    name = after.get(" ".join(case.split()[:2]).rstrip(","), "post_attention_layernorm")
    block.register_forward_pre_hook(lambda _, given: seen.update(before=given[0]))
    block.get_submodule(name).register_forward_pre_hook(lambda _, given: seen.update(after=given[0]))
    x = torch.randn(1, 7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(inputs_embeds=x)
    layer = at.checkpoint(model).layers[0]
    before = seen["before"][0]
    moved = at.velocity(layer.attention, at.Tokens(before if layer.norm is None else layer.norm(before)))
    torch.testing.assert_close(moved, (seen["after"] - seen["before"])[0], rtol=1e-6, atol=1e-6)


def test_verification_leaves_the_random_state_alone() -> None:
    opened = at.checkpoint(random_model("Llama, grouped"))
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    at.audit(opened, nulls=0, verify=True)
    assert torch.equal(torch.random.get_rng_state(), before)


BROKEN = {
    "order of rotary pairs": lambda parts: {"query": parts.query.flip(1)},
    "a bias": lambda parts: {"value_bias": None},
    "the output bias": lambda parts: {"output_bias": None},
    "groups": lambda parts: {"key": parts.key.flip(0)},
    "the output projection": lambda parts: {"output": parts.output.flip(0)},
}


@pytest.mark.parametrize("what", BROKEN)
def test_verification_sees_a_wrong_reading(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Llama.projections

    def wrong(self: Llama, *arguments: Any) -> Any:
        parts = right(self, *arguments)
        return dataclasses.replace(parts, **BROKEN[what](parts))

    monkeypatch.setattr(Llama, "projections", wrong)
    found = at.checkpoint(random_model("Llama, grouped")).verify(layers=[0])
    assert found.error > 1e-3
    assert not found


def test_verification_sees_a_wrong_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Llama, "norm", lambda self, config, read, name: at.RMSNorm(None, None, 1e-6))
    check = at.checkpoint(random_model("Llama, grouped")).verify(layers=[0]).layers[0]
    assert check.norm is not None
    assert check.norm > 1e-3
    assert check.attention < 1e-12


def test_the_norm_of_a_post_norm_model_is_the_one_below() -> None:
    """BERT's tokens leave the last norm of the layer below: the model's own hidden states say so."""
    model: Any = random_model("BERT, MiniLM").double()
    seen: dict[str, torch.Tensor] = {}
    below, above = model.encoder.layer[0].output.LayerNorm, model.encoder.layer[1].attention.self
    below.register_forward_pre_hook(lambda _, given: seen.update(stream=given[0]))
    above.register_forward_pre_hook(lambda _, given: seen.update(reads=given[0]))
    with torch.no_grad():
        model(inputs_embeds=torch.randn(1, 6, 32, dtype=torch.float64))
    norm = at.checkpoint(model).layers[1].norm
    assert norm is not None
    torch.testing.assert_close(norm(seen["stream"]), seen["reads"], rtol=1e-12, atol=1e-12)
