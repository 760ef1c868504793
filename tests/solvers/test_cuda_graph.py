"""Steps that are recorded on a GPU and played again are the steps themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attractor as at
from attractor.laws import Attention
from attractor.solvers import cuda_graph
from attractor.solvers.steppers.stepper import stepper_named

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"merge": False}, {"method": "dopri5", "rtol": 1e-6}])
def test_a_played_step_has_the_bits_of_the_step(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    law = Attention.isotropic(dim=3, beta=4.0)
    start = at.Tokens.uniform(64, 3, seed=1)
    there = at.Tokens(start.points.cuda())

    def run(tokens: at.Tokens) -> at.Trajectory:
        return at.flow(law, tokens, space=at.Sphere(), until=20.0, save=[1.0, 20.0], **options)

    played = run(there)
    monkeypatch.setattr(cuda_graph, "can_capture", lambda *given: False)
    plain, here = run(there), run(start)
    assert torch.equal(played.points, plain.points)
    assert played.stats.evaluations == plain.stats.evaluations
    assert torch.allclose(played.points.cpu(), here.points, atol=1e-7)


def test_what_the_host_must_see_is_not_recorded() -> None:
    points, law = torch.zeros(1, 4, 3, dtype=torch.float64), Attention.isotropic(dim=3, beta=1.0)
    stepper = stepper_named("dop853")
    asking = [
        (stepper, Attention.isotropic(dim=3, beta=1.0, kernel="sinkhorn"), points),
        (stepper, Attention.isotropic(dim=3, beta=1.0, mask="causal"), points),
        (stepper, Attention.isotropic(dim=4, beta=1.0, positions=at.Rotary()), points),
        (stepper_named("layers"), law, points),
        (stepper_named("rk4"), law, points),
        (stepper, law, torch.zeros(1, 20000, 3, dtype=torch.float64)),
    ]
    assert not cuda_graph.is_device_only(stepper, law, points)  # gradients are recorded
    with torch.no_grad():
        assert cuda_graph.is_device_only(stepper, law, points)
        assert not cuda_graph.can_capture(stepper, law, points)
        assert not any(cuda_graph.is_device_only(*given) for given in asking)


def test_off_the_gpu_a_step_is_just_taken() -> None:
    law, tokens = Attention.isotropic(dim=3, beta=1.0), at.Tokens.uniform(8, 3, seed=0)
    attempts: list[Any] = []
    at.flow(law, tokens, space=at.Sphere(), until=1.0, progress=lambda run: attempts.append(run.attempt))
    assert attempts
    assert not isinstance(attempts[0], cuda_graph.StepGraph)
