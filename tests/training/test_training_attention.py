"""The attention that a configuration asks for: every axis of the experiments reaches the layer it is about."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attractor as at
from attractor.errors import InputError
from attractor.training import Config
from attractor.training.models import (
    LanguageModel,
    VisionModel,
    attention_layer,
    build_block,
    hidden_width,
    permuted_signs,
)

SIZES: dict[str, Any] = {"layers": 2, "dim": 16, "heads": 2, "context": 12, "patch": 4}


def config(**choice: Any) -> Config:
    return Config("nothing", **{**SIZES, **choice})


AXES: list[dict[str, Any]] = [
    {},
    {"kernel": "l2"},
    {"kernel": "sigmoid", "gain": "learned"},
    {"kernel": "sinkhorn", "task": "images"},
    {"temperature": 0.5, "gain": 2.0, "bias": True},
    {"spectral": True},
    {"attention": "convergent", "relaxed": True},
    {"attention": "divergent", "orientation": "official"},
    {"attention": "intermediate", "signs": "channels", "metric": "diagonal"},
    {"attention": "convergent", "signs": "scattered"},
    {"attention": "intermediate", "metric": "diagonal", "refinement": "metric", "positions": "absolute"},
    {"refinement": "slice", "sign": "free", "positions": "rotary"},
    {"refinement": "shift", "positions": "sinusoidal"},
    {"positions": "rotary", "turned": 4, "placement": "post", "norm": "rms"},
    {"placement": "none", "drop_path": 0.2},
    {"placement": "peri", "dropout": 0.1, "smoothing": 0.1},
]


@pytest.mark.parametrize("task", ["text", "images"])
@pytest.mark.parametrize("choice", AXES, ids=lambda choice: " ".join(map(str, choice.values())) or "plain")
def test_every_choice_learns(choice: dict[str, Any], task: str) -> None:
    """A forward, a backward to every parameter and the states, for both models."""
    choice = {"task": task, **choice}
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    if choice["task"] == "text":
        model: Any = LanguageModel(config(**choice), 50)
        batch = tuple(torch.randint(0, 50, (2, 12), generator=draw) for _ in range(2))
    else:
        model = VisionModel(config(**choice), (8, 12, 3), 5, [0.5] * 3, [0.2] * 3)
        batch = torch.randint(0, 256, (2, 8, 12, 3), dtype=torch.uint8, generator=draw), torch.tensor([1, 4])
    model(*batch).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all())
    n = 12 if choice["task"] == "text" else 7
    assert [tuple(state.shape) for state in model.states(batch[0])] == [(2, n, 16)] * 3
    model.eval()
    with torch.no_grad():
        totals = model.totals(*batch)
        assert float(totals["loss"] / totals["count"]) == pytest.approx(float(model(*batch)), rel=1e-6)


def test_text_is_causal_and_pictures_are_not() -> None:
    assert attention_layer(config(), 0).causal
    assert not attention_layer(config(task="images"), 0).causal
    torch.manual_seed(0)
    model = LanguageModel(config(kernel="l2"), 50).double()
    text = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(0))
    other = text.clone()
    other[0, -1] = (text[0, -1] + 1) % 50
    with torch.no_grad():
        moved = (model.states(text)[-1] - model.states(other)[-1])[0].abs().amax(-1)
    assert float(moved[:-1].max()) < 1e-13
    assert float(moved[-1]) > 1e-3


def test_scattered_signs_are_those_of_the_regime_elsewhere() -> None:
    """The control: as many negative signs over the metric and the interactions as the regime has, in other places in every layer."""
    chosen = config(attention="convergent", signs="scattered", seed=3)
    layers = [attention_layer(chosen, index) for index in range(2)]
    usual = attention_layer(config(attention="convergent"), 0)
    places = []
    for layer in layers:
        assert isinstance(layer, at.nn.DefiniteAttention)
        signs = torch.cat([buffer.flatten() for name, buffer in layer.named_buffers() if name.endswith("signs")])
        assert int((signs < 0).sum()) == 16
        assert 0 < int((layer.core.inverse_metric.signs < 0).sum()) < 16  # type: ignore[union-attr]
        places.append(signs)
        # the same parameters, and no longer the regime
        assert {n: p.shape for n, p in layer.named_parameters()} == {n: p.shape for n, p in usual.named_parameters()}
        assert at.regime(layer).label != "convergent"
    assert not torch.equal(*places)
    assert permuted_signs(chosen, 0) == permuted_signs(config(attention="convergent", signs="scattered", seed=3), 0)
    assert permuted_signs(chosen, 0) != permuted_signs(config(attention="convergent", signs="scattered", seed=4), 0)


def test_permuted_channels_keep_the_inertia() -> None:
    layer = attention_layer(config(attention="intermediate", signs="channels", options={"negative": 0.25}), 1)
    assert isinstance(layer, at.nn.DefiniteAttention)
    inverse = layer.inverse_metric(torch.float64).detach()
    assert int((torch.linalg.eigvalsh(inverse) < 0).sum()) == 4
    assert layer.core.inverse_metric.signs[:4].tolist() != [-1.0] * 4  # type: ignore[union-attr]


@pytest.mark.parametrize("choice", [{}, {"metric": "diagonal"}, {"relaxed": True}, {"orientation": "official"}])
def test_equal_parameters(choice: dict[str, Any]) -> None:
    """Blocks of a regime have as many parameters as plain ones, up to one unit of width."""
    plain = sum(p.numel() for p in build_block(config(dim=32), 0).parameters())
    other = config(attention="divergent", equal=True, dim=32, **choice)
    assert abs(sum(p.numel() for p in build_block(other, 0).parameters()) - plain) <= 32.5
    assert hidden_width(config(dim=32, equal=True)) == 128


def test_sinusoids_and_learned_places_are_added_once() -> None:
    for positions in ("absolute", "sinusoidal", "none"):
        torch.manual_seed(0)
        model = LanguageModel(config(positions=positions), 50)
        same = torch.full((1, 12), 7)
        first = model.states(same)[0][0]
        assert bool((first[1:] == first[0]).all()) is (positions == "none")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"attention": "chaotic"}, "attention 'chaotic' is not known"),
        ({"kernel": "sinkhorn"}, "would see what it is to predict"),
        ({"attention": "convergent", "spectral": True}, "spectral goes with attention 'plain', not with 'convergent'"),
        ({"relaxed": True}, "relaxed goes with attention a regime"),
        ({"signs": "scattered"}, "signs goes with attention a regime"),
        ({"attention": "divergent", "signs": "scattered"}, "nothing to permute"),
        ({"refinement": "metric"}, "needs a regime with metric = 'diagonal'"),
        ({"cutoffs": (20, 10)}, "cutoffs are growing numbers"),
        ({"split": (0.9, 0.2)}, "shares for train, validation and perhaps test that add up to 1"),
        ({"evaluations": -1}, "evaluations must be a whole number of at least 0"),
        ({"dropout": 1.5}, "dropout must lie between 0 and 1"),
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_refused(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(**choice)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"dimension 16 does not split into 3 heads.*options = \{head_dim"):
        LanguageModel(config(heads=3), 50)
    with pytest.raises(InputError, match="do not split into patches of 4"):
        VisionModel(config(task="images"), (9, 9, 1), 2, [0.5], [0.2])
    with pytest.raises(InputError, match="cutoffs must lie below the vocabulary of 50"):
        LanguageModel(config(cutoffs=(20, 60)), 50)
    assert LanguageModel(config(heads=3, options={"head_dim": 6}), 50).backbone.blocks[0].attention.head_dim == 6  # type: ignore[union-attr]
