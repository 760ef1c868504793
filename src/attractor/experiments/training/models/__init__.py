"""The models that are trained: of text and of pictures, around the same blocks."""

from __future__ import annotations

from typing import Any

from attractor.experiments.training.config import Config
from attractor.experiments.training.models.backbone import Backbone
from attractor.experiments.training.models.language import LanguageModel
from attractor.experiments.training.models.vision import VisionModel


def build_model(config: Config, data: Any) -> LanguageModel | VisionModel:
    """The model of a configuration for what ``data`` holds."""
    if config.task == "text":
        return LanguageModel(config, data.vocabulary)
    return VisionModel(config, data.shape, data.classes, data.mean, data.deviation)


__all__ = ["Backbone", "LanguageModel", "VisionModel", "build_model"]
