"""Every family against its own code, on random models of its real shape."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import MODELS, random_model

import attractor as at
from attractor.errors import UnsupportedError
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
    found = at.checkpoint(random_model(case)).verify()
    assert len(found.layers) >= 2
    assert found.error < 1e-12
    assert found


def test_every_family_has_a_case() -> None:
    tried = {kind for kind, _ in MODELS.values()}
    assert {family.name for family in list_families() if not tried & set(family.model_types)} == set()


def test_the_table_of_the_documentation_has_every_row() -> None:
    table = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
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


def test_clipped_projections_are_said_to_be() -> None:
    model: Any = random_model("OLMo")
    model.config.clip_qkv = 0.5
    opened = at.checkpoint(model)
    assert "clipped at 0.5" in opened.layers[0].undefined["velocity"]
    assert opened.verify(layers=[0]).error > 1e-3  # and verification sees it


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
