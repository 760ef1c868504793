"""Refinements on a GPU take other kernels than elsewhere: the same values and gradients."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import attractor as at
from attractor.nn import refinements

HERE = Path(__file__).parent
installed = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the package triton is not installed")


@installed
def test_kernels_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", str(HERE / "fused_concatenation_check.py"), "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.split()[-1] == "checked"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_kernels_on_the_gpu() -> None:
    command = [sys.executable, "-W", "ignore", str(HERE / "fused_concatenation_check.py"), "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", ["shift", "slice"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_models_on_the_gpu(family: str, kind: Any, autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients of a refined model with the kernels and without them; logits at zero strength to the bit."""
    found = []
    for fast in (True, False):
        model = at.nn.refine(model_of(family).cuda(), kind, sign="free", value=0.1)
        if not fast:
            monkeypatch.setattr("attractor.nn.refinements.can_fuse", lambda *_: False)
        ids = torch.arange(2 * 48, device="cuda").view(2, 48) % 61
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = (model(ids)[0].float() ** 2).mean()
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    for mine, theirs in zip(*found, strict=True):
        size = max(float(theirs.norm()), 1e-3)
        assert float((mine - theirs).norm()) <= (0.05 if autocast else 2e-5) * size


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("kind", ["shift", "slice"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_zero_strength_on_the_gpu(family: str, kind: Any) -> None:
    plain = model_of(family).cuda()
    ids = torch.arange(2 * 48, device="cuda").view(2, 48) % 61
    with torch.autocast("cuda", torch.bfloat16):
        expected = plain(ids)[0].detach()
        refined = at.nn.refine(plain, kind, sign="free", value=0.0)
        assert torch.equal(refined(ids)[0], expected)
        with torch.no_grad():
            assert torch.equal(refined(ids)[0], expected)


def test_the_kernels_are_for_gpus_alone() -> None:
    assert not refinements.can_fuse(torch.ones(1, 2, 3, 4))


def model_of(family: str) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    if family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=64, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
        )
        return transformers.GPT2LMHeadModel(config).eval()
    if family == "llama":
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**sizes, num_key_value_heads=2, intermediate_size=96)
        ).eval()
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, intermediate_size=96)).eval()
