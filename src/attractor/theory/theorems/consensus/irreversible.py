r"""N1: three or more tokens under softmax with equal noise have no detailed balance.

With the same noise for all tokens the stationary process is reversible exactly where the drift is a gradient on the product of the
spheres, and then the derivative of the drift is symmetric at every state. Under the exponential kernel it is: the drift is the gradient
of the interaction energy. Under softmax the weight of token j for i differs from that of i for j. For two tokens the asymmetry cancels.
"""

from dataclasses import replace

import numpy as np
import torch

from attractor.laws import Attention
from attractor.solvers import Noise, jacobian
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import SOFTMAX
from attractor.theory.noisy import EQUAL_TOKENS, IDENTITY_VALUES, ISOTROPIC, NOISE, UNIT_SPHERE
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, gather_each

LEAST = 1e-8  # relative asymmetry far above rounding
APART = 0.05  # angle between tokens, and from antipodes, at which the asymmetry is measured


def sample(rng: Rng, least: int = 3) -> Case:
    n, d = int(rng.integers(least, max(least + 1, 7))), int(rng.integers(2, 5))
    law = Attention.isotropic(d, float(rng.uniform(0.5, 3.0)))
    return Case(law, Tokens(rng.unit_points(n, d)), Sphere(), options={"noise": Noise(float(rng.uniform(0.05, 1.0)))})


def sample_pair(rng: Rng) -> Case:
    case = sample(rng)
    return replace(case, state=Tokens(case.tokens.points[:2]))


def _count_margin(case: Case) -> Margin:
    return Margin.boolean(case.tokens.n >= 3, f"{case.tokens.n} tokens")


def _generic_margin(case: Case) -> Margin:
    points = case.tokens.points
    gram = (points @ points.mT).fill_diagonal_(0.0)
    angles = torch.arccos(gram.abs().clamp(max=1.0))
    least = float(angles.min())
    detail = f"the least angle between two tokens, or a token and an antipode, is {least:.2g}; measured from {APART} on"
    return Margin.positive(least - APART, detail=detail)


def measure_asymmetry(case: Case) -> float:
    """Asymmetry of the derivative of the drift, relative to its size, in orthonormal coordinates."""
    matrix = jacobian(case.law, case.tokens, case.space).matrix
    return float(np.linalg.norm(matrix - matrix.T) / np.linalg.norm(matrix))


def conclude(case: Case, asymmetry: float) -> tuple[Measurement, ...]:
    return (Measurement("the drift is no gradient", asymmetry - LEAST),)


def use_exponential(case: Case) -> Case:
    """Replace softmax by the exponential kernel, whose drift is a gradient."""
    return replace(case, law=replace(case.attention, kernel="exponential"))


THEOREM = Theorem(
    key="consensus.N1",
    title="No detailed balance under softmax",
    statement=r"Three or more tokens of equal masses on the unit sphere under softmax with \(P = \beta I\), \(V = I\) and equal noise "
    r"are not reversible: the drift is not a gradient, so that probability flows in circles at rest. Two tokens are reversible, and any "
    r"number under the exponential kernel.",
    citation=Citation(
        "geshkovski2023mathematical",
        "its gradient flow of softmax attention in a metric that depends on the state, without noise; noise here",
        "beta is its beta",
    ),
    status=Status.CHECKED,
    hypotheses=(
        SOFTMAX,
        UNIT_SPHERE,
        EQUAL_TOKENS,
        NOISE,
        ISOTROPIC,
        Hypothesis("three tokens", r"n \ge 3", _count_margin, structural=True),
        IDENTITY_VALUES,
        Hypothesis("separated tokens", r"x_i \ne \pm x_j", _generic_margin),
    ),
    fate="identity",
    conclude=conclude,
    sample=sample,
    violate={"three tokens": sample_pair},
    gather=gather_each(measure_asymmetry),
    break_case=use_exponential,
    proof="Reversibility with equal noise needs a symmetric derivative of the drift; that it is asymmetric is measured at random states.",
    time_independent=True,
    noisy=True,
)
