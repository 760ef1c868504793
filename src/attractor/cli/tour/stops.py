"""The stops of the tour, in order."""

from __future__ import annotations

from attractor.cli.tour.audited import audited
from attractor.cli.tour.gaussians import gaussians
from attractor.cli.tour.refined import refined
from attractor.cli.tour.sphere import clusters, hemisphere
from attractor.cli.tour.stop import Stop
from attractor.cli.tour.theorems import bench
from attractor.cli.tour.traced import traced
from attractor.errors import InputError

STOPS = (
    Stop("clusters", "Tokens gather in clusters", clusters),
    Stop("hemisphere", "A rate known beforehand", hemisphere),
    Stop("theorems", "Theorems that can be measured", bench),
    Stop("gaussians", "Two Gaussians: blow-up and collapse", gaussians),
    Stop("audit", "A real model's weights", audited),
    Stop("trace", "A real model's tokens", traced),
    Stop("refine", "One refined layer", refined),
)


def chosen(names: list[str]) -> list[Stop]:
    """The stops that were asked for, in the order of the tour."""
    known = [stop.key for stop in STOPS]
    for name in names:
        if name not in known:
            raise InputError(f"--stop {name!r} is not known; the stops are {', '.join(known)}")
    return [stop for stop in STOPS if not names or stop.key in names]
