"""Finite-time blow-up of Gaussians: time, bounds, and tokens past it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Law, has_kernel
from attractor.meanfield.convergence import sample
from attractor.observables import covariance
from attractor.solvers import Trajectory, factor_eigenvalues, flow, integrate_to_blow_up
from attractor.states import Gaussian


@dataclass(frozen=True)
class BlowUp:
    """``time`` is infinite, and ``direction`` None, if there was no blow-up by ``until``; ``outcome`` names how the run ended."""

    time: float
    direction: tuple[float, ...] | None
    until: float
    outcome: str
    message: str


def find_blow_up(law: Law, start: Gaussian, until: float = 1e4, **options: object) -> BlowUp:
    """Find the blow-up time of one Gaussian, to about 1e-11 of itself.

    Parameters
    ----------
    law : a law under which Gaussians stay Gaussian.
    start : one Gaussian.
    until : time after which the search ends.
    options : passed to ``flow``.

    Returns
    -------
    BlowUp
        Time (infinite if there is none) and the direction in which the covariance goes to infinity.
    """
    end = flow(law, start, until=until, save=[], **options).outcome  # type: ignore[arg-type]
    time = end.time if end.name == "blow_up" else math.inf
    return BlowUp(time, end.direction, until, end.name, end.message)


def blow_up_map(law: Law, covariances: np.ndarray, until: float = 1e4, **options: object) -> list[BlowUp]:
    """The same from each of several covariances (n, d, d), means zero."""
    zero = np.zeros(covariances.shape[-1])
    return [find_blow_up(law, Gaussian(zero, covariance), until, **options) for covariance in covariances]  # type: ignore[arg-type]


GROWING = 0.02  # exponent p of growth (T* - t)^-p above which an eigenvalue is infinite at T*
RTOL = 2e-12


@dataclass(frozen=True, eq=False)
class BlowUpApproach:
    r"""States of a Gaussian before its blow-up at ``time``, and what its covariance tends to.

    Attributes
    ----------
    time : the blow-up time :math:`T^*`.
    times : (k,), geometric in :math:`T^* - t`, without :math:`T^*`.
    means, factors : (k, d) and (k, d, d), with covariances :math:`LL^\top`.
    eigenvalues : (k, d) of the covariances, the largest first, each with its own relative accuracy.
    mean : (d,) at :math:`T^*`, infinite where it grows without bound.
    limits : (d,), eigenvalues at :math:`T^*`, infinite for those that grow without bound.
    changes : (d,), relative change of each eigenvalue in the last five decades of :math:`T^* - t`; a limit that still changes is known
        only to this.
    """

    time: float
    times: np.ndarray
    means: np.ndarray
    factors: np.ndarray
    eigenvalues: np.ndarray
    mean: np.ndarray
    limits: np.ndarray
    changes: np.ndarray

    def row(self) -> dict[str, Any]:
        """Everything but the factors, for JSON."""
        names = ("times", "means", "eigenvalues", "mean", "limits", "changes")
        return {"time": self.time, **{name: getattr(self, name).tolist() for name in names}}

    def describe_limits(self) -> str:
        """The limits of the eigenvalues in words."""
        words = ["infinite" if math.isinf(limit) else f"{limit:.5g}" for limit in self.limits]
        return ", ".join(
            f"{word} (still changing)" if math.isfinite(limit) and change > 1e-4 else word
            for word, limit, change in zip(words, self.limits, self.changes, strict=True)
        )


def approach_blow_up(run: Trajectory, halvings: int = 24, each: int = 2) -> BlowUpApproach:
    r"""Resolve the approach of a run to its blow-up.

    The run itself saves few states there, and its last covariance, which is infinite to rounding, has lost the eigenvalues that stay
    finite. This integrates the run again, with a tolerance relative to each column of the factor.

    Parameters
    ----------
    run : of one Gaussian, with the outcome ``blow_up``.
    halvings, each : states are saved at :math:`T^* - t = 2^{-j/\mathrm{each}}(T^* - t_0)` down to :math:`2^{-\mathrm{halvings}}`.
    """
    state, end = run.initial, run.outcome
    if not isinstance(state, Gaussian) or state.batch_shape or end.name != "blow_up" or run.law is None:
        raise UnsupportedError(
            "the approach to a blow-up belongs to a run of one Gaussian that ended with the outcome blow_up"
        )
    if not run.law.autonomous:
        raise UnsupportedError("the approach to a blow-up is resolved for laws that do not change with time")
    start = 0.0 if run.definition is None else float(run.definition.options.get("start", 0.0))
    law = run.law.member(torch.tensor([0]))
    times = end.time - (end.time - start) * 2.0 ** (-np.arange(1, halvings * each + 1) / each)
    found = integrate_to_blow_up(law, state.rows().numpy(), start, end.time, times, RTOL)
    factors = found.states[:, 1:].swapaxes(-1, -2)
    earlier, last = (factor_eigenvalues(rows[1:].T) for rows in (found.earlier, found.last))
    decades = math.log(found.left[0] / found.left[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.log(last / earlier))
        mean_ratio = np.nan_to_num(np.log(np.abs(found.last[0] / found.earlier[0])))
    growing = ratio / decades > GROWING
    mean = np.where(mean_ratio / decades > GROWING, np.copysign(np.inf, found.last[0]), found.last[0])
    limits, changes = (
        np.where(growing, np.inf, last),
        np.where(growing, np.inf, np.abs(np.expm1(np.where(growing, 0.0, ratio)))),
    )
    return BlowUpApproach(
        end.time, times, found.states[:, 0], factors, factor_eigenvalues(factors), mean, limits, changes
    )


@dataclass(frozen=True)
class BlowUpBounds:
    """An interval for the blow-up time; ``upper`` is infinite where no upper bound is known, and ``reason`` says why."""

    lower: float
    upper: float
    reason: str = ""


def blow_up_bounds(law: Attention, start: Gaussian) -> BlowUpBounds:
    """The sandwich of the blow-up time of a softmax law from one Gaussian."""
    if not has_kernel(law, "softmax"):
        raise UnsupportedError(f"bounds of the blow-up time are those of softmax attention, not of {law.kernel.name}")
    V, A = matrices(law)
    Sigma = start.covariance.numpy()
    if V[0].shape != Sigma.shape:
        raise InputError(f"the law moves points of {len(V[0])} coordinates, the Gaussian has {len(Sigma)}")
    growth = sum(_norm(v) * _norm(a) for v, a in zip(V, A, strict=True)) * _norm(Sigma)
    lower = 1.0 / (2.0 * growth) if growth > 0 else math.inf
    reason = _no_upper_bound(V, A)
    if reason:
        return BlowUpBounds(lower, math.inf, reason)
    S, v = (A[0] + A[0].T) / 2.0, V[0]
    size = float(np.trace(np.linalg.solve(v, Sigma)))
    if size <= 0:
        return BlowUpBounds(lower, math.inf, "the covariance is zero")
    low = float(np.linalg.eigvalsh(S)[0]) * float(np.linalg.eigvalsh(v)[0]) ** 2
    return BlowUpBounds(lower, len(v) / (2.0 * low * size))


def growth_rate(law: Attention) -> float:
    r"""The r of :math:`|\Sigma_t| \le |\Sigma_0|e^{rt}`: for l2 with square invertible keys, and for sinkhorn."""
    heads = zip(*(_heads(part) for part in (law.value_map, law.query, law.key)), strict=True)
    return sum(law.kernel.covariance_growth(*head) for head in heads)


def matrices(law: Attention) -> tuple[np.ndarray, np.ndarray]:
    """V and A = scale K'Q, both (h, d, d)."""
    query, key, value = _heads(law.query), _heads(law.key), _heads(law.value_map)
    return value, float(law.scale) * key.swapaxes(-1, -2) @ query


def _heads(part: object) -> np.ndarray:
    array = np.asarray(part.detach().cpu().double())  # type: ignore[attr-defined]
    return array[None] if array.ndim == 2 else array


def _no_upper_bound(V: np.ndarray, A: np.ndarray) -> str:
    if len(V) > 1:
        return "an upper bound is known for one head"
    if np.abs(V[0] - V[0].T).max() > 1e-12 * np.abs(V[0]).max() or np.linalg.eigvalsh(V[0])[0] <= 0:
        return "an upper bound needs a symmetric positive definite V"
    if np.linalg.eigvalsh((A[0] + A[0].T) / 2.0)[0] <= 0:
        return "an upper bound needs K'Q with a positive definite symmetric part"
    return ""


def _norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2))


HORIZON = 1e3  # time within which a Gaussian must blow up to be of use here
SHARES = (*np.linspace(0.0, 0.8, 9), 0.85, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.15, 1.2)  # of the blow-up time


@dataclass(frozen=True)
class PastBlowUp:
    """Total variance of the tokens, (sizes, repeats, times), and of the Gaussian, (times), infinite from ``find_blow_up`` on.

    ``run`` and ``gaussian_run`` are one run of the largest system and that of the Gaussian, for plots of densities.
    """

    blow_up: float
    times: np.ndarray
    sizes: tuple[int, ...]
    variance: np.ndarray
    gaussian: np.ndarray
    run: Trajectory
    gaussian_run: Trajectory
    notes: tuple[str, ...] = ()

    @property
    def median(self) -> np.ndarray:
        """Over repeats, (sizes, times)."""
        return np.median(self.variance, axis=1)

    def plot(self, path: Any = None) -> Any:
        """Plot the variance along time for every n and for the Gaussian; write .png, .pdf or .svg, or return the figure."""
        from attractor.meanfield.plots import draw_past_blow_up

        return draw_past_blow_up(self, path)


def simulate_past_blow_up(
    law: Law,
    gaussian: Gaussian,
    *,
    sizes: Sequence[int] = (200, 1000, 5000),
    repeats: int = 5,
    shares: Sequence[float] = SHARES,
    seed: int = 0,
    progress: Callable[[float, str], None] = lambda share, text: None,
    **options: Any,
) -> PastBlowUp:
    """Follow tokens drawn from a Gaussian to and past the time at which the Gaussian itself blows up.

    ``shares`` are the saved times in units of the blow-up time. Draws are raw, not whitened: their longest tokens matter.
    """
    if not isinstance(gaussian, Gaussian) or gaussian.batch_shape:
        raise InputError("simulate_past_blow_up starts from one Gaussian(mean, covariance)")
    sizes = tuple(int(n) for n in sizes)
    if not sizes or min(sizes) < 2 or repeats < 1:
        raise InputError(
            f"simulate_past_blow_up needs numbers of tokens of at least 2 and a repeat, got {list(sizes)} and {repeats}"
        )
    blow_up = blow_up_time(law, gaussian)
    times = blow_up * np.unique(np.asarray(shares, dtype=float))
    if len(times) == 0 or times[0] < 0 or not np.all(np.isfinite(times)):
        raise InputError("the shares of the blow-up time must be finite and not negative")
    before = times[times < blow_up * (1 - 1e-9)]
    if len(before) == 0 or before[-1] == 0:
        raise InputError("at least one share of the blow-up time must lie between 0 and 1, where the Gaussian exists")
    limit = flow(law, gaussian, save=before.tolist(), stop=())
    curve = np.full(len(times), np.inf)
    curve[: len(before)] = torch.diagonal(limit.covariances, dim1=-2, dim2=-1).sum(-1).numpy()
    variance, run = [], None
    work = [float(n) * n for n in sizes]
    for index, n in enumerate(sizes):
        progress(sum(work[:index]) / sum(work), f"{repeats} runs of {n:,} tokens")
        tokens = sample(gaussian, n, int(np.random.SeedSequence([seed, n]).generate_state(1)[0]), ensemble=repeats)
        run = flow(law, tokens, save=times.tolist(), **{"rtol": 1e-6, "atol": 1e-8, "stop": (), **options})
        variance.append(_variance(run, len(times)))
    assert run is not None
    return PastBlowUp(blow_up, times, sizes, np.stack(variance), curve, run.member(0), limit)


def blow_up_time(law: Law, gaussian: Gaussian) -> float:
    """When the Gaussian reaches infinity under a law, or a sentence if it does not."""
    run = flow(law, gaussian, until=HORIZON, save=[HORIZON], stop=())
    if run.outcome.name != "blow_up":
        raise InputError(
            f"the Gaussian does not blow up before t = {HORIZON:g} under this law (it ends {run.outcome.name}); "
            "take softmax attention whose Q'K and value stretch in a common direction"
        )
    return float(run.outcome.time)


def _variance(run: Trajectory, times: int) -> np.ndarray:
    """Total variance (repeats, times)."""
    values = torch.diagonal(torch.as_tensor(run.observe(covariance)), dim1=-2, dim2=-1).sum(-1)
    if len(values) != times:
        raise InputError(f"tokens did not reach the last time: {run.outcome.message}")
    return values.T.numpy()


def median_at(found: PastBlowUp, share: float) -> dict[int, float]:
    """Median variance for every n at a saved share of the blow-up time."""
    index = int(np.abs(found.times - share * found.blow_up).argmin())
    return {n: float(value) for n, value in zip(found.sizes, found.median[:, index], strict=True)}
