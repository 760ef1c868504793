"""The flow is the solution of the formula: against scipy's DOP853 on right-hand sides written out in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import attractor as at
import oracles
from oracles import Encoding, Head

N, DIM = 5, 4
SAVED = [0.0, 0.37, 1.41, 2.0]
MATRIX = np.diag([0.5, 1.0, 2.0, 1.5]) + 0.2
BOOLEAN = np.array([[(2 * i + 3 * j) % 3 != 1 or i == j for j in range(N)] for i in range(N)])
TABLE = 0.3 * np.random.default_rng(5).standard_normal((N, DIM))
KERNELS = {
    "softmax": (at.Softmax(), ("softmax", 0.0)),
    "l2": (at.L2(), ("l2", 0.0)),
    "sinkhorn": (at.Sinkhorn(eps=6.0), ("sinkhorn", 6.0)),
    "sigmoid": (at.Sigmoid(bias=-0.6), ("sigmoid", -0.6)),
    "exponential": (at.Exponential(), ("exponential", 0.0)),
    "linear": (at.Linear(), ("linear", 0.0)),
}
MASKS = {
    "none": (None, None),
    "causal": ("causal", "causal"),
    "window": (at.Window(2), (2, True)),
    "boolean": (torch.from_numpy(BOOLEAN), BOOLEAN),
}
POSITIONS = {
    "none": (None, Encoding()),
    "absolute": (at.Absolute(torch.from_numpy(TABLE)), Encoding(TABLE)),
    "rotary": (at.Rotary(theta=20.0), Encoding(theta=20.0)),
}
SPACES = {
    "euclidean": (at.Euclidean(), None),
    "sphere": (at.Sphere(), np.eye(DIM)),
    "ellipsoid": (at.Ellipsoid(MATRIX), MATRIX),
}
HEADS = {"one head": (1, DIM), "two small heads": (2, 2)}
# every kernel with every mask and every encoding; spaces and kinds of heads take turns, so that each meets all of them
CASES = [
    (kernel, mask, encoding, list(SPACES)[(i + j + k) % 3], list(HEADS)[(i + j // 2 + k) % 2])
    for (i, kernel), (j, mask), (k, encoding) in product(enumerate(KERNELS), enumerate(MASKS), enumerate(POSITIONS))
]


@dataclass(frozen=True)
class Formula:
    """The right-hand side in numpy: sum_h sum_j w_ij V_h (x_j + p_j), made tangent to x'Wx = 1 (no W: flat space)."""

    heads: list[Head]
    kernel: tuple[str, float]
    masses: np.ndarray
    visible: np.ndarray
    encoding: Encoding
    matrix: np.ndarray | None
    scale: float

    @cached_property
    def turns(self) -> np.ndarray:
        """Rotations R_i (n, k, k) of queries and keys."""
        basis = np.eye(self.heads[0].query.shape[0])
        return np.array([[oracles.turn(e, place, self.encoding) for e in basis] for place in range(N)]).swapaxes(1, 2)

    def __call__(self, t: float, y: np.ndarray) -> np.ndarray:
        x = y.reshape(N, DIM)
        shifted = x if self.encoding.table is None else x + self.encoding.table
        drive = np.zeros_like(x)
        for head in self.heads:
            q = np.einsum("iab,ib->ia", self.turns, shifted @ head.query.T)
            k = np.einsum("iab,ib->ia", self.turns, shifted @ head.key.T)
            w = oracles.weights(q, k, self.kernel, self.masses, self.visible, self.scale)
            drive += w @ shifted @ head.value.T
        if self.matrix is not None:
            covector = x @ self.matrix
            drive -= x * ((covector * drive).sum(1) / (covector * x).sum(1))[:, None]
        return drive.ravel()


def solution(formula: Formula, start: np.ndarray) -> np.ndarray:
    """States at the saved times, each reached by a fresh run from the one before."""
    states = [start.ravel()]
    for begin, end in pairwise(SAVED):
        run = solve_ivp(formula, (begin, end), states[-1], method="DOP853", rtol=1e-12, atol=1e-14)
        assert run.success
        states.append(run.y[:, -1])
    return np.array(states).reshape(-1, N, DIM)


@pytest.mark.parametrize(("kernel", "mask", "encoding", "space", "heads"), CASES)
def test_flow_is_the_solution(kernel: str, mask: str, encoding: str, space: str, heads: str) -> None:
    law_kernel, kernel_formula = KERNELS[kernel]
    law_mask, mask_formula = MASKS[mask]
    law_positions, encoding_formula = POSITIONS[encoding]
    law_space, matrix = SPACES[space]
    count, small = HEADS[heads]
    seed = CASES.index((kernel, mask, encoding, space, heads))
    rng = np.random.default_rng(seed)
    query, key = 0.7 * rng.standard_normal((2, count, small, DIM))
    value = 0.35 * rng.standard_normal((count, DIM, DIM))
    masses = rng.uniform(0.1, 0.3, N)
    start = law_space.random(N, DIM, seed=seed).numpy() * (0.3 if matrix is None else 1.0)  # no blow-up in flat space
    law = at.Attention(query, key, value, kernel=law_kernel, mask=law_mask, positions=law_positions, scale=0.6)
    run = at.flow(law, at.Tokens(start, masses), space=law_space, save=SAVED, rtol=1e-11, atol=1e-13, stop=())
    each = [Head(query[h], key[h], value[h]) for h in range(count)]
    visible = oracles.sees(mask_formula, np.arange(N))
    truth = solution(Formula(each, kernel_formula, masses, visible, encoding_formula, matrix, 0.6), start)
    assert run.outcome.name == "reached"
    assert run.times.tolist() == SAVED
    np.testing.assert_allclose(run.points.numpy(), truth, rtol=0, atol=1e-9 * max(1.0, np.abs(truth).max()))
