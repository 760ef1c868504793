"""The papers' figures and tables, from one command each."""

from attractor.papers.gaussian_cases import study
from attractor.papers.gaussian_ranks import rank_histogram
from attractor.papers.positions import draw, positional_study
from attractor.papers.practice import answers, run

__all__ = ["answers", "draw", "positional_study", "rank_histogram", "run", "study"]
