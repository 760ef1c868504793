r"""Reports: self-contained HTML pages, and the pages of the commands. Needs ``attractor[report]`` (jinja2, plotly, latex2mathml). ::

    report = Report(
        "Audit of MiniLM",
        command="attractor audit minilm --report audit.html",        # the command that made the numbers
        lead="One sentence on the result.",
        facts={"model": "all-MiniLM-L6-v2", "layers": 6, "seed": 0},
    )
    part = report.section("Heads")
    part.text(r"Text with \(formulas\) and `code`.")                 # tone="good" | "warn" | "bad" for a box
    part.maths(r"\dot x_i = \sum_j w_{ij} V x_j")
    part.card({"heads": 72, "certified": 3}, title="Summary")        # consecutive cards stand side by side
    part.table(rows, columns, caption="...")                         # cells: text, number, None, Badge, Maths, Code
    part.figure(figure, "Caption.", alt="...", numbers=rows)         # plotly figure or {"data", "layout"}
    part.heatmap(
        {"index of W": Measure(values, "diverging", "Definition."), "regime": Measure(labels, "category")},
        rows=range(6), columns=range(12), axes=("layer", "head"), caption="Caption.", alt="...",
        detail=lambda layer, head: {"index of W": 0.3},              # the panel that a click opens
        figures=CellFigures(lambda layer, head: traces, layout, "Eigenvalues"),
    )
    part.fold("All rows").table(rows)                                # hidden until opened
    report.write("audit.html")                                       # or report.html()

``check_place(path, "--report")`` raises before the work starts if the page cannot be written. Text inside plotly figures must pass through
``escape_text``; all other text is escaped by the report.
"""

from attractor.report.blocks import Badge, CellFigures, Code, Maths, Measure, Tile, render_words
from attractor.report.figures import escape_text
from attractor.report.pages.audit import audit_report
from attractor.report.pages.gaussian import (
    add_blow_up_map,
    add_gaussian,
    add_phase,
    add_ranks,
    gaussian_curves,
    gaussian_report,
)
from attractor.report.pages.simulate import add_run, add_theory, simulation_report
from attractor.report.pages.theory import add_check, add_sharpness, add_statement, check_report, prediction_report
from attractor.report.pages.trace import add_heads, trace_report
from attractor.report.pages.training import training_report
from attractor.report.report import Report, Section, check_place

__all__ = [
    "Badge",
    "CellFigures",
    "Code",
    "Maths",
    "Measure",
    "Report",
    "Section",
    "Tile",
    "add_blow_up_map",
    "add_check",
    "add_gaussian",
    "add_heads",
    "add_phase",
    "add_ranks",
    "add_run",
    "add_sharpness",
    "add_statement",
    "add_theory",
    "audit_report",
    "check_place",
    "check_report",
    "escape_text",
    "gaussian_curves",
    "gaussian_report",
    "prediction_report",
    "render_words",
    "simulation_report",
    "trace_report",
    "training_report",
]
