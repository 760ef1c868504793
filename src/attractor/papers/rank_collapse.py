"""arXiv 2103.03404: the rank of a network of attention layers, with and without skip connections and feed-forward layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
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
from attractor.plotting import Curve, Panel

Array = NDArray[np.float64]
CODE = "twistedcubic/attention-rank-collapse 38b5df6"
VARIANTS = {
    "attention alone": (False, False),
    "with feed-forward": (False, True),
    "with skip": (True, False),
    "with skip and feed-forward": (True, True),
}


def residual(points: Array) -> float:
    """Return sqrt(|R|_1 |R|_inf) of the residual R = X - 1 x', x the best row in the norm of Frobenius, over that of X."""

    def size(matrix: Array) -> float:
        return float(np.sqrt(np.abs(matrix).sum(0).max() * np.abs(matrix).sum(1).max()))

    return size(points - points.mean(0)) / max(size(points), 1e-300)


def compute(settings: Settings, work: Work) -> Data:
    """Apply layers of random weights, as transformers initialise them, to random tokens."""
    n, d, heads, layers = settings["tokens"], settings["dim"], settings["heads"], settings["layers"]
    rng = np.random.default_rng(settings["seed"])
    start = rng.standard_normal((n, d))
    size, k = settings["spread"] / d**0.5, d // heads
    weights = []
    for _ in range(layers):
        parts: dict[str, Any] = {name: size * rng.standard_normal((heads, k, d)) for name in ("query", "key", "value")}
        parts |= {"output": size * rng.standard_normal((heads, d, k)), "scale": k**-0.5}
        weights.append((parts, size * rng.standard_normal((4 * d, d)), size / 2 * rng.standard_normal((d, 4 * d))))
    rows, gap = {}, 0.0
    for number, (name, (skip, feed)) in enumerate(VARIANTS.items()):
        work(number, len(VARIANTS))
        x, found = start.copy(), [residual(start)]
        for parts, up, down in weights:
            moved = Attention(**parts).velocity(make_tokens(x)).numpy()
            if number == 0 and len(found) == 1:
                gap = float(np.abs(moved - plain_attention(x, parts)).max() / np.abs(moved).max())
            x = x + moved if skip else moved
            if feed:
                moved = np.maximum(x @ up.T, 0.0) @ down.T
                x = x + moved if skip else moved
            # a common factor changes neither the residual's share nor, after a norm, the next layer
            x = x / np.linalg.norm(x, axis=-1, keepdims=True).mean() * d**0.5
            found.append(residual(x))
        rows[name] = found
    return {"rows": rows, "gap": gap}


def plain_attention(x: Array, parts: dict[str, Any]) -> Array:
    """Attention of all heads by PyTorch's function."""
    tensor = {name: torch.as_tensor(part) for name, part in parts.items() if name != "scale"}
    points = torch.as_tensor(x)
    q, k, v = (points @ tensor[name].mT for name in ("query", "key", "value"))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=parts["scale"])
    return (out @ tensor["output"].mT).sum(0).numpy()


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the residual along depth."""
    curves = tuple(Curve(range(len(row)), [max(one, 1e-17) for one in row], name) for name, row in data["rows"].items())
    caption = "Distance from rank one along depth, in the composite norm sqrt(|R|_1 |R|_inf), over that of the tokens; random weights."
    return draw_captioned(data, (Panel(curves, "layer", "relative residual", log_y=True),), caption, path)


def judge(data: Data) -> Verdict:
    ends = {name: row[-1] for name, row in data["rows"].items()}
    alone = data["rows"]["attention alone"]
    first = next((layer for layer, value in enumerate(alone) if value < 1e-10), None)
    words = (
        "Relative residuals after the last layer: "
        + ", ".join(f"{value:.2g} ({name})" for name, value in ends.items())
        + f". Attention alone is below 1e-10 {'after ' + str(first) + ' layers' if first else 'in no layer'}. Weights here are random; the "
        "paper shows trained models."
    )
    good = ends["attention alone"] < 1e-6 < 1e-2 < ends["with skip"]
    return Verdict("reproduced" if good else "differs", words)


FIGURE = Figure(
    key="rank-collapse",
    title="Attention without skip connections loses rank",
    question="What do skip connections and feed-forward layers do to the rank of the tokens?",
    source="dong2021attention",
    reference=f"figure 2; paper-plotting/walking_casual_transformers.ipynb of {CODE}",
    parameters=(
        SEED,
        Parameter("tokens", 32, "tokens", minimum=2),
        Parameter("dim", 96, "dimension", minimum=2),
        Parameter("heads", 6, "heads", minimum=1),
        Parameter("layers", 12, "layers, as in BERT base", "the paper shows BERT, ALBERT and XLNet", 1),
        Parameter("spread", 1.0, "standard deviation of weights times the root of the dimension", minimum=0.01),
    ),
    unknown=(
        "Weights of the models of the paper are not available here; `attractor trace MODEL --without skip` measures a model at hand.",
    ),
    cost=1.0,
    compute=compute,
    draw=draw,
    summarise=lambda data: (
        Table(
            "Relative residual",
            ("network", "at the start", "after half", "at the end"),
            tuple(
                (name, f"{row[0]:.3g}", f"{row[len(row) // 2]:.3g}", f"{row[-1]:.3g}")
                for name, row in data["rows"].items()
            ),
        ),
    ),
    verdict=judge,
    compare=lambda data: (
        Comparison(
            "relative difference of the first layer",
            data["gap"],
            0.0,
            1e-12,
            "torch.nn.functional.scaled_dot_product_attention",
        ),
    ),
    small={"tokens": 8, "dim": 24, "heads": 2},
)
