"""Stability of measures: Dobrushin constants, support growth, perturbed runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, HeadNorms, Law
from attractor.meanfield.distances import check_order, check_pair, conditional_wasserstein, wasserstein
from attractor.solvers import flow
from attractor.states import Tokens


def require_bounded_attention(law: Law, what: str) -> Attention:
    """The attention of which a bound is known."""
    if not isinstance(law, Attention):
        raise UnsupportedError(f"{what} is known for one attention, not for {type(law).__name__}")
    if not law.kernel.bounded:
        raise UnsupportedError(
            f"{what} is not known for the {law.kernel.name} kernel: its tokens can reach infinity in finite time"
        )
    if law.positions is not None or law.query.ndim == 4:
        raise UnsupportedError(f"{what} is known for laws without positions and without ensemble parameters")
    if any(bias is not None for bias in (law.query_bias, law.key_bias, law.value_bias, law.output_bias)):
        raise UnsupportedError(f"{what} is known for laws without biases")
    return law


def support_rate(law: Law, mass: float = 1.0) -> float:
    r""":math:`\rho = \sum_h\|V_h\|`, times the total mass where rows are not normalised."""
    attention = require_bounded_attention(law, "a bound on the support")
    value = attention.value_map if attention.value_map.ndim == 3 else attention.value_map.unsqueeze(0)
    total = float(torch.linalg.matrix_norm(value.double(), ord=2).sum())
    return total if attention.kernel.normalised else total * mass


def support_radius(tokens: Tokens) -> Tensor:
    """Largest length (...) of a token that carries mass."""
    lengths = tokens.points.norm(dim=-1)
    return torch.where(tokens.weights > 0, lengths, 0.0).amax(-1)


def support_bound(
    law: Law, start: float | Tensor | np.ndarray, times: Tensor | np.ndarray, mass: float = 1.0
) -> np.ndarray:
    r""":math:`R_0e^{\rho t}` for every time (first axis) and every initial radius (other axes)."""
    first, moments = np.asarray(start, dtype=float), np.asarray(times, dtype=float)
    if np.any(first < 0) or np.any(moments < 0):
        raise InputError("a bound on the support needs a radius and times that are not negative")
    factor = np.exp(support_rate(law, mass) * moments)
    return factor.reshape(-1, *([1] * first.ndim)) * first


NODES = 200  # of the quadrature in time


@dataclass(frozen=True)
class StabilityConstants:
    """Lipschitz constants in the point and in the measure; ``influence`` is None where no formula is known.

    ``hardy_factor`` multiplies the influence under a causal mask.
    """

    radius: float
    point: float
    influence: float | None
    hardy: float = 1.0

    @property
    def total(self) -> float:
        """The exponent for a unit of time."""
        return math.inf if self.influence is None else self.point + self.hardy * self.influence


def dobrushin_constants(law: Law, radius: float, p: float = 2.0, mass: float = 1.0) -> StabilityConstants:
    """Compute Lipschitz constants of the field in the point and in the measure, on measures in a ball.

    Parameters
    ----------
    law : one attention with bounded weights, without positions and biases.
    radius : radius of the ball.
    p : order of W_p.
    mass : total mass of the measures; only kernels that are not normalised depend on it.

    Returns
    -------
    StabilityConstants
    """
    if not 0 <= radius < math.inf:
        raise InputError(f"the constants need a radius that is finite and not negative, got {radius}")
    attention = require_bounded_attention(law, "a stability constant")
    with np.errstate(over="ignore"):
        point, influence = _constants(attention, np.array(radius, dtype=float), mass)
    return StabilityConstants(
        float(radius), float(point), None if influence is None else float(influence), hardy_factor(attention, p)
    )


def hardy_factor(law: Attention, p: float) -> float:
    """p / (p - 1) under a causal mask with normalised rows, 1 without a mask."""
    if law.mask is None:
        return 1.0
    factor = law.kernel.causal_factor(p) if law.mask.sees_prefix else None
    if factor is None:
        raise UnsupportedError("stability under a mask is known for causal masks of softmax, l2 and sigmoid attention")
    return factor


def _norm(matrix: Tensor) -> np.ndarray:
    """Spectral norms (h,) of the heads."""
    heads = matrix if matrix.ndim == 3 else matrix.unsqueeze(0)
    return torch.linalg.matrix_norm(heads.detach().double(), ord=2).cpu().numpy()


def _constants(law: Attention, R: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray | None]:
    """L_x and L_mu at radii R of any shape, summed over heads (last axis below)."""
    interaction = abs(float(law.scale)) * _norm(law.key.mT @ law.query)
    norms = HeadNorms(_norm(law.value_map), interaction, _norm(law.query), _norm(law.key), float(law.scale))
    return law.kernel.lipschitz(norms, R[..., None], mass)


def log_stability_bound(
    law: Law,
    radius: np.ndarray | float,
    times: np.ndarray | Tensor,
    p: float = 2.0,
    mass: float = 1.0,
    influence: float | None = None,
) -> np.ndarray:
    r""":math:`\int_0^t(L_x + L_\mu)(R_s)\,ds` for every time (first axis) and initial radius (other axes): W_p grows at most by its
    exponential. ``influence`` replaces :math:`L_\mu` where there is no formula. Infinite where it overflows."""
    attention = require_bounded_attention(law, "a stability bound")
    factor, rate = hardy_factor(attention, p), support_rate(law, mass)
    start, moments = np.asarray(radius, dtype=float), np.asarray(times, dtype=float)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    # s = t (1 + node) / 2, on the first axis; times on the second; radii on the others
    shares = ((1 + nodes) / 2)[:, None] * moments
    with np.errstate(over="ignore"):
        radii = np.exp(rate * shares).reshape(*shares.shape, *([1] * start.ndim)) * start
        point, known = _constants(attention, radii, mass)
        known = np.asarray(influence) if known is None and influence is not None else known
        if known is None:
            raise UnsupportedError(
                f"no formula is known for the influence of the measure on {attention.kernel.name} attention: give "
                "influence=..., measured by local_constants"
            )
        total = point + factor * known
        average = np.einsum("k,k...->...", weights / 2, total)
    return average * moments.reshape(-1, *([1] * start.ndim))


def local_constants(law: Law, tokens: Tokens, p: float = 2.0) -> tuple[float, float]:
    r"""The constants where the tokens are: derivatives of the field, not bounds on them.

    :math:`\max_i\|\partial_x\Gamma_\mu(x_i)\|`, and the largest change of :math:`\Gamma_\mu(x_i)` when :math:`\mu` moves by one in W_2
    (p = 2) or in W_1. Queries are tokens without mass, which separates the two derivatives.
    """
    attention = require_bounded_attention(law, "a stability constant")
    if attention.mask is not None or tokens.batch_shape:
        raise UnsupportedError("local constants are those of one state without a mask")
    carrying = tokens.weights > 0
    tokens = Tokens.unchecked(tokens.points[carrying], tokens.weights[carrying])
    n, d = tokens.n, tokens.dim
    masses = torch.cat((torch.zeros(n, dtype=torch.float64), tokens.weights.double()))

    def field(queries: Tensor, points: Tensor) -> Tensor:
        return attention.velocity(Tokens.unchecked(torch.cat((queries, points)), masses))[:n]

    points = tokens.points.detach().double()
    by_point, by_measure = torch.autograd.functional.jacobian(field, (points, points))
    own = torch.linalg.matrix_norm(torch.einsum("iaib->iab", by_point), ord=2).max()
    weights = tokens.weights.double() / float(tokens.weights.sum())
    if p == 2.0:
        rows = (by_measure / weights.sqrt().reshape(1, 1, n, 1)).reshape(n, d, n * d)
        return float(own), float(torch.linalg.matrix_norm(rows, ord=2).max())
    blocks = torch.linalg.matrix_norm(by_measure.transpose(1, 2), ord=2) / weights
    return float(own), float(blocks.max())


TIMES = 20  # saved times of a run
SLACK = 1e-7  # relative error of a run, by which a bound that is attained may seem to be passed


@dataclass(frozen=True)
class Stability:
    """Distances, radii and their bounds at the saved times (S, ...), the other axes those of the ensemble.

    ``constants`` are those of the largest initial ball. ``explicit`` is False where the influence of the measure has no formula
    and was measured along the runs: then ``log_stability_bound`` is an estimate, not a theorem.
    """

    times: np.ndarray
    order: float
    distance: np.ndarray
    log_bound: np.ndarray
    radius: np.ndarray
    radius_bound: np.ndarray
    constants: StabilityConstants
    explicit: bool
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> np.ndarray:
        """W_p(mu_t, nu_t) / W_p(mu_0, nu_0), (S, ...)."""
        return self.distance / self.distance[0]

    @property
    def holds(self) -> bool:
        """Whether neither bound is passed anywhere."""
        close = np.log(self.ratio) <= self.log_bound + SLACK
        return bool(close.all() and (self.radius <= self.radius_bound * (1 + SLACK)).all())

    def plot(self, path: Any = None) -> Any:
        """Ratio and radius along time under their bounds: .png, .pdf or .svg, or the figure itself."""
        from attractor.meanfield.plots import draw_stability

        return draw_stability(self, path)


def measure_stability(
    law: Law, first: Tokens, second: Tokens, *, until: float, p: float = 2.0, **options: Any
) -> Stability:
    """Move two clouds of tokens (or ensembles of pairs) and compare W_p between them with its bound.

    Parameters
    ----------
    law : one attention with bounded weights.
    first, second : Tokens of the same total mass that differ.
    until : time to reach.
    p : order of the distance, at least 1; under a causal mask above 1, and the distance is the conditional one, position by position.
    options : passed to ``flow``.

    Returns
    -------
    Stability
        Distances, radii and their bounds at the saved times.
    """
    check_pair(first, second, "stability")
    if not isinstance(first, Tokens) or not isinstance(second, Tokens):
        raise InputError("stability compares two clouds of tokens; draw them from Gaussians by meanfield.sample")
    p = check_order(p, "stability")
    attention = require_bounded_attention(law, "a stability bound")
    hardy_factor(attention, p)
    mass = _mass(first, second)
    settings = {"save": TIMES, "stop": (), **options}
    if not isinstance(settings["save"], int):
        settings["save"] = sorted({0.0, *map(float, settings["save"])})  # ratios are to the start
    runs = [flow(law, tokens, until=until, **settings) for tokens in (first, second)]
    times = runs[0].times.numpy()
    distance = np.stack([_distance(attention, *(run.state(k) for run in runs), p) for k in range(len(times))])  # type: ignore[arg-type]
    if not np.all(distance[0] > 0) or not np.all(np.isfinite(distance[0])):
        raise InputError("the two measures must differ, by a finite distance; give two that do")
    reached = np.stack([[support_radius(run.state(k)).numpy() for k in range(len(times))] for run in runs]).max(0)  # type: ignore[arg-type]
    constants = dobrushin_constants(law, float(reached[0].max()), p, mass)
    influence, notes = (None, ()) if constants.influence is not None else _measured(attention, runs, p)
    return Stability(
        times,
        p,
        distance,
        log_stability_bound(law, reached[0], times, p, mass, influence),
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
                found.append(local_constants(law, Tokens.unchecked(points, row), p)[1])
    return max(found), (
        f"the influence of the measure on {law.kernel.name} attention has no formula: it was measured at both ends of the runs, "
        f"{max(found):.3g} at most, and the bound that uses it is an estimate",
    )


def perturb(tokens: Tokens, share: float, seed: int = 0) -> Tokens:
    """Tokens moved by independent normal steps of rms length ``share`` times the radius of the cloud."""
    if not 0 < share < float("inf"):
        raise InputError(f"a perturbation is a positive share of the radius, got {share}")
    noise = torch.from_numpy(np.random.default_rng([seed, 1]).standard_normal(tuple(tokens.points.shape)))
    step = share * support_radius(tokens).reshape(*tokens.batch_shape, 1, 1) / tokens.dim**0.5
    return Tokens(tokens.points + step * noise.to(tokens.points), tokens.masses, tokens.positions)
