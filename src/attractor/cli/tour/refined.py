r"""One refined layer: a metric shift moves every head of it towards expansion or contraction.

.. math:: W' = W + \lambda V, \qquad \mathrm{sym}(V^\top W') = \mathrm{sym}(V^\top W) + \lambda V^\top V
"""

from __future__ import annotations

import shlex
from typing import Any

import torch
from torch import Tensor

from attractor.cli.tour.model import DEFAULT, TEXT, name_of, opened
from attractor.cli.tour.stop import Say, Settings, Skipped
from attractor.errors import CheckpointError, UnsupportedError
from attractor.pictures import style
from attractor.report import Badge, Section

STRENGTH = 3.0


def refined(section: Section, settings: Settings, say: Say) -> tuple[str, dict[str, Any]]:
    """The middle layer with strengths -3, 0 and 3; at 0 nothing changes, bit by bit."""
    from attractor.checkpoints import trace
    from attractor.checkpoints.running import token_ids, tokenizer_of, whole_model
    from attractor.nn import refine, unrefine

    found = opened(settings.model)
    layer = (len(found.layers) - 1) // 2
    section.command = shlex.join(["attractor", "tour", "--stop", "refine", *chosen(settings)])
    say(f"refining layer {layer} of {name_of(found)}")
    try:
        ids, _ = token_ids(found, settings.text or TEXT, tokenizer_of(found), None)
        model = whole_model(found)
        plain = trace(model, ids, attention=False)
        runs = {}
        for strength in (-STRENGTH, 0.0, STRENGTH):
            refine(model, "shift", layers=[layer], sign="free", value=strength)
            say(f"strength {strength:g}")
            runs[strength] = trace(model, ids, attention=False)
            unrefine(model)
    except (CheckpointError, UnsupportedError) as error:
        raise Skipped(str(error)) from None
    same = bool(torch.equal(runs[0.0].points, plain.points))
    section.text(
        "An attention layer can be given a term that moves its regime. The metric shift adds \\(\\lambda V\\) to the "
        "interaction \\(W\\) of every head of "
        f"layer {layer}; at \\(\\lambda = 0\\) the model is what it was, and then \\(\\lambda\\) is a parameter to "
        "train."
    )
    section.maths(
        r"W' = W + \lambda V \quad\Rightarrow\quad \mathrm{sym}(V^\top W') = \mathrm{sym}(V^\top W) + \lambda\, V^\top "
        r"V"
    )
    section.card(
        {"states at λ = 0": Badge("identical, bit by bit" if same else "different", "good" if same else "bad")},
        "Nothing changes at zero",
        "good" if same else "bad",
    )
    add_indices(section, found.layers[layer].law(), layer)
    curves = {
        strength: run.measurements.curves["cosine"] for strength, run in runs.items() if run.measurements is not None
    }
    add_depth(section, curves, layer)
    last = {strength: float(curve[-1]) for strength, curve in curves.items()}
    words = f"layer {layer} of {name_of(found)} refined: last mean cosine " + ", ".join(
        f"{value:.3f} at λ = {strength:g}" for strength, value in last.items()
    )
    return words, {
        "layer": layer,
        "unchanged_at_zero": same,
        "cosine": {f"{strength:g}": value for strength, value in last.items()},
    }


def chosen(settings: Settings) -> list[str]:
    """Options of the tour that matter here."""
    given = {"--model": settings.model if settings.model != DEFAULT else "", "--text": settings.text}
    return [word for option, value in given.items() if value for word in (option, value)]


def index(matrix: Tensor) -> Tensor:
    """Sum of the eigenvalues of the symmetric part over the sum of their sizes: 1 where all are positive, -1 where "
    "all are negative."""
    values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    return values.sum(-1) / values.abs().sum(-1)


def add_indices(section: Section, law: Any, layer: int) -> None:
    """The index of sym(V'W') of every head at three strengths."""
    value = law.value_map.reshape(-1, law.dim, law.dim)
    interaction = law.interaction.reshape(value.shape)
    indices = {s: index(value.mT @ (interaction + s * value)) for s in (-STRENGTH, 0.0, STRENGTH)}
    data = [
        {
            "type": "bar",
            "name": f"λ = {strength:g}",
            "x": [f"head {head}" for head in range(len(values))],
            "y": values.tolist(),
            "marker": {"color": colour},
        }
        for (strength, values), colour in zip(
            indices.items(), (style.PALETTE[0], "#8a94a3", style.PALETTE[1]), strict=True
        )
    ]
    rows = [
        {"head": head, **{f"λ = {strength:g}": float(values[head]) for strength, values in indices.items()}}
        for head in range(len(indices[0.0]))
    ]
    section.figure(
        {
            "data": data,
            "layout": {"yaxis": {"range": [-1.05, 1.05], "title": {"text": "index of V'W'"}}, "bargap": 0.25},
        },
        f"Index of every head of layer {layer}, from −1 (contracts everywhere) to 1 (expands everywhere): a positive "
        "strength raises it, a negative one lowers it.",
        f"Three bars for each of {len(rows)} heads; those of positive strength are the highest.",
        height=360,
        numbers=rows,
    )


def add_depth(section: Section, curves: dict[float, Tensor], layer: int) -> None:
    """Mean cosine along depth at three strengths."""
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"λ = {strength:g}",
            "x": list(range(len(curve))),
            "y": curve.tolist(),
            "line": {"color": colour, "width": 2.5},
        }
        for (strength, curve), colour in zip(
            curves.items(), (style.PALETTE[0], "#8a94a3", style.PALETTE[1]), strict=True
        )
    ]
    rows = [
        {"blocks passed": place, **{f"λ = {strength:g}": float(curve[place]) for strength, curve in curves.items()}}
        for place in range(len(curves[0.0]))
    ]
    section.figure(
        {
            "data": data,
            "layout": {
                "xaxis": {"title": {"text": "blocks passed"}, "dtick": 1},
                "yaxis": {"title": {"text": "mean cosine of two tokens"}},
            },
        },
        f"Mean cosine of two tokens of the sentence along depth: up to layer {layer} the three runs are one, after it "
        "they part. One sentence is one sentence: "
        "what a trained strength does is measured on data.",
        "Three curves that coincide up to the refined layer and then part.",
        height=360,
        numbers=rows,
    )
