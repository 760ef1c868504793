"""Regimes of heads and layers: labels by the signs of forms, and the theorem that proves each label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws import Attention, Block, Rotary, Stack, has_kernel, rotary_of
from attractor.serialization import to_frame
from attractor.weights.factors import Factors, SmallMatrices, factorize, fold_norm, separate_heads
from attractor.weights.layers import (
    OFFSETS,
    Offset,
    SharedMetric,
    classify_offsets,
    interaction_sum,
    measure_contraction,
    metric_form,
    metric_sum,
    shared_metric,
    stacked_metric,
    value_spectrum,
)
from attractor.weights.spectra import BANDS, Form, Spectrum, form, forms, spectra

if TYPE_CHECKING:
    import pandas

LABELS = {
    "convergent": "tokens tend to zero",
    "divergent": "tokens run apart to infinity",
    "polarising": "differences of tokens grow while their mean may shrink",
    "escaping": "tokens gather relative to each other while they run to infinity",
    "intermediate": "some directions grow and others shrink",
    "position dependent": "what the interaction does depends on the offset of the tokens",
    "undetermined": "an eigenvalue that decides is zero within rounding",
    "undefined": "the theorems speak of softmax attention with scores that are bilinear in the tokens",
}
EQUAL = 1e-9


@dataclass(frozen=True)
class Setting:
    """Properties of a law, besides its matrices, on which the theorems depend.

    ``shifted``: positions in queries and keys of every layer; ``related``: positions that add to the scores of pairs;
    ``moved``: positions in queries, keys and values of every layer, which is the same system around -p.
    """

    softmax: bool
    causal: bool
    masked: bool
    rotary: bool
    shifted: bool
    biased: bool
    related: bool = False
    moved: bool = False

    @classmethod
    def of(cls, law: Attention) -> Setting:
        positions = law.positions
        causal = law.mask is not None and law.mask.is_causal
        shifted = positions is not None and positions.shifts_scores
        biases = (law.query_bias, law.value_bias, law.output_bias)  # a key bias drops out of a softmax
        biased = any(bias is not None and bool((bias != 0).any()) for bias in biases)
        rotary = rotary_of(positions) is not None
        masked = law.mask is not None and not causal
        moved = positions is not None and positions.shifts_values
        related = positions is not None and positions.adds_to_scores
        return cls(has_kernel(law, "softmax"), causal, masked, rotary, shifted, biased, related, moved)

    @property
    def common(self) -> bool:
        """Whether all tokens follow the gradient of one convex function, as T0 to T4 need."""
        return self.softmax and not (self.causal or self.masked or self.rotary or self.shifted or self.related)

    @property
    def obstacle(self) -> str:
        """What excludes T0 to T4 for any matrices, or an empty string."""
        names = {
            "masked": "the mask",
            "shifted": "positions in the scores alone",
            "related": "positions that add to scores",
        }
        return " and ".join([word for name, word in names.items() if getattr(self, name)] + ["biases"] * self.biased)


@dataclass(frozen=True)
class Label:
    """``name`` is a key of LABELS, ``certificate`` the key of the theorem that proves it (None for a heuristic), ``why`` the reason."""

    name: str
    certificate: str | None
    why: str

    @property
    def certified(self) -> bool:
        return self.certificate is not None

    def row(self) -> dict[str, Any]:
        """Return the columns that a label has in a table."""
        return {"label": self.name, "certificate": self.certificate, "why": self.why}


def label(
    metric: Form,
    interaction: Form,
    value: Spectrum,
    setting: Setting,
    *,
    heads: int = 1,
    offsets: tuple[Offset, ...] = (),
    tolerance: float = EQUAL,
) -> Label:
    """Return the label of a system with these forms (``metric`` may be any form congruent to A)."""
    if not setting.softmax:
        return Label("undefined", None, "the theorems that give labels are about softmax attention")
    if setting.causal:
        return _label_causal(value, setting, heads)
    if setting.rotary:
        return _label_rotary(value, offsets)
    found = _label_by_signs(metric, interaction, value)
    if found.name in ("undetermined", "undefined"):
        return found
    return _certify(found, metric, interaction, setting, heads, tolerance)


def _label_by_signs(metric: Form, interaction: Form, value: Spectrum) -> Label:
    both = f"metric {metric.sign}, interaction {interaction.sign}, value {value.stability}"
    if "undetermined" in (metric.sign, interaction.sign):
        return Label("undetermined", None, f"{both} (margins {metric.margin:.1e}, {interaction.margin:.1e})")
    if metric.sign == "positive":
        return Label("polarising" if interaction.sign == "negative" else "divergent", None, both)
    if metric.sign == "negative" and value.stability in ("unstable", "undetermined"):
        return Label("escaping" if value.stability == "unstable" else "undetermined", None, both)
    if metric.sign == "negative" and interaction.sign == "positive":
        return Label("convergent", None, both)
    return Label("intermediate", None, both)


def _certify(found: Label, metric: Form, interaction: Form, setting: Setting, heads: int, tolerance: float) -> Label:
    symmetric_metric, symmetric_interaction = metric.asymmetry <= tolerance, interaction.asymmetry <= tolerance
    key = None
    if setting.common and not setting.biased:
        if found.name == "convergent" and symmetric_metric:
            key = "regimes.T1"
        elif found.name == "convergent" and symmetric_interaction and heads == 1:
            key = "regimes.T2"
        elif found.name == "polarising" and symmetric_metric:
            key = "regimes.T4"
        elif found.name in ("divergent", "intermediate") and symmetric_metric and metric.inertia[0]:
            # for every start if A > 0; for starts with a positive metric energy if it is indefinite
            key = "regimes.T3" if interaction.sign == "positive" else None
    if key is None:
        skew = f"asymmetry {metric.asymmetry:.2g} of the metric form, {interaction.asymmetry:.2g} of the interaction"
        return Label(found.name, None, f"{found.why}; no theorem certifies it: {setting.obstacle or skew}")
    place = ", around minus the positions, which every layer adds" if setting.moved else ""
    return Label(found.name, key, f"{found.why}; proved by {key}{place}")


def _label_causal(value: Spectrum, setting: Setting, heads: int) -> Label:
    """Label a causal system by T8; for several heads a stable sum of values is only a local criterion."""
    name = {"stable": "convergent", "unstable": "divergent"}.get(value.stability, "undetermined")
    why = f"under a causal mask the value decides: largest real part {value.abscissa:.4g}"
    if value.stability == "undetermined":
        why += ", whose sign rounding leaves open"
    if value.stability == "marginal":
        why += f", and {value.zeros} directions in which nothing moves"
    proved = name == "divergent" or (value.stability == "stable" and heads == 1)
    if setting.biased or not proved or name == "undetermined":
        return Label(name, None, why)
    key = "regimes.T8" if name == "convergent" else "regimes.T8.converse"
    place = ", around minus the positions, which every layer adds" if setting.moved else ""
    return Label(name, key, f"{why}; proved by {key}{place}")


def _label_rotary(value: Spectrum, offsets: tuple[Offset, ...]) -> Label:
    """Label a rotary system by the signs at its offsets; no theorem covers it, since no common metric exists."""
    signs = {(row.metric_sign, row.interaction_sign) for row in offsets}
    if len(signs) != 1:
        return Label("position dependent", None, f"{len(signs)} different pairs of signs over {len(offsets)} offsets")
    metric, interaction = next(iter(signs))
    why = f"at all {len(offsets)} offsets metric {metric}, interaction {interaction}, value {value.stability}"
    if "undetermined" in (metric, interaction):
        return Label("undetermined", None, why)
    if metric == "positive":
        return Label("polarising" if interaction == "negative" else "divergent", None, why)
    if metric == "negative" and value.stability == "unstable":
        return Label("escaping", None, why)
    collapses = metric == "negative" and interaction == "positive" and value.stability == "stable"
    return Label("convergent" if collapses else "intermediate", None, why)


SINGULAR = 1e12  # condition number beyond which a value has no inverse


@dataclass(frozen=True)
class HeadRegime:
    """One head. ``interaction`` and ``metric`` are the forms of W and V'W in all d dimensions, where a head of k < d/2 rows
    is never definite; ``reduced_interaction``, ``reduced_metric`` and ``value`` are those of the system on the range of its output,
    to which the label refers. ``metric_asymmetry`` is that of A itself, None where the value is singular."""

    layer: int | None
    head: int
    dim: int
    rank: int
    interaction: Form
    metric: Form
    reduced_interaction: Form
    reduced_metric: Form
    metric_asymmetry: float | None
    value: Spectrum
    offsets: tuple[Offset, ...]
    label: Label

    @property
    def growing(self) -> float | None:
        """The share of positive eigenvalues of the reduced metric; None where there is none."""
        return None if self.reduced_metric.sign == "undefined" else self.reduced_metric.inertia[0] / self.rank

    def row(self) -> dict[str, Any]:
        """Return a JSON object that is flat but for the offsets."""
        forms = ("interaction", "metric", "reduced_interaction", "reduced_metric", "value")
        parts = [getattr(self, name).row(f"{name}_") for name in forms]
        head = {"layer": self.layer, "head": self.head, "dim": self.dim, "rank": self.rank, **self.label.row()}
        row = {key: value for part in (head, *parts) for key, value in part.items()}
        own = {"growing": self.growing, "metric_asymmetry": self.metric_asymmetry}
        return {**row, **own, "offsets": [asdict(offset) for offset in self.offsets]}


def metric_asymmetries(grams: SmallMatrices) -> list[float | None]:
    """Return the asymmetry of the metric W V^-1 of each reduced system; None where the value is singular."""
    value = grams.reduced_value
    inverse, failed = torch.linalg.inv_ex(value)
    condition = _size(value) * _size(inverse)
    metric = grams.reduced_interaction @ inverse
    share = _size(metric - metric.mT) / 2 / _size(metric).clamp_min(1e-300)
    sound = (failed == 0) & (condition < SINGULAR)
    return [one if fine else None for one, fine in zip(share.tolist(), sound.tolist(), strict=True)]


def _size(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=(-2, -1))


def classify_heads(
    grams: SmallMatrices,
    setting: Setting,
    positions: Rotary | None,
    offsets: Sequence[int],
    band: float,
    single: bool,
    layer: int | None,
) -> list[HeadRegime]:
    """Classify every head of a group; ``single`` tells that the weights have float32 precision."""
    dim, members = grams.dim, grams.members
    # under a causal mask the label does not depend on offsets
    still = positions is None or (setting.causal and not offsets)
    turned = (
        [()] * len(members)
        if still or positions is None
        else classify_offsets(grams, positions, setting.causal, offsets, band)
    )
    columns = (
        members,
        forms(grams.interaction, dim - grams.interaction.shape[-1], band),
        forms(grams.metric, dim - grams.metric.shape[-1], band),
        forms(grams.reduced_interaction, 0, band),
        forms(grams.reduced_metric, 0, band),
        metric_asymmetries(grams),
        spectra(grams.reduced_value, 0, band, grams.norms[1]),
        turned,
    )
    tolerance = 1e-5 if single else 1e-9
    rows = []
    for member, interaction, metric, small, small_metric, asymmetry, value, around in zip(*columns, strict=True):
        named = label(small_metric, small, value, setting, offsets=around, tolerance=tolerance)
        sizes = layer, member, dim, grams.rank
        rows.append(HeadRegime(*sizes, interaction, metric, small, small_metric, asymmetry, value, around, named))
    return rows


@dataclass(frozen=True)
class LayerRegime:
    """A layer: the sums of W, of V'W and of V over heads, the metric that fits all heads best, and its relative ``residual``
    (0: one metric fits all heads; near 1: none does)."""

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
        """Return a flat JSON object."""
        forms = ("interaction", "metric", "shared_metric", "value")
        parts = [getattr(self, name).row(f"{name}_") for name in forms]
        if self.stacked_metric is not None:
            parts.append({**self.stacked_metric.row("stacked_metric_"), "stacked_condition": self.stacked_condition})
        residual = None if self.residual != self.residual else self.residual
        sizes = {"layer": self.layer, "heads": self.heads, "dim": self.dim, "residual": residual}
        head = {**sizes, **self.label.row()}
        return {key: value for part in (head, *parts) for key, value in part.items()}


@dataclass(frozen=True)
class Regime:
    """The result of ``regime``: one record per head and one for the layer (None if it was left out)."""

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

    def frame(self) -> pandas.DataFrame:
        """Return a pandas table with one line per head; rotary offsets are left to :meth:`row`."""
        rows = [head.row() for head in self.heads]
        return to_frame({name: value for name, value in row.items() if name != "offsets"} for row in rows)

    def row(self) -> dict[str, Any]:
        """Return a JSON object with the layer's row and those of the heads."""
        return {"layer": None if self.layer is None else self.layer.row(), "heads": [head.row() for head in self.heads]}

    def __repr__(self) -> str:
        heads = f"{len(self.heads)} head{'' if len(self.heads) == 1 else 's'}"
        return f"Regime({heads}: {self})"

    def _repr_html_(self) -> str:
        """A card for notebooks: the label with its reason, and the labels of the heads."""
        from attractor.html_repr import html_card

        counts = Counter(head.label.name for head in self.heads)
        heads = ", ".join(f"{count} {label}" for label, count in counts.most_common())
        return html_card(
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
    law : an Attention, a Block (a pre-norm's gain is folded in), or an object with a method law() that returns one.
    layer : a number for the records.
    sums : whether to classify the layer too; its matrices are d x d where the heads span that many dimensions.
    offsets : distances at which rotary positions are evaluated.
    tolerance : relative size below which an eigenvalue has no sign; by default 1e-10, for float32 weights 1e-5.
    mode : "stacked" adds the metric as the published code defines it, from all values stacked without their outputs.
    """
    found = extract_attention(law)
    if mode not in ("token", "stacked"):
        raise InputError(f"mode must be 'token' or 'stacked', got {mode!r}")
    band = BANDS.get(found.query.dtype, 1e-5) if tolerance is None else float(tolerance)
    if not 0 < band < 1:
        raise InputError(f"tolerance must be between 0 and 1, got {tolerance}")
    try:
        whole = classify_factors(found, factorize(found), layer=layer, sums=sums, offsets=offsets, band=band)
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
    return _drop_certificates(whole, law) if isinstance(law, Block) else whole


def _drop_certificates(found: Regime, block: Block) -> Regime:
    """Return the labels without certificates, because no theorem covers the other parts of a block."""
    parts = ["its norms"] * (block.placement != "none") + ["its feed-forward part"] * (block.feedforward is not None)
    if not parts:
        return found

    def plain(row: Any) -> Any:
        named = row.label
        why = f"{named.why.partition('; proved by')[0]}; nothing is proved of a block with {' and '.join(parts)}"
        return replace(row, label=Label(named.name, None, why)) if named.certified else row

    layer = None if found.layer is None else plain(found.layer)
    return replace(found, heads=tuple(plain(row) for row in found.heads), layer=layer)


def classify_values(
    factors: list[Factors], why: str, *, layer: int | None, sums: bool, band: float = BANDS[torch.float64]
) -> Regime:
    """Describe the values of heads whose scores are not bilinear, for the reason ``why``: all forms of W are undefined."""
    none, named = Form.undefined(), Label("undefined", None, why)
    rows = []
    for group in factors:
        grams = group.grams()
        for member, value in zip(group.members, spectra(grams.reduced_value, 0, band), strict=True):
            forms_of_head = (none, none, none, none, None, value, ())
            rows.append(HeadRegime(layer, member, grams.dim, grams.rank, *forms_of_head, named))
    rows.sort(key=lambda row: row.head)
    if not sums:
        return Regime(tuple(rows), None)
    heads = separate_heads(factors)
    value = value_spectrum(heads, band)
    whole = LayerRegime(layer, len(heads), heads[0].dim, none, none, none, float("nan"), value, named)
    return Regime(tuple(rows), whole)


def classify_factors(
    law: Attention,
    factors: list[Factors],
    *,
    layer: int | None,
    sums: bool,
    offsets: Sequence[int],
    band: float,
    softmax: bool = True,
) -> Regime:
    """Classify a law from its factored heads; without ``softmax`` its weights are not those of a softmax, and labels are undefined."""
    setting, single = Setting.of(law), law.query.dtype != torch.float64
    setting = setting if softmax else replace(setting, softmax=False)
    turns = rotary_of(law.positions)
    options = setting, turns, offsets, band, single, layer
    rows = [row for group in factors for row in classify_heads(group.grams(), *options)]
    rows.sort(key=lambda row: row.head)
    whole = classify_layer(separate_heads(factors), rows, setting, band, single, layer) if sums else None
    return Regime(tuple(rows), whole)


def regimes(laws: Any, **options: Any) -> tuple[Regime, ...]:
    """Return the regime of every layer of a Stack, of an iterable of laws, or of an object with a method laws()."""
    found = laws.laws if isinstance(laws, Stack) else getattr(laws, "laws", laws)
    found = found() if callable(found) else found
    if isinstance(found, Attention) or not isinstance(found, Iterable):
        raise InputError(f"regimes takes a Stack or several laws, got {type(laws).__name__}: use regime for one law")
    return tuple(regime(law, layer=index, **options) for index, law in enumerate(found))


def extract_attention(law: Any) -> Attention:
    """Return the attention of a law, with a pre-norm folded in."""
    if isinstance(law, Block) and isinstance(law.attention, Attention):
        norms = law.norms
        assert isinstance(norms, tuple)
        return fold_norm(law.attention, norms[0]) if law.placement in ("pre", "peri") else law.attention
    inner = getattr(law, "law", None)
    law = inner() if callable(inner) and not isinstance(law, Attention) else law
    if not isinstance(law, Attention):
        raise InputError(f"regime is about Attention(...) or what holds one, got {type(law).__name__}")
    return law


def classify_layer(
    heads: list[Factors], rows: list[HeadRegime], setting: Setting, band: float, single: bool, layer: int | None
) -> LayerRegime:
    """Classify the sum over heads; ``rows`` are the regimes of the heads."""
    value, interaction = value_spectrum(heads, band), interaction_sum(heads, band)
    metric, shared = metric_sum(heads, band), shared_metric(heads)
    fitted = metric_form(shared, band)
    tolerance = 1e-5 if single else 1e-9
    if len(heads) == 1 and heads[0].rank == heads[0].dim:
        named = rows[0].label
    elif setting.causal:
        named = _label_causal_layer(heads, value, shared, setting, tolerance)
    else:
        one_metric = shared.residual <= tolerance
        signs = fitted if one_metric else metric
        named = label(
            signs, interaction, value, setting, heads=len(heads), offsets=_collect_offsets(rows), tolerance=tolerance
        )
        if not one_metric and setting.common:
            why = f"{named.why}; the best common metric leaves {shared.residual:.2g} of the interactions"
            named = Label(named.name, None, why)
    return LayerRegime(layer, len(heads), heads[0].dim, interaction, metric, fitted, shared.residual, value, named)


def _collect_offsets(rows: list[HeadRegime]) -> tuple[Offset, ...]:
    """Return the rotary offsets of all heads: the signs of a layer agree only where those of every head do."""
    return tuple(offset for row in rows for offset in row.offsets)


def _label_causal_layer(
    heads: list[Factors], value: Spectrum, shared: SharedMetric, setting: Setting, tolerance: float
) -> Label:
    """Label several heads under a causal mask: T8 applies where no head increases one known norm."""
    named = label(*_empty_forms(heads), value, setting, heads=len(heads))
    if named.name != "convergent" or value.stability != "stable" or setting.biased or len(heads) == 1:
        return named
    values = torch.stack([head.output @ head.value for head in heads])
    norms = {"|x|^2": None, "the metric that the heads share": shared.left.mT @ shared.right}
    for norm, metric in norms.items():
        found = measure_contraction(values, metric)
        if found is not None and found.excess <= tolerance < found.strength:
            return Label(named.name, "regimes.T8", f"{named.why}; proved by regimes.T8, since no head lets {norm} grow")
    missing = "one norm that no head lets grow, and neither |x| nor the metric that fits all heads is one"
    return Label(named.name, None, f"{named.why}; near zero only: for several heads T8 needs {missing}")


def _empty_forms(heads: list[Factors]) -> tuple[Form, Form]:
    """Return placeholder forms for labels that depend on the value alone."""
    empty = form(torch.zeros(1, 1, dtype=heads[0].query.dtype))
    return empty, empty
