"""Training runs: a model with chosen attention, text or pictures, and a loop that can be killed and resumed to the same curve."""

from attractor.experiments.training.config import Config
from attractor.experiments.training.loop import Report, train
from attractor.experiments.training.reading import configurations, read_config

__all__ = ["Config", "Report", "configurations", "read_config", "train"]
