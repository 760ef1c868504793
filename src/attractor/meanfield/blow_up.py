"""When and where a Gaussian blows up: the rescaled flow asked for nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attractor.attention import Law
from attractor.flow import flow
from attractor.states import Gaussian


@dataclass(frozen=True)
class BlowUp:
    """``time`` is infinite, and ``direction`` None, if there was no blow-up by ``until``; ``outcome`` names how the run ended."""

    time: float
    direction: tuple[float, ...] | None
    until: float
    outcome: str
    message: str


def blow_up(law: Law, start: Gaussian, until: float = 1e4, **options: object) -> BlowUp:
    """The blow-up time of one Gaussian, to about 1e-11 of itself, and the direction in which the covariance goes to infinity."""
    end = flow(law, start, until=until, save=[], **options).outcome  # type: ignore[arg-type]
    time = end.time if end.name == "blow_up" else math.inf
    return BlowUp(time, end.direction, until, end.name, end.message)


def blow_up_map(law: Law, covariances: np.ndarray, until: float = 1e4, **options: object) -> list[BlowUp]:
    """The same from each of several covariances (n, d, d), means zero."""
    zero = np.zeros(covariances.shape[-1])
    return [blow_up(law, Gaussian(zero, covariance), until, **options) for covariance in covariances]  # type: ignore[arg-type]
