"""Random matrices, laws, spaces and tokens for the samplers of theorems.

Every function draws from a NumPy generator ``rng``; matrices are float64 tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Attention, Schedule
from attractor.spaces import Ellipsoid, Space, Sphere
from attractor.states import Gaussian, Tokens

SIZES = ((2, 3), (3, 4), (5, 3), (6, 4))  # (n, d): few, so that cases of one shape run as one ensemble
SPHERE_SIZES = ((3, 3), (5, 3), (6, 4))  # (n, d): few, so that cases of one shape run as one ensemble
UNIT = Sphere()
# shared objects, because cases on the same ellipsoid run as one ensemble
ELLIPSOIDS = {
    3: Ellipsoid(torch.tensor([[1.4, 0.3, 0.0], [0.3, 0.8, 0.2], [0.0, 0.2, 0.6]], dtype=torch.float64)),
    4: Ellipsoid(torch.diag(torch.tensor([0.5, 0.8, 1.2, 2.0], dtype=torch.float64))),
}


def map_to_space(space: Space, points: Tensor, **options: Any) -> Tokens:
    """Return tokens on a space from points of the unit sphere."""
    return Tokens(space.from_sphere(points), **options)


def map_matrices(space: Space, value: Tensor, interaction: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value and interaction on a space from those in coordinates of the unit sphere."""
    root, inverse = (space.sphere_matrix(value.shape[-1], inverse=inverse) for inverse in (False, True))
    return inverse @ value @ root, root @ interaction @ root


class Rng(np.random.Generator):
    """A NumPy random generator that also draws matrices, laws, spaces and tokens; tensors are float64."""

    @classmethod
    def from_seed(cls, seed: int | Sequence[int]) -> Rng:
        """Return a generator with the stream of ``numpy.random.default_rng(seed)``."""
        return cls(np.random.default_rng(seed).bit_generator)

    def seed(self) -> int:
        """Draw a seed."""
        return int(self.integers(0, np.iinfo(np.int32).max))

    def sizes(self, choices: Sequence[tuple[int, int]] = SIZES) -> tuple[int, int]:
        """Draw a number of tokens and a dimension."""
        n, d = choices[int(self.integers(len(choices)))]
        return n, d

    def orthogonal(self, d: int) -> Tensor:
        """Draw an orthogonal matrix from the uniform distribution."""
        q, r = np.linalg.qr(self.standard_normal((d, d)))
        return torch.from_numpy(q * np.sign(np.diag(r)))

    def symmetric(self, values: Sequence[float] | np.ndarray) -> Tensor:
        """Draw a symmetric matrix with given eigenvalues, in a random basis."""
        basis = self.orthogonal(len(values))
        matrix = basis @ torch.diag(torch.as_tensor(np.asarray(values, dtype=np.float64))) @ basis.mT
        return (matrix + matrix.mT) / 2

    def definite(self, d: int, sign: float = 1.0, low: float = 0.4, high: float = 1.5) -> Tensor:
        """Draw a symmetric matrix whose eigenvalues have one sign."""
        return sign * self.symmetric(self.uniform(low, high, d))

    def indefinite(self, d: int, positive: int | None = None, low: float = 0.4, high: float = 1.5) -> Tensor:
        """Draw a symmetric matrix with ``positive`` positive eigenvalues, the others negative."""
        count = int(self.integers(1, d)) if positive is None else positive
        return self.symmetric(self.uniform(low, high, d) * np.where(np.arange(d) < count, 1.0, -1.0))

    def skew(self, d: int, size: float = 0.5) -> Tensor:
        """Draw a skew-symmetric matrix whose entries have standard deviation ``size``."""
        matrix = torch.from_numpy(size * self.standard_normal((d, d)))
        return (matrix - matrix.mT) / 2**0.5

    def law(self, interaction: Tensor, value: Tensor, **options: Any) -> Attention:
        """Draw an attention law with given W and V: the query is a random orthogonal matrix, the key is query @ W."""
        query = self.orthogonal(interaction.shape[-1])
        return Attention(query, query @ interaction, value, **options)

    def metric_law(self, metric: Tensor, interaction: Tensor, **options: Any) -> Attention:
        """Draw a law with given metric A and interaction W: V = inv(A) W."""
        return self.law(interaction, torch.linalg.solve(metric, interaction), **options)

    def shared_metric_law(self, metric: Tensor, heads: int, sign: float = 1.0, **options: Any) -> Attention:
        """Draw a law of full-rank heads that share a metric; the symmetric part of every W is definite with the given sign."""
        d = metric.shape[0]
        interactions = [self.definite(d, sign) / heads + self.skew(d, 0.3) / heads for _ in range(heads)]
        parts = [self.metric_law(metric, interaction) for interaction in interactions]
        query, key, value = (torch.stack([getattr(part, name) for part in parts]) for name in ("query", "key", "value"))
        return Attention(query, key, value, **options)

    def tokens(self, n: int, d: int, size: float = 1.0) -> Tokens:
        """Draw independent normal tokens."""
        return Tokens(torch.from_numpy(size * self.standard_normal((n, d))))

    def space(self, d: int, share: float = 0.3) -> Space:
        """Draw a space: an ellipsoid with probability ``share``, else the unit sphere."""
        return ELLIPSOIDS[d] if d in ELLIPSOIDS and self.random() < share else UNIT

    def unit_points(self, n: int, d: int) -> Tensor:
        """Draw independent uniform points of the unit sphere."""
        points = torch.from_numpy(self.standard_normal((n, d)))
        return points / points.norm(dim=-1, keepdim=True)

    def hemisphere(self, n: int, d: int, pole: Tensor | None = None, least: float = 0.05) -> Tensor:
        """Draw points of the hemisphere around a pole, moved away from its edge by ``least``."""
        axis = self.unit_points(1, d)[0] if pole is None else pole
        points = self.unit_points(n, d)
        heights = points @ axis
        points = points * torch.where(heights < 0, -1.0, 1.0)[:, None] + least * axis
        return points / points.norm(dim=-1, keepdim=True)

    def matrix(self, d: int, size: float = 1.0) -> Tensor:
        """Draw a matrix of independent normal entries, with spectral norm about 2 ``size``."""
        return torch.from_numpy(size * self.standard_normal((d, d)) / d**0.5)

    def sphere_law(
        self,
        space: Space,
        value: Tensor,
        interactions: Sequence[Tensor],
        shares: Sequence[float] = (1.0,),
        **options: Any,
    ) -> Attention:
        """Draw a law whose heads have given interactions and the values share_h U, in coordinates of the unit sphere."""
        parts = [
            map_matrices(space, share * value, interaction)
            for share, interaction in zip(shares, interactions, strict=True)
        ]
        turns = [self.orthogonal(value.shape[0]) for _ in parts]
        query, value = torch.stack(turns), torch.stack([part[0] for part in parts])
        key = torch.stack([turn @ interaction for turn, (_, interaction) in zip(turns, parts, strict=True)])
        if len(parts) == 1:
            query, key, value = query[0], key[0], value[0]
        return Attention(query, key, value, **options)

    def sphere_heads(self, space: Space, value: Tensor, size: float = 1.0, **options: Any) -> Attention:
        """Draw a law of one head, or of two that share the value, with interactions without symmetry."""
        d = value.shape[0]
        if self.random() < 0.6:
            return self.sphere_law(space, value, [self.matrix(d, size)], **options)
        return self.sphere_law(space, value, [self.matrix(d, size), self.matrix(d, size)], (0.4, 0.6), **options)

    def schedule(self, space: Space, value: Tensor, horizon: float, size: float = 1.0, **options: Any) -> Schedule:
        """Draw a schedule that interpolates between four laws with random interactions."""
        laws = [self.sphere_law(space, value, [self.matrix(value.shape[0], size)], **options) for _ in range(4)]
        times = np.linspace(0.0, horizon, 4)
        return Schedule.interpolate(tuple(times.tolist()), laws)

    def gaussian(self, d: int, low: float = 0.3, high: float = 1.5, mean: float = 0.0) -> Gaussian:
        """Draw a Gaussian with random mean and covariance; eigenvalues lie between ``low`` and ``high``."""
        return Gaussian(torch.from_numpy(mean * self.standard_normal(d)), self.definite(d, 1.0, low, high))

    def softmax_law(self, transposed: Tensor, value: Tensor, **options: Any) -> Attention:
        """Draw a law with A = K'Q and V given."""
        return self.law(transposed.mT, value, **options)
