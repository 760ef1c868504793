r"""T13: two measures part at most exponentially: Dobrushin's estimate with explicit constants.

:math:`W_p(\mu_t, \nu_t) \le W_p(\mu_0, \nu_0)\exp\int_0^t(L_x + L_\mu)(R_s)\,ds`, the constants in
``attractor.meanfield.dobrushin``. Very loose for softmax, whose :math:`L_\mu` carries :math:`e^{2\|A\|R^2}`.
"""

from dataclasses import replace

import numpy as np
import torch

from attractor.laws import Sigmoid
from attractor.meanfield import conditional_wasserstein, log_stability_bound, perturb, support_radius, wasserstein
from attractor.solvers import flow
from attractor.theory.gaussians import NO_BIASES_OR_POSITIONS, cite, require_kernel
from attractor.theory.hypotheses import FLAT, FULL, TOKENS
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each

TIMES = 5
LONGEST = 0.5  # later the bound says nothing, and tokens may have run away


def measure_log_distances(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Times and logarithms of the ratio of distances between the tokens and a perturbation of them."""
    other = perturb(case.tokens, 0.1)
    runs = [
        flow(case.law, state, until=min(case.horizon, LONGEST), save=TIMES, stop=(), merge=False)
        for state in (case.tokens, other)
    ]
    distance = conditional_wasserstein if case.attention.mask is not None else wasserstein
    gaps = [float(distance(runs[0].state(k), runs[1].state(k))) for k in range(TIMES + 1)]  # type: ignore[arg-type]
    return runs[0].times.numpy(), np.log(np.maximum(gaps, 1e-300) / gaps[0])


def conclude(case: Case, seen: tuple[np.ndarray, np.ndarray]) -> tuple[Measurement, ...]:
    times, logarithms = seen
    largest = max(float(support_radius(state)) for state in (case.tokens, perturb(case.tokens, 0.1)))
    bound = log_stability_bound(case.law, largest, times, mass=float(case.tokens.weights.sum()))
    return (Measurement("measures part at most as fast as promised", float((bound - logarithms).min()), 1e-7),)


def draw_case(rng: Rng, *names: str, mask: str | None = None) -> Case:
    name = names[int(rng.integers(len(names)))]
    kernel = Sigmoid(bias=0.0) if name == "sigmoid" else name
    law = rng.law(rng.matrix(2, 0.5), rng.matrix(2, 0.7), kernel=kernel, mask=mask)
    return Case(law, rng.tokens(8, 2, 0.4), horizon=0.5)


def scale_values(case: Case) -> Case:
    """Replace scores and values by larger ones, beyond the bound of the original law."""
    law = case.attention
    eye = torch.eye(law.dim, dtype=torch.float64)
    return replace(case, law=replace(law, query=4.0 * eye, key=eye, value=60.0 * eye))


THEOREM = Theorem(
    key="meanfield.T13",
    title="Stability of measures",
    statement=r"For softmax, L2 and sigmoid attention on measures in the ball of radius \(R_0\): "
    r"\(W_2(\mu_t, \nu_t) \le W_2(\mu_0, \nu_0)\exp\int_0^t (L_x + L_\mu)(R_s)\,ds\), \(R_s = "
    r"R_0e^{\sum\|V_h\|s}\), with the explicit constants of the documentation.",
    citation=cite("Dobrushin-type stability"),
    status=Status.HERE,
    hypotheses=(require_kernel("softmax", "l2", "sigmoid"), FLAT, TOKENS, FULL, NO_BIASES_OR_POSITIONS),
    fate="identity",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, "softmax", "l2", "sigmoid"),
    gather=gather_each(measure_log_distances),
    break_case=scale_values,
    proof="The field is Lipschitz in the point and in the measure, with these constants; Gronwall along an optimal coupling.",
)
