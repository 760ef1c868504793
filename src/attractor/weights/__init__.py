"""Spectra, definiteness and regimes of attention weights, computed from matrices of the size of a head."""

from attractor.weights.classification import (
    LABELS,
    HeadRegime,
    LayerRegime,
    Regime,
    Setting,
    classify_factors,
    classify_heads,
    regime,
    regimes,
)
from attractor.weights.factors import (
    Factors,
    Products,
    SmallMatrices,
    factorize,
    fold_norm,
    is_narrow,
    reduce_products,
    separate_heads,
)
from attractor.weights.layers import Growth, GrowthAccumulator, Offset, measure_contraction, value_spectrum
from attractor.weights.null_models import (
    Nulls,
    NullScore,
    collect_other_heads,
    compare_with_nulls,
    compute_nulls,
    draw_random_heads,
)
from attractor.weights.quantities import NAMES, QUANTITIES, Quantity, compute_quantities
from attractor.weights.spectra import BANDS, asymmetry, extremes, symmetrize
from attractor.weights.stability import Bounds, bound_abscissa, bound_radius, enclose_eigenvalue, rounding_error

__all__ = [
    "BANDS",
    "LABELS",
    "NAMES",
    "QUANTITIES",
    "Bounds",
    "Factors",
    "Growth",
    "GrowthAccumulator",
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
    "bound_abscissa",
    "bound_radius",
    "classify_factors",
    "classify_heads",
    "collect_other_heads",
    "compare_with_nulls",
    "compute_nulls",
    "compute_quantities",
    "draw_random_heads",
    "enclose_eigenvalue",
    "extremes",
    "factorize",
    "fold_norm",
    "is_narrow",
    "measure_contraction",
    "reduce_products",
    "regime",
    "regimes",
    "rounding_error",
    "separate_heads",
    "symmetrize",
    "value_spectrum",
]
