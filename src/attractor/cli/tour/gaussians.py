r"""Two Gaussians: one blows up in finite time, the other collapses onto a line; both have closed forms.

Under softmax attention with V = I the covariance obeys :math:`\Sigma^{-1}(t) = \Sigma_0^{-1} - 2tS`, S the symmetric part of Q'K.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attractor.attention import Attention
from attractor.cli.gaussianpage import add_gaussian
from attractor.cli.tour.stop import Say, Settings
from attractor.flow import flow
from attractor.meanfield import identity_value, identity_value_blow_up, identity_value_limit
from attractor.report import Badge, Section
from attractor.states import Gaussian

START = np.array([[1.0, 0.4], [0.4, 0.6]])
COLLAPSE = np.diag([0.0, -1.0])


def gaussians(section: Section, settings: Settings, say: Say) -> tuple[str, dict[str, Any]]:
    """Infinitely many tokens: a Gaussian stays Gaussian, and its covariance has an equation of its own."""
    section.text(
        "Infinitely many tokens are a measure. A Gaussian one stays Gaussian under attention, and with \\(V = I\\) its "
        "covariance is known exactly:"
    )
    section.maths(
        r"\Sigma(t)^{-1} = \Sigma(0)^{-1} - 2t\,S, \qquad S = \mathrm{sym}(Q^\top K), \qquad T^* = "
        r"\frac{1}{2\,\lambda_{\max}(\Sigma_0^{1/2} S\, \Sigma_0^{1/2})}"
    )
    blown = blow_up(section, say)
    fallen = collapse(section, say)
    words = f"one Gaussian blows up at T* = {blown['time']:.8g} (closed form {blown['closed_form']:.8g}); the other collapses onto a line"
    return words, {"blow_up": blown, "collapse": fallen}


def blow_up(section: Section, say: Say) -> dict[str, Any]:
    """S = I: infinite in finite time."""
    say("a Gaussian that blows up")
    law, until = Attention.isotropic(dim=2, beta=1.0), 10.0
    run = flow(law, Gaussian(torch.zeros(2), torch.from_numpy(START)), until=until)
    promised, direction = identity_value_blow_up(np.eye(2), START)
    error = abs(run.outcome.time - promised) / promised
    assert direction is not None
    section.text(
        "With \\(S = I\\) it is infinite at \\(T^*\\). The integrator finds the time by itself and stops there; "
        f"{run.outcome.message}."
    )
    section.card(
        {
            "found by the integrator": f"{run.outcome.time:.12g}",
            "closed form": f"{promised:.12g}",
            "relative difference": f"{error:.1e}",
        },
        "Blow-up time",
        "warn",
    )
    section.card(
        {
            "found": pair(run.outcome.direction or (np.nan, np.nan)),
            "closed form": pair(direction),
        },
        "Direction",
    )
    add_gaussian(
        section, run, command="attractor gaussian --beta 1 --covariance '1,0.4;0.4,0.6' --report gaussian.html"
    )
    return {"time": run.outcome.time, "closed_form": promised, "relative_difference": error}


def pair(values: Any) -> str:
    return f"({values[0]:.6f}, {values[1]:.6f})"


def collapse(section: Section, say: Say) -> dict[str, Any]:
    """S = diag(0, -1): onto the kernel of S."""
    say("a Gaussian that collapses onto a line")
    query = torch.diag(torch.tensor([0.0, -1.0], dtype=torch.float64))
    law = Attention(query, torch.eye(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    until = 200.0
    run = flow(law, Gaussian(torch.zeros(2), torch.from_numpy(START)), until=until)
    last = run.covariances[-1].numpy()
    promised = identity_value(COLLAPSE, START, float(run.times[-1]))
    values, limit = np.linalg.eigvalsh(last), identity_value_limit(COLLAPSE, START)
    error = float(np.abs(last - promised).max())
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
