"""Training runs of text and image models with a chosen attention layer, studies of many runs, and their statistics."""

from attractor.training.config import Config, list_configs, read_config
from attractor.training.dynamics import Dynamics
from attractor.training.figures import describe_run, draw_runs
from attractor.training.loop import TrainingResult, train
from attractor.training.run_folder import SCORES, History, RunFolder, Summary, TrainingStep, summarise
from attractor.training.studies.stacked_training import Execution, SeedRun, train_seeds
from attractor.training.studies.statistics import (
    ArmComparison,
    ArmDynamics,
    ArmSummary,
    Comparisons,
    compare_arms,
    compare_pair,
    lost_runs,
    mean_dynamics,
    summarise_arms,
    summarise_dynamics,
    values_by_arm,
)
from attractor.training.studies.study import (
    ARM_KINDS,
    STUDIES,
    Plan,
    Provenance,
    Study,
    StudyResults,
    StudyRun,
    arm_entries,
    find_study,
    read_results,
    run_study,
)

__all__ = [
    "ARM_KINDS",
    "SCORES",
    "STUDIES",
    "ArmComparison",
    "ArmDynamics",
    "ArmSummary",
    "Comparisons",
    "Config",
    "Dynamics",
    "Execution",
    "History",
    "Plan",
    "Provenance",
    "RunFolder",
    "SeedRun",
    "Study",
    "StudyResults",
    "StudyRun",
    "Summary",
    "TrainingResult",
    "TrainingStep",
    "arm_entries",
    "compare_arms",
    "compare_pair",
    "describe_run",
    "draw_runs",
    "find_study",
    "list_configs",
    "lost_runs",
    "mean_dynamics",
    "read_config",
    "read_results",
    "run_study",
    "summarise",
    "summarise_arms",
    "summarise_dynamics",
    "train",
    "train_seeds",
    "values_by_arm",
]
