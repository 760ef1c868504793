r"""Two measures under one law: how far they part, beside how far the theory lets them (meanfield T12 to T14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attractor.attention import Attention, Law
from attractor.errors import InputError
from attractor.flow import flow
from attractor.meanfield.conditional import conditional_wasserstein
from attractor.meanfield.distances import wasserstein
from attractor.meanfield.dobrushin import Constants, dobrushin, hardy, local_constants, log_bound
from attractor.meanfield.growth import checked, radius, support_bound
from attractor.meanfield.measures import check_order, check_pair
from attractor.states import Tokens

TIMES = 20  # saved times of a run
SLACK = 1e-7  # relative error of a run, by which a bound that is attained may seem to be passed


@dataclass(frozen=True)
class Stability:
    """Distances, radii and their bounds at the saved times (S, ...), the other axes those of the ensemble.

    ``constants`` are those of the largest initial ball. ``explicit`` is False where the influence of the measure has no formula
    and was measured along the runs: then ``log_bound`` is an estimate, not a theorem.
    """

    times: np.ndarray
    order: float
    distance: np.ndarray
    log_bound: np.ndarray
    radius: np.ndarray
    radius_bound: np.ndarray
    constants: Constants
    explicit: bool
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> np.ndarray:
        """W_p(mu_t, nu_t) / W_p(mu_0, nu_0), (S, ...)."""
        return self.distance / self.distance[0]

    @property
    def holds(self) -> bool:
        """Whether neither bound is passed anywhere."""
        apart = np.log(self.ratio) <= self.log_bound + SLACK
        return bool(apart.all() and (self.radius <= self.radius_bound * (1 + SLACK)).all())

    def plot(self, path: Any = None) -> Any:
        """Ratio and radius along time under their bounds: .png, .pdf or .svg, or the figure itself."""
        from attractor.meanfield.stability_picture import draw_stability

        return draw_stability(self, path)


def stability(law: Law, first: Tokens, second: Tokens, *, until: float, p: float = 2.0, **options: Any) -> Stability:
    """Move two clouds of tokens (ensembles of pairs, too) and compare W_p between them with its bound.

    Under a causal mask the distance is the conditional one, position by position. ``options`` go to ``flow``.
    """
    check_pair(first, second, "stability")
    if not isinstance(first, Tokens) or not isinstance(second, Tokens):
        raise InputError("stability compares two clouds of tokens; draw them from Gaussians by meanfield.sample")
    p = check_order(p, "stability")
    attention = checked(law, "a stability bound")
    hardy(attention, p)
    mass = _mass(first, second)
    settings = {"save": TIMES, "stop": (), **options}
    if not isinstance(settings["save"], int):
        settings["save"] = sorted({0.0, *map(float, settings["save"])})  # ratios are to the start
    runs = [flow(law, tokens, until=until, **settings) for tokens in (first, second)]
    times = runs[0].times.numpy()
    distance = np.stack([_distance(attention, *(run.state(k) for run in runs), p) for k in range(len(times))])  # type: ignore[arg-type]
    if not np.all(distance[0] > 0) or not np.all(np.isfinite(distance[0])):
        raise InputError("the two measures must differ, by a finite distance; give two that do")
    reached = np.stack([[radius(run.state(k)).numpy() for k in range(len(times))] for run in runs]).max(0)  # type: ignore[arg-type]
    constants = dobrushin(law, float(reached[0].max()), p, mass)
    influence, notes = (None, ()) if constants.influence is not None else _measured(attention, runs, p)
    return Stability(
        times,
        p,
        distance,
        log_bound(law, reached[0], times, p, mass, influence),
        reached,
        support_bound(law, reached[0], times, mass),
        constants,
        constants.influence is not None,
        notes,
    )


def _mass(first: Tokens, second: Tokens) -> float:
    masses = [tokens.weights.sum(-1).double() for tokens in (first, second)]
    largest = float(max(part.max() for part in masses))
    smallest = float(min(part.min() for part in masses))
    if largest - smallest > 1e-9 * largest:
        raise InputError(f"the two measures must have the same total mass, got {smallest:g} to {largest:g}")
    return largest


def _distance(law: Attention, first: Tokens, second: Tokens, p: float) -> np.ndarray:
    function = wasserstein if law.mask is None else conditional_wasserstein
    return function(first, second, p).numpy()


def _measured(law: Attention, runs: list[Any], p: float) -> tuple[float, tuple[str, ...]]:
    """The largest local influence of the measure at the ends of the runs, members of an ensemble included."""
    found = []
    for run in runs:
        for tokens in (run.initial, run.final):
            masses = tokens.masses
            for index, points in enumerate(tokens.points.reshape(-1, tokens.n, tokens.dim)):
                row = masses if masses is None or masses.ndim == 1 else masses.reshape(-1, tokens.n)[index]
                found.append(local_constants(law, Tokens.trusted(points, row), p)[1])
    return max(found), (
        "the influence of the measure on sinkhorn attention has no formula: it was measured at both ends of the runs, "
        f"{max(found):.3g} at most, and the bound that uses it is an estimate",
    )


def perturbed(tokens: Tokens, share: float, seed: int = 0) -> Tokens:
    """Tokens moved by independent normal steps of rms length ``share`` times the radius of the cloud."""
    if not 0 < share < float("inf"):
        raise InputError(f"tokens are moved apart by a positive share of their radius, got {share}")
    noise = torch.from_numpy(np.random.default_rng([seed, 1]).standard_normal(tuple(tokens.points.shape)))
    step = share * radius(tokens).reshape(*tokens.batch_shape, 1, 1) / tokens.dim**0.5
    return Tokens(tokens.points + step * noise.to(tokens.points), tokens.masses, tokens.positions)
