"""Findings of traces: known pathologies with their place, threshold and rate at random initialisation; and conditions for CI."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.models.measurements import Measurements
from attractor.registry import closest

COMMON = 0.5  # share of places with random weights from which a finding says nothing about training
LISTED = 12  # heads that are named in words; ``Finding.where`` has all
DEAD = 0.02  # share of the median contribution of the heads of a layer
OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq}


@dataclass(frozen=True)
class Place:
    """Where a finding holds: the block (from 0; -1 is the input of the first), the head, the token, and the value there."""

    layer: int | None
    head: int | None
    token: int | None
    value: float


@dataclass(frozen=True)
class Finding:
    """One pathology of a model on some texts.

    Attributes
    ----------
    kind : identifier, see ``list_kinds``.
    quantity : the measurement that was compared with the threshold.
    value, threshold : its most extreme value, and the value from which it counts.
    places, total : number of places (states, heads, or 1 for the whole model) where it holds, and number of all.
    layer, head, token, word : where it is strongest; None where it does not apply. ``layer`` is the block, from 0; -1 is its input.
    random_rate, random_total : share of places where it holds in the same model with random weights, and the number of these places;
        None if that is unknown.
    what : what was found where it is strongest, in a few words.
    meaning : what it usually means.
    where : all places where it holds, strongest first.
    baseline : the weights of ``random_rate``, "random weights" or the first step of a run.
    """

    kind: str
    quantity: str
    value: float
    threshold: float
    places: int
    total: int
    layer: int | None
    head: int | None
    token: int | None
    word: str | None
    random_rate: float | None
    random_total: int | None
    what: str
    meaning: str
    where: tuple[Place, ...] = ()
    baseline: str = "random weights"

    @property
    def label(self) -> str:
        """The kind in words."""
        return self.kind.replace("_", " ")

    @property
    def common(self) -> bool:
        """Whether random weights show it in most places, so that it says nothing about training."""
        return self.random_rate is not None and self.random_rate >= COMMON

    @property
    def extent(self) -> str:
        """How many places have it, such as "17 of 72 heads"; empty for a finding of the whole model."""
        if self.layer is None:
            return ""
        return f"{self.places} of {self.total} {'heads' if self.head is not None else 'states'}"

    def row(self) -> dict[str, Any]:
        """The finding as a JSON object; ``summary`` and ``details`` are what the terminal and pages print."""
        words = {
            "sentence": self.sentence(),
            "summary": self.summarise(),
            "details": self.describe(),
            "everywhere": self.list_places(LISTED),
        }
        return {**asdict(self), "common": self.common, **words}

    def summarise(self) -> str:
        """What was found, and in how many places."""
        return f"{self.what} ({self.extent})" if self.extent else self.what

    def describe(self) -> str:
        """The value where the finding is strongest, the threshold, and the rate at random initialisation."""
        rate = "unknown" if self.random_rate is None else f"{100 * self.random_rate:.3g}%"
        of = f" of {self.random_total}" if self.random_total else ""
        return f"{self.quantity} {self.value:.4g}, threshold {self.threshold:.4g}, with {self.baseline} {rate}{of}"

    def list_places(self, most: int | None = None) -> str:
        """All places in words, at most so many, such as "layer 0 heads 1, 3; layer 4 head 2" or "layers 2, 11-28"."""
        if self.head is None:
            layers = sorted(place.layer for place in self.where if place.layer is not None)
            return _list_layers(layers)
        shown = sorted(self.where[:most], key=lambda place: (place.layer or 0, place.head or 0))
        by_layer: dict[int | None, list[int | None]] = {}
        for place in shown:
            by_layer.setdefault(place.layer, []).append(place.head)
        parts = [
            f"layer {layer} head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))}"
            for layer, heads in by_layer.items()
        ]
        more = len(self.where) - len(shown)
        return "; ".join(parts) + (f" and {more} more" if more > 0 else "")

    def sentence(self) -> str:
        """The finding in one sentence."""
        return f"{self.label}: {self.summarise()}; {self.describe()}"


def _list_layers(layers: Sequence[int]) -> str:
    """Layers in words; consecutive ones as a range, and the input by name."""
    ranges: list[list[int]] = []
    for layer in layers:
        if layer < 0:
            continue
        if ranges and layer == ranges[-1][1] + 1:
            ranges[-1][1] = layer
        else:
            ranges.append([layer, layer])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
    several = len(ranges) > 1 or any(low < high for low, high in ranges)
    parts = ["the input"] * any(layer < 0 for layer in layers)
    parts += [f"layer{'s' * several} {', '.join(texts)}"] if texts else []
    return " and ".join(parts)


@dataclass(frozen=True)
class Kind:
    """A kind of finding: ``measure`` returns the quantity at every place, (places,) or (blocks, h), and where it holds; it takes the
    measurements of texts, or the heads of an audit. ``what`` says it in words, see ``phrase``."""

    name: str
    quantity: str
    threshold: float
    what: str
    meaning: str
    measure: Callable[[Sequence[Any], float], tuple[Tensor, Tensor] | None]
    largest: bool = True  # whether the strongest value is the largest
    of: str = "heads"  # "heads", "states" or "model"


def _mean(parts: Sequence[Measurements], group: str, name: str) -> Tensor | None:
    """Mean over texts of a curve or of a measurement of heads."""
    columns = [getattr(part, group) for part in parts]
    if not all(name in column for column in columns):
        return None
    return torch.stack([column[name] for column in columns]).nanmean(0)


def _at_least(group: str, name: str) -> Callable[[Sequence[Measurements], float], tuple[Tensor, Tensor] | None]:
    def measure(parts: Sequence[Measurements], threshold: float) -> tuple[Tensor, Tensor] | None:
        values = _mean(parts, group, name)
        return None if values is None else (values, values >= threshold)

    return measure


def _at_most(group: str, name: str) -> Callable[[Sequence[Measurements], float], tuple[Tensor, Tensor] | None]:
    def measure(parts: Sequence[Measurements], threshold: float) -> tuple[Tensor, Tensor] | None:
        values = _mean(parts, group, name)
        return None if values is None else (values, values <= threshold)

    return measure


def _anisotropy(parts: Sequence[Measurements], threshold: float) -> tuple[Tensor, Tensor] | None:
    """States with a dominant mean direction that are not over-smoothed, which implies it."""
    values, cosine = _mean(parts, "curves", "anisotropy"), _mean(parts, "curves", "cosine")
    if values is None or cosine is None:
        return None
    return values, (values >= threshold) & (cosine < SMOOTH)


def _collapsed_rank(parts: Sequence[Measurements], threshold: float) -> tuple[Tensor, Tensor] | None:
    """States whose centred tokens have few directions, although their number and dimension allow more."""
    values = _mean(parts, "curves", "centred_rank")
    if values is None:
        return None
    possible = min(min(part.tokens - 1, part.dim) for part in parts)
    return values, (values <= threshold) & (possible >= 4 * threshold)


def _dead(parts: Sequence[Measurements], threshold: float) -> tuple[Tensor, Tensor] | None:
    """Contribution of heads over the median of their layer."""
    norms = _mean(parts, "heads", "output_norm")
    if norms is None or bool(norms.isnan().all()):
        return None
    share = norms / norms.nanmedian(-1, keepdim=True).values.clamp_min(torch.finfo(norms.dtype).tiny)
    share = torch.where((norms == 0).all(-1, keepdim=True), torch.ones_like(share), share)  # a layer without values
    return share, share <= threshold


def _growth(parts: Sequence[Measurements], threshold: float) -> tuple[Tensor, Tensor] | None:
    """Mean length of tokens after the last block over that before the first."""
    norms = _mean(parts, "curves", "token_norm_without_first")
    if norms is None or bool(norms[[0, -1]].isnan().any()) or float(norms[0]) == 0:
        return None
    ratio = norms[-1:] / norms[:1]
    return ratio, ratio >= threshold


SMOOTH = 0.9
KINDS = (
    Kind(
        "massive_activation",
        "largest_norm",
        10.0,
        "{token} is {value:.3g} times as long as the median token {at}",
        "one token is far longer than the others; it usually carries a bias that attention sinks use, and it dominates distances "
        "and ranks; quantisation suffers from it",
        _at_least("curves", "largest_norm"),
        of="states",
    ),
    Kind(
        "attention_sink",
        "sink_weight",
        0.6,
        "{head} gives {percent:.3g}% of its attention to {token}",
        "most tokens give most of their attention to one position; such a head is nearly switched off on these texts",
        _at_least("heads", "sink_weight"),
    ),
    Kind(
        "over_smoothing",
        "cosine",
        SMOOTH,
        "tokens have a mean cosine of {value:.3g} {at}",
        "tokens have nearly the same direction, so that later blocks can hardly tell them apart",
        _at_least("curves", "cosine"),
        of="states",
    ),
    Kind(
        "rank_collapse",
        "centred_rank",
        1.5,
        "tokens differ along {value:.2g} directions {at}",
        "after their mean is taken away, tokens differ along one or two directions only",
        _collapsed_rank,
        largest=False,
        of="states",
    ),
    Kind(
        "anisotropy",
        "anisotropy",
        0.7,
        "{percent:.2g}% of the tokens' directions is one common direction {at}",
        "tokens share a large common direction; cosines of tokens measure that direction",
        _anisotropy,
        of="states",
    ),
    Kind(
        "entropy_collapse",
        "relative_entropy",
        0.05,
        "{head} attends to a single key almost everywhere",
        "a head attends to a single key almost everywhere: a positional head, a sink, or in training the collapse that often precedes "
        "unstable losses",
        _at_most("heads", "relative_entropy"),
        largest=False,
    ),
    Kind(
        "uniform_attention",
        "relative_entropy",
        0.98,
        "{head} averages over all visible tokens",
        "a head averages over all visible tokens and does not select any",
        _at_least("heads", "relative_entropy"),
    ),
    Kind(
        "dead_head",
        "output_norm",
        DEAD,
        "{head} adds {percent:.2g}% of what the median head of its layer adds",
        "a head adds almost nothing to the stream, compared with the other heads of its layer; it could be pruned",
        _dead,
        largest=False,
    ),
    Kind(
        "norm_growth",
        "token_norm",
        100.0,
        "tokens are {value:,.0f} times as long after the last block as before the first",
        "tokens become much longer along depth; late blocks change their directions less and less",
        _growth,
        of="model",
    ),
)


def list_kinds() -> tuple[Kind, ...]:
    """All kinds of findings, in the order of reports."""
    return KINDS


def phrase(kind: Kind, value: float, layer: int | None, head: int | None, token: int | None, word: str | None) -> str:
    """What was found, in words: ``Kind.what`` with the place and the value."""
    state = "" if layer is None else "at the input" if layer < 0 else f"after layer {layer}"
    named = "one token" if token is None else f"token {token}" + (f" {word!r}" if word else "")
    fields = {"at": state, "head": f"head {head} of layer {layer}", "token": named}
    return kind.what.format(**fields, value=value, percent=100 * value)


def find_findings(
    parts: Sequence[Measurements],
    random: Sequence[Sequence[Measurements]] = (),
    words: Sequence[str] = (),
    baseline: str = "random weights",
) -> tuple[Finding, ...]:
    """Compare the measurements of texts with the thresholds of all kinds of findings.

    Parameters
    ----------
    parts : measurements of one or several texts; quantities are means over them.
    random : for each of some models with random weights, the measurements of the same texts, from which rates follow.
    words : tokens of the first text.
    baseline : what to call these models.

    Returns
    -------
    tuple of Finding : findings that random weights share come last.
    """
    found = []
    for kind in KINDS:
        measured = kind.measure(parts, kind.threshold)
        if measured is None or not bool(measured[1].any()):
            continue
        values, holds = measured
        where = _list_places(kind, values, holds, parts[0])
        first = where[0]
        word = words[first.token] if first.token is not None and first.token < len(words) else None
        total = 1 if kind.of == "model" else int((~values.isnan()).sum())
        found.append(
            Finding(
                kind.name,
                kind.quantity,
                first.value,
                kind.threshold,
                len(where),
                total,
                first.layer,
                first.head,
                first.token,
                word,
                *_rate(kind, random),
                phrase(kind, first.value, first.layer, first.head, first.token, word),
                kind.meaning,
                where,
                baseline,
            )
        )
    return tuple(sorted(found, key=lambda one: one.common))


def _rate(kind: Kind, random: Sequence[Sequence[Measurements]]) -> tuple[float | None, int | None]:
    """The share of places of models with random weights where a finding holds, and the number of these places."""
    measured = [found for parts in random if (found := kind.measure(parts, kind.threshold)) is not None]
    total = sum(int((~values.isnan()).sum()) for values, _ in measured)
    if not total:
        return None, None
    return sum(int(holds.sum()) for _, holds in measured) / total, total


def _list_places(kind: Kind, values: Tensor, holds: Tensor, part: Measurements) -> tuple[Place, ...]:
    """All places where a finding holds, strongest first."""
    numbers = values.flatten().tolist()
    order = sorted(holds.flatten().nonzero().flatten().tolist(), key=lambda place: numbers[place], reverse=kind.largest)
    found = []
    for place in order:
        layer = head = None
        if kind.of == "states":
            layer = place - 1  # state k follows block k - 1
        elif kind.of == "heads":
            layer, head = divmod(place, values.shape[-1])
        found.append(Place(layer, head, _token(kind, part, layer, head), numbers[place]))
    return tuple(found)


def _token(kind: Kind, part: Measurements, layer: int | None, head: int | None) -> int | None:
    if layer is None or kind.quantity not in part.places:
        return None
    places = part.places[kind.quantity]
    token = int(places[layer + 1] if head is None else places[layer, head])
    return token if token >= 0 else None


# ---------------------------------------------------------------- conditions for CI


@dataclass(frozen=True)
class Condition:
    """A condition on a measurement, such as ``effective_rank < 5 at layers > 3``, or the name of a kind of finding."""

    text: str
    name: str
    compare: str = ""
    bound: float = math.nan
    where: str = ""
    layer: int = 0

    @classmethod
    def parse(cls, text: str, kinds: Collection[str] | None = None) -> Condition:
        """Read a condition: ``NAME OP NUMBER``, optionally followed by ``at layer[s] OP NUMBER``; or the name of a finding, one of
        ``kinds``, by default those of traces."""
        kinds = {kind.name for kind in KINDS} if kinds is None else kinds
        word = text.strip().replace(" ", "_")
        if word in kinds:
            return cls(text, word)
        number, compare = r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?", r"<=|>=|==|<|>"
        place = rf"(?:\s+at\s+layers?\s*({compare})?\s*(\d+))?"
        match = re.fullmatch(rf"\s*(\w+)\s*({compare})\s*({number}){place}\s*", text)
        if match is None:
            raise InputError(
                f"the condition {text!r} is not understood: write a measurement and a bound, such as 'effective_rank < 5 at "
                f"layers > 3', or a finding, one of {', '.join(sorted(kinds))}"
            )
        name, sign, bound, where, layer = match.groups()
        return cls(text, name, sign, float(bound), (where or "==") if layer else "", int(layer or 0))

    def check_name(self, known: Sequence[str]) -> None:
        """Raise if no measurement has the name of the condition."""
        if not self.compare or self.name in known:
            return
        near = closest(self.name, known)
        hint = f"did you mean {near!r}? " if near else ""
        raise InputError(
            f"the condition {self.text!r} names no measurement of this run: {hint}there are {', '.join(sorted(known))}"
        )

    def violations(self, parts: Sequence[Measurements], findings: Sequence[Finding]) -> list[str]:
        """Where the condition holds: one phrase for each place."""
        if not self.compare:
            return [one.sentence() for one in findings if one.kind == self.name]
        self.check_name([*parts[0].curves, *parts[0].blocks, *parts[0].heads])
        rows: list[tuple[str, int, float]] = []
        for group in ("curves", "blocks", "heads"):
            values = _mean(parts, group, self.name)
            if values is None:
                continue
            for place, value in enumerate(values.tolist()):
                layer = place - 1 if group == "curves" else place
                several = isinstance(value, list)
                entries = enumerate(value) if several else [(None, value)]
                rows += [
                    (f"layer {layer}" + (f", head {head}" if several else ""), layer, one) for head, one in entries
                ]
        return self.select(rows)

    def select(self, rows: Iterable[tuple[str, int, float]]) -> list[str]:
        """Where the condition holds, among rows of a place, its layer and its value."""
        holds, reaches = OPERATORS[self.compare], OPERATORS.get(self.where)
        chosen = [row for row in rows if not math.isnan(row[2]) and (reaches is None or reaches(row[1], self.layer))]
        if not chosen:  # a condition that is never tested would pass
            last = max((layer for _, layer, _ in rows), default=-1)
            raise InputError(
                f"the condition {self.text!r} has no value to test: the layers of this run are 0 to {last}"
            )
        return [
            f"{self.name} is {value:.4g} at {'the input' if layer < 0 else name}"
            for name, layer, value in chosen
            if holds(value, self.bound)
        ]
