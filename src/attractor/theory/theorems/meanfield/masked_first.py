"""T14, the first position: it attends to itself alone, so :math:`x_1(t) = e^{Vt}x_1(0)`, whatever the scores."""

import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import select_valid_rows
from attractor.theory.gaussians import NO_BIASES_OR_POSITIONS, cite, require_kernel
from attractor.theory.hypotheses import FLAT, TOKENS
from attractor.theory.sampling import Rng
from attractor.theory.spheres import CAUSAL_IN_ORDER
from attractor.theory.theorem import Case, Measurement, Status, Theorem


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept = select_valid_rows(run)
    turns = torch.linalg.matrix_exp(case.matrices.value * run.times[kept, None, None])
    wanted = turns @ run.points[0, 0]
    missed = (run.points[kept, 0] - wanted).norm(dim=-1) / (wanted.norm(dim=-1) + run.points[0, 0].norm()).clamp_min(
        1e-300
    )
    return (Measurement("the first token is linear", -float(missed.max()), 1e-7),)


def draw_case(rng: Rng, mask: str | None) -> Case:
    n, d = rng.sizes()
    kernel = ("softmax", "l2")[int(rng.integers(2))]
    return Case(rng.law(rng.matrix(d), rng.matrix(d), kernel=kernel, mask=mask), rng.tokens(n, d), horizon=2.0)


THEOREM = Theorem(
    key="meanfield.T14-first",
    title="The first token under a causal mask",
    statement=r"Under a causal mask with normalised rows, \(x_1(t) = e^{\sum_h V_h t}\,x_1(0)\), whatever the "
    r"scores and the other tokens.",
    citation=cite("masked attention"),
    status=Status.HERE,
    hypotheses=(require_kernel("softmax", "l2"), FLAT, TOKENS, CAUSAL_IN_ORDER, NO_BIASES_OR_POSITIONS),
    fate="identity",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, "causal"),
    violate={"causal mask": lambda rng: draw_case(rng, None)},
    proof="The first row has one weight, which is one.",
)
