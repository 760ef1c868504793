"""Training runs of text and image models with a chosen attention layer, studies of many runs, and their statistics."""

from attractor.training.config import Config, list_configs, read_config
from attractor.training.dynamics import Dynamics
from attractor.training.export import Exported, to_transformers
from attractor.training.loading import TrainedRun, load
from attractor.training.loop import TrainingResult, train
from attractor.training.monitors import Monitor, MonitorWarning, monitor
from attractor.training.run_folder import (
    SCORES,
    History,
    RunFolder,
    Summary,
    TrainingStep,
    describe_run,
    draw_runs,
    summarise,
)
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
    "Exported",
    "History",
    "Monitor",
    "MonitorWarning",
    "Plan",
    "Provenance",
    "RunFolder",
    "SeedRun",
    "Study",
    "StudyResults",
    "StudyRun",
    "Summary",
    "TrainedRun",
    "TrainingResult",
    "TrainingStep",
    "arm_entries",
    "compare_arms",
    "compare_pair",
    "describe_run",
    "draw_runs",
    "find_study",
    "list_configs",
    "load",
    "lost_runs",
    "mean_dynamics",
    "monitor",
    "read_config",
    "read_results",
    "run_study",
    "summarise",
    "summarise_arms",
    "summarise_dynamics",
    "to_transformers",
    "train",
    "train_seeds",
    "values_by_arm",
]
