"""The velocity is the formula: kernels, masks, encodings, kinds of heads and masses against sums written out in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
import oracles
from attractor.laws import (
    L2,
    Absolute,
    Attention,
    Causal,
    Exponential,
    Linear,
    Rotary,
    Sigmoid,
    Sinkhorn,
    Softmax,
    Visible,
    Window,
)
from attractor.spaces import Ellipsoid, Euclidean, Sphere
from attractor.states import Tokens
from oracles import Encoding, Head

N, DIM = 6, 4
KERNELS = {
    "softmax": (Softmax(), ("softmax", 0.0)),
    "l2": (L2(), ("l2", 0.0)),
    "sinkhorn": (Sinkhorn(eps=2.5), ("sinkhorn", 2.5)),
    "sigmoid": (Sigmoid(bias=-0.6), ("sigmoid", -0.6)),
    "exponential": (Exponential(), ("exponential", 0.0)),
    "linear": (Linear(), ("linear", 0.0)),
}
PLACES = np.array([2.0, 0.0, 5.0, 2.0, 3.0, 0.0])  # out of order, with ties
BOOLEAN = np.array([[(3 * i + 5 * j) % 4 != 0 or i == j for j in range(N)] for i in range(N)])
MASKS = {
    "none": (None, None, None),
    "causal": (Causal(), "causal", None),
    "window": (Window(3), (3, True), None),
    "two-sided": (Window(2, causal=False), (2, False), None),
    "boolean": (Visible(torch.from_numpy(BOOLEAN)), BOOLEAN, None),
    "causal places": (Causal(), "causal", PLACES),
    "window places": (Window(3), (3, True), PLACES),
    "two-sided places": (Window(2, causal=False), (2, False), PLACES),
}
TABLE = np.random.default_rng(5).standard_normal((7, DIM))
ENCODINGS = {
    "none": (None, Encoding()),
    "every qkv": (Absolute(torch.from_numpy(TABLE)), Encoding(TABLE, "qkv")),
    "every qk": (Absolute(torch.from_numpy(TABLE), on="qk"), Encoding(TABLE, "qk")),
    "input": (Absolute(torch.from_numpy(TABLE), when="input"), Encoding()),
    "rotary": (Rotary(theta=50.0), Encoding(theta=50.0)),
    "partial rotary": (Rotary(theta=7.0, dim=2), Encoding(theta=7.0, turned=2)),
}
MASSES = {
    "uniform": None,
    "random": np.random.default_rng(6).random(N),
    "some zero": np.array([0.3, 0.0, 1.2, 0.5, 0.0, 0.1]),
}


@dataclass(frozen=True)
class Shape:
    """Sizes of an attention law: k is the head dimension, r the rank of a factored value."""

    heads: int
    k: int
    r: int | None = None
    biases: bool = False
    scale: float = 1.0
    isotropic: bool = False  # values c_h I


SHAPES = {
    "one head": Shape(0, DIM),
    "three heads": Shape(3, DIM, scale=-0.4),
    "small heads": Shape(3, 2, scale=0.5),
    "factored": Shape(2, 2, r=3, scale=0.7),
    "biases": Shape(2, 4, biases=True, scale=0.3),
    "isotropic values": Shape(2, 4, isotropic=True),
    "factored with biases": Shape(2, 2, r=2, biases=True),
}


def build(shape: Shape, seed: int) -> tuple[dict[str, Any], list[Head], np.ndarray | None]:
    """Random parameters, for the law and head by head for the oracle."""
    rng = np.random.default_rng(seed)
    axis = (shape.heads,) if shape.heads else ()
    rows = DIM if shape.r is None else shape.r
    sizes: dict[str, tuple[int, ...]] = {"query": (shape.k, DIM), "key": (shape.k, DIM), "value": (rows, DIM)}
    if shape.r is not None:
        sizes["output"] = (DIM, shape.r)
    if shape.biases:
        sizes |= {"query_bias": (shape.k,), "key_bias": (shape.k,), "value_bias": (rows,)}
    parameters = {name: 0.5 * rng.standard_normal((*axis, *size)) for name, size in sizes.items()}
    if shape.isotropic:
        parameters["value"] = np.array([1.5, -0.7])[:, None, None] * np.eye(DIM)
    heads = [
        Head(**{name: part[h] if axis else part for name, part in parameters.items()}) for h in range(shape.heads or 1)
    ]
    output_bias = rng.standard_normal(DIM) if shape.biases else None
    options = {**parameters, "scale": shape.scale}
    return (options if output_bias is None else {**options, "output_bias": output_bias}), heads, output_bias


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_velocity_is_the_formula(kernel: str, mask: str, encoding: str) -> None:
    law_kernel, kernel_formula = KERNELS[kernel]
    law_mask, mask_formula, places = MASKS[mask]
    positions, encoding_formula = ENCODINGS[encoding]
    points = np.random.default_rng(1).standard_normal((N, DIM))
    turn = list(MASKS).index(mask) + list(ENCODINGS).index(encoding)
    for seed, shape in enumerate(SHAPES.values()):
        options, heads, output_bias = build(shape, seed)
        law = Attention(**options, kernel=law_kernel, mask=law_mask, positions=positions)
        masses = list(MASSES.values())[(turn + seed) % 3]  # every shape meets every kind of mass, in turn
        expected = oracles.velocity(
            points,
            heads,
            kernel_formula,
            masses=masses,
            mask=mask_formula,
            places=places,
            encoding=encoding_formula,
            scale=shape.scale,
            output_bias=output_bias,
        )
        got = law.velocity(Tokens(points, masses=masses, positions=places)).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_are_the_formula(kernel: str, mask: str) -> None:
    """``weights`` are the coefficients of V x_j, head by head, masses included."""
    law_kernel, kernel_formula = KERNELS[kernel]
    law_mask, mask_formula, places = MASKS[mask]
    points = np.random.default_rng(2).standard_normal((N, DIM))
    options, heads, _ = build(SHAPES["biases"], 3)
    law = Attention(**options, kernel=law_kernel, mask=law_mask)
    at = np.arange(N, dtype=float) if places is None else places
    for masses in MASSES.values():
        got = law.weights(Tokens(points, masses=masses, positions=places)).numpy()
        for h, head in enumerate(heads):
            q, k = oracles.queries_and_keys(points, head, at, Encoding())
            shares = np.full(N, 1 / N) if masses is None else masses
            expected = oracles.weights(q, k, kernel_formula, shares, oracles.sees(mask_formula, at), law.scale)
            np.testing.assert_allclose(got[h], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("masses", MASSES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_tangent_velocity_is_the_projected_formula(kernel: str, masses: str) -> None:
    law_kernel, kernel_formula = KERNELS[kernel]
    factor = np.random.default_rng(8).standard_normal((DIM, DIM))
    W = factor @ factor.T + np.eye(DIM)
    options, heads, _ = build(SHAPES["small heads"], 4)
    law = Attention(**options, kernel=law_kernel)
    for space, formula in ((Euclidean(), None), (Sphere(2.5), "sphere"), (Ellipsoid(W), W)):
        x = space.random(N, DIM, seed=3)
        drive = oracles.velocity(x.numpy(), heads, kernel_formula, masses=MASSES[masses], scale=law.scale)
        expected = oracles.tangent(formula, x.numpy(), drive)
        got = space.tangent(x, law.velocity(Tokens(x, masses=MASSES[masses]))).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12 * np.abs(drive).max())


def test_absolute_input_positions_are_added_once_as_tokens_enter() -> None:
    points = np.random.default_rng(3).standard_normal((2, N, DIM))
    law = Attention.isotropic(DIM, 1.0, positions=Absolute(TABLE, when="input"))
    entered = law.enter(Tokens(points, positions=PLACES)).points.numpy()
    for lane in range(2):
        for i in range(N):
            np.testing.assert_array_equal(entered[lane, i], points[lane, i] + TABLE[int(PLACES[i])])
    every = Attention.isotropic(DIM, 1.0, positions=Absolute(TABLE))
    np.testing.assert_array_equal(every.enter(Tokens(points)).points.numpy(), points)


def test_positions_may_differ_between_members() -> None:
    """Each ensemble member has its own places: masks, rotations and table rows follow them."""
    rng = np.random.default_rng(4)
    points, places = rng.standard_normal((3, N, DIM)), rng.integers(0, 7, (3, N)).astype(float)
    options, heads, _ = build(SHAPES["three heads"], 5)
    for mask, mask_formula in ((Causal(), "causal"), (Window(2, causal=False), (2, False)), (None, None)):
        for positions, formula in ENCODINGS.values():
            law = Attention(**options, mask=mask, positions=positions)
            got = law.velocity(Tokens(points, positions=places)).numpy()
            for lane in range(3):
                expected = oracles.velocity(
                    points[lane],
                    heads,
                    ("softmax", 0.0),
                    mask=mask_formula,
                    places=places[lane],
                    encoding=formula,
                    scale=law.scale,
                )
                np.testing.assert_allclose(got[lane], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_laws_in_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    """Everything that a law in float64 does, with the same numbers: those of 16 bits are a subset of those of 64."""
    rng = np.random.default_rng(0)
    query, key, value, W = (torch.from_numpy(rng.standard_normal((3, 3))).to(dtype) for _ in range(4))
    W = W @ W.mT + torch.eye(3, dtype=dtype)
    tokens = at.Tokens.gaussian(5, 3, seed=1)
    for kernel in ("softmax", "l2", "sinkhorn", "linear"):
        narrow = at.Attention(query, query if kernel == "sinkhorn" else key, value, kernel=kernel, scale=0.5)
        wide = at.Attention(*(part.double() for part in (narrow.query, narrow.key, value)), kernel=kernel, scale=0.5)
        torch.testing.assert_close(at.velocity(narrow, tokens), at.velocity(wide, tokens), rtol=1e-12, atol=1e-12)
        for space in ("sphere", at.Ellipsoid(W)):
            runs = [at.flow(law, tokens, space=space, until=0.5).final.points for law in (narrow, wide)]
            torch.testing.assert_close(*runs, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(narrow.metric.double(), wide.metric, rtol=1e-2, atol=1e-2)
        assert "Attention" in narrow._repr_html_()
    pytest.importorskip("zarr")
    run = at.flow(narrow, tokens, until=0.1, store=tmp_path / "run")
    found = at.load(tmp_path / "run")
    assert torch.equal(found.law.query, narrow.query)
    assert torch.equal(found.points, run.points)
