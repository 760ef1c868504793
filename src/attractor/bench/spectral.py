"""One evaluation through the zonal expansion, whose cost is linear in n, against the fused engine, which visits all pairs."""

from __future__ import annotations

from functools import cache

from torch import Tensor

from attractor.bench.contest import Call, Contender, Contest, engine
from attractor.bench.settings import Settings
from attractor.bench.sphere import array, evaluated, some_rows, uniform

BETA = 9.0
TOLERANCE = 1e-8


def contests(settings: Settings) -> list[Contest]:
    """On the sphere, where a target is set, and on the circle."""
    n = settings.size(65536, 1024)
    return [_contest(settings, n, 3, 15.0), _contest(settings, n, 2, None)]


def _contest(settings: Settings, n: int, dim: int, target: float | None) -> Contest:
    points = cache(lambda: uniform(n, dim, settings.seed))
    return Contest(
        group="spectral",
        name=f"evaluation float64, d={dim}, n={n}, beta={BETA:g}",
        ours=Contender("attractor spectral", lambda: velocity(points(), "spectral")),
        peers=(Contender("attractor fused", lambda: velocity(points(), "fused"), target),),
        error=lambda result: velocity_error(array(result), points(), settings.seed),
        tolerance=TOLERANCE,
    )


def velocity(x: Tensor, name: str, beta: float = BETA) -> Call:
    """One velocity on the sphere by the engine of that name."""
    from attractor import engines
    from attractor.attention import Attention
    from attractor.flow import velocity
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    law, tokens, space, name = Attention.isotropic(x.shape[-1], beta), Tokens(x), Sphere(), engine(name)

    def call() -> Tensor:
        with engines.using(name):
            return velocity(law, tokens, space)

    return call


def velocity_error(result: Tensor, x: Tensor, seed: int) -> float:
    """The largest error of a coordinate of the velocity over some rows."""
    rows = some_rows(len(x), seed)
    exact = evaluated(x, rows, BETA)
    tangent = exact - (exact * x[rows]).sum(-1, keepdim=True) * x[rows]
    return float((result[rows] - tangent).abs().max())
