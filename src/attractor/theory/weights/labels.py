r"""From signs to a label, and from a label to the theorem that certifies it.

For tokens that all see each other, with metric A and interaction W: A < 0 < W collapses, A > 0 diverges (with W < 0 it polarises), A < 0
with an unstable value escapes while distances shrink, the rest is intermediate. Without symmetry of A or W these are heuristics
(a rotation refutes the first). Under a causal mask the value alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from attractor.attention import Absolute, Attention, Rotary
from attractor.attention.kernels import Kernel
from attractor.attention.masks import Causal, Window
from attractor.theory.weights.forms import Form, Spectrum
from attractor.theory.weights.offsets import Offset

LABELS = {
    "convergent": "tokens tend to zero",
    "divergent": "tokens run apart to infinity",
    "polarising": "differences of tokens grow while their mean may shrink",
    "escaping": "tokens gather relative to each other while they run to infinity",
    "intermediate": "some directions grow and others shrink",
    "position dependent": "what the interaction does depends on the offset of the tokens",
    "undetermined": "an eigenvalue that decides is zero within rounding",
    "undefined": "the theorems speak of softmax attention",
}
EQUAL = 1e-9


@dataclass(frozen=True)
class Setting:
    """What else a law has that matters for the theorems."""

    softmax: bool
    causal: bool
    masked: bool
    rotary: bool
    shifted: bool
    biased: bool
    related: bool = False  # positions that add to the scores of pairs
    moved: bool = False  # positions at every layer, in values too: the same system around -p

    @classmethod
    def of(cls, law: Attention) -> Setting:
        assert isinstance(law.kernel, Kernel)
        causal = isinstance(law.mask, Causal) or (isinstance(law.mask, Window) and law.mask.causal)
        shifted = isinstance(law.positions, Absolute) and (law.positions.when, law.positions.on) == ("every", "qk")
        biases = (law.query_bias, law.value_bias, law.output_bias)  # a key bias drops out of a softmax
        biased = any(bias is not None and bool((bias != 0).any()) for bias in biases)
        rotary = isinstance(law.positions, Rotary)
        masked = law.mask is not None and not causal
        moved = isinstance(law.positions, Absolute) and (law.positions.when, law.positions.on) == ("every", "qkv")
        related = law.positions is not None and not isinstance(law.positions, Absolute | Rotary)
        return cls(law.kernel.name == "softmax", causal, masked, rotary, shifted, biased, related, moved)

    @property
    def common(self) -> bool:
        """Whether one convex function drives all tokens, as T0 to T4 need."""
        return self.softmax and not (self.causal or self.masked or self.rotary or self.shifted or self.related)

    @property
    def obstacle(self) -> str:
        """What stands in the way of T0 to T4 whatever the matrices are, or nothing."""
        names = {
            "masked": "the mask",
            "shifted": "positions in the scores alone",
            "related": "positions that add to scores",
        }
        return " and ".join([word for name, word in names.items() if getattr(self, name)] + ["biases"] * self.biased)


@dataclass(frozen=True)
class Label:
    """``name`` is a key of LABELS; ``certificate`` is the key of the theorem that proves it, None for a heuristic; ``why`` says it."""

    name: str
    certificate: str | None
    why: str

    @property
    def certified(self) -> bool:
        return self.certificate is not None


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
    """The label of a system with these forms (``metric`` may be any form congruent to A)."""
    if not setting.softmax:
        return Label("undefined", None, "the theorems that give labels are about softmax attention")
    if setting.causal:
        return _causal(value, setting, heads)
    if setting.rotary:
        return _rotary(value, offsets)
    found = _signs(metric, interaction, value)
    if found.name in ("undetermined", "undefined"):
        return found
    return _certified(found, metric, interaction, setting, heads, tolerance)


def _signs(metric: Form, interaction: Form, value: Spectrum) -> Label:
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


def _certified(found: Label, metric: Form, interaction: Form, setting: Setting, heads: int, tolerance: float) -> Label:
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


def _causal(value: Spectrum, setting: Setting, heads: int) -> Label:
    """T8; for several heads a stable sum of values makes zero attractive only near it."""
    name = {"stable": "convergent", "unstable": "divergent"}.get(value.stability, "undetermined")
    why = f"under a causal mask the value decides: largest real part {value.abscissa:.4g}"
    if value.stability == "marginal":
        why += f", and {value.zeros} directions in which nothing moves"
    proved = name == "divergent" or (value.stability == "stable" and heads == 1)
    if setting.biased or not proved or name == "undetermined":
        return Label(name, None, why)
    key = "regimes.T8" if name == "convergent" else "regimes.T8.converse"
    place = ", around minus the positions, which every layer adds" if setting.moved else ""
    return Label(name, key, f"{why}; proved by {key}{place}")


def _rotary(value: Spectrum, offsets: tuple[Offset, ...]) -> Label:
    """No common metric exists: the family may agree, but nothing is proved by that."""
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
