"""Training runs: a model with chosen attention, text or pictures, and a loop that can be killed and resumed to the same curve."""

from attractor.training.config import Config, configurations, read_config
from attractor.training.figures import draw_runs, title
from attractor.training.loop import Report, train
from attractor.training.run_folder import SCORES, History, RunFolder, summary
from attractor.training.studies.fleet_training import Way
from attractor.training.studies.statistics import arms_table, comparisons, lost_runs
from attractor.training.studies.study import (
    KINDS,
    Plan,
    changes_of,
    depth_curves,
    dynamics_table,
    read_results,
    run_study,
    study_named,
)

__all__ = [
    "KINDS",
    "SCORES",
    "Config",
    "History",
    "Plan",
    "Report",
    "RunFolder",
    "Way",
    "arms_table",
    "changes_of",
    "comparisons",
    "configurations",
    "depth_curves",
    "draw_runs",
    "dynamics_table",
    "lost_runs",
    "read_config",
    "read_results",
    "run_study",
    "study_named",
    "summary",
    "title",
    "train",
]
