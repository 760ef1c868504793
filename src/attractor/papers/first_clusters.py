"""arXiv 2410.23228, 2510.20094 and 2412.14813: numbers of first clusters of many tokens, and thresholds of noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attractor.laws import Attention
from attractor.meanfield import cluster_count, critical_noise, stationary_branch, tricritical_beta
from attractor.papers.figure import (
    SEED,
    Beside,
    Comparison,
    Data,
    Figure,
    Parameter,
    Settings,
    Table,
    Verdict,
    Work,
    draw_captioned,
    make_tokens,
)
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere

Array = NDArray[np.float64]


def mode_rates(beta: float, most: int) -> Array:
    """Return gamma_k = k^2 I_k(beta) / (beta I_0(beta)), k = 1, ..., by SciPy."""
    from scipy.special import ive

    k = np.arange(1, most + 1)
    return k**2 * ive(k, beta) / (beta * ive(0, beta))


def count_peaks(angles: Array, bins: int = 720, width: float = 0.05, least: float = 1.5) -> int:
    """Return the number of maxima of a histogram of angles, smoothed by a Gaussian, above ``least`` times the mean."""
    counts = np.histogram(np.mod(angles, 2 * np.pi), bins, (0, 2 * np.pi))[0].astype(float)
    waves = np.fft.rfft(counts) * np.exp(-0.5 * (np.arange(bins // 2 + 1) * width) ** 2)
    smooth = np.fft.irfft(waves, bins)
    peak = (smooth > np.roll(smooth, 1)) & (smooth >= np.roll(smooth, -1)) & (smooth > least * smooth.mean())
    return int(peak.sum())


def compute_counts(settings: Settings, work: Work) -> Data:
    """Run uniform tokens for every beta until their density has peaks, and count these."""
    rows = []
    for number, beta in enumerate(settings["betas"]):
        work(number, len(settings["betas"]))
        rates = mode_rates(beta, int(3 * beta**0.5) + 10)
        n = settings["tokens"]
        # deviations of size n^-1/2 grow to order one by log(n)/2 over the largest rate
        until = settings["times"] * 0.5 * np.log(n) / rates.max()

        def count(beta: float = beta, until: float = until, n: int = n) -> list[int]:
            found = []
            for seed in range(settings["starts"]):
                angles = np.random.default_rng([settings["seed"], seed]).uniform(0, 2 * np.pi, n)
                start = make_tokens(np.stack((np.cos(angles), np.sin(angles)), axis=1))
                options = {"rtol": 1e-5, "atol": 1e-7, "merge": False, "stop": (), "save": 1}
                last = (
                    flow(Attention.isotropic(2, beta), start, space=Sphere(), until=float(until), **options)
                    .points[-1]
                    .numpy()
                )
                found.append(count_peaks(np.arctan2(last[:, 1], last[:, 0]), width=0.4 / beta**0.5))
            return found

        counts = work.keep(f"beta {beta:g}", count)
        rows.append(
            {
                "beta": beta,
                "counts": counts,
                "predicted": cluster_count(beta),
                "scipy": 1 + int(rates.argmax()),
                "time": until,
                "rates": rates,
            }
        )
    return {"rows": rows}


def draw_counts(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw counted clusters and the fastest mode against beta, and the rates of the modes."""
    rows = data["rows"]
    betas = [row["beta"] for row in rows]
    counts = (
        Curve(
            [row["beta"] for row in rows for _ in row["counts"]],
            [one for row in rows for one in row["counts"]],
            "counted",
            dots=True,
        ),
        Curve(betas, [row["predicted"] for row in rows], "fastest mode", dashed=True),
    )
    rates = tuple(
        Curve(range(1, 1 + len(row["rates"])), row["rates"], f"beta = {row['beta']:g}")
        for row in rows[:: max(1, len(rows) // 5)]
    )
    panels = (Panel(counts, "beta", "clusters"), Panel(rates, "mode k", "rate gamma_k"))
    caption = f"{data['settings']['tokens']:,} tokens, uniform on the circle at first; peaks of their density."
    return draw_captioned(data, panels, caption, path)


def signed(row: Data) -> str:
    """Return the differences of the counts from the prediction."""
    return "/".join(f"{one - row['predicted']:+d}" for one in row["counts"])


COUNTS = Figure(
    key="cluster-counts",
    title="Numbers of first clusters",
    question="How many clusters do many uniform tokens form first?",
    source="bruno2025emergence",
    reference="figures of the numbers of clusters",
    parameters=(
        SEED,
        Parameter("tokens", 20000, "tokens on the circle", "the paper", 100),
        Parameter("betas", (2.0, 5.0, 10.0, 20.0, 40.0), "inverse temperatures", minimum=0.5),
        Parameter("starts", 4, "starts of each beta", minimum=1),
        Parameter(
            "times", 1.3, "end, in units of the time in which the fastest mode grows from n^-1/2 to one", minimum=0.1
        ),
    ),
    unknown=("Starts, seeds, temperatures and times of the printed figures, and the authors' way to count.",),
    cost=6.0,
    compute=compute_counts,
    draw=draw_counts,
    summarise=lambda data: (
        Table(
            "Clusters",
            ("beta", "counted", "fastest mode", "time"),
            tuple(
                (f"{row['beta']:g}", ", ".join(map(str, row["counts"])), str(row["predicted"]), f"{row['time']:.3g}")
                for row in data["rows"]
            ),
        ),
    ),
    verdict=lambda data: Verdict(
        "reproduced"
        if all(abs(one - row["predicted"]) <= 2 for row in data["rows"] for one in row["counts"])
        else "differs",
        "Counted clusters minus the fastest mode k of gamma_k = k^2 I_k / (beta I_0): "
        + ", ".join(f"{signed(row)} (beta = {row['beta']:g})" for row in data["rows"])
        + ". Random starts excite all modes, so that counts scatter around the fastest one.",
    ),
    compare=lambda data: tuple(
        Comparison(f"fastest mode, beta = {row['beta']:g}", row["predicted"], row["scipy"], 0, "scipy.special.ive")
        for row in data["rows"]
    ),
    small={"tokens": 500, "betas": (5.0,), "starts": 1},
)


def compute_thresholds(settings: Settings, work: Work) -> Data:
    """Return critical noise and tricritical temperatures, with SciPy's Bessel functions, and branches of ordered states."""
    from scipy.optimize import brentq
    from scipy.special import iv

    rows, branches = [], []
    for dim in settings["dims"]:

        def excess(beta: float, dim: int = dim) -> float:
            return float(iv(dim / 2 + 1, beta) / iv(dim / 2, beta)) - 1.0 / dim

        rows.append(
            {
                "dim": dim,
                "ours": tricritical_beta(dim),
                "scipy": float(brentq(excess, 1e-3, 50.0 * dim, xtol=1e-12)),  # type: ignore[arg-type]
            }
        )
    betas = settings["betas"]
    for number, beta in enumerate(betas):
        work(number, len(betas))
        branch = stationary_branch(beta, "exponential")
        critical = critical_noise(beta, "exponential")
        noises, order = np.array(branch.noise, dtype=float), np.array(branch.amplitude, dtype=float)
        branches.append(
            {
                "beta": beta,
                "noise": (noises / critical).round(7),
                "order": order,
                "fold": float(noises.max() / critical),
                "critical": critical,
                "scipy": float(iv(1, beta) / beta),
            }
        )
    return {"rows": rows, "branches": branches}


def draw_thresholds(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the branches, and the tricritical temperature against the dimension."""
    curves = tuple(Curve(row["noise"], row["order"], f"beta = {row['beta']:g}") for row in data["branches"])
    points = (Curve([row["dim"] for row in data["rows"]], [row["ours"] for row in data["rows"]], dots=True),)
    panels = (
        Panel(curves, "noise / critical noise", "mean cosine"),
        Panel(points, "dimension", "beta beyond which the onset is a jump"),
    )
    caption = "Stationary densities of the exponential kernel on the circle, and the beta from which order begins with a jump."
    return draw_captioned(data, panels, caption, path)


THRESHOLDS = Figure(
    key="noise-thresholds",
    title="Thresholds of noise: continuous and discontinuous",
    question="At which noise does the uniform density lose stability, and does order begin with a jump?",
    source="balasubramanian2025structure",
    reference="statements on the noisy transformer; 2412.14813 in other dimensions",
    parameters=(
        Parameter("dims", (2, 3, 4, 8), "dimensions", minimum=2),
        Parameter("betas", (1.0, 2.0, 3.0, 4.0), "inverse temperatures of the branches", minimum=0.1),
    ),
    unknown=(
        "The parameters of the printed bifurcation diagrams of 2510.20094 and 2412.14813, of which only abstracts could be read.",
    ),
    cost=1.0,
    compute=compute_thresholds,
    draw=draw_thresholds,
    summarise=lambda data: (
        Table(
            "Branches of the exponential kernel on the circle",
            ("beta", "critical noise", "largest noise of the branch / critical"),
            tuple((f"{row['beta']:g}", f"{row['critical']:.8g}", f"{row['fold']:.6f}") for row in data["branches"]),
        ),
        Table(
            "Discontinuous beyond beta",
            ("dimension", "beta"),
            tuple((str(row["dim"]), f"{row['ours']:.8g}") for row in data["rows"]),
        ),
    ),
    verdict=lambda data: Verdict(
        "reproduced"
        if all((row["fold"] > 1 + 1e-4) == (row["beta"] > data["rows"][0]["ours"]) for row in data["branches"])
        else "differs",
        f"The onset of order turns from continuous to a jump at beta = {data['rows'][0]['ours']:.6g} (d = {data['rows'][0]['dim']}): "
        "branches reach beyond critical noise exactly for larger beta. This is the exponential kernel; softmax has continuous transitions.",
    ),
    compare=lambda data: (
        *(
            Comparison(
                f"tricritical beta, d = {row['dim']}",
                row["ours"],
                row["scipy"],
                1e-8,
                "scipy.special.iv, scipy.optimize.brentq",
            )
            for row in data["rows"]
        ),
        *(
            Comparison(
                f"critical noise, beta = {row['beta']:g}", row["critical"], row["scipy"], 1e-12, "scipy.special.iv"
            )
            for row in data["branches"]
        ),
    ),
    beside=lambda data: (
        Beside(
            "tricritical beta on the circle",
            f"{data['rows'][0]['ours']:.10g}",
            "a sharp transition, no number in the abstract",
        ),
    ),
    small={"dims": (2, 3), "betas": (1.0, 4.0)},
)

FIGURES = (COUNTS, THRESHOLDS)
