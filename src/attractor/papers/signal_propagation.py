"""arXiv 2505.24333, figure 1: the cosine of tokens along depth at initialisation, below and above the critical variance."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from attractor.papers.figure import (
    SEED,
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
    make_law,
    make_tokens,
)
from attractor.plotting import Curve, Panel

Array = NDArray[np.float64]
CODE = "aGiorlandino/ICLR-Signal-Propagation-Transformers d3d7ffc"


def predict_block(p: float, beta: float, var_w: float, var_b: float) -> float:
    """Return the cosine after a block, from that before it: the theory of the paper, for long sequences."""
    critical = math.sqrt(2.0 / (1.0 - p))
    own = p if beta < critical else p + (1.0 - p) * (1.0 - critical / beta)
    p = (var_w * p + var_b + p) / (var_w * own + var_b + 1.0)
    q1, p1 = var_w + var_b, var_w * p + var_b
    c = min(1.0, p1 / q1)
    arc = (math.sqrt(1.0 - c * c) + c * (math.pi - math.acos(c))) / math.pi
    return (var_w * q1 / 2.0 * arc + var_b + p) / (var_w * q1 / 2.0 + var_b + 1.0)


def normalise(x: Array) -> Array:
    """LayerNorm without gain and bias."""
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True))


def mean_cosine(x: Array) -> float:
    """Mean cosine of two different tokens."""
    units = x / np.linalg.norm(x, axis=-1, keepdims=True)
    n = len(x)
    return float(((units @ units.T).sum() - n) / (n * (n - 1)))


def compute(settings: Settings, work: Work) -> Data:
    """Apply blocks of random weights to random tokens, for every beta, and iterate the theory."""
    n, d, layers = settings["tokens"], settings["dim"], settings["layers"]
    var_w, var_b, rows = settings["var_w"], settings["var_b"], []
    for number, beta in enumerate(settings["betas"]):

        def trial(number: int = number, beta: float = beta) -> list[list[float]]:
            found = []
            for seed in range(settings["trials"]):
                rng = np.random.default_rng([settings["seed"], number, seed])
                shared = rng.standard_normal(d)
                x = normalise(
                    math.sqrt(1 - settings["cosine"]) * rng.standard_normal((n, d))
                    + math.sqrt(settings["cosine"]) * shared
                )
                cosines = [mean_cosine(x)]
                # scores of two tokens have the variance beta^2 log(n), as in the code
                size = math.sqrt(beta) * math.log(n) ** 0.25 / math.sqrt(d)
                for _ in range(layers):
                    query, key = (size * rng.standard_normal((d, d)) for _ in range(2))
                    value = math.sqrt(var_w / d) * rng.standard_normal((d, d))
                    bias = math.sqrt(var_b) * rng.standard_normal((3, d))
                    law = make_law(query, key, value, scale=d**-0.5, value_bias=torch.from_numpy(bias[0]))
                    x = normalise(law.velocity(make_tokens(x)).numpy() + x)
                    up, down = (math.sqrt(var_w / d) * rng.standard_normal((d, d)) for _ in range(2))
                    x = normalise(np.maximum(x @ up.T + bias[1], 0.0) @ down.T + bias[2] + x)
                    cosines.append(mean_cosine(x))
                found.append(cosines)
                work(number * settings["trials"] + seed, len(settings["betas"]) * settings["trials"])
            return found

        trials = np.array(work.keep(f"beta {beta:g}", trial))
        theory = [float(trials[:, 0].mean())]
        for _ in range(layers):
            theory.append(predict_block(theory[-1], beta, var_w, var_b))
        rows.append({"beta": beta, "mean": trials.mean(0), "spread": trials.std(0), "theory": theory})
    return {"rows": rows}


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw measured and predicted cosines along depth."""
    curves: list[Curve] = []
    for k, row in enumerate(data["rows"]):
        mean, spread, layers = np.array(row["mean"]), np.array(row["spread"]), range(len(row["mean"]))
        curves.append(Curve(layers, mean, f"beta = {row['beta']:g}", low=mean - spread, high=mean + spread, colour=k))
        curves.append(Curve(layers, row["theory"], "theory" if k == 0 else "", dashed=True))
    settings = data["settings"]
    caption = (
        f"Mean cosine of {settings['tokens']} tokens along blocks with norms after each part, weights drawn anew in every layer; "
        f"{settings['trials']} trials, band: their standard deviation."
    )
    return draw_captioned(data, (Panel(tuple(curves), "layer", "mean cosine"),), caption, path)


def largest_gap(row: Data) -> float:
    return float(np.abs(np.array(row["mean"]) - np.array(row["theory"])).max())


FIGURE = Figure(
    key="cosine-depth",
    title="Cosines of tokens along depth at initialisation",
    question="When do tokens collapse along depth at initialisation, and does the theory of long sequences predict it?",
    source="giorlandino2026two",
    reference=f"figure 1; deep_prop_encoder.ipynb of {CODE}",
    parameters=(
        SEED,
        Parameter(
            "betas", (0.5, 3.0), "strength of queries and keys", f"deep_prop_encoder.ipynb, cell 6 of {CODE}", 0.0
        ),
        Parameter("layers", 50, "layers", "deep_prop_encoder.ipynb, cell 6", 1),
        Parameter(
            "var_w",
            0.2,
            "variance of values and of feed-forward weights, times the width",
            "deep_prop_encoder.ipynb, cell 6",
            0.0,
        ),
        Parameter("var_b", 4e-4, "variance of biases", "deep_prop_encoder.ipynb, cell 6", 0.0),
        Parameter("dim", 720, "width", "deep_prop_encoder.ipynb, cell 2", 8),
        Parameter("tokens", 256, "tokens; the code has up to 512", "deep_prop_encoder.ipynb, cell 2", 2),
        Parameter("trials", 2, "trials; the code has 3 models on 10 texts", "deep_prop_encoder.ipynb, cell 6", 1),
        Parameter("cosine", 0.05, "cosine of the tokens at the start; the code has texts of TinyStories", minimum=0.0),
    ),
    unknown=("The texts of the printed figure, and with them the cosine at the start.",),
    cost=12.0,
    compute=compute,
    draw=draw,
    summarise=lambda data: (
        Table(
            "Mean cosine",
            ("beta", "start", "end", "theory at the end", "largest difference"),
            tuple(
                (
                    f"{row['beta']:g}",
                    f"{row['mean'][0]:.3f}",
                    f"{row['mean'][-1]:.3f}",
                    f"{row['theory'][-1]:.3f}",
                    f"{largest_gap(row):.2g}",
                )
                for row in data["rows"]
            ),
        ),
    ),
    verdict=lambda data: Verdict(
        "reproduced" if all(largest_gap(row) < 0.2 for row in data["rows"]) else "differs",
        "Measured cosines are within "
        + ", ".join(f"{largest_gap(row):.2g} (beta = {row['beta']:g})" for row in data["rows"])
        + f" of the theory, which is that of infinitely long sequences; tokens here number {data['settings']['tokens']}.",
    ),
    compare=lambda data: tuple(
        Comparison(
            f"cosine at the end, beta = {row['beta']:g}",
            row["mean"][-1],
            row["theory"][-1],
            0.2,
            "the recursion of the authors' theory",
        )
        for row in data["rows"]
    ),
    beside=lambda data: tuple(
        Beside(
            f"cosine at the end, beta = {row['beta']:g}", f"{row['mean'][-1]:.3f}", f"{row['theory'][-1]:.3f} (theory)"
        )
        for row in data["rows"]
    ),
    small={"layers": 6, "dim": 48, "tokens": 48, "trials": 1},
)
