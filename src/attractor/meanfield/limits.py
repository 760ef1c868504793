r"""Where a Gaussian goes: its covariance at T and at 10 T, the rank that stays, and what kind of limit that is.

The mean is left out: under softmax, l2 and sinkhorn attention the covariance does not depend on it, and it may grow like e^t while the
covariance converges. Time is measured in the rate :math:`|B(\Sigma_0)|` of the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from attractor.attention import Law
from attractor.attention.closure import Closure, numeric
from attractor.flow import Rule, flow
from attractor.flow.stops import Steady, View
from attractor.meanfield.rank import limit_rank
from attractor.states import Gaussian

UNITS = 1e6  # T in units of the inverse rate of the start
GROWN = 1e4  # standard deviations that grew so much are on their way to infinity
EVALUATIONS = 40_000
KINDS = {
    "collapse": "the covariance goes to zero",
    "low_rank": "the covariance has a limit of lower rank than its start",
    "full_rank": "the covariance has a limit of the rank of its start",
    "blow_up": "the covariance goes to infinity in finite time",
    "diverged": "the covariance grows without bound, as far as it was followed",
    "undecided": "the budget of evaluations was spent before it could be told",
}


@dataclass(frozen=True)
class Grown(Rule):
    """Standard deviations are ``times`` what they were: the run is not going to a limit near by."""

    times: float = GROWN
    name: ClassVar[str] = "grown"
    urgent: ClassVar[bool] = True

    def measure(self, view: View) -> np.ndarray:
        return self.times * np.maximum(view.size, 1e-300) / np.maximum(view.norms(), 1e-300)

    def message(self, view: View, index: int) -> str:
        return f"standard deviations grew {self.times:g}-fold"


@dataclass(frozen=True)
class Limit:
    """``kind`` is a key of KINDS; ``covariance`` that of time 10 T (or where the run ended), ``rank`` the estimate of what stays."""

    kind: str
    rank: int | None
    covariance: np.ndarray
    eigenvalues: np.ndarray
    time: float
    direction: tuple[float, ...] | None
    message: str
    evaluations: int
    path: np.ndarray | None = None

    @property
    def line(self) -> np.ndarray | None:
        """The unit vector of a limit of rank one."""
        if self.rank != 1:
            return None
        vector = np.linalg.eigh(self.covariance)[1][:, -1]
        return vector * np.sign(vector[np.abs(vector).argmax()])


def limit(
    law: Law,
    covariance: np.ndarray | Gaussian,
    *,
    horizon: float | None = None,
    rtol: float = 1e-8,
    evaluations: int = EVALUATIONS,
    path: bool = False,
) -> Limit:
    """Follow a centred Gaussian to ``horizon`` T and 10 T, and say what becomes of its covariance.

    Growing runs end once standard deviations are 10,000 times those of the start; a blow-up is followed to its end. With ``path``
    covariances on the way to T are kept too.
    """
    given = covariance.covariance.numpy() if isinstance(covariance, Gaussian) else covariance
    start = Gaussian(np.zeros(len(given)), given)  # type: ignore[arg-type]
    if horizon is None:
        horizon = _horizon(law, start)
    save = _times(horizon) if path else [horizon, 10.0 * horizon]
    run = flow(law, start, save=save, rtol=rtol, stop=[Steady(), Grown()], max_evaluations=evaluations)
    way, spent, end = run.covariances.numpy() if path else None, run.stats.evaluations, run.outcome
    early, late = (
        _spectrum(run.points[-2:-1]) if len(run.points) > 1 else _spectrum(run.points),
        _spectrum(run.points[-1:]),
    )
    if end.name == "grown":  # to blow-up, or on and on
        if path:  # the way is in its last moments, between the times that were saved
            times = end.time * (1.0 - np.geomspace(1.0, 1e-9, 160)[1:])
            way = flow(law, start, save=times.tolist(), rtol=rtol, stop=()).covariances.numpy()
        run = flow(law, start, until=10.0 * horizon, save=[], stop=[Grown(1e9)], max_evaluations=evaluations)
        spent, end = spent + run.stats.evaluations, run.outcome
    assert isinstance(run.final, Gaussian)
    kind, rank = _kind(end.name, start, early, late)
    covariance = run.final.covariance.numpy()
    return Limit(kind, rank, covariance, late, end.time, end.direction, end.message, spent, way)


def _times(horizon: float) -> list[float]:
    """Times for a picture of the way to T, dense at first, and 10 T."""
    return [float(time) for time in horizon * np.geomspace(1e-9, 1.0, 160)] + [10.0 * horizon]


def _kind(name: str, start: Gaussian, early: np.ndarray, late: np.ndarray) -> tuple[str, int | None]:
    if name == "blow_up":
        return "blow_up", None
    if name in ("diverged", "grown"):
        return "diverged", None
    if name not in ("reached", "steady", "collapsed"):
        return "undecided", None
    rank = limit_rank(early, late)
    full = int((start.factor.abs().amax(-2) > 0).sum())
    return ("collapse" if rank == 0 else "full_rank" if rank == full else "low_rank"), rank


def _horizon(law: Law, start: Gaussian) -> float:
    Closure(law)  # says why there is none
    slope, _ = numeric(law.member(torch.tensor([0])))(start.mean.numpy(), start.factor.numpy())
    rate = float(np.linalg.norm(slope))
    return UNITS / rate if rate > 0 else UNITS


def _spectrum(points: torch.Tensor) -> np.ndarray:
    """Eigenvalues from the largest down of the last of some saved states, from the factor: small ones are not drowned."""
    return np.linalg.svd(points[-1, 1:].numpy())[1] ** 2 if len(points) else np.zeros(1)
