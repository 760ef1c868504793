"""The verb ``flow`` and what it returns."""

from attractor.flow.flow import flow, velocity
from attractor.flow.outcome import Outcome, Statistics
from attractor.flow.stops import Collapse, Consensus, Event, Rule, Steady
from attractor.flow.stored import load, resume
from attractor.flow.trajectory import Trajectory

__all__ = [
    "Collapse",
    "Consensus",
    "Event",
    "Outcome",
    "Rule",
    "Statistics",
    "Steady",
    "Trajectory",
    "flow",
    "load",
    "resume",
    "velocity",
]
