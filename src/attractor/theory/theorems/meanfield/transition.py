r"""N2: whether order sets in continuously when noise falls.

The branch of stationary densities is :math:`\epsilon/\epsilon_c = 1 + Ca^2 + O(a^4)` in the mean cosine a. For the exponential kernel
C is positive, and the branch begins towards more noise, exactly where :math:`I_2/I_1 > 1/2`. For softmax C is negative on the circle.
The signs of the formulas are elementary for the exponential kernel, and were evaluated from beta = 0.01 to 5000 for softmax.
"""

from dataclasses import replace

from attractor.laws import Attention
from attractor.meanfield import Branch, branch_curvature, critical_noise, is_subcritical, stationary_branch
from attractor.solvers import Noise
from attractor.spaces import Sphere
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.noisy import EITHER_KERNEL, IDENTITY_VALUES, ISOTROPIC, NOISE, UNIT_SPHERE, strength
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, gather_each
from attractor.theory.timescales import TimeScale

SMALL = 0.03  # mean cosine of the state that is computed


def sample(rng: Rng) -> Case:
    kernel = str(rng.choice(["softmax", "exponential"]))
    return Case(
        Attention.isotropic(2, float(rng.uniform(0.5, 8.0)), kernel=kernel),
        None,
        Sphere(),
        options={"noise": Noise(0.1)},
    )


def _circle_margin(case: Case) -> Margin:
    return Margin.boolean(case.attention.dim == 2, f"dimension {case.attention.dim}")


def _generic_margin(case: Case) -> Margin:
    return Margin.nonzero(abs(branch_curvature(float(case.attention.beta or 0.0), case.attention.kernel.name)), 1e-3)


def time_scale(case: Case) -> TimeScale:
    beta, kernel, noise = float(case.attention.beta or 0.0), case.attention.kernel.name, strength(case)
    critical, curvature = critical_noise(beta, kernel), branch_curvature(beta, kernel)
    onset = "discontinuous (subcritical)" if is_subcritical(beta, kernel) else "continuous (supercritical)"
    law = f"eps/eps_c = 1 {'+' if curvature > 0 else '-'} {abs(curvature):.5g} a^2 near it"
    return TimeScale(rate=f"the onset of order at eps_c is {onset}: {law}; eps = {noise:.6g}, eps_c = {critical:.6g}")


def follow(case: Case) -> Branch:
    return stationary_branch(float(case.attention.beta or 0.0), case.attention.kernel.name, amplitudes=[SMALL])


def conclude(case: Case, branch: Branch) -> tuple[Measurement, ...]:
    beta, kernel = float(case.attention.beta or 0.0), case.attention.kernel.name
    found = (branch.noise[0] / branch.critical - 1.0) / SMALL**2
    expected = branch_curvature(beta, kernel)
    same = (found > 0) == is_subcritical(beta, kernel)
    return (
        Measurement("the curvature of the branch", -abs(found / expected - 1.0), 0.05),
        Measurement("its sign", 1.0 if same or abs(found) < 1e-3 else -1.0),
    )


THEOREM = Theorem(
    key="meanfield.N2",
    title="Continuous and discontinuous onset of order",
    statement=r"On the circle with \(P = \beta I\), \(V = I\) and noise, ordered stationary densities near the uniform one exist at "
    r"\(\epsilon = \epsilon_c(1 + Ca^2 + O(a^4))\). For the exponential kernel \(C > 0\) exactly where \(I_2/I_1 > 1/2\), "
    r"\(\beta > 2.4469\): the transition is discontinuous. For softmax \(C < 0\) for all \(\beta\): it is continuous.",
    citation=Citation(
        "mun2026phase",
        "the dichotomy for the exponential kernel, there by the free energy and in every dimension; softmax here",
        "its beta is ours, its coupling K is 1/(beta eps)",
    ),
    status=Status.CHECKED,
    hypotheses=(
        EITHER_KERNEL,
        UNIT_SPHERE,
        NOISE,
        ISOTROPIC,
        Hypothesis("circle", "d = 2", _circle_margin, structural=True),
        IDENTITY_VALUES,
        Hypothesis("not at the threshold", r"C \ne 0", _generic_margin),
    ),
    fate="identity",
    conclude=conclude,
    sample=sample,
    time_scale=time_scale,
    gather=gather_each(follow),
    break_case=lambda case: replace(
        case, law=Attention.isotropic(2, 0.5 * float(case.attention.beta or 0.0), kernel=case.attention.kernel)
    ),
    proof="Expand the stationary equation f = exp(Phi/eps) to third order in the amplitude of the first mode.",
    time_independent=True,
    noisy=True,
)
