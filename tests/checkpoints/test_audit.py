"""Every head of a model classified by its weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import random_model

import attractor as at


@pytest.mark.parametrize("fold", [False, True])
def test_rows_are_the_regimes_of_the_heads(fold: bool) -> None:
    opened = at.checkpoint(random_model("Llama, grouped"))
    found = at.audit(opened, fold=fold)
    assert [(row["layer"], row["head"]) for row in found.heads] == [
        (layer, head) for layer in (0, 1) for head in range(4)
    ]
    assert [row["layer"] for row in found.layers] == [0, 1]
    alone = at.audit(opened, fold=fold, sums=False)
    for row, single in zip(found.heads, alone.heads, strict=True):
        assert row["label"] == single["label"]
        np.testing.assert_allclose(row["reduced_interaction_index"], single["reduced_interaction_index"], rtol=1e-9)
    assert alone.layers == ()


def test_spectra_against_full_matrices() -> None:
    """Small-matrix formulas against the matrices of size d of the folded head."""
    opened = at.checkpoint(random_model("GPT-2"))
    for row in at.audit(opened, sums=False, layers=[1]).heads:
        head = opened.layers[1].head(row["head"], fold=True)
        assert isinstance(head, at.Attention)
        w = head.scale * head.interaction
        eigenvalues = torch.linalg.eigvalsh((w + w.mT) / 2)
        assert row["interaction_low"] == pytest.approx(float(eigenvalues[0]), rel=1e-9)
        assert row["interaction_high"] == pytest.approx(float(eigenvalues[-1]), rel=1e-9)
        assert row["interaction_index"] == pytest.approx(float(eigenvalues.sum() / eigenvalues.abs().sum()), rel=1e-8)
        real = torch.linalg.eigvals(head.value_map).real
        assert row["value_abscissa"] == pytest.approx(float(real.max()), rel=1e-8)


def test_layers_without_matrices_are_said_to_have_none() -> None:
    for case, reason in (
        ("Qwen 3, q/k norm", "not bilinear"),
        ("OLMo 2, norm over all heads", "not bilinear"),
        ("DeepSeek V3", "latent"),
    ):
        found = at.audit(random_model(case))
        assert found.heads == found.layers == ()
        assert [row["layer"] for row in found.undefined] == [0, 1]
        assert reason in found.undefined[0]["reason"]
