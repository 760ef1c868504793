"""Discrete layers near consensus under a causal mask: one layer shrinks angles by (1 + hc/2)/(1 + hc).

Token i gives itself the weight 1/i at consensus, so the linearisation of a layer is triangular with diagonal :math:`(1
+ hc/i)/(1 + hc)`; token 2 is slowest. With :math:`h = c = 1` a layer multiplies angles by 3/4, an exponent of ln(4/3) =
0.288; since the flow has the rate 1/2, that is 2 ln(4/3) = 0.575 of its time.
"""

from attractor.solvers import Trajectory
from attractor.theory.spheres import to_sphere
from attractor.theory.theorem import Case, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import causal_identity
from attractor.theory.theorems.consensus.gradient_layers import integrate_layers
from attractor.theory.theorems.consensus.layer_rates import draw_case, measure_factor, step_size
from attractor.theory.timescales import TimeScale

STEPS = {0.5: 200, 1.0: 130, 5.0: 80}


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    size = step_size(case) * to_sphere(case).weight
    factor = (1.0 + size / 2) / (1.0 + size)
    # later tokens leave corrections that fall off slowly: (1 + s/3)/(1 + s/2) a layer
    missed = abs(measure_factor(case, run) / factor - 1)
    return (Measurement("a layer shrinks angles by (1 + hc/2)/(1 + hc)", -missed, 0.01, asymptotic=True),)


def time_scale(case: Case) -> TimeScale:
    size = step_size(case) * to_sphere(case).weight
    return TimeScale(rate=f"near consensus each layer multiplies distances by {(1 + size / 2) / (1 + size):.4g}")


THEOREM = Theorem(
    key="consensus.T3-layer-rate",
    title="One causal layer near consensus",
    statement=r"Under the hypotheses of T3, along discrete layers \(x \mapsto N(x + h\,b(x))\), angles to \(x_1\) shrink by the "
    r"factor \((1 + hc/2)/(1 + hc)\) a layer near consensus, whatever \(P\): by \(\tfrac34\) for \(h = c = 1\), as much as the "
    r"flow, whose rate is \(\tfrac12\), in the time \(2\ln\tfrac43\).",
    citation=causal_identity.CITATION,
    status=Status.HERE,
    hypotheses=causal_identity.THEOREM.hypotheses,
    fate="consensus",
    time_scale=time_scale,
    rate=r"|x_i - x_1| \sim \left(\frac{1 + hc/2}{1 + hc}\right)^k",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, "causal", STEPS),
    violate={
        "identity values": lambda rng: draw_case(rng, "causal", STEPS, value=0.7),
        "causal mask": lambda rng: draw_case(rng, None, STEPS),
    },
    gather=integrate_layers,
    proof="The linearisation of a layer is triangular with diagonal (1 + hc/i)/(1 + hc).",
)
