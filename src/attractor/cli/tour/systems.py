"""Stops of the tour on simulated systems: sphere, Gaussians, theorems."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import torch

from attractor.cli.tour.stop import Settings, Update
from attractor.laws import Attention
from attractor.meanfield import identity_value_blow_up, identity_value_covariance, identity_value_limit
from attractor.observables import hemisphere_margin
from attractor.plotting import style
from attractor.report import Badge, Section, add_check, add_gaussian, add_run, add_sharpness, add_statement, add_theory
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Gaussian, Tokens
from attractor.theory import check, find_theorem

BETA, UNTIL = 9.0, 1e6


def simulate_clusters(section: Section, settings: Settings, update: Update) -> tuple[str, dict[str, Any]]:
    """Simulate tokens on the sphere that form metastable clusters."""
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
    update(f"{n} tokens until t = {until:g}")
    run = flow(law, start, space=Sphere(), until=until, merge=1e-3)
    add_run(section, run, command=shlex.join([*shlex.split(line), "--plot", "tokens.html"]))
    update("testing which theorems apply")
    section.text(
        "What the theory says about this start, before a single step: gradient structure and a limit for sure; one "
        "point in the end, for almost "
        "every start; and that separated clusters wait a time that grows exponentially with \\(\\beta\\). That is why "
        "a few are left when the run ends."
    )
    add_theory(section, run)
    left = int(run.observe("clusters")[-1])
    summary = f"{n} tokens became {left} cluster{'' if left == 1 else 's'} by t = {run.outcome.time:.4g}; {run.outcome.message}"
    return summary, {
        "tokens": n,
        "clusters": left,
        "outcome": run.outcome.name,
        "time": run.outcome.time,
        "merges": run.stats.merges,
    }


def simulate_hemisphere(section: Section, settings: Settings, update: Update) -> tuple[str, dict[str, Any]]:
    """Simulate tokens of a hemisphere, which converge to one point at a known rate."""
    n = 12 if settings.small else 64
    generator = np.random.default_rng(settings.seed)
    points = generator.standard_normal((n, 3))
    points[:, 2] = np.abs(points[:, 2]) + 0.1
    start, law = Tokens(torch.from_numpy(points)), Attention.isotropic(dim=3, beta=2.0)
    section.command = f"attractor tour --stop hemisphere --seed {settings.seed}"
    update(f"{n} tokens in a hemisphere")
    times = np.linspace(0.0, 12.0, 121)
    run = flow(law, start, space=Sphere(), until=12.0, save=times.tolist(), merge=False, stop=[])
    spread = run.points.sub(run.points.mean(-2, keepdim=True)).norm(dim=-1).amax(-1).numpy()
    margin = hemisphere_margin(Tokens.unchecked(run.points, None, None), space=run.space).numpy()
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
    summary = f"{n} tokens in a hemisphere meet in one point: slope {measured:.5f} measured, -1 predicted"
    return summary, {"tokens": n, "rate_measured": measured, "rate_predicted": -1.0, "outcome": run.outcome.name}


def rate_figure(times: np.ndarray, spread: np.ndarray) -> dict[str, Any]:
    """Return the figure of the spread of the tokens and the predicted slope."""
    line = spread[100] * np.exp(-(times - times[100]))
    measured = {
        "type": "scatter",
        "mode": "lines",
        "x": times,
        "y": spread,
        "name": "measured",
        "line": {"width": 3},
    }
    predicted = {
        "type": "scatter",
        "mode": "lines",
        "x": times,
        "y": line,
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
    return {"data": [measured, predicted], "layout": layout}


START = np.array([[1.0, 0.4], [0.4, 0.6]])
COLLAPSE = np.diag([0.0, -1.0])


def integrate_gaussians(section: Section, settings: Settings, update: Update) -> tuple[str, dict[str, Any]]:
    """Integrate two Gaussians, and compare them with the closed form."""
    section.text(
        "Infinitely many tokens are a measure. A Gaussian one stays Gaussian under attention, and with \\(V = I\\) its "
        "covariance is known exactly:"
    )
    section.maths(
        r"\Sigma(t)^{-1} = \Sigma(0)^{-1} - 2t\,S, \qquad S = \mathrm{sym}(Q^\top K), \qquad T^* = "
        r"\frac{1}{2\,\lambda_{\max}(\Sigma_0^{1/2} S\, \Sigma_0^{1/2})}"
    )
    blown = integrate_blow_up(section, update)
    fallen = integrate_collapse(section, update)
    summary = f"one Gaussian blows up at T* = {blown['time']:.8g} (closed form {blown['closed_form']:.8g}); the other collapses onto a line"
    return summary, {"blow_up": blown, "collapse": fallen}


def integrate_blow_up(section: Section, update: Update) -> dict[str, Any]:
    """Integrate with S = I, where the covariance blows up in finite time."""
    update("a Gaussian that blows up")
    law, until = Attention.isotropic(dim=2, beta=1.0), 10.0
    run = flow(law, Gaussian(torch.zeros(2), torch.from_numpy(START)), until=until)
    exact, direction = identity_value_blow_up(np.eye(2), START)
    error = abs(run.outcome.time - exact) / exact
    assert direction is not None
    section.text(
        "With \\(S = I\\) it is infinite at \\(T^*\\). The integrator finds the time by itself and stops there; "
        f"{run.outcome.message}."
    )
    section.card(
        {
            "found by the integrator": f"{run.outcome.time:.12g}",
            "closed form": f"{exact:.12g}",
            "relative difference": f"{error:.1e}",
        },
        "Blow-up time",
        "warn",
    )
    section.card(
        {
            "found": format_pair(run.outcome.direction or (np.nan, np.nan)),
            "closed form": format_pair(direction),
        },
        "Direction",
    )
    add_gaussian(
        section, run, command="attractor gaussian --beta 1 --covariance '1,0.4;0.4,0.6' --report gaussian.html"
    )
    return {"time": run.outcome.time, "closed_form": exact, "relative_difference": error}


def format_pair(values: Any) -> str:
    return f"({values[0]:.6f}, {values[1]:.6f})"


def integrate_collapse(section: Section, update: Update) -> dict[str, Any]:
    """Integrate with S = diag(0, -1), where the covariance converges onto the kernel of S."""
    update("a Gaussian that collapses onto a line")
    query = torch.diag(torch.tensor([0.0, -1.0], dtype=torch.float64))
    law = Attention(query, torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    until = 200.0
    run = flow(law, Gaussian(torch.zeros(2), torch.from_numpy(START)), until=until)
    last = run.covariances[-1].numpy()
    exact = identity_value_covariance(COLLAPSE, START, float(run.times[-1]))
    values, limit = np.linalg.eigvalsh(last), identity_value_limit(COLLAPSE, START)
    error = float(np.abs(last - exact).max())
    section.text(
        r"With \(S = \mathrm{diag}(0, -1)\) nothing blows up. The second direction dies like \(1/(2t)\), and the measure "
        r"collapses onto a line; what is left there is the variance of the first coordinate given the second."
    )
    section.card(
        {
            "smaller eigenvalue": float(values[0]),
            "larger eigenvalue": float(values[1]),
            "its limit": float(limit[0, 0]),
            "at t": float(run.times[-1]),
        },
        "At the end",
        "good",
    )
    section.card(
        {
            "largest difference": f"{error:.1e}",
            "of an entry from": "the closed form",
            "verdict": Badge("agrees" if error < 1e-8 else "differs", "good" if error < 1e-8 else "bad"),
        },
        "Against the closed form",
    )
    add_gaussian(section, run, command="attractor tour --stop gaussians")
    return {"eigenvalues": values.tolist(), "time": float(run.times[-1]), "difference": error}


KEYS = ("consensus.T1", "consensus.T2", "consensus.T3", "meanfield.T3", "meanfield.T5", "regimes.T0", "regimes.T2")


def check_theorems(section: Section, settings: Settings, update: Update) -> tuple[str, dict[str, Any]]:
    """Test theorems on random systems that satisfy the hypotheses, and on systems that violate one."""
    keys, instances, violated = (KEYS[-2:-1], 2, 1) if settings.small else (KEYS, 10, 5)
    options = f"--instances {instances} --violated {violated} --seed {settings.seed}"
    section.text(
        "A theorem here is a file: hypotheses that a computer can decide, and a conclusion that can be measured. "
        "Random systems that satisfy the "
        "hypotheses are integrated and the conclusion is measured on each; then one hypothesis at a time is violated, "
        "to see what it is worth."
    )
    update(f"{len(keys)} theorems on {instances} random systems each")
    found = check(
        keys,
        instances=instances,
        violated=violated,
        seed=settings.seed,
        progress=lambda key, done, all_: update(f"{key} ({done} of {all_})"),
    )
    section.command = f"attractor check {' '.join(f'--theorem {key}' for key in keys)} {options}"
    add_check(section, found)
    add_sharpness(section, found)
    statements = section.fold("The statements")
    for key in keys:
        entry = find_theorem(key)
        add_statement(statements.fold(f"{key}: {entry.title}"), entry)
    count = sum(entry.instances for entry in found.theorems)
    summary = f"{len(keys)} theorems hold on {count} random systems: {found.violations} violations"
    return summary, {"theorems": list(keys), "instances": count, "violations": found.violations}
