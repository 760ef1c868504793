"""What refinements do to the metric: the sign logic, on the laws of refined layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import attractor as at
from attractor.nn import DefiniteAttention, MetricSlice, PlainAttention, Shift, Slice

DIM = 6


def laws(make: at.nn.Refinement, layer: at.nn.AttentionLayer) -> tuple[at.Attention, at.Attention]:
    """The law without and with a refinement."""
    before = layer.law()
    layer.refinement = make
    return before, layer.law()


def symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def form(law: at.Attention) -> Tensor:
    """sym(V'W), whose signs are those of the metric."""
    return symmetric(law.value_map.mT @ law.interaction)


def random_layer(heads: int = 1) -> PlainAttention:
    torch.manual_seed(2)
    return PlainAttention(DIM, heads).double()


@pytest.mark.theorem
@pytest.mark.parametrize("strength", [0.75, -0.75])
def test_shift_moves_the_metric_by_a_multiple_of_the_identity(strength: float) -> None:
    before, after = laws(Shift(DIM, 1, value=strength).double(), random_layer())
    identity = torch.eye(DIM, dtype=torch.float64)
    torch.testing.assert_close(after.metric, before.metric + strength * identity, rtol=1e-10, atol=1e-10)
    gain = form(after) - form(before)
    torch.testing.assert_close(gain[0], strength * (before.value_map.mT @ before.value_map)[0], rtol=1e-10, atol=1e-12)
    # of one sign, though the value map has both
    assert bool((torch.linalg.eigvalsh(strength * gain) > 0).all())
    signs = torch.linalg.eigvalsh(symmetric(before.value_map))
    assert float(signs.min()) < 0 < float(signs.max())


@pytest.mark.theorem
def test_shift_of_a_definite_layer_keeps_one_metric_for_all_heads() -> None:
    torch.manual_seed(0)
    layer = DefiniteAttention(DIM, 3, "convergent").double()
    metric = torch.linalg.inv(layer.inverse_metric().detach())
    _, after = laws(Shift(DIM, 3, value=0.5).double(), layer)
    shifted = metric + 0.5 * torch.eye(DIM, dtype=torch.float64)
    torch.testing.assert_close(after.interaction, shifted @ after.value_map, rtol=1e-10, atol=1e-12)


@pytest.mark.theorem
def test_slices_of_all_heads_add_up_to_a_diagonal() -> None:
    before, after = laws(Slice(DIM, 3, sign="-").double(), random_layer(3))
    gain = (after.interaction - before.interaction).sum(0)
    torch.testing.assert_close(gain, torch.diag(torch.full((DIM,), -0.05, dtype=torch.float64)), rtol=0, atol=1e-8)


@pytest.mark.theorem
@pytest.mark.parametrize("value_sign", [1.0, -1.0])
def test_a_slice_pushes_by_the_sign_of_the_value(value_sign: float) -> None:
    """One positive strength pushes a positive value to divergence and a negative one to collapse."""
    layer = random_layer()
    with torch.no_grad():
        # O V = sign * (O O' + I/10): definite
        layer.value.weight.copy_(value_sign * (layer.output.weight.mT + 0.1 * torch.linalg.inv(layer.output.weight)))
    before, after = laws(Slice(DIM, 1, sign="+", value=0.25).double(), layer)
    gain = torch.linalg.eigvalsh(form(after) - form(before))
    assert bool((value_sign * gain > 0).all())


@pytest.mark.theorem
@pytest.mark.parametrize("regime", ["convergent", "divergent", "intermediate"])
def test_the_metric_slice_pushes_to_divergence_in_every_regime(regime: str) -> None:
    torch.manual_seed(1)
    layer = DefiniteAttention(DIM, 1, regime, metric="diagonal").double()  # type: ignore[arg-type]
    before, after = laws(MetricSlice(DIM, 1, value=0.25).double(), layer)
    inverse = layer.inverse_metric().detach()
    gain = (after.interaction - before.interaction)[0]
    torch.testing.assert_close(gain, 0.25 * torch.linalg.inv(inverse), rtol=1e-7, atol=1e-9)
    wanted = 0.25 * symmetric(before.interaction[0])
    torch.testing.assert_close((form(after) - form(before))[0], wanted, rtol=1e-7, atol=1e-9)
    assert float(torch.linalg.eigvalsh(wanted).min()) > 0
