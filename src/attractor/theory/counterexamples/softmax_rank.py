r"""Softmax attention with a limit of rank three in dimension four: the bound d/2 fails for generic values too.

:math:`\Sigma` rests iff :math:`X = V\Sigma A\Sigma` is skew. Its rows, so its columns, lie in the image of :math:`\Sigma`. X = 0 is
the case of the bound: the image is isotropic for A. But X may have rank two on an image of dimension three, with a plane P and
:math:`V^{-1}P` that meet in a line. In dimensions two and three generic V leave no room for that.
"""

import numpy as np
import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Gaussian
from attractor.theory.claims import CounterExample, Evidence

# a random law of dimension four with such a limit, rounded to whole numbers; `attractor check --theorem meanfield.T6-generic --violated 60`
# draws others
VALUE = [[1, 1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, -2], [-1, 0, 2, 1]]
CROSSED = [[-1, 0, 1, 0], [-1, 0, 1, 1], [-1, 0, -1, 0], [-1, -1, 0, -1]]  # A = K'Q
NEARBY = 5


def build_law(value: torch.Tensor, crossed: torch.Tensor) -> Attention:
    return Attention(crossed, torch.eye(4, dtype=torch.float64), value)


def rest(law: Attention, covariance: torch.Tensor) -> tuple[float, float]:
    """The residual of stationarity, and the size of U'AU on the image: both relative."""
    crossed = law.key.mT @ law.query
    motion = law.value @ covariance @ crossed
    residual = (motion @ covariance + covariance @ motion.mT).norm() / (motion.norm() * covariance.norm())
    basis = torch.linalg.eigh(covariance).eigenvectors[:, 1:]
    return float(residual), float((basis.mT @ crossed @ basis).norm() / crossed.norm())


def rank_of(values: torch.Tensor) -> int:
    return int((values > 1e-6 * values.max()).sum())


def run() -> Evidence:
    value, crossed = (torch.tensor(rows, dtype=torch.float64) for rows in (VALUE, CROSSED))
    law, start = build_law(value, crossed), Gaussian(np.zeros(4), np.eye(4))  # type: ignore[arg-type]
    times = np.geomspace(0.1, 60.0, 50)
    path = flow(law, start, save=times.tolist(), stop=(), rtol=1e-9)
    values = torch.linalg.svdvals(path.points[:, 1:]).square()
    end = path.covariances[-1]
    residual, isotropy = rest(law, end)
    rank, rng, ranks = rank_of(values[-1]), np.random.default_rng(0), []
    for _ in range(NEARBY):  # no accident: laws near by have such limits too
        other = build_law(*(part + 0.03 * torch.from_numpy(rng.standard_normal((4, 4))) for part in (value, crossed)))
        final = flow(other, start, save=[120.0], stop=(), rtol=1e-9)
        ranks.append(rank_of(torch.linalg.svdvals(final.points[-1, 1:]).square()))
    facts = {
        "dimension": 4,
        "determinant_of_A": float(torch.linalg.det(crossed)),
        "rank_of_the_limit": rank,
        "eigenvalues_of_the_limit": ", ".join(f"{float(number):.5g}" for number in values[-1]),
        "residual_of_stationarity": residual,
        "size_of_UAU": isotropy,
        "ranks_of_limits_of_laws_near_by": ", ".join(map(str, ranks)),
    }
    sentence = (
        f"d = 4, det A = {facts['determinant_of_A']:.3g}, from the identity: the covariance comes to rest (residual {residual:.1g}) with "
        f"eigenvalues {facts['eigenvalues_of_the_limit']}, rank {rank}, and U'AU is not zero; ranks of five laws near by: "
        f"{facts['ranks_of_limits_of_laws_near_by']}"
    )
    curves = tuple(
        Curve(times.tolist(), values[:, k].clamp_min(1e-16).tolist(), f"eigenvalue {k + 1}") for k in range(4)
    )
    reproduced = rank == 3 and residual < 1e-6 and isotropy > 0.1 and min(ranks) == 3
    return Evidence(facts, reproduced, sentence, (Panel(curves, log_x=True, log_y=True),))


EXAMPLE = CounterExample(
    key="meanfield.softmax-rank",
    title="Rank of softmax limits",
    claim="For generic V and invertible A limits of Gaussian covariances under softmax attention have rank at most d/2.",
    source="castin2025unified",
    place="low rank of the limits, for softmax and L2",
    basis="paper",
    verdict="false",
    truth="It holds where the limit is isotropic, U'AU = 0, and was found without exception for d = 2 and 3; for d = 4 some "
    "random laws (2 of 60 with a limit, by attractor check --theorem meanfield.T6-generic --violated 60) "
    "have one of rank 3, on which tokens turn.",
    run=run,
    theorems=("meanfield.T6", "meanfield.T6-generic"),
)
