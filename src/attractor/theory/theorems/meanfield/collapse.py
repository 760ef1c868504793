r"""T5: positive V and negative S: covariances exist for ever, shrink in the metric of V and lose rank.

:math:`\operatorname{tr}(V^{-1}\Sigma)' = 2\operatorname{tr}(\Sigma S\Sigma) \le 0`, and limit points satisfy
:math:`S\Sigma = 0`, so that their rank is at most :math:`\dim\ker S`; dropped eigenvalues fall like 1/t.
"""

import numpy as np
import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import geometric_times, smallest_increase
from attractor.theory.gaussians import DEFINITE_VALUE, SOFTMAX_GAUSSIAN, SYMMETRIC_NEGATIVE, cite, integrate_gaussian
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each
from attractor.weights import symmetrize

HORIZON = 1e3


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    covariances, value = run.covariances, case.matrices.values[0]
    traces = torch.linalg.solve(value, covariances).diagonal(dim1=-2, dim2=-1).sum(-1)
    form = symmetrize(case.matrices.transposed)
    left = (form @ covariances).norm(dim=(-2, -1))
    return (
        Measurement("the trace in the metric of V never grows", smallest_increase(-traces, traces.abs()), 1e-8),
        Measurement("what S sees dies out", -float(left[-1] / left[0]), 0.1, asymptotic=True),
    )


def sample(rng: Rng) -> Case:
    d, zeros = 3, int(rng.integers(0, 3))
    values = -rng.uniform(0.5, 1.5, d) * (np.arange(d) >= zeros)
    law = rng.softmax_law(rng.symmetric(values) + rng.skew(d, 0.2), rng.definite(d))
    return Case(law, rng.gaussian(d), horizon=HORIZON, options={"save": geometric_times(HORIZON), "rtol": 1e-9})


def sample_indefinite(rng: Rng) -> Case:
    law = rng.softmax_law(rng.symmetric([0.5, -0.5, -1.0]), rng.definite(3))
    return Case(law, rng.gaussian(3), horizon=0.3)


def sample_asymmetric(rng: Rng) -> Case:
    law = rng.softmax_law(rng.definite(3, -1.0), rng.definite(3) + rng.skew(3, 2.0))
    return Case(law, rng.gaussian(3), horizon=0.5)


THEOREM = Theorem(
    key="meanfield.T5",
    title="Covariances that lose rank",
    statement=r"Softmax attention with \(V = V^\top \succ 0\) and \(S \preceq 0\): \(\Sigma_t\) exists for all "
    r"times, \(\operatorname{tr}(V^{-1}\Sigma_t)\) never grows, and limit "
    r"points satisfy \(S\Sigma = 0\), so their rank is at most \(\dim\ker S\).",
    citation=cite("limits of low rank"),
    status=Status.HERE,
    hypotheses=(*SOFTMAX_GAUSSIAN, DEFINITE_VALUE, SYMMETRIC_NEGATIVE),
    fate=lambda case: "identity" if bool(case.gaussian.mean.any()) else "bounded",
    rate=r"\|S\Sigma_t\| \sim 1/t",
    conclude=conclude,
    sample=sample,
    violate={"interaction negative": sample_indefinite, "value positive": sample_asymmetric},
    gather=gather_each(integrate_gaussian),
    proof="tr(inv(V) Sigma) is a Lyapunov function with derivative 2 tr(Sigma S Sigma); LaSalle.",
)
