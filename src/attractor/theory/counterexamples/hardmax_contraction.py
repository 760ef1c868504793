"""Hardmax attention with a negative interaction does not contract tokens to the origin."""

import numpy as np
import torch

from attractor.laws import Affine, Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence

RUNS, TOKENS, STEP, LAYERS = 200, 12, 0.3, 200


def has_origin_inside(points: np.ndarray) -> bool:
    """Whether the origin is in the hull of points of the plane: no half plane holds all of them."""
    angles = np.sort(np.arctan2(points[:, 1], points[:, 0]))
    gaps = np.diff(np.append(angles, angles[0] + 2 * np.pi))
    return bool(gaps.max() < np.pi)


def run() -> Evidence:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((RUNS, TOKENS, 2))
    points[RUNS // 2 :, :, 0] += 3.0  # hulls that do not hold the origin
    law = Attention.isotropic(2, -1.0, kernel="hardmax") + Affine(-torch.eye(2, dtype=torch.float64))
    found = flow(
        law, Tokens(torch.from_numpy(points)), until=STEP * LAYERS, method="layers", step=STEP, save=LAYERS, stop=()
    )
    norms, spread = found.points.norm(dim=-1), (found.points[-1] - found.points[-1].mean(-2, keepdim=True)).norm(dim=-1)
    inside = np.array([has_origin_inside(start) for start in points])
    ends = norms[-1].amax(-1).numpy()
    facts = {
        "runs": RUNS,
        "runs_with_the_origin_outside": int((~inside).sum()),
        "median_norm_inside": float(np.median(ends[inside])),
        "median_norm_outside": float(np.median(ends[~inside])),
        "smallest_norm_outside": float(ends[~inside].min()),
        "median_spread": float(spread.amax(-1).median()),
    }
    refuted = facts["smallest_norm_outside"] > 0.05 and facts["median_norm_inside"] > 0.01
    sentence = (
        f"after {LAYERS} layers of step {STEP:g} tokens have a median norm of {facts['median_norm_outside']:.3g} where the hull of the "
        f"start does not hold the origin, and {facts['median_norm_inside']:.2g} where it does: they do not tend to the origin"
    )
    layers = (found.times / STEP).tolist()
    panels = tuple(
        Panel((Curve(layers, norms[:, chosen].amax(-1).median(-1).values.tolist()),), x="layer", y="largest norm, median",
              title=title, log_y=True)
        for chosen, title in ((inside, "origin in the hull"), (~inside, "origin outside"))
    )  # fmt: skip
    return Evidence(facts, refuted, sentence, panels)


EXAMPLE = CounterExample(
    key="consensus.hardmax-contraction",
    title="Hardmax with P < 0 contracts to the origin",
    claim="If the key-query matrix is negative semidefinite, hardmax attention linearly contracts all tokens to one cluster at the origin.",
    source="alcalde2025attention",
    place="abstract of version 1; that of the conference version states a sublinear rate of the energy instead",
    basis="paper",
    verdict="false",
    truth="Hulls are nested, so that tokens stay away from an origin outside the hull of the start; with a fixed step they do not tend "
    "to an origin inside it either.",
    run=run,
)
