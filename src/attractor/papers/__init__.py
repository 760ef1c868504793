"""Figures and experiments of the literature that ``attractor reproduce`` computes, one file each."""

from attractor.papers.figure import (
    SCHEMA,
    Beside,
    Comparison,
    Data,
    Figure,
    Parameter,
    Table,
    Verdict,
    Work,
    find_figure,
    list_figures,
    read_data,
)
from attractor.papers.gallery import (
    Reproduced,
    format_setting,
    reproduce_all,
    reproduce_into,
    shrink,
    stored_data,
    write_gallery,
)
from attractor.papers.gaussian_cases import describe_phase, find_case, phase_rows, trace_one_paths
from attractor.papers.gaussian_ranks import count_ranks, format_counts, rank_histograms

__all__ = [
    "SCHEMA",
    "Beside",
    "Comparison",
    "Data",
    "Figure",
    "Parameter",
    "Reproduced",
    "Table",
    "Verdict",
    "Work",
    "count_ranks",
    "describe_phase",
    "find_case",
    "find_figure",
    "format_counts",
    "format_setting",
    "list_figures",
    "phase_rows",
    "rank_histograms",
    "read_data",
    "reproduce_all",
    "reproduce_into",
    "shrink",
    "stored_data",
    "trace_one_paths",
    "write_gallery",
]
