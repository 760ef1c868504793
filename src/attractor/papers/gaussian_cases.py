"""Gaussian attention in the plane [castin2025unified]: the published cases, the published procedure and a counter-example."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from attractor.errors import AttractorError, InputError
from attractor.html_repr import format_number
from attractor.laws import Attention, Closure, Law, closure_field
from attractor.meanfield import (
    Limit,
    PhasePortrait,
    cone_coordinates,
    disc_grid,
    find_limit,
    phase_portrait,
    stationary_residual,
)
from attractor.papers.figure import Data, Figure, Parameter, Settings, Table, Update, Verdict
from attractor.registry import find
from attractor.states import Gaussian


@dataclass(frozen=True)
class Case:
    """A published case: matrices, kernels, the published claim, and the seeds of the draw."""

    name: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    kernels: tuple[str, ...]
    claim: str
    draw: str

    def law(self, kernel: str, official_scaling: bool = False) -> Attention:
        """Return the law of the case with one of its kernels; "multi-head" is softmax with two heads."""
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


def find_case(name: str) -> Case:
    """Return a case by its name."""
    return find(name, CASES, "case")()


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


def _draw_pair(seed: int, wanted: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw Q and K until the symmetric part of K'Q has the wanted signs."""
    draw = np.random.RandomState(seed)
    while True:
        query, key = draw.randn(2, 2), draw.randn(2, 2)
        low, high = np.linalg.eigvalsh(key.T @ query + query.T @ key)
        if (wanted == "indefinite" and low < 0 < high) or (wanted == "positive" and low > 0):
            return query, key


def _two_lines() -> Case:
    query, key = _draw_pair(36, "indefinite")
    value = np.random.RandomState(32).randn(2, 2)
    claim = "limits of rank one on two lines"
    return Case("two-lines", query, key, value, ("softmax", "l2"), claim, "seeds 36 and 32")


def _divergence() -> Case:
    query, key = _draw_pair(33, "positive")
    kernels = ("softmax", "l2", "sinkhorn")
    return Case("divergence", query, key, np.eye(2), kernels, "every covariance diverges", "seed 33")


def _both() -> Case:
    query, key = _draw_pair(36, "indefinite")
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
    """Result of the published procedure: diverged, or a rank; ``censored`` runs are dropped there."""

    covariance: np.ndarray
    rank: int | None
    diverged: bool
    censored: bool


def published_procedure(law: Law, covariance: np.ndarray, step: float = STEP, steps: int = STEPS) -> Emulated:
    """Integrate by Euler with projection from one covariance, and count eigenvalues above 0.1."""
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


def compute(settings: Settings, progress: Update) -> Data:
    """Integrate a grid of covariances of trace one under each kernel of a case, and emulate the published procedure.

    ``paths`` and ``kinds`` hold for each kernel the paths in the disc of covariances of trace one, and how they end.
    """
    chosen, starts = find_case(settings["case"]), disc_grid(settings["grid"])
    kernels, paths, kinds = {}, {}, {}
    for number, kernel in enumerate(chosen.kernels):
        law = chosen.law(kernel, settings["official_scaling"])
        before = number * len(starts)

        def update(count: int, _: int, before: int = before) -> None:
            progress(before + count, len(chosen.kernels) * len(starts))

        found = phase_portrait(law, starts, progress=update)
        emulated = None
        if settings["emulate"]:
            emulated = _compare(found.limits, [published_procedure(law, start, steps=3000) for start in starts])
        kernels[kernel] = {"accurate": found.summary(), "emulated_published_procedure": emulated}
        paths[kernel] = [path.tolist() for path in trace_one_paths(found)]
        kinds[kernel] = [limit.kind for limit in found.limits]
    head = {"name": chosen.name, "claim": chosen.claim, "draw": chosen.draw}
    return {
        **head,
        "official_scaling": settings["official_scaling"],
        "kernels": kernels,
        "paths": paths,
        "kinds": kinds,
    }


def trace_one_paths(found: PhasePortrait) -> list[np.ndarray]:
    """Return the paths of a phase study in the disc of covariances of trace one."""
    pairs = zip(found.starts, (limit.path for limit in found.limits), strict=True)
    return [
        cone_coordinates(np.concatenate((start[None], *(() if path is None else (path,))))) for start, path in pairs
    ]


def _compare(ours: tuple[Limit, ...], theirs: list[Emulated]) -> Data:
    """Return the conclusions of the published procedure, and where they are wrong."""
    labels = ["diverged" if found.diverged else f"rank {found.rank}" for found in theirs]
    truth = ["diverged" if found.rank is None else f"rank {found.rank}" for found in ours]
    wrong = Counter(f"{label}, is {true}" for label, true in zip(labels, truth, strict=True) if label != true)
    words = ", ".join(f"{count} {label}" for label, count in Counter(labels).most_common())
    difference = "; ".join(f"{count} of {len(ours)} says {label}" for label, count in wrong.most_common())
    return {"words": words, "agrees": not wrong, "difference": difference}


def describe_phase(summary: Data) -> str:
    """Return the outcomes of a phase study in a sentence."""
    kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in summary["kinds"].items())
    marks = "Covariances are divided by their trace; small dots are starts, ringed dots ends."
    return f"Outcomes of {summary['starts']} starts: {kinds}. {marks}"


def phase_rows(summary: Data) -> dict[str, str]:
    """Return outcomes, ranks, lines and blow-up times of a phase study as labels and texts."""
    rows = {"outcomes": ", ".join(f"{count} {name}" for name, count in summary["kinds"].items())}
    if summary["ranks"]:
        rows["ranks"] = ", ".join(f"rank {rank}: {count}" for rank, count in summary["ranks"].items())
    if summary["lines"]:
        rows["lines"] = ", ".join(f"({format_number(line[0])}, {format_number(line[1])})" for line in summary["lines"])
    if summary["blow_up_times"]:
        rows["blow-up"] = " to ".join(f"t = {format_number(time)}" for time in summary["blow_up_times"])
    return rows


def summarise(data: Data) -> tuple[Table, ...]:
    """Return the outcome under each kernel, beside the conclusions of the published procedure."""
    title = f"{data['name']}: claimed that {data['claim']} ({data['draw']})"
    tables = [Table(title, (), (("claim", data["claim"]),))]
    for kernel, found in data["kernels"].items():
        rows, emulated = phase_rows(found["accurate"]), found["emulated_published_procedure"]
        if emulated:
            rows["emulated"] = f"{emulated['words']} (published procedure: Euler, projection, cut 0.1)"
            rows["agree"] = "yes" if emulated["agrees"] else "no: " + emulated["difference"]
        tables.append(Table(kernel, (), tuple(rows.items())))
    return tuple(tables)


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the paths under every kernel of the case."""
    from attractor.plotting import draw_cones

    cases = {
        kernel: ([np.array(points) for points in data["paths"][kernel]], data["kinds"][kernel])
        for kernel in data["kernels"]
    }
    caption = (
        f"Covariances of trace one at the start: in the cone, and divided by their trace. Claimed: {data['claim']}."
    )
    draw_cones(cases, path, title=f"Case {data['name']}: {', '.join(cases)}", caption=caption)
    return (path,)


FIGURE = Figure(
    key="gaussian-cases",
    title="Gaussians in the plane",
    question="Where do covariances of trace one go under the published laws, and what does the published procedure conclude?",
    source="castin2025unified",
    parameters=(
        Parameter(
            "case", "collapse", f"the case: {', '.join(CASES)}", "names are ours; matrices from the published seeds"
        ),
        Parameter("grid", 5, "starts across the disc of covariances of trace one", minimum=1),
        Parameter("official_scaling", False, "scale l2 and sinkhorn as the published code does"),
        Parameter("emulate", True, "emulate the published procedure"),
    ),
    cost=10.0,
    compute=compute,
    draw=draw,
    summarise=summarise,
    verdict=lambda data: Verdict("no published result", "Not judged yet."),
    small={"case": "line", "grid": 2, "emulate": False},
)


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
    """Search the seeds in order for a limit of rank 3 in dimension 4."""
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
    """Draw Q, K, V and a covariance of rank 3 that is stationary under them."""
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
