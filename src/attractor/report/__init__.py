r"""Reports: one self-contained page of HTML, the same look for every command.

A report knows rows, arrays and plotly figures, nothing of laws or checkpoints, so every layer above ``pictures`` may build one; the
commands do so where they print. It needs ``attractor[report]`` (jinja2, plotly, latex2mathml). ::

    from attractor.report import Badge, Maths, Measure, Report, plain

    report = Report(
        "Audit of MiniLM",                                   # the headline
        command="attractor audit minilm --report audit.html",  # what made every number that has no command of its own
        lead="One sentence that says what was found.",
        facts={"model": "all-MiniLM-L6-v2", "layers": 6, "seed": 0},  # short labels at the head
    )
    part = report.section("Heads", lead="...", command="...")   # both optional
    part.text(r"Words with \(formulas\) and `code`; everything else is escaped.")   # tone="good" | "warn" | "bad" for a box
    part.maths(r"\dot x_i = \sum_j w_{ij} V x_j")
    part.card({"heads": 72, "certified": 3}, title="In short")  # cards in a row stand side by side
    part.table(rows, columns, caption="...", command="...")     # rows: dicts or sequences; cells: text, number, None, Badge, Maths, Code
    part.figure(figure, "The sentence under it.", alt="...", height=420, numbers=rows)   # plotly figure or {"data", "layout"}
    part.heatmap(
        {"index of W": Measure(values, "diverging", "What the number means."),   # (rows, columns); the reader switches between measures
         "regime": Measure(labels, "category")},
        rows=range(6), columns=range(12), axes=("layer", "head"),
        caption="The sentence under it.", alt="...",
        detail=lambda layer, head: {"index of W": 0.3, "verdict": Badge("contracting")},   # the panel that a click opens
        pictures=CellFigures(lambda layer, head: traces, layout, "Eigenvalues"),              # and a plot in it
    )
    part.fold("All rows").table(rows)                           # hidden until opened
    part.commands({"attractor trace minilm --text '...'": "follow the tokens of a text"})
    report.write("audit.html")                                  # atomic; or report.html() for the text

``check_place(path, "--report")`` says, before the work starts, whether the page can be written. Text that goes into a plotly figure
(hover texts, ticks, titles) passes through ``plain``, because plotly obeys a few tags; all other text is escaped here. Colours of traces
come from ``attractor.plotting.style.PALETTE`` unless given; axes, grid and fonts follow the reader's choice of light or dark.
"""

from attractor.report.blocks import Badge, CellFigures, Code, Maths, Measure
from attractor.report.figures import escape_text
from attractor.report.pages.audit import audit_report
from attractor.report.pages.gaussian import add_blow_up_map, add_gaussian, add_phase, add_ranks, gaussian_report
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
    "gaussian_report",
    "prediction_report",
    "simulation_report",
    "trace_report",
    "training_report",
]
