"""Figures and experiments of the literature that ``attractor reproduce`` computes, one file each."""

from attractor.papers.figure import Data, Figure, Parameter, Table, find_figure, list_figures
from attractor.papers.gaussian_cases import describe_phase, phase_rows, trace_one_paths
from attractor.papers.gaussian_ranks import describe_ranks, rank_histograms

__all__ = [
    "Data",
    "Figure",
    "Parameter",
    "Table",
    "describe_phase",
    "describe_ranks",
    "find_figure",
    "list_figures",
    "phase_rows",
    "rank_histograms",
    "trace_one_paths",
]
