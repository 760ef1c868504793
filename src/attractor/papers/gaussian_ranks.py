r"""Histograms of the rank of limits in dimensions three to five [castin2025unified], with and without the published censoring.

Draws: ``Q = randn(d // 2, d)``, K = -Q, V = I or G'G, :math:`\Sigma_0 = GG^\top`, all Gaussian, from one legacy generator for each
dimension, in this order; the seed is not in the description, so it is an argument. Scores are divided by :math:`\sqrt d`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from attractor.errors import InputError
from attractor.laws import Attention
from attractor.meanfield import find_limit
from attractor.papers.figure import SEED, Data, Figure, Parameter, Settings, Table, Update, Verdict
from attractor.papers.gaussian_cases import published_procedure
from attractor.registry import check_name

VALUES = ("identity", "definite", "generic")


def draw_systems(dim: int, count: int, value: str, seed: int, keys: str = "opposite") -> list[tuple[np.ndarray, ...]]:
    """Return (Q, K, V, covariance) of each draw."""
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


def compute(settings: Settings, progress: Update) -> Data:
    """Count the ranks of limits in each dimension, by an accurate integrator and by the emulated published procedure."""
    kernel, value, dims = settings["kernel"], settings["value"], settings["dims"]
    count, seed, emulate = settings["draws"], settings["seed"], settings["emulate"]
    if not dims or min(dims) < 2 or max(dims) > 12:
        raise InputError(f"dims must be dimensions from 2 to 12, got {', '.join(map(str, dims))}")
    accurate: dict[str, dict[str, int]] = {}
    emulated: dict[str, dict[str, int]] = {}
    done = 0
    for dim in dims:
        ours, theirs = Counter[str](), Counter[str]()
        for query, key, matrix, covariance in draw_systems(dim, count, value, seed):
            law = Attention(query, key, matrix, kernel=kernel, scale=dim**-0.5)  # type: ignore[arg-type]
            found = find_limit(law, covariance)
            ours[str(found.rank) if found.rank is not None else found.kind.replace("_", "-")] += 1
            if emulate:
                theirs[_published_rank(law, covariance)] += 1
            done += 1
            progress(done, count * len(dims))
        accurate[str(dim)], emulated[str(dim)] = dict(sorted(ours.items())), dict(sorted(theirs.items()))
    expected = {str(dim): dim - max(dim // 2, 1) for dim in dims}
    head = {"kernel": kernel, "value": value, "draws": count, "seed": seed}
    return {**head, "accurate": accurate, "emulated_published_procedure": emulated, "dim_ker_S": expected}


def rank_histograms(data: Data) -> dict[str, dict[str, dict[str, int]]]:
    """Return for each dimension the counts of every series, for a figure."""
    return {
        f"d = {dim}": {
            "accurate": counts,
            **(
                {"published procedure, emulated": data["emulated_published_procedure"][dim]}
                if data["settings"]["emulate"]
                else {}
            ),
        }
        for dim, counts in data["accurate"].items()
    }


def describe_ranks(data: Data) -> tuple[str, str]:
    """Return title and caption of the figure."""
    title = f"Ranks of limits under {data['kernel']} attention, V {data['value']}"
    return title, f"{data['draws']} draws in each dimension, seed {data['seed']}."


def summarise(data: Data) -> tuple[Table, ...]:
    """Return the counts of ranks in each dimension."""
    tables = []
    for dim, counts in data["accurate"].items():
        rows = [("accurate", _format_counts(counts))]
        if data["settings"]["emulate"]:
            emulated = _format_counts(data["emulated_published_procedure"][dim])
            dropped = f"published procedure; dropped: rank above {(int(dim) + 1) // 2}"
            rows.append(("emulated", f"{emulated} ({dropped})"))
        rows.append(("dim ker S", str(data["dim_ker_S"][dim])))
        title = f"{data['kernel']}, V {data['value']}, d = {dim}, {data['draws']} draws"
        tables.append(Table(title, (), tuple(rows)))
    return tuple(tables)


def _format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{'rank ' if label.isdigit() else ''}{label}: {count}" for label, count in counts.items())


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the histograms."""
    from attractor.plotting import draw_counts

    title, caption = describe_ranks(data)
    draw_counts(rank_histograms(data), path, title=title, caption=caption)
    return (path,)


def _published_rank(law: Attention, covariance: np.ndarray) -> str:
    found = published_procedure(law, covariance, steps=2000)
    return "diverged" if found.diverged else "dropped" if found.censored else str(found.rank)


FIGURE = Figure(
    key="gaussian-ranks",
    title="Ranks of limits of random Gaussians",
    question="Which ranks do limits of random Gaussians have, with and without the published censoring?",
    source="castin2025unified",
    parameters=(
        SEED,
        Parameter("kernel", "softmax", "the kernel: softmax, l2 or sinkhorn"),
        Parameter("value", "identity", f"the value V: {', '.join(VALUES)}"),
        Parameter("dims", (3, 4, 5), "dimensions, from 2 to 12", "the published histograms"),
        Parameter("draws", 100, "draws in each dimension", "the published histograms", minimum=1),
        Parameter("emulate", True, "emulate the published procedure"),
    ),
    cost=120.0,
    compute=compute,
    draw=draw,
    summarise=summarise,
    verdict=lambda data: Verdict("no published result", "Not judged yet."),
    small={"dims": (3,), "draws": 2, "emulate": False},
)
