"""arXiv 2410.06833: five tokens on the circle, and the staircase of the energy at large beta in rescaled time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attractor.laws import Attention, Exponential
from attractor.papers.figure import (
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
from attractor.papers.sphere_figures import EXACT, SCIPY, publish_layers, solve_on_sphere
from attractor.plotting import Curve, Panel
from attractor.solvers import LogTime, flow
from attractor.spaces import Sphere
from attractor.states import Tokens

Array = NDArray[np.float64]
CODE = "HugoKoubbi/2024-transformers-dotm 4aa178a"
START = np.array(  # kinetic.py:25-31
    [[0.99806638, 0.06215705], [0.97712061, 0.21268594], [-0.24578194, 0.96932515], [-0.97354734, 0.2284854],
     [-0.99892629, -0.04632772]]
)  # fmt: skip


def scaled_energy(angles: Array, beta: float, masses: Array | None = None) -> Array:
    """Energy sum m_i m_j e^(beta (cos - 1)) of angles (..., n): one at consensus."""
    m = np.full(angles.shape[-1], 1.0 / angles.shape[-1]) if masses is None else masses
    pairs = np.exp(beta * (np.cos(angles[..., :, None] - angles[..., None, :]) - 1.0))
    return (pairs * m[:, None] * m).sum((-2, -1))


def compute_kinetic(settings: Settings, work: Work) -> Data:
    """Integrate the five tokens of the code, accurately, by SciPy and by the published scheme."""
    beta, until, step = settings["beta"], settings["until"], settings["step"]
    law, start = Attention.isotropic(2, beta), START / np.linalg.norm(START, axis=1, keepdims=True)
    times = np.concatenate([[0.0], np.geomspace(0.05, until, 120)])
    run = flow(law, Tokens(start), space=Sphere(), save=times.tolist(), **EXACT)
    angles = np.unwrap(np.arctan2(run.points[..., 1].numpy(), run.points[..., 0].numpy()), axis=0)
    published = {f"{time:g}": publish_layers(start, beta, time, step) for time in (10.0, 50.0, until) if time <= until}
    exact = flow(law, Tokens(start), space=Sphere(), save=[float(time) for time in published], **EXACT).points.numpy()
    apart = {
        name: float(np.linalg.norm(found - ours, axis=-1).max())
        for (name, found), ours in zip(published.items(), exact, strict=True)
    }
    energy = scaled_energy(angles, beta)
    return {
        "times": times,
        "angles": angles.round(8),
        "energy": energy,
        "apart": apart,
        "scipy": float(np.abs(solve_on_sphere(start, beta, 20.0) - flow_to(law, start, 20.0)).max()),
        "final": energy[-1],
    }


def flow_to(law: Attention, start: Array, until: float) -> Array:
    """Return the tokens at a time."""
    return flow(law, make_tokens(start), space=Sphere(), until=until, save=1, **EXACT).points[-1].numpy()


def draw_kinetic(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw angles and energy against the logarithm of time."""
    times, angles = np.array(data["times"])[1:], np.array(data["angles"])[1:]
    threads = tuple(Curve(times, angles[:, i]) for i in range(angles.shape[1]))
    energy = (Curve(times, np.array(data["energy"])[1:]),)
    panels = (
        Panel(threads, "time", "angle of each token", log_x=True),
        Panel(energy, "time", "energy / e^beta", log_x=True),
    )
    caption = f"Five tokens on the circle, softmax with beta = {data['settings']['beta']:g}; energy sum of e^(beta (cos - 1)) / n^2."
    return draw_captioned(data, panels, caption, path)


KINETIC = Figure(
    key="kinetic",
    title="Five tokens merge one after the other",
    question="How do five tokens on the circle gather, and along which plateaus of the energy?",
    source="geshkovski2024dynamic",
    reference=f"kinetic figure; kinetic.py of {CODE}",
    parameters=(
        Parameter("beta", 4.0, "inverse temperature", f"kinetic.py:15 of {CODE}", 0.0),
        Parameter("until", 400.0, "final time", "kinetic.py:11", 1.0),
        Parameter("step", 0.1, "step of the published scheme", "kinetic.py:12", 1e-4),
    ),
    cost=1.0,
    compute=compute_kinetic,
    draw=draw_kinetic,
    summarise=lambda data: (
        Table(
            "Energy / e^beta",
            (),
            (("at the start", f"{data['energy'][0]:.4g}"), ("at the end", f"{data['final']:.6g}")),
        ),
    ),
    verdict=lambda data: Verdict(
        "reproduced",
        f"The energy goes through plateaus from {data['energy'][0]:.3g} to {data['final']:.3g}. The published scheme is a layer map with "
        "residual scale 0.1; its tokens are "
        + ", ".join(f"{gap:.2g} (t = {name})" for name, gap in data["apart"].items())
        + " from those of continuous time.",
    ),
    compare=lambda data: (Comparison("difference of tokens at t = 20", data["scipy"], 0.0, 1e-7, SCIPY),),
    beside=lambda data: tuple(
        Beside(f"error of tokens at t = {name}", "below 1e-7", f"{gap:.2g}") for name, gap in data["apart"].items()
    ),
    small={"until": 50.0},
)


def arc_run(start: Array, beta: float) -> tuple[Array, Array, list[float]]:
    """Return arc length, energy, and the arc lengths of merges, of the gradient flow of the energy with unit speed (SciPy).

    Angles follow the normalised gradient; tokens within 1/(20 sqrt(beta)) of each other and at rest become one of their masses.
    """
    from scipy.integrate import solve_ivp

    angles, masses = start.copy(), np.full(len(start), 1.0 / len(start))
    arcs, energies, jumps, total = [0.0], [float(scaled_energy(angles, beta, masses))], [], 0.0
    while len(angles) > 1:
        near = 0.02 / beta**0.5

        def drift(angles: Array, masses: Array) -> Array:
            apart = angles[None, :] - angles[:, None]
            exponent = beta * np.cos(apart)
            np.fill_diagonal(exponent, -np.inf)
            return (masses * np.sin(apart) * np.exp(exponent - exponent.max())).sum(1)

        def speed(_: float, now: Array, masses: Array = masses) -> Array:
            found = drift(now, masses)
            return found / np.sqrt((masses * found**2).sum())

        def gap(_: float, now: Array, near: float = near) -> float:
            return float(np.diff(now).min()) - near

        gap.terminal = True  # type: ignore[attr-defined]
        found = solve_ivp(speed, (0.0, 10.0), angles, events=gap, rtol=1e-9, atol=1e-12, max_step=0.003)
        arcs += (total + found.t[1:]).tolist()
        energies += [float(scaled_energy(now, beta, masses)) for now in found.y.T[1:]]
        total, angles = total + float(found.t[-1]), found.y[:, -1]
        first = int(np.diff(angles).argmin())
        mass = masses[first] + masses[first + 1]
        meeting = (masses[first] * angles[first] + masses[first + 1] * angles[first + 1]) / mass
        pair = masses[first] * masses[first + 1] / mass
        total += float(pair**0.5 * np.diff(angles)[first])
        angles, masses = np.delete(angles, first + 1), np.delete(masses, first + 1)
        angles[first], masses[first] = meeting, mass
        jumps.append(total)
        arcs.append(total)
        energies.append(float(scaled_energy(angles, beta, masses)))
    return np.array(arcs), np.array(energies), jumps


def published_staircase(start: Array, betas: list[float], rate: float, steps: int, kept: int = 400) -> Array:
    """Return energies (kept, betas) of the published procedure: normalised gradient steps of length rate * log(beta), and snapping."""
    beta = np.array(betas)[:, None]
    angles = np.tile(start, (len(betas), 1))
    found = []
    for number in range(steps):
        apart = angles[:, None, :] - angles[:, :, None]  # (b, i, j): theta_j - theta_i
        gradient = (np.sin(apart) * np.exp(beta[:, :, None] * (np.cos(apart) - 1.0))).sum(-1) / len(start) ** 2
        size = np.linalg.norm(gradient, axis=1, keepdims=True)
        angles = angles + rate * np.log(beta) * gradient / np.maximum(size, 1e-300)
        for row in np.flatnonzero(size[:, 0] < 1e-5):
            for i in range(len(start)):
                for j in range(i + 1, len(start)):
                    if abs(angles[row, i] - angles[row, j]) < 1e-3:
                        angles[row, j] = angles[row, i]
        if number % max(1, steps // kept) == 0:
            found.append([float(scaled_energy(row, one)) for row, one in zip(angles, betas, strict=True)])
    return np.array(found)


def compute_staircase(settings: Settings, work: Work) -> Data:
    """Follow the energy in rescaled time for every beta, by merges of the engine in logarithmic time, SciPy and the published steps."""
    betas, base = settings["betas"], settings["base"]
    spread = np.log(base) / base**0.5
    start = 0.5 * np.array([0.0, *(part * spread % np.pi for part in (0.5, 2.0, 4.0, 7.0))])  # staircase.py:436-442
    points = np.stack((np.cos(start), np.sin(start)), axis=1)
    n, rows = len(start), []
    for number, beta in enumerate(betas):
        work(number, len(betas) + 1)
        arcs, energies, jumps = arc_run(start, beta)
        law = Attention.isotropic(2, beta, kernel="exponential")
        run = flow(law, make_tokens(points), space=Sphere(), until=LogTime(beta * 2.0 + 20.0))
        merges = [event for event in run.events if event.kind == "merge"]
        weights = np.full(n, 1.0 / n)
        levels = [float((weights**2).sum())]
        groups = {i: [i] for i in range(n)}
        for event in merges:
            members = sorted(event.members)
            groups = {k: part for k, part in groups.items() if not set(part) & set(members)} | {members[0]: members}
            levels.append(float(sum((len(part) / n) ** 2 for part in groups.values())))
        rows.append(
            {
                "beta": beta,
                # the published clock: steps of the Euclidean norm of the angles, over log(beta)
                "clock": (arcs * n**0.5 / np.log(beta)).round(7),
                "energy": energies.round(6),
                "jumps": [jump * n**0.5 / np.log(beta) for jump in jumps],
                "levels": levels,
                "log_times": [
                    float(event.log_time if event.log_time is not None else np.log(event.time)) for event in merges
                ],
            }
        )
    work(len(betas), len(betas) + 1)
    rate, steps = settings["rate"], settings["steps"]
    published = work.keep("published", lambda: published_staircase(start, betas, rate, steps))
    shifted = Attention.isotropic(2, betas[-1], kernel=Exponential(shift=betas[-1]))
    return {
        "start": start,
        "rows": rows,
        "published": np.array(published).T.round(6),
        "published_clock": np.arange(len(published)) * max(1, steps // 400) * rate,
        "largest_speed": flow_speed(shifted, points),
    }


def flow_speed(law: Attention, points: Array) -> float:
    """Return the largest speed at the start, which would overflow without the shift."""
    from attractor.solvers import velocity

    return float(velocity(law, make_tokens(points), Sphere()).norm(dim=-1).max())


def step_positions(clock: Array, energy: Array, levels: list[float]) -> list[float]:
    """Return where an energy first exceeds the middle between successive levels; nan where it does not."""
    found = []
    for low, high in pairwise(levels):
        above = np.flatnonzero(energy > (low + high) / 2)
        found.append(float(clock[above[0]]) if len(above) else float("nan"))
    return found


def stair_errors(data: Data) -> list[float]:
    """Return, for each beta, the largest difference of the published stairs from ours, in rescaled time."""
    errors = []
    for row, energy in zip(data["rows"], data["published"], strict=True):
        ours = step_positions(np.array(row["clock"]), np.array(row["energy"]), row["levels"])
        theirs = step_positions(np.array(data["published_clock"]), np.array(energy), row["levels"])
        errors.append(float(np.nanmax(np.abs(np.array(ours) - theirs))))
    return errors


def draw_staircase(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the energies over rescaled time, ours and published."""
    ours = tuple(Curve(row["clock"], row["energy"], f"beta = {row['beta']:g}") for row in data["rows"])
    end = 1.15 * max(row["clock"][-1] for row in data["rows"])
    clock = np.array(data["published_clock"])
    seen = clock <= end
    theirs = tuple(
        Curve(clock[seen], np.array(energy)[seen], f"beta = {row['beta']:g}")
        for row, energy in zip(data["rows"], data["published"], strict=True)
    )
    panels = (
        Panel(ours, "rescaled time", "energy / e^beta", "accurate"),
        Panel(theirs, "rescaled time", "energy / e^beta", "published procedure"),
    )
    caption = "Five tokens on the circle; rescaled time is the length of the path of the angles over log(beta). Each step is a merge."
    return draw_captioned(data, panels, caption, path)


def judge_staircase(data: Data) -> Verdict:
    errors = stair_errors(data)
    steps = [len(row["levels"]) - 1 for row in data["rows"]]
    words = (
        f"The energy rises in {steps[0]} steps for every beta, from 1/n to 1. All curves have the starts of "
        f"beta = {data['settings']['base']:g}, which the code fixes before its loop. The published stairs are within "
        f"{max(errors):.2g} of rescaled time of ours. After the last merge the code divides by a gradient of zero, and its "
        "energies are nan from there."
    )
    good = len(set(steps)) == 1 and steps[0] == len(data["start"]) - 1 and max(errors) < 0.005
    return Verdict("reproduced" if good else "differs", words)


STAIRCASE = Figure(
    key="staircase",
    title="The energy rises in a staircase",
    question="How does the energy rise in rescaled time at large beta?",
    source="geshkovski2024dynamic",
    reference=f"staircase figure; staircase.py of {CODE}",
    parameters=(
        Parameter(
            "betas",
            (500.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0),
            "inverse temperatures",
            f"staircase.py:493 of {CODE}",
            10.0,
        ),
        Parameter("base", 2000.0, "beta of the spacing of the five starts", "staircase.py:426, 436-442", 10.0),
        Parameter("rate", 1e-5, "length of a published step, over log(beta)", "staircase.py:446", 1e-7),
        Parameter(
            "steps", 20000, "published steps; the code has 10^6, most after the last merge", "staircase.py:447", 10
        ),
    ),
    unknown=(
        "Which of the rescaled clocks of the code made the printed figure; its last lines use time_rescale_3 (lines 376-390).",
    ),
    cost=4.0,
    compute=compute_staircase,
    draw=draw_staircase,
    summarise=lambda data: (
        Table(
            "Merges",
            ("beta", "rescaled times", "log t of merges / beta"),
            tuple(
                (
                    f"{row['beta']:g}",
                    ", ".join(f"{jump:.4f}" for jump in row["jumps"]),
                    ", ".join(f"{time / row['beta']:.4f}" for time in row["log_times"]),
                )
                for row in data["rows"]
            ),
        ),
    ),
    verdict=judge_staircase,
    compare=lambda data: tuple(
        Comparison(
            f"levels of the energy from merges of the engine, beta = {row['beta']:g}",
            level_gap(row),
            0.0,
            1e-3,
            "scipy.integrate.solve_ivp along the path",
        )
        for row in data["rows"]
    ),
    beside=lambda data: tuple(
        Beside(f"position of the stairs, beta = {row['beta']:g}", "reference", f"within {error:.2g} of rescaled time")
        for row, error in zip(data["rows"], stair_errors(data), strict=True)
    ),
    small={"betas": (2000.0, 4000.0), "steps": 20000},
)


def plateau_levels(row: Any) -> Array:
    """Return the energies of SciPy's path right after each merge."""
    clock, energy = np.array(row["clock"]), np.array(row["energy"])
    return np.array([energy[np.abs(clock - jump).argmin()] for jump in row["jumps"]])


def level_gap(row: Any) -> float:
    """Return the largest difference between the levels of the engine's merges and of SciPy's path; infinite if their numbers differ."""
    ours, other = np.array(row["levels"])[1:], plateau_levels(row)
    return float(np.abs(ours - other).max()) if len(ours) == len(other) else float("inf")


FIGURES = (KINETIC, STAIRCASE)
