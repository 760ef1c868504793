"""What the place of the normalisation and a feed-forward part change: exponential or power laws, and their exponents.

Post-norm layers are those of the sphere, where consensus is exponential. In pre-norm layers the residual stream grows
like the number of layers k, so every layer turns tokens by a step of 1/k: angles fall like a power of k.
"""

from __future__ import annotations

import numpy as np
import torch

from attractor.laws import MLP, Attention, Block, Law, RMSNorm
from attractor.papers.figure import Answer, Question, Row
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Tokens

DIM, TOKENS, LAYERS = 8, 8, 240
SAVED = sorted({0, *np.unique(np.geomspace(1, LAYERS, 60).astype(int)).tolist()})


def start(seed: int) -> Tokens:
    raw = Tokens.gaussian(TOKENS, DIM, seed=seed).points
    raw[:, 0] = raw[:, 0].abs() + 1.0
    return Tokens(raw / raw.square().mean(-1, keepdim=True).sqrt())


def feedforward(seed: int) -> MLP:
    draw = np.random.default_rng(seed)
    parts = [torch.from_numpy(draw.standard_normal(shape)) for shape in ((4 * DIM, DIM), (DIM, 4 * DIM))]
    return MLP(parts[0] / DIM**0.5, None, 0.3 * parts[1] / (4 * DIM) ** 0.5, None, activation="gelu")


def block(placement: str, mask: str | None, extra: Law | None) -> Block:
    eye = torch.eye(DIM, dtype=torch.float64)
    norms = () if placement == "none" else RMSNorm()
    return Block(Attention(eye / DIM, eye, eye, mask=mask), extra, placement, norms)  # type: ignore[arg-type]


def disagreement(points: torch.Tensor) -> torch.Tensor:
    """Largest 1 - cos between two tokens, from their chord."""
    unit = points / points.norm(dim=-1, keepdim=True)
    return (unit.unsqueeze(-2) - unit.unsqueeze(-3)).square().sum(-1).amax((-2, -1)) / 2


def fitted(layers: np.ndarray, values: np.ndarray) -> tuple[str, float]:
    """Whether an exponential or a power fits the second half of the decay better, and its rate or exponent."""
    kept = (values > 1e-13) & (layers > 0)
    layers, logs = layers[kept], np.log(values[kept])
    half = slice(len(logs) // 2, None)
    found = {}
    for name, axis in (("exponential", layers), ("power", np.log(layers))):
        slope, offset = np.polyfit(axis[half], logs[half], 1)
        found[name] = (float(np.square(logs[half] - slope * axis[half] - offset).sum()), float(slope))
    best = min(found, key=lambda name: found[name][0])
    return best, found[best][1]


def run(seed: int) -> Answer:
    tokens, extra, rows, panels = start(seed), feedforward(seed), [], []
    for mask in (None, "causal"):
        curves: dict[bool, list[Curve]] = {False: [], True: []}
        for placement in ("none", "pre", "post", "peri"):
            for part in (None, extra):
                law = block(placement, mask, part)
                depth = [k for k in SAVED if placement != "none" or k <= 200]
                found = flow(
                    law, tokens, save=[float(k) for k in depth], method="layers", step=1.0, stop=(), merge=False
                )
                depth = found.times.tolist()  # a run without norm may end where numbers do
                values = disagreement(found.points).numpy()
                kind, slope = fitted(np.array(depth), values)
                name = placement + (" + feed-forward" if part is not None else "")
                row: Row = {"mask": mask or "full", "layer": name, "decay": kind, "slope": slope}
                rows.append(
                    {**row, "1 - cos at layer 12": float(np.interp(12, depth, values)), "at the end": float(values[-1])}
                )
                curves[part is not None].append(Curve(depth[1:], np.maximum(values[1:], 1e-16).tolist(), placement))
        for extended, chosen in curves.items():
            title = (mask or "full") + (", feed-forward" if extended else "")
            panels.append(Panel(tuple(chosen), "layers", "largest 1 - cos", title, log_x=True, log_y=True))
    by = {(str(row["mask"]), str(row["layer"])): row for row in rows}
    full, causal = (by[mask, "pre"] for mask in ("full", "causal"))
    sentence = (
        f"without feed-forward, post-norm layers agree exponentially (slope {by['full', 'post']['slope']:.3g} of "
        f"log(1 - cos) a layer, full), pre-norm layers like "
        f"a power of the layer: k^{full['slope']:.2f} under full attention and k^{causal['slope']:.2f} under a "
        f"causal mask; a random feed-forward part of this size "
        f"leaves 1 - cos = {by['full', 'pre + feed-forward']['at the end']:.2g} (pre) and "
        f"{by['full', 'post + feed-forward']['at the end']:.2g} (post) at the end"
    )
    limits = (
        "Identity values, weak isotropic scores, one random feed-forward part that is the same in every layer; "
        "trained weights may differ."
    )
    return Answer(tuple(rows), sentence, limits, tuple(panels[:3]))  # three fit a page; the table has all


QUESTION = Question(
    "placement",
    "Where the normalisation stands",
    "What do the place of the LayerNorm and a feed-forward part change about consensus?",
    "abella2024asymptotic",
    run,
)
