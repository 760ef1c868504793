"""Theorems you can run: regimes, predictions, checks."""

from attractor.theory.checking import Checked, Report, check, decades, power, selected
from attractor.theory.claims import CounterExample, Evidence, find_counterexample, list_counterexamples, table
from attractor.theory.conditions import FATES, Condition, Hypothesis, Margin, Verdict, contradiction
from attractor.theory.prediction import Finding, Prediction, agreement, predict
from attractor.theory.sampling import Draw, cloud, definite, indefinite, law_of, metric_law, orthogonal, skew
from attractor.theory.spheres import rate_within, spread
from attractor.theory.theorem import (
    Case,
    Citation,
    Measurement,
    Status,
    Theorem,
    find_theorem,
    integrate,
    list_theorems,
    stacked,
    summary,
)

__all__ = [
    "FATES",
    "Case",
    "Checked",
    "Citation",
    "Condition",
    "CounterExample",
    "Draw",
    "Evidence",
    "Finding",
    "Hypothesis",
    "Margin",
    "Measurement",
    "Prediction",
    "Report",
    "Status",
    "Theorem",
    "Verdict",
    "agreement",
    "check",
    "cloud",
    "contradiction",
    "decades",
    "definite",
    "find_counterexample",
    "find_theorem",
    "indefinite",
    "integrate",
    "law_of",
    "list_counterexamples",
    "list_theorems",
    "metric_law",
    "orthogonal",
    "power",
    "predict",
    "rate_within",
    "selected",
    "skew",
    "spread",
    "stacked",
    "summary",
    "table",
]
