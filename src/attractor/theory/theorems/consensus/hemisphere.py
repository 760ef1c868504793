r"""T2: tokens in an open hemisphere under values c I reach consensus, at a rate that the weights bound from below.

:math:`\rho = \operatorname{dist}(0, \operatorname{conv}\{x_i\}) = \max_{|e|=1}\min_i\langle e, x_i\rangle`. Let e be
optimal, i active (:math:`\langle e, x_i\rangle = \rho`) and :math:`a_{ij} = \sum_hc_hw^h_{ij} \ge \alpha`. Then
:math:`\langle e, \dot x_i\rangle = \sum_ja_{ij}(\langle e, x_j\rangle - \rho\langle x_i, x_j\rangle) \ge
\rho\sum_ja_{ij}(1 - \langle x_i, x_j\rangle) \ge \alpha\rho\sum_j\lambda_j(1 - \langle x_i, x_j\rangle) = \alpha\rho(1
- \rho^2)`, where :math:`\rho e = \sum_j\lambda_jx_j` is the point of the hull nearest to zero. Hence
:math:`\rho^2/(1-\rho^2)` grows at least like :math:`e^{2\alpha t}`. At consensus all weights of a row are :math:`m_j`,
so deviations from the mean decay like :math:`e^{-ct}`, whatever P.
"""

import math

import torch

from attractor.laws import Attention, has_kernel
from attractor.observables import hemisphere_margin
from attractor.solvers import Trajectory
from attractor.states import Tokens
from attractor.theory.checking import select_valid_rows, smallest_increase
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import TOKENS
from attractor.theory.sampling import SPHERE_SIZES, Rng, map_to_space
from attractor.theory.spheres import (
    ATTRACTION,
    FULL_AT_ALL_TIMES,
    HEMISPHERE,
    IDENTITY_VALUES,
    SPHERE_SETTING,
    compute_odds,
    fit_decay_rate,
    list_laws,
    max_distance,
    to_sphere,
)
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.timescales import NEAR, TimeScale

HORIZON = 24.0
CITATION = Citation(
    "abella2024asymptotic",
    "the hemisphere theorem, stated there for bounded and uniformly continuous P(t)",
    "P = scale Q'K is its P, V is its U; heads are summed, so its rates are those of total weight one",
)


def smallest_weight(case: Case) -> float:
    """A lower bound of every total weight sum_h c_h w^h_ij at all times."""
    laws = list_laws(case)
    masses = case.tokens.weights / case.tokens.weights.sum()
    least = float(masses.min())
    scalars = to_sphere(case).values.diagonal(dim1=-2, dim2=-1).mean(-1)
    if len(laws) == 1:
        steep = to_sphere(case).score_bounds
    else:  # between two laws of a schedule queries and keys are interpolated, so norms of products are bounded by products
        inverse = torch.linalg.inv(to_sphere(case).root)
        queries, keys = ([_norms(law, name, inverse) for law in laws] for name in ("query", "key"))
        scale = max(abs(law.scale) for law in laws)
        steep = scale * torch.stack(queries).amax(0) * torch.stack(keys).amax(0)
    return float((scalars * least / (least + (1.0 - least) * (2.0 * steep).exp())).sum())


def time_scale(case: Case) -> TimeScale:
    """The bound of the theorem: the odds of the margin grow at least like e^(2 alpha t)."""
    weight, least = to_sphere(case).weight, smallest_weight(case)
    rate = f"near consensus distances fall like e^(-{weight:.4g} t)"
    margin = float(hemisphere_margin(case.initial_tokens, space=case.space))
    ratio = math.log(max((1 - margin**2) / margin**2, 1e-300)) - 2 * math.log(NEAR)
    if not (least > 0 and ratio > 0):
        return TimeScale(rate=rate)
    return TimeScale(
        f"all tokens are within {NEAR:g} of one direction", math.log(ratio / (2 * least)), "at the latest", rate
    )


def _norms(law: Attention, name: str, inverse: torch.Tensor) -> torch.Tensor:
    part = getattr(law, name).double()
    part = part if part.ndim == 3 else part.unsqueeze(0)
    return torch.linalg.matrix_norm(part @ inverse, 2)


def margins_along(case: Case, run: Trajectory) -> tuple[torch.Tensor, torch.Tensor]:
    """Saved times and the margins at them."""
    kept = select_valid_rows(run)
    return run.times[kept], hemisphere_margin(Tokens.unchecked(run.points[kept], case.tokens.masses), space=case.space)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    times, rho = margins_along(case, run)
    away = rho < 1 - 1e-8  # nearer to consensus 1 - rho is rounding
    logarithm, clock = compute_odds(rho[away]).clamp_min(1e-300).log(), times[away]
    promised = logarithm - 2 * smallest_weight(case) * clock
    found = to_sphere(case)
    rate = fit_decay_rate(times, max_distance(found.map_points(run.points[select_valid_rows(run)])))
    return (
        Measurement("the margin never decreases", smallest_increase(rho), 1e-10),
        Measurement("its odds grow as fast as promised", smallest_increase(promised), 1e-6),
        Measurement("angles fall like e^{-ct}", -abs(rate / found.weight + 1), 0.03, asymptotic=True),
    )


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    space, value = rng.space(d), torch.eye(d, dtype=torch.float64)
    varied = rng.random() < 0.15
    law = rng.schedule(space, value, HORIZON, 0.7) if varied else rng.sphere_heads(space, value, 0.7)
    return Case(law, map_to_space(space, rng.hemisphere(n, d)), space, HORIZON)


def sample_surrounding_origin(rng: Rng) -> Case:
    """Tokens that surround the origin."""
    space, value = rng.space(3, 0.0), torch.eye(3, dtype=torch.float64)
    return Case(rng.sphere_heads(space, value, 0.7), map_to_space(space, rng.unit_points(12, 3)), space, HORIZON)


def sample_other_value(rng: Rng) -> Case:
    """A value that is no multiple of the identity."""
    n, d = rng.sizes(SPHERE_SIZES)
    space = rng.space(d, 0.0)
    value = torch.diag(torch.from_numpy(rng.uniform(-1.0, 1.5, d)))
    return Case(rng.sphere_heads(space, value, 0.7), map_to_space(space, rng.hemisphere(n, d)), space, HORIZON)


def _softmax_margin(case: Case) -> Margin:
    laws = list_laws(case)
    plain = all(has_kernel(law, "softmax") and law.query_bias is None and law.positions is None for law in laws)
    return Margin.boolean(plain, "softmax of the scores" if plain else "biases, positions or another kernel")


THEOREM = Theorem(
    key="consensus.T2",
    title="Hemisphere",
    statement=r"If \(V_h = c_h I\) with \(c_h \ge 0\) and \(c = \sum_h c_h > 0\), attention is full and all tokens lie in an open "
    r"hemisphere (\(\rho(0) > 0\)), then they tend to one point, whatever the bounded \(P_h(t)\), and with \(\alpha = \sum_h "
    r"c_h\,m/(m + (1-m)e^{2\|P_h\|})\), \(m\) the smallest mass, \(\frac{\rho^2}{1-\rho^2}(t) \ge "
    r"\frac{\rho^2}{1-\rho^2}(0)\,e^{2\alpha t}\).",
    citation=CITATION,
    status=Status.HERE,
    hypotheses=(
        TOKENS,
        *SPHERE_SETTING,
        FULL_AT_ALL_TIMES,
        Hypothesis("softmax", r"w_{ij} \propto m_j e^{s_{ij}}", _softmax_margin, structural=True),
        IDENTITY_VALUES,
        ATTRACTION,
        HEMISPHERE,
    ),
    fate="consensus",
    time_scale=time_scale,
    rate=r"|x_i - x_j| \sim e^{-ct}, \text{ exactly, for every } P",
    conclude=conclude,
    sample=sample,
    violate={"open hemisphere": sample_surrounding_origin, "identity values": sample_other_value},
    proof="At the token that is lowest along the best direction, the hull's nearest point bounds the pull of the others.",
)
