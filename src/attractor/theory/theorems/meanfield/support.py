r"""T12: tokens of averaging kernels never blow up: the support grows at most like :math:`e^{\sum_h\|V_h\|t}`."""

from dataclasses import replace

import torch

from attractor.laws import Sigmoid, Sinkhorn
from attractor.meanfield import support_rate
from attractor.solvers import Trajectory
from attractor.theory.checking import largest_norms, select_valid_rows
from attractor.theory.gaussians import NO_BIASES_OR_POSITIONS, cite, require_kernel
from attractor.theory.hypotheses import FLAT, TOKENS
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem

KERNELS = ("softmax", "l2", "sinkhorn", "sigmoid")


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    norms, times = largest_norms(run), run.times[select_valid_rows(run)]
    mass = float(case.tokens.weights.sum())
    slack = norms[0].log() + support_rate(case.law, mass) * times - norms.clamp_min(1e-300).log()
    return (Measurement("the support grows at most exponentially", float(slack.min()), 1e-8),)


def sample(rng: Rng) -> Case:
    n, d = rng.sizes()
    name = KERNELS[int(rng.integers(len(KERNELS)))]
    kernel = {"sigmoid": Sigmoid(bias=0.0), "sinkhorn": Sinkhorn(eps=1.0)}.get(name, name)
    value = rng.definite(d) if rng.random() < 0.5 else rng.matrix(d)
    mask = "causal" if name == "softmax" and rng.random() < 0.5 else None
    law = rng.law(rng.matrix(d), value, kernel=kernel, mask=mask)
    return Case(law, rng.tokens(n, d), horizon=0.5)


def scale_values(case: Case) -> Case:
    """Replace the value by one that grows faster than the bound in every direction."""
    law = case.attention
    eye = torch.eye(law.dim, dtype=torch.float64)
    return replace(
        case, law=replace(law, query=2.0 * eye, key=eye, value=20.0 * torch.linalg.matrix_norm(law.value, 2) * eye)
    )


THEOREM = Theorem(
    key="meanfield.T12",
    title="The support grows at most exponentially",
    statement=r"Softmax, L2, Sinkhorn and sigmoid attention, masked or not: \(R_t \le R_0\,e^{\sum_h\|V_h\|t}\) for measures of "
    r"total mass one in the ball of radius \(R_0\): tokens never blow up in finite time.",
    citation=cite("well-posedness for compactly supported data"),
    status=Status.PAPER,
    hypotheses=(require_kernel(*KERNELS), FLAT, TOKENS, NO_BIASES_OR_POSITIONS),
    fate="identity",
    conclude=conclude,
    sample=sample,
    break_case=scale_values,
    proof="Weights are at most averages, so the field is at most sum |V_h| R.",
)
