"""Theorems with hypotheses that are evaluated and conclusions that are measured; counter-examples to published claims."""

from attractor.theory.checking import CheckReport, CheckResult, check, fit_power, geometric_times, select_theorems
from attractor.theory.claims import CounterExample, Evidence, find_counterexample, list_counterexamples, render_claims
from attractor.theory.conditions import FATES, Condition, Hypothesis, Margin, Verdict, find_contradiction
from attractor.theory.prediction import Finding, Prediction, measure_agreement, predict
from attractor.theory.sampling import Rng
from attractor.theory.spheres import fit_decay_rate, max_distance
from attractor.theory.theorem import (
    Case,
    Citation,
    Measurement,
    Status,
    Theorem,
    find_theorem,
    integrate,
    list_theorems,
    stack_laws,
    summarize,
)
from attractor.theory.timescales import TimeScale

__all__ = [
    "FATES",
    "Case",
    "CheckReport",
    "CheckResult",
    "Citation",
    "Condition",
    "CounterExample",
    "Evidence",
    "Finding",
    "Hypothesis",
    "Margin",
    "Measurement",
    "Prediction",
    "Rng",
    "Status",
    "Theorem",
    "TimeScale",
    "Verdict",
    "check",
    "find_contradiction",
    "find_counterexample",
    "find_theorem",
    "fit_decay_rate",
    "fit_power",
    "geometric_times",
    "integrate",
    "list_counterexamples",
    "list_theorems",
    "max_distance",
    "measure_agreement",
    "predict",
    "render_claims",
    "select_theorems",
    "stack_laws",
    "summarize",
]
