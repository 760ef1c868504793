"""Pages for who listens to them or uses no mouse, by their source; how they are in a browser is asked of axe in test_browser.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from accessible import faults
from attractor.errors import InputError
from attractor.plotting import Scene
from attractor.report import Report


def test_a_report_with_everything(demonstrate: Callable[..., Report]) -> None:
    report = demonstrate()
    scene = Scene(np.linspace(0.0, 1.0, 3), np.zeros((3, 4, 2)), np.full(4, 0.25), title="Four tokens")
    report.section("A animation").animation(scene)
    assert faults(report.html()) == []


def test_cards_before_the_first_section_skip_no_heading() -> None:
    report = Report("Cards first")
    report.card({"tokens": 3}, title="One")
    report.section("Later").card({"tokens": 3}, title="Two")
    assert faults(report.html()) == []


def test_every_column_has_a_name() -> None:
    with pytest.raises(InputError, match="every column of a table needs a name"):
        Report("x").table([{"a": 1, " ": 2}])


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ('<html lang="en">', "<html>", "the page does not name its language"),
        ("<h2", "<h4", "h1 is followed by"),
        ('scope="col"', "", "a table header without scope"),
        (' aria-label="A rise', ' title="A rise', "a picture without words: plot"),
        ('class="plot" role="group"', 'class="plot" role="img"', "a group, no img"),
        ("Skip to the content</a>", "Skip</a><img src='#'>", "an image without alt"),
        (">Copy</button>", "></button>", "an empty button"),
    ],
)
def test_faults_are_found(before: str, after: str, fault: str, demonstrate: Callable[..., Report]) -> None:
    page = demonstrate().html()
    assert before in page
    changed = page.replace(before, after).replace("</h2>", "</h4>") if before == "<h2" else page.replace(before, after)
    assert any(fault in one for one in faults(changed))
