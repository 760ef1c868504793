"""Weights of one form are not loaded into a layer of another, whose shapes they fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attractor.errors import InputError
from attractor.nn import AttentionLayer, DefiniteAttention, MetricSlice, PlainAttention, Shift, Slice

DIM, HEADS = 8, 2
Make = Callable[[], AttentionLayer]
PAIRS: dict[str, tuple[Make, Make, str]] = {
    "signs of a shift": (
        lambda: PlainAttention(DIM, HEADS, refinement=Shift(DIM, HEADS, "+"), temperature="learned"),
        lambda: PlainAttention(DIM, HEADS, refinement=Shift(DIM, HEADS, "-"), temperature="learned"),
        r"weights are of a shift of sign '\+' and this is a shift of sign '-'",
    ),
    "a free slice": (
        lambda: DefiniteAttention(DIM, HEADS, refinement=Slice(DIM, HEADS, "free")),
        lambda: DefiniteAttention(DIM, HEADS, refinement=Slice(DIM, HEADS)),
        r"weights are of a slice of sign 'free' and this is a slice of sign '\+'",
    ),
    "slices of another kind": (
        lambda: DefiniteAttention(DIM, HEADS, metric="diagonal", refinement=MetricSlice(DIM, HEADS)),
        lambda: DefiniteAttention(DIM, HEADS, metric="diagonal", refinement=Slice(DIM, HEADS, "free", channels=1)),
        "weights are of a metric of sign 'free' and this is a slice of sign 'free'",
    ),
    "ways to solve": (
        lambda: DefiniteAttention(DIM, HEADS, orientation="official"),
        lambda: DefiniteAttention(DIM, HEADS, orientation="official", solve="product"),
        "official orientation with solve='quotient' and this is a layer of official orientation with solve='product'",
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_another_form_is_refused_and_nothing_is_loaded(pair: str) -> None:
    make, other, words = PAIRS[pair]
    given, layer = torch.nn.Sequential(make()).state_dict(), torch.nn.Sequential(other())
    given = {
        name: part + 1 if part.is_floating_point() and "signs" not in name else part for name, part in given.items()
    }
    before = {name: part.clone() for name, part in layer.state_dict().items()}
    assert before.keys() == given.keys()
    with pytest.raises(InputError, match=words):
        layer.load_state_dict(given)
    assert all(torch.equal(part, before[name]) for name, part in layer.state_dict().items())


@pytest.mark.parametrize("pair", PAIRS)
def test_weights_without_a_form_and_of_the_same_form_load(pair: str, tmp_path: Path) -> None:
    make = PAIRS[pair][0]
    torch.manual_seed(0)
    given, x = make(), torch.randn(3, DIM)
    torch.save(given.half().float().state_dict(), tmp_path / "weights.pt")
    stored = torch.load(tmp_path / "weights.pt", weights_only=True)
    old = {name: part for name, part in stored.items() if not name.endswith("form_letters")}
    assert len(old) < len(stored)
    for state in (stored, old):
        layer = make()
        assert layer.load_state_dict(state) == ([], [])
        assert torch.equal(layer(x), given(x))


def test_a_layer_made_without_memory() -> None:
    """On the meta device the form of the layer is known, though its letters are not."""
    make, other, words = PAIRS["ways to solve"]
    empty = other().to("meta")
    with pytest.raises(InputError, match=words):
        empty.load_state_dict(make().state_dict(), assign=True)
    assert make().to("meta").load_state_dict(make().state_dict(), assign=True) == ([], [])
