"""A report with every kind of block, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attractor.report import Badge, Code, Maths, Measure, Report, escape_text


def demonstration(text: str = "a prompt") -> Report:
    """Every kind of block, with ``text`` wherever a model, a prompt or a path could bring it in."""
    report = Report(
        f"Tokens of {text}", "attractor demo --text " + text, lead=f"What {text} does.", facts={"text": text}
    )
    report.card({"tokens": 12, "outcome": Badge(text, "good")}, title=text).card({"rate": 1 / 3}, tone="warn")
    words = report.section(f"Words {text}", f"attractor words {text}", lead=text)
    words.text(rf"{text} with \(\beta = \text{{{text}}}\) and `{text}`.").text(text, tone="bad")
    words.maths(r"\dot x_i = \sum_j \frac{e^{\beta \langle x_i, x_j \rangle}}{Z_i} V x_j")
    words.commands({f"attractor {text}": f"says {text}"})
    tables = report.section("Numbers")
    rows = [
        {"name": f"{text} {place}", "value": value, "law": Maths("V = I"), "run": Code(text)}
        for place, value in enumerate((3.5, -1.25, 120))
    ]
    tables.table(rows, caption=f"Rows of {text}.", command=f"attractor rows {text}")
    tables.fold(f"More {text}").table([(1, None), (2, float("inf"))], ("a", "b"))
    pictures = report.section("CellFigures")
    curve = {
        "type": "scatter",
        "x": np.arange(5),
        "y": np.arange(5.0) ** 2,
        "name": escape_text(text),
        "hovertemplate": escape_text(text),
    }
    figure = {"data": [curve], "layout": {"xaxis": {"title": {"text": escape_text(text)}}}}
    pictures.figure(
        figure, f"A curve of {text}.", f"A rise of {text}.", height=260, numbers=[(0, 0.0)], columns=("x", text)
    )
    values = np.linspace(-1, 1, 12).reshape(3, 4)
    values[1, 1] = np.nan
    measures = {
        "index": Measure(values, "diverging", f"Words on {text}."),
        "regime": Measure([[text, "other"] * 2] * 3, "category"),
        "size": abs(values),
    }

    def detail(layer: int, head: int) -> dict[str, object]:
        return {"what": f"{text} {layer}.{head}", "value": values[layer, head], "kind": Badge(text)}

    alt = f"A grid {text}."
    pictures.heatmap(measures, rows=range(3), columns=range(4), caption="Heads.", alt=alt, detail=detail)
    return report


@pytest.fixture
def demonstrate() -> Callable[..., Report]:
    return demonstration


@pytest.fixture
def hostile() -> str:
    """What a prompt may hold: it must be shown, and never run."""
    return "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
