"""What the layers refuse, in one clear sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attractor import Rotary
from attractor.errors import InputError, UnsupportedError
from attractor.nn import DefiniteAttention, MetricSlice, PlainAttention, Shift, Slice, TransformerBlock, spectral

REFUSED: list[tuple[Any, str]] = [
    (lambda: DefiniteAttention(8, 2, "chaotic"), "regime 'chaotic' is not known; the regimes are convergent"),  # type: ignore[arg-type]
    (lambda: DefiniteAttention(10, 3), "dimension 10 does not split into 3 heads"),
    (lambda: PlainAttention(8, 0), "heads must be a whole number of at least 1, got 0"),
    (lambda: PlainAttention(8, 0, head_dim=4), "heads must be a whole number of at least 1, got 0"),
    (lambda: PlainAttention(8, 2, head_dim=0), "head_dim must be a whole number of at least 1, got 0"),
    (lambda: DefiniteAttention(8, 2, head_dim=4.0), "head_dim must be a whole number of at least 1, got 4.0"),  # type: ignore[arg-type]
    (lambda: PlainAttention(8, 2, value_dim=0), "value_dim must be a whole number of at least 1, got 0"),
    (lambda: PlainAttention(8, 2, scale=float("nan")), "scale must be a finite number, got nan"),
    (lambda: DefiniteAttention(8, 2, scale="big"), "scale must be a finite number, got 'big'"),
    (lambda: DefiniteAttention(8, 2, head_dim=3), "span 6 of 8 dimensions.*at least 4"),
    (lambda: DefiniteAttention(8, 2, skew="sometimes"), "skew must be"),  # type: ignore[arg-type]
    (lambda: DefiniteAttention(8, 2, metric="low"), "metric must be"),  # type: ignore[arg-type]
    (lambda: DefiniteAttention(8, 2, orientation="left"), "orientation must be"),  # type: ignore[arg-type]
    (lambda: DefiniteAttention(8, 2, orientation="official", relaxed=True), "no relaxed version"),
    (lambda: DefiniteAttention(8, 2, orientation="official", solve="lu"), "solve must be"),  # type: ignore[arg-type]
    (lambda: DefiniteAttention(8, 2, "intermediate", negative=1.5), "share of directions, between 0 and 1"),
    (lambda: DefiniteAttention(4, 2, "intermediate", signs=[1, 1, 1, -1]), "4 numbers .*2 of them negative"),
    (lambda: DefiniteAttention(8, 2, interaction="none"), "interaction must be"),  # type: ignore[arg-type]
    (lambda: DefiniteAttention(4, 2, interaction=[[1, 1], [1]]), "2 rows of 2 signs"),
    (lambda: DefiniteAttention(4, 2, interaction=[[1, 1], [1, 2]]), "signs of an interaction are"),
    (lambda: DefiniteAttention(4, 2, interaction=np.ones((3, 2))), "2 rows of 2 signs"),  # type: ignore[arg-type]
    (lambda: DefiniteAttention(4, 2, interaction=3), "2 rows of 2 signs"),  # type: ignore[arg-type]
    (lambda: DefiniteAttention(4, 2, signs=np.ones((2, 2))), "signs must be 4 numbers"),  # type: ignore[arg-type]
    (lambda: DefiniteAttention(4, 2, signs="----"), "signs must be 4 numbers .*got ----"),  # type: ignore[arg-type]
    (
        lambda: DefiniteAttention(4, 2, "convergent", signs=[1, 1, -1, -1], interaction=[[1, 1], [1, -1]]),
        r"3 of them negative for this regime \(beside 1 of the interactions\)",
    ),
    (lambda: DefiniteAttention(8, 2, pivot=0.0), "positive number"),
    (lambda: PlainAttention(8, 2, positions="absolute"), "before the first layer"),
    (lambda: PlainAttention(6, 2, positions="rotary"), "head dimension must be even"),
    (lambda: PlainAttention(8, 2, positions=Rotary(dim=6)), "turn 6 coordinates but the head has 4"),
    (lambda: PlainAttention(8, 2, kernel="cubic"), "kernel 'cubic' is not known"),
    (lambda: PlainAttention(8, 2, dropout=1.0), "dropout must be at least 0 and below 1"),
    (lambda: PlainAttention(8, 2, dropout=0.1, kernel="l2"), "goes with the softmax kernel"),
    (lambda: PlainAttention(8, 2, refinement="shift", kernel="l2"), "take another kernel"),
    (lambda: PlainAttention(8, 2, refinement="tilt"), "the refinements are shift, slice, metric"),
    (lambda: PlainAttention(8, 2, temperature=0.0), "temperature must be a positive number"),
    (lambda: PlainAttention(8, 2, gain="some"), "gain must be"),  # type: ignore[arg-type]
    (lambda: PlainAttention(8, 2, temperature=None), "temperature must be a positive number or"),  # type: ignore[arg-type]
    (lambda: Shift(8, 2, sign="both"), "sign 'both' is not known"),  # type: ignore[arg-type]
    (lambda: Shift(8, 2, sign="+", value=0.0), "sign='free' may start at 0"),
    (lambda: Slice(8, 2, value=float("nan")), "finite number"),
    (lambda: Slice(9, 2), "multiple of heads"),
    (lambda: Shift(8, 0), "heads of at least 1, got 8 and 0"),
    (
        lambda: PlainAttention(8, 2, refinement=Shift(8, 4)),
        r"the shift was made for dimension 8 and 4 heads, the layer has 8 and 2: make it as Shift\(8, 2\)",
    ),
    (lambda: DefiniteAttention(8, 2, refinement=Slice(16, 2)), r"the layer has 8 and 2: make it as Slice\(8, 2\)"),
    (lambda: PlainAttention(8, 2)(torch.zeros(3, 7)), "tokens of dimension 8, got shape"),
    (lambda: TransformerBlock(PlainAttention(8, 2), placement="middle"), "placement 'middle' is not known"),  # type: ignore[arg-type]
    (lambda: TransformerBlock(PlainAttention(8, 2), norm="batch"), "norm must be"),  # type: ignore[arg-type]
    (lambda: TransformerBlock(PlainAttention(8, 2), activation="sine"), "activation 'sine' is not known"),
    (lambda: spectral(DefiniteAttention(8, 2)), "is for PlainAttention"),  # type: ignore[arg-type]
    (lambda: spectral(PlainAttention(8, 2), "mlp"), "part must be"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_the_metric_refinement_needs_a_metric() -> None:
    for make in (PlainAttention, DefiniteAttention):
        with pytest.raises(UnsupportedError, match="needs an explicit diagonal metric"):
            make(8, 2, refinement=MetricSlice(8, 2))


def test_signs_may_be_arrays() -> None:
    signs = np.array([-1, 1, 1, 1])
    layer = DefiniteAttention(4, 2, "intermediate", signs=signs, interaction=np.array([[1, 1], [1, -1]]))  # type: ignore[arg-type]
    assert layer.state_dict()["core.interaction.signs"].tolist() == [[1, 1], [1, -1]]
