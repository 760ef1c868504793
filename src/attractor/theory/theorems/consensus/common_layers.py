r"""T4-common for discrete layers: the largest tangent to the dominant eigenvector shrinks by (1 + h mu)/(1 + h lambda)
a layer.

For :math:`y = x_i + hU\tilde b`: :math:`\langle v, y\rangle = c_i + h\lambda\beta \ge (1 + h\lambda)m` and
:math:`|y_\perp| \le |x_\perp| + h\mu|b_\perp| \le (1 + h\mu)\sqrt{1 - m^2}`, since :math:`c_i, \beta \ge m`. So
:math:`\max\tan\angle(x_i, v)` is multiplied by at most :math:`(1+h\mu)/(1+h\lambda)`, for any step, mask, kernel and P.
"""

import math

import torch

from attractor.solvers import Trajectory
from attractor.theory.sampling import SPHERE_SIZES, Rng, map_to_space
from attractor.theory.theorem import Case, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import common_value
from attractor.theory.theorems.consensus.gradient_layers import LAYERS, STEPS, integrate_layers, layer_options
from attractor.theory.theorems.consensus.layer_rates import step_size
from attractor.theory.timescales import TimeScale


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    top, h = common_value.find_dominant(case), step_size(case)
    lowest = common_value.signed_heights(case, run.points).amin(-1)
    tangents = (1 - lowest.square()).clamp_min(0.0).sqrt() / lowest
    factor = (1 + h * top.others) / (1 + h * top.value)
    falls = factor * tangents[:-1] - tangents[1:]
    return (
        Measurement("heights stay positive", float(lowest.min()), 0.0),
        Measurement(
            "tangents shrink as promised", float(falls.min()) if len(falls) else 0.0, 1e-7 * (1 + math.sqrt(factor))
        ),
    )


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    space = rng.space(d)
    value, pole = common_value.draw_value(rng, d, symmetric=bool(rng.integers(2)))
    step = STEPS[int(rng.integers(len(STEPS)))]
    law = rng.sphere_heads(space, value, mask=(None, "causal")[int(rng.integers(2))])
    return Case(law, map_to_space(space, rng.hemisphere(n, d, pole)), space, LAYERS * step, layer_options(step))


def sample_both_sides(rng: Rng) -> Case:
    case = common_value.sample_both_sides(rng)
    return Case(case.law, case.state, case.space, LAYERS * 1.0, layer_options(1.0))


def sample_strong_negative(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    value, pole = common_value.draw_value(rng, d, -9.0, -3.0, symmetric=True)
    space = rng.space(d, 0.0)
    law = rng.sphere_heads(space, value)
    assert isinstance(value, torch.Tensor)
    return Case(law, map_to_space(space, rng.hemisphere(n, d, pole)), space, LAYERS * 1.0, layer_options(1.0))


def time_scale(case: Case) -> TimeScale:
    top, step = common_value.find_dominant(case), step_size(case)
    factor = (1 + step * top.others) / (1 + step * top.value)
    return TimeScale(rate=f"each layer multiplies the tangent of the largest angle by at most {factor:.4g}")


THEOREM = Theorem(
    key="consensus.T4-common-layers",
    title="Common dominant value, layer by layer",
    statement=r"Under the hypotheses of T4-common, a layer \(x \mapsto N(x + h\,b(x))\) with any step \(h > 0\) multiplies "
    r"\(\max_i\tan\angle(x_i, v)\) by at most \((1 + h\mu)/(1 + h\lambda) < 1\), for every mask, kernel and \(P_h\).",
    citation=common_value.CITATION,
    status=Status.HERE,
    hypotheses=common_value.THEOREM.hypotheses,
    fate="consensus",
    time_scale=time_scale,
    rate=r"\max_i\tan\angle(x_i, v) \le \Big(\frac{1+h\mu}{1+h\lambda}\Big)^k\max_j\tan\angle(x_j(0), v)",
    conclude=conclude,
    sample=sample,
    violate={"one side": sample_both_sides, "top eigenvalue dominates": sample_strong_negative},
    gather=integrate_layers,
    proof="The component along v is at least (1 + h lambda) m, the rest at most (1 + h mu) sqrt(1 - m^2).",
)
