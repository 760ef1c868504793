"""Equiangular tokens: a state with two coordinates, against tokens and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import attractor as at
from attractor.errors import AttractorError, InputError, UnsupportedError

TIGHT = {"rtol": 1e-12, "atol": 1e-14, "stop": ()}


def unit_norm(dim: int) -> at.RMSNorm:
    """The norm with length one."""
    return at.RMSNorm(torch.full((dim,), dim**-0.5, dtype=torch.float64))


def block(placement: str, beta: float, dim: int = 8) -> at.Block:
    return at.Block(at.Attention.isotropic(dim, beta), placement=placement, norms=unit_norm(dim))


def field(placement: str, n: int, beta: float, rho: float, r: float, t: float, tau: float) -> tuple[float, float]:
    """The equations of the specification, 3b: rho' and r'."""
    p = 1 / (1 + (n - 1) * math.exp(-beta * (1 - rho)))
    q = (1 - p) / (n - 1)
    a = p + (1 - p) * rho
    A = math.sqrt(p**2 + 2 * p * (1 - p) * rho + (1 - p) ** 2 * (1 + (n - 2) * rho) / (n - 1))
    if placement == "mix":
        placement = "post" if t < tau else "pre"
    s = {"post": 1.0, "pre": r, "peri": r * A, "ngpt": A, "sqrt": math.sqrt(1 + t)}[placement]
    return 2 * q / s * (1 - rho) * (1 + (n - 1) * rho), {"pre": a, "peri": a / A}.get(placement, 0.0)


A28 = {
    "post": 0.9748573561,
    "pre": 0.7466676103,
    "peri": 0.8210661511,
    "ngpt": 0.9905432854,
    "sqrt": 0.8433955476,
    "mix": 0.8924224896,
}


@pytest.mark.theorem
@pytest.mark.parametrize("placement", A28)
def test_placements_in_continuous_time(placement: str) -> None:
    name = {"mix": "mix:1", "ngpt": "ngpt:1"}.get(placement, placement)
    run = at.flow(block(name, 2.0), at.Equiangular(0.1, 6), until=3.0, save=[3.0], **TIGHT)
    assert abs(float(run.cosines[0]) - A28[placement]) < 1e-9

    def rates(t: float, y: np.ndarray) -> tuple[float, float]:
        return field(placement, 6, 2.0, y[0], y[1], t, 1.0)

    y = np.array([0.1, 1.0])
    for begin, end in ((0.0, 1.0 - 1e-15), (1.0, 3.0)):
        y = solve_ivp(rates, (begin, end), y, method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1]
    assert float(run.cosines[0]) == pytest.approx(y[0], abs=1e-10)
    assert float(run.radii[0]) == pytest.approx(y[1], abs=1e-10)


@pytest.mark.theorem
@pytest.mark.parametrize(
    ("placement", "expected"),
    [("post", 0.999981070511), ("pre", 0.962209179039), ("peri", 0.964236211803), ("ngpt:0.3", 0.996552493139)],
)
def test_placements_in_layers(placement: str, expected: float) -> None:
    run = at.flow(block(placement, 1.5), at.Equiangular(0.05, 7), until=10.0, method="layers", step=1.0)
    assert abs(float(run.final.rho) - expected) < 1e-11
    law = block(placement, 1.5, dim=7)
    tokens = at.flow(law, at.Equiangular(0.05, 7).tokens(), until=10.0, method="layers", step=1.0)
    found = at.Equiangular(0.05, 7).tokens(9).points
    assert found.shape == (7, 9)
    cosine = float(torch.cosine_similarity(tokens.final.points[0], tokens.final.points[3], dim=0))
    assert abs(cosine - expected) < 1e-11


LAWS = {
    "softmax": at.Attention.isotropic(5, 2.0),
    "exponential": at.Attention.isotropic(5, 0.7, kernel="exponential"),
    "l2": at.Attention.isotropic(5, 1.3, kernel="l2"),
    "sigmoid": at.Attention.isotropic(5, 1.3, kernel="sigmoid"),
    "linear": at.Attention.isotropic(5, 0.5, kernel="linear"),
    "hardmax": at.Attention.isotropic(5, 1.0, kernel=at.Hardmax(tie_tolerance=1e-12)),
    "hardmax of others": at.Attention.isotropic(5, -1.0, kernel=at.Hardmax(tie_tolerance=1e-12)),
    "repulsive": at.Attention(torch.eye(5), -torch.eye(5), -0.5 * torch.eye(5)),
    "heads": at.Attention(*(torch.stack((torch.eye(5), c * torch.eye(5))) for c in (1.0, 2.0, -0.3))),
    "sum": at.Attention.isotropic(5, 2.0) + at.Affine(-0.5 * torch.eye(5)),
    "stack": at.Stack((at.Attention.isotropic(5, 2.0), at.Attention.isotropic(5, -1.0)), 0.4),
    "schedule": at.Schedule.interpolate([0.0, 1.0], [at.Attention.isotropic(5, 2.0), at.Attention.isotropic(5, 0.1)]),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("space", [at.Euclidean(), at.Sphere(1.3)])
def test_it_is_the_motion_of_tokens(name: str, space: at.Space) -> None:
    law, state = LAWS[name], at.Equiangular(-0.1, 5, 0.8)
    options = {"space": space, "until": 0.8, "method": "rk4", "step": 0.05, "save": [0.4, 0.8], "stop": ()}
    run, tokens = at.flow(law, state, **options), at.flow(law, state.tokens(), merge=False, **options)
    grams = tokens.points @ tokens.points.mT
    lengths = grams[:, 0, 0].sqrt()
    assert torch.allclose(run.radii, lengths, atol=1e-12)
    assert torch.allclose(run.cosines * run.radii**2, grams[:, 0, 3], atol=1e-12)
    assert float((run.state(1).tokens().points @ run.state(1).tokens().points.mT - grams[1]).abs().max()) < 1e-12
    assert run.space == space


def test_kappa_falls_exponentially_near_consensus() -> None:
    """kappa' = -2 n q kappa with n q -> 1 (3b), to values at the rounding of the cosine."""
    options = {"space": at.Sphere(), "until": 14.0, "save": [10.0, 14.0], **TIGHT}
    run = at.flow(at.Attention.isotropic(4, 1.0), at.Equiangular(0.5, 10), **options)
    distance = (run.points[:, 0, 0] / run.points[:, 0, 1]) ** 2
    assert float(torch.log(distance[0] / distance[1])) == pytest.approx(8.0, rel=1e-6)
    end = at.flow(at.Attention.isotropic(4, 1.0), at.Equiangular(0.5, 10), space="sphere", until=1e4)
    assert end.outcome.name == "consensus"


def test_a_billion_tokens() -> None:
    """beta = gamma log n: one layer without residual keeps cosines above the threshold and collapses below it."""
    n, rho = 10**9, 0.5
    cosines = {}
    for gamma in (1.0, 3.0):
        beta = gamma * math.log(n)
        law = at.Attention.isotropic(3, beta) + at.Affine(-torch.eye(3))  # x + (attention - x)
        run = at.flow(law, at.Equiangular(rho, n), space="sphere", until=1.0, method="layers", step=1.0)
        cosines[gamma] = float(run.final.rho)
    assert cosines[1.0] > 0.999
    assert cosines[3.0] == pytest.approx(rho, abs=1e-3)


def test_ensembles_and_gradients() -> None:
    law = at.Attention.isotropic(4, 1.0)
    states = at.Equiangular([[0.0, 0.2], [0.4, -0.1]], 6, 1.0)
    run = at.flow(law, states, space="sphere", until=1.0)
    alone = at.flow(law, at.Equiangular(0.4, 6), space="sphere", until=1.0)
    assert run.cosines.shape[1:] == (2, 2)
    assert torch.equal(run.member(2).cosines, run.cosines[:, 1, 0])
    assert float(run.member(2).final.rho) == pytest.approx(float(run.final.rho[1, 0]), abs=1e-12)
    assert float(run.final.rho[1, 0]) == pytest.approx(float(alone.final.rho), abs=1e-9)
    rho = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    options = {"space": "sphere", "until": 1.0, "method": "rk4", "step": 0.01}
    at.flow(law, at.Equiangular(rho, 6), **options).final.rho.backward()
    ahead, behind = (float(at.flow(law, at.Equiangular(0.1 + h, 6), **options).final.rho) for h in (1e-5, -1e-5))
    assert float(rho.grad) == pytest.approx((ahead - behind) / 2e-5, rel=1e-7)  # type: ignore[arg-type]


def test_a_store_and_a_figure(tmp_path: object) -> None:
    pytest.importorskip("zarr")
    law = at.Attention.isotropic(4, 1.0)
    run = at.flow(law, at.Equiangular(0.1, 6), space="sphere", until=2.0, store=f"{tmp_path}/run.zarr")
    same = at.load(f"{tmp_path}/run.zarr")
    assert torch.equal(same.cosines, run.cosines)
    assert isinstance(same.initial, at.Equiangular)
    assert same.space == run.space
    run.plot(f"{tmp_path}/run.png")
    assert run.summary()["sizes"]["tokens"] == 6
    assert "6 equiangular tokens" in run._repr_html_()


def test_the_simplex_and_coinciding_tokens() -> None:
    law = at.Attention.isotropic(4, 1.0)
    for rho in (-0.25, 1.0):
        run = at.flow(law, at.Equiangular(rho, 5), space="sphere", until=5.0)
        assert float(run.final.rho) == pytest.approx(rho, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((1.1, 4), "between -1/\\(n-1\\) = -0.333333 and 1, got 1.1"),
        ((-0.5, 4), "got -0.5"),
        ((float("nan"), 4), "NaN"),
        ((0.1, 1), "at least 2 tokens"),
        ((0.1, 2.5), "whole number"),
        ((0.1, 4, 0.0), "positive"),
        (([0.1, 0.2], 4, [1.0, 1.0, 1.0]), "ensemble axes"),
    ],
)
def test_bad_states(arguments: tuple[object, ...], why: str) -> None:
    with pytest.raises(InputError, match=why):
        at.Equiangular(*arguments)  # type: ignore[arg-type]


EYE = torch.eye(4)


@pytest.mark.parametrize(
    ("law", "why"),
    [
        (at.Attention(torch.diag(torch.arange(4.0)), EYE, EYE), "multiples of the identity"),
        (at.Attention(EYE, EYE, EYE, mask="causal"), "causal mask"),
        (at.Attention(EYE, EYE, EYE, positions=at.Rotary()), "rotary"),
        (at.Attention(EYE, EYE, EYE, query_bias=torch.ones(4)), "biases"),
        (at.Attention(EYE, EYE, EYE, kernel="sinkhorn"), "sinkhorn"),
        (at.Block(at.Attention(EYE, EYE, EYE), placement="pre", norms=at.LayerNorm()), "single coordinates"),
        (at.Block(at.Attention(EYE, EYE, EYE), placement="pre", norms=at.RMSNorm(torch.arange(4.0))), "gains differ"),
        (at.Attention(EYE, EYE, EYE) + at.MLP(torch.ones(2, 4), None, torch.ones(4, 2)), "MLP is not known"),
        (at.Affine(EYE, torch.ones(4)), "w I"),
    ],
)
def test_laws_that_tell_tokens_apart(law: at.Law, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        at.flow(law, at.Equiangular(0.1, 4), until=1.0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"space": at.Ellipsoid(torch.diag(torch.arange(1.0, 5.0)))}, "ellipsoid"),
        ({"noise": at.Noise(0.1), "step": 0.1}, "noise"),
        ({"events": [at.Event(lambda tokens, time: 1.0)]}, "events"),
        ({"merge": 1e-3}, "merge"),
        ({"reduce": True}, "only that of tokens"),
        ({"observe": "clusters", "save": 3}, "tokens"),
    ],
)
def test_options_that_need_tokens(options: dict[str, object], why: str) -> None:
    with pytest.raises(AttractorError, match=why):
        at.flow(at.Attention(EYE, EYE, EYE), at.Equiangular(0.1, 4), **{"until": 1.0, **options})


def test_what_needs_tokens_says_so() -> None:
    run = at.flow(at.Attention(EYE, EYE, EYE), at.Equiangular(0.1, 4), until=1.0)
    with pytest.raises(UnsupportedError, match=r"run\.cosines"):
        run.observe("clusters")
    with pytest.raises(UnsupportedError, match=r"run\.plot"):
        run.scene()
    with pytest.raises(InputError, match="at least 4 dimensions"):
        at.Equiangular(0.1, 4).tokens(3)
    tokens = at.flow(at.Attention(EYE, EYE, EYE), at.Tokens.uniform(3, 4), until=1.0)
    with pytest.raises(UnsupportedError, match="Equiangular"):
        _ = tokens.cosines
