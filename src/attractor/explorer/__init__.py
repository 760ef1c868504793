"""The interactive explorer: a page that integrates attention in the browser."""

from attractor.explorer.static_page import build_page

__all__ = ["build_page"]
