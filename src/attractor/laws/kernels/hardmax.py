"""Hardmax attention: every token follows the keys with its largest score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attractor.errors import InputError, UnsupportedError
from attractor.laws.kernels.kernel import Kernel, Pairing, exact_scores, option

PAIRS = 1 << 20  # pairs whose scores are held at once


@dataclass(frozen=True)
class Hardmax(Kernel):
    r""":math:`w_{ij} = m_j / \sum_{l \in C_i} m_l` for j in :math:`C_i = \{j : s_{ij} = \max_l s_{il}\}`, zero elsewhere: the limit of
    softmax as the scale tends to infinity. Only visible keys of positive mass count; with ``exclude_self`` a token does not see itself.

    Ties are exact by default: keys tie if their floating-point scores are equal. Equal tokens have equal scores (bit for bit, wherever
    they stand, if tokens and heads have up to 16 dimensions), but keys whose scores are equal by a symmetry need not. ``tie_tolerance``
    t lets scores within :math:`t\,|q_i|\max_j|k_j|` of the largest tie with it. A tolerance changes the dynamics: tokens that come
    close to a leader become keys of its maximum and move it, which a leader of the exact law never does; 4 k :math:`\epsilon`, with
    head dimension k and machine epsilon :math:`\epsilon`, is the size of the rounding of scores.

    The velocity is piecewise smooth and jumps where the largest score changes. An adaptive stepper rejects steps across a jump until
    the jump times the step is below the tolerance, then crosses it: the solution stays accurate to the tolerance, at a cost of several
    rejected steps. Where the velocities on both sides point at the surface of a jump, the exact motion slides along the surface, steps
    shrink to about the tolerance and a run can exhaust its budget; discrete layers (``method="layers"``) do not have this problem.

    There is no gradient (the derivative of the weights is zero wherever it exists), no energy and no Gaussian closure. Coinciding tokens
    may be merged on request, ``flow(..., merge=...)``: weights are proportional to mass, so one token of the total mass gives the
    same velocities. It is not the default, since tokens that are close but follow different keys separate. With ``exclude_self`` merging
    is an error: two coinciding tokens see each other, and the merged token does not see itself.

    Symbols: papers on hardmax self-attention write scores as :math:`\langle Ax_i, x_j\rangle`: :math:`A = \text{scale}\,K^\top Q`; their
    masses are 1/n and their set of leaders is :math:`C_i`.
    """

    exclude_self: bool = option(False, "Under --kernel hardmax a token does not see itself.")
    tie_tolerance: float = option(0.0, "Relative difference of scores up to which they tie under --kernel hardmax.")
    name: ClassVar[str] = "hardmax"
    smooth: ClassVar[bool] = False
    exact: ClassVar[bool] = True
    reads_values: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.tie_tolerance < 1:
            raise InputError(f"the tie_tolerance of hardmax must be between 0 and 1, got {self.tie_tolerance:g}")

    @property
    def device_mode(self) -> str | None:
        return "hardmax" if type(self).attend is Hardmax.attend else None

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        q, k, masses = pairing.scaled_query, pairing.k, pairing.masses
        if any(_is_differentiated(part) for part in (q, k, v, masses)):
            raise UnsupportedError(
                "hardmax has no gradient: its weights are piecewise constant; take softmax with a large scale, or detach tokens and law"
            )
        slack = None
        if self.tie_tolerance > 0:
            slack = self.tie_tolerance * k.norm(dim=-1).amax(-1)[..., None, None] * q.norm(dim=-1, keepdim=True)
        keys = torch.arange(k.shape[-2], device=k.device)
        sums = []
        for rows, hidden in pairing.row_blocks(q, k, PAIRS):
            scores = exact_scores(q[..., rows, :], k)
            hidden = torch.zeros((), dtype=torch.bool, device=k.device) if hidden is None else hidden
            if self.exclude_self:
                hidden = hidden | (keys == keys[rows].unsqueeze(-1))
            if masses is not None:
                hidden = hidden | (masses == 0).unsqueeze(-2)
            if (self.exclude_self or masses is not None) and bool(hidden.expand_as(scores).all(-1).any()):
                raise InputError(
                    "under hardmax every token must see a key of positive mass; the mask, exclude_self or zero masses leave one without"
                )
            scores = scores.masked_fill(hidden, -torch.inf)
            top = scores.amax(-1, keepdim=True)
            tied = (scores >= (top if slack is None else top - slack[..., rows, :])) & ~hidden
            weights = tied.to(v.dtype) if masses is None else tied * masses.unsqueeze(-2)
            weights = weights / weights.sum(-1, keepdim=True)
            if pairing.skip_self:
                weights.diagonal(offset=rows.start, dim1=-2, dim2=-1).zero_()
            sums.append(weights @ v)
        return torch.cat(sums, dim=-2)

    def merge_obstacle(self) -> str | None:
        if self.exclude_self:
            return "under hardmax with exclude_self coinciding tokens see each other, and a merged token would not see itself"
        return None

    def closure_obstacle(self, scale: float, masked: bool) -> str:
        return "under the hardmax kernel a Gaussian has no largest score, since its support is unbounded"


def _is_differentiated(part: Tensor | None) -> bool:
    """Whether a derivative with respect to the tensor is being computed, in reverse or forward mode."""
    if part is None:
        return False
    reverse = part.requires_grad and torch.is_grad_enabled()
    return reverse or forward_ad.unpack_dual(part).tangent is not None
