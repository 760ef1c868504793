"""What the weights of a law alone say: forms, spectra and labels, through matrices of the size of a head."""

from attractor.weights.classification import (
    LABELS,
    HeadRegime,
    LayerRegime,
    Regime,
    Setting,
    head_regimes,
    regime,
    regime_of,
    regimes,
)
from attractor.weights.factors import Factors, Products, SmallMatrices, factors_of, fits, fold, heads_in, wide_heads
from attractor.weights.layers import Growing, Growth, Offset, contraction, value_spectrum
from attractor.weights.null_models import Nulls, NullScore, beside, drawn_like, nulls, others
from attractor.weights.quantities import NAMES, QUANTITIES, Quantity, measured
from attractor.weights.spectra import BANDS, asymmetry, extremes, symmetric

__all__ = [
    "BANDS",
    "LABELS",
    "NAMES",
    "QUANTITIES",
    "Factors",
    "Growing",
    "Growth",
    "HeadRegime",
    "LayerRegime",
    "NullScore",
    "Nulls",
    "Offset",
    "Products",
    "Quantity",
    "Regime",
    "Setting",
    "SmallMatrices",
    "asymmetry",
    "beside",
    "contraction",
    "drawn_like",
    "extremes",
    "factors_of",
    "fits",
    "fold",
    "head_regimes",
    "heads_in",
    "measured",
    "nulls",
    "others",
    "regime",
    "regime_of",
    "regimes",
    "symmetric",
    "value_spectrum",
    "wide_heads",
]
