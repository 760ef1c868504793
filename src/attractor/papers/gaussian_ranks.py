r"""Ranks of limits of random Gaussians [castin2025unified]: the published histograms without their censoring, and a counter-example.

Draws are those of the authors' ``histograms.py``: ``Q = randn(d // 2, d)`` for all dimensions from one seed, K = -Q, V = I or G'G
from a second seed, and starts :math:`\Sigma_0 = GG^\top` from a third seed that begins anew in each dimension. Scores are
divided by :math:`\sqrt d` (under L2 attention the squares of keys are not).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from attractor.errors import AttractorError, InputError
from attractor.laws import Attention
from attractor.meanfield import Limit, find_limit, stationary_residual
from attractor.papers.figure import Beside, Comparison, Data, Figure, Parameter, Settings, Table, Update, Verdict, Work
from attractor.papers.gaussian_cases import CODE, Matrix, published_procedure, slope_of
from attractor.registry import check_name
from attractor.states import Gaussian

VALUES = ("identity", "definite", "generic")
BATCH = 20  # draws at a time; after one that is repeated, later ones of the batch have other starts
CUT = 0.1  # eigenvalues above it count in the published rank


@dataclass(frozen=True)
class Block:
    """A row of published histograms: steps by dimension, stopping rules, and the counts of ranks in the authors' own run."""

    value: str
    steps: tuple[float, ...]
    low: float
    iterations: int
    authors: tuple[dict[str, int], ...] | None = None


BLOCKS = {
    "softmax": (
        Block(
            "identity",
            (0.09, 0.05, 0.02),
            1e-4,
            60_000,
            ({"0": 3, "1": 48, "2": 49}, {"0": 11, "1": 47, "2": 42}, {"1": 5, "2": 54, "3": 41}),
        ),
        Block("definite", (0.09, 0.06, 0.02), 5e-5, 90_000),
    ),
    "l2": (
        Block(
            "identity", (0.09, 0.06, 0.02), 1e-4, 60_000, ({"1": 32, "2": 68}, {"1": 31, "2": 69}, {"2": 46, "3": 54})
        ),
        Block("definite", (0.15, 0.15, 0.15), 5e-5, 50_000),
    ),
}
DIMS, DRAWS = (3, 4, 5), 100
SEEDS = {"softmax": (40, 26, 41), "l2": (40, 27, 41)}


def draw_published(
    kernel: str, value: str, dims: tuple[int, ...], draws: int, seeds: tuple[int, ...]
) -> dict[int, tuple[Matrix, Matrix]]:
    """Return (Q, V) for each dimension, with ``draws`` matrices each, from the seeds of Q and V."""
    source, other = np.random.RandomState(seeds[0]), np.random.RandomState(seeds[1])
    queries = {dim: np.stack([source.randn(dim // 2, dim) for _ in range(draws)]) for dim in dims}
    if value == "identity":
        return {dim: (queries[dim], np.broadcast_to(np.eye(dim), (draws, dim, dim))) for dim in dims}
    roots = {dim: np.stack([other.randn(dim, dim) for _ in range(draws)]) for dim in dims}
    return {dim: (queries[dim], np.swapaxes(roots[dim], -1, -2) @ roots[dim]) for dim in dims}


@dataclass(frozen=True)
class Row:
    """One dimension of one block by the published procedure: the starts that were counted, and their last covariances."""

    starts: Matrix
    final: Matrix
    repeated: int


def run_published(
    kernel: str, query: Matrix, value: Matrix, step: float, low: float, iterations: int, seed: int
) -> Row:
    """Run the published procedure on every draw; where it does not meet its tolerance, it is repeated from the next start.

    Starts are drawn in order, so a repetition shifts those of all later draws.
    """
    draws, dim = len(query), query.shape[-1]
    source = np.random.RandomState(seed)
    starts: list[Matrix] = []
    final, used = np.empty((draws, dim, dim)), np.empty((draws, dim, dim))
    number = repeated = 0
    while number < draws:
        while len(starts) < draws + repeated:
            root = source.randn(dim, dim)
            starts.append(root @ root.T)
        size = min(BATCH, draws - number)
        part = slice(number, number + size)
        chosen = np.stack(starts[number + repeated :][:size])
        slope = slope_of(kernel, (query[part], -query[part], value[part]), dim**-0.5)
        found = published_procedure(slope, chosen, step, low, steps=iterations)
        met = next((index for index, end in enumerate(found.ends) if end != "tolerance"), size)
        final[number : number + met], used[number : number + met] = found.final[:met], chosen[:met]
        number += met
        repeated += met < size
        if repeated > 10_000:
            raise AttractorError(
                f"the published procedure does not meet its tolerance for draw {number} of dimension {dim}"
            )
    return Row(used, final, repeated)


def compute(kernel: str, settings: Settings, work: Work) -> Data:
    """Run the published procedure on all draws, and follow the same draws and starts to their limits."""
    dims, draws, seeds = tuple(settings["dims"]), settings["draws"], tuple(settings["seeds"])
    if not dims or any(dim not in DIMS for dim in dims):
        raise InputError(f"dims must be among {', '.join(map(str, DIMS))}, got {', '.join(map(str, dims)) or 'none'}")
    blocks = []
    total = len(BLOCKS[kernel]) * len(dims) * draws
    for number, block in enumerate(BLOCKS[kernel]):
        matrices = draw_published(kernel, block.value, DIMS, DRAWS, seeds)
        for dim in dims:
            done = (number * len(dims) + dims.index(dim)) * draws
            query, value = (part[:draws] for part in matrices[dim])
            step = block.steps[DIMS.index(dim)]

            def part(
                query: Matrix = query, value: Matrix = value, step: float = step, block: Block = block, done: int = done
            ) -> Data:
                row = run_published(kernel, query, value, step, block.low, block.iterations, seeds[2])
                ours = []
                for index in range(len(query)):
                    ours.append(_limit(kernel, query[index], value[index], row.starts[index]))
                    work(done + index + 1, total)
                ranks = [int((np.linalg.eigvalsh(last) > CUT).sum()) for last in row.final]
                return {
                    "accurate": [one.rank if one.rank is not None else one.kind.replace("_", "-") for one in ours],
                    "published": ranks,
                    "repeated": row.repeated,
                }

            blocks.append({"value": block.value, "dim": dim, **work.keep(f"{block.value} {dim}", part)})
    return {"kernel": kernel, "rows": blocks}


def _limit(kernel: str, query: Matrix, value: Matrix, start: Matrix) -> Limit:
    scale = query.shape[-1] ** -0.5
    if kernel == "l2":
        return find_limit(Attention(scale * query, -query, value, kernel="l2"), start)  # type: ignore[arg-type]
    return find_limit(Attention(query, -query, value, scale=scale), start)  # type: ignore[arg-type]


def _censored(row: Data) -> Counter[str]:
    """Return the published histogram of a row: ranks above (d + 1) // 2 are left out."""
    return Counter(str(rank) for rank in row["published"] if rank <= (row["dim"] + 1) // 2)


def histograms(data: Data) -> dict[str, dict[str, dict[str, int]]]:
    """Return for each dimension and value the counts of every series."""
    found = {}
    for row in data["rows"]:
        left_out = len(row["published"]) - sum(_censored(row).values())
        published = dict(_censored(row)) | ({"left out": left_out} if left_out else {})
        found[f"d = {row['dim']}, V {row['value']}"] = {
            "accurate": dict(Counter(str(rank) for rank in row["accurate"])),
            "published procedure": published,
        }
    return found


def compare(data: Data) -> tuple[Comparison, ...]:
    """Compare the emulated procedure with the authors' own run."""
    kernel, rows = data["kernel"], []
    settings = data["settings"]
    if settings["draws"] != DRAWS or tuple(settings["seeds"]) != SEEDS[kernel]:
        return ()
    for row in data["rows"]:
        block = next(one for one in BLOCKS[kernel] if one.value == row["value"])
        if block.authors is None:
            continue
        theirs = block.authors[DIMS.index(row["dim"])]
        ours = _censored(row)
        mean = lambda counts: sum(int(rank) * count for rank, count in counts.items()) / max(1, sum(counts.values()))  # noqa: E731
        name = f"d = {row['dim']}, V {row['value']}, emulated"
        source = f"authors' run, {CODE}"
        rows.append(Comparison(f"{name}: mean rank", mean(ours), mean(theirs), 1e-12, source))
        rows.append(Comparison(f"{name}: draws counted", sum(ours.values()), sum(theirs.values()), 0.0, source))
    return tuple(rows)


def beside(data: Data) -> tuple[Beside, ...]:
    """Return the counts of ranks beside the published ones."""
    return tuple(
        Beside(name, format_counts(series["accurate"]), format_counts(series["published procedure"]))
        for name, series in histograms(data).items()
    )


def judge(data: Data) -> Verdict:
    """Say in how many draws the published procedure finds another rank, and what it leaves out."""
    pairs = [
        (ours, theirs) for row in data["rows"] for ours, theirs in zip(row["accurate"], row["published"], strict=True)
    ]
    wrong = sum(ours != theirs for ours, theirs in pairs)
    dropped = sum(rank > (row["dim"] + 1) // 2 for row in data["rows"] for rank in row["published"])
    above = sum(
        isinstance(rank, int) and rank > row["dim"] - row["dim"] // 2
        for row in data["rows"]
        for rank in row["accurate"]
    )
    repeated = sum(row["repeated"] for row in data["rows"])
    reason = (
        f"Of {len(pairs)} draws the published procedure counts another rank than the limit has in {wrong}; it leaves out {dropped} "
        f"draws with a rank above (d + 1) // 2, and repeated {repeated} draws from another start. Accurate limits have a rank above "
        f"d - d // 2, the dimension of the kernel of K'Q + Q'K, in {above}."
    )
    if not wrong and not dropped:
        return Verdict("reproduced", reason)
    causes = (
        "An absolute cut at 0.1 loses small eigenvalues that stay and keeps those that fall only like 1/t, and large steps with a "
        "projection remove directions."
    )
    return Verdict("reproduced with a correction" if above == 0 else "differs", f"{reason} {causes}")


def summarise(data: Data) -> tuple[Table, ...]:
    """Return the counts of ranks in each dimension."""
    rows = [
        (name, format_counts(series["accurate"]), format_counts(series["published procedure"]))
        for name, series in histograms(data).items()
    ]
    return (Table(f"{data['kernel']}: ranks of limits", ("draws", "accurate", "published procedure"), tuple(rows)),)


def format_counts(counts: dict[str, int]) -> str:
    """Return counts of ranks in words."""
    ordered = sorted(counts.items(), key=lambda item: (not item[0].isdigit(), item[0]))
    return ", ".join(f"{'rank ' if label.isdigit() else ''}{label}: {count}" for label, count in ordered)


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the histograms."""
    from attractor.plotting import draw_counts

    settings = data["settings"]
    title = f"Ranks of limits under {data['kernel']} attention"
    caption = (
        f"{settings['draws']} draws in each dimension, Q from seed {settings['seeds'][0]}, V from seed {settings['seeds'][1]} (definite) "
        f"or I (identity), starts from seed {settings['seeds'][2]}. The published procedure counts eigenvalues above {CUT:g} after Euler "
        "steps, and leaves out ranks above (d + 1) // 2."
    )
    draw_counts(histograms(data), path, title=title, caption=caption)
    return (path,)


def _entry(kernel: str, name: str, file: str, cost: float) -> Figure:
    source = f"histograms.py of {CODE}"
    return Figure(
        key=f"gaussian-ranks-{kernel}",
        title=f"Ranks of limits of random Gaussians, {name}",
        question=f"Which ranks do limits of random Gaussians have under {name} attention, with and without the published censoring?",
        source="castin2025unified",
        reference=f"{file} of {source}",
        parameters=(
            Parameter("seeds", SEEDS[kernel], "seeds of NumPy's legacy generator for Q, for V, and for starts", source),
            Parameter("dims", DIMS, "dimensions, among 3, 4 and 5", source),
            Parameter("draws", DRAWS, "draws in each dimension, the first of the published ones", source, minimum=1),
        ),
        unknown=("which panels of the paper the files are: its figures are not in the repository.",),
        cost=cost,
        compute=partial(compute, kernel),
        draw=draw,
        summarise=summarise,
        verdict=judge,
        compare=compare,
        beside=beside,
        small={"dims": (3,), "draws": 2},
    )


FIGURES = (
    _entry("softmax", "softmax", "histograms_trad.pdf", 120.0),
    _entry("l2", "L2", "histograms_L2.pdf", 150.0),
)


def draw_systems(dim: int, count: int, value: str, seed: int, keys: str = "opposite") -> list[tuple[np.ndarray, ...]]:
    """Return (Q, K, V, covariance) of each draw of ``count_ranks``, all from one legacy generator."""
    check_name(value, VALUES, "value")
    source = np.random.RandomState(seed)
    found = []
    for _ in range(count):
        query = source.randn(max(dim // 2, 1), dim)
        key = -query if keys == "opposite" else source.randn(*query.shape)
        root = np.eye(dim) if value == "identity" else source.randn(dim, dim)
        matrix = root if value in ("identity", "generic") else root.T @ root
        start = source.randn(dim, dim)
        found.append((query, key, matrix, start @ start.T))
    return found


def count_ranks(
    kernel: str, value: str, dims: list[int], draws: int, seed: int, emulate: bool, progress: Update | None = None
) -> Data:
    """Count the ranks of limits of random systems of any seed, and those that the published procedure (step 0.01) finds."""
    if not dims or min(dims) < 2 or max(dims) > 12:
        raise InputError(f"dims must be dimensions from 2 to 12, got {', '.join(map(str, dims))}")
    accurate: dict[str, dict[str, int]] = {}
    emulated: dict[str, dict[str, int]] = {}
    for done, dim in enumerate(dims):
        ours, systems = Counter[str](), draw_systems(dim, draws, value, seed)
        for number, (query, key, matrix, covariance) in enumerate(systems):
            law = Attention(query, key, matrix, kernel=kernel, scale=dim**-0.5)  # type: ignore[arg-type]
            found = find_limit(law, covariance)
            ours[str(found.rank) if found.rank is not None else found.kind.replace("_", "-")] += 1
            if progress is not None:
                progress(done * draws + number + 1, draws * len(dims))
        accurate[str(dim)] = dict(sorted(ours.items()))
        emulated[str(dim)] = _emulate(kernel, systems) if emulate else {}
    expected = {str(dim): dim - max(dim // 2, 1) for dim in dims}
    head = {"kernel": kernel, "value": value, "draws": draws, "seed": seed}
    return {**head, "accurate": accurate, "emulated_published_procedure": emulated, "dim_ker_S": expected}


def _emulate(kernel: str, systems: list[tuple[np.ndarray, ...]]) -> dict[str, int]:
    query, key, value, starts = (np.stack(part) for part in zip(*systems, strict=True))
    dim = query.shape[-1]
    scale = dim**-0.5
    if kernel == "l2":
        query, key, scale = scale**0.5 * query, scale**0.5 * key, 1.0
    found = published_procedure(slope_of(kernel, (query, key, value), scale), starts, 0.01, 1e-4, steps=2000)
    labels = Counter[str]()
    for last, end in zip(found.final, found.ends, strict=True):
        rank = int((np.linalg.eigvalsh(last) > CUT).sum())
        labels["diverged" if end == "cap" else "dropped" if rank > (dim + 1) // 2 else str(rank)] += 1
    return dict(sorted(labels.items()))


def rank_histograms(data: Data) -> dict[str, dict[str, dict[str, int]]]:
    """Return for each dimension the counts of every series of ``count_ranks``, for a figure."""
    emulated = data["emulated_published_procedure"]
    return {
        f"d = {dim}": {
            "accurate": counts,
            **({"published procedure, emulated": emulated[dim]} if emulated[dim] else {}),
        }
        for dim, counts in data["accurate"].items()
    }


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
