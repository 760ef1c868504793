r"""Layers on tokens at equal angles, and the critical scaling beta = gamma log n.

Proof. A layer maps :math:`x_i` to :math:`U x_i + Y\sum_{j\ne i}x_j` before it is normalised, with :math:`U = 1 + hcp`, :math:`Y = hcq`,
:math:`p = 1/(1 + (n-1)e^{-\beta(1-\rho)})` and :math:`q = (1-p)/(n-1)`. It multiplies the eigenvalue :math:`1-\rho` of the Gram matrix by
:math:`(U-Y)^2` and :math:`1+(n-1)\rho` by :math:`(U+(n-1)Y)^2`, so :math:`\kappa = (1-\rho)/(1+(n-1)\rho)` by
:math:`((U-Y)/(U+(n-1)Y))^2`. With :math:`\beta = \gamma\log n` and :math:`0 < \rho < 1`, :math:`(n-1)e^{-\beta(1-\rho)}` tends to
:math:`\infty, 1, 0` and p to 0, 1/2, 1 for :math:`\gamma` below, at and above :math:`1/(1-\rho)`. As n grows q tends to zero, and the
cosine after the layer to :math:`\rho z^2/(\rho z^2 + (1-\rho)(p + s)^2)` with :math:`s = 1/(hc)`, :math:`z = 1 + s`: without the residual
(s = 0) all tokens collapse below the threshold, and with it none do.
"""

import math

import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import select_valid_rows
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, FULL_HEAD, IDENTITY_VALUES, to_sphere
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import equiangular, pair
from attractor.theory.theorems.consensus.equiangular import pair_cosines
from attractor.theory.theorems.consensus.gradient_layers import LAYERS, STEPS, layer_options
from attractor.theory.theorems.consensus.layer_rates import step_size
from attractor.theory.timescales import TimeScale


def self_weight(n: int, beta: float, cosine: float) -> float:
    """The weight p of a token on itself."""
    return 1.0 / (1.0 + math.exp(math.log(n - 1) - beta * (1.0 - cosine)))


def map_cosine(n: int, beta: float, cosine: float, strength: float) -> float:
    """Return the cosine after one layer x + strength * attention; an infinite strength is attention without the residual."""
    p = self_weight(n, beta, cosine)
    q = (1.0 - p) / (n - 1)
    own, other = (p, q) if math.isinf(strength) else (1.0 + strength * p, strength * q)
    apart = (1.0 - cosine) * (own - other) ** 2
    along = (1.0 + (n - 1) * cosine) * (own + (n - 1) * other) ** 2
    return (along - apart) / (along + (n - 1) * apart)


def limit_cosine(cosine: float, gamma: float, strength: float) -> float:
    """Return the limit of ``map_cosine`` for beta = gamma log n as n grows, 0 < cosine < 1."""
    threshold = 1.0 / (1.0 - cosine)
    p = 0.5 if gamma == threshold else float(gamma > threshold)
    s = 0.0 if math.isinf(strength) else 1.0 / strength
    along, apart = cosine * (1.0 + s) ** 2, (1.0 - cosine) * (p + s) ** 2
    return along / (along + apart)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    found, kept = to_sphere(case), select_valid_rows(run)
    pairs = pair_cosines(found.map_points(run.points[kept]))
    beta, strength = pair.fit_beta(case)[0], step_size(case) * found.weight
    cosine, missed = float(pairs[0].mean()), 0.0
    for row in range(1, len(pairs)):
        cosine = map_cosine(case.tokens.n, beta, cosine, strength)
        missed = max(missed, float((pairs[row] - cosine).abs().max()))
    return (Measurement("every layer maps the cosine as stated", -missed, 1e-9),)


def sample(rng: Rng) -> Case:
    case, step = equiangular.sample(rng), STEPS[int(rng.integers(len(STEPS)))]
    return Case(case.law, case.state, case.space, LAYERS * step, layer_options(step))


def sample_unequal_angles(rng: Rng) -> Case:
    space, eye = rng.space(4, 0.0), torch.eye(4, dtype=torch.float64)
    law = rng.sphere_law(space, eye, [1.5 * eye])
    return Case(law, map_to_space(space, rng.unit_points(4, 4)), space, LAYERS * 1.0, layer_options(1.0))


def time_scale(case: Case) -> TimeScale | None:
    points, n = to_sphere(case).map_points(case.initial_tokens.points), case.tokens.n
    cosine, beta = float(pair_cosines(points).mean()), pair.fit_beta(case)[0]
    if n < 3 or not 0.0 < cosine < 1.0:
        return None
    gamma, threshold, p = beta / math.log(n), 1.0 / (1.0 - cosine), self_weight(n, beta, cosine)
    after = map_cosine(n, beta, cosine, step_size(case) * to_sphere(case).weight)
    side = "below" if gamma < threshold else "above"
    return TimeScale(
        rate=f"beta = {gamma:.4g} log n, {side} the threshold {threshold:.4g} log n: a token has the weight {p:.4g} on itself, and one "
        f"layer maps the cosine {cosine:.4g} to {after:.4g}"
    )


THEOREM = Theorem(
    key="consensus.critical-scaling",
    title="Layers at equal angles, and beta = gamma log n",
    statement=r"If \(V = c I,\ P = \beta W\) and all pairs have the cosine \(\rho\), a layer \(N(x + h\dot x)\) multiplies "
    r"\(\kappa = (1-\rho)/(1+(n-1)\rho)\) by \(\big(\frac{U-Y}{U+(n-1)Y}\big)^2\), \(U = 1 + hcp\), \(Y = hcq\), "
    r"\(p = 1/(1+(n-1)e^{-\beta(1-\rho)})\), \(q = (1-p)/(n-1)\). For \(\beta = \gamma\log n\), \(0 < \rho < 1\) and \(n\to\infty\), "
    r"p tends to \(0, \frac12, 1\) for \(\gamma <, =, > 1/(1-\rho)\), and the cosine to "
    r"\(\rho z^2/(\rho z^2 + (1-\rho)(p+s)^2)\), \(s = 1/(hc)\), \(z = 1+s\).",
    citation=Citation(
        "chen2025critical",
        "the critical scaling of attention in the simplex model",
        "gamma and rho are its; its residual alpha x has alpha sqrt R = s with |x|^2 = R",
    ),
    status=Status.HERE,
    hypotheses=(
        *FULL_HEAD,
        IDENTITY_VALUES,
        ATTRACTION,
        pair.ISOTROPIC,
        equiangular.EQUAL_ANGLES,
    ),
    fate="identity",
    time_scale=time_scale,
    rate=r"\gamma_c = 1/(1-\rho)",
    conclude=conclude,
    sample=sample,
    violate={"equal angles": sample_unequal_angles},
    proof="The Gram matrix has two eigenvalues, and a layer multiplies each by a square.",
)
