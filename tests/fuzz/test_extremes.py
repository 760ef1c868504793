"""Random systems at the edges of floating-point numbers: no saved state is NaN, and only errors of attractor are raised.

Parameters, tokens, radii, times, steps and tolerances from 1e-300 to 1e300 and zero; coincident and antipodal tokens, one token,
one dimension, masses of zero; every kernel, mask, encoding, space, method, and blocks with every norm and placement.
"""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import AttractorError
from attractor.laws import (
    MLP,
    Absolute,
    Affine,
    Alibi,
    Attention,
    Block,
    Capped,
    Causal,
    Hardmax,
    LayerNorm,
    Norm,
    Relative,
    RMSNorm,
    Rotary,
    Sigmoid,
    Sinkhorn,
    Visible,
    Window,
)
from attractor.observables import find_observable, list_observables

LONGEST = 20.0  # seconds of one case; runs have a budget of fewer
METHODS = (None, None, "dop853", "dopri5", "rk4", "euler", "layers")
KERNELS: tuple[Any, ...] = (
    "softmax", "softmax", "l2", "sigmoid", "exponential", "linear", "capped", "hardmax",
    Sinkhorn(eps=0.5), Sinkhorn(eps=1e-3), Sigmoid(bias=-1e3), Capped(cap=1e-200), Hardmax(exclude_self=True),
)  # fmt: skip


class Draw:
    """Random choices of one case."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.wild = self.rng.random() < 0.7  # whether scales are extreme

    def __call__(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def scale(self, widest: float = 300.0) -> float:
        """Mostly one; otherwise zero, or any power of ten up to ``widest``."""
        if not self.wild or self.chance(0.6):
            return 1.0
        if self.chance(0.1):
            return 0.0
        return float(10.0 ** self.rng.uniform(-widest, widest))

    def positive(self, widest: float = 300.0) -> float:
        return self.scale(widest) or 1.0

    def array(self, *shape: int) -> np.ndarray:
        """Normal, zero, one at a single entry, or with entries of very different sizes."""
        kind = self("normal", "normal", "normal", "zero", "unit", "ragged")
        normal = self.rng.standard_normal(shape)
        if kind == "zero" and self.wild:
            return np.zeros(shape)
        if kind == "unit" and self.wild:
            normal = np.zeros(shape)
            normal[tuple(self.rng.integers(size) for size in shape)] = 1.0
        if kind == "ragged" and self.wild:
            normal = normal * 10.0 ** self.rng.uniform(-150, 150, shape)
        with np.errstate(over="ignore"):
            return np.clip(self.scale() * normal, -1e308, 1e308)


def attention(draw: Draw, n: int, d: int) -> Attention:
    heads, k = draw(1, 1, 2, 3), draw(d, d, 1, 2)
    query = draw.array(heads, k, d)
    key = query if draw.chance(0.3) else draw.array(heads, k, d)
    identity = np.broadcast_to(np.eye(d), (heads, d, d))
    value = draw.scale() * draw(1.0, -1.0) * identity if draw.chance(0.4) else draw.array(heads, d, d)
    options: dict[str, Any] = {"kernel": draw(*KERNELS), "scale": draw(1.0, -1.0) * draw.scale()}
    matrix = draw.rng.random((n, n)) < 0.5
    options["mask"] = draw(None, None, Causal(), Window(2), Visible(torch.from_numpy(matrix | np.eye(n, dtype=bool))))
    table = torch.from_numpy(draw.array(n, d))
    encodings: list[Any] = [None, None, Absolute(table), Absolute(table, on="qk"), Absolute(table, when="input")]
    encodings += [Rotary(draw.positive(100))] if k % 2 == 0 else []
    encodings += [Alibi(torch.from_numpy(draw.array(heads))), Relative(torch.from_numpy(draw.array(8, heads)))]
    options["positions"] = draw(*encodings)
    if draw.chance(0.2):
        options["query_bias"], options["output_bias"] = draw.array(heads, k), draw.array(d)
    return Attention(query, key, value, **options)


def norm(draw: Draw, d: int) -> Norm:
    kind = draw(RMSNorm, LayerNorm)
    gain = torch.from_numpy(draw.array(d)) if draw.chance(0.4) else None
    bias = torch.from_numpy(draw.array(d)) if draw.chance(0.3) else None
    return kind(gain, bias, draw(0.0, 1e-5, 1e-300))


def law(draw: Draw, n: int, d: int) -> at.Law:
    first = attention(draw, n, d)
    kind = draw("attention", "attention", "attention", "block", "stack", "affine")
    if kind == "affine":
        return Affine(draw.array(d, d), draw.array(d))
    if kind == "stack":
        return at.Stack((first, attention(draw, n, d)), draw.positive(20))
    if kind == "block":
        placement = draw("none", "pre", "post", "peri")
        further = MLP(draw.array(3, d), draw.array(3), draw.array(d, 3)) if draw.chance(0.5) else None
        norms = () if placement == "none" else norm(draw, d)
        return Block(first, further, placement, norms)
    return first


def space(draw: Draw, d: int) -> at.Space:
    kind = draw("euclidean", "euclidean", "sphere", "radius", "ellipsoid")
    if kind == "euclidean":
        return at.Euclidean()
    if kind == "ellipsoid":
        factor = draw.rng.standard_normal((d, d))
        return at.Ellipsoid(draw.positive(250) * (factor @ factor.T + 0.1 * np.eye(d)))
    return at.Sphere(draw.positive() if kind == "radius" else 1.0)


def tokens(draw: Draw, n: int, d: int, curved: bool) -> at.Tokens:
    members = draw((), (), (), (2,), (3,))
    points = draw.array(*members, n, d)
    if curved and draw.chance(0.9):  # the zero vector has no place there
        points[(points == 0).all(-1)] = draw.positive()
    if draw.chance(0.2):
        points[..., n // 2, :] = draw(1.0, -1.0, 1.0 + 1e-15) * points[..., 0, :]
    masses = None
    if draw.chance(0.3):
        masses = draw.rng.random(n) * 10.0 ** draw.rng.uniform(-200, 200 if draw.wild else 0, n)
        masses[draw.rng.integers(n)] = draw(0.0, 1.0)
        masses = None if masses.sum() <= 0 else masses
    single = draw.chance(0.2) and np.abs(points).max(initial=0) < 1e38
    return at.Tokens(points, masses=masses, dtype=torch.float32 if single else None)


def options(draw: Draw) -> dict[str, Any]:
    until = draw.positive()
    found: dict[str, Any] = {"until": until, "method": draw(*METHODS), "max_seconds": 1.0, "max_evaluations": 600}
    if found["method"] in ("rk4", "euler", "layers"):
        found["step"] = until / draw(1, 3, 7, 20)
    elif draw.chance(0.15):
        found |= {"step": until / draw(1, 7, 1e5), "adaptive": False}
    elif draw.chance(0.1):
        found["step"] = draw.positive()
    found["save"] = draw(None, None, 7, [until * share for share in (0.0, 0.1, 0.3, 1.0)], [until])
    found["stop"] = draw(None, None, (), ["steady"])
    if draw.chance(0.2):
        found["rtol"] = draw(1e-12, 1e-4, 0.5)
    if draw.chance(0.2):
        found["atol"] = draw(1e-300, 1e-30, 1e-3, 1e300)
    if draw.chance(0.07):
        found["merge"] = draw(1e-300, 1e-8, 0.1, 1e300)
    if draw.chance(0.3):
        found["engine"] = draw("reference", "fused", "blockwise")
    return found


def run_case(seed: int) -> str:
    """Run one case; return the name of its outcome, or of the error that attractor raised."""
    draw = Draw(seed)
    n, d = draw(1, 2, 2, 3, 5, 8), draw(1, 2, 2, 3, 3, 5)
    try:
        where, moved = space(draw, d), law(draw, n, d)
        state = tokens(draw, n, d, where.is_curved)
        run = at.flow(moved, state, space=where, **options(draw))
    except AttractorError as error:
        if not str(error).strip():
            raise ValueError("an error has no message") from None
        return type(error).__name__
    assert not torch.isnan(run.points).any(), "a saved state is NaN"
    assert not torch.isnan(run.final.points).any(), "the last state is NaN"
    for outcome in run.outcomes:
        assert outcome.message
        assert math.isfinite(outcome.time)
    for name in draw.rng.choice(list_observables(), 2):
        try:
            values = find_observable(str(name))(run.final, law=moved, space=where)
        except AttractorError:
            continue
        assert isinstance(values, torch.Tensor | float | tuple | list), name
    return run.outcome.name if len(run.outcomes) == 1 else "ensemble"


def test_no_saved_state_is_nan(fuzz: Any) -> None:
    failures, seen = [], {}
    for seed in fuzz.seeds(60, 10_000):
        began = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "error", RuntimeWarning
                )  # of numpy: a division by zero or an overflow nobody expected
                name = run_case(seed)
            seen[name] = seen.get(name, 0) + 1
        except Exception as error:
            failures.append(f"seed {seed}: {type(error).__name__}: {error}")
        if time.monotonic() - began > LONGEST:
            failures.append(f"seed {seed} took {time.monotonic() - began:.1f} seconds")
    if failures:
        pytest.fail(f"{len(failures)} cases fail:\n" + "\n".join(failures[:20]), pytrace=False)
