"""Findings of an audit: notable heads with their place, threshold and rate among random heads; and conditions for CI."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Attention
from attractor.models.findings import DEAD, Condition, Finding, Kind, Place, phrase
from attractor.weights import NAMES, QUANTITIES, RandomHeads, draw_random_heads

if TYPE_CHECKING:
    from attractor.models.audit_results import Audit, AuditHead, AuditSettings
    from attractor.models.comparison import Comparison

COPYING = 0.5  # index of the eigenvalues of a value
DUPLICATE = 0.9  # cosine
FAR = 8.0  # standard deviations
SAMPLE = 16  # mismatched pairs of a head with eight partners each way
ENOUGH = 12  # pairs below which a deviation of FAR occurs by chance
FEW = 8  # random heads that are compared in pairs
SHOWN = 4  # heads that a phrase names
SCORED = tuple(
    name for name in NAMES if name != "metric_asymmetry"
)  # which has heavy tails, since it divides by the value
PAIRED = tuple(quantity.name for quantity in QUANTITIES if quantity.half == "both" and quantity.name in SCORED)
DECIDED_BY = {  # theorem: the column that decides its label, the value that is passed, and whether a larger value is stronger
    "regimes.T1": ("reduced_metric_index", -1.0, False),
    "regimes.T2": ("reduced_metric_index", -1.0, False),
    "regimes.T3": ("growing", 0.0, True),
    "regimes.T4": ("reduced_metric_index", 1.0, True),
    "regimes.T8": ("value_abscissa", 0.0, False),
    "regimes.T8.converse": ("value_abscissa", 0.0, True),
}
LABELLED = {
    "divergent": "alone, in continuous time and without norms, the head drives almost all tokens to infinity: some direction of its "
    "value grows",
    "convergent": "alone, in continuous time and without norms, the head moves all tokens to zero: no direction of its value grows",
    "polarising": "alone, in continuous time and without norms, the head drives tokens apart while their mean may shrink",
    "intermediate": "alone, in continuous time and without norms, the head lets some directions grow and others shrink",
}


def column(heads: Sequence[AuditHead], name: str) -> Tensor:
    """A column of the table of heads, NaN where it is undefined."""
    found = [head.quantities[name] if name in head.quantities else getattr(head, name) for head in heads]
    return torch.tensor([math.nan if value is None else value for value in found], dtype=torch.float64)


def _at_least(name: str) -> Callable[[Sequence[Any], float], tuple[Tensor, Tensor]]:
    def measure(heads: Sequence[Any], threshold: float) -> tuple[Tensor, Tensor]:
        values = column(heads, name)
        return values, values >= threshold

    return measure


def _at_most(name: str) -> Callable[[Sequence[Any], float], tuple[Tensor, Tensor]]:
    def measure(heads: Sequence[Any], threshold: float) -> tuple[Tensor, Tensor]:
        values = column(heads, name)
        return values, values <= threshold

    return measure


def _far(model: Literal["random", "mismatched"]) -> Callable[[Sequence[Any], float], tuple[Tensor, Tensor]]:
    """The largest deviation of a head from its nulls, in size."""

    def measure(heads: Sequence[Any], threshold: float) -> tuple[Tensor, Tensor]:
        values = torch.tensor([abs(_farthest(head, model)[1]) for head in heads], dtype=torch.float64)
        return values, values >= threshold

    return measure


def _farthest(head: AuditHead, model: Literal["random", "mismatched"]) -> tuple[str, float]:
    """The quantity whose deviation is largest, and the deviation; NaN if there is none."""
    names = SCORED if model == "random" else PAIRED
    known = [
        (name, score.deviations)
        for name in names
        if (score := head.null(name, model)) is not None and score.deviations is not None and score.count >= ENOUGH
    ]
    return max(known, key=lambda pair: abs(pair[1])) if known else (names[0], math.nan)


def _certified(label: str) -> Callable[[Sequence[Any], float], tuple[Tensor, Tensor]]:
    """Distance of the column that decides a label from the value that it must pass, where a theorem certifies the label."""

    def measure(heads: Sequence[Any], threshold: float) -> tuple[Tensor, Tensor]:
        holds = torch.tensor([head.label.name == label and head.label.certified for head in heads], dtype=torch.bool)
        values = [_margin(head) for head in heads]
        return torch.tensor(values, dtype=torch.float64), holds

    return measure


def _margin(head: AuditHead) -> float:
    if head.label.certificate is None:
        return 0.0
    name, bound, larger = DECIDED_BY[head.label.certificate]
    value = head.quantities[name]
    return 0.0 if value is None else (value - bound) * (1.0 if larger else -1.0)


AUDIT_KINDS = (
    Kind(
        "dead_head",
        "value_relative_size",
        DEAD,
        "the value map of {head} has {percent:.2g}% of the usual size of its layer",
        "the value map is almost zero next to those of the other heads of the layer: the head adds almost nothing and could be pruned",
        _at_most("value_relative_size"),
        largest=False,
    ),
    Kind(
        "duplicate_head",
        "nearest_similarity",
        DUPLICATE,
        "{head} does the same as another head of its layer",
        "two heads of a layer have nearly the same W and the same value map up to size: one of them could be pruned",
        _at_least("nearest_similarity"),
    ),
    Kind(
        "copying_head",
        "value_index",
        COPYING,
        "{head} writes back what it reads",
        "the eigenvalues of the value are nearly all positive: the head writes back what it reads, so that a token becomes more like "
        "those that it attends to (copying and induction heads), and the stream grows in these directions",
        _at_least("value_index"),
    ),
    Kind(
        "inverting_head",
        "value_index",
        -COPYING,
        "{head} subtracts what it reads",
        "the eigenvalues of the value are nearly all negative: the head subtracts what it reads (copy suppression, or the removal of "
        "what another head wrote), and the stream shrinks in these directions",
        _at_most("value_index"),
        largest=False,
    ),
    Kind(
        "far_from_mismatched",
        "mismatched_deviations",
        FAR,
        "queries and keys of {head} were learned together with its values",
        "the queries and keys of the head fit its values and outputs: what it attends to and what it writes were learned together",
        _far("mismatched"),
    ),
    Kind(
        "far_from_random",
        "random_deviations",
        FAR,
        "{head} is farthest from random weights",
        "training has shaped the matrices of the head; a head that is near random ones has learned little or was initialised again",
        _far("random"),
    ),
    *(
        Kind(f"certified_{name}", "label", 0.0, f"{{head}} alone is {name}", meaning, _certified(name))
        for name, meaning in LABELLED.items()
    ),
)


def find_audit_findings(heads: Sequence[AuditHead], settings: AuditSettings) -> tuple[Finding, ...]:
    """Compare the heads of an audit with the thresholds of all kinds of findings; what most random heads share comes last."""
    found = []
    for kind in AUDIT_KINDS:
        measured = kind.measure(heads, kind.threshold) if heads else None
        if measured is None or not bool(measured[1].any()):
            continue
        values, holds = measured
        numbers = values.tolist()
        order = sorted(holds.nonzero().flatten().tolist(), key=lambda place: numbers[place], reverse=kind.largest)
        where = tuple(Place(heads[place].layer, heads[place].head, None, numbers[place]) for place in order)
        head = heads[order[0]]
        rate = _rate_kind(kind, [heads[place] for place in order], heads, settings)
        finding = Finding(
            kind.name,
            kind.quantity,
            where[0].value,
            kind.threshold,
            len(where),
            int((~values.isnan()).sum()),
            head.layer,
            head.head,
            None,
            None,
            rate,
            None if rate is None else min(settings.draws, FEW) if kind.name == "duplicate_head" else settings.draws,
            phrase(kind, where[0].value, head.layer, head.head, None, None),
            kind.meaning,
            where,
            "random heads",
        )
        found.append(_complete(finding, head, heads))
    return tuple(sorted(found, key=lambda one: one.common))


def _complete(finding: Finding, head: AuditHead, heads: Sequence[AuditHead]) -> Finding:
    """Name the column whose value decides, with its sign, the partner of a duplicate, and heads that are like random ones."""
    if finding.kind in ("far_from_random", "far_from_mismatched"):
        model: Any = finding.kind.removeprefix("far_from_")
        name, value = _farthest(head, model)
        quantity = f"{name}_{model}_deviations"
        what = _name_random_heads(finding, heads) if model == "random" else finding.what
        return replace(finding, quantity=quantity, value=value, threshold=math.copysign(FAR, value), what=what)
    if finding.kind == "duplicate_head":
        pair = sorted((head.head, head.nearest_head or 0))
        return replace(finding, what=f"heads {pair[0]} and {pair[1]} of layer {head.layer} do the same")
    if head.label.certificate is not None and finding.kind == f"certified_{head.label.name}":
        name, bound, _ = DECIDED_BY[head.label.certificate]
        value = head.quantities[name]
        meaning = f"{finding.meaning} ({head.label.certificate}); it describes the head alone, not what the model does to a text"
        return replace(
            finding, quantity=name, value=math.nan if value is None else value, threshold=bound, meaning=meaning
        )
    return finding


def _name_random_heads(finding: Finding, heads: Sequence[AuditHead]) -> str:
    """What was found, with the heads that random ones are like, if these are few; heads that were not compared do not count."""
    far = {(place.layer, place.head) for place in finding.where}
    compared = [head for head in heads if not math.isnan(_farthest(head, "random")[1])]
    near = [f"layer {head.layer} head {head.head}" for head in compared if (head.layer, head.head) not in far]
    every = "all heads differ" if len(compared) == len(heads) else f"all {len(compared)} compared heads differ"
    if not near:
        return f"{every} from random ones, most of all head {finding.head} of layer {finding.layer}"
    if len(near) > len(compared) / 4:
        return finding.what
    more = f" and {len(near) - SHOWN} more" if len(near) > SHOWN else ""
    return f"{every} from random ones but {', '.join(near[:SHOWN])}{more}"


def _rate_kind(
    kind: Kind, holding: Sequence[AuditHead], heads: Sequence[AuditHead], settings: AuditSettings
) -> float | None:
    """The share of random heads of the same shapes for which a finding holds; None if no random heads were drawn."""
    if not settings.draws:
        return None
    if kind.name.startswith("certified_"):
        known = [head.certified_random_rate for head in holding if head.certified_random_rate is not None]
        return sum(known) / len(known) if known else None
    shapes = Counter((head.dim, head.sizes) for head in heads)
    shares = []
    for (dim, sizes), count in shapes.items():
        random = draw_random_heads(dim, sizes, settings.draws, settings.seed)
        shares.append((_measure_random(kind, random, dim, sizes, settings), count))
    return sum(share * count for share, count in shares) / len(heads)


def _measure_random(
    kind: Kind, random: RandomHeads, dim: int, sizes: tuple[int, int], settings: AuditSettings
) -> float:
    """The share of random heads of one shape for which a finding holds."""
    if kind.quantity == "value_index":
        index = random.eigenvalues.real.sum(-1) / random.eigenvalues.abs().sum(-1)
        holds = index >= kind.threshold if kind.largest else index <= kind.threshold
    elif kind.name == "dead_head":
        holds = random.value_sizes / random.value_sizes.median() <= kind.threshold
    elif kind.name == "duplicate_head":
        rng = np.random.default_rng((settings.seed, dim, *sizes, 3))
        rows = [torch.from_numpy(rng.standard_normal((FEW, size, dim))) for size in (*sizes[:1] * 2, *sizes[1:] * 2)]
        similar = torch.minimum(compare_products(rows[0], rows[1]), compare_products(rows[2], rows[3]))
        holds = similar.fill_diagonal_(-1.0).amax(-1) >= kind.threshold
    else:
        one = torch.ones(1, 1, dtype=torch.float64)
        columns = random.rescale(one, one)
        names = SCORED if kind.name == "far_from_random" else PAIRED
        away = torch.stack([_score_draws(columns[name][0], kind.name == "far_from_random") for name in names])
        holds = away.nan_to_num(0.0).amax(0) >= kind.threshold
    return float(holds.double().mean())


def _score_draws(values: Tensor, whole: bool) -> Tensor:
    """Deviations of random heads from all of them, or from as many others as a head has mismatched pairs."""
    if whole:
        return ((values - values.mean()) / values.std()).abs()
    count = min(SAMPLE, len(values) - 1)
    others = torch.stack([values.roll(-shift) for shift in range(1, count + 1)])
    return ((values - others.mean(0)) / others.std(0)).abs()


def measure_similarities(law: Attention, values_only: bool = False) -> Tensor:
    """The smaller of the cosines of W and of the value maps for all pairs of heads, (h, h); of the value maps alone on request."""
    assert law.output is not None
    query, key, value, output = (
        part.detach().double().cpu().reshape(-1, *part.shape[-2:])
        for part in (law.query, law.key, law.value, law.output)
    )
    moved = compare_products(output.mT, value)
    return moved if values_only else torch.minimum(moved, compare_products(query, key))


def compare_products(left: Tensor, right: Tensor) -> Tensor:
    """Cosines of all pairs of left_h' right_h for (h, m, d) factors, (h, h)."""
    rows = left.shape[:2]
    flat, other = left.flatten(0, 1), right.flatten(0, 1)
    inner = ((flat @ flat.mT) * (other @ other.mT)).reshape(*rows, *rows).sum((1, 3))
    size = inner.diagonal().clamp_min(0.0).sqrt().clamp_min(1e-300)
    return inner / (size[:, None] * size)


MOVED = ("moved", "standardised", "interaction_moved", "value_moved")


def find_violations(condition: Condition, audits: Sequence[Audit], comparisons: Sequence[Comparison] = ()) -> list[str]:
    """Where a condition on a column of heads, or on how far they moved, holds: one phrase for each place."""
    several = len(audits) > 1
    if not condition.compare:
        sentences = [
            (audit.model, one.sentence()) for audit in audits for one in audit.findings if one.kind == condition.name
        ]
        return [f"{model}: {sentence}" if several else sentence for model, sentence in sentences]
    tables = [
        (f"{audit.model}, " if several else "", head, head.flat_row()) for audit in audits for head in audit.heads
    ]
    moved = [
        (f"{pair.second}, ", head, {name: getattr(head, name) for name in MOVED})
        for pair in comparisons
        for head in pair.heads
    ]
    numbers = [(of, head, row) for of, head, row in (*tables, *moved) if _is_number(row.get(condition.name))]
    known = {name for _, _, row in (*tables, *moved) for name, value in row.items() if _is_number(value)}
    condition.check_name(sorted(known))
    return condition.select(
        (f"{of}layer {head.layer}, head {head.head}", head.layer, float(row[condition.name]))
        for of, head, row in numbers
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
