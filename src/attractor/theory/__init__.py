"""Theorems you can run: regimes, predictions, checks."""

from attractor.theory.checking import Checked, Report, check
from attractor.theory.conditions import Condition, Hypothesis, Margin, Verdict
from attractor.theory.library import theorem, theorems
from attractor.theory.prediction import Finding, Prediction, predict
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem

__all__ = [
    "Case",
    "Checked",
    "Citation",
    "Condition",
    "Finding",
    "Hypothesis",
    "Margin",
    "Measurement",
    "Prediction",
    "Report",
    "Status",
    "Theorem",
    "Verdict",
    "check",
    "predict",
    "theorem",
    "theorems",
]
