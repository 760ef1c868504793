"""Times and rates of predictions, against quadrature in many digits and against runs."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

import attractor as at
from attractor.theory import find_theorem, list_theorems
from attractor.theory.checking import draw_cases
from attractor.theory.theorems.consensus.equiangular import log_time_to, solve_cosine
from attractor.theory.theorems.consensus.polygons import predict_eigenvalues
from attractor.theory.timescales import NEAR, TimeScale, log_integral, log_merging_time

EYE = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(50.0, 18.7583368645), (100.0, 41.0325932385), (200.0, 86.3010751608), (500.0, 223.289377092)],
)
def test_two_tokens_at_low_temperature(beta: float, expected: float) -> None:
    assert log_merging_time(beta, 1.0, 1e-3) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("beta", [-3.0, 0.0, 2.0, 30.0, 60.0, 900.0])
@pytest.mark.parametrize("start", [0.4, 1.6, 3.1])
def test_two_tokens_against_quadrature(beta: float, start: float) -> None:
    with mpmath.workdps(30):
        steps = [start - (start - NEAR) * 2.0**-k for k in range(14)] + [start]
        value = mpmath.quad(lambda u: (1 + mpmath.exp(beta * (1 - mpmath.cos(u)))) / (2 * mpmath.sin(u)), steps)
        expected = float(mpmath.log(value / 1.5))
    assert log_merging_time(beta, start, NEAR, 1.5) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_equal_angles_reach_an_angle_in_time() -> None:
    for beta in (0.0, 3.0):
        time = math.exp(log_time_to(beta, 4, 1.3, math.acos(0.1), 0.2))
        reached = solve_cosine(4, beta, 1.3, 0.1, np.array([0.0, time]))[-1]
        assert reached == pytest.approx(math.cos(0.2), abs=1e-8)
    assert log_time_to(400.0, 2, 1.0, 1.0, 1e-3) == pytest.approx(log_merging_time(400.0, 1.0, 1e-3), rel=1e-9)


def test_the_logarithm_of_an_integral() -> None:
    assert log_integral(lambda x: -np.log(x), 1e-6, 1.0) == pytest.approx(math.log(6 * math.log(10)), rel=1e-9)
    assert log_integral(lambda x: 5000.0 * x, 0.0, 1.0) == pytest.approx(5000.0 - math.log(5000.0), rel=1e-9)


@pytest.mark.theorem
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
def test_gathering_takes_about_the_time_predicted(d: int, beta: float) -> None:
    """An order of magnitude, for starts that are not near an equilibrium."""
    law = at.Attention.isotropic(d, beta)
    times = [0.0, *np.geomspace(0.1, 1e5, 200).tolist()]
    for seed in range(4):
        tokens = at.Tokens.uniform(8, d, seed=seed)
        scale = at.predict(law, tokens, "sphere", paper="consensus").find_scale("consensus")
        assert scale is not None
        assert scale.time is not None
        assert scale.kind == "order of magnitude"
        run = at.flow(law, tokens, space="sphere", until=1e5, save=times, stop=())
        apart = (run.points - run.points[:, :1]).norm(dim=-1).amax(-1)
        seen = float(run.times[int((apart < NEAR).nonzero()[0, 0])])
        assert 0.1 < seen / scale.time < 10


def test_no_time_is_claimed_beside_an_equilibrium_that_repels() -> None:
    """There the tokens wait as long as the start is near: formerly "at about t = 8", where it takes 40 to 58."""
    corners = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=torch.float64) / 3**0.5
    push = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 3)))
    tokens = at.Tokens(at.Sphere().retract(corners + 1e-7 * push))
    found = at.predict(at.Attention.isotropic(3, 1.0), tokens, "sphere")
    scale = found.find_scale("consensus")
    assert scale is not None
    assert scale.time is None
    assert "no time is known, because the start is near an equilibrium" in scale.describe()


def test_a_fate_far_beyond_the_run_is_said_to_be_so() -> None:
    """The second token sees itself with the weight e^-565, and does not move for that long."""
    size = 565.0**0.5
    law = at.Attention(-EYE, EYE, -EYE, mask="causal")
    tokens = at.Tokens([[1.0, 0.0, 0.0], [0.0, size, 0.0]])
    found = at.predict(law, tokens, until=100.0)
    scale = found.find_scale("collapse")
    assert scale is not None
    assert scale.is_beyond(100.0)
    assert scale.log_time == pytest.approx(565.0, rel=0.02)
    assert "far beyond the run, which ends at t = 100" in repr(found)
    run = at.flow(law, tokens, until=100.0, stop=())
    assert float(run.final.points[1].norm()) > 0.99 * size - 1.5  # type: ignore[union-attr]
    small = at.predict(law, at.Tokens([[1.0, 0.0, 0.0], [0.0, 0.5, 0.0]]), until=1000.0)
    assert "beyond" not in repr(small)


def test_two_tokens_beyond_a_run() -> None:
    law, tokens = at.Attention.isotropic(2, 40.0), at.Tokens([[1.0, 0.0], [0.0, 1.0]])
    found = at.predict(law, tokens, "sphere", until=1e6).row()["fates"]["consensus"]["expected"]
    assert found["kind"] == "exact"
    assert found["beyond"]
    assert not at.predict(law, tokens, "sphere", until=1e18).row()["fates"]["consensus"]["expected"]["beyond"]


@pytest.mark.theorem
@pytest.mark.parametrize("key", ["consensus.T2", "consensus.T4-common", "regimes.T6"])
def test_bounds_hold(key: str) -> None:
    """What is to happen at the latest by a time has happened then."""
    theorem = find_theorem(key)
    for case in draw_cases(theorem, 3, seed=7):
        if not isinstance(case.law, at.Attention):
            continue
        assert theorem.time_scale is not None
        scale = theorem.time_scale(case)
        if scale is None or scale.time is None or scale.time > 1e4:
            continue
        assert scale.kind == "at the latest"
        run = at.flow(case.law, case.tokens, space=case.space, until=scale.time, save=[0.0, scale.time], stop=())
        start, end = run.points[0], run.points[-1]
        if key == "regimes.T6":
            assert float(end.norm(dim=-1).min()) >= 9.99 * float(start.norm(dim=-1).max())
        else:
            assert float((end - end[:1]).norm(dim=-1).max()) < 2.5 * NEAR * float(end.norm(dim=-1).max())


@pytest.mark.theorem
def test_blow_up_times() -> None:
    found = at.predict(at.Attention(EYE, EYE, EYE), at.Gaussian(torch.zeros(3), 2 * EYE), until=0.1)
    scale = found.find_scale("blow-up")
    assert scale is not None
    assert scale.kind == "exact"
    assert scale.time == pytest.approx(0.25)
    assert scale.is_beyond(0.1)


@pytest.mark.theorem
def test_polygon_eigenvalues_against_finite_differences() -> None:
    for n, beta in ((3, -1.0), (5, -3.0), (6, 2.0)):
        angles = 2 * np.pi * np.arange(n) / n

        def velocity(theta: np.ndarray, beta: float = beta) -> np.ndarray:
            gaps = theta[None] - theta[:, None]
            weights = np.exp(beta * np.cos(gaps))
            return (weights * np.sin(gaps)).sum(1) / weights.sum(1)

        step = 1e-6
        columns = [(velocity(angles + step * unit) - velocity(angles - step * unit)) / (2 * step) for unit in np.eye(n)]
        seen = np.sort(np.linalg.eigvals(np.stack(columns, 1)).real)
        np.testing.assert_allclose(seen, np.sort(predict_eigenvalues(beta, n)), atol=1e-8)


def test_fates_are_told_in_words() -> None:
    found = at.predict(at.Attention.isotropic(3, 1.0), at.Tokens.hemisphere(6, 3, seed=0), "sphere")
    assert "the energy E" in found.meanings["monotone"]
    assert "the hemisphere margin" in found.meanings["monotone"]
    assert all(item.meaning for item in found.applicable)
    for theorem in list_theorems():
        assert theorem.quantity or theorem.fate != "monotone"
    identity = next(item for item in found.applicable if item.fate == "identity")
    assert "equation or inequality" in identity.meaning


def test_a_law_that_is_not_attention_is_named() -> None:
    found = at.predict(at.Affine(EYE), at.Tokens.gaussian(3, 3, seed=0))
    assert "the law is Affine" in repr(found)
    assert found.row()["note"]
    assert not at.predict(at.Attention.isotropic(3, 1.0)).note


def test_until_is_checked() -> None:
    with pytest.raises(at.errors.InputError, match="until must be a positive time"):
        at.predict(at.Attention.isotropic(3, 1.0), until=-1.0)


@pytest.mark.parametrize("kind", ["exact", "not before", "order of magnitude", "at the latest"])
def test_only_bounds_from_above_say_nothing_about_the_end_of_a_run(kind: str) -> None:
    scale = TimeScale("it happens", math.log(1e9), kind)  # type: ignore[arg-type]
    assert scale.is_beyond(1.0) == (kind != "at the latest")
    assert not scale.is_beyond(1e10)
    assert "1e+09" in scale.describe()
    assert scale.is_beyond(5e8) == (kind in ("exact", "not before"))
