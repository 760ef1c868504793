"""Training runs: a model with chosen attention, bytes of text, and a loop that can be killed and resumed to the same curve."""

from attractor.experiments.training.config import Config, read_config
from attractor.experiments.training.loop import Report, train

__all__ = ["Config", "Report", "read_config", "train"]
