"""The picture of measured rates, in words that explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attractor.pictures.decay import Decay, draw_decays

if TYPE_CHECKING:
    from attractor.meanfield.rates import Rates

LABELS = {"w2": "W2", "sliced": "sliced W2", "energy": "energy distance", "mean": "mean", "covariance": "covariance"}
REFERENCES = {
    "closure": "the Gaussian that the same law moves (W2 and energy distance: n tokens drawn from it)",
    "pair": "an independent system of the same size",
}


def draw_rates(rates: Rates, path: Any = None) -> Any:
    """Errors against n, one panel for each measure."""
    decays = []
    for name, errors in rates.errors.items():
        slope = rates.slopes[name]
        decays.append(Decay(LABELS[name], errors, rates.rms(name), slope.value, slope.low, slope.high))
    law = rates.definition.get("law")
    kernel = getattr(getattr(law, "kernel", None), "name", "a law of")
    reference = REFERENCES.get(str(rates.against), f"a system of {rates.against} tokens")
    caption = (
        f"Distance at t = {rates.until:g} between n tokens and {reference}. Dots are runs, {rates.repeats} for each n; discs their root "
        "mean square; the line is the power of n that fits it best, with the 95% interval of its exponent; dashed: the power "
        f"-1/2 of independent samples. {' '.join(note[:1].upper() + note[1:] + '.' for note in rates.notes)}"
    )
    title = f"The mean-field limit under {kernel} attention"
    return draw_decays(rates.sizes, decays, title=title, caption=caption.strip(), path=path)
