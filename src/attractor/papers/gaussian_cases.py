"""Gaussian attention in the plane [castin2025unified]: the published cases, each with its kernels, and the published procedure.

Matrices and starts are drawn as in the authors' ``2d_plots.py``, from NumPy's legacy generator. Their integrator is Euler's method with
a projection on positive semi-definite matrices; it is emulated beside an accurate integration of the same starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.laws import Attention
from attractor.meanfield import Limit, PhasePortrait, cone_coordinates, find_limit
from attractor.papers.figure import (
    Beside,
    Comparison,
    Data,
    Figure,
    Parameter,
    Settings,
    Table,
    Update,
    Verdict,
    Work,
)
from attractor.registry import find
from attractor.solvers import flow
from attractor.states import Gaussian

Matrix = NDArray[np.float64]
Slope = Callable[[Matrix, NDArray[np.int64]], Matrix]  # of covariances (n, d, d) and the numbers of their starts
CODE = "vcastin/2025-transformers-PDEs at 53ad7f3"
SCALED = 2**-0.5  # the code divides K'Q by the root of the dimension
KERNELS = {
    "softmax": "softmax",
    "l2": "L2",
    "multi-head": "softmax, two heads",
    "one-head": "softmax, called multi-head there",
    "sinkhorn": "Sinkhorn",
}


@dataclass(frozen=True)
class Panel:
    """A published panel: file and kernel, step and stopping rules of the published integrator, and what the authors' own run gave.

    Attributes
    ----------
    low, high, steps : it stops where the norm of the velocity falls below ``low``, the trace exceeds ``high``, or after ``steps``.
    authors : mean trace, mean 2 S12 and number of starts that met ``low``, where their code ends from the starts
        that are followed by default.
    """

    kernel: str
    file: str
    step: float
    low: float
    authors: tuple[float, float, int] | None = None
    high: float = 1e3
    steps: int = 50_000


@dataclass(frozen=True)
class Case:
    """A cell of ``2d_plots.py``: how matrices are drawn from the seeds, the starts, the panels, and the claim of its heading."""

    name: str
    title: str
    draw: Callable[[tuple[int, ...]], tuple[Matrix, Matrix, Matrix]]
    seeds: tuple[int, ...]
    grid: int
    reach: float
    panels: tuple[Panel, ...]
    claim: str
    defect: str = ""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Kernels of the panels."""
        return tuple(panel.kernel for panel in self.panels)

    @property
    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        """Q, K and V of the published seeds."""
        return self.draw(self.seeds)

    def law(self, kernel: str, official_scaling: bool = False) -> Attention:
        """Return the law of one panel."""
        if kernel not in self.kernels:
            raise InputError(f"the case {self.name!r} is shown with {', '.join(self.kernels)}, not with {kernel!r}")
        return build_law(kernel, self.matrices, official_scaling)


def draw_collapse(seeds: tuple[int, ...]) -> tuple[Matrix, Matrix, Matrix]:
    """Draw Q uniform, K = -Q, V = G G' with G normal."""
    draw = np.random.RandomState(seeds[0])
    query, root = draw.rand(2, 2), draw.randn(2, 2)
    return query, -query, root @ root.T


def draw_row(seeds: tuple[int, ...]) -> tuple[Matrix, Matrix, Matrix]:
    """Draw a unit row q = Q = -K; V = I."""
    row = np.random.RandomState(seeds[0]).randn(1, 2)
    row = row / np.linalg.norm(row)
    return row, -row, np.eye(2)


def draw_pair(seed: int, wanted: str) -> tuple[Matrix, Matrix]:
    """Draw normal Q and K until the symmetric part of K'Q is "indefinite" or "positive"."""
    draw = np.random.RandomState(seed)
    while True:
        query, key = draw.randn(2, 2), draw.randn(2, 2)
        low, high = np.linalg.eigvalsh(key.T @ query + query.T @ key)
        if (wanted == "indefinite" and low < 0 < high) or (wanted == "positive" and low > 0):
            return query, key


def draw_two_lines(seeds: tuple[int, ...]) -> tuple[Matrix, Matrix, Matrix]:
    """Draw an indefinite pair, and V normal from the second seed."""
    return *draw_pair(seeds[0], "indefinite"), np.random.RandomState(seeds[1]).randn(2, 2)


def draw_divergence(seeds: tuple[int, ...]) -> tuple[Matrix, Matrix, Matrix]:
    """Draw a pair with positive K'Q; V = I."""
    return *draw_pair(seeds[0], "positive"), np.eye(2)


def draw_both(seeds: tuple[int, ...]) -> tuple[Matrix, Matrix, Matrix]:
    """Draw an indefinite pair, and V normal from the second seed after 56 numbers that are not used."""
    draw = np.random.RandomState(seeds[1])
    draw.randn(8, 7)
    return *draw_pair(seeds[0], "indefinite"), draw.randn(2, 2)


CASES = {
    case.name: case
    for case in (
        Case(
            "collapse", "Gaussians that go to zero", draw_collapse, (35,), 10, 0.5,
            (
                Panel("softmax", "trad_neg_def_V.pdf", 0.3, 1e-5, (0.0174541655859, -0.0158807008665, 48)),
                Panel("l2", "L2_neg_def_V.pdf", 0.3, 1e-5, (0.0123349494462, -0.01122589777, 48)),
                Panel("multi-head", "MH_neg_def_V.pdf", 0.3, 1e-5, (0.0198313073981, -0.0195564471151, 48)),
                Panel("sinkhorn", "sink_convergence.pdf", 0.5, 1e-5, (0.0146698900259, -0.0133498413417, 48)),
            ),
            "every covariance goes to zero",
        ),
        Case(
            "line", "Gaussians that go to a line", draw_row, (36,), 10, 0.5,
            (
                Panel("softmax", "trad_rank_1.pdf", 0.5, 1e-4, (0.457701011374, -0.327944477342, 48)),
                Panel("l2", "L2_rank_1.pdf", 0.5, 1e-4, (0.455141617059, -0.329497498918, 48)),
            ),
            "limits have rank one and lie on one line",
        ),
        Case(
            "plane", "Gaussians that go to a plane", draw_row, (36,), 10, 0.5,
            (Panel("multi-head", "MH_rank_1.pdf", 0.5, 1e-4, (0.863776307253, -0.323124815153, 48)),),
            "limits fill a plane",
        ),
        Case(
            "two-lines", "Gaussians that go to two lines", draw_two_lines, (36, 32), 20, 1.0,
            (
                Panel("softmax", "trad_mixed_3d.pdf", 0.01, 1e-7),
                Panel("l2", "L2_mixed_3d.pdf", 0.01, 1e-7, (0.583848765754, -0.336330211725, 47)),
            ),
            "limits have rank one and lie on two lines",
            "The script overwrites the softmax result by that of L2 before both are drawn: the file trad_mixed_3d.pdf shows L2.",
        ),
        Case(
            "divergence", "Gaussians that blow up or diverge", draw_divergence, (33,), 40, 1.0,
            (
                Panel("softmax", "trad_explosion.pdf", 0.01, 1e-4, (437.490130913, 77.2394998989, 0), steps=100_000),
                Panel("multi-head", "MH_explosion.pdf", 0.002, 1e-4, (585.08192273, -24.0014391612, 0), steps=100_000),
                Panel("l2", "L2_divergence.pdf", 0.001, 1e-5, (9996.71009994, -4738.60023631, 0), high=1e4),
                Panel("sinkhorn", "sink_divergence.pdf", 0.01, 1e-5, (9908.48645054, 2370.1821016, 0), high=1e4),
            ),
            "every covariance blows up (softmax, multi-head) or diverges (L2, Sinkhorn)",
        ),
        Case(
            "both", "Gaussians of which some converge and some blow up", draw_both, (36, 35), 30, 1.0,
            (
                Panel("softmax", "trad_both_V.pdf", 0.003, 1e-4, (82.0465541991, 28.5717843698, 44)),
                Panel("l2", "L2_both.pdf", 0.002, 1e-4, (60.0634561394, -2.80660429622, 46)),
                Panel("one-head", "MH_both.pdf", 0.002, 1e-4, (80.647436606, 28.032407657, 44)),
            ),
            "some covariances converge and some blow up, depending on the start",
            "The panel that is called multi-head runs with one head: it is the softmax panel with another step.",
        ),
    )
}  # fmt: skip


def find_case(name: str) -> Case:
    """Return a case by its name."""
    return find(name, CASES, "case")


def build_law(kernel: str, matrices: tuple[Matrix, Matrix, Matrix], official_scaling: bool) -> Attention:
    """Return the law of a panel; with ``official_scaling`` only K'Q is divided by the root of the dimension, as in the code.

    Head h of two has row h of Q and K (its dimension is one, so scores are not divided) and writes coordinate h of V x; with a single
    row in Q and K the second head is empty.
    """
    query, key, value = matrices
    if kernel == "multi-head":
        outer = [np.outer(np.eye(2)[h], value[h]) for h in range(query.shape[0])]
        return Attention(query[:, None, :], key[:, None, :], np.stack(outer))  # type: ignore[arg-type]
    if kernel == "sinkhorn":
        scale = 1.0 if official_scaling else SCALED
        return Attention(query, key, value, kernel="sinkhorn", scale=scale)  # type: ignore[arg-type]
    if kernel == "l2":
        if official_scaling:
            return Attention(SCALED * query, key, value, kernel="l2")  # type: ignore[arg-type]
        return Attention(query, key, value, kernel="l2", scale=SCALED)  # type: ignore[arg-type]
    return Attention(query, key, value, scale=SCALED)  # type: ignore[arg-type]


def draw_starts(grid: int, reach: float) -> Matrix:
    """Return covariances of trace one on a square grid of the unit disc, as the code does: edges of the square included."""
    places = np.linspace(-reach, reach, grid) if grid > 1 else np.zeros(1)
    u, w = (part.ravel() for part in np.meshgrid(places, places, indexing="ij"))
    inside = 1.0 - u * u > w * w
    u, w = u[inside], w[inside]
    return np.stack((np.stack(((1 + u) / 2, w / 2), -1), np.stack((w / 2, (1 - u) / 2), -1)), -2)


def slope_of(kernel: str, matrices: tuple[Matrix, Matrix, Matrix], scale: float) -> Slope:
    """Return the function from covariances (n, d, d) and their numbers to B with dS/dt = B S + S B', as the published code defines it.

    Matrices may be stacks, one for each number.
    """
    query, key, value = matrices
    A = scale * np.swapaxes(key, -1, -2) @ query
    each = lambda matrix, which: matrix if matrix.ndim == 2 else matrix[which]  # noqa: E731
    if kernel == "multi-head":
        A = np.stack([np.outer(key[h], query[h]) for h in range(len(query))])
        heads = np.stack([np.outer(np.eye(len(value))[h], value[h]) for h in range(len(query))])
        return lambda S, which: np.einsum("hij,njk,hkl->nil", heads, S, A)
    if kernel == "l2":
        gram, eye = 2.0 * np.swapaxes(key, -1, -2) @ key, np.eye(value.shape[-1])
        return lambda S, which: (
            2.0
            * each(value, which)
            @ S
            @ np.linalg.solve(eye + each(gram, which) @ S, np.broadcast_to(each(A, which), S.shape))
        )
    if kernel == "sinkhorn":
        return lambda S, which: _sinkhorn_slope(each(A, which), each(value, which), S)
    return lambda S, which: each(value, which) @ S @ each(A, which)


def _sinkhorn_slope(A: Matrix, value: Matrix, S: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(S)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    inner = root @ A @ root
    squares, turn = np.linalg.eigh(inner @ np.swapaxes(inner, -1, -2))
    shrunk = (turn * (2.0 / (1.0 + np.sqrt(1.0 + 4.0 * np.maximum(squares, 0.0))))[..., None, :]) @ np.swapaxes(
        turn, -1, -2
    )
    return value @ root @ shrunk @ root @ A


@dataclass(frozen=True)
class Published:
    """What the published procedure gives for every start: the last covariance, why it ended there, and points on the way.

    ``ends`` are "tolerance", "cap" or "spent"; ``iterations`` is (n,); ``paths`` are (k, d, d) each.
    """

    final: Matrix
    ends: tuple[str, ...]
    iterations: NDArray[np.int64]
    paths: tuple[Matrix, ...]


def published_procedure(
    slope: Slope,
    starts: Matrix,
    step: float,
    low: float,
    high: float = 1e3,
    steps: int = 50_000,
    progress: Update | None = None,
) -> Published:
    """Integrate covariances (n, d, d) by Euler's method with a projection after each step, with the published stopping rules.

    The last covariance is the one before the step after which it stopped. Negative eigenvalues become 1e-14.
    """
    S, count = np.array(starts), len(starts)
    active = np.arange(count)
    final, ends, iterations = np.array(starts), np.full(count, "spent", dtype=object), np.full(count, steps - 1)
    saved: list[list[Matrix]] = [[] for _ in range(count)]
    left = np.full(count, -1)  # steps that remain on a cycle
    anchor, since = S.copy(), 0  # a covariance that comes back is on a cycle: it will spend all steps
    kept = set(np.unique(np.geomspace(1, max(steps, 2), 70).astype(int)).tolist()) | {0}
    with np.errstate(all="ignore"):
        for index in range(steps):
            if index in kept:
                for place, number in enumerate(active):
                    saved[number].append(S[place].copy())
                if progress is not None:
                    progress(index, steps)
            half = slope(S, active) @ S
            change = half + np.swapaxes(half, -1, -2)
            moved = _project(S + step * change)
            still = np.linalg.norm(change, axis=(1, 2)) < low
            large = np.trace(moved, axis1=1, axis2=2) > high
            large |= ~np.isfinite(moved).all((1, 2))
            done = still | large
            if index > since:
                back = (left < 0) & (anchor == S).all((1, 2))
                left[back] = (steps - 1 - index) % (index - since)  # to the phase of the cycle that the last step has
            done |= left == 0
            left[left > 0] -= 1
            if index == steps - 1:
                done[:] = True
            if done.any():
                final[active[done]], iterations[active[still | large]] = S[done], index
                ends[active[still]] = "tolerance"
                ends[active[large & ~still]] = "cap"
                active, moved, anchor, left = active[~done], moved[~done], anchor[~done], left[~done]
                if not len(active):
                    break
            S = moved
            if index + 1 >= 2 * max(since, 8):
                anchor, since = S.copy(), index + 1
    paths = tuple(np.stack([*way, last]) for way, last in zip(saved, final, strict=True))
    return Published(final, tuple(ends), iterations, paths)


def _project(S: Matrix) -> Matrix:
    """Replace negative eigenvalues by 1e-14; covariances without one are returned as they are."""
    if S.shape[-1] == 2:
        one, other, mixed = S[:, 0, 0], S[:, 1, 1], S[:, 1, 0]
        negative = (one * other < mixed * mixed) | (one + other < 0)
    else:
        negative = np.linalg.eigvalsh(np.where(np.isfinite(S), S, 0.0))[:, 0] < 0
    negative &= np.isfinite(S).all((1, 2))
    if negative.any():
        values, vectors = np.linalg.eigh(S[negative])
        values[values < 0] = 1e-14
        S[negative] = (vectors * values[:, None, :]) @ np.swapaxes(vectors, -1, -2)
    return S


def compute(case: Case, settings: Settings, work: Work) -> Data:
    """Follow starts under each kernel of a case, emulate the published procedure from them, and integrate one by SciPy."""
    grid = settings["grid"]
    matrices = case.draw(tuple(settings["seeds"]))
    starts = draw_starts(grid, case.reach)
    if not len(starts):
        raise InputError(f"a grid of {grid} starts across has none inside the disc")
    follow = min(settings["follow"], len(starts))
    rows = []
    for number, panel in enumerate(case.panels):

        def update(count: int, done: int = number * follow) -> None:
            work(done + count, follow * len(case.panels))

        name = panel.kernel
        rows.append(
            work.keep(name, lambda panel=panel, update=update: _panel(case, panel, matrices, starts, settings, update))
        )
    names = ("query", "key", "value")
    return {
        "name": case.name,
        "claim": case.claim,
        "defect": case.defect,
        "seeds": list(settings["seeds"]),
        "starts": len(starts),
        "followed": follow,
        "drawn": min(settings["paths"], follow),
        "matrices": {name: matrix.tolist() for name, matrix in zip(names, matrices, strict=True)},
        "panels": rows,
    }


def _panel(
    case: Case,
    panel: Panel,
    matrices: tuple[Matrix, Matrix, Matrix],
    starts: Matrix,
    settings: Settings,
    update: Callable[[int], None],
) -> Data:
    law = build_law(panel.kernel, matrices, settings["official_scaling"])
    chosen = starts[_spread(len(starts), settings["follow"])]
    drawn = _spread(len(chosen), settings["paths"]).tolist()
    limits: list[Limit] = []
    for index, start in enumerate(chosen):
        limits.append(find_limit(law, start, path=index in drawn))
        update(index)
    found = PhasePortrait(chosen, tuple(limits))
    ways = trace_one_paths(PhasePortrait(chosen[drawn], tuple(limits[index] for index in drawn)))
    row: Data = {
        "kernel": panel.kernel,
        "file": panel.file,
        "accurate": found.summary(),
        "plane": _plane_distance(limits),
        "largest": max((float(np.trace(one.covariance)) for one in limits if one.rank is not None), default=None),
        "paths": [_rounded(way) for way in ways],
        "kinds": [limits[index].kind for index in drawn],
        "published": None,
        "scipy": _integrate_by_scipy(
            panel.kernel, matrices, law, settings["official_scaling"], chosen[len(chosen) // 2]
        ),
    }
    if settings["emulate"]:
        slope = slope_of(panel.kernel, matrices, 1.0 if panel.kernel == "sinkhorn" else SCALED)
        theirs = published_procedure(
            slope, chosen, panel.step, panel.low, panel.high, min(panel.steps, settings["steps"])
        )
        ends = cone_coordinates(theirs.final)
        row["published"] = {
            "ends": dict(Counter(theirs.ends).most_common()),
            "iterations": [int(theirs.iterations.min()), int(theirs.iterations.max())],
            "trace": float(ends[:, 2].mean()),
            "mixed": float(ends[:, 1].mean()),
            "paths": [_rounded(cone_coordinates(theirs.paths[index])) for index in drawn],
            "kinds": [theirs.ends[index] for index in drawn],
        }
    return row


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """Return at most ``most`` indices, spread evenly over ``count``."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))


def _rounded(way: Matrix) -> list[list[float]]:
    """Return points of a path as JSON holds them, with the digits that a figure shows."""
    return [[float(f"{value:.5g}") for value in point] for point in way]


def trace_one_paths(found: PhasePortrait) -> list[np.ndarray]:
    """Return the paths of a phase study in the disc of covariances of trace one."""
    pairs = zip(found.starts, (limit.path for limit in found.limits), strict=True)
    return [
        cone_coordinates(np.concatenate((start[None], *(() if path is None else (path,))))) for start, path in pairs
    ]


def _plane_distance(limits: list[Limit]) -> float | None:
    """Return how far limits are from one plane through zero in the cone, relative to their spread; None without limits."""
    points = cone_coordinates(np.array([limit.covariance for limit in limits if limit.rank]).reshape(-1, 2, 2))
    if len(points) < 4:
        return None
    sizes = np.linalg.svd(points, compute_uv=False)
    return float(sizes[-1] / sizes[0])


def _integrate_by_scipy(
    kernel: str, matrices: tuple[Matrix, Matrix, Matrix], law: Attention, official: bool, start: Matrix
) -> Data | None:
    """Integrate one start over a unit of time by DOP853 of SciPy, from the published formula, and by ``flow``."""
    if not official:
        return None
    slope = slope_of(kernel, matrices, 1.0 if kernel == "sinkhorn" else SCALED)

    def velocity(time: float, flat: Matrix) -> Matrix:
        S = flat.reshape(1, 2, 2)
        half = slope(S, np.zeros(1, dtype=int)) @ S
        return (half + np.swapaxes(half, -1, -2)).ravel()

    until = 0.1  # before the first blow-up of all cases
    other = solve_ivp(velocity, (0.0, until), start.ravel(), method="DOP853", rtol=1e-12, atol=1e-14)
    run = flow(law, Gaussian(np.zeros(2), start), until=until, rtol=1e-11)  # type: ignore[arg-type]
    assert isinstance(run.final, Gaussian)
    return {
        "time": until,
        "ours": run.final.covariance.numpy().tolist(),
        "other": other.y[:, -1].reshape(2, 2).tolist(),
    }


def compare(data: Data) -> tuple[Comparison, ...]:
    """Compare one integration with SciPy's, and the emulated procedure with the authors' own run."""
    rows = []
    panels = {panel.kernel: panel for panel in find_case(data["name"]).panels}
    for row in data["panels"]:
        name = KERNELS[row["kernel"]]
        if row["scipy"] is not None:
            ours, other = (float(np.trace(row["scipy"][key])) for key in ("ours", "other"))
            quantity = f"{name}: trace at t = {row['scipy']['time']:g}"
            rows.append(
                Comparison(quantity, ours, other, 1e-8, "SciPy, DOP853 on the published formula", relative=True)
            )
        authors = panels[row["kernel"]].authors
        if row["published"] is not None and authors is not None and FOUND[data["name"]].has_published_settings(data):
            ours = row["published"]["trace"], row["published"]["mixed"], row["published"]["ends"].get("tolerance", 0)
            quantities = "mean trace at the end", "mean 2 S12 at the end", "starts that met the tolerance"
            for quantity, mine, other in zip(quantities, ours, authors, strict=True):
                source = f"authors' run, {CODE}"
                rows.append(Comparison(f"{name}: {quantity}, emulated", mine, other, 1e-6, source, relative=True))
    return tuple(rows)


def beside(data: Data) -> tuple[Beside, ...]:
    """Return the accurate outcomes beside those of the published procedure."""
    rows = []
    for row in data["panels"]:
        if row["published"] is None:
            continue
        words = ", ".join(f"{count} {ENDS[end]}" for end, count in row["published"]["ends"].items())
        first, last = row["published"]["iterations"]
        theirs = f"{words} ({first:,} to {last:,} steps); mean trace {format_number(row['published']['trace'])}"
        rows.append(Beside(KERNELS[row["kernel"]], _outcome_words(row["accurate"]), theirs))
    return tuple(rows)


ENDS = {"tolerance": "met the tolerance", "cap": "passed the largest trace", "spent": "spent all steps"}


def _outcome_words(summary: Data) -> str:
    rows = phase_rows(summary)
    return "; ".join(f"{label} {text}" if label != "outcomes" else text for label, text in rows.items())


def judge(data: Data) -> Verdict:
    """Check the claim of a case for each of its panels."""
    wrong, notes = [], []
    for row in data["panels"]:
        sentence, holds = CHECKS[data["name"]](row)
        notes.append(f"{KERNELS[row['kernel']]}: {sentence}")
        if not holds:
            wrong.append(KERNELS[row["kernel"]])
    reason = f"Claimed: {data['claim']}. Found: {'; '.join(notes)}."
    if data["defect"]:
        reason += f" {data['defect']}"
    if wrong:
        return Verdict("differs", f"{reason} The claim does not hold for {', '.join(wrong)}.")
    return Verdict("reproduced with a correction" if data["defect"] else "reproduced", reason)


def _all_of(kinds: tuple[str, ...], words: str, row: Data) -> tuple[str, bool]:
    found, starts = row["accurate"]["kinds"], row["accurate"]["starts"]
    count = sum(found.get(kind, 0) for kind in kinds)
    return f"{count} of {starts} {words}", count == starts


def _check_line(row: Data) -> tuple[str, bool]:
    words, holds = _all_of(("low_rank",), "have a limit of rank one", row)
    lines = row["accurate"]["lines"]
    return f"{words}, on {_line_words(lines)}", holds and len(lines) == 1


def _check_two_lines(row: Data) -> tuple[str, bool]:
    words, holds = _all_of(("low_rank",), "have a limit of rank one", row)
    lines = row["accurate"]["lines"]
    return f"{words}, on {_line_words(lines)}", holds and len(lines) == 2


def _line_words(lines: list[list[float]]) -> str:
    angles = ", ".join(f"{np.degrees(np.arctan2(line[1], line[0])) % 180:.2f} degrees" for line in lines)
    return f"{len(lines)} line{'s' if len(lines) != 1 else ''} ({angles})"


def _check_plane(row: Data) -> tuple[str, bool]:
    words, holds = _all_of(("low_rank", "full_rank"), "have a limit", row)
    ranks = ", ".join(f"{count} of rank {rank}" for rank, count in row["accurate"]["ranks"].items())
    if row["plane"] is None:
        return f"{words}, {ranks}", False
    return f"{words}, {ranks}, within {row['plane']:.1g} of one plane (relative)", holds and row["plane"] < 1e-3


def _check_divergence(row: Data) -> tuple[str, bool]:
    if row["kernel"] in ("softmax", "multi-head"):
        words, holds = _all_of(("blow_up",), "blow up in finite time", row)
        first, last = row["accurate"]["blow_up_times"] or (np.nan, np.nan)
        return f"{words}, at t = {format_number(first)} to {format_number(last)}", holds
    return _all_of(("diverged",), "grow without bound, and none blows up", row)


def _check_both(row: Data) -> tuple[str, bool]:
    kinds, starts = row["accurate"]["kinds"], row["accurate"]["starts"]
    converge = sum(kinds.get(kind, 0) for kind in ("collapse", "low_rank", "full_rank"))
    blow, grow = kinds.get("blow_up", 0), kinds.get("diverged", 0)
    other = starts - converge - blow - grow
    words = f"{converge} of {starts} converge, {blow} blow up, {grow} grow without bound"
    if other:
        words += f", {other} undecided"
    largest, ends = row["largest"], (row["published"] or {"ends": {}})["ends"]
    if ends.get("cap", 0) > blow + grow:
        words += f" (to traces up to {format_number(largest)}; the published procedure stops {ends['cap']} at 1000 as divergent)"
    return words, 0 < converge < starts and not other


CHECKS: dict[str, Callable[[Data], tuple[str, bool]]] = {
    "collapse": partial(_all_of, ("collapse",), "go to zero"),
    "line": _check_line,
    "plane": _check_plane,
    "two-lines": _check_two_lines,
    "divergence": _check_divergence,
    "both": _check_both,
}


def describe_phase(summary: Data) -> str:
    """Return the outcomes of a phase study in a sentence."""
    kinds = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in summary["kinds"].items())
    marks = "Covariances are divided by their trace; small dots are starts, ringed dots ends."
    return f"Outcomes of {summary['starts']} starts: {kinds}. {marks}"


def phase_rows(summary: Data) -> dict[str, str]:
    """Return outcomes, ranks, lines and blow-up times of a phase study as labels and texts."""
    rows = {"outcomes": ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in summary["kinds"].items())}
    if summary["ranks"]:
        rows["ranks"] = ", ".join(f"rank {rank}: {count}" for rank, count in summary["ranks"].items())
    if summary["lines"]:
        rows["lines"] = ", ".join(f"({format_number(line[0])}, {format_number(line[1])})" for line in summary["lines"])
    if summary["blow_up_times"]:
        rows["blow-up"] = " to ".join(f"t = {format_number(time)}" for time in summary["blow_up_times"])
    return rows


def summarise(data: Data) -> tuple[Table, ...]:
    """Return the outcome under each kernel, beside the conclusions of the published procedure."""
    seeds = " and ".join(map(str, data["seeds"]))
    tables = [Table(f"{data['name']} (seeds {seeds})", (), (("claim", data["claim"]),))]
    for row in data["panels"]:
        rows = {"file": row["file"], **phase_rows(row["accurate"])}
        tables.append(Table(KERNELS[row["kernel"]], (), tuple(rows.items())))
    return tuple(tables)


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the paths under every kernel of the case, in the cone and in the disc, beside those of the published procedure."""
    from attractor.plotting import draw_cones

    cases = {
        f"{KERNELS[row['kernel']]} ({row['file']})": ([np.array(way) for way in row["paths"]], row["kinds"])
        for row in data["panels"]
    }
    emulated = {
        f"{KERNELS[row['kernel']]} ({row['file']})": (
            [np.array(way) for way in row["published"]["paths"]],
            row["published"]["kinds"],
        )
        for row in data["panels"]
        if row["published"] is not None
    }
    caption = (
        f"Covariances of trace one at the start, in the cone (height is the trace) and divided by their trace; {data['drawn']} of "
        f"the {data['starts']} published starts. Claimed: {data['claim']}."
    )
    if emulated:
        caption += " Right: the published procedure (Euler's method with projection) from the same starts."
    seeds = " and ".join(map(str, data["seeds"]))
    title = f"{find_case(data['name']).title} (seeds {seeds})"
    draw_cones(cases, path, title=title, caption=caption, others=emulated or None, other_title="published procedure")
    return (path,)


def _entry(case: Case, cost: float) -> Figure:
    source = f"2d_plots.py of {CODE}"
    files = ", ".join(panel.file for panel in case.panels)
    return Figure(
        key=f"gaussian-{case.name}",
        title=case.title,
        question=f"Is it true of the published draws that {case.claim}?",
        source="castin2025unified",
        reference=f"{files} of {source}",
        parameters=(
            Parameter("seeds", case.seeds, "seeds of NumPy's legacy generator for the matrices", source),
            Parameter("grid", case.grid, "starts across the square of covariances of trace one", source, minimum=1),
            Parameter("steps", 100_000, "largest number of steps of the published procedure, if it is smaller there", source, minimum=1),
            Parameter("official_scaling", True, "divide K'Q but not K'K by the root of the dimension (L2), and nothing (Sinkhorn)",
                      f"utils.py of {CODE}"),
            Parameter("emulate", True, "emulate the published procedure"),
            Parameter("follow", 48, "largest number of starts that are followed, spread over the grid", minimum=1),
            Parameter("paths", 48, "largest number of paths that are drawn", minimum=1),
        ),
        unknown=("which panels of the paper the files are: its figures are not in the repository.",),
        cost=cost,
        compute=partial(compute, case),
        draw=draw,
        summarise=summarise,
        verdict=judge,
        compare=compare,
        beside=beside,
        small={"grid": 4 if case.reach == 1.0 else 3, "follow": 4, "paths": 2, "steps": 300},
    )  # fmt: skip


FIGURES = (
    _entry(CASES["collapse"], 20.0),
    _entry(CASES["line"], 16.0),
    _entry(CASES["plane"], 11.0),
    _entry(CASES["two-lines"], 20.0),
    _entry(CASES["divergence"], 35.0),
    _entry(CASES["both"], 37.0),
)
FOUND = dict(zip(CASES, FIGURES, strict=True))
