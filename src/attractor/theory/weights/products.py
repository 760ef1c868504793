r"""Wide heads from the inner products of their rows: nothing of size d is needed besides.

A head is known, up to a rotation of token space, by the inner products of the rows of Q, K and V and the columns of O. With the Cholesky
factors :math:`[K; V][K; V]^\top = [T\ S_v; 0\ U_v]^\top[T\ S_v; 0\ U_v]`, the same for K and Q, and :math:`O^\top O = R^\top R`,

.. math:: W \cong s\,[S_q; U_q]\,[T^\top\ 0], \qquad V_h^\top W \cong s\,[S_v; U_v]\,(QO)^\top\,[T^\top\ 0],

and on the range of the output, with orthonormal columns :math:`OR^{-1}`, the value is :math:`R\,(VO)\,R^{-1}` and the interaction
:math:`s\,(QOR^{-1})^\top KOR^{-1}`. Keys and values that several heads share are multiplied once. Products are formed in the precision of
the weights, factors in float64: weights that are stored with 8 or 11 binary digits lose nothing in float32, whose products of such
numbers are exact and whose sums err by about 1e-6; their eigenvalues, which are no better than that, are then found in float32 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attractor.attention import Attention
from attractor.theory.weights.factors import Grams

# the smallest distance of a row of length one from the span of those before it: nearer, digits are lost and factors are used instead
NEAREST = {torch.float64: 1e-4, torch.float32: 3e-2}


@dataclass(frozen=True, eq=False)
class Products:
    """Inner products of n heads that share keys and values in g groups, g dividing n: QQ', KQ', QO, KO, VO and O'O for every head, KK',
    KV' and VV' for every group, each (n or g, rows, rows); ``exact`` is the precision in which they were formed."""

    queries: Tensor
    scores: Tensor
    query_output: Tensor
    key_output: Tensor
    value_output: Tensor
    outputs: Tensor
    keys: Tensor
    mixed: Tensor
    values: Tensor
    exact: torch.dtype = torch.float64

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> Products:
        """From query (n, k, d), key (g, k, d), value (g, r, d) and output (g, d, n/g, r)."""
        (g, _, shared, _), k = output.shape, query.shape[1]
        flat = output.flatten(2)
        by_head = lambda part: part.unflatten(-1, (shared, -1)).transpose(1, 2).flatten(0, 1)  # noqa: E731
        heads = output.transpose(1, 2)  # (g, n/g, d, r)
        own = query.unflatten(0, (g, shared))
        both = torch.cat([part @ flat for part in (key, value)], 1)
        parts = (
            query @ query.mT,
            by_head(key @ own.flatten(1, 2).mT),
            torch.cat([own[group] @ heads[group] for group in range(g)]),
            by_head(both[:, :k]),
            by_head(both[:, k:]),
            torch.cat([heads[group].mT @ heads[group] for group in range(g)]),
            key @ key.mT,
            key @ value.mT,
            value @ value.mT,
        )
        return cls(*(part.double() for part in parts), exact=query.dtype)


@dataclass(frozen=True, eq=False)
class WideHeads:
    """The small matrices of heads of width ``dim``, by the names that ``Grams`` gives them."""

    products: Products
    scale: float
    dim: int
    members: tuple[int, ...]
    output_factor: Tensor  # R, (n, r, r)
    key_factor: Tensor  # T, (n, k, k)
    query_parts: Tensor  # S_q over U_q, (n, 2k, k)
    value_parts: Tensor  # S_v over U_v, (n, k + r, r)

    @property
    def rank(self) -> int:
        return self.products.values.shape[-1]

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows of queries and of values."""
        return self.products.queries.shape[-1], self.rank

    @cached_property
    def norms(self) -> tuple[Tensor, Tensor]:
        """The Frobenius norms of W and of the value map, (n,) each."""
        value = self.output_factor @ self.value_parts.mT
        return tuple(torch.linalg.vector_norm(part, dim=(-2, -1)).double() for part in (self.interaction, value))  # type: ignore[return-value]

    @cached_property
    def reduced_query(self) -> Tensor:
        return self.scale * self._reduced(self.products.query_output)

    @cached_property
    def reduced_key(self) -> Tensor:
        return self._reduced(self.products.key_output)

    @cached_property
    def reduced_value(self) -> Tensor:
        return self.output_factor @ self._reduced(self.products.value_output)

    @cached_property
    def reduced_interaction(self) -> Tensor:
        return self.reduced_query.mT @ self.reduced_key

    @cached_property
    def reduced_metric(self) -> Tensor:
        return self.reduced_value.mT @ self.reduced_interaction

    @cached_property
    def triangles(self) -> tuple[Tensor, Tensor]:
        return self.scale * self.query_parts, _padded(self.key_factor, self.query_parts.shape[-2])

    @cached_property
    def interaction(self) -> Tensor:
        return self._times_keys(self.query_parts)

    @cached_property
    def metric(self) -> Tensor:
        k, r = self.sizes
        parts = self.value_parts @ self.products.query_output.mT  # (n, k + r, k)
        if r > k:  # the part outside the span of the keys has no more than k dimensions
            parts = torch.cat((parts[:, :k], torch.linalg.qr(parts[:, k:], mode="r").R), -2)
        return self._times_keys(parts)

    def _times_keys(self, parts: Tensor) -> Tensor:
        """What has these coordinates, times the keys: (n, s, s) in the precision in which eigenvalues are found."""
        size, k = parts.shape[-2:]
        whole = torch.zeros(len(parts), size, size, dtype=self.products.exact)
        whole[..., :k] = self.scale * (parts @ self.key_factor.mT)
        return whole

    def _reduced(self, rows: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.output_factor, rows, upper=True, left=False)


SmallMatrices = Grams | WideHeads


def _padded(factor: Tensor, rows: int) -> Tensor:
    return torch.nn.functional.pad(factor, (0, 0, 0, rows - factor.shape[-2]))


def wide_heads(products: Products, scale: float, dim: int, members: Sequence[int]) -> WideHeads | None:
    """The small matrices of heads; None where rows are so nearly dependent that their inner products have lost digits."""
    n, g, k = len(products.queries), len(products.keys), products.queries.shape[-1]
    near = NEAREST[products.exact]
    joint = _joined(products.keys, products.mixed, products.values)
    kept, output = _factor(joint, near), _factor(products.outputs, near)
    if kept is None or output is None:
        return None
    kept = kept.repeat_interleave(n // g, 0)
    key, value = kept[..., :k, :k].contiguous(), kept[..., k:]
    within = torch.linalg.solve_triangular(key.mT, products.scores, upper=False)
    rest = products.queries - within.mT @ within
    beyond = _factor(rest, near, products.queries)
    if beyond is None:
        return None
    parts = torch.cat((within, beyond), -2)
    return WideHeads(products, scale, dim, tuple(members), output, key, parts, value.contiguous())


def _joined(first: Tensor, cross: Tensor, second: Tensor) -> Tensor:
    return torch.cat((torch.cat((first, cross), -1), torch.cat((cross.mT, second), -1)), -2)


def _factor(gram: Tensor, near: float, lengths: Tensor | None = None) -> Tensor | None:
    """The upper Cholesky factor of Gram matrices of rows; None if a row is too near to the span of those before it, measured by its own
    length or by that in ``lengths``."""
    sizes = (gram if lengths is None else lengths).diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    if not bool((sizes > 0).all()):
        return None
    factor, failed = torch.linalg.cholesky_ex(gram / sizes[..., None] / sizes[..., None, :], upper=True)
    if bool((failed != 0).any()) or not bool((factor.diagonal(dim1=-2, dim2=-1) > near).all()):
        return None
    return factor * sizes[..., None, :]


def fits(key: int, rank: int, dim: int) -> bool:
    """Whether heads are so much narrower than their tokens that inner products are the shorter way."""
    return 4 * (key + rank) <= dim


def compressed(law: Attention) -> WideHeads | None:
    """The heads of a law from their inner products; None where that gains or keeps too little."""
    if law.output is None or law.query.ndim != 3 or law.query.dtype not in NEAREST:
        return None
    query, key, value = (getattr(law, name).detach() for name in ("query", "key", "value"))
    if not fits(key.shape[-2], value.shape[-2], law.dim):
        return None
    products = Products.of(query, key, value, law.output.detach()[:, :, None])
    return wide_heads(products, law.scale, law.dim, range(len(query)))
