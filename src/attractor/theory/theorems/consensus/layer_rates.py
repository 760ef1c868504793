r"""Discrete layers near consensus, full attention: one layer shrinks angles by 1/(1 + hc), so one layer with h = 1 is
ln 2 of time.

:math:`N(x + hb) = N(x + h'\Pi_xb)` with :math:`h' = h/(1 + h\langle x, b\rangle)`. At consensus the weights of a row
are the masses and :math:`|x + hb| = 1 + hc`, so a deviation from the mean is divided by :math:`1 + hc`, whatever P.
"""

import math

import torch

from attractor.solvers import Trajectory
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import fit_decay_rate, max_distance, to_sphere
from attractor.theory.theorem import Case, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import hemisphere
from attractor.theory.theorems.consensus.gradient_layers import integrate_layers, layer_options
from attractor.theory.timescales import TimeScale

STEPS = {0.5: 80, 1.0: 50, 2.0: 40, 5.0: 40}  # layers that reach consensus to ten digits
FEW = ((4, 3),)  # one shape: layers are slow to take one by one


def step_size(case: Case) -> float:
    """Return the step of the case, or 1."""
    return float(case.options.get("step", 1.0))


def measure_factor(case: Case, run: Trajectory) -> float:
    """Measure the factor by which one layer shrinks angles."""
    rate = fit_decay_rate(run.times, max_distance(to_sphere(case).map_points(run.points)), 1e-11, 1e-5)
    return math.exp(rate * step_size(case))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    factor = 1.0 / (1.0 + step_size(case) * to_sphere(case).weight)
    missed = abs(measure_factor(case, run) / factor - 1)
    return (Measurement("a layer divides angles by 1 + hc", -missed, 0.01, asymptotic=True),)


def draw_case(
    rng: Rng, mask: str | None, layers: dict[float, int], size: float = 0.5, value: float | None = None
) -> Case:
    """Draw tokens of a hemisphere under the value I, or a diagonal one with entries in [1 - value, 1]."""
    n, d = rng.sizes(FEW)
    space, matrix = rng.space(d), torch.eye(d, dtype=torch.float64)
    if value is not None:
        space, matrix = rng.space(d, 0.0), torch.diag(torch.from_numpy(rng.uniform(1 - value, 1.0, d)))
    step = list(layers)[int(rng.integers(len(layers)))]
    law = rng.sphere_heads(space, matrix, size, mask=mask)
    state = map_to_space(space, rng.hemisphere(n, d, least=0.3))
    return Case(law, state, space, layers[step] * step, layer_options(step, layers[step]))


def time_scale(case: Case) -> TimeScale:
    factor = 1.0 / (1.0 + step_size(case) * to_sphere(case).weight)
    return TimeScale(rate=f"near consensus each layer multiplies distances by {factor:.4g}")


THEOREM = Theorem(
    key="consensus.T2-layer-rate",
    title="One layer is ln(1 + h) of time",
    statement=r"Under the hypotheses of T2, along discrete layers \(x \mapsto N(x + h\,b(x))\), angles shrink by the factor \(1/(1 "
    r"+ hc)\) a layer near consensus, whatever \(P\): for \(h = c = 1\) a layer is \(\ln 2\) of the continuous time, not 1.",
    citation=hemisphere.CITATION,
    status=Status.HERE,
    hypotheses=hemisphere.THEOREM.hypotheses,
    fate="consensus",
    time_scale=time_scale,
    rate=r"|x_i - x_j| \sim (1 + hc)^{-k}",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, None, STEPS),
    violate={"identity values": lambda rng: draw_case(rng, None, STEPS, value=0.7)},
    gather=integrate_layers,
    proof="At consensus weights are the masses, so deviations from the mean vanish in b, and |x + hb| = 1 + hc.",
)
