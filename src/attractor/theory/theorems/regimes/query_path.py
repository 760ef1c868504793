r"""T7: the symmetric part of the metric determines the sign of the divergence of the query path.

:math:`\partial\dot x_l/\partial x_l` with the keys held is :math:`V\operatorname{Cov}_{P_l}(x)\,W^\top`, with trace
:math:`\operatorname{tr}(\operatorname{sym}(V^\top W)\operatorname{Cov})`. It is measured by central differences on a token of mass zero.
"""

import torch

from attractor.solvers import velocity
from attractor.states import Tokens
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import FLAT, FULL, METRIC, NO_POSITIONS, ONE_HEAD, SOFTMAX, TOKENS, UNBIASED
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, gather_each
from attractor.weights import extremes, symmetrize

STEP = 1e-4


def measure_jacobian(case: Case) -> torch.Tensor:
    """Measure the Jacobian of the query path at the first token, (d, d), by fourth-order differences."""
    points, d = case.tokens.points, case.tokens.dim
    masses = torch.cat((points.new_zeros(4 * d), case.tokens.weights))
    steps = torch.stack([factor * STEP * torch.eye(d, dtype=points.dtype) for factor in (1, -1, 2, -2)])  # (4, d, d)
    probes = points[0] + steps.reshape(4 * d, d)
    moved = velocity(case.law, Tokens(torch.cat((probes, points)), masses=masses))[: 4 * d].reshape(4, d, d)
    return ((8 * (moved[0] - moved[1]) - (moved[2] - moved[3])) / (12 * STEP)).mT


def key_covariance(case: Case) -> torch.Tensor:
    """Return the covariance of the keys under the weights of the first token, (d, d)."""
    points, weights = case.tokens.points, case.tokens.weights
    scores = case.matrices.interaction.mT @ points[0]
    shares = torch.softmax(points @ scores + weights.log(), -1)
    centred = points - shares @ points
    return centred.mT @ (shares[:, None] * centred)


def conclude(case: Case, measured: torch.Tensor) -> tuple[Measurement, ...]:
    found, spread = case.matrices, key_covariance(case)
    predicted = found.value @ spread @ found.interaction.mT
    size = float(torch.linalg.matrix_norm(found.value, 2) * torch.linalg.matrix_norm(found.interaction, 2))
    size *= float(case.tokens.points.norm(dim=-1).max()) ** 2
    sign = 1.0 if extremes(found.congruent)[0] > 0 else -1.0
    trace = float(torch.trace(symmetrize(found.congruent) @ spread))
    unit = max(size, 1e-300)
    return (
        Measurement("the Jacobian is V Cov W'", -float((measured - predicted).abs().max()) / unit, 1e-7),
        Measurement("its trace is that of sym(V'W) Cov", -abs(float(measured.trace()) - trace) / unit, 1e-7),
        Measurement("its trace has the sign of the metric", sign * float(measured.trace()) / unit, 1e-7),
        Measurement(
            "its eigenvalues have real parts of that sign",
            float((sign * torch.linalg.eigvals(measured).real).min()) / unit,
            1e-5,  # zero eigenvalues of a covariance of few tokens may form Jordan blocks
        ),
    )


def _one_sign_margin(case: Case) -> Margin:
    low, high = extremes(case.matrices.congruent)
    return Margin.positive(max(low, -high))


def draw_case(rng: Rng, metric: torch.Tensor, n: int) -> Case:
    d = len(metric)
    interaction = torch.from_numpy(rng.standard_normal((d, d)))
    return Case(rng.metric_law(metric, interaction), rng.tokens(n, d))


def sample(rng: Rng) -> Case:
    n, d = rng.sizes()
    sign = 1.0 if rng.random() < 0.5 else -1.0
    return draw_case(rng, sign * rng.definite(d) + rng.skew(d, 1.0), n + d)


def sample_indefinite(rng: Rng) -> Case:
    n, d = rng.sizes()
    return draw_case(rng, rng.indefinite(d), n + d)


THEOREM = Theorem(
    key="regimes.T7",
    title="Query-path expansion",
    statement=r"With the keys held, \(\partial\dot x_l/\partial x_l = V\operatorname{Cov}_{P_l}(x) W^\top\) with trace "
    r"\(\operatorname{tr}(\operatorname{sym}(V^\top W)\operatorname{Cov}_{P_l})\). If \(\operatorname{sym} A\) is negative "
    r"(positive) definite, the trace is not positive (not negative) for any tokens, and so are the real parts of all eigenvalues.",
    citation=Citation(
        "pham2025dynamical",
        "the meaning of its conditions on the symmetric part of A",
        "W = Q'K is its QK^T; our value V is its V^T, so V'W is its VW; A is its W (V^T)^-1",
    ),
    status=Status.HERE,
    hypotheses=(
        SOFTMAX,
        FLAT,
        TOKENS,
        FULL,
        NO_POSITIONS,
        UNBIASED,
        ONE_HEAD,
        METRIC,
        Hypothesis("metric definite", r"\operatorname{sym} A \succ 0 \text{ or } \prec 0", _one_sign_margin),
    ),
    fate="identity",
    conclude=conclude,
    sample=sample,
    violate={"metric definite": sample_indefinite},
    gather=gather_each(measure_jacobian),
    proof="A^-1 times the Hessian of a convex function; a Lyapunov argument with sym A for the eigenvalues.",
    time_independent=True,
)
