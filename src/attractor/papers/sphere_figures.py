"""arXiv 2312.10794: runs on the sphere, phase diagrams of clustering, the curve of equiangular tokens, and cosines of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attractor.laws import Attention
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
    make_law,
)
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Equiangular, Tokens

Array = NDArray[np.float64]
CODE = "borjanG/2023-transformers-rotf 538ba83"
SCIPY = "scipy.integrate.solve_ivp, DOP853"
EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11, "merge": False, "stop": ()}


def sphere_velocity(points: Array, beta: float) -> Array:
    """The velocity of tokens on the unit sphere under Q'K = beta I, V = I."""
    scores = beta * points @ points.T
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    pull = (weights / weights.sum(-1, keepdims=True)) @ points
    return pull - (pull * points).sum(-1, keepdims=True) * points


def solve_on_sphere(start: Array, beta: float, until: float) -> Array:
    """Return the tokens at ``until`` by SciPy's DOP853, in ambient coordinates."""
    from scipy.integrate import solve_ivp

    def velocity(_: float, flat: Array) -> Array:
        points = flat.reshape(start.shape)
        return sphere_velocity(points / np.linalg.norm(points, axis=-1, keepdims=True), beta).ravel()

    found = solve_ivp(velocity, (0.0, until), start.ravel(), method="DOP853", rtol=1e-10, atol=1e-12).y[:, -1]
    points = found.reshape(start.shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def publish_layers(start: Array, beta: float, until: float, step: float) -> Array:
    """Return the tokens at ``until`` of the published scheme: x + step * attention, divided by its length."""
    points = start.copy()
    for _ in range(round(until / step)):
        scores = beta * points @ points.T
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        points = points + step * (weights / weights.sum(-1, keepdims=True)) @ points
        points /= np.linalg.norm(points, axis=-1, keepdims=True)
    return points


def count_clusters(points: Array, cosine: float = 0.999) -> int:
    """Return the number of connected groups of tokens with cosines above a threshold."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    return int(connected_components(csr_array(points @ points.T > cosine))[0])


def compute_runs(settings: Settings, work: Work) -> Data:
    """Integrate one start under several temperatures."""
    rng, n = np.random.default_rng(settings["seed"]), settings["tokens"]
    start = rng.standard_normal((n, 3))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    until, step, rows = settings["until"], settings["step"], []
    times = [0.0, until / 6, until / 3, until]
    for number, beta in enumerate(settings["betas"]):
        work(number, len(settings["betas"]))
        law = Attention.isotropic(3, beta)
        run = flow(law, Tokens(start), space=Sphere(), save=times, **EXACT)
        layers = flow(
            law, Tokens(start), space=Sphere(), until=until, save=1, method="layers", step=step, stop=(), merge=False
        )
        published, last = publish_layers(start, beta, until, step), run.points[-1].numpy()
        rows.append(
            {
                "beta": beta,
                "points": run.points.numpy().round(5),
                "clusters": [count_clusters(part) for part in run.points.numpy()],
                "published_clusters": count_clusters(published),
                "layers": float(np.abs(layers.points[-1].numpy() - published).max()),
                "scipy": float(np.abs(solve_on_sphere(start, beta, until) - last).max()),
                "apart": float(np.linalg.norm(published - last, axis=-1).max()),
            }
        )
    return {"times": times, "rows": rows}


def draw_runs(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the tokens seen along the third axis; open discs would be at the back, so only z > 0 is in colour."""
    panels = []
    for row in data["rows"]:
        for time, points, count in zip(data["times"], np.array(row["points"]), row["clusters"], strict=True):
            front = points[:, 2] >= 0
            curves = (
                Curve(points[~front, 0], points[~front, 1], dots=True, fine=True, colour=5),
                Curve(points[front, 0], points[front, 1], dots=True, colour=0),
            )
            panels.append(
                Panel(curves, "x1", "x2", f"beta = {row['beta']:g}, t = {time:g}: {count} clusters", circle=True)
            )
    caption = "Tokens on the unit sphere, seen along the third axis; pale: on the far side. Clusters are joined by cosines above 0.999."
    return draw_captioned(data, tuple(panels), caption, path)


RUNS = Figure(
    key="sphere-runs",
    title="Tokens on the sphere gather in clusters",
    question="How do tokens on the sphere cluster along time?",
    source="geshkovski2023mathematical",
    reference=f"figures of the sphere; sphere.py of {CODE}",
    parameters=(
        SEED,
        Parameter("tokens", 64, "tokens, uniform on the sphere", f"sphere.py:10, 22-23 of {CODE}", 2),
        Parameter("until", 15.0, "final time", "sphere.py:11", 0.1),
        Parameter("step", 0.1, "step of the published scheme", "sphere.py:12", 1e-4),
        Parameter("betas", (1.0, 9.0), "inverse temperatures; the first is that of the code", "sphere.py:15", 0.0),
    ),
    unknown=(
        "The seed of the starts: the code draws them without one.",
        "The temperatures of the printed figures beside beta = 1.",
    ),
    cost=1.0,
    compute=compute_runs,
    draw=draw_runs,
    summarise=lambda data: (
        Table(
            "Clusters",
            ("beta", *(f"t = {time:g}" for time in data["times"]), "published scheme, at the end"),
            tuple(
                (f"{row['beta']:g}", *map(str, row["clusters"]), str(row["published_clusters"])) for row in data["rows"]
            ),
        ),
    ),
    verdict=lambda data: Verdict(
        "reproduced"
        if all(row["clusters"][-1] == row["published_clusters"] < row["clusters"][0] for row in data["rows"])
        else "differs",
        "Tokens gather in "
        + ", ".join(f"{row['clusters'][-1]} clusters (beta = {row['beta']:g})" for row in data["rows"])
        + ". The published scheme is a layer map with the step as residual scale; its tokens are up to "
        + ", ".join(f"{row['apart']:.2g}" for row in data["rows"])
        + " from those of continuous time at the end.",
    ),
    compare=lambda data: tuple(
        comparison
        for row in data["rows"]
        for comparison in (
            Comparison(
                f"difference of tokens at the end, beta = {row['beta']:g}",
                row["scipy"],
                0.0,
                1e-6,
                SCIPY,
            ),
            Comparison(
                f"layers against the published scheme, beta = {row['beta']:g}",
                row["layers"],
                0.0,
                1e-9,
                "the scheme in NumPy",
            ),
        )
    ),
    beside=lambda data: tuple(
        Beside(f"clusters at the end, beta = {row['beta']:g}", str(row["clusters"][-1]), str(row["published_clusters"]))
        for row in data["rows"]
    ),
    small={"tokens": 12, "until": 6.0},
)


def draw_goe(dim: int, seed: int) -> Array:
    """Draw a symmetric Gaussian matrix with variance one off the diagonal and two on it."""
    matrix = np.random.default_rng([seed, 17]).standard_normal((dim, dim))
    return (matrix + matrix.T) / 2**0.5


def pair_shares(beta: float, dim: int, goe: bool, settings: Settings, times: list[float]) -> list[float]:
    """Return the mean share of pairs that have met along time: identity matrices, or W = GOE and V = W / sqrt(d + 1) for all starts."""
    eye = np.eye(dim)
    weights = draw_goe(dim, 0) if goe else eye
    law = make_law(beta * eye, weights, weights / (dim + 1) ** 0.5 if goe else eye)
    start = Tokens.uniform(settings["tokens"], dim, seed=settings["seed"], ensemble=settings["starts"])
    run = flow(law, start, space=Sphere(), save=times, observe=["pair_fraction"], rtol=1e-7, atol=1e-9)
    return run.observe("pair_fraction").double().mean(-1).tolist()


def redraw_layers(dim: int, beta: float, settings: Settings, times: list[float]) -> list[float]:
    """Return pair fractions of the published scheme with W = GOE and V = W / sqrt(d + 1) redrawn after every unit of time."""
    rng = np.random.default_rng([settings["seed"], dim, int(1000 * beta)])
    n, starts, step = settings["tokens"], settings["starts"], settings["step"]
    points = rng.standard_normal((starts, n, dim))
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    found, weights = [], np.empty((0,))
    for number in range(round(times[-1] / step) + 1):
        if number % round(1.0 / step) == 0:
            weights = rng.standard_normal((starts, dim, dim))
            weights = (weights + weights.swapaxes(-1, -2)) / 2**0.5
        if any(abs(number * step - time) < step / 2 for time in times):
            found.append(float(((points @ points.swapaxes(-1, -2) > 0.999).sum((-2, -1)) - n).mean() / (n * (n - 1))))
        scores = beta * (points @ weights) @ points.swapaxes(-1, -2)
        pull = np.exp(scores - scores.max(-1, keepdims=True))
        pull = (pull / pull.sum(-1, keepdims=True)) @ points @ weights / (dim + 1) ** 0.5
        points = points + step * pull
        points /= np.linalg.norm(points, axis=-1, keepdims=True)
    return found


def compute_diagrams(settings: Settings, work: Work) -> Data:
    """Sweep beta for every dimension; the share of pairs with a cosine above 0.999 along time."""
    betas = np.linspace(0.1, 9.0, settings["betas"]).tolist()
    times = np.linspace(0.0, settings["until"], 31).tolist()
    maps: dict[str, Any] = {}
    plans = [*((f"d = {dim}", dim, False) for dim in settings["dims"]), ("GOE, d = 8", 8, True)]
    for number, (name, dim, goe) in enumerate(plans):
        work(number, len(plans) + 1)
        shares = [
            work.keep(f"{name} {beta:g}", lambda b=beta, d=dim, g=goe: pair_shares(b, d, g, settings, times))
            for beta in betas
        ]
        maps[name] = shares
    work(len(plans), len(plans) + 1)
    maps["redrawn GOE, d = 8"] = work.keep(
        "redrawn", lambda: [redraw_layers(8, beta, settings, times) for beta in betas]
    )
    curve = [equiangular_time(beta, settings["tokens"]) for beta in betas]
    cosine = cosine_at(betas[0], settings["tokens"], curve[0])
    return {"betas": betas, "times": times, "maps": maps, "curve": curve, "cosine": cosine}


def equiangular_time(beta: float, n: int, end: float = 0.999) -> float:
    """Return the time that orthogonal equiangular tokens take to the cosine ``end``, by quadrature of the equation of the paper."""
    from scipy.integrate import quad

    def pace(rho: float) -> float:
        return (np.exp(beta * (1.0 - rho)) + n - 1.0) / (2.0 * (1.0 - rho) * ((n - 1.0) * rho + 1.0))

    return float(quad(pace, 0.0, end, limit=400, epsabs=0.0, epsrel=1e-11)[0])


def draw_diagrams(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw a map for each dimension, with the curve of equiangular tokens."""
    betas, times = data["betas"], data["times"]
    half = (betas[-1] - betas[0]) / (len(betas) - 1) / 2
    wide = (times[1] - times[0]) / 2
    extent = (times[0] - wide, times[-1] + wide, betas[0] - half, betas[-1] + half)
    panels = []
    for name, values in data["maps"].items():
        kept = [(time, beta) for time, beta in zip(data["curve"], betas, strict=True) if time <= times[-1]]
        curve = () if "GOE" in name else (Curve([time for time, _ in kept], [beta for _, beta in kept], dashed=True),)
        panels.append(Panel(curve, "time", "beta", name, matrix=values, extent=extent, level=0.5))
    caption = (
        "Share of pairs of tokens with a cosine above 0.999, mean over starts; white: one half; dashed: the time at which equiangular "
        "tokens reach this cosine. GOE: a symmetric Gaussian W with V = W / sqrt(d + 1); redrawn: new matrices after every unit of time."
    )
    return draw_captioned(data, tuple(panels), caption, path)


def crossing(data: Data, name: str) -> float:
    """Return the largest beta for which half of the pairs have met at the end; nan if there is none."""
    met = [beta for beta, row in zip(data["betas"], data["maps"][name], strict=True) if row[-1] >= 0.5]
    return max(met, default=float("nan"))


DIAGRAMS = Figure(
    key="pair-phase-diagram",
    title="Phase diagrams of the probability that two tokens have met",
    question="For which temperatures and times have two tokens met, by dimension?",
    source="geshkovski2023mathematical",
    reference=f"phase diagrams; phase-diagrams.py of {CODE}",
    parameters=(
        SEED,
        Parameter("tokens", 32, "tokens", f"phase-diagrams.py:452 of {CODE}", 2),
        Parameter(
            "dims",
            (2, 8, 32, 128),
            "dimensions; the default of the code is 2, the others are those of the paper",
            "phase-diagrams.py:451",
            2,
        ),
        Parameter("starts", 24, "starts of each cell; the code has 2048", "phase-diagrams.py:453", 1),
        Parameter("betas", 24, "values of beta from 0.1 to 9; the code has 90", "phase-diagrams.py:454-456", 2),
        Parameter("until", 30.0, "final time", "phase-diagrams.py:476", 0.1),
        Parameter(
            "step", 0.1, "step of the published scheme, used for redrawn matrices", "phase-diagrams.py:461", 1e-3
        ),
    ),
    unknown=(
        "Seeds: the code draws without one.",
        "The period of redrawing in the printed figures; one unit of time is used.",
    ),
    cost=25.0,
    compute=compute_diagrams,
    draw=draw_diagrams,
    summarise=lambda data: (
        Table(
            "Largest beta with half of the pairs together at the end",
            ("system", "beta"),
            tuple((name, f"{crossing(data, name):.3g}") for name in data["maps"]),
        ),
    ),
    verdict=lambda data: Verdict(
        "reproduced" if sharper(data) else "differs",
        "The region where tokens have met approaches the curve of equiangular tokens as the dimension grows: the largest difference of the "
        "share from that curve's step function averages "
        + ", ".join(f"{gap:.2g} ({name})" for name, gap in gaps(data).items())
        + ". Here "
        + f"{data['settings']['starts']} starts and {data['settings']['betas']} values of beta take the place of 2048 and 90.",
    ),
    compare=lambda data: (
        Comparison(
            "cosine of equiangular tokens at the time of quadrature, first beta",
            data["cosine"],
            0.999,
            1e-8,
            "scipy.integrate.quad of the equation of the paper",
        ),
    ),
    small={"tokens": 8, "dims": (2, 16), "starts": 2, "betas": 3, "until": 3.0},
)


def gaps(data: Data) -> dict[str, float]:
    """Return, for identity matrices, the mean distance of the map from the step function of equiangular tokens."""
    steps = (np.array(data["times"])[None, :] >= np.array(data["curve"])[:, None]).astype(float)
    return {
        name: float(np.abs(np.array(values) - steps).mean())
        for name, values in data["maps"].items()
        if "GOE" not in name
    }


def sharper(data: Data) -> bool:
    """Whether the distance from the curve of equiangular tokens falls from the smallest to the largest dimension."""
    found = list(gaps(data).values())
    return found[-1] < found[0]


def cosine_at(beta: float, n: int, time: float) -> float:
    """Return the cosine of the engine's equiangular tokens, orthogonal at the start, at a time."""
    law, start = Attention.isotropic(2, beta), Equiangular(torch.zeros((), dtype=torch.float64), n)
    run = flow(law, start, space=Sphere(), until=time, save=1, rtol=1e-11, atol=1e-13, stop=())
    return float(run.cosines.reshape(-1)[-1])


def compute_curve(settings: Settings, work: Work) -> Data:
    """Return the time to the cosine 1 - epsilon for every beta by quadrature, the engine's cosine then, and the published search."""
    from scipy.integrate import solve_ivp

    n, end = settings["tokens"], 1.0 - settings["epsilon"]
    betas = np.linspace(0.1, 9.0, settings["betas"])
    exact = [equiangular_time(float(beta), n, end) for beta in betas]
    chosen = list(range(0, len(betas), max(1, len(betas) // 6)))
    ours = {int(k): cosine_at(float(betas[k]), n, exact[k]) for k in chosen}
    times = np.linspace(0.0, settings["until"], 300)
    reached = []  # the largest beta of the grid that has reached the cosine at each time, at the default tolerance of SciPy
    for beta in betas:

        def speed(_: float, y: Array, beta: float = float(beta)) -> Array:
            return (2 * (1 - y) * ((n - 1) * y + 1)) / (np.exp(beta * (1 - y)) + (n - 1))

        reached.append(solve_ivp(speed, (0.0, settings["until"]), [0.0], t_eval=times).y[0] >= end)
    grid = np.where(np.any(reached, 0), betas[len(betas) - 1 - np.argmax(np.array(reached)[::-1], 0)], 0.0)
    level = np.interp(times, exact, betas, left=0.0)
    return {
        "betas": betas,
        "exact": exact,
        "ours": ours,
        "times": times,
        "published": grid,
        "error": float(np.abs(grid - level).max()),
    }


def draw_curve(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the curve and the published staircase."""
    kept = [(time, beta) for time, beta in zip(data["exact"], data["betas"], strict=True) if time <= data["times"][-1]]
    curves = (
        Curve([time for time, _ in kept], [beta for _, beta in kept], "quadrature"),
        Curve(data["times"], data["published"], "published search", dashed=True),
    )
    caption = f"Largest beta for which {data['settings']['tokens']} equiangular tokens, orthogonal at the start, have met by time t."
    return draw_captioned(data, (Panel(curves, "time", "beta"),), caption, path)


CURVE = Figure(
    key="equiangular-curve",
    title="The curve of equiangular tokens",
    question="Up to which beta have orthogonal tokens met by time t?",
    source="geshkovski2023mathematical",
    reference=f"curve of the phase diagrams; curve.ipynb of {CODE}",
    parameters=(
        Parameter("tokens", 128, "tokens", f"curve.ipynb, cell 2 of {CODE}", 2),
        Parameter("epsilon", 0.001, "tokens have met at the cosine 1 - epsilon", "curve.ipynb, cell 2", 1e-9),
        Parameter("until", 30.0, "final time", "curve.ipynb, cell 2", 0.1),
        Parameter("betas", 50, "values of beta from 0.1 to 9", "curve.ipynb, cell 2", 2),
    ),
    cost=2.0,
    compute=compute_curve,
    draw=draw_curve,
    summarise=lambda data: (
        Table(
            "Time to the cosine 1 - epsilon",
            ("beta", "time", "cosine of the engine then"),
            tuple(
                (f"{data['betas'][int(k)]:.3g}", f"{data['exact'][int(k)]:.8g}", f"{cosine:.10g}")
                for k, cosine in data["ours"].items()
            ),
        ),
    ),
    verdict=lambda data: Verdict(
        "reproduced with a correction",
        f"The curve is met. The published search returns values of a grid of {data['settings']['betas']} betas at the default tolerance of "
        f"SciPy (0.001): a staircase, up to {data['error']:.2g} below or above the curve.",
    ),
    compare=lambda data: tuple(
        Comparison(
            f"cosine at the time of quadrature, beta = {data['betas'][int(k)]:.3g}",
            cosine,
            1.0 - data["settings"]["epsilon"],
            1e-8,
            "scipy.integrate.quad",
        )
        for k, cosine in data["ours"].items()
    ),
    beside=lambda data: (Beside("largest error of beta along time", "below 1e-6", f"{data['error']:.2g}"),),
    small={"tokens": 16, "betas": 6},
)


def compute_cosines(settings: Settings, work: Work) -> Data:
    """Return histograms of cosines of tokens in every layer of a trained model, and of more layers of the same block."""
    from attractor.models import trace

    found = trace(settings["model"], settings["text"])
    rows, edges = [], np.linspace(-0.5, 1.0, settings["bins"] + 1)
    for points in found.points.double():
        units = points / points.norm(dim=-1, keepdim=True)
        cosines = (units @ units.mT).numpy()
        apart = cosines[~np.eye(len(cosines), dtype=bool)]
        rows.append(
            {
                "counts": np.histogram(apart, edges, density=True)[0].round(5),
                "mean": float(apart.mean()),
                "outside": float((apart < edges[0]).mean()),
                "with_self": float((cosines > 0.999).mean()),
                "above": float((apart > 0.999).mean()),
            }
        )
    check = found.points[-1].double().numpy()
    from scipy.spatial.distance import pdist

    return {
        "edges": edges,
        "rows": rows,
        "tokens": len(check),
        "other": float(1.0 - pdist(check, "cosine").mean()),
    }


def draw_cosines(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw histograms of some layers, and the mean cosine along depth."""
    edges, rows = np.array(data["edges"]), data["rows"]
    middle = (edges[1:] + edges[:-1]) / 2
    chosen = sorted({0, len(rows) // 4, len(rows) // 2, len(rows) - 1})
    curves = tuple(Curve(middle, rows[layer]["counts"], f"after block {layer}", steps=True) for layer in chosen)
    means = Curve(range(len(rows)), [row["mean"] for row in rows])
    panels = (Panel(curves, "cosine of two tokens", "density"), Panel((means,), "blocks", "mean cosine"))
    caption = (
        f"Cosines of pairs of different tokens of one text of {data['tokens']} tokens in {data['settings']['model']}."
    )
    return draw_captioned(data, panels, caption, path)


COSINES = Figure(
    key="cosine-histograms",
    title="Cosines of tokens along the layers of a trained ALBERT",
    question="Do tokens of a trained model with shared layers gather along depth?",
    source="geshkovski2023mathematical",
    reference=f"histograms of ALBERT; albert.ipynb of {CODE}",
    parameters=(
        Parameter(
            "model", "rxnmapper", "model with shared layers", f"albert.ipynb, cell 3 of {CODE} has albert-xlarge-v2"
        ),
        Parameter(
            "text",
            "O=[N+]([O-])c1ccc(Cl)cc1.C1COCCN1.CCO>>O=[N+]([O-])c1ccc(N2CCOCC2)cc1",
            "text; the code draws a random one of WikiText-103",
        ),
        Parameter("bins", 60, "bins", minimum=2),
    ),
    unknown=(
        "The text of the printed histograms.",
        "Weights of albert-xlarge-v2 are not available here; another ALBERT takes their place.",
    ),
    cost=4.0,
    compute=compute_cosines,
    draw=draw_cosines,
    summarise=lambda data: (
        Table(
            "Mean cosine of different tokens",
            ("block", "mean", "share above 0.999", "the same with each token beside itself"),
            tuple(
                (str(k), f"{row['mean']:.4g}", f"{row['above']:.3g}", f"{row['with_self']:.3g}")
                for k, row in enumerate(data["rows"])
            ),
        ),
    ),
    verdict=lambda data: Verdict(
        "no published result",
        f"Another trained ALBERT: the mean cosine goes from {data['rows'][0]['mean']:.3g} to {data['rows'][-1]['mean']:.3g} in "
        f"{len(data['rows']) - 1} blocks. The published histograms count every token beside itself (a peak of 1/n at cosine 1, here "
        f"{1 / data['tokens']:.3g}) and are cut at -0.3.",
    ),
    compare=lambda data: (
        Comparison(
            "mean cosine after the last block",
            data["rows"][-1]["mean"],
            data["other"],
            1e-9,
            "scipy.spatial.distance.pdist",
        ),
    ),
    extras=("plot", "checkpoints"),
    weights=lambda settings: [settings["model"]],
)

FIGURES = (RUNS, DIAGRAMS, CURVE, COSINES)
