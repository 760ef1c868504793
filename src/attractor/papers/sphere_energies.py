"""arXiv 2501.03096: energies of attention on the sphere along ascent and descent, for definite and indefinite interactions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attractor.laws import Exponential
from attractor.observables import energy
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
)
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens

Array = NDArray[np.float64]
INTERACTIONS = {
    "identity": (1.0, 1.0),
    "positive definite": (1.0, 0.4),
    "indefinite": (1.0, -0.6),
    "negative definite": (-0.4, -1.0),
}


def sum_pairs(points: Array, interaction: Array) -> float:
    """The energy by a plain double sum, without the shift."""
    return float(np.exp(points @ interaction @ points.T).mean()) / 2.0


def compute(settings: Settings, work: Work) -> Data:
    """Follow the energy upwards (V = W) and downwards (V = -W) for every interaction."""
    beta, n, rows = settings["beta"], settings["tokens"], []
    start = Tokens.uniform(n, 2, seed=settings["seed"])
    times = np.concatenate([[0.0], np.geomspace(1e-2, settings["until"], 60)]).tolist()
    for number, (name, diagonal) in enumerate(INTERACTIONS.items()):
        work(number, len(INTERACTIONS))
        interaction = beta * np.diag(diagonal)
        kernel = Exponential(shift=beta)
        row: Data = {"name": name, "levels": limit_energies(interaction)}
        for direction, sign in (("ascent", 1.0), ("descent", -1.0)):
            law = make_law(np.eye(2), interaction, sign * interaction, kernel=kernel)
            run = flow(law, start, space=Sphere(), save=times, rtol=1e-9, atol=1e-11, merge=False, stop=())
            values = energy(Tokens(run.points), law).numpy().reshape(len(times), -1)[:, 0] * np.exp(beta)
            row[direction] = values
            row[f"{direction} angles"] = np.arctan2(run.points[-1, :, 1].numpy(), run.points[-1, :, 0].numpy()).round(6)
            row[f"{direction} check"] = float(abs(values[-1] / sum_pairs(run.points[-1].numpy(), interaction) - 1.0))
            row[f"{direction} wrong"] = float(
                max(0.0, -sign * np.diff(values).min() if sign > 0 else np.diff(values).max())
            )
        rows.append(row)
    return {"times": times, "rows": rows}


def limit_energies(interaction: Array) -> dict[str, float]:
    """Energies of a point at the best place, of two opposite points there, and of the uniform density (by quadrature)."""
    top = float(np.diag(interaction).max())
    turn = np.linspace(0.0, 2.0 * np.pi, 400, endpoint=False)
    circle = np.stack((np.cos(turn), np.sin(turn)), axis=1)
    return {
        "one point": np.exp(top) / 2.0,
        "two opposite points": np.cosh(top) / 2.0,
        "uniform": float(np.exp(circle @ interaction @ circle.T).mean()) / 2.0,
    }


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the energies along time, and those of simple states."""
    panels = []
    for row in data["rows"]:
        times = data["times"][1:]
        curves = [Curve(times, row[direction][1:], direction) for direction in ("ascent", "descent")]
        curves += [Curve([times[0], times[-1]], [level, level], dashed=True) for level in row["levels"].values()]
        panels.append(Panel(tuple(curves), "time", "energy", row["name"], log_x=True, log_y=True))
    caption = (
        f"Energy of tokens on the circle, W = {data['settings']['beta']:g} diag(a, b), V = W (ascent), -W (descent); dashed: one point, "
        "two opposite points, and the uniform density."
    )
    return draw_captioned(data, tuple(panels), caption, path)


def judge(data: Data) -> Verdict:
    wrong = max(
        row[f"{direction} wrong"] / max(row[direction]) for row in data["rows"] for direction in ("ascent", "descent")
    )
    first = data["rows"][0]
    top, low = first["ascent"][-1] / first["levels"]["one point"], first["descent"][-1] / first["levels"]["uniform"]
    definite = data["rows"][1]["ascent"][-1] / data["rows"][1]["levels"]["one point"]
    words = (
        f"Energies never fall on ascent nor rise on descent (up to {wrong:.1g} of their size). With W = beta I ascent ends at {top:.4g} of "
        f"the energy of one point and descent at {low:.4g} of that of the uniform density; with a positive definite W ascent "
        f"ends at {definite:.4g} of the energy of a point at the leading eigenvector."
    )
    return Verdict("reproduced" if wrong < 1e-8 and low < 1.05 else "differs", words)


FIGURE = Figure(
    key="sphere-energies",
    title="Energies of attention on the sphere",
    question="To which energies do ascent and descent lead, by the definiteness of the interaction?",
    source="burger2025analysis",
    reference="statements on minimisers and maximisers",
    parameters=(
        SEED,
        Parameter("beta", 2.0, "size of the interaction", minimum=0.01),
        Parameter("tokens", 40, "tokens on the circle, uniform", minimum=2),
        Parameter("until", 300.0, "final time, in units of e^-beta", minimum=1.0),
    ),
    unknown=("Parameters of the printed figures: the paper could not be read in full, and no code is public.",),
    cost=1.0,
    compute=compute,
    draw=draw,
    summarise=lambda data: (
        Table(
            "Energy at the end",
            ("interaction", "ascent", "descent", "one point", "two points", "uniform"),
            tuple(
                (
                    row["name"],
                    *(f"{value:.5g}" for value in (row["ascent"][-1], row["descent"][-1], *row["levels"].values())),
                )
                for row in data["rows"]
            ),
        ),
    ),
    verdict=judge,
    compare=lambda data: tuple(
        Comparison(
            f"relative difference of the energy at the end of ascent, {row['name']}",
            row["ascent check"],
            0.0,
            1e-10,
            "a double sum in NumPy",
        )
        for row in data["rows"]
    ),
    small={"tokens": 8, "until": 20.0},
)
