r"""T6: two tokens (or two equal clusters) with P = beta I: the angle obeys one equation, and merging takes a time that
is an integral.

Both tokens turn towards each other with the weight :math:`1/(1 + e^{\beta(1-\cos\theta)})`, so :math:`\dot\theta =
-2c\sin\theta/(1 + e^{\beta(1-\cos\theta)})` and the time from :math:`\theta_0` to :math:`\theta` is
:math:`\int_\theta^{\theta_0}\frac{1 + e^{\beta(1-\cos u)}}{2c\sin u}\,du`, which grows like
:math:`e^{\beta(1-\cos\theta_0)}`.
"""

import math

import torch

from attractor.solvers import Trajectory
from attractor.spaces import angle
from attractor.theory.checking import select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, FULL_HEAD, IDENTITY_VALUES, to_sphere
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.timescales import NEAR, TimeScale, log_merging_time


def merging_time(beta: float, start: float, end: float, weight: float = 1.0) -> float:
    """Time in which the angle of two tokens falls from ``start`` to ``end``."""
    from scipy.integrate import quad

    value, _ = quad(
        lambda u: (1.0 + math.exp(beta * (1.0 - math.cos(u)))) / (2.0 * weight * math.sin(u)),
        end,
        start,
        epsabs=1e-13,
        epsrel=1e-12,
    )
    return float(value)


def fit_beta(case: Case) -> tuple[float, float]:
    """beta and the relative residual of P = beta I on the unit sphere."""
    interaction = to_sphere(case).interactions[0]
    beta = float(interaction.diagonal().mean())
    eye = torch.eye(len(interaction), dtype=interaction.dtype)
    return beta, float((interaction - beta * eye).norm() / interaction.norm().clamp_min(1e-300))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    found, kept = to_sphere(case), select_valid_rows(run)
    points, times = found.map_points(run.points[kept]), run.times[kept]
    angles = angle(points[:, 0], points[:, 1])
    beta, _ = fit_beta(case)
    rows = [row for row in range(1, len(times)) if angles[row] > 1e-5][-1:]
    missed = [
        abs(merging_time(beta, float(angles[0]), float(angles[r]), found.weight) / float(times[r]) - 1) for r in rows
    ]
    return (Measurement("the time is the integral", -max(missed, default=0.0), 1e-7),)


def sample(rng: Rng) -> Case:
    d = int(rng.integers(2, 5))
    space, eye = rng.space(d), torch.eye(d, dtype=torch.float64)
    law = rng.sphere_law(space, eye, [float(rng.uniform(-2.0, 4.0)) * eye])
    points = rng.unit_points(2, d)
    return Case(law, map_to_space(space, points), space, float(rng.choice([2.0, 6.0])))


def sample_anisotropic(rng: Rng) -> Case:
    space, eye = rng.space(3, 0.0), torch.eye(3, dtype=torch.float64)
    return Case(
        rng.sphere_law(space, eye, [rng.matrix(3, 1.5)]), map_to_space(space, rng.unit_points(2, 3)), space, 4.0
    )


def sample_four_tokens(rng: Rng) -> Case:
    space, eye = rng.space(3, 0.0), torch.eye(3, dtype=torch.float64)
    return Case(rng.sphere_law(space, eye, [2.0 * eye]), map_to_space(space, rng.unit_points(4, 3)), space, 4.0)


def _facing_margin(case: Case) -> Margin:
    points = to_sphere(case).map_points(case.initial_tokens.points)
    return Margin.positive(float((points[0] + points[1]).norm()))


def _pair_margin(case: Case) -> Margin:
    return Margin.boolean(case.tokens.n == 2, f"{case.tokens.n} tokens")


def time_scale(case: Case) -> TimeScale:
    points, found = to_sphere(case).map_points(case.initial_tokens.points), to_sphere(case)
    start = float(angle(points[0], points[1]))
    if start <= NEAR:
        return TimeScale(rate=f"their angle falls like e^(-{found.weight:.4g} t)")
    log_time = log_merging_time(fit_beta(case)[0], start, NEAR, found.weight)
    rate = f"in the end their angle falls like e^(-{found.weight:.4g} t)"
    return TimeScale(f"the angle of the two tokens reaches {NEAR:g}", log_time, "exact", rate)


ISOTROPIC = Hypothesis("isotropic interaction", r"P = \beta W", lambda case: Margin.zero(fit_beta(case)[1]))
CITATION = Citation(
    "geshkovski2023mathematical",
    "the reductions to one equation, here with the exact time",
    "beta is its beta, V = c I with its c = 1; P = beta W on an ellipsoid",
)
THEOREM = Theorem(
    key="consensus.T6-pair",
    title="Two tokens",
    statement=r"Two tokens with \(V = c I,\ P = \beta W\): the angle falls from \(\theta_0\) to \(\theta\) in the time "
    r"\(\int_\theta^{\theta_0}\frac{1 + e^{\beta(1-\cos u)}}{2c\sin u}\,du\).",
    citation=CITATION,
    status=Status.HERE,
    hypotheses=(
        *FULL_HEAD,
        Hypothesis("two tokens", "n = 2", _pair_margin, structural=True),
        IDENTITY_VALUES,
        ATTRACTION,
        ISOTROPIC,
        Hypothesis("not opposite", r"\theta_0 < \pi", _facing_margin),
    ),
    fate="consensus",
    time_scale=time_scale,
    rate=r"t_{\text{merge}} \sim e^{\beta(1-\cos\theta_0)}",
    conclude=conclude,
    sample=sample,
    violate={"isotropic interaction": sample_anisotropic, "two tokens": sample_four_tokens},
    proof="By symmetry both tokens turn at the speed c sin(theta) times the weight of the other.",
)
