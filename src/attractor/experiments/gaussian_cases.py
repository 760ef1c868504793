r"""The six cases of Gaussian attention in the plane [castin2025unified], with their published seeds.

The draws are those of numpy's legacy generator. Where the description leaves a choice, this is the one made here:

- collapse: ``Q = rand(2, 2)`` after seed 35, K = -Q, V = GG' with ``G = rand(2, 2)`` drawn next.
- line, plane: the row q is ``rand(1, 2)`` after seed 36, divided by its length.
- two lines: Q, then K, ``randn(2, 2)`` each after seed 36, drawn again until K'Q + Q'K is indefinite; V is ``randn(2, 2)`` after seed
  32 (with V = GG' every start would blow up).
- divergence: the same after seed 33 until K'Q + Q'K is positive definite; V = I.
- both: Q and K of the two lines; V is the next ``randn(2, 2)`` after seed 35 and a discarded ``randn(8, 7)``.

Scores are divided by :math:`\sqrt d` (:math:`\sqrt k` for heads of k rows). The published right sides divide A in l2 but not K'K, and
divide nothing in
sinkhorn: ``official_scaling`` does so too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attractor.attention import Attention
from attractor.errors import InputError

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One case: its matrices, the kernels it is shown with, and what is claimed of it."""

    name: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    kernels: tuple[str, ...]
    claim: str
    draw: str

    def law(self, kernel: str, official_scaling: bool = False) -> Attention:
        """The law of the case with one of its kernels; "multi-head" is softmax with two heads."""
        if kernel not in self.kernels:
            raise InputError(f"the case {self.name!r} is shown with {', '.join(self.kernels)}, not with {kernel!r}")
        query, key, value = self.query, self.key, self.value
        if kernel == "multi-head":
            return _heads(query, key, value)
        scale = 1.0 / np.sqrt(query.shape[-1])
        if official_scaling and kernel == "l2":
            return Attention(scale * query, key, value, kernel="l2")  # type: ignore[arg-type]
        if official_scaling and kernel == "sinkhorn":
            return Attention(query, key, value, kernel="sinkhorn")  # type: ignore[arg-type]
        return Attention(query, key, value, kernel=kernel, scale=scale)  # type: ignore[arg-type]


def _heads(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Attention:
    """One head for each coordinate: head h has row h of Q and K (k = 1, so scores are not divided) and writes coordinate h of V x.

    With a single row in Q and K the second head is empty, and only the first coordinate is written.
    """
    rows = query.shape[0]
    value = np.stack([np.outer(np.eye(2)[h], value[h]) for h in range(rows)])
    return Attention(query[:, None, :], key[:, None, :], value)  # type: ignore[arg-type]


def case(name: str) -> Case:
    """A case by its name."""
    if name not in CASES:
        raise InputError(f"there is no case {name!r}; the cases are {', '.join(CASES)}")
    return CASES[name]()


def _collapse() -> Case:
    draw = np.random.RandomState(35)
    query = draw.rand(2, 2)
    root = draw.rand(2, 2)
    kernels = ("softmax", "l2", "multi-head", "sinkhorn")
    return Case("collapse", query, -query, root @ root.T, kernels, "every covariance goes to 0", "seed 35")


def _row() -> np.ndarray:
    row = np.random.RandomState(36).rand(1, 2)
    return row / np.linalg.norm(row)


def _line() -> Case:
    q = _row()
    return Case("line", q, -q, np.eye(2), ("softmax", "l2", "sinkhorn"), "limits of rank one on one line", "seed 36")


def _plane() -> Case:
    q = _row()
    return Case("plane", q, -q, np.eye(2), ("multi-head",), "limits fill a plane, also with full rank", "seed 36")


def _drawn(seed: int, wanted: str) -> tuple[np.ndarray, np.ndarray]:
    """Q and K drawn until the symmetric part of K'Q is as wanted."""
    draw = np.random.RandomState(seed)
    while True:
        query, key = draw.randn(2, 2), draw.randn(2, 2)
        low, high = np.linalg.eigvalsh(key.T @ query + query.T @ key)
        if (wanted == "indefinite" and low < 0 < high) or (wanted == "positive" and low > 0):
            return query, key


def _two_lines() -> Case:
    query, key = _drawn(36, "indefinite")
    value = np.random.RandomState(32).randn(2, 2)
    claim = "limits of rank one on two lines"
    return Case("two-lines", query, key, value, ("softmax", "l2"), claim, "seeds 36 and 32")


def _divergence() -> Case:
    query, key = _drawn(33, "positive")
    kernels = ("softmax", "l2", "sinkhorn")
    return Case("divergence", query, key, np.eye(2), kernels, "every covariance diverges", "seed 33")


def _both() -> Case:
    query, key = _drawn(36, "indefinite")
    draw = np.random.RandomState(35)
    draw.randn(8, 7)
    claim = "some covariances converge and some diverge"
    return Case("both", query, key, draw.randn(2, 2), ("softmax", "l2"), claim, "seeds 36 and 35")


CASES = {
    "collapse": _collapse,
    "line": _line,
    "plane": _plane,
    "two-lines": _two_lines,
    "divergence": _divergence,
    "both": _both,
}
