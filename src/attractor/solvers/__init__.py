"""The verb ``flow`` and what it returns."""

from attractor.solvers.outcome import Outcome, Statistics
from attractor.solvers.process_group import is_first_process
from attractor.solvers.run import check_footprint, flow, velocity
from attractor.solvers.saving import save_times
from attractor.solvers.steppers.stepper import default_method, stepper_named
from attractor.solvers.stored_runs import load, resume
from attractor.solvers.termination import Collapse, Consensus, Event, Rule, Steady, View
from attractor.solvers.trajectory import Trajectory, drawing, scene, summarise

__all__ = [
    "Collapse",
    "Consensus",
    "Event",
    "Outcome",
    "Rule",
    "Statistics",
    "Steady",
    "Trajectory",
    "View",
    "check_footprint",
    "default_method",
    "drawing",
    "flow",
    "is_first_process",
    "load",
    "resume",
    "save_times",
    "scene",
    "stepper_named",
    "summarise",
    "velocity",
]
