r"""Wide heads in few dimensions.

A head is known, up to a rotation of token space, by the inner products of the k rows of Q and K, the r rows of V' and the r columns
of O. Their Gram matrix :math:`G = R^\top R` of size 2k + 2r is all that is computed from the d-dimensional weights; the columns of R
are the same head in 2k + 2r dimensions. Products are formed in the precision of the law, everything after them in float64: weights
that are stored with 8 or 11 binary digits lose nothing in float32, whose products of such numbers are exact and whose sums err by
about 1e-6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.attention import Attention
from attractor.theory.weights.factors import Factors
from attractor.theory.weights.heads import orthonormal

# the smallest distance of a row of length one from the span of those before it: nearer, digits are lost and nothing is compressed
NEAREST = {torch.float64: 1e-4, torch.float32: 3e-2}


def compressed(law: Attention) -> list[Factors] | None:
    """The heads of a law, each in a space of its own; None where that gains or keeps too little."""
    if law.output is None or law.query.ndim != 3 or law.query.dtype not in NEAREST:
        return None
    query, key, value = (getattr(law, name).detach() for name in ("query", "key", "value"))
    parts = (query, key, value, law.output.detach().mT)  # (n, rows, d) each
    counts = [part.shape[-2] for part in parts]
    if 2 * sum(counts) > law.dim:
        return None
    gram = _gram(parts)
    sizes = gram.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    if not bool((sizes > 0).all()):
        return None
    factor, failed = torch.linalg.cholesky_ex(gram / sizes[..., None] / sizes[..., None, :], upper=True)
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    if bool((failed != 0).any()) or not bool((pivots > NEAREST[law.query.dtype]).all()):
        return None
    query, key, value, output = (factor * sizes[..., None, :]).mT.split(counts, dim=-2)
    moved = orthonormal(value, output.mT)
    members = tuple(range(len(query)))
    return None if moved is None else [Factors(law.scale * query, key, *moved, members, law.dim)]


def _gram(parts: tuple[Tensor, ...]) -> Tensor:
    """Inner products of all rows, each pair of parts once, in float64."""
    blocks = [[(a @ b.mT).double() for b in parts[index:]] for index, a in enumerate(parts)]
    rows = [
        torch.cat([*(blocks[other][index - other].mT for other in range(index)), *blocks[index]], -1)
        for index in range(len(parts))
    ]
    return torch.cat(rows, -2)
