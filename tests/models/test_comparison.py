"""Two models side by side: which head moved, by how much, and what is said of models that do not correspond."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import random_model

import attractor as at
from attractor.cli.audit import print_comparison
from attractor.models.comparison import compare
from attractor.report import Report
from attractor.report.pages.audit import add_comparison, audit_report
from attractor.weights.classification import Label


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """A model, and the same after the value and the query of layer 1, head 2 were changed."""
    before: Any = random_model("BERT, MiniLM")
    after = copy.deepcopy(before)
    attention = after.encoder.layer[1].attention.self
    rows = slice(2 * 8, 3 * 8)
    with torch.no_grad():
        attention.value.weight[rows] *= 2.0
        attention.query.weight[rows] += 0.01 * torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    return before, after


def test_the_head_that_changed_moved_most(pair: tuple[Any, Any]) -> None:
    opened = tuple(at.checkpoint(model) for model in pair)
    audits = [at.audit(one, sums=False, nulls=0, verify=False) for one in opened]
    found = compare(audits[0], audits[1], (opened[0], opened[1]))
    assert found.reason is None
    [first] = found.most_moved  # the others did not move
    assert (first.layer, first.head) == (1, 2)
    assert first.value_moved == pytest.approx(1.0, rel=1e-7)
    laws = [one.layers[1].head(2) for one in opened]  # of a post-norm model nothing is folded
    before, after = (law.scale * law.interaction for law in laws)  # type: ignore[attr-defined]
    assert first.interaction_moved == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-6)
    assert first.changes["value_abscissa"] == pytest.approx(audits[0].heads[6].value.abscissa, rel=1e-9)
    assert found.summary["value_abscissa"].first is not None
    assert "layer 1 head 2" in repr(found)
    numbers = compare(audits[0], audits[1])
    assert (numbers.most_moved[0].layer, numbers.most_moved[0].head) == (1, 2)
    assert list(found.frame()["moved"]) == [head.moved for head in found.heads]


def test_a_model_beside_itself(pair: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Also after a change of the factors that leaves the maps alone, up to the rounding of inner products."""
    turned = copy.deepcopy(pair[0])
    attention = turned.encoder.layer[0].attention.self
    with torch.no_grad():
        attention.query.weight[:8] *= 4.0
        attention.query.bias[:8] *= 4.0
        attention.key.weight[:8] /= 4.0
        attention.key.bias[:8] /= 4.0
    opened = tuple(at.checkpoint(model) for model in (pair[0], turned))
    audits = [at.audit(one, sums=False, nulls=0, verify=False) for one in opened]
    for found in (compare(audits[0], audits[1], (opened[0], opened[1])), compare(audits[0], audits[0])):
        assert found.most_moved == []
        assert repr(found).endswith("heads, no head moved)")
        print_comparison([found])
        assert "no head moved" in capsys.readouterr().out
        report = Report("audit", "a model beside itself")
        add_comparison(report, found)
        page = report.html()
        assert "no head moved" in page
        assert "The heads that moved most" not in page


def test_models_that_do_not_correspond_are_compared_by_medians(pair: tuple[Any, Any]) -> None:
    first = at.audit(pair[0], nulls=0, sums=False, verify=False)
    for other, reason in (
        (at.audit(random_model("Whisper"), nulls=0, sums=False, verify=False), "layers"),
        (at.audit(pair[1], fold=True, nulls=0, sums=False, verify=False), "norms folded in"),
        (at.audit(pair[1], layers=[0], nulls=0, sums=False, verify=False), "not the same layers"),
    ):
        found = compare(first, other)
        assert found.reason is not None
        assert reason in found.reason
        assert found.heads == ()
        assert found.summary["value_radius"].second is not None


def test_a_comparison_begins_with_what_changed(pair: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The head that moved, and heads with another label, each label with the share of random heads that have it."""
    opened = tuple(at.checkpoint(model) for model in pair)
    before, after = (at.audit(one, sums=False, nulls=8, verify=False) for one in opened)
    other = replace(after.heads[0], label=Label("convergent", None, ""), label_random_rate=0.125)
    found = compare(before, replace(after, heads=(other, *after.heads[1:])), (opened[0], opened[1]))
    assert found.describe().startswith("1 of 8 heads moved, 1 labels changed. Farthest moved layer 1 head 2, ")
    [changed] = found.relabelled
    assert (changed.layer, changed.head) == (0, 0)
    assert changed.labels[1] == "convergent (random: 12.5%)"
    assert list(found.row())[:5] == ["first", "second", "changed", "moved_heads", "relabelled"]
    print_comparison([found])
    printed = capsys.readouterr().out
    assert printed.index("what changed") < printed.index("layer 1 head 2") < printed.index("medians")
    assert f"{changed.labels[0]} -> convergent (random: 12.5%)" in printed
    text = audit_report([before, after], [found]).html()
    assert text.index("What changed") < text.index("Findings of")
    assert "→ convergent (random: 12.5%)" in text
    assert found.frame()["label_after_random_rate"][0] == 0.125
