r"""Independent implementations in plain numpy, written from the formulas of the architecture and not from the code.

Everything is float64 and as literal as possible: a loop or an einsum where the formula has a sum. Tokens are the rows of
``points`` (n, d).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, exp, log, sin

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Head:
    """One head: query and key (k, d), value (d, d), or (r, d) with output (d, r); biases (k,), (k,), (r,)."""

    query: Array
    key: Array
    value: Array
    output: Array | None = None
    query_bias: Array | None = None
    key_bias: Array | None = None
    value_bias: Array | None = None


@dataclass(frozen=True)
class Encoding:
    """Positions: ``table`` added to queries and keys (and values if ``on`` is qkv), or a rotation with ``theta``."""

    table: Array | None = None
    on: str = "qkv"
    theta: float | None = None
    turned: int | None = None


def sees(mask: object, places: Array) -> Array:
    """visible[i, j]: causal p_j <= p_i; window (width, causal): the distance of places is below the width; or the matrix."""
    n = len(places)
    if isinstance(mask, np.ndarray):
        return mask
    visible = np.ones((n, n), dtype=bool)
    for i in range(n):
        for j in range(n):
            if mask == "causal":
                visible[i, j] = places[j] <= places[i]
            elif isinstance(mask, tuple):
                width, causal = mask
                visible[i, j] = abs(places[i] - places[j]) < width and (places[j] <= places[i] or not causal)
    return visible


def turn(vector: Array, place: float, encoding: Encoding) -> Array:
    """R_place: the pair (2p, 2p+1) turns by the angle place * theta^(-2p/turned)."""
    if encoding.theta is None:
        return vector
    turned = len(vector) if encoding.turned is None else encoding.turned
    result = vector.copy()
    for p in range(turned // 2):
        angle = place * encoding.theta ** (-2 * p / turned)
        a, b = vector[2 * p], vector[2 * p + 1]
        result[2 * p] = a * cos(angle) - b * sin(angle)
        result[2 * p + 1] = a * sin(angle) + b * cos(angle)
    return result


def queries_and_keys(points: Array, head: Head, places: Array, encoding: Encoding) -> tuple[Array, Array]:
    """R_i (Q x_i + b_q) and R_j (K x_j + b_k), with x + p in place of x where positions are absolute."""
    queries, keys = [], []
    for x, place in zip(points, places, strict=True):
        shifted = x if encoding.table is None else x + encoding.table[int(place)]
        q, k = head.query @ shifted, head.key @ shifted
        q = q if head.query_bias is None else q + head.query_bias
        k = k if head.key_bias is None else k + head.key_bias
        queries.append(turn(q, place, encoding))
        keys.append(turn(k, place, encoding))
    return np.array(queries), np.array(keys)


def density(scores: Array, masses: Array, eps: float, rounds: int = 200_000) -> Array:
    """p_ij = u_i e^{s_ij / eps} v_j with sum_j p_ij m_j = 1 and sum_i m_i p_ij = 1, by plain scaling of rows and columns."""
    gibbs = np.exp((scores - scores.max()) / eps)
    u, v = np.ones(len(masses)), np.ones(len(masses))
    for _ in range(rounds):
        u = 1 / (gibbs @ (masses * v))
        new = 1 / (gibbs.T @ (masses * u))
        settled = np.abs(new / v - 1).max() < 1e-15
        v = new
        if settled:
            break
    return u[:, None] * gibbs * v


def weights(q: Array, k: Array, kernel: tuple[str, float], masses: Array, visible: Array, scale: float) -> Array:
    """w_ij of one head: row-normalised kernels renormalise over visible keys; in the others a hidden mass drops out."""
    name, parameter = kernel
    score = scale * np.einsum("ia,ja->ij", q, k)
    if name == "softmax":
        raw = masses * np.exp(score - score.max(axis=1, keepdims=True))
    elif name == "l2":
        squares = ((q[:, None, :] - k[None, :, :]) ** 2).sum(axis=2)
        raw = masses * np.exp(-scale * squares - (-scale * squares).max(axis=1, keepdims=True))
    elif name == "sinkhorn":
        raw = masses * density(score, masses, parameter)
    elif name == "sigmoid":
        raw = masses / (1 + np.exp(-score - parameter))
    elif name == "exponential":
        raw = masses * np.exp(score)
    else:
        assert name == "linear"
        raw = masses * score
    raw = np.where(visible, raw, 0.0)
    if name in ("softmax", "l2", "sinkhorn"):
        total = raw.sum(axis=1, keepdims=True)
        raw = np.divide(raw, total, out=np.zeros_like(raw), where=total > 0)
    return raw


def velocity(
    points: Array,
    heads: list[Head],
    kernel: tuple[str, float],
    *,
    masses: Array | None = None,
    mask: object = None,
    places: Array | None = None,
    encoding: Encoding | None = None,
    scale: float = 1.0,
    output_bias: Array | None = None,
) -> Array:
    """sum_h sum_j w^h_ij O_h (V_h x_j + b_v) + b_o."""
    n = len(points)
    masses = np.full(n, 1 / n) if masses is None else masses
    places = np.arange(n, dtype=float) if places is None else places
    encoding = Encoding() if encoding is None else encoding
    visible = sees(mask, places)
    moved = np.zeros_like(points)
    for head in heads:
        q, k = queries_and_keys(points, head, places, encoding)
        w = weights(q, k, kernel, masses, visible, scale)
        for j in range(n):
            x = points[j]
            if encoding.table is not None and encoding.on == "qkv":
                x = x + encoding.table[int(places[j])]
            value = head.value @ x
            value = value if head.value_bias is None else value + head.value_bias
            value = value if head.output is None else head.output @ value
            for i in range(n):
                moved[i] += w[i, j] * value
    return moved if output_bias is None else moved + output_bias


def tangent(space: object, x: Array, v: Array) -> Array:
    """(I - x x'W / x'Wx) v for every token; W is the identity for the sphere, and ``space`` None leaves v alone."""
    if space is None:
        return v
    result = np.empty_like(v)
    for i in range(len(x)):
        metric = np.eye(x.shape[1]) if isinstance(space, str) else np.asarray(space)
        projector = np.eye(x.shape[1]) - np.outer(x[i], metric @ x[i]) / (x[i] @ metric @ x[i])
        result[i] = projector @ v[i]
    return result


def attend(
    q: Array, k: Array, v: Array, bias: Array, mode: str, visible: Array, skip_self: bool = False
) -> tuple[Array, Array]:
    """The contract of an engine for one lane: outputs (n, c) and logsumexps (n,) by direct summation."""
    n, m = len(q), len(k)
    output, logsumexp = np.zeros((n, v.shape[1])), np.full(n, -np.inf)
    for i in range(n):
        keys = [j for j in range(m) if visible[i, j]]
        score = {j: float(q[i] @ k[j]) + float(bias[j]) for j in keys}
        peak = max(score.values(), default=-np.inf)
        if peak > -np.inf:
            logsumexp[i] = peak + log(sum(exp(score[j] - peak) for j in keys))
        for j in keys:
            if skip_self and i == j:
                continue
            if mode == "softmax":
                weight = 0.0 if peak == -np.inf else exp(score[j] - logsumexp[i])
            elif mode == "exponential":
                weight = exp(score[j])
            elif mode == "sigmoid":
                weight = 0.5 * (1 + np.tanh(score[j] / 2))
            else:
                weight = score[j]
            output[i] += weight * v[j]
    return output, logsumexp
