"""arXiv 2407.01602 and 2508.09628: leaders of hardmax layers, and the cells of a polytope."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attractor.observables import leaders
from attractor.papers.figure import (
    SEED,
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
    make_tokens,
)
from attractor.plotting import Curve, Panel

Array = NDArray[np.float64]
CODE = "DCN-FAU-AvH/clustering-hardmax-transformers 214785d"
CELLS_CODE = "borjanG/2025-transformers-frank-wolfe 79e3255"
# tokens of the code that are not random (dynamics.ipynb, cell 2), and the numbers and ranges of random ones
CASES: dict[str, tuple[list[list[float]], list[tuple[int, float, float]]]] = {
    "emerging leader": (
        [[1, 4 / 12], [-1 / 12, 1 / 12], [-1, -1], [0, 3 / 12], [-0.3, -0.7], [-0.6, -0.9], [0.8, 0.1], [0.6, 0.15]],
        [],
    ),
    "triangle": ([[1, 1], [0.5, -0.5], [-1, -1], [0.3, -0.2], [0.1, -0.2]], [(2, 0.0, 1.0), (2, -1.0, 0.0)]),
    "square": ([[1, 1], [1, -1], [-1, -1], [-1, 1]], [(6, -0.5, 0.5)]),
    "clusters without leader": ([[1, 1], [1, -1], [-1, -1], [-1, 1], [-0.5, 0], [0.5, 0]], [(4, -0.5, 0.5)]),
}


def hardmax_layer(points: Array, alpha: float) -> Array:
    """One layer of the published code in NumPy: ties exactly equal share the weight."""
    scores = points @ points.T
    chosen = scores == scores.max(1, keepdims=True)
    weights = chosen / chosen.sum(1, keepdims=True)
    return (points + alpha * weights @ points) / (1.0 + alpha)


def compute_leaders(settings: Settings, work: Work) -> Data:
    """Iterate the layers of every case with the engine's hardmax kernel and with NumPy."""
    alpha, layers = settings["alpha"], settings["layers"]
    rng, eye = np.random.default_rng(settings["seed"]), np.eye(2)
    law = make_law(eye, eye, eye, kernel="hardmax")
    rows: dict[str, Any] = {}
    for name, (fixed, random) in CASES.items():
        start = np.concatenate([np.array(fixed), *(rng.uniform(low, high, (count, 2)) for count, low, high in random)])
        points, other = [start], [start]
        for _ in range(layers):
            moved = law.velocity(make_tokens(points[-1])).numpy()
            points.append((points[-1] + alpha * moved) / (1.0 + alpha))
            other.append(hardmax_layer(other[-1], alpha))
        led = [
            np.flatnonzero(leaders(make_tokens(part), law, each=True).reshape(-1).numpy()).tolist() for part in points
        ]
        stack = np.array(points)
        norms = np.linalg.norm(stack, axis=-1)
        rows[name] = {
            "points": stack.round(6),
            "leaders": led,
            "gap": float(np.abs(stack - np.array(other)).max()),
            "fall": float((norms[:-1] - norms[1:]).max()),
            "away": distances_to_leaders(stack[-1], led[-1]).round(6),
        }
    return {"cases": rows}


def distances_to_leaders(points: Array, chosen: list[int]) -> Array:
    """Return the distance of each token to the nearest leader."""
    return np.linalg.norm(points[:, None] - points[chosen][None], axis=-1).min(1)


def draw_leaders(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw paths, last tokens and leaders of every case."""
    panels = []
    for name, row in data["cases"].items():
        points, chosen = np.array(row["points"]), row["leaders"][-1]
        curves = [Curve(points[:, i, 0], points[:, i, 1], fine=True, colour=0) for i in range(points.shape[1])]
        curves += [
            Curve(points[0, :, 0], points[0, :, 1], dots=True, fine=True, colour=5),
            Curve(points[-1, :, 0], points[-1, :, 1], dots=True, colour=0),
            Curve(points[-1, chosen, 0], points[-1, chosen, 1], "leader", dots=True, colour=1),
        ]
        panels.append(
            Panel(tuple(curves), "x1", "x2", f"{name}: {len(row['leaders'][0])} to {len(chosen)} leaders", equal=True)
        )
    settings = data["settings"]
    caption = (
        f"Paths of tokens over {settings['layers']} hardmax layers, alpha = {settings['alpha']:g}; small discs: starts."
    )
    return draw_captioned(data, tuple(panels), caption, path)


def judge_leaders(data: Data) -> Verdict:
    stay = all(
        set(early) <= set(late)
        for row in data["cases"].values()
        for early, late in zip(row["leaders"], row["leaders"][1:], strict=False)
    )
    fall = max(row["fall"] for row in data["cases"].values())
    without = {name: sum(gap > 1e-2 for gap in row["away"]) for name, row in data["cases"].items()}
    words = (
        f"Leaders {'stay' if stay else 'do not stay'} leaders, norms fall by at most {max(fall, 0.0):.1g}. Tokens farther than 0.01 from "
        "every leader at the end: "
        + ", ".join(f"{count} ({name})" for name, count in without.items())
        + "; the last case has clusters without leader."
    )
    return Verdict("reproduced" if stay and fall < 1e-12 else "differs", words)


LEADERS = Figure(
    key="hardmax-leaders",
    title="Leaders of hardmax layers",
    question="To which points do tokens of hardmax layers tend?",
    source="alcalde2025clustering",
    reference=f"figure 2; dynamics.ipynb of {CODE}",
    parameters=(
        SEED,
        Parameter("alpha", 0.5, "residual scale", f"dynamics.ipynb, cell 2 of {CODE}", 0.0),
        Parameter("layers", 30, "layers", "dynamics.ipynb, cell 2", 1),
    ),
    unknown=("The seed of the random tokens.",),
    cost=1.0,
    compute=compute_leaders,
    draw=draw_leaders,
    summarise=lambda data: (
        Table(
            "Leaders",
            ("case", "tokens", "leaders at the start", "at the end", "farthest from a leader at the end"),
            tuple(
                (
                    name,
                    str(len(row["away"])),
                    str(len(row["leaders"][0])),
                    str(len(row["leaders"][-1])),
                    f"{max(row['away']):.2g}",
                )
                for name, row in data["cases"].items()
            ),
        ),
    ),
    verdict=judge_leaders,
    compare=lambda data: tuple(
        Comparison(
            f"difference of tokens over all layers, {name}", row["gap"], 0.0, 1e-12, "the published layer in NumPy"
        )
        for name, row in data["cases"].items()
    ),
    small={"layers": 10},
)


def draw_vertices(k: int, seed: int) -> Array:
    """Return k points in convex position by the draws of the published code: angles, then radii in [0.4, 1]."""
    from scipy.spatial import ConvexHull

    rng = np.random.default_rng(seed)
    while True:
        angles = rng.uniform(0, 2 * np.pi, size=k)
        radii = rng.uniform(0.4, 1.0, size=k)
        points = radii[:, None] * np.stack((np.cos(angles), np.sin(angles)), axis=1)
        hull = ConvexHull(points)
        if len(hull.vertices) == k:
            return points[hull.vertices]


def inside(points: Array, corners: Array) -> NDArray[np.bool_]:
    """Whether points lie in a convex polygon with corners in order."""
    edges = np.roll(corners, -1, axis=0) - corners
    offsets = points[:, None] - corners[None]
    return np.all(edges[None, :, 0] * offsets[..., 1] - edges[None, :, 1] * offsets[..., 0] > 0, axis=1)


def compute_cells(settings: Settings, work: Work) -> Data:
    """Compare the cells of a polygon with where hardmax layers take its points, with raw and with unit directions."""
    corners = draw_vertices(settings["corners"], settings["seed"])
    side = np.linspace(-1.05, 1.05, settings["grid"])
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    within = inside(grid, corners)
    points = grid[within]
    raw = (points @ corners.T).argmax(1)
    unit = (points @ (corners / np.linalg.norm(corners, axis=1, keepdims=True)).T).argmax(1)
    eye = np.eye(2)
    law = make_law(eye, eye, eye, kernel="hardmax")
    ends = np.full(len(points), -1)
    own = (corners @ corners.T).argmax(1)
    for first in range(0, len(points), 500):
        part = points[first : first + 500]
        state = np.concatenate([corners, part])
        masses = np.concatenate([np.full(len(corners), 1.0), np.full(len(part), 1e-12)])
        for _ in range(settings["layers"]):
            moved = law.velocity(make_tokens(state, masses / masses.sum())).numpy()
            state[len(corners) :] = ((state + settings["alpha"] * moved) / (1 + settings["alpha"]))[len(corners) :]
        ends[first : first + 500] = np.linalg.norm(state[len(corners) :, None] - corners[None], axis=-1).argmin(1)
    picture = np.full(len(grid), np.nan)
    picture[within] = unit
    ours = np.full(len(grid), np.nan)
    ours[within] = ends
    return {
        "corners": corners,
        "unit": picture.reshape(len(side), -1).tolist(),
        "ends": ours.reshape(len(side), -1).tolist(),
        "agree_raw": float((ends == raw).mean()),
        "agree_unit": float((ends == unit).mean()),
        "own": int((own == np.arange(len(corners))).sum()),
        "empty": int(len(corners) - len(set(raw.tolist()))),
    }


def draw_cells(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the cells of the code and the corners to which hardmax layers take the points."""
    ring = np.array([*data["corners"], data["corners"][0]])
    outline = (Curve(ring[:, 0], ring[:, 1], colour=1), Curve(ring[:, 0], ring[:, 1], dots=True, colour=1))
    extent = (-1.05, 1.05, -1.05, 1.05)
    panels = (
        Panel(outline, "x1", "x2", "cells of the code", matrix=fill(data["unit"]), extent=extent),
        Panel(outline, "x1", "x2", "where layers take points", matrix=fill(data["ends"]), extent=extent),
    )
    caption = (
        "Cells of a polygon: points by the corner of the largest inner product with its unit direction (left, as in the code), and by the "
        "corner to which hardmax layers take them, corners held fixed (right)."
    )
    return draw_captioned(data, panels, caption, path)


def fill(rows: list[list[float | None]]) -> list[list[float]]:
    """Return an image with nan where JSON has null."""
    return [[float("nan") if one is None else one for one in row] for row in rows]


CELLS = Figure(
    key="hardmax-cells",
    title="Cells of a polytope under hardmax attention",
    question="To which corner does hardmax attention take a point of the polytope?",
    source="alcalde2025attention",
    reference=f"figure of the cells; cells.py of {CELLS_CODE}",
    parameters=(
        Parameter("corners", 6, "corners, in convex position", f"cells.py:196 of {CELLS_CODE}", 3),
        Parameter("seed", 42, "seed of the corners", "cells.py:97", 0),
        Parameter("grid", 81, "points of the grid along each side; the code has 1000", "cells.py:119", 3),
        Parameter("alpha", 0.5, "residual scale", minimum=0.0),
        Parameter("layers", 25, "layers", minimum=1),
    ),
    cost=1.0,
    compute=compute_cells,
    draw=draw_cells,
    summarise=lambda data: (
        Table(
            "Cells",
            (),
            (
                ("points in the cell of largest <x, v>", f"{data['agree_raw']:.1%}"),
                ("points in the cell of the code, largest <x, v>/|v|", f"{data['agree_unit']:.1%}"),
                ("corners that lead themselves", f"{data['own']} of {len(data['corners'])}"),
                ("corners with an empty cell", str(data["empty"])),
            ),
        ),
    ),
    verdict=lambda data: Verdict(
        "reproduced with a correction",
        f"Points go to the corner of their cell of largest <x, v> ({data['agree_raw']:.1%} of the grid; the others reach a corner that "
        f"another one leads). The example of the code normalises the corners (cells.py:125, 199), which gives other cells: "
        f"{data['agree_unit']:.1%} of the points end where it says.",
    ),
    compare=lambda data: (
        Comparison(
            "share of points that stay in their cell",
            data["agree_raw"],
            1.0,
            0.02,
            "numpy.argmax of the inner products",
        ),
    ),
    small={"grid": 21, "layers": 10},
)

FIGURES = (LEADERS, CELLS)
