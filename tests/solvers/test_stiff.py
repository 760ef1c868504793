"""Implicit methods: accuracy against other integrators, the change of method, saddles, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import attractor as at
from attractor.errors import InputError, UnsupportedError
from attractor.solvers.steppers.jacobian import MemberField
from attractor.solvers.steppers.stepper import Field
from attractor.states import Tokens

SPHERE = at.Sphere()
ELLIPSOID = at.Ellipsoid(np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.6]]))
IMPLICIT = ("radau5", "radau9")


def repelling(scale: float = 1e8) -> at.Attention:
    """V = -I: every token flees the one it attends to, along surfaces where two scores are equal."""
    return at.Attention(np.eye(3), np.eye(3), -np.eye(3), scale=scale)


def field(law: at.Attention, points: Tensor, space: at.Space, **options: object) -> MemberField:
    return MemberField(Field(law, space, Tokens.unchecked(points[None], None, None), **options), 0, 1)  # type: ignore[arg-type]


def scipy_solution(law: at.Law, start: Tensor, space: at.Space, until: float, **options: object) -> np.ndarray:
    """Scipy's integration of the tangent velocity in the ambient space."""

    def slope(time: float, flat: np.ndarray) -> np.ndarray:
        points = torch.from_numpy(flat.reshape(start.shape))
        return at.velocity(law, at.Tokens(points), space=space, time=time).numpy().ravel()

    solution = solve_ivp(slope, (0.0, until), start.numpy().ravel(), **options)  # type: ignore[call-overload]
    assert solution.success
    return solution.y[:, -1].reshape(start.shape)


# ------------------------------------------------------------------ derivatives


@pytest.mark.parametrize("space", [at.Euclidean(), SPHERE, at.Sphere(2.0), ELLIPSOID], ids=lambda space: space.name)
@pytest.mark.parametrize("kernel", ["softmax", "l2", "sigmoid", "exponential", "linear"])
@pytest.mark.parametrize("mask", [None, "causal", "window:3"])
def test_jacobians_in_closed_form_are_those_of_automatic_differentiation(
    space: at.Space, kernel: str, mask: str | None
) -> None:
    draw = np.random.default_rng(0)
    query, key, value = draw.standard_normal((3, 2, 3, 3))
    law = at.Attention(query, key, value, scale=0.5, kernel=kernel, mask=mask)
    points = space.enter(torch.from_numpy(draw.standard_normal((5, 3))))
    masses = torch.from_numpy(draw.random(5))
    for weights in (None, masses / masses.sum()):
        one = MemberField(Field(law, space, Tokens.unchecked(points[None], weights, None)), 0, 1)
        closed, automatic = one._closed_form(0.0, points), one._differentiate(0.0, points)
        np.testing.assert_allclose(closed, automatic, rtol=1e-11, atol=1e-12 * np.abs(automatic).max())
        np.testing.assert_allclose(
            one._differences(0.0, points), automatic, rtol=0, atol=1e-7 * np.abs(automatic).max()
        )


def test_the_jacobian_without_the_term_of_the_token_itself() -> None:
    points = at.Tokens.uniform(5, 3, seed=1).points
    one = field(at.Attention.isotropic(3, 2.0), points, SPHERE, skip_self=True)
    closed, automatic = one._closed_form(0.0, points), one._differentiate(0.0, points)
    np.testing.assert_allclose(closed, automatic, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kernel", ["sinkhorn", "capped"])
def test_laws_without_closed_form_are_differentiated(kernel: str) -> None:
    law, points = at.Attention.random(3, heads=1, seed=2, kernel=kernel), at.Tokens.uniform(5, 3, seed=1).points
    one = field(law, points, SPHERE)
    assert one._closed_form(0.0, points) is None
    np.testing.assert_allclose(one.jacobian(0.0, points), one._differences(0.0, points), rtol=0, atol=1e-8)


@dataclass(frozen=True, eq=False)
class InNumpy(at.Law):
    """x' = -k (x - 1)^3 - x, which PyTorch cannot differentiate."""

    rate: float = 1.0

    def velocity(self, tokens: at.Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        x = tokens.points.detach().cpu().numpy()
        return torch.from_numpy(-self.rate * (x - 1.0) ** 3 - x)


@dataclass(frozen=True, eq=False)
class Failing(at.Law):
    """An error of the law itself, raised when tokens pass 0.5."""

    def velocity(self, tokens: at.Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        if bool((tokens.points < 0.5).any()):
            raise RuntimeError("the law is broken below 0.5")
        return -tokens.points


def test_laws_that_cannot_be_differentiated_take_differences() -> None:
    start = torch.tensor([[2.0], [-1.0]], dtype=torch.float64)
    run = at.flow(InNumpy(1e4), at.Tokens(start), until=2.0, method="radau9", stop=())
    truth = scipy_solution(InNumpy(1e4), start, at.Euclidean(), 2.0, method="Radau", rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run.final.points.numpy(), truth, rtol=1e-7)


@pytest.mark.parametrize("method", IMPLICIT)
def test_errors_of_a_law_are_not_taken_for_a_missing_derivative(method: str) -> None:
    with pytest.raises(RuntimeError, match="broken below"):
        at.flow(Failing(), at.Tokens(np.ones((2, 1))), until=2.0, method=method)


# ------------------------------------------------------------------ accuracy


@pytest.mark.parametrize("method", IMPLICIT)
@pytest.mark.parametrize("kernel", ["softmax", "sigmoid", "sinkhorn", "capped"])
def test_runs_agree_with_explicit_ones(law: at.Attention, space: at.Space, method: str, kernel: str) -> None:
    given = at.Attention(law.query[0], law.key[0], law.value[0], kernel=kernel, mask="causal")
    options = {"space": space, "until": 3.0, "save": [0.5, 1.7, 3.0], "stop": (), "merge": False}
    tokens = at.Tokens.uniform(4, 3, seed=3)
    tight = at.flow(given, tokens, method="dop853", rtol=1e-12, atol=1e-14, **options)
    run = at.flow(given, tokens, method=method, rtol=1e-6, atol=1e-8, **options)
    torch.testing.assert_close(run.points, tight.points, rtol=0, atol=3e-5)


def test_blocks_with_norms_and_schedules_agree_with_explicit_runs() -> None:
    attention = at.Attention.random(3, seed=1)
    block = at.Block(attention, at.Affine(-0.3 * np.eye(3)), "pre", at.RMSNorm(eps=1e-6))
    moving = at.Schedule(lambda t: at.Attention(attention.query, attention.key, attention.value * (1.0 + 0.3 * t)))
    for law in (block, moving):
        options = {"until": 2.0, "save": [1.0, 2.0], "stop": ()}
        tokens = at.Tokens.gaussian(4, 3, seed=3, ensemble=2)
        tight = at.flow(law, tokens, method="dop853", rtol=1e-12, atol=1e-14, **options)
        run = at.flow(law, tokens, method="radau9", **options)
        torch.testing.assert_close(run.points, tight.points, rtol=1e-6, atol=1e-7)


@pytest.mark.theorem
def test_the_run_at_scale_1e8() -> None:
    """Seven million explicit steps to t = 10; scipy's Radau is the reference."""
    law, tokens = repelling(), at.Tokens.gaussian(8, 3, seed=0)
    run = at.flow(law, tokens, until=1.0)
    assert run.stats.method == "dop853+radau9"
    assert run.stats.switches[0][2] == "radau9"
    assert run.stats.accepted < 200_000
    assert "hairer1993solving" in run.cite()
    assert "hairer1996solving" in run.cite()

    points = tokens.points

    def jacobian(time: float, flat: np.ndarray) -> np.ndarray:
        here = torch.from_numpy(flat.reshape(points.shape))
        return field(law, here, at.Euclidean()).jacobian(time, here)

    truth = scipy_solution(law, points, at.Euclidean(), 1.0, method="Radau", rtol=1e-8, atol=1e-10, jac=jacobian)
    np.testing.assert_allclose(run.final.points.numpy(), truth, rtol=0, atol=1e-6)


@pytest.mark.theorem
def test_the_metastable_causal_run() -> None:
    """beta = 500: clusters that move at exponentially small rates while tokens are attracted at rate one."""
    law, tokens = at.Attention.isotropic(3, 500.0, mask="causal"), at.Tokens.uniform(16, 3, seed=0)
    run = at.flow(law, tokens, space=SPHERE, until=1e9, save=[1e3, 1e6, 3e8], stop=())
    assert run.stats.method == "dop853+radau9"
    assert run.stats.accepted < 50_000
    truth = scipy_solution(law, tokens.points, SPHERE, 1e6, method="LSODA", rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run.points[1].numpy(), truth, rtol=0, atol=1e-6)
    assert torch.isfinite(run.points).all()


@pytest.mark.parametrize("rtol", [1e-8, 1e-10])
def test_rounding_at_rest_does_not_stall_a_run(rtol: float) -> None:
    """Over steps of 1e8 rounding errors of the field exceed the tolerance; shorter steps are accepted."""
    law, tokens = at.Attention.isotropic(3, 500.0, mask="causal"), at.Tokens.uniform(4, 3, seed=0)
    run = at.flow(law, tokens, space=SPHERE, until=1e10, save=[1e10], stop=(), rtol=rtol, atol=0.01 * rtol)
    assert run.outcome.name == "reached"


# ------------------------------------------------------------------ the change of method


def test_runs_that_are_not_stiff_stay_explicit() -> None:
    law, tokens = at.Attention.isotropic(3, 4.0), at.Tokens.uniform(16, 3, seed=0)
    run = at.flow(law, tokens, space=SPHERE, until=1e3, stop=(), merge=False)
    named = at.flow(law, tokens, space=SPHERE, until=1e3, stop=(), merge=False, method="dop853")
    assert run.stats.switches == ()
    assert run.stats.method == "dop853"
    assert torch.equal(run.points, named.points)


def test_the_native_loop_and_the_loop_in_python_change_at_the_same_step() -> None:
    law, tokens = at.Attention.isotropic(3, 500.0, mask="causal"), at.Tokens.uniform(4, 3, seed=1)
    options = {"space": SPHERE, "until": 3e6, "stop": (), "save": [3e6]}
    native, python = at.flow(law, tokens, **options), at.flow(law, tokens, engine="reference", **options)
    assert "native" in native.stats.engine
    assert "native" not in python.stats.engine
    assert native.stats.switches[0][1] == pytest.approx(python.stats.switches[0][1], rel=1e-3)
    torch.testing.assert_close(native.final.points, python.final.points, rtol=0, atol=1e-6)


def test_members_of_an_ensemble_change_on_their_own() -> None:
    """One member is stiff, the other reaches the end explicitly; both are those of their own runs."""
    gentle, stiff = at.Attention.isotropic(3, 1.0), at.Attention.isotropic(3, 400.0)
    query = torch.stack([gentle.query, stiff.query]).unsqueeze(1)
    value = torch.stack([gentle.value, stiff.value]).unsqueeze(1)
    both = at.Attention(query, query, value, mask="causal")
    tokens = at.Tokens.uniform(6, 3, seed=4, ensemble=2)
    options = {"space": SPHERE, "until": 3e6, "stop": (), "save": [1.0, 1e5, 3e6]}
    run = at.flow(both, tokens, **options)
    assert {member for member, _, _ in run.stats.switches} >= {1}
    for member in range(2):
        law = at.Attention(query[member], query[member], value[member], mask="causal")
        alone = at.flow(law, at.Tokens(tokens.points[member]), **options)
        torch.testing.assert_close(run.points[:, member], alone.points, rtol=0, atol=1e-7)


def test_hardmax_is_never_integrated_implicitly() -> None:
    law = at.Attention(np.eye(3), np.eye(3), -np.eye(3), kernel="hardmax")
    with pytest.raises(UnsupportedError, match="jump"):
        at.flow(law, at.Tokens.uniform(4, 3), until=1.0, method="radau5")
    run = at.flow(law, at.Tokens.uniform(4, 3), until=1.0, max_evaluations=20_000)
    assert run.stats.switches == ()


def test_gradients_do_not_flow_through_implicit_methods() -> None:
    points = at.Tokens.uniform(4, 3).points.requires_grad_()
    with pytest.raises(UnsupportedError, match="gradients"):
        at.flow(at.Attention.isotropic(3, 1.0), at.Tokens(points), until=1.0, method="radau9")


def test_unknown_methods_are_named() -> None:
    with pytest.raises(InputError, match="radau9"):
        at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3), until=1.0, method="radau7")


# ------------------------------------------------------------------ saddles, events and merging


@pytest.mark.theorem
@pytest.mark.parametrize("method", IMPLICIT)
@pytest.mark.parametrize("push", [1e-4, 1e-11])
def test_a_saddle_is_left(method: str, push: float) -> None:
    """Causal: token 2 leaves the antipode of token 1 at rate 1 / (1 + e^{2 beta}), below the tolerance for most of the time.

    Fast attraction elsewhere must not take steps over which the method damps the growth.
    """
    beta = 3.0
    points = np.array([[1.0, 0.0, 0.0], [-np.cos(push), np.sin(push), 0.0], [0.5, 0.5, 0.7], [0.3, -0.8, 0.1]])
    law, rate = at.Attention.isotropic(3, beta, mask="causal"), 1.0 / (1.0 + exp(2.0 * beta))
    options = {"space": SPHERE, "until": 1e5, "stop": "consensus"}
    run = at.flow(law, at.Tokens(points), method=method, **options)
    explicit = at.flow(law, at.Tokens(points), method="dop853", **options)
    assert run.outcome.name == "consensus"
    assert run.outcome.time > log(0.1 / push) / rate
    assert run.outcome.time == pytest.approx(explicit.outcome.time, rel=0.02)


@pytest.mark.theorem
@pytest.mark.parametrize("growth", [1.0, 1e-3])
@pytest.mark.parametrize("method", IMPLICIT)
def test_a_linear_saddle_grows_as_it_should(method: str, growth: float) -> None:
    """x' = diag(-1e4, growth) x from (1, 1e-13): the unstable coordinate is exponential in time, from far below the tolerance."""
    law = at.Affine(np.diag([-1e4, growth]))
    until = 35.0 / growth
    run = at.flow(law, at.Tokens(np.array([[1.0, 1e-13]])), until=until, method=method, stop=())
    assert float(run.final.points[0, 1]) == pytest.approx(1e-13 * exp(35.0), rel=1e-3)


@pytest.mark.parametrize("method", IMPLICIT)
def test_events_are_located_inside_implicit_steps(method: str) -> None:
    law = at.Affine(-np.diag([1e5, 1.0]))
    event = at.Event(lambda tokens, time: float(tokens.points[0, 1]) - 0.5, label="half")
    run = at.flow(law, at.Tokens(np.array([[1.0, 1.0]])), until=50.0, method=method, events=[event])
    assert run.outcome.name == "event"
    assert run.outcome.time == pytest.approx(log(2.0), rel=1e-6)


def test_tokens_merge_between_implicit_steps() -> None:
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(12, 3, seed=0)
    options = {"space": SPHERE, "until": 30.0, "merge": 1e-5, "stop": ()}
    run = at.flow(law, tokens, method="radau9", **options)
    explicit = at.flow(law, tokens, method="dop853", **options)
    assert run.stats.merges == explicit.stats.merges > 0
    torch.testing.assert_close(run.final.points, explicit.final.points, rtol=0, atol=1e-6)


# ------------------------------------------------------------------ checkpoints


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("method", [None, "radau9"])
def test_an_interrupted_run_is_resumed_to_the_same_bits(
    method: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attractor.solvers.store.INTERVAL", 0.0)
    monkeypatch.setattr("attractor.solvers.store.SHARE", 1e9)  # a checkpoint after every step
    law, tokens = at.Attention.isotropic(3, 500.0, mask="causal"), at.Tokens.uniform(8, 3, seed=2, ensemble=2)
    options = {"space": SPHERE, "until": 1e8, "stop": (), "save": [1e4, 1e6, 1e8], "method": method}
    whole = at.flow(law, tokens, **options)
    implicit = 0

    def interrupt(run: object) -> None:
        nonlocal implicit
        implicit += int(run.past is not None)  # type: ignore[attr-defined]
        if implicit == 25:
            raise Interrupted

    with pytest.raises(Interrupted):
        at.flow(law, tokens, store=tmp_path / "run", progress=interrupt, **options)
    assert "past_h" in np.load(tmp_path / "run" / "checkpoint.npz")
    resumed = at.resume(tmp_path / "run")
    assert torch.equal(resumed.points, whole.points)
    assert resumed.stats.switches == whole.stats.switches
    assert at.load(tmp_path / "run").stats.method == whole.stats.method


# ------------------------------------------------------------------ large systems


@pytest.mark.theorem
@pytest.mark.parametrize("method", IMPLICIT)
def test_repelling_directions_of_large_systems_are_found(method: str) -> None:
    """150 coordinates: eigenvalues come from a Krylov space of the Cayley transform."""
    law = at.Affine(np.diag([-1e4, -1e-3, 1.0]))
    points = np.tile([1.0, 1.0, 1e-13], (50, 1))
    run = at.flow(law, at.Tokens(points), until=35.0, method=method, stop=())
    np.testing.assert_allclose(run.final.points[:, 2], 1e-13 * exp(35.0), rtol=1e-3)


@pytest.mark.parametrize("method", IMPLICIT)
def test_systems_without_factorisation_agree_with_those_with_it(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, tokens = at.Attention.isotropic(3, 30.0, mask="causal"), at.Tokens.uniform(10, 3, seed=1)
    options = {"space": SPHERE, "until": 100.0, "method": method, "rtol": 1e-6, "stop": ()}
    dense = at.flow(law, tokens, **options)
    monkeypatch.setattr("attractor.solvers.steppers.jacobian.DENSE", 4)
    krylov = at.flow(law, tokens, **options)
    torch.testing.assert_close(krylov.final.points, dense.final.points, rtol=0, atol=1e-5)
