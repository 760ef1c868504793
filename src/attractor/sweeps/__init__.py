"""Sweeps: grids of flows, executors (local processes, Ray, SLURM), tables and phase diagrams."""

from attractor.sweeps.cells import Cell, grid
from attractor.sweeps.diagrams import THEORIES, Diagram, Theory, diagram, refine_cells, rerun_command
from attractor.sweeps.driver import Cost, format_seconds, read_shard, sweep
from attractor.sweeps.executors import EXECUTORS, Executor, Local, Ray, Slurm, executor_named
from attractor.sweeps.results import Estimate, Failure, Sweep, load, summarise
from attractor.sweeps.systems import DENSITY, GAUSSIAN, MEASURES, Experiment, System, read_observables

__all__ = [
    "DENSITY",
    "EXECUTORS",
    "GAUSSIAN",
    "MEASURES",
    "THEORIES",
    "Cell",
    "Cost",
    "Diagram",
    "Estimate",
    "Executor",
    "Experiment",
    "Failure",
    "Local",
    "Ray",
    "Slurm",
    "Sweep",
    "System",
    "Theory",
    "diagram",
    "executor_named",
    "format_seconds",
    "grid",
    "load",
    "read_observables",
    "read_shard",
    "refine_cells",
    "rerun_command",
    "summarise",
    "sweep",
]
