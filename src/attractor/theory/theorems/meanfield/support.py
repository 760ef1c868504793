r"""T12: tokens of averaging kernels never blow up: the support grows at most like :math:`e^{\sum_h\|V_h\|t}`."""

from __future__ import annotations

from dataclasses import replace

import torch

from attractor.laws import Sigmoid, Sinkhorn
from attractor.meanfield import support_rate
from attractor.solvers import Trajectory
from attractor.theory import gaussians as mean_field
from attractor.theory import hypotheses as given
from attractor.theory.checking import alive, largest_norms
from attractor.theory.sampling import Draw, cloud, definite, gaussian, law_of, sizes
from attractor.theory.theorem import Case, Measurement, Status, Theorem

KERNELS = ("softmax", "l2", "sinkhorn", "sigmoid")


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    norms, times = largest_norms(run), run.times[alive(run)]
    mass = float(case.tokens.weights.sum())
    slack = norms[0].log() + support_rate(case.law, mass) * times - norms.clamp_min(1e-300).log()
    return (Measurement("the support grows at most exponentially", float(slack.min()), 1e-8),)


def sample(draw: Draw) -> Case:
    n, d = sizes(draw)
    name = KERNELS[int(draw.integers(len(KERNELS)))]
    kernel = {"sigmoid": Sigmoid(bias=0.0), "sinkhorn": Sinkhorn(eps=1.0)}.get(name, name)
    value = definite(draw, d) if draw.random() < 0.5 else gaussian(draw, d)
    mask = "causal" if name == "softmax" and draw.random() < 0.5 else None
    law = law_of(draw, gaussian(draw, d), value, kernel=kernel, mask=mask)
    return Case(law, cloud(draw, n, d), horizon=0.5)


def faster(case: Case) -> Case:
    """Values that stretch every direction ten times as fast."""
    law = case.attention
    eye = torch.eye(law.dim, dtype=torch.float64)
    return replace(
        case, law=replace(law, query=2.0 * eye, key=eye, value=20.0 * torch.linalg.matrix_norm(law.value, 2) * eye)
    )


THEOREM = Theorem(
    key="meanfield.T12",
    title="The support grows at most exponentially",
    statement=r"Softmax, L2, Sinkhorn and sigmoid attention, masked or not: \(R_t \le R_0\,e^{\sum_h\|V_h\|t}\) for "
    r"measures of total mass one in the ball of radius \(R_0\): tokens "
    r"never blow up in finite time.",
    citation=mean_field.cite("well-posedness for compactly supported data"),
    status=Status.PAPER,
    hypotheses=(mean_field.kernels(*KERNELS), given.FLAT, given.TOKENS, mean_field.BARE),
    fate="identity",
    conclude=conclude,
    sample=sample,
    broken=faster,
    proof="Weights are at most averages, so the field is at most sum |V_h| R.",
)
