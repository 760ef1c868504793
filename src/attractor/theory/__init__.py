"""Theorems you can run: regimes, predictions, checks."""

from attractor.theory.checking import Checked, Report, check
from attractor.theory.conditions import Condition, Hypothesis, Margin, Verdict
from attractor.theory.library import theorem, theorems
from attractor.theory.prediction import Finding, Prediction, predict
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.weights.heads import fold
from attractor.theory.weights.labels import LABELS
from attractor.theory.weights.regime import HeadRegime, LayerRegime, Regime, regime, regimes

__all__ = [
    "LABELS",
    "Case",
    "Checked",
    "Citation",
    "Condition",
    "Finding",
    "HeadRegime",
    "Hypothesis",
    "LayerRegime",
    "Margin",
    "Measurement",
    "Prediction",
    "Regime",
    "Report",
    "Status",
    "Theorem",
    "Verdict",
    "check",
    "fold",
    "predict",
    "regime",
    "regimes",
    "theorem",
    "theorems",
]
