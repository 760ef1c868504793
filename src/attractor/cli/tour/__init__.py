"""``attractor tour``: everything once, in about half a minute, ending in one page."""

from attractor.cli.tour.command import tour

__all__ = ["tour"]
