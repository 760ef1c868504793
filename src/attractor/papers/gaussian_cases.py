"""Gaussian attention in the plane: the published cases, the published procedure and a counter-example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attractor.errors import AttractorError, InputError
from attractor.laws import Attention, Closure, Law, closure_field
from attractor.meanfield import Limit, PhasePortrait, disc_grid, find_limit, phase_portrait, stationary_residual
from attractor.states import Gaussian

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One case: its matrices, the kernels it is shown with, and what is claimed of it."""

    name: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    kernels: tuple[str, ...]
    claim: str
    draw: str

    def law(self, kernel: str, official_scaling: bool = False) -> Attention:
        """The law of the case with one of its kernels; "multi-head" is softmax with two heads."""
        if kernel not in self.kernels:
            raise InputError(f"the case {self.name!r} is shown with {', '.join(self.kernels)}, not with {kernel!r}")
        query, key, value = self.query, self.key, self.value
        if kernel == "multi-head":
            return _heads(query, key, value)
        scale = 1.0 / np.sqrt(query.shape[-1])
        if official_scaling and kernel == "l2":
            return Attention(scale * query, key, value, kernel="l2")  # type: ignore[arg-type]
        if official_scaling and kernel == "sinkhorn":
            return Attention(query, key, value, kernel="sinkhorn")  # type: ignore[arg-type]
        return Attention(query, key, value, kernel=kernel, scale=scale)  # type: ignore[arg-type]


def _heads(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Attention:
    """One head for each coordinate: head h has row h of Q and K (k = 1, so scores are not divided) and writes coordinate h of V x.

    With a single row in Q and K the second head is empty, and only the first coordinate is written.
    """
    rows = query.shape[0]
    value = np.stack([np.outer(np.eye(2)[h], value[h]) for h in range(rows)])
    return Attention(query[:, None, :], key[:, None, :], value)  # type: ignore[arg-type]


def case(name: str) -> Case:
    """A case by its name."""
    if name not in CASES:
        raise InputError(f"there is no case {name!r}; the cases are {', '.join(CASES)}")
    return CASES[name]()


def _collapse() -> Case:
    draw = np.random.RandomState(35)
    query = draw.rand(2, 2)
    root = draw.rand(2, 2)
    kernels = ("softmax", "l2", "multi-head", "sinkhorn")
    return Case("collapse", query, -query, root @ root.T, kernels, "every covariance goes to 0", "seed 35")


def _row() -> np.ndarray:
    row = np.random.RandomState(36).rand(1, 2)
    return row / np.linalg.norm(row)


def _line() -> Case:
    q = _row()
    return Case("line", q, -q, np.eye(2), ("softmax", "l2", "sinkhorn"), "limits of rank one on one line", "seed 36")


def _plane() -> Case:
    q = _row()
    return Case("plane", q, -q, np.eye(2), ("multi-head",), "limits fill a plane, also with full rank", "seed 36")


def _drawn(seed: int, wanted: str) -> tuple[np.ndarray, np.ndarray]:
    """Q and K drawn until the symmetric part of K'Q is as wanted."""
    draw = np.random.RandomState(seed)
    while True:
        query, key = draw.randn(2, 2), draw.randn(2, 2)
        low, high = np.linalg.eigvalsh(key.T @ query + query.T @ key)
        if (wanted == "indefinite" and low < 0 < high) or (wanted == "positive" and low > 0):
            return query, key


def _two_lines() -> Case:
    query, key = _drawn(36, "indefinite")
    value = np.random.RandomState(32).randn(2, 2)
    claim = "limits of rank one on two lines"
    return Case("two-lines", query, key, value, ("softmax", "l2"), claim, "seeds 36 and 32")


def _divergence() -> Case:
    query, key = _drawn(33, "positive")
    kernels = ("softmax", "l2", "sinkhorn")
    return Case("divergence", query, key, np.eye(2), kernels, "every covariance diverges", "seed 33")


def _both() -> Case:
    query, key = _drawn(36, "indefinite")
    draw = np.random.RandomState(35)
    draw.randn(8, 7)
    claim = "some covariances converge and some diverge"
    return Case("both", query, key, draw.randn(2, 2), ("softmax", "l2"), claim, "seeds 36 and 35")


CASES = {
    "collapse": _collapse,
    "line": _line,
    "plane": _plane,
    "two-lines": _two_lines,
    "divergence": _divergence,
    "both": _both,
}


STEP, STEPS = 0.01, 10_000
CUT = 0.1
INFINITE = 1e12


@dataclass(frozen=True)
class Emulated:
    """What the procedure would report: "diverged", or a rank; ``censored`` runs would be dropped."""

    covariance: np.ndarray
    rank: int | None
    diverged: bool
    censored: bool


def published_procedure(law: Law, covariance: np.ndarray, step: float = STEP, steps: int = STEPS) -> Emulated:
    """Euler with projection, from one covariance."""
    Closure(law)
    field, Sigma = closure_field(law.member(torch.tensor([0]))), np.array(covariance, dtype=np.float64)
    zero, d = np.zeros(len(Sigma)), len(Sigma)
    values, vectors = np.linalg.eigh(Sigma)
    for _ in range(steps):
        slope, _ = field(zero, vectors * np.sqrt(np.maximum(values, 0.0)))
        moved = Sigma + step * (slope @ Sigma + Sigma @ slope.T)
        if not np.isfinite(moved).all() or np.abs(moved).max() > INFINITE:
            return Emulated(Sigma, None, True, False)
        values, vectors = np.linalg.eigh((moved + moved.T) / 2)
        new = (vectors * np.maximum(values, 0.0)) @ vectors.T
        if np.array_equal(new, Sigma):
            break
        Sigma = new
    rank = int(np.sum(np.linalg.eigvalsh(Sigma) > CUT))
    return Emulated(Sigma, rank, False, rank > (d + 1) // 2)


@dataclass(frozen=True)
class Study:
    """A case, and for each kernel the phase found and what the emulated procedure says (None if it was not asked)."""

    case: Case
    official_scaling: bool
    found: dict[str, tuple[PhasePortrait, dict[str, Any] | None]]

    def summary(self) -> dict[str, Any]:
        kernels = {
            kernel: {"accurate": phase.summary(), "emulated_published_procedure": emulated}
            for kernel, (phase, emulated) in self.found.items()
        }
        head = {"name": self.case.name, "claim": self.case.claim, "draw": self.case.draw}
        return {**head, "official_scaling": self.official_scaling, "kernels": kernels}


def study(
    name: str,
    grid: int = 5,
    *,
    official_scaling: bool = False,
    emulate: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Study:
    """Follow a grid of covariances of trace one under each kernel of a case."""
    chosen, starts = case(name), disc_grid(grid)
    found: dict[str, tuple[PhasePortrait, dict[str, Any] | None]] = {}
    for number, kernel in enumerate(chosen.kernels):
        law = chosen.law(kernel, official_scaling)
        done = number * len(starts)

        def show(count: int, _: int, done: int = done) -> None:
            if progress is not None:
                progress(done + count, len(chosen.kernels) * len(starts))

        one = phase_portrait(law, starts, progress=show)
        emulated = _compared(one.limits, [published_procedure(law, s, steps=3000) for s in starts]) if emulate else None
        found[kernel] = (one, emulated)
    return Study(chosen, official_scaling, found)


def _compared(ours: tuple[Limit, ...], theirs: list[Emulated]) -> dict[str, Any]:
    """What the procedure says, and where that is not what happens."""
    labels = ["diverged" if one.diverged else f"rank {one.rank}" for one in theirs]
    truth = ["diverged" if one.rank is None else f"rank {one.rank}" for one in ours]
    wrong = Counter(f"{says}, is {is_}" for says, is_ in zip(labels, truth, strict=True) if says != is_)
    words = ", ".join(f"{count} {label}" for label, count in Counter(labels).most_common())
    difference = "; ".join(f"{count} of {len(ours)} says {label}" for label, count in wrong.most_common())
    return {"words": words, "agrees": not wrong, "difference": difference}


NEUTRAL, STABLE = 1e-6, -0.02  # largest real part that counts as zero, and as negative
RESTS = 1e-7  # what is left of the velocity of the limit, relative to |B| |Sigma|


@dataclass(frozen=True)
class Counterexample:
    """The law, the start (full rank) and the limit of rank 3; ``seed`` found it, ``stationary`` is the covariance it was built on."""

    seed: int
    law: Attention
    start: np.ndarray
    limit: Limit
    stationary: np.ndarray
    rates: tuple[float, ...]


def counterexample(first: int = 0, seeds: int = 20_000, starts: int = 3) -> Counterexample:
    """Search seeds in their order; the same numbers give the same example."""
    for seed in range(first, first + seeds):
        draw = np.random.RandomState(seed)
        query, key, value, stationary = candidate(draw)
        rates = growth_rates(query, key, value, stationary)
        if (
            rates[0] > NEUTRAL
            or rates[2] > STABLE
            or np.linalg.cond(key.T @ query) > 100.0
            or np.abs(value).max() > 10.0
        ):
            continue
        law = Attention(query, key, value, kernel="l2")  # type: ignore[arg-type]
        for _ in range(starts):
            root = draw.randn(4, 4)
            found = find_limit(law, root @ root.T, evaluations=4000)
            resting = stationary_residual(law, Gaussian(np.zeros(4), found.covariance)) < RESTS  # type: ignore[arg-type]
            if found.rank == 3 and resting:
                return Counterexample(seed, law, root @ root.T, found, stationary, tuple(rates))
    raise AttractorError(f"no example was found among {seeds} seeds")


def candidate(draw: np.random.RandomState) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Q, K, V and a covariance of rank 3 that rests under them."""
    query, key, L = draw.randn(4, 4), draw.randn(4, 4), draw.randn(4, 3)
    skew = draw.randn(3, 3)
    inner = np.linalg.inv(np.eye(3) + 2.0 * L.T @ key.T @ key @ L)
    M = 2.0 * inner @ L.T @ key.T @ query @ L  # 2 P A L = L M
    normal = np.linalg.svd(L)[0][:, 3:]
    images = np.hstack((L @ (skew - skew.T) @ np.linalg.inv(M), draw.randn(4, 1)))
    return query, key, images @ np.linalg.inv(np.hstack((L, normal))), L @ L.T


def growth_rates(query: np.ndarray, key: np.ndarray, value: np.ndarray, covariance: np.ndarray) -> list[float]:
    """Real parts, from the largest down, of the eigenvalues of the linearised flow on symmetric matrices."""
    A, gram, d = key.T @ query, 2.0 * key.T @ key, len(covariance)

    def velocity(Sigma: np.ndarray) -> np.ndarray:
        B = 2.0 * value @ np.linalg.solve(np.eye(d) + Sigma @ gram, Sigma @ A)
        return B @ Sigma + Sigma @ B.T

    rows, columns = np.triu_indices(d)
    jacobian = np.zeros((len(rows), len(rows)))
    for index, (i, j) in enumerate(zip(rows, columns, strict=True)):
        change = np.zeros((d, d))
        change[i, j] = change[j, i] = 1e-5
        jacobian[:, index] = ((velocity(covariance + change) - velocity(covariance - change)) / 2e-5)[rows, columns]
    return sorted((float(rate) for rate in np.linalg.eigvals(jacobian).real), reverse=True)
