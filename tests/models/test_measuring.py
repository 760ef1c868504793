"""Numbers of the stream and of heads, against the observables they abbreviate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from small_models import random_model

import attractor as at
from attractor.models import trace_texts
from attractor.models.measurements import LINEAR, TokenSums, direction_energy, linear_curves, measure_heads

IDS = [5, 9, 2, 33, 17, 8, 41, 3]


@pytest.mark.parametrize("spread", [1.0, 1e-5])
def test_sums_give_the_observables(spread: float) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, 6, generator=draw, dtype=torch.float64) + spread * torch.randn(9, 6, generator=draw).double()
    x[0] *= 300
    found = {name: values[0] for name, values in linear_curves([TokenSums.of(x)]).items()}
    for suffix, part in (("", x), ("_without_first", x[1:])):
        for name in LINEAR:
            expected = float(at.observables.find_observable(name)(at.Tokens(part)))
            assert float(found[name + suffix]) == pytest.approx(expected, rel=1e-9, abs=1e-20)
    assert float(found["first_norm"]) == pytest.approx(float(x[0].norm() / x[1:].norm(dim=-1).mean()))


def test_sums_of_few_tokens() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    found = {name: values[0] for name, values in linear_curves([TokenSums.of(x)]).items()}
    assert float(found["cosine"]) == pytest.approx(0, abs=1e-7)  # a token at the origin is orthogonal to all
    assert math.isnan(float(found["cosine_without_first"]))
    assert float(found["token_norm_without_first"]) == 0


def test_the_energy_of_the_stream_is_that_of_the_sphere() -> None:
    x = at.Tokens.gaussian(7, 5, seed=3).points
    units = x / x.norm(dim=-1, keepdim=True)
    expected = at.energy(at.Tokens(units), at.Attention.isotropic(dim=5, beta=1.0))
    torch.testing.assert_close(direction_energy(x), expected)
    torch.testing.assert_close(direction_energy(x[:1].expand(4, -1)), torch.tensor(math.e / 2, dtype=torch.float64))


@pytest.mark.parametrize("case", ["Llama, grouped", "BERT, MiniLM", "GPT-2"])
def test_the_energy_of_heads(case: str) -> None:
    layer = at.checkpoint(random_model(case)).layers[1]
    tokens = at.Tokens.gaussian(6, layer.dim, seed=4)
    found = measure_heads(layer, tokens)
    for head in range(layer.heads):
        expected = at.energy(tokens, layer.head(head), log=True)
        assert float(found["log_energy"][head]) == pytest.approx(float(expected), rel=1e-12)
    weights: Any = layer.attention.weights(tokens)
    np.testing.assert_allclose(found["first_weight"], weights[:, 1:, 0].mean(-1))


def test_a_summary_is_a_part_of_the_whole() -> None:
    model = random_model("Llama, grouped")
    whole, part = (trace_texts(model, [IDS, IDS[:4]], summary=summary) for summary in (False, True))
    assert part.measurements[0].heads == {}
    assert "effective_rank" not in part.measurements[0].curves
    for name, values in part.measurements[0].curves.items():
        torch.testing.assert_close(values, whole.measurements[0].curves[name], rtol=1e-5, atol=1e-6)
    for name, values in part.measurements[1].blocks.items():
        torch.testing.assert_close(values, whole.measurements[1].blocks[name])


def test_a_summary_keeps_no_activations() -> None:
    """Of 40 blocks no more than a few streams are alive at any time."""
    from transformers import AutoConfig, AutoModel

    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 40, "vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2}
    model = AutoModel.from_config(AutoConfig.for_model("gpt2", **sizes)).eval()
    most, n = 0, 173

    def watch(_module: Any, _given: Any, _out: Any) -> None:
        nonlocal most
        import gc

        count = sum(1 for each in gc.get_objects() if type(each) is torch.Tensor and each.shape[-2:] == (n, 32))
        most = max(most, count)

    handle = model.h[39].register_forward_hook(watch)
    try:
        trace_texts(model, [[index % 60 for index in range(n)]], summary=True)
    finally:
        handle.remove()
    assert 0 < most < 20
