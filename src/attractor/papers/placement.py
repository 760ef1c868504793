"""Placement of the normalisation and a feed-forward part: exponential or power-law consensus, and the exponents.

Post-norm layers are those of the sphere, where consensus is exponential. In pre-norm layers the residual stream grows
like the number of layers k, so that every layer turns tokens by a step of 1/k, and angles decay like a power of k.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from attractor.laws import MLP, Attention, Block, Law, RMSNorm
from attractor.papers.figure import (
    SEED,
    Data,
    Figure,
    Parameter,
    Settings,
    Update,
    draw_answer,
    judge_answer,
    summarise_answer,
)
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Tokens

PLACEMENTS = ("none", "pre", "post", "peri")
PANELS = 3  # of four: what fits a page


def draw_start(tokens: int, dim: int, seed: int) -> Tokens:
    """Draw Gaussian tokens in a half-space, with mean square one."""
    raw = Tokens.gaussian(tokens, dim, seed=seed).points
    raw[:, 0] = raw[:, 0].abs() + 1.0
    return Tokens(raw / raw.square().mean(-1, keepdim=True).sqrt())


def draw_feedforward(dim: int, seed: int) -> MLP:
    """Draw a random feed-forward part of width 4 d."""
    draw = np.random.default_rng(seed)
    parts = [torch.from_numpy(draw.standard_normal(shape)) for shape in ((4 * dim, dim), (dim, 4 * dim))]
    return MLP(parts[0] / dim**0.5, None, 0.3 * parts[1] / (4 * dim) ** 0.5, None, activation="gelu")


def build_block(placement: str, dim: int, mask: str | None, feedforward: Law | None) -> Block:
    """Build a block with identity values and weak isotropic scores."""
    eye = torch.eye(dim, dtype=torch.float64)
    norms = () if placement == "none" else RMSNorm()
    return Block(Attention(eye / dim, eye, eye, mask=mask), feedforward, placement, norms)  # type: ignore[arg-type]


def largest_gap(points: torch.Tensor) -> torch.Tensor:
    """Return the largest 1 - cos between two tokens, from their chord."""
    unit = points / points.norm(dim=-1, keepdim=True)
    return (unit.unsqueeze(-2) - unit.unsqueeze(-3)).square().sum(-1).amax((-2, -1)) / 2


def fit_decay(layers: np.ndarray, values: np.ndarray) -> tuple[str, float]:
    """Return which of an exponential and a power fits the second half of a decay better, and its rate or exponent."""
    used = (values > 1e-13) & (layers > 0)
    layers, logs = layers[used], np.log(values[used])
    half = slice(len(logs) // 2, None)
    found = {}
    for name, axis in (("exponential", layers), ("power", np.log(layers))):
        slope, offset = np.polyfit(axis[half], logs[half], 1)
        found[name] = (float(np.square(logs[half] - slope * axis[half] - offset).sum()), float(slope))
    best = min(found, key=lambda name: found[name][0])
    return best, found[best][1]


def compute(settings: Settings, progress: Update) -> Data:
    """Iterate layers of every placement, with and without mask and feed-forward."""
    dim, layers, seed = settings["dim"], settings["layers"], settings["seed"]
    tokens, feedforward = draw_start(settings["tokens"], dim, seed), draw_feedforward(dim, seed)
    saved = sorted({0, *np.unique(np.geomspace(1, layers, settings["saved"]).astype(int)).tolist()})
    rows: list[Data] = []
    curves: list[Data] = []
    for mask in (None, "causal"):
        for placement in PLACEMENTS:
            for part in (None, feedforward):
                progress(len(rows), 4 * len(PLACEMENTS))
                law = build_block(placement, dim, mask, part)
                depth = [float(k) for k in saved if placement != "none" or k <= 200]
                found = flow(law, tokens, save=depth, method="layers", step=1.0, stop=(), merge=False)
                depth = found.times.tolist()  # without norm a run may end at overflow
                values = largest_gap(found.points).numpy()
                kind, slope = fit_decay(np.array(depth), values)
                name = placement + (" + feed-forward" if part is not None else "")
                row = {"mask": mask or "full", "layer": name, "decay": kind, "slope": slope}
                rows.append(
                    {**row, "1 - cos at layer 12": float(np.interp(12, depth, values)), "at the end": float(values[-1])}
                )
                curves.append({"mask": mask or "full", "layer": name, "depth": depth, "gap": values.tolist()})
    by = {(row["mask"], row["layer"]): row for row in rows}
    answer = (
        f"without feed-forward, post-norm layers agree exponentially (slope {by['full', 'post']['slope']:.3g} of "
        f"log(1 - cos) a layer, full), pre-norm layers like "
        f"a power of the layer: k^{by['full', 'pre']['slope']:.2f} under full attention and k^{by['causal', 'pre']['slope']:.2f} under a "
        f"causal mask; a random feed-forward part of this size "
        f"leaves 1 - cos = {by['full', 'pre + feed-forward']['at the end']:.2g} (pre) and "
        f"{by['full', 'post + feed-forward']['at the end']:.2g} (post) at the end"
    )
    limits = (
        "Identity values, weak isotropic scores, one random feed-forward part that is the same in every layer; "
        "trained weights may differ."
    )
    return {"answer": answer, "limits": limits, "rows": rows, "curves": curves}


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the largest 1 - cos along depth."""
    panels = []
    for mask in ("full", "causal"):
        for suffix in ("", " + feed-forward"):
            names = [placement + suffix for placement in PLACEMENTS]
            chosen = [row for row in data["curves"] if row["mask"] == mask and row["layer"] in names]
            curves = tuple(
                Curve(row["depth"][1:], np.maximum(row["gap"][1:], 1e-16).tolist(), row["layer"].removesuffix(suffix))
                for row in chosen
            )
            title = mask + (", feed-forward" if suffix else "")
            panels.append(Panel(curves, "layers", "largest 1 - cos", title, log_x=True, log_y=True))
    return draw_answer(data, tuple(panels[:PANELS]), path)


FIGURE = Figure(
    key="placement",
    title="Placement of the normalisation",
    question="What do the place of the LayerNorm and a feed-forward part change about consensus?",
    source="abella2024asymptotic",
    parameters=(
        SEED,
        Parameter("layers", 240, "number of layers", minimum=20),
        Parameter("saved", 60, "layers at which tokens are saved, at most", minimum=10),
        Parameter("tokens", 8, "tokens", minimum=2),
        Parameter("dim", 8, "dimension", minimum=2),
    ),
    cost=5.0,
    compute=compute,
    draw=draw,
    summarise=summarise_answer,
    verdict=judge_answer,
    small={"layers": 60, "saved": 30},
)
