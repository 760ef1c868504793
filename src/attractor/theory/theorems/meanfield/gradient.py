r"""T11: gradient-flow structures: Wasserstein, twisted, Bures-Wasserstein and affine-invariant.

Where a structure of ``attractor.meanfield.structures`` applies, :math:`\dot E = \frac1c|\dot\mu|^2` along the law.
Checked twice: with the gradient of E by automatic differentiation, and with the difference quotient of E along a run.
"""

from collections.abc import Sequence
from typing import Any

import torch

from attractor.errors import AttractorError
from attractor.laws import Attention, Sigmoid, Sinkhorn
from attractor.meanfield import GradientStructure, gradient_structures
from attractor.solvers import Trajectory, flow
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.gaussians import cite
from attractor.theory.hypotheses import FLAT
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem

STEP = 1e-3
KINDS = (
    "exponential",
    "softmax",
    "sigmoid",
    "linear",
    "sinkhorn",
    "bures softmax",
    "bures l2",
    "bures sinkhorn",
    "affine",
)


def integrate_briefly(case: Case) -> Trajectory:
    return flow(case.law, case.state, save=[0.0, STEP, 2 * STEP], stop=(), rtol=1e-12, atol=1e-14)  # type: ignore[arg-type]


def gather(cases: Sequence[Case]) -> list[Trajectory]:
    return [integrate_briefly(case) for case in cases]


def list_structures(case: Case) -> tuple[GradientStructure, ...]:
    return gradient_structures(case.law, case.state)  # type: ignore[arg-type]


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    measured: list[Measurement] = []
    states: list[Any] = [run.state(index) for index in range(3)]
    for structure in list_structures(case):
        levels = [float(structure.energy(state)) for state in states]
        slope, wanted = (levels[2] - levels[0]) / (2 * STEP), float(structure.speed(states[1])) / structure.factor
        size = abs(wanted) + 1e-6 * abs(levels[0])
        measured.append(
            Measurement(f"{structure.metric}: energy rate by differences", -abs(slope - wanted) / size, 1e-3)
        )
        measured.append(
            Measurement(f"{structure.metric}: energy rate by the gradient", -structure.defect(states[0]), 1e-7)
        )
    return tuple(measured)


def sample(rng: Rng) -> Case:
    kind, d = KINDS[int(rng.integers(len(KINDS)))], 3
    form = 0.6 * (rng.definite(d) if rng.random() < 0.5 else rng.indefinite(d))
    eye, c = torch.eye(d, dtype=torch.float64), float(rng.uniform(0.4, 1.5)) * (1 if rng.random() < 0.7 else -1)
    if kind == "affine":
        return Case(Attention(eye, form + rng.skew(d, 0.3), c * eye), rng.gaussian(d, 0.3, 0.8))
    if kind == "bures l2":
        root = torch.linalg.cholesky(rng.definite(d)).mT
        return Case(Attention(root, root, c * root.mT @ root, kernel="l2"), rng.gaussian(d, 0.3, 0.8, 0.3))
    name = kind.split()[-1]
    kernel = {"sigmoid": Sigmoid(bias=0.3), "sinkhorn": Sinkhorn(eps=1.0, tolerance=1e-13)}.get(name, name)
    law = Attention(eye, form, c * form, kernel=kernel)
    if kind.startswith("bures"):
        return Case(law, rng.gaussian(d, 0.3, 0.8))
    return Case(law, rng.tokens(6, d, 0.7))


def _structured_margin(case: Case) -> Margin:
    try:
        metrics = [structure.metric for structure in list_structures(case)]
    except AttractorError as error:
        return Margin.boolean(False, str(error))
    return Margin.boolean(bool(metrics), ", ".join(metrics))


THEOREM = Theorem(
    key="meanfield.T11",
    title="Gradient flows of measures",
    statement=r"If \(A = A^\top\) and \(V = cA\), exponential, sigmoid, linear and Sinkhorn attention climb their energy in the "
    r"Wasserstein metric, softmax in the metric twisted by \(G(x) = \int e^{s(x,y)}d\mu(y)\): \(\dot E = "
    r"\tfrac1c\int|\Gamma|^2d\mu\), with the weight \(G\) for softmax. Gaussians: in the Bures metric for softmax, Sinkhorn and "
    r"(with \(Q = K\)) L2; with \(V = I\) softmax climbs \(\operatorname{tr}(2S\Sigma)\) in the affine-invariant metric. They "
    r"descend for \(c < 0\).",
    citation=cite("gradient-flow structures"),
    status=Status.HERE,
    hypotheses=(
        FLAT,
        Hypothesis(
            "known structure", r"V = cA,\ A = A^\top \text{ (or as stated)}", _structured_margin, structural=True
        ),
    ),
    fate="identity",
    conclude=conclude,
    sample=sample,
    gather=gather,
    proof="Differentiate the energy; each field is a multiple of its gradient in the metric named.",
)
