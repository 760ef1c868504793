r"""T6: stationary covariances of softmax attention with V = I are those whose image is isotropic for S.

:math:`\dot\Sigma = \Sigma A\Sigma + \Sigma A^\top\Sigma = 2\Sigma S\Sigma`, which vanishes iff :math:`U^\top SU = 0`
for a basis U of the image; an isotropic subspace has dimension at most :math:`n_0 + \min(n_+, n_-)`. (Generic V: T6-generic.)
"""

import math

import numpy as np
import torch

from attractor.meanfield import rank_bound, stationary_residual
from attractor.states import Gaussian
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.gaussians import IDENTITY_VALUE, SOFTMAX_GAUSSIAN, cite
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each
from attractor.weights import symmetrize


def image_basis(case: Case) -> torch.Tensor:
    """An orthonormal basis of the image of the covariance."""
    values, vectors = torch.linalg.eigh(case.gaussian.covariance)
    return vectors[:, values > 1e-10 * values[-1]]


def conclude(case: Case, residual: float) -> tuple[Measurement, ...]:
    most = rank_bound(case.attention)
    return (
        Measurement("the covariance rests", -residual, 1e-10),
        Measurement(
            "its rank is within the bound", float((most if most is not None else math.inf) - image_basis(case).shape[1])
        ),
    )


def sample(rng: Rng) -> Case:
    """S = diag(+, -, 0) pairs in a random basis; (e_+ / sqrt(l_+) + e_- / sqrt(l_-)) are isotropic, and so is the kernel."""
    pairs, zeros, extra = int(rng.integers(1, 3)), int(rng.integers(0, 2)), int(rng.integers(0, 2))
    high, low = rng.uniform(0.4, 1.5, pairs), rng.uniform(0.4, 1.5, pairs)
    values = [*high, *(-low), *([0.0] * zeros), *([1.0] * extra)]
    d, basis = len(values), rng.orthogonal(len(values))
    columns = [basis[:, k] / math.sqrt(high[k]) + basis[:, pairs + k] / math.sqrt(low[k]) for k in range(pairs)]
    columns += [basis[:, 2 * pairs + k] for k in range(zeros)]
    factor = torch.stack(columns, -1) @ torch.from_numpy(rng.standard_normal((len(columns), len(columns))))
    form = basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.mT
    law = rng.softmax_law(form + rng.skew(d, 0.5), torch.eye(d, dtype=torch.float64))
    return Case(law, Gaussian(torch.zeros(d, dtype=torch.float64), factor @ factor.mT))


def sample_other_image(rng: Rng) -> Case:
    case = sample(rng)
    d = case.gaussian.dim
    factor = torch.from_numpy(rng.standard_normal((d, 2)))
    return Case(case.law, Gaussian(torch.zeros(d, dtype=torch.float64), factor @ factor.mT))


def _isotropic_margin(case: Case) -> Margin:
    basis, form = image_basis(case), symmetrize(case.matrices.transposed)
    return Margin.zero(float((basis.mT @ form @ basis).norm() / form.norm().clamp_min(1e-300)))


def measure_residual(case: Case) -> float:
    return stationary_residual(case.law, case.gaussian)


def add_direction(case: Case) -> Case:
    """Add a random direction to the image of the covariance."""
    start = case.gaussian
    line = torch.from_numpy(np.random.default_rng(0).standard_normal((start.dim, 1)))
    return Case(case.law, Gaussian(start.mean, start.covariance + line @ line.mT))


THEOREM = Theorem(
    key="meanfield.T6",
    title="Stationary covariances",
    statement=r"Softmax attention with \(V = I\): \(\Sigma\) is stationary exactly if its image is isotropic for \(S\), \(U^\top S "
    r"U = 0\); its rank is then at most \(n_0 + \min(n_+, n_-)\) of the inertia of \(S\).",
    citation=cite("limits of low rank"),
    status=Status.HERE,
    hypotheses=(*SOFTMAX_GAUSSIAN, IDENTITY_VALUE, Hypothesis("image isotropic", r"U^\top S U = 0", _isotropic_margin)),
    fate="identity",
    conclude=conclude,
    sample=sample,
    violate={"image isotropic": sample_other_image},
    gather=gather_each(measure_residual),
    break_case=add_direction,
    proof="The velocity of the covariance is 2 Sigma S Sigma; isotropic subspaces have dimension at most n_0 + min(n_+, n_-).",
    time_independent=True,
)
