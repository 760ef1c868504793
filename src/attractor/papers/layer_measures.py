"""Norms, distances, sharpness and cosines of tokens after each block of trained models [pham2025dynamical]."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attractor.errors import InputError
from attractor.models import silence_transformers, trace
from attractor.observables import cosine, pairwise_distance, sharpness, token_norm
from attractor.papers.figure import Comparison, Data, Figure, Parameter, Settings, Table, Verdict, Work

Array = NDArray[np.float64]
TEXT = "The river had been rising since dawn, and by noon the lower fields were under water."
MEASURES = {"norm": "mean norm", "distance": "mean squared distance", "sharpness": "sharpness", "cosine": "mean cosine"}


def measure_directly(states: Array) -> dict[str, list[float]]:
    """Return the measures of states (blocks + 1, n, d) by sums over all pairs of tokens.

    Sharpness is the sum of squared distances of pairs, over 2 (n - 1) times the sum of squared norms.
    """
    rows: dict[str, list[float]] = {name: [] for name in MEASURES}
    for x in states:
        count, sizes = len(x), np.linalg.norm(x, axis=-1)
        gaps = np.linalg.norm(x[:, None] - x[None], axis=-1)
        unit = x / sizes[:, None]
        pairs = ~np.eye(count, dtype=bool)
        rows["norm"].append(float(sizes.mean()))
        rows["distance"].append(float((gaps[pairs] ** 2).mean()))
        rows["sharpness"].append(float((gaps**2).sum() / (2 * (count - 1) * (sizes**2).sum())))
        rows["cosine"].append(float((unit @ unit.T)[pairs].mean()))
    return rows


def compute(settings: Settings, work: Work) -> Data:
    """Trace a text through every model, and measure the same states directly."""
    if not settings["models"]:
        raise InputError("give the names or paths of models")
    rows = []
    with silence_transformers():
        for number, name in enumerate(settings["models"]):
            work(number, len(settings["models"]))
            found = trace(name, settings["text"], attention=False)
            ours = {
                label: found.observe(function).tolist()
                for label, function in zip(MEASURES, (token_norm, pairwise_distance, sharpness, cosine), strict=True)
            }
            direct = measure_directly(found.points.double().numpy())
            rows.append({"name": name, "tokens": found.points.shape[-2], "ours": ours, "direct": direct})
    return {"rows": rows}


def compare(data: Data) -> tuple[Comparison, ...]:
    """Compare the measures after the last block with sums over all pairs."""
    return tuple(
        Comparison(
            f"{row['name']}: {words} after the last block",
            row["ours"][key][-1],
            row["direct"][key][-1],
            1e-5,
            "NumPy, sums over all pairs",
            relative=True,
        )
        for row in data["rows"]
        for key, words in MEASURES.items()
    )


def judge(data: Data) -> Verdict:
    """Say how norms and sharpness change; the paper's own models are not released."""
    words = [
        f"{row['name']}: norms {row['ours']['norm'][0]:.3g} to {row['ours']['norm'][-1]:.3g}, sharpness "
        f"{row['ours']['sharpness'][0]:.2g} to {row['ours']['sharpness'][-1]:.2g}"
        for row in data["rows"]
    ]
    return Verdict(
        "no published result",
        f"From the embedding to the last block, {'; '.join(words)}. The paper's trained models are not released; these are others.",
    )


def summarise(data: Data) -> tuple[Table, ...]:
    """Return the measures at the start, in the middle and at the end of every model."""
    rows = []
    for row in data["rows"]:
        last = len(row["ours"]["norm"]) - 1
        for block in sorted({0, last // 2, last}):
            rows.append((row["name"], str(block), *(f"{row['ours'][key][block]:.4g}" for key in MEASURES)))
    return (Table("Tokens after each block", ("model", "block", *MEASURES.values()), tuple(rows)),)


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw every measure along depth."""
    from attractor.plotting import Curve, Panel, draw_panels

    panels = []
    for key, words in MEASURES.items():
        curves = []
        for row in data["rows"]:
            values = row["ours"][key]
            depth = [index / (len(values) - 1) for index in range(len(values))]
            curves.append(Curve(depth, values, row["name"] if not panels else ""))
        panels.append(Panel(tuple(curves), "depth", "", words, log_y=key in ("norm", "distance")))
    caption = f"From the embedding (0) to the last block (1). Text: {data['settings']['text']}"
    return (draw_panels(panels, "Tokens along the depth of trained models", caption, path),)


FIGURE = Figure(
    key="tokens-layers",
    title="Norms, distances and sharpness in each block",
    question="How do norms, distances, sharpness and cosines of tokens change from block to block in trained models?",
    source="pham2025dynamical",
    reference="per-block measures printed by the released ImageNet code",
    parameters=(
        Parameter(
            "models", ("minilm", "stories15M"), "names or paths of models (published: DeiT-tiny trained on ImageNet)"
        ),
        Parameter("text", TEXT, "the text"),
    ),
    unknown=("which blocks and inputs the paper's tables average over; the trained models are not released.",),
    cost=5.0,
    compute=compute,
    draw=draw,
    summarise=summarise,
    verdict=judge,
    compare=compare,
    small={"models": ("minilm",), "text": "Tokens move."},
    extras=("plot", "checkpoints"),
    weights=lambda settings: tuple(settings["models"]),
)
