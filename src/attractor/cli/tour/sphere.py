r"""Tokens on the sphere: clusters that wait, and a start for which a theorem gives the rate."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import torch

from attractor.attention import Attention
from attractor.cli.simulatepage import add_run, add_theory
from attractor.cli.tour.stop import Say, Settings
from attractor.flow import flow
from attractor.observables import hemisphere_margin
from attractor.pictures import style
from attractor.report import Section
from attractor.spaces import Sphere
from attractor.states import Tokens

BETA, UNTIL = 9.0, 1e6


def clusters(section: Section, settings: Settings, say: Say) -> tuple[str, dict[str, Any]]:
    """256 tokens: they gather in clusters, and the clusters wait."""
    n, until = (24, 1e3) if settings.small else (256, UNTIL)
    law, start = Attention.isotropic(dim=3, beta=BETA), Tokens.uniform(n, 3, seed=settings.seed)
    line = f"attractor simulate --tokens {n} --dim 3 --beta {BETA:g} --space sphere --until {until:g} --merge 1e-3 --seed {settings.seed}"
    section.text(
        "Every token is a point on the sphere. Attention pulls it towards the tokens it attends to, and the sphere "
        "keeps its length: "
        "that is what a layer of a Transformer does, with depth as time."
    )
    section.maths(
        r"\dot x_i = P_{x_i}\Big(\sum_j w_{ij}\, x_j\Big), \qquad "
        r"w_{ij} = \frac{e^{\beta\langle x_i, x_j\rangle}}{\sum_k e^{\beta\langle x_i, x_k\rangle}}"
    )
    say(f"{n} tokens until t = {until:g}")
    run = flow(law, start, space=Sphere(), until=until, merge=1e-3)
    add_run(section, run, command=shlex.join([*shlex.split(line), "--plot", "tokens.html"]))
    say("asking the theorems about the start")
    section.text(
        "What the theory says about this start, before a single step: gradient structure and a limit for sure; one "
        "point in the end, for almost "
        "every start; and that separated clusters wait a time that grows exponentially with \\(\\beta\\). That is why "
        "a few are left when the run ends."
    )
    add_theory(section, run)
    left = int(run.observe("clusters")[-1])
    words = f"{n} tokens became {left} cluster{'' if left == 1 else 's'} by t = {run.outcome.time:.4g}; {run.outcome.message}"
    return words, {
        "tokens": n,
        "clusters": left,
        "outcome": run.outcome.name,
        "time": run.outcome.time,
        "merges": run.stats.merges,
    }


def hemisphere(section: Section, settings: Settings, say: Say) -> tuple[str, dict[str, Any]]:
    """A start in a hemisphere: one point, at a rate that is known beforehand."""
    n = 12 if settings.small else 64
    generator = np.random.default_rng(settings.seed)
    points = generator.standard_normal((n, 3))
    points[:, 2] = np.abs(points[:, 2]) + 0.1
    start, law = Tokens(torch.from_numpy(points)), Attention.isotropic(dim=3, beta=2.0)
    section.command = f"attractor tour --stop hemisphere --seed {settings.seed}"
    say(f"{n} tokens in a hemisphere")
    times = np.linspace(0.0, 12.0, 121)
    run = flow(law, start, space=Sphere(), until=12.0, save=times.tolist(), merge=False, stop=[])
    spread = run.points.sub(run.points.mean(-2, keepdim=True)).norm(dim=-1).amax(-1).numpy()
    margin = hemisphere_margin(Tokens.trusted(run.points, None, None), space=run.space).numpy()
    measured = float(np.polyfit(times[60:100], np.log(spread[60:100]), 1)[0])
    section.text(
        "When all tokens start in one open hemisphere, a theorem promises more: they meet in one point, and near it "
        "every distance shrinks like "
        r"\(e^{-ct}\) with \(c = 1\) here, whatever the interaction is. The prediction is the dashed line; only its "
        r"height is fitted."
    )
    section.figure(
        rate_figure(times, spread),
        "Largest distance of a token from the mean along time: the measured slope between t = 6 and 10 is "
        f"−{abs(measured):.5f}, the predicted one is −1.",
        "A curve that falls and becomes a straight line of slope minus one on a logarithmic scale, together with the "
        "predicted line.",
        numbers=[
            {"time": float(t), "spread": float(s), "hemisphere margin": float(m)}
            for t, s, m in zip(times[::10], spread[::10], margin[::10], strict=True)
        ],
    )
    add_theory(section, run)
    words = f"{n} tokens in a hemisphere meet in one point: slope {measured:.5f} measured, -1 predicted"
    return words, {"tokens": n, "rate_measured": measured, "rate_predicted": -1.0, "outcome": run.outcome.name}


def rate_figure(times: np.ndarray, spread: np.ndarray) -> dict[str, Any]:
    """The spread of the tokens and the line that the theorem predicts."""
    promised = spread[100] * np.exp(-(times - times[100]))
    happened = {
        "type": "scatter",
        "mode": "lines",
        "x": times,
        "y": spread,
        "name": "what happened",
        "line": {"width": 3},
    }
    predicted = {
        "type": "scatter",
        "mode": "lines",
        "x": times,
        "y": promised,
        "name": "the theorem: slope −1",
        "line": {"width": 2, "dash": "dash", "color": style.PALETTE[1]},
    }
    layout = {
        "xaxis": {"title": {"text": "time"}},
        "yaxis": {
            "type": "log",
            "title": {"text": "largest distance from the mean"},
            "exponentformat": "power",
            "dtick": 1,
        },
    }
    return {"data": [happened, predicted], "layout": layout}
