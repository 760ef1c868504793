r"""T7: the rank of a limit from covariances at two times a decade apart.

With V = I and :math:`S \preceq 0` the covariance is known: eigenvalues that stay have limits, the others fall like 1/t.
Keeping those above :math:`10^{-7}\lambda_1` that fall by less than :math:`10^{-0.3}` from T to 10 T finds
:math:`\dim\ker S` once T is large; a fixed cut does not.
"""

import numpy as np
import torch

from attractor.meanfield import identity_value_covariance, limit_rank
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.gaussians import FULL_RANK, IDENTITY_VALUE, SOFTMAX_GAUSSIAN, SYMMETRIC_NEGATIVE, cite
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each
from attractor.weights import symmetrize

LATE = 1e4


def estimate_rank(case: Case) -> int:
    """Estimate the rank of the limit from the covariances at T and 10 T."""
    form, start = case.matrices.transposed.numpy(), case.gaussian.covariance.numpy()
    size = max(float(np.abs(np.linalg.eigvalsh(form + form.T)).max()), 1e-300)
    return limit_rank(*(identity_value_covariance(form, start, scale * LATE / size) for scale in (1.0, 10.0)))


def conclude(case: Case, rank: int) -> tuple[Measurement, ...]:
    values = torch.linalg.eigvalsh(symmetrize(case.matrices.transposed))
    kernel = int((values.abs() <= 1e-9 * values.abs().max()).sum())
    return (Measurement("the rank is that of the kernel of S", -abs(rank - kernel), 0.0, asymptotic=True),)


def sample(rng: Rng) -> Case:
    d = int(rng.integers(2, 5))
    zeros = int(rng.integers(0, d))
    values = -rng.uniform(0.3, 1.5, d) * (np.arange(d) >= zeros)
    law = rng.softmax_law(rng.symmetric(values) + rng.skew(d, 0.3), torch.eye(d, dtype=torch.float64))
    return Case(law, rng.gaussian(d))


def sample_small_eigenvalue(rng: Rng) -> Case:
    """Draw S with an eigenvalue so small that its direction has not decayed at the measured times."""
    law = rng.softmax_law(rng.symmetric([-1.0, -1e-7, 0.0]), torch.eye(3, dtype=torch.float64))
    return Case(law, rng.gaussian(3))


def _separated_margin(case: Case) -> Margin:
    values = torch.linalg.eigvalsh(symmetrize(case.matrices.transposed)).abs()
    ratios = values / values.max().clamp_min(1e-300)
    return Margin.boolean(
        bool(((ratios < 1e-12) | (ratios > 0.05)).all()), "eigenvalues of S between zero and a twentieth of the largest"
    )


def change_kernel(case: Case) -> Case:
    """Replace an invertible S by zero, and a singular one by -I."""
    eye = torch.eye(case.attention.dim, dtype=torch.float64)
    values = torch.linalg.eigvalsh(symmetrize(case.matrices.transposed))
    full = bool((values.abs() > 1e-9).all())
    form = torch.zeros_like(eye) if full else -eye
    return Case(Rng.from_seed(0).softmax_law(form, eye), case.state)


THEOREM = Theorem(
    key="meanfield.T7",
    title="The rank of a limit, estimated",
    statement=r"Softmax attention with \(V = I,\ S \preceq 0,\ \Sigma_0 \succ 0\): for \(T\) large, the eigenvalues above "
    r"\(10^{-7}\lambda_1\) with \(\log_{10}\lambda(10T)/\lambda(T) > -0.3\) number \(\dim\ker S\), the rank of the limit.",
    citation=cite("rank histograms, which use a fixed cut in the released code"),
    status=Status.HERE,
    hypotheses=(
        *SOFTMAX_GAUSSIAN,
        FULL_RANK,
        IDENTITY_VALUE,
        SYMMETRIC_NEGATIVE,
        Hypothesis(
            "spectrum of S separated", r"\lambda_k(S) = 0 \text{ or } |\lambda_k(S)| > 0.05\,\|S\|", _separated_margin
        ),
    ),
    fate="identity",
    conclude=conclude,
    sample=sample,
    violate={"spectrum of S separated": sample_small_eigenvalue},
    gather=gather_each(estimate_rank),
    break_case=change_kernel,
    proof="The closed form: what is outside the kernel falls like 1/(2t |lambda|).",
)
