"""What notebooks show of laws, states and runs: well-formed, escaped, without scripts, and true."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import attractor as at
from attractor.html_repr import curve, dots, ellipse, format_array, html_card
from attractor.report import Report

EYE = torch.eye(2, dtype=torch.float64)
THREE = EYE.repeat(3, 1, 1)


def law() -> at.Attention:
    return at.Attention.isotropic(dim=2, beta=1.0)


SHOWN = {
    "attention": (lambda: at.Attention.isotropic(dim=2, beta=3.0), ["softmax", "dimension", "Q'K"]),
    "heads": (lambda: at.Attention(THREE, THREE, THREE, mask="causal", positions=at.Rotary()), ["causal", "rotary", "3"]),
    "sum of laws": (lambda: law() + at.Affine(EYE), ["laws"]),
    "tokens": (lambda: at.Tokens.uniform(5, 3, seed=0), ["1/n each", "norms"]),
    "line": (lambda: at.Tokens([[0.0], [1.0]], masses=[1.0, 2.0]), ["given"]),
    "ensemble": (lambda: at.Tokens.uniform(5, 2, seed=0, ensemble=4), ["ensemble", "4"]),
    "gaussian": (lambda: at.Gaussian(torch.zeros(2), 2 * EYE), ["covariance", "mean"]),
    "point": (lambda: at.Gaussian(torch.zeros(2), 0 * EYE), ["covariance"]),
    "run": (lambda: at.flow(law(), at.Tokens.uniform(5, 2, seed=0), until=1.0), ["reached at t = 1", "evaluations"]),
    "gaussian run": (lambda: at.flow(law(), at.Gaussian(torch.zeros(2), EYE), until=9.0), ["blow up at t = 0.5"]),
    "regime": (lambda: at.regime(law()), ["divergent", "regimes.T3", "1 divergent"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_cards_say_what_there_is(name: str) -> None:
    make, words = SHOWN[name]
    html = make()._repr_html_()
    text = " ".join(ElementTree.fromstring(html).itertext())
    assert [word for word in words if word not in text] == []
    assert "script" not in html


def test_text_is_escaped() -> None:
    html = html_card("<b>", {"<i>": "<script>", "array": np.array([1.0, 2.0])})
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "(1, 2)" in html


def test_arrays_are_written_or_measured() -> None:
    assert format_array(np.arange(3.0)) == "(0, 1, 2)"
    assert format_array(np.eye(9)) == "9x9"
    assert format_array(np.array(0.5)) == "0.5"
    assert format_array(np.eye(2)).count("<tr>") == 2


def test_the_ellipse_is_turned_as_the_covariance_is() -> None:
    """The long axis of [[2, 1], [1, 2]] is the diagonal, which rises to the right: minus 45 degrees where y points down."""
    drawn = ellipse(np.array([[2.0, 1.0], [1.0, 2.0]]), "")
    angle = float(re.search(r"rotate\((.*?)\)", drawn)[1])  # type: ignore[index]
    long, wide = (float(found) for found in re.search(r"rx='(.*?)' ry='(.*?)'", drawn).groups())  # type: ignore[union-attr]
    assert angle % 180 == pytest.approx(135)
    assert wide / long == pytest.approx(np.sqrt(1 / 3), abs=0.01)


def test_what_cannot_be_drawn_is_left_out() -> None:
    assert curve([1.0], "") == ""
    assert curve([1.0, float("inf")], "") == ""
    assert dots(np.array([[np.nan, 0.0]]), "") == ""
    assert ellipse(np.array([[1.0]]), "") == ""


def test_a_report_in_a_notebook_is_a_frame() -> None:
    html = Report('A "quoted" <title>')._repr_html_()
    assert html.startswith('<iframe srcdoc="')
    assert "<title>" not in html
