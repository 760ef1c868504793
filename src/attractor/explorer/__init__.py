"""The interactive explorer: a page that integrates attention in the browser, descriptions of systems, and a local server."""

from attractor.explorer.server import Explorer
from attractor.explorer.static_page import build_page
from attractor.explorer.system import SCHEMA, Head, Start, System, read_system

__all__ = ["SCHEMA", "Explorer", "Head", "Start", "System", "build_page", "read_system"]
