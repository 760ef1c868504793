"""arXiv 2411.04990, figure 2: causal attention on the circle, Renyi centres and strong Renyi centres."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attractor.laws import Attention
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
    make_tokens,
)
from attractor.papers.sphere_figures import count_clusters
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere

Array = NDArray[np.float64]


def find_centres(angles: Array, radius: float) -> tuple[list[int], list[int]]:
    """Return Renyi centres (farther than the radius from earlier centres) and strong ones (from all earlier tokens); chords."""
    centres: list[int] = []
    strong: list[int] = []
    for i, angle in enumerate(angles):
        chords = 2.0 * np.abs(np.sin((angles[:i] - angle) / 2.0))
        if not (chords <= radius).any():
            strong.append(i)
        if not (chords[centres] <= radius).any():
            centres.append(i)
    return centres, strong


def compute(settings: Settings, work: Work) -> Data:
    """Integrate uniform tokens under a causal mask, with an independent solution by SciPy at an early time."""
    from scipy.integrate import solve_ivp

    n, beta = settings["tokens"], settings["beta"]
    angles = np.random.default_rng(settings["seed"]).uniform(0.0, 2.0 * np.pi, n)
    points = np.stack((np.cos(angles), np.sin(angles)), axis=1)
    law = Attention.isotropic(2, beta, mask="causal")
    times = [0.0, *settings["times"]]
    run = flow(law, make_tokens(points), space=Sphere(), save=times, rtol=1e-8, atol=1e-10, merge=False, stop=())
    moved = np.arctan2(run.points[..., 1].numpy(), run.points[..., 0].numpy())
    earlier = np.tril(np.ones((n, n), dtype=bool))

    def velocity(_: float, now: Array) -> Array:
        apart = now[None, :] - now[:, None]
        scores = np.where(earlier, beta * np.cos(apart), -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        return (weights / weights.sum(1, keepdims=True) * np.sin(apart)).sum(1)

    early = min(2.0, times[-1])
    other = solve_ivp(velocity, (0.0, early), angles, method="LSODA", rtol=1e-10, atol=1e-12).y[:, -1]
    ours = flow(
        law, make_tokens(points), space=Sphere(), until=early, save=1, rtol=1e-10, atol=1e-12, merge=False, stop=()
    ).points[-1]
    away = np.angle(np.exp(1j * (np.arctan2(ours[:, 1].numpy(), ours[:, 0].numpy()) - other)))
    centres, strong = find_centres(angles, settings["radius"] * beta**-0.5)
    drift = np.abs(np.angle(np.exp(1j * (moved - moved[0]))))
    return {
        "times": times,
        "angles": moved.round(6),
        "centres": centres,
        "strong": strong,
        "clusters": [count_clusters(part, 1.0 - 1e-3) for part in run.points.numpy()],
        "drift": drift.round(6),
        "scipy": float(np.abs(away).max()),
    }


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw tokens on the circle at every time, with the two kinds of centres outside and inside of it."""
    panels = []
    for time, row, count in zip(data["times"], np.array(data["angles"]), data["clusters"], strict=True):
        kinds = [("token", row, 1.0), ("Renyi centre", row[data["centres"]], 1.1), ("strong", row[data["strong"]], 0.9)]
        curves = tuple(
            Curve(
                size * np.cos(part),
                size * np.sin(part),
                name if time == 0 else "",
                dots=True,
                fine=name == "token",
                colour=k,
            )
            for k, (name, part, size) in enumerate(kinds)
        )
        panels.append(Panel(curves, "x1", "x2", f"t = {time:g}: {count} clusters", circle=True))
    caption = (
        f"{data['settings']['tokens']} tokens under causal attention, beta = {data['settings']['beta']:g}, delta = "
        f"{data['settings']['radius']:g} beta^-1/2. Centres of the start are drawn outside (Renyi) and inside (strong) of the circle."
    )
    return draw_captioned(data, tuple(panels), caption, path)


def judge(data: Data) -> Verdict:
    drift = np.array(data["drift"])[-1]
    strong = float(drift[data["strong"]].max())
    weak = [i for i in data["centres"] if i not in data["strong"]]
    others = float(drift[weak].max()) if weak else 0.0
    words = (
        f"{len(data['strong'])} strong centres move by at most {strong:.2g} by t = {data['times'][-1]:g}, the {len(weak)} other Renyi "
        f"centres by up to {others:.2g}; {data['clusters'][-1]} clusters are left, more than strong centres."
    )
    near = data["settings"]["radius"] * data["settings"]["beta"] ** -0.5 / 4
    good = strong < near and len(data["strong"]) < data["clusters"][-1] <= len(data["centres"]) + 1
    return Verdict("reproduced" if good else "differs", words)


FIGURE = Figure(
    key="renyi-centres",
    title="Renyi centres under causal attention",
    question="Which tokens become the centres of metastable clusters under a causal mask?",
    source="karagodin2024clustering",
    reference="figure 2",
    parameters=(
        SEED,
        Parameter("tokens", 200, "tokens, uniform on the circle", "caption of figure 2", 2),
        Parameter("beta", 64.0, "inverse temperature", "caption of figure 2", 1.0),
        Parameter("radius", 4.0, "delta in units of beta^-1/2", "caption of figure 2", 0.1),
        Parameter("times", (5.0, 75.0, 150.0), "times of the panels", "caption of figure 2 (75 and 150)", 0.0),
    ),
    unknown=(
        "The seed of the starts, the first times and the distance of the printed figure: chords are used.",
        "The authors' code.",
    ),
    cost=1.0,
    compute=compute,
    draw=draw,
    summarise=lambda data: (
        Table(
            "Centres and clusters",
            (),
            (
                ("Renyi centres", str(len(data["centres"]))),
                ("strong Renyi centres", str(len(data["strong"]))),
                (
                    "clusters",
                    ", ".join(
                        f"{count} (t = {time:g})" for time, count in zip(data["times"], data["clusters"], strict=True)
                    ),
                ),
            ),
        ),
    ),
    verdict=judge,
    compare=lambda data: (
        Comparison(
            "largest difference of angles at an early time",
            data["scipy"],
            0.0,
            1e-6,
            "scipy.integrate.solve_ivp, LSODA",
        ),
    ),
    small={"tokens": 40, "times": (5.0, 20.0)},
)
