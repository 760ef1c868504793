r"""Counter-based random numbers: the number of a step, token, member and coordinate does not depend on what was drawn before.

A run that is resumed, split over processes, computed on another device or in batches of other sizes draws the same numbers.

Bits come from Philox4x32-10 [salmon2011parallel]_. Its key is ``(seed mod 2^32, seed div 2^32)`` and its counter, four words of 32 bits,
is

====  =======================================================================================================
word  content
====  =======================================================================================================
c0    index of the step, counted from the start of the run
c1    index of the token, 0 for what all tokens share
c2    index of the member of the ensemble
c3    ``stream << 24 | block``: what is drawn (``TOKENS``, ``COMMON``, ``WEIGHTS``), and the coordinate divided by 4
====  =======================================================================================================

The four words r of the result give four normal numbers by the method of Box and Muller in float64, with
:math:`u(r) = (r + 1/2)\,2^{-32}`:

.. math:: z_0 + i z_1 = \sqrt{-2\log u(r_0)}\; e^{2\pi i u(r_1)}, \qquad z_2 + i z_3 = \sqrt{-2\log u(r_2)}\; e^{2\pi i u(r_3)},

which are coordinates 4 block to 4 block + 3. ``cpp/random_numbers.h`` is the same in C++; results agree to rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TOKENS, COMMON, WEIGHTS, PLACES, AUGMENTATION = 0, 1, 2, 3, 4  # streams
MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
PER_BLOCK = 4  # normal numbers of one counter


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Philox4x32-10 of counters, four int64 tensors of words below 2^32 that broadcast; four such tensors."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # products wrap modulo 2^64, and the mask removes the sign that the shift extends
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & MASK) ^ c1 ^ k0,
            second & MASK,
            ((first >> 32) & MASK) ^ c3 ^ k1,
            first & MASK,
        )
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def normals(seed: int, step: int, members: Tensor, tokens: int, dim: int, stream: int = TOKENS) -> Tensor:
    """Standard normal numbers of one step, (members, tokens, dim) in float64.

    Parameters
    ----------
    seed : of the run, from 0 to 2^63 - 1.
    step : index of the step.
    members : indices of the members, (members,) of int64; the result is on their device.
    tokens, dim : number of tokens and of coordinates.
    stream : what the numbers are for.
    """
    blocks = -(-dim // PER_BLOCK)
    device = members.device
    counter = (
        torch.tensor(step, device=device),
        torch.arange(tokens, device=device).view(1, -1, 1),
        members.view(-1, 1, 1),
        (stream << 24) | torch.arange(blocks, device=device).view(1, 1, -1),
    )
    words = [word.expand(len(members), tokens, blocks) for word in philox(counter, (seed & MASK, seed >> 32))]
    r0, a0, r1, a1 = ((word.double() + 0.5) * 2.0**-32 for word in words)
    parts = []
    for radius, angle in ((r0, a0), (r1, a1)):
        length, turn = (-2.0 * radius.log()).sqrt(), (2.0 * math.pi) * angle
        parts += [length * turn.cos(), length * turn.sin()]
    return torch.stack(parts, dim=-1).reshape(len(members), tokens, blocks * PER_BLOCK)[..., :dim]


def uniforms(seed: int, samples: Tensor, count: int, stream: int) -> Tensor:
    """Uniform numbers of samples of a data set, (samples, count) in float64, at least 0 and below 1.

    Parameters
    ----------
    seed : of the run, from 0 to 2^63 - 1.
    samples : indices of the samples in the order of training, (samples,) of int64: c0 and c1 of the counter.
    count : numbers for each sample.
    stream : what the numbers are for.
    """
    blocks = -(-count // 2)
    index = samples.view(-1, 1)
    counter = index & MASK, index >> 32, torch.zeros_like(index), (stream << 24) | torch.arange(blocks).view(1, -1)
    words = [word.expand(len(samples), blocks) for word in philox(counter, (seed & MASK, seed >> 32))]
    pairs = [((high << 21) | (low >> 11)).double() * 2.0**-53 for high, low in (words[:2], words[2:])]
    return torch.stack(pairs, dim=-1).reshape(len(samples), 2 * blocks)[:, :count]
