"""Time integration: ``flow``, the trajectory that it returns, events and stopping rules, stored runs."""

from attractor.solvers.blow_up_approach import Approach, factor_eigenvalues, integrate_to_blow_up
from attractor.solvers.cluster_integration import bound_merging_time
from attractor.solvers.device_kernels import device_loop_reason
from attractor.solvers.linear_stability import Jacobian, LinearStability, jacobian, stability
from attractor.solvers.log_time import LogTime, exp, format_log_time, log_of
from attractor.solvers.lyapunov_exponents import Lyapunov, lyapunov
from attractor.solvers.noise import Noise, Redrawn
from attractor.solvers.outcome import MEANINGS, Outcome, Statistics
from attractor.solvers.process_group import is_first_process
from attractor.solvers.run import check_footprint, enter_space, flow, velocity
from attractor.solvers.saving import save_times
from attractor.solvers.steppers.stepper import default_method, stepper_named
from attractor.solvers.stored_runs import load, resume
from attractor.solvers.termination import Collapse, Consensus, Event, Rule, Steady, View
from attractor.solvers.trajectory import CLOCKS, Trajectory, describe_source

__all__ = [
    "CLOCKS",
    "MEANINGS",
    "Approach",
    "Collapse",
    "Consensus",
    "Event",
    "Jacobian",
    "LinearStability",
    "LogTime",
    "Lyapunov",
    "Noise",
    "Outcome",
    "Redrawn",
    "Rule",
    "Statistics",
    "Steady",
    "Trajectory",
    "View",
    "bound_merging_time",
    "check_footprint",
    "default_method",
    "describe_source",
    "device_loop_reason",
    "enter_space",
    "exp",
    "factor_eigenvalues",
    "flow",
    "format_log_time",
    "integrate_to_blow_up",
    "is_first_process",
    "jacobian",
    "load",
    "log_of",
    "lyapunov",
    "resume",
    "save_times",
    "stability",
    "stepper_named",
    "velocity",
]
