"""L2 attention with a limit covariance of rank above d/2, on which tokens rotate."""

import numpy as np
import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.theory.claims import CounterExample, Evidence

# found as the 97th of independent normal draws (numpy seed 1) and rounded to one decimal; about 1 in 100 bounded draws does it
QUERY = [[0.2, -1.3, 0.1, -2.1], [-0.2, -0.4, 1.5, -0.3], [-0.7, -0.7, -0.8, 0.0], [0.2, 1.6, -1.3, 0.6]]
KEY = [[-1.4, -0.3, 1.1, 1.2], [0.8, -0.6, 0.9, 1.5], [-1.3, -0.5, 0.1, 0.3], [0.3, -0.2, -0.6, 0.5]]
VALUE = [[-0.7, -0.1, 0.5, 0.5], [0.9, 0.9, 0.7, 1.5], [-1.3, 0.3, 0.3, -0.2], [0.0, 0.4, -0.3, 2.1]]
FACTOR = [[0.5, -0.1, 0.2, 0.2], [0.1, 0.0, 0.1, 0.1], [-0.1, 0.2, 0.1, 0.3], [-0.3, -0.2, -0.7, -0.1]]


def matrix(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def field(law: Attention, covariance: torch.Tensor) -> torch.Tensor:
    """B = 2 V (I + 2 Sigma K'K)^-1 Sigma K'Q."""
    gram = law.key.mT @ law.key
    inner = torch.eye(law.dim, dtype=torch.float64) + 2 * covariance @ gram
    return 2 * law.value @ torch.linalg.solve(inner, covariance) @ law.key.mT @ law.query


def covariances(law: Attention, factor: torch.Tensor, times: np.ndarray) -> torch.Tensor:
    """Covariances at some times, from the factor, by an implicit method: the problem is stiff."""
    from scipy.integrate import solve_ivp

    query, key, value = (part.numpy() for part in (law.query, law.key, law.value))
    gram, crossed, eye = key.T @ key, key.T @ query, np.eye(4)

    def slope(_: float, flat: np.ndarray) -> np.ndarray:
        at = flat.reshape(4, 4)
        covariance = at @ at.T
        return (2 * value @ np.linalg.solve(eye + 2 * covariance @ gram, covariance @ crossed @ at)).reshape(-1)

    found = solve_ivp(slope, (0.0, times[-1]), factor.reshape(-1).numpy(), "LSODA", times, rtol=1e-9, atol=1e-12)
    factors = torch.from_numpy(np.ascontiguousarray(found.y.T)).reshape(-1, 4, 4)
    return factors @ factors.mT


def run() -> Evidence:
    law, factor = Attention(matrix(QUERY), matrix(KEY), matrix(VALUE), kernel="l2"), matrix(FACTOR)
    times = np.concatenate(([0.0], np.geomspace(0.1, 100.0, 50)))
    along = covariances(law, factor, times)
    end = along[-1]
    values = torch.linalg.eigvalsh(along).flip(-1)
    motion = field(law, end)
    residual = float((motion @ end + end @ motion.mT).norm() / end.norm())
    basis = torch.linalg.eigh(end).eigenvectors[:, 1:]
    turning = torch.linalg.eigvals(basis.mT @ motion @ basis)
    rank = int((values[-1] > 1e-6 * values[-1, 0]).sum())
    facts = {
        "dimension": 4,
        "determinant_of_A": float(torch.linalg.det(law.key.mT @ law.query)),
        "rank_of_the_limit": rank,
        "eigenvalues_of_the_limit": ", ".join(f"{float(value):.5g}" for value in values[-1]),
        "residual_of_stationarity": residual,
        "angular_speed_of_tokens": float(turning.imag.abs().max()),
        "largest_real_part": float(turning.real.abs().max()),
    }
    sentence = (
        f"d = 4, invertible A: the covariance comes to rest (residual {residual:.1g}) with eigenvalues "
        f"{facts['eigenvalues_of_the_limit']}, rank {rank}, while tokens turn at {facts['angular_speed_of_tokens']:.3g}"
    )
    curves = tuple(
        Curve(times[1:].tolist(), values[1:, k].clamp_min(1e-16).tolist(), f"eigenvalue {k + 1}") for k in range(4)
    )
    panel = Panel(curves, log_x=True, log_y=True)
    return Evidence(facts, rank == 3 and residual < 1e-6, sentence, (panel,))


EXAMPLE = CounterExample(
    key="meanfield.l2-rank",
    title="Rank of L2 limits",
    claim="For invertible A limits of Gaussian covariances under L2 attention have rank at most d/2.",
    source="castin2025unified",
    place="low rank of the limits, for softmax and L2",
    basis="paper",
    verdict="false",
    truth="It holds for limits that are isotropic for A; L2 attention has others, of higher rank, on which tokens turn for ever "
    "(and so has softmax).",
    run=run,
    theorems=("meanfield.T6", "meanfield.T6-generic"),
)
