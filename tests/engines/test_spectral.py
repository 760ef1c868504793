"""The spectral engine: its series and error bound, its sums against the reference, and when it is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import attractor as at
from attractor.engines import Problem, attend, choose, fused, spectral, using
from attractor.engines.spectral import engine as machine
from attractor.engines.spectral import engine as plan
from attractor.engines.spectral.harmonics import coefficients, order_for, truncation_error
from attractor.errors import UnsupportedError

pytestmark = pytest.mark.skipif(bool(spectral.reason), reason=spectral.reason)
EPS = 2.0**-53


def sphere(rng: np.random.Generator, n: int, d: int, shape: str = "uniform") -> Tensor:
    """Unit vectors in several configurations, the poles of the harmonics among them."""
    x = torch.from_numpy(rng.standard_normal((n, d)))
    pole = torch.zeros(d, dtype=torch.float64)
    pole[-1] = 1.0
    if shape == "cluster":
        x = torch.arange(1.0, d + 1.0, dtype=torch.float64) + 1e-3 * x
    elif shape == "pole":
        x = pole + 1e-6 * x
    elif shape == "antipodal":
        x = torch.from_numpy(rng.choice([-1.0, 1.0], (n, 1))) * pole + 1e-2 * x
    elif shape == "point":
        x = pole.expand(n, d).clone()
    return normalize(x, dim=-1)


SHAPES = ("uniform", "cluster", "pole", "antipodal", "point")


# The series


@pytest.mark.theorem
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("beta", [1e-8, 0.3, 1.0, 9.0, 81.0, 700.0])
def test_the_coefficients_are_bessel_functions(dim: int, beta: float) -> None:
    from scipy.special import ive

    found = coefficients(dim, beta)
    degrees = np.arange(len(found))
    circle = np.where(degrees == 0, 1.0, 2.0) * ive(degrees, beta)
    exact = circle if dim == 2 else (2 * degrees + 1) * math.sqrt(math.pi / (2 * beta)) * ive(degrees + 0.5, beta)
    seen = exact > 1e-18
    np.testing.assert_allclose(found[seen], exact[seen], rtol=1e-12)
    assert (found >= 0).all()


@pytest.mark.theorem
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("beta", [0.3, 1.0, 9.0, 81.0, 400.0])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-7, 1e-11])
def test_the_truncation_bound_holds_and_is_attained(dim: int, beta: float, tolerance: float) -> None:
    order = order_for(dim, beta, tolerance)
    bound = truncation_error(dim, beta, order)
    assert bound <= tolerance < truncation_error(dim, beta, order - 1)
    t = np.cos(np.linspace(0.0, math.pi, 4001))
    kept = coefficients(dim, beta)[: order + 1]
    polynomial = np.polynomial.chebyshev.chebval if dim == 2 else np.polynomial.legendre.legval
    error = np.abs(polynomial(t, kept) - np.exp(beta * (t - 1.0)))
    assert error.max() <= bound + 200 * EPS
    assert error[0] >= 0.999 * bound - 200 * EPS


def test_no_score_needs_no_series() -> None:
    assert order_for(3, 0.0, 1e-16) == 0
    assert order_for(2, 1e-300, 1e-16) == 0


# The sums


def error_of(q: Tensor, k: Tensor, v: Tensor | None, bias: Tensor | None, **options: object) -> float:
    """Of the spectral engine against the reference in float64, relative to the sizes of normaliser and values."""
    found = attend(q, k, v, bias, engine="spectral", **options)  # type: ignore[arg-type]
    wide = [None if part is None else part.double() for part in (q, k, v, bias)]
    exact = attend(*wide, engine="reference", **options)  # type: ignore[arg-type]
    assert found[1] is not None
    assert exact[1] is not None
    assert found[1].dtype == q.dtype
    torch.testing.assert_close(torch.isfinite(found[1]), torch.isfinite(exact[1]))
    hidden = torch.isinf(exact[1])
    errors = [float((found[1] - exact[1]).masked_fill(hidden, 0.0).abs().max())]
    if v is not None:
        assert found[0] is not None
        assert exact[0] is not None
        assert found[0].dtype == q.dtype
        size = exact[1].exp().unsqueeze(-1) if options.get("mode") == "exponential" else 1.0
        errors.append(float(((found[0] - exact[0]) / (size * wide[2].abs().max())).abs().max()))  # type: ignore[union-attr]
    return max(errors)


@given(
    n=st.integers(1, 400),
    m=st.integers(1, 400),
    d=st.sampled_from([2, 3]),
    beta=st.sampled_from([0.0, 1e-9, 0.1, 1.0, -9.0, 25.0, 81.0, -300.0]),
    queries=st.sampled_from(SHAPES),
    keys=st.sampled_from(SHAPES),
    bias=st.sampled_from(["no", "finite", "holes", "steep"]),
    values=st.sampled_from(["keys", "minus", "one", "five", "none"]),
    mode=st.sampled_from(["softmax", "exponential"]),
    skip_self=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float64, torch.float32]),
    seed=st.integers(0, 1000),
)
def test_the_sums_are_those_of_the_reference(
    n: int,
    m: int,
    d: int,
    beta: float,
    queries: str,
    keys: str,
    bias: str,
    values: str,
    mode: str,
    skip_self: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x, y = sphere(rng, n, d, queries), sphere(rng, m, d, keys)
    turn = torch.linalg.qr(torch.from_numpy(rng.standard_normal((d, d))))[0]
    root = abs(beta) ** 0.5
    q, k = math.copysign(2.0 * root, beta) * x @ turn, 0.5 * root * y @ turn
    v = {
        "keys": k,
        "minus": -3.0 * k,
        "one": torch.from_numpy(rng.standard_normal((m, 1))),
        "five": torch.from_numpy(rng.standard_normal((m, 5))),
        "none": None,
    }[values]
    b = None if bias == "no" else torch.from_numpy(rng.standard_normal(m)) * (30.0 if bias == "steep" else 1.0)
    if b is not None and bias == "holes":
        b = torch.where(torch.from_numpy(rng.random(m) < 0.5), -math.inf, b)
    parts = [None if part is None else part.to(dtype) for part in (q, k, v, b)]
    limit = 2e-12 if dtype == torch.float64 else 3e-7 * (1.0 + 2.0 * abs(beta))
    if values in ("keys", "minus") and beta == 0.0:
        parts[2] = torch.from_numpy(rng.standard_normal((m, d))).to(dtype)
    size = 1.0 if b is None else float(b.abs().masked_fill(torch.isinf(b), 0.0).max())
    if mode == "exponential" and size + abs(beta) > 80.0:
        mode = "softmax"
    assert error_of(*parts, mode=mode, skip_self=skip_self) <= limit * max(1.0, size)  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("beta", [0.5, 9.0, 81.0, 400.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_error_of_a_row_is_within_its_bound(rng: np.random.Generator, dim: int, beta: float, shape: str) -> None:
    """Before any row is computed directly: truncation and rounding relative to the mass, and what all engines have."""
    y = sphere(rng, 3000, dim, shape)
    x = torch.cat([sphere(rng, 200, dim), y[:50], -y[:50]])
    q, k = beta * x, y
    problem = Problem(q, k, k, None, "exponential", False, None, None, False)
    plans = plan.make_plans(problem)
    assert not isinstance(plans, str)
    member = machine._Member(problem, plans[0], k, None)
    output, logsumexp, good, _ = member._rows(*member._series(1.0), 1.0)
    assert output is not None
    wide = [part.numpy().astype(np.longdouble) for part in (q, k)]
    weights = np.exp(wide[0] @ wide[1].T - beta)
    totals = weights.sum(1) / len(k)
    errors = np.abs(output.numpy() * math.exp(-beta) - weights @ wide[1]).max(1) / len(k)
    assert (errors <= plans[0].error + 8 * EPS * (1.0 + beta) * totals).all()
    relative = np.abs(logsumexp.numpy() - beta - np.log(totals * len(k)))[good.numpy()]
    assert (relative <= plan.TOLERANCE[torch.float64]).all()


def test_rows_far_from_all_mass_are_computed_directly(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    direct = fused.run
    monkeypatch.setattr(fused, "run", lambda problem: asked.append(problem.queries) or direct(problem))
    y = sphere(rng, 1000, 3, "pole")
    far = normalize(torch.tensor([[0.0, 0.3, -1.0], [0.0, -0.1, -1.0]], dtype=torch.float64), dim=-1)
    x = torch.cat([y[:300], far, y[300:]])
    assert error_of(25.0 * x, y, y, None) < 1e-12
    assert asked == [2]
    asked.clear()
    # more than half of the rows are too many, so all go
    assert error_of(25.0 * torch.cat([y[:400], -y[400:]]), y, y, None) < 1e-12
    assert asked == [1000]


def test_the_own_term_does_not_drown_the_others(rng: np.random.Generator) -> None:
    """A heavy token alone: what it sees of the rest is e^-18 of itself, and must be right to many digits."""
    x = sphere(rng, 800, 3, "pole")
    x[17] = torch.tensor([0.0, 0.0, -1.0])
    bias = torch.zeros(800, dtype=torch.float64)
    bias[17] = 5.0
    for values in (x, torch.from_numpy(rng.standard_normal((800, 2)))):
        found, _ = attend(9.0 * x, x, values, bias, skip_self=True, engine="spectral")
        exact, _ = attend(9.0 * x, x, values, bias, skip_self=True, engine="reference")
        assert found is not None
        assert exact is not None
        torch.testing.assert_close(found[17], exact[17], rtol=1e-11, atol=0.0)
        torch.testing.assert_close(found, exact, rtol=0.0, atol=1e-12)


def test_more_queries_than_keys_of_their_own(rng: np.random.Generator) -> None:
    y = sphere(rng, 300, 3, "pole")
    x = torch.cat([y, -y[:5], y])
    x[7] = -x[7]
    assert error_of(20.0 * x, y, y, None, skip_self=True) < 1e-12
    assert error_of(20.0 * x[:100], y, y, None, skip_self=True) < 1e-12


def test_batches_and_heads(rng: np.random.Generator) -> None:
    x = sphere(rng, 150, 3)
    scales = torch.tensor([1.0, -4.0], dtype=torch.float64)[:, None, None]
    q = torch.stack([x, -x, x.flip(0)])[:, None] * scales
    bias = torch.from_numpy(rng.standard_normal((3, 1, 150)))
    assert error_of(q, x, x, bias) < 1e-12
    assert error_of(q, x.mT.contiguous().mT, torch.from_numpy(rng.standard_normal((2, 150, 4))), bias) < 1e-12


def test_everything_hidden() -> None:
    x = normalize(torch.ones(5, 3, dtype=torch.float64), dim=-1)
    output, logsumexp = attend(x, x, x, torch.full((5,), -math.inf, dtype=torch.float64), engine="spectral")
    assert output is not None
    assert (output == 0).all()
    assert (logsumexp == -math.inf).all()


@pytest.mark.parametrize("instruction_set", fused.instruction_sets())
def test_every_instruction_set(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, instruction_set: str) -> None:
    monkeypatch.setenv("ATTRACTOR_ISA", instruction_set)
    for dim in (2, 3):
        x = sphere(rng, 333, dim)
        for columns in (0, 1, 2, 3, 4, 6):
            v = torch.from_numpy(rng.standard_normal((333, columns))) if columns else None
            assert error_of(9.0 * x, x, v, None) < 1e-12
        assert error_of(9.0 * x, x, x, None, skip_self=True) < 1e-12


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
def test_the_result_does_not_depend_on_the_number_of_threads(rng: np.random.Generator) -> None:
    for dim in (2, 3):
        x = sphere(rng, 9001, dim)
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(attend(9.0 * x, x, x, skip_self=True, engine="spectral"))
        for output, logsumexp in results[1:]:
            assert torch.equal(output, results[0][0])  # type: ignore[arg-type]
            assert torch.equal(logsumexp, results[0][1])  # type: ignore[arg-type]


# The choice


def problem(x: Tensor, beta: float = 9.0, **changes: object) -> Problem:
    words = {"v": x, "key_bias": None, "mode": "softmax", "causal": False, "window": None, "visible": None}
    return Problem(beta * x, x, **(words | {"skip_self": False} | changes))  # type: ignore[arg-type]


def test_it_is_chosen_where_it_wins(rng: np.random.Generator) -> None:
    for dim, many in ((2, 4000), (3, 8000)):
        x = sphere(rng, many, dim)
        assert choose(problem(x)).name == "spectral"
        assert choose(problem(x, mode="exponential")).name == "spectral"
        assert choose(problem(x.float())).name == "spectral"
        assert choose(problem(x[:500])).name == "fused"
        assert choose(problem(x, mode="sigmoid")).name == "fused"
        assert choose(problem(x, causal=True)).name == "fused"
        assert choose(problem(x, beta=5000.0)).name == "fused"
        assert choose(problem(x.clone().requires_grad_())).name == "fused"
        off = x.clone()
        off[-1] *= 1.0 + 1e-9
        assert choose(problem(off)).name == "fused"
        off[-1] *= math.nan
        assert choose(problem(off)).name == "fused"


def test_few_pairs_are_not_looked_at(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "make_plans", lambda problem: pytest.fail("looked at the numbers"))
    assert choose(problem(sphere(rng, 1000, 3))).name == "fused"


def test_a_problem_is_measured_once(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    measure = plan._make_plans
    monkeypatch.setattr(plan, "_make_plans", lambda problem: looks.append(1) or measure(problem))
    x = sphere(rng, 8000, 3)
    with using(None) as seen:
        attend(9.0 * x, x, x)
    assert seen == {"spectral"}
    assert len(looks) == 1


def test_it_says_why_it_cannot(rng: np.random.Generator) -> None:
    x = sphere(rng, 20, 3)
    longer, endless = x.clone(), torch.zeros(20, dtype=torch.float64)
    longer[3] *= 2.0
    endless[3] = math.inf
    eye = torch.eye(20, dtype=torch.bool)
    refusals = {
        "not in dimension 4": problem(sphere(rng, 20, 4)),
        "not sigmoid": problem(x, mode="sigmoid"),
        "support masks": problem(x, causal=True),
        "masks": problem(x, visible=eye),
        "not bfloat16": problem(x.bfloat16()),
        "no gradients": problem(x.clone().requires_grad_()),
        "keys must have one length": Problem(x, longer, x, None, "softmax", False, None, None, False),
        "queries must have one length": problem(longer),
        "bias is infinite": problem(x, key_bias=endless),
        "too long": problem(x, beta=9000.0),
        "overflow": problem(x, beta=710.0, mode="exponential"),
        "no tokens": problem(x[:0]),
    }
    for words, asked in refusals.items():
        with pytest.raises(UnsupportedError, match=f"'spectral' cannot run this problem: .*{words}"):
            choose(asked, "spectral")
        assert choose(asked).name != "spectral"


def test_a_flow_is_the_same_with_both_engines() -> None:
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(3000, 3, seed=0)
    runs = {
        name: at.flow(law, tokens, space=at.Sphere(), until=0.5, save=[0.5], merge=False, engine=name)
        for name in ("spectral", "fused")
    }
    assert runs["spectral"].stats.engine == "spectral"
    assert runs["spectral"].stats.evaluations == runs["fused"].stats.evaluations
    gap = (runs["spectral"].final.points - runs["fused"].final.points).abs().max()
    assert gap < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 3])
def test_lengths_that_are_rounded_do_no_harm_where_terms_cancel(dtype: torch.dtype, dim: int) -> None:
    """Far from all keys the sum is a thousandth of a thousandth of its terms, which feel the rounding of every length."""
    rng = np.random.default_rng(3)
    keys, queries = sphere(rng, 50, dim, "cluster"), sphere(rng, 400, dim)
    uneven = 1.0 + 3e-14 * torch.from_numpy(rng.uniform(-1.0, 1.0, (50, 1)))
    k, q = (keys * uneven).to(dtype), (9.0 * queries).to(dtype)
    _, found = attend(q, k, None, engine="spectral")
    _, exact = attend(q.double(), k.double(), None, engine="reference")
    assert found is not None
    assert exact is not None
    assert float((found.double() - exact).abs().max()) < (4e-6 if dtype == torch.float32 else 3e-12)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9])
def test_a_tolerance_shortens_the_series_and_is_kept(dim: int, tolerance: float) -> None:
    rng = np.random.default_rng(4)
    k = sphere(rng, 600, dim)
    q, v = 25.0 * sphere(rng, 500, dim), torch.from_numpy(rng.uniform(0.5, 1.5, (600, 2)))

    def order(of: float | None) -> int:
        plans = plan.make_plans(Problem(q, k, v, None, "softmax", False, None, None, False, tolerance=of))
        assert not isinstance(plans, str)
        return plans[0].order

    assert order(tolerance) < order(None) == order(1e-16)
    output, logsumexp = attend(q, k, v, engine="spectral", tolerance=tolerance)
    wanted, level = attend(q, k, v, engine="reference")
    assert float((output / wanted - 1.0).abs().max()) <= 2.0 * tolerance  # type: ignore[operator]
    assert float((logsumexp - level).abs().max()) <= tolerance  # type: ignore[operator]
