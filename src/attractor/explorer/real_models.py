"""Real models for the explorer: the tokens of a text along depth, all heads of a model, and a head as a system."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attractor.errors import AttractorError, InputError, UnsupportedError
from attractor.explorer.system import Head, Start, System

if TYPE_CHECKING:
    from attractor.models import Audit, AuditHead, Checkpoint, Layer, Trace

MAX_TOKENS = 128  # of a text
MAX_CHARACTERS = 4000
SHOWN_EIGENVALUES = 64  # of each spectrum
SPAN = 1e-10  # singular values below this share of the largest do not belong to the span
DURATION = 40.0  # of the run of a head, in units of one over the norm of its value


def list_models(named: Sequence[str]) -> list[dict[str, Any]]:
    """Return the models that may be opened: those whose packages are installed, and those that were named."""
    from attractor.assets import find_local, list_assets

    rows = [
        {"name": asset.name, "title": asset.about, "available": True, "reason": None}
        for asset in list_assets("model")
        if find_local(asset.name) is not None
    ]
    known = {row["name"] for row in rows}
    rows += [
        {"name": name, "title": Path(name).name or name, "available": True, "reason": None}
        for name in dict.fromkeys(named)
        if name not in known
    ]
    if importlib.util.find_spec("transformers") is None:
        reason = "transformers is not installed: pip install 'attractor[checkpoints]'"
        rows = [{**row, "available": False, "reason": reason} for row in rows]
    return rows


def find_model(name: Any, named: Sequence[str]) -> str:
    """Return the name of a model that may be opened; raise for any other, whatever is on this machine."""
    rows = list_models(named)
    row = next((row for row in rows if row["name"] == name), None)
    if row is None:
        names = ", ".join(row["name"] for row in rows) or "none; give attractor explore --model NAME"
        raise InputError(f"the model {str(name)[:80]!r} is not one of those offered: {names}")
    if not row["available"]:
        raise UnsupportedError(row["reason"])
    return row["name"]


@lru_cache(maxsize=2)
def open_model(name: str) -> Checkpoint:
    """Open a model, and keep it."""
    from attractor.models import checkpoint, silence_transformers

    with silence_transformers():
        return checkpoint(name, structural=True)


@lru_cache(maxsize=2)
def audit_model(name: str) -> Audit:
    """Audit all heads of a model, without null models."""
    from attractor.models import audit, silence_transformers

    with silence_transformers():
        return audit(open_model(name), sums=False, nulls=0, verify=False)


@lru_cache(maxsize=8)
def trace_model(name: str, text: str, ablated: bool = False) -> Trace:
    """Return the tokens of a text along depth; ``ablated``: without feed-forward."""
    from attractor.models import silence_transformers, trace

    without = ("feedforward",) if ablated else ()
    with silence_transformers():
        return trace(open_model(name), text, without=without, attention=False, max_tokens=MAX_TOKENS)


def check_text(text: Any) -> str:
    """Return the text; raise if it is none, or too long."""
    if not isinstance(text, str) or not text.strip():
        raise InputError("give a text of at least two words")
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"the explorer reads texts of up to {MAX_CHARACTERS:,} characters, this one has {len(text):,}")
    return text


def view_model(name: str, text: str) -> dict[str, Any]:
    """Return the tokens of a text along depth in the first principal directions, beside those of attention alone, and all heads."""
    real = trace_model(name, text)
    points = real.points.double()
    notes = list(real.notes)
    try:
        alone: Tensor | None = trace_model(name, text, ablated=True).points.double()
    except AttractorError as error:
        alone = None
        notes.append(f"attention alone is not shown: {error}")
    plane, center, share = principal_directions(points.flatten(0, 1))
    sphere, _, sphere_share = principal_directions(_directions(points).flatten(0, 1), centred=False)
    assert real.measurements is not None
    document = {
        "name": name,
        "words": list(real.words),
        "layers": len(points) - 1,
        "dim": points.shape[-1],
        "projected": ((points - center) @ plane).tolist(),
        "directions": (_directions(points) @ sphere).tolist(),
        "ideal": None if alone is None else ((alone - center) @ plane).tolist(),
        "ideal_directions": None if alone is None else (_directions(alone) @ sphere).tolist(),
        "shares": {"projected": share, "directions": sphere_share},
        "measurements": {key: curve.tolist() for key, curve in real.measurements.curves.items()},
        "notes": notes,
        "heads": [],
    }
    try:
        document["heads"] = [head_row(head) for head in audit_model(name).heads]
    except AttractorError as error:
        notes.append(f"heads are not shown: {error}")
    return document


def principal_directions(points: Tensor, centred: bool = True) -> tuple[Tensor, Tensor, float]:
    """Return the first three principal directions (d, 3) of points (n, d), the centre (d), and their share of the variance."""
    center = points.mean(0) if centred else torch.zeros_like(points[0])
    _, sizes, rows = torch.linalg.svd(points - center, full_matrices=False)
    directions = torch.zeros((points.shape[-1], 3), dtype=points.dtype)
    kept = rows[:3].mT
    # the signs of singular vectors are arbitrary: make the largest entry positive
    kept = kept * kept.gather(0, kept.abs().argmax(0, keepdim=True)).sign()
    directions[:, : kept.shape[-1]] = kept
    total = float(sizes.square().sum())
    return directions, center, float(sizes[:3].square().sum()) / total if total > 0 else 1.0


def _directions(points: Tensor) -> Tensor:
    return points / points.norm(dim=-1, keepdim=True).clamp_min(1e-300)


def head_row(head: AuditHead) -> dict[str, Any]:
    """Return a head as a point in the plane of definiteness and value abscissa, with its spectra."""
    spectra = head.spectra
    real = {name: _largest(getattr(spectra, name)) for name in ("reduced_interaction", "reduced_metric")}
    value = _largest(spectra.value)
    return {
        "layer": head.layer,
        "head": head.head,
        "definiteness": head.quantities["reduced_metric_index"],
        "interaction": head.quantities["reduced_interaction_index"],
        "abscissa": head.quantities["value_abscissa"],
        "label": head.label.name,
        "certificate": head.label.certificate,
        "why": head.label.why,
        "spectrum": {
            "interaction": real["reduced_interaction"].real.tolist(),
            "metric": real["reduced_metric"].real.tolist(),
            "value": [[float(entry.real), float(entry.imag)] for entry in value],
        },
    }


def _largest(eigenvalues: Tensor) -> Tensor:
    return eigenvalues[eigenvalues.abs().argsort(descending=True)[:SHOWN_EIGENVALUES]]


def head_system(name: str, text: str, layer: Any, head: Any) -> dict[str, Any]:
    """Return one head as a system on the sphere: the tokens that it reads, moved by this head alone.

    Tokens have one length behind the norm, so they are points of a sphere; divided by that length r they are on the unit sphere, and the
    scores are :math:`r^2` times as large. Coordinates are those of the span of the tokens and of the image of the value map, in which the
    motion stays: inner products are the same. Biases are left out, and so are positions other than rotary ones.
    """
    from attractor.models import silence_transformers

    tokens = trace_model(name, text).points.double()
    found = audit_model(name)
    if not any((row.layer, row.head) == (layer, head) for row in found.heads):
        raise InputError(f"{name} has no head {str(head)[:20]} with an interaction matrix in layer {str(layer)[:20]}")
    if layer >= len(tokens) - 1:
        raise InputError(
            f"layer {layer} of {name} belongs to another stack than the tokens: the first {len(tokens) - 1} are shown"
        )
    with silence_transformers():
        source = open_model(name).layers[layer]
    law = source.select(range(head, head + 1), fold=source.norm is not None, after=False)
    points, notes = read_tokens(source, tokens[layer])
    radius = float(points.norm(dim=-1).mean())
    points = points / points.norm(dim=-1, keepdim=True)
    query, key, value = (part.double()[0] for part in (law.query, law.key, law.value_map))
    basis = span_of(torch.cat((points.mT, value), dim=1))
    names = {"query_bias": "queries", "key_bias": "keys", "value_bias": "values", "output_bias": "the output"}
    biases = [words for bias, words in names.items() if getattr(law, bias) is not None]
    if biases:
        notes.append(f"biases of {', '.join(biases)} are left out")
    theta = None
    if law.positions is not None:
        theta = law.positions.rotary_base(query.shape[0])
        if theta is None:
            notes.append(f"{law.positions.name} positions are left out")
    mask = "none"
    if law.mask is not None:
        width = getattr(law.mask, "width", None)
        mask = "causal" if law.mask.sees_prefix else f"window:{width}" if law.mask.is_causal and width else "none"
        if mask == "none":
            notes.append(f"the {law.mask.name} mask is left out")
    reduced = basis.mT @ value @ basis
    size = float(torch.linalg.matrix_norm(reduced, 2))
    if size == 0:
        raise UnsupportedError(f"head {head} of layer {layer} has the value 0: it moves nothing")
    rows = (tuple(map(tuple, part.tolist())) for part in (query @ basis, key @ basis, reduced, points @ basis))
    small_query, small_key, small_value, start = rows
    system = System(
        start=Start(points=start),  # type: ignore[arg-type]
        dim=basis.shape[-1],
        space="sphere",
        kernel=law.kernel.name,
        beta=float(law.scale) * radius**2,
        heads=(Head(key=small_key, value=small_value, query=small_query),),  # type: ignore[arg-type]
        mask=mask,
        theta=theta,
        until=float(f"{DURATION / size:.2g}"),
    )
    return {"system": system.to_json(), "words": list(trace_model(name, text).words), "notes": notes}


def read_tokens(layer: Layer, points: Tensor) -> tuple[Tensor, list[str]]:
    """Return what the folded law of a layer reads for points (n, d) of the stream, and remarks."""
    norm, bare = layer.norm, layer.bare_norm
    if norm is None or bare is None:
        return points, ["the layer has no norm: tokens are put on a sphere"]
    if layer.reads_copy:
        return bare(points), []
    # the stream is what the norm returned: take its gain and bias off
    shifted = points if norm.bias is None else points - norm.bias.to(points)
    return shifted if norm.gain is None else shifted / norm.gain.to(points), []


def span_of(columns: Tensor) -> Tensor:
    """Return an orthonormal basis (d, r) of the span of columns (d, m)."""
    # each column counts alike, whatever its size
    sizes = columns.norm(dim=0, keepdim=True)
    left, values, _ = torch.linalg.svd(
        columns / torch.where(sizes > 0, sizes, torch.ones_like(sizes)), full_matrices=False
    )
    return left[:, : int((values > SPAN * values[0]).sum())]
