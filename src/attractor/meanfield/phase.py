r"""Phase pictures of covariances in the plane: many starts of trace one, and where each of them goes.

A covariance is the point :math:`(\Sigma_{11} - \Sigma_{22}, 2\Sigma_{12}, \mathrm{tr}\,\Sigma)` of a round cone; divided by its trace
it is a point
of the unit disc, on whose rim the covariances of rank one are [castin2025unified].
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attractor.attention import Law
from attractor.errors import InputError
from attractor.meanfield.limits import Limit, limit

APART = 1e-2  # radians between lines that are counted as different


@dataclass(frozen=True)
class Phase:
    """Starts (n, 2, 2) and what became of each."""

    starts: np.ndarray
    limits: tuple[Limit, ...]

    def summary(self) -> dict[str, Any]:
        """Counts of kinds and ranks, directions of limits of rank one, and the range of blow-up times."""
        times = [one.time for one in self.limits if one.kind == "blow_up"]
        ranks = Counter(one.rank for one in self.limits if one.rank is not None)
        return {
            "starts": len(self.starts),
            "kinds": dict(Counter(one.kind for one in self.limits).most_common()),
            "ranks": {str(rank): count for rank, count in sorted(ranks.items())},
            "lines": [[round(math.cos(angle), 12), round(math.sin(angle), 12)] for angle in self.angles()],
            "blow_up_times": [min(times), max(times)] if times else None,
        }

    def angles(self) -> list[float]:
        """Angles in [0, pi) of the lines that limits of rank one lie on, each once."""
        lines = [one.line for one in self.limits]
        found: list[float] = []
        for angle in sorted(math.atan2(line[1], line[0]) % math.pi for line in lines if line is not None):
            if all(min(abs(angle - other), math.pi - abs(angle - other)) > APART for other in found):
                found.append(angle)
        return found


def disc(count: int) -> np.ndarray:
    """Covariances of trace one on a square grid of the open unit disc, ``count`` across, (n, 2, 2)."""
    if count < 1:
        raise InputError(f"a grid needs at least one start across, got {count}")
    places = np.linspace(-1.0, 1.0, count + 2)[1:-1]
    pairs = np.array([(u, w) for u in places for w in places if u * u + w * w < 0.999])
    u, w = pairs.T
    return np.stack((np.stack(((u + 1) / 2, w / 2), -1), np.stack((w / 2, (1 - u) / 2), -1)), -2)


def cone(covariances: np.ndarray) -> np.ndarray:
    """Coordinates (..., 3) of covariances (..., 2, 2) in the cone."""
    one, other, mixed = covariances[..., 0, 0], covariances[..., 1, 1], covariances[..., 0, 1]
    return np.stack((one - other, 2.0 * mixed, one + other), axis=-1)


def phase(
    law: Law, starts: np.ndarray | int = 7, *, progress: Callable[[int, int], None] | None = None, **options: Any
) -> Phase:
    """Follow every start (or a grid so many across) to its limit, and keep its way."""
    if law.dim != 2:
        raise InputError(f"a phase picture is one of covariances in the plane, the law has dimension {law.dim}")
    given = disc(starts) if isinstance(starts, (int, np.integer)) else np.asarray(starts, dtype=np.float64)
    found: list[Limit] = []
    for number, start in enumerate(given):
        found.append(limit(law, start, path=True, **options))
        if progress is not None:
            progress(number + 1, len(given))
    return Phase(given, tuple(found))


def same_lines(angles: Sequence[float], directions: Sequence[Sequence[float]], tolerance: float = 1e-3) -> bool:
    """Whether lines at some angles are those with some directions, in any order."""
    wanted = [math.atan2(direction[1], direction[0]) % math.pi for direction in directions]
    near = [min(min(abs(a - b), math.pi - abs(a - b)) for b in wanted) < tolerance for a in angles] if wanted else []
    return len(wanted) == len(angles) and all(near)
