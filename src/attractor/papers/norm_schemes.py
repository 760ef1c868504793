"""arXiv 2510.22026 and simuformer: how fast tokens gather under different placements of norms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from attractor.laws import Attention, Block, RMSNorm
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
)
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Euclidean, Sphere
from attractor.states import Tokens

Array = NDArray[np.float64]
CODE = "nikitus20/simuformer 1959a8a"
SCHEMES = {"post": "postln", "pre": "preln", "peri": "periln", "ngpt": "ngpt"}  # ours, and the names of the code
FINER = 20  # times smaller are the steps of the corrected scheme
ALPHA = 0.2  # simuxform.py:369


def publish_step(
    units: Array, radii: Array, beta: float, step: float, scheme: str, correct: bool
) -> tuple[Array, Array]:
    """Return directions and radii after one published step, V = I; ``correct`` has the inner product with the direction for preln."""
    scores = beta * units @ units.T
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    pull = (weights / weights.sum(-1, keepdims=True)) @ units
    if scheme == "preln":
        along = (units * pull).sum(-1)
        radii = radii + step * (along if correct else radii * pull.sum(-1))  # simuxform.py:340
        units = units + step * (pull - along[:, None] * units) / radii[:, None]
    elif scheme == "periln":
        pull = pull / np.linalg.norm(pull, axis=-1, keepdims=True)
        radii = radii + step * ((units * pull).sum(-1) if correct else radii * pull.sum(-1))  # simuxform.py:357
        units = units + step * pull / radii[:, None]
    elif scheme == "ngpt":
        units = units + step * ALPHA * pull / np.linalg.norm(pull, axis=-1, keepdims=True)
    else:
        units = units + step * pull
    return units / np.linalg.norm(units, axis=-1, keepdims=True), radii


def mean_cosine(units: Array) -> float:
    """Mean cosine of two different tokens."""
    n = len(units)
    return float(((units @ units.T).sum() - n) / (n * (n - 1)))


def compute(settings: Settings, work: Work) -> Data:
    """Integrate one start under every scheme, with the published steps as they are and corrected."""
    n, d, beta = settings["tokens"], settings["dim"], settings["beta"]
    start = np.random.default_rng(settings["seed"]).standard_normal((n, d))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    until, step = settings["until"], settings["step"]
    times = np.linspace(0.0, until, 51)
    # RMSNorm with this gain gives unit length
    norm = RMSNorm(torch.full((d,), d**-0.5, dtype=torch.float64), eps=0.0)
    rows = {}
    for number, (ours, theirs) in enumerate(SCHEMES.items()):
        work(number, len(SCHEMES))
        attention = Attention.isotropic(d, beta)
        if ours == "post":
            law, space = attention, Sphere()
        else:
            placement = f"ngpt:{ALPHA}" if ours == "ngpt" else ours
            law, space = Block(attention, placement=placement, norms=norm), Sphere() if ours == "ngpt" else Euclidean()
        run = flow(law, Tokens(start), space=space, save=times.tolist(), rtol=1e-8, atol=1e-10, merge=False, stop=())
        points = run.points.numpy()
        radii = np.linalg.norm(points, axis=-1)
        cosines = [mean_cosine(part / size[:, None]) for part, size in zip(points, radii, strict=True)]
        published: dict[str, dict[str, list[float]]] = {}
        for name, correct in (("published", False), ("corrected", True)):
            units, sizes, found, grown = start.copy(), np.ones(n), [mean_cosine(start)], [1.0]
            with np.errstate(all="ignore"):
                small = step / FINER if correct else step
                count = round(until / small)
                for k in range(1, count + 1):
                    units, sizes = publish_step(units, sizes, beta, small, theirs, correct)
                    if k % max(1, count // 50) == 0:
                        found.append(mean_cosine(units))
                        grown.append(float(np.median(sizes)))
            published[name] = {"cosine": found, "radius": grown, "ends": [float(sizes.min()), float(sizes.max())]}
        rows[ours] = {
            "cosine": cosines,
            "radius": np.median(radii, axis=1),
            "ends": [float(radii[-1].min()), float(radii[-1].max())],
            **published,
        }
    return {"times": times, "rows": rows}


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw mean cosines and median radii along time, ours and published."""
    times = data["times"]

    def curves(kind: str, source: str | None) -> tuple[Curve, ...]:
        found = []
        for name, row in data["rows"].items():
            values = row[kind] if source is None else row[source][kind]
            found.append(Curve(np.linspace(times[0], times[-1], len(values)), values, name))
        return tuple(found)

    panels = (
        Panel(curves("cosine", None), "time", "mean cosine", "accurate"),
        Panel(curves("cosine", "published"), "time", "mean cosine", "published steps"),
        Panel(curves("radius", None)[1:3], "time", "median radius", "accurate"),
        Panel(curves("radius", "published")[1:3], "time", "median radius", "published steps"),
    )
    settings = data["settings"]
    caption = f"{settings['tokens']} tokens of dimension {settings['dim']}, Q'K = {settings['beta']:g} I, V = I, by the placement of norms."
    return draw_captioned(data, panels, caption, path)


def judge(data: Data) -> Verdict:
    rows = data["rows"]
    pre, wrong = rows["pre"]["ends"], rows["pre"]["published"]["ends"]
    order = sorted(rows, key=lambda name: -rows[name]["cosine"][-1])
    words = (
        f"Mean cosines at the end fall in the order {', '.join(order)}. preln and periln of the code have "
        f"sum(r * A) where the inner product of A with the direction of the token belongs: radii of preln end in "
        f"[{wrong[0]:.2g}, {wrong[1]:.2g}] instead of [{pre[0]:.3g}, {pre[1]:.3g}]. They grow or shrink exponentially with the sign "
        "of that sum. With the inner product and finer steps the code agrees with ours."
    )
    return Verdict("reproduced with a correction", words)


FIGURE = Figure(
    key="norm-schemes",
    title="Cosines of tokens by the placement of norms",
    question="How fast do tokens gather under post, pre, peri and nGPT norms?",
    source="karagodin2025normalization",
    reference=f"figures of cosines by scheme; simuxform.py and runner.py of {CODE}",
    parameters=(
        SEED,
        Parameter("tokens", 64, "tokens", f"runner.py:22 of {CODE}", 2),
        Parameter("dim", 16, "dimension", "runner.py:23", 2),
        Parameter("beta", 2.0, "inverse temperature, of 0.1 to 15 in the code", "runner.py:17-19", 0.0),
        Parameter("until", 50.0, "final time", "runner.py:20", 0.1),
        Parameter("step", 0.1, "step of the code", "runner.py:21", 1e-4),
    ),
    unknown=(
        "Which temperatures the printed figures have; the code runs identity matrices (run_experiments.sh:10-11) as here.",
        "Seeds.",
    ),
    cost=3.0,
    compute=compute,
    draw=draw,
    summarise=lambda data: (
        Table(
            "At the end",
            ("scheme", "mean cosine", "published", "corrected", "radii", "published radii"),
            tuple(
                (
                    name,
                    f"{row['cosine'][-1]:.4f}",
                    f"{row['published']['cosine'][-1]:.4f}",
                    f"{row['corrected']['cosine'][-1]:.4f}",
                    "{:.3g} to {:.3g}".format(*row["ends"]),
                    "{:.3g} to {:.3g}".format(*row["published"]["ends"]),
                )
                for name, row in data["rows"].items()
            ),
        ),
    ),
    verdict=judge,
    compare=lambda data: tuple(
        Comparison(
            f"mean cosine at the end, {name}",
            row["cosine"][-1],
            row["corrected"]["cosine"][-1],
            0.005,
            "the steps of the code, corrected and finer, in NumPy",
        )
        for name, row in data["rows"].items()
    ),
    beside=lambda data: tuple(
        Beside(
            f"median radius at the end, {name}",
            f"{data['rows'][name]['radius'][-1]:.3g}",
            f"{data['rows'][name]['published']['radius'][-1]:.3g}",
        )
        for name in ("pre", "peri")
    ),
    small={"tokens": 12, "dim": 6, "until": 10.0},
)
