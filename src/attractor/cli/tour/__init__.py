"""``attractor tour``: everything once, in about two minutes, ending in one page."""

from attractor.cli.tour.command import tour

__all__ = ["tour"]
