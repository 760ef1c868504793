r"""The velocity of a density on the circle: a law of infinitely many tokens.

With :math:`x_\theta = (\cos\theta, \sin\theta)`, the tangent :math:`\tau_\theta` and weights :math:`e^{s(\theta,\phi)}`, attention moves
the angle :math:`\theta` at the speed

.. math:: u(\theta) = \sum_h \frac{\int e^{s_h(\theta,\phi)}\,\langle\tau_\theta, V_h x_\phi\rangle\,f(\phi)\,d\phi}
   {\int e^{s_h(\theta,\phi)} f(\phi)\,d\phi},

without the denominator for kernels that do not normalise. Integrals are sums over a uniform grid, whose error falls faster than any
power of its size. Where s depends on the difference of the angles the sums are convolutions: for :math:`s = \beta\cos(\theta-\phi)`,
:math:`K(\theta) = e^{\beta\cos\theta}` and V = I the speed is :math:`\partial(K*f)/\beta` (exponential kernel) or
:math:`\partial\log(K*f)/\beta` (softmax).
"""

from __future__ import annotations

import numpy as np
import torch

from attractor.errors import InputError, UnsupportedError
from attractor.laws.attention import Attention
from attractor.laws.blocks import MLP, Affine, Block
from attractor.laws.closure import summands
from attractor.laws.law import Law
from attractor.states import Tokens, circle_points, grid_angles

SPREAD = 16.0  # range of the scores up to which convolutions by Fourier transformation keep the digits of small sums
ALIKE = 1e-12  # difference of two scores of the same difference of angles
LEAST = 1e-300


class CircleField:
    """The velocity of densities on a grid of the circle under one law.

    Parameters
    ----------
    law : attention with a kernel whose weights depend on one pair of tokens each, affine maps, and sums of these; no masks,
        positions or time.
    size : number of angles.
    """

    def __init__(self, law: Law, size: int) -> None:
        self.size = size
        angles = grid_angles(size)
        points = circle_points(angles)
        tangent = torch.stack((-points[:, 1], points[:, 0]), dim=-1)
        self.drift = np.zeros(size)  # of terms that do not depend on the density
        self.parts: list[
            tuple[np.ndarray, np.ndarray | None, bool]
        ] = []  # weights, normaliser, whether both are convolutions
        for part in summands(law):
            if isinstance(part, (Affine, MLP)):
                moved = part.velocity(Tokens.unchecked(points))
                self.drift = self.drift + (moved * tangent).sum(-1).detach().numpy()
                continue
            if reason := circle_obstacle(part):
                raise UnsupportedError(f"a density cannot be moved by this law: {reason}")
            assert isinstance(part, Attention)
            self._add(part, points, tangent)

    def _add(self, law: Attention, points: torch.Tensor, tangent: torch.Tensor) -> None:
        pairing, _ = law._pairing(Tokens.unchecked(points), False)
        found = law.kernel.logits(pairing, points.new_zeros(1, self.size))
        assert found is not None
        scores = (found.function(found.q @ found.k.mT) + found.bias.unsqueeze(-2)).detach()
        values = law.value_map.detach().to(points)
        values = values.unsqueeze(0) if values.ndim == 2 else values
        pushes = torch.einsum("ic,hcd,jd->hij", tangent, values, points)
        scores = scores.expand(len(pushes), -1, -1)
        for score, push in zip(scores.numpy(), pushes.numpy(), strict=True):
            spread = float(score.max() - score.min())
            normalised = law.kernel.normalised
            with np.errstate(over="ignore"):
                weights = np.exp(score - score.max(axis=1, keepdims=True)) if normalised else np.exp(score)
            if not np.isfinite(weights).all():
                raise InputError(
                    f"scores up to {score.max():.4g} overflow under the {law.kernel.name} kernel: scale the law down, or take softmax"
                )
            gains = weights * push
            convolved = spread <= SPREAD and _is_circulant(weights) and _is_circulant(gains)
            if convolved:  # of the columns: sum_j a(i - j) m_j
                weights, gains = np.fft.rfft(weights[:, 0]), np.fft.rfft(gains[:, 0])
            self.parts.append((gains, weights if normalised else None, convolved))

    def velocity(self, values: np.ndarray) -> np.ndarray:
        """Speeds (..., N) of densities with values (..., N)."""
        masses = np.maximum(values, 0.0) * (2.0 * np.pi / self.size)
        waves = np.fft.rfft(masses) if any(part[2] for part in self.parts) else None
        speed = np.broadcast_to(self.drift, masses.shape)
        for gains, weights, convolved in self.parts:
            if convolved:
                assert waves is not None
                pushed = np.fft.irfft(gains * waves, n=self.size)
                total = None if weights is None else np.fft.irfft(weights * waves, n=self.size)
            else:
                pushed = masses @ gains.T
                total = None if weights is None else masses @ weights.T
            speed = speed + (pushed if total is None else pushed / np.maximum(total, LEAST))
        return speed


def circle_obstacle(law: Law) -> str:
    """Why a density on the circle cannot be moved by a law, or nothing."""
    if isinstance(law, Block):
        return f"a block with {law.placement} normalisation acts on layers, not on a density in continuous time"
    if not isinstance(law, Attention):
        return f"{type(law).__name__} is neither attention nor an affine map"
    if law.dim != 2:
        return f"it moves tokens of dimension {law.dim}, and the circle has dimension 2"
    if law.query.ndim > 3:
        return "it has different parameters for the members of an ensemble"
    if law.mask is not None:
        return "a mask singles out tokens, and a density has none"
    if law.positions is not None:
        return "positions single out tokens, and a density has none"
    if any(bias is not None for bias in (law.value_bias, law.output_bias)):
        return "biases of values and outputs are not supported; add an Affine map"
    if not law.kernel.pairwise:
        return f"weights of the {law.kernel.name} kernel are not known as functions of one query and one key each"
    return ""


def _is_circulant(matrix: np.ndarray) -> bool:
    """Whether the entries depend on i - j only."""
    size = len(matrix)
    rows = np.arange(size)
    first = matrix[:, 0]
    most = float(np.abs(matrix).max())
    return all(
        np.abs(matrix[rows, (rows - shift) % size] - first[shift]).max() <= ALIKE * most
        for shift in range(0, size, max(1, size // 64))
    )
