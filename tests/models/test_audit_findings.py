"""Findings of audits: planted heads are found in their place, healthy models have none; labels have the rate of random heads."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import random_model

import attractor as at
from attractor.errors import InputError
from attractor.models import (
    AUDIT_KINDS,
    Condition,
    Finding,
    compare,
    count_labels,
    find_column,
    find_violations,
    initialize,
    list_columns,
    make_config,
)
from attractor.models.audit_findings import DEAD, DUPLICATE, MOVED, measure_similarities
from attractor.models.quantisation import ErrorBar
from attractor.report.pages.audit import audit_report

LARGER = {"n_embd": 64, "n_layer": 3, "n_head": 4}
NAMES = {kind.name for kind in AUDIT_KINDS}


def findings(model: Any, **options: Any) -> dict[str, Finding]:
    found = at.audit(model, verify=False, sums=False, **{"nulls": 32, **options})
    return {one.kind: one for one in found.findings}


def parts(model: Any, layer: int, head: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """The value (64, 16) and the output (16, 64) of a head, and its queries, keys and values."""
    attention = model.h[layer].attn
    columns = [attention.c_attn.weight.data[:, part * 64 + 16 * head :][:, :16] for part in range(3)]
    return columns[2], attention.c_proj.weight.data[16 * head : 16 * head + 16], columns


@pytest.mark.parametrize("seed", range(20))
def test_planted_heads_are_found_in_their_place(seed: int) -> None:
    model: Any = initialize(random_model("GPT-2", **LARGER).config, seed)
    assert not [one for one in findings(model).values() if not one.common]
    planted = copy.deepcopy(model)
    value, output, _ = parts(planted, 0, 1)
    output.copy_(value.mT)  # O V is positive semi-definite
    value, output, _ = parts(planted, 0, 2)
    output.copy_(-value.mT)
    value, _, _ = parts(planted, 1, 3)
    value.mul_(1e-3)
    for copied, own in zip(parts(planted, 2, 3)[2], parts(planted, 2, 0)[2], strict=True):
        copied.copy_(own)
    parts(planted, 2, 3)[1].copy_(2.0 * parts(planted, 2, 0)[1])
    found = findings(planted)
    places = {"copying_head": (0, 1), "inverting_head": (0, 2), "dead_head": (1, 3)}
    for kind, place in places.items():
        assert (found[kind].layer, found[kind].head) == place, kind
        assert found[kind].places == 1
        assert found[kind].random_rate == 0.0
    assert found["duplicate_head"].places == 2
    assert found["duplicate_head"].layer == 2
    assert found["duplicate_head"].what == "heads 0 and 3 of layer 2 do the same"
    assert found["duplicate_head"].value == pytest.approx(1.0)
    assert found["copying_head"].value > 0.9
    assert found["dead_head"].value < DEAD


def test_a_label_that_random_heads_share_comes_last() -> None:
    """Under a causal mask almost every value has an eigenvalue with positive real part, so that the theorem holds for random heads too."""
    model = initialize(make_config("llama", 2, 32, 4), 0)  # without biases
    found = at.audit(model, verify=False, nulls=32)
    assert {head.label_random_rate for head in found.heads} == {1.0}
    assert all(head.label.certified for head in found.heads)
    last = found.findings[-1]
    assert last.kind == "certified_divergent"
    assert last.common
    assert (last.quantity, last.threshold) == ("value_abscissa", 0.0)
    assert "random heads: 100%" in count_labels(found.heads)
    assert all(layer.label_random_rate == 1.0 for layer in found.layers)
    unknown = at.audit(model, verify=False, nulls=0, sums=False)
    assert "random heads: unknown" in count_labels(unknown.heads)
    assert {one.random_rate for one in unknown.findings} <= {None}


def test_rates_of_labels_are_those_of_random_models() -> None:
    """The rate of a label against the share of heads of other random models that have it, without a mask and with rotary positions."""
    for name in ("BERT, MiniLM", "ModernBERT"):
        found = at.audit(random_model(name), verify=False, sums=False, nulls=64)
        drawn = [
            head for seed in range(1, 9) for head in at.audit(random_model(name, seed), verify=False, nulls=0).heads
        ]
        for head in found.heads:
            share = sum(other.label.name == head.label.name for other in drawn) / len(drawn)
            assert head.label_random_rate == pytest.approx(share, abs=0.25), (name, head.label.name)


def test_value_index_and_sizes() -> None:
    opened = at.checkpoint(random_model("Llama, grouped"))
    found = at.audit(opened, verify=False, sums=False, nulls=8)
    law = opened.layers[0].select(range(4), fold=True)
    assert law.output is not None
    values = law.output @ law.value
    sizes = torch.linalg.matrix_norm(values)
    for head in found.heads[:4]:
        spectrum = torch.linalg.eigvals(values[head.head])
        expected = float(spectrum.real.sum() / spectrum.abs().sum())
        assert head.value_index == pytest.approx(expected, rel=1e-6)
    relative = torch.tensor([head.value_relative_size for head in found.heads[:4]], dtype=torch.float64)
    torch.testing.assert_close(relative / relative[0], sizes / sizes[0])
    maps = law.scale * law.interaction
    flat = [part.flatten(1) / part.flatten(1).norm(dim=1, keepdim=True) for part in (maps, values)]
    torch.testing.assert_close(measure_similarities(law), torch.minimum(*(part @ part.mT for part in flat)))
    assert max(head.nearest_similarity or 0.0 for head in found.heads) < DUPLICATE


def test_conditions_on_heads() -> None:
    model = random_model("BERT, MiniLM")
    moved: Any = copy.deepcopy(model)
    moved.encoder.layer[1].attention.self.value.weight.data[:8] *= 3.0
    opened = at.checkpoint(model), at.checkpoint(moved)
    audits = [at.audit(one, verify=False, nulls=8) for one in opened]
    radius = [head.value.radius for head in audits[0].heads]
    middle = sorted(radius)[len(radius) // 2]
    found = find_violations(Condition.parse(f"value_radius > {middle}", NAMES), audits[:1])
    assert len(found) == sum(value > middle for value in radius)
    late = find_violations(Condition.parse(f"value_radius > {middle} at layers > 0", NAMES), audits[:1])
    assert late == [place for place in found if "layer 1" in place]
    changed = find_violations(Condition.parse("moved > 0.1", NAMES), audits, [compare(audits[0], audits[1], opened)])
    assert len(changed) == 1
    assert "layer 1, head 0" in changed[0]
    assert not find_violations(Condition.parse("dead_head", NAMES), audits)
    with pytest.raises(InputError, match="did you mean 'value_radius'"):
        find_violations(Condition.parse("value_radus > 1", NAMES), audits)
    with pytest.raises(InputError, match="dead_head"):
        Condition.parse("rank_collapse", NAMES)


def test_the_page_begins_with_findings_and_names_no_label_without_its_rate() -> None:
    model: Any = random_model("GPT-2", 0, **LARGER)
    parts(model, 1, 3)[0].mul_(1e-3)
    found = at.audit(model, verify=False, nulls=16)
    text = audit_report([found]).html()
    assert text.index("Findings") < text.index("Against nulls")
    assert "value_relative_size" in text
    assert "divergent (random: 100%)" in text
    none = replace(found, findings=())
    assert "No quantity is beyond its threshold" in audit_report([none]).html()


@pytest.mark.parametrize("name", ["GPT-2", "BERT, MiniLM", "Llama, grouped", "Qwen 3, q/k norm"])
def test_the_dictionary_describes_every_column(name: str) -> None:
    """Also the columns of error bars and of the other choice of folding."""
    found = at.audit(random_model(name), verify=False, nulls=8)
    bar = {"metric_index": ErrorBar(0.1, 0.0), "value_radius": None}
    columns = {"model", *found.heads[0].flat_row(), *replace(found.heads[0], errors=bar).flat_row()}
    assert not [column for column in columns if find_column("audit", column) is None]
    if name == "Llama, grouped":  # has rotary offsets and folds a norm in
        unused = set(list_columns("audit")) - {find_column("audit", column) for column in columns} - {"folded_QUANTITY"}
        assert not unused
        row = compare(found, found).frame().columns
        assert {"moved", "standardised"} <= set(row)
        assert set(list_columns("comparison")) == set(MOVED)


def test_the_dictionary_describes_every_measure_of_traces() -> None:
    run = at.trace(random_model("GPT-2"), [1, 2, 3, 4, 5, 6])
    part = run.measurements
    assert part is not None
    columns = {"block", "head", *part.curves, *part.blocks, *part.heads}
    assert {find_column("trace", column) for column in columns} == set(list_columns("trace"))
    assert find_column("trace", "token_norms") is None
    assert find_column("audit", "value_radius_random_mode") is None
