"""The discontinuous transition of the exponential kernel is not one of softmax."""

import numpy as np

from attractor.meanfield import branch_curvature, stationary_branch
from attractor.plotting import Curve, Panel
from attractor.theory.claims import CounterExample, Evidence

BETA = 4.0


def run() -> Evidence:
    branches = {kernel: stationary_branch(BETA, kernel) for kernel in ("exponential", "softmax")}
    facts: dict[str, float] = {}
    curves = []
    for kernel, branch in branches.items():
        facts[f"{kernel}_largest_noise_over_critical"] = float(branch.noise.max() / branch.critical)
        facts[f"{kernel}_curvature"] = branch_curvature(BETA, kernel)
        curves.append(Curve((branch.noise / branch.critical).tolist(), branch.amplitude.tolist(), kernel))
    betas = np.geomspace(0.05, 1000.0, 60)
    curvatures = [branch_curvature(float(beta)) for beta in betas]
    facts["largest_softmax_curvature"] = float(max(curvatures))
    fold = facts["exponential_largest_noise_over_critical"]
    sentence = (
        f"at beta = {BETA:g} ordered densities exist up to {fold:.6g} times the critical noise under the exponential kernel, and under "
        f"softmax only below it; the curvature of the softmax branch is at most {max(curvatures):.3g} for beta from 0.05 to 1000"
    )
    reproduced = fold > 1.05 and facts["softmax_largest_noise_over_critical"] < 1.0 and max(curvatures) < 0
    panels = (
        Panel(
            tuple(curves), x="noise / critical noise", y="mean cosine", title=f"stationary densities, beta = {BETA:g}"
        ),
        Panel(
            (Curve(betas.tolist(), curvatures, "softmax"),), x="beta", y="C", title="eps/eps_c = 1 + C a^2", log_x=True
        ),
    )
    return Evidence(dict(facts), reproduced, sentence, panels)


EXAMPLE = CounterExample(
    key="meanfield.softmax-transition",
    title="Discontinuous onset of order",
    claim="At low temperature, noisy tokens of a Transformer pass from disorder to order by a discontinuous transition.",
    source="mun2026phase",
    place="a reading of its result for the unnormalised kernel as one about softmax",
    basis="reading",
    verdict="false",
    truth="The result is about the exponential kernel, beta > 2.4469 on the circle. Under softmax the branch of ordered states begins "
    "below the critical noise for every beta on the circle, and was monotone in dimensions 3 and 8.",
    run=run,
    theorems=("meanfield.N1", "meanfield.N2"),
)
