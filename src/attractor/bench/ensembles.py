"""One evaluation of a thousand independent systems of 64 tokens: the batched kernel against batched matrix products."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from attractor.bench.contest import Call, Contender, Contest
from attractor.bench.evaluation import TOLERANCES, fused
from attractor.bench.settings import Settings
from attractor.bench.sphere import array, uniform

DIM = 3


def contests(settings: Settings) -> list[Contest]:
    return [_contest(settings, "float64", 5.0), _contest(settings, "float32", 5.0)]


def _contest(settings: Settings, dtype: str, target: float) -> Contest:
    n, members = settings.size(64, 16), settings.size(1000, 8)
    points = cache(lambda: uniform(n, DIM, settings.seed, dtype, members))
    ours, theirs = TOLERANCES[dtype]
    return Contest(
        group="ensembles",
        name=f"ensemble evaluation {dtype}, {members} systems, n={n}, d={DIM}",
        ours=Contender("attractor fused", lambda: fused(points()), tolerance=ours),
        peers=(Contender("torch bmm", lambda: bmm(points()), target, theirs),),
        error=lambda result: float((array(result).double() - _exact(points())).abs().max()),
        tolerance=ours,
        pairs=float(members) * n**2,
        dim=DIM,
        dtype=dtype,
    )


def bmm(x: Tensor) -> Call:
    return lambda: torch.bmm(torch.softmax(torch.bmm(x, x.mT), dim=-1), x)


def _exact(x: Tensor) -> Tensor:
    from attractor.engines import attend

    points = x.double()
    output, _ = attend(points, points, points, engine="reference")
    assert output is not None
    return output
