"""``regime``: what the weights of an attention law say about its tokens, head by head and for the layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from attractor.attention import Attention, Block, Rotary, Stack
from attractor.errors import InputError
from attractor.theory.lyapunov import contraction
from attractor.theory.weights.factors import Factors
from attractor.theory.weights.forms import BANDS, Form, Spectrum, form
from attractor.theory.weights.heads import Head, factors_of, fold, heads_in
from attractor.theory.weights.labels import Label, Setting, label
from attractor.theory.weights.layers import (
    SharedMetric,
    interaction_sum,
    metric_form,
    metric_sum,
    shared_metric,
    stacked_metric,
    value_spectrum,
)
from attractor.theory.weights.lone import HeadRegime, head_regimes, words
from attractor.theory.weights.offsets import OFFSETS, Offset


@dataclass(frozen=True)
class LayerRegime:
    """All heads together: the sums of W, of V'W and of V, the metric that fits all heads best and the share ``residual`` of the
    interactions that it leaves (0: one metric serves all; near 1: none does)."""

    layer: int | None
    heads: int
    dim: int
    interaction: Form
    metric: Form
    shared_metric: Form
    residual: float
    value: Spectrum
    label: Label
    stacked_metric: Form | None = None
    stacked_condition: float | None = None

    def row(self) -> dict[str, Any]:
        """Flat, ready for JSON and tables."""
        forms = ("interaction", "metric", "shared_metric", "value")
        parts = [getattr(self, name).row(f"{name}_") for name in forms]
        if self.stacked_metric is not None:
            parts.append({**self.stacked_metric.row("stacked_metric_"), "stacked_condition": self.stacked_condition})
        head = {
            "layer": self.layer,
            "heads": self.heads,
            "dim": self.dim,
            "residual": self.residual,
            **words(self.label),
        }
        return {key: value for part in (head, *parts) for key, value in part.items()}


@dataclass(frozen=True)
class Regime:
    """What ``regime`` returns: a record for each head and one for the layer (None if it was left out)."""

    heads: tuple[HeadRegime, ...]
    layer: LayerRegime | None

    @property
    def label(self) -> str:
        """The layer's label, or the only head's."""
        return self._label.name

    @property
    def certificate(self) -> str | None:
        """The theorem that proves the label; None for a heuristic."""
        return self._label.certificate

    @property
    def why(self) -> str:
        return self._label.why

    @property
    def _label(self) -> Label:
        return self.heads[0].label if self.layer is None else self.layer.label

    def row(self) -> dict[str, Any]:
        """Ready for JSON: the layer's row and those of the heads."""
        return {"layer": None if self.layer is None else self.layer.row(), "heads": [head.row() for head in self.heads]}

    def __repr__(self) -> str:
        heads = f"{len(self.heads)} head{'' if len(self.heads) == 1 else 's'}"
        return f"Regime({heads}: {self})"

    def _repr_html_(self) -> str:
        """A card for notebooks: the label with its reason, and the labels of the heads."""
        from attractor.cards import card

        counts = Counter(head.label.name for head in self.heads)
        heads = ", ".join(f"{count} {label}" for label, count in counts.most_common())
        return card(
            "Regime",
            {"label": self.label, "proved by": self.certificate or "no theorem", "why": self.why, "heads": heads},
        )

    def __str__(self) -> str:
        undecided = self.label in ("undetermined", "undefined")
        by = "" if undecided else f" ({self.certificate or 'heuristic'})"
        return f"{self.label}{by}: {self.why}"


def regime(
    law: Any,
    *,
    layer: int | None = None,
    sums: bool = True,
    offsets: Sequence[int] = OFFSETS,
    tolerance: float | None = None,
    mode: Literal["token", "stacked"] = "token",
) -> Regime:
    """Classify an attention law by its weights, head by head and as a layer.

    Parameters
    ----------
    law : an Attention, a Block (a pre-norm's gain is folded in), or anything with a method law() that gives one.
    layer : a number for the records.
    sums : whether to classify the layer too; its matrices are d x d where the heads together span that much.
    offsets : at which distances to look at rotary positions.
    tolerance : relative size below which an eigenvalue has no sign; by default 1e-10, for float32 weights 1e-5.
    mode : "stacked" adds the metric as the published code defines it, from all values stacked without their outputs.
    """
    found = attention_of(law)
    if mode not in ("token", "stacked"):
        raise InputError(f"mode must be 'token' or 'stacked', got {mode!r}")
    band = BANDS.get(found.query.dtype, 1e-5) if tolerance is None else float(tolerance)
    if not 0 < band < 1:
        raise InputError(f"tolerance must be between 0 and 1, got {tolerance}")
    try:
        whole = regime_of(found, factors_of(found), layer=layer, sums=sums, offsets=offsets, band=band)
    except RuntimeError as error:
        if type(error).__name__ != "_LinAlgError":
            raise
        largest = max(float(part.abs().max()) for part in (found.query, found.key, found.value))
        raise InputError(
            f"the spectra of this law cannot be computed in floating point: its weights reach {largest:.3g}, and some products leave the "
            "range of numbers; rescale them"
        ) from None
    if whole.layer is not None and mode == "stacked":
        stacked, condition = stacked_metric(found, band)
        whole = replace(whole, layer=replace(whole.layer, stacked_metric=stacked, stacked_condition=condition))
    return _doubted(whole, law) if isinstance(law, Block) else whole


def _doubted(found: Regime, block: Block) -> Regime:
    """The labels of a block are those of its attention; what else the block does is in no theorem."""
    parts = ["its norms"] * (block.placement != "none") + ["its feed-forward part"] * (block.feedforward is not None)
    if not parts:
        return found

    def plain(row: Any) -> Any:
        named = row.label
        why = f"{named.why.partition('; proved by')[0]}; nothing is proved of a block with {' and '.join(parts)}"
        return replace(row, label=Label(named.name, None, why)) if named.certified else row

    layer = None if found.layer is None else plain(found.layer)
    return replace(found, heads=tuple(plain(row) for row in found.heads), layer=layer)


def regime_of(
    law: Attention, factors: list[Factors], *, layer: int | None, sums: bool, offsets: Sequence[int], band: float
) -> Regime:
    """The same for a law whose factors are at hand."""
    setting, single = Setting.of(law), law.query.dtype != torch.float64
    turns = law.positions if isinstance(law.positions, Rotary) else None
    options = setting, turns, offsets, band, single, layer
    rows = [row for group in factors for row in head_regimes(group.grams(), *options)]
    rows.sort(key=lambda row: row.head)
    whole = _layer(heads_in(factors), rows, setting, band, single, layer) if sums else None
    return Regime(tuple(rows), whole)


def regimes(laws: Any, **options: Any) -> tuple[Regime, ...]:
    """The regime of every layer of a Stack, of an iterable of laws, or of anything with a method laws()."""
    found = laws.laws if isinstance(laws, Stack) else getattr(laws, "laws", laws)
    found = found() if callable(found) else found
    if isinstance(found, Attention) or not isinstance(found, Iterable):
        raise InputError(f"regimes takes a Stack or several laws, got {type(laws).__name__}: ask regime about one law")
    return tuple(regime(law, layer=index, **options) for index, law in enumerate(found))


def attention_of(law: Any) -> Attention:
    """The attention inside a law, with a pre-norm folded in."""
    if isinstance(law, Block) and isinstance(law.attention, Attention):
        norms = law.norms
        assert isinstance(norms, tuple)
        return fold(law.attention, norms[0]) if law.placement in ("pre", "peri") else law.attention
    inner = getattr(law, "law", None)
    law = inner() if callable(inner) and not isinstance(law, Attention) else law
    if not isinstance(law, Attention):
        raise InputError(f"regime is about Attention(...) or what holds one, got {type(law).__name__}")
    return law


def _layer(
    heads: list[Head], rows: list[HeadRegime], setting: Setting, band: float, single: bool, layer: int | None
) -> LayerRegime:
    value, interaction = value_spectrum(heads, band), interaction_sum(heads, band)
    metric, shared = metric_sum(heads, band), shared_metric(heads)
    fitted = metric_form(shared, band)
    tolerance = 1e-5 if single else 1e-9
    if len(heads) == 1 and heads[0].rank == heads[0].dim:
        named = rows[0].label
    elif setting.causal:
        named = _causal_layer(heads, value, shared, setting, tolerance)
    else:
        one_metric = shared.residual <= tolerance
        signs = fitted if one_metric else metric
        named = label(signs, interaction, value, setting, heads=len(heads), offsets=_agreed(rows), tolerance=tolerance)
        if not one_metric and setting.common:
            why = f"{named.why}; the best common metric leaves {shared.residual:.2g} of the interactions"
            named = Label(named.name, None, why)
    return LayerRegime(layer, len(heads), heads[0].dim, interaction, metric, fitted, shared.residual, value, named)


def _agreed(rows: list[HeadRegime]) -> tuple[Offset, ...]:
    """Rotary offsets of all heads: the layer's signs agree only where those of every head do."""
    return tuple(offset for row in rows for offset in row.offsets)


def _causal_layer(
    heads: list[Head], value: Spectrum, shared: SharedMetric, setting: Setting, tolerance: float
) -> Label:
    """Several heads under a causal mask: T8 where one norm is known that no head lets grow."""
    named = label(*_unused(heads), value, setting, heads=len(heads))
    if named.name != "convergent" or value.stability != "stable" or setting.biased or len(heads) == 1:
        return named
    values = torch.stack([head.output @ head.value for head in heads])
    norms = {"|x|^2": None, "the metric that the heads share": shared.left.mT @ shared.right}
    for norm, metric in norms.items():
        found = contraction(values, metric)
        if found is not None and found.excess <= tolerance < found.strength:
            return Label(named.name, "regimes.T8", f"{named.why}; proved by regimes.T8, since no head lets {norm} grow")
    missing = "one norm that no head lets grow, and neither |x| nor the metric that fits all heads is one"
    return Label(named.name, None, f"{named.why}; near zero only: for several heads T8 needs {missing}")


def _unused(heads: list[Head]) -> tuple[Form, Form]:
    """Forms where the label looks at the value alone."""
    empty = form(torch.zeros(1, 1, dtype=heads[0].query.dtype))
    return empty, empty
