"""Exponents along depth, against dense Jacobians of the model's own blocks."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from small_models import random_model, structural_model

from attractor.cli.main import run
from attractor.errors import InputError, UnsupportedError
from attractor.models import depth_exponents
from attractor.models.exponents import _differentiable, record_calls
from attractor.models.tracing import Session

IDS = [5, 9, 2, 33]
CASES = ("GPT-2", "Llama, grouped", "BERT, MiniLM", "Gemma 2, capped scores", "Pythia, a quarter turned")


def dense_jacobians(model: torch.nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Matrices (n d, n d) of every block by reverse differentiation, and the stream from the model's own hidden states."""
    session = Session.open(model, None, (), None)
    blocks, states = record_calls(session, {"input_ids": torch.tensor([IDS])})
    found = []
    with _differentiable():
        for block, state in zip(blocks, states, strict=False):
            J = torch.autograd.functional.jacobian(block, state)
            found.append(J.reshape(state.numel(), state.numel()).double())
    return found, states


@pytest.mark.parametrize("case", CASES)
def test_exponents_are_those_of_the_product_of_jacobians(case):
    """To about 1e-6: norms of transformers compute in float32 whatever the precision of the model."""
    model = random_model(case).double()
    matrices, states = dense_jacobians(model)
    size = len(matrices[0])
    if case != "BERT, MiniLM":  # the norm after its blocks makes their Jacobians singular
        found = depth_exponents(model, IDS, count=size, nulls=0)
        assert found.blocks == len(matrices)
        # all of them: the sum is the logarithm of the determinant
        expected = sum(float(torch.linalg.slogdet(J)[1]) for J in matrices)
        assert found.growth.sum() == pytest.approx(expected, rel=5e-5)
    some = depth_exponents(model, IDS, count=3, nulls=0, seed=4)
    draws = torch.randn(2, 3, *states[0].shape[1:], generator=torch.Generator().manual_seed(4)).double()
    Q = torch.linalg.qr(draws[0].flatten(1).mT)[0]
    sizes = []
    for J in matrices:
        Q, R = torch.linalg.qr(J @ Q)
        sizes.append(R.diagonal().abs().log().numpy())
    assert np.sort(some.exponents) == pytest.approx(np.sort(np.mean(sizes, axis=0)), abs=1e-6)
    w = draws[1].flatten(1).mT
    lengths = [w.norm(dim=0).log().numpy()]
    for J in reversed(matrices):
        w = J.mT @ w
        lengths.append(w.norm(dim=0).log().numpy())
    assert some.gradient[::-1] == pytest.approx(np.diff(lengths, axis=0).mean(1), abs=1e-6)


def test_angles_and_norms_are_those_of_the_stream():
    model = random_model("Llama, grouped")
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([IDS]), output_hidden_states=True).hidden_states
    found = depth_exponents(model, IDS, count=2, nulls=0)
    tokens = [part[0, 1:].double() for part in hidden[:-1]]
    unit = [part / part.norm(dim=-1, keepdim=True) for part in tokens]
    cosines = [float((u @ u.mT).sum() - len(u)) / (len(u) * (len(u) - 1)) for u in unit]
    assert found.angle[: len(cosines) - 1] == pytest.approx(np.diff(np.log(1 - np.array(cosines))), abs=1e-5)
    norms = [0.5 * np.log(float(part[0].double().square().sum(-1).mean())) for part in hidden[:-1]]
    assert found.norm[: len(norms) - 1] == pytest.approx(np.diff(norms), abs=1e-6)


def test_random_weights_read_the_same_text():
    model = random_model("GPT-2")
    found = depth_exponents(model, IDS, count=2, nulls=2)
    assert len(found.random) == 2
    assert not np.allclose(found.random[0].growth, found.random[1].growth)
    assert "with random weights" in found.sentence()
    again = depth_exponents(model, IDS, count=2, nulls=2)
    assert np.array_equal(again.growth, found.growth)
    assert np.array_equal(again.random[1].gradient, found.random[1].gradient)
    assert len(found.frame()) == found.blocks
    assert model.config.use_cache == copy.deepcopy(model.config).use_cache


def test_the_model_is_left_as_it_was():
    model = random_model("Llama, grouped")
    model.config.use_cache = True
    before = model(input_ids=torch.tensor([IDS])).last_hidden_state
    depth_exponents(model, IDS, count=2, nulls=0)
    assert model.config.use_cache is True
    assert torch.equal(model(input_ids=torch.tensor([IDS])).last_hidden_state, before)


def test_bad_input_is_rejected():
    model = random_model("GPT-2")
    with pytest.raises(InputError, match="at least two"):
        depth_exponents(model, [3], nulls=0)
    with pytest.raises(InputError, match="count must be"):
        depth_exponents(model, IDS, count=10**6, nulls=0)
    with pytest.raises(UnsupportedError, match="family"):
        depth_exponents(structural_model("falcon_h1"), IDS, nulls=0)


def test_the_command_line(tmp_path, capsys):
    folder = tmp_path / "model"
    random_model("GPT-2").save_pretrained(folder)
    np.save(tmp_path / "states.npy", np.zeros((3, 4, 8)))
    assert run(["trace", "--states", str(tmp_path / "states.npy"), "--lyapunov"]) == 2
    assert "--lyapunov belongs to a model" in capsys.readouterr().err
    assert run(["trace", str(folder), "--text", "a b", "--lyapunov-plot", "x.png"]) == 2
    assert "--lyapunov-plot belongs to --lyapunov" in capsys.readouterr().err
    assert run(["trace", str(folder), "--text", "a b", "--lyapunov", "--without", "norms"]) == 2
    assert "leave out --without" in capsys.readouterr().err


def test_part_of_the_blocks_and_precision(tmp_path):
    """Layers, device and precision are those that a trace takes; half precision is not exact enough and is rejected."""
    model = random_model("Llama, grouped")
    whole = depth_exponents(model, IDS, count=2, nulls=1)
    part = depth_exponents(model, IDS, count=2, nulls=1, layers=1, device="cpu")
    assert (part.blocks, part.random[0].blocks) == (1, 1)
    assert np.sort(part.growth) == pytest.approx(np.sort(whole.growth[:1]))  # columns are in the order of their means
    model.bfloat16().save_pretrained(tmp_path / "half")
    stored = depth_exponents(tmp_path / "half", IDS, count=2, nulls=1, layers=1)
    assert stored.blocks == stored.random[0].blocks == 1
    double = depth_exponents(tmp_path / "half", IDS, count=2, nulls=0, dtype="float64")
    assert np.sort(stored.growth[0]) == pytest.approx(np.sort(double.growth[0]), abs=1e-4)
    for source, dtype in ((model, None), (tmp_path / "half", "bfloat16")):
        with pytest.raises(InputError, match="float32 or float64"):
            depth_exponents(source, IDS, count=2, nulls=0, dtype=dtype)
