"""Pictures of tokens along time: static, animated, interactive."""

from attractor.pictures.draw import draw
from attractor.pictures.scene import Scene

__all__ = ["Scene", "draw"]
