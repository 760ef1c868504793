"""Pictures of tokens along time: static, animated, interactive; one style for all of them, and for figures of your own."""

from attractor.pictures.curves import Curve, Panel, draw_panels
from attractor.pictures.draw import draw
from attractor.pictures.scene import Scene
from attractor.pictures.style import paper

__all__ = ["Curve", "Panel", "Scene", "draw", "draw_panels", "paper"]
