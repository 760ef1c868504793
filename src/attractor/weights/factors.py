"""Attention heads in factored form, and the small matrices that spectra are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, LayerNorm, Norm
from attractor.weights.spectra import PIVOT, compress_product, triangles_from_grams


@dataclass(frozen=True, eq=False)
class Factors:
    """The heads ``members`` of a law: query and key (n, k, d), scale in the query, value (n, r, d) and output (n, d, r) with
    orthonormal columns. The tensors of a single head may lack the head axis."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    members: tuple[int, ...] = ()

    @property
    def dim(self) -> int:
        return self.query.shape[-1]

    @property
    def rank(self) -> int:
        return self.value.shape[-2]

    def grams(self) -> Grams:
        """Return the small matrices of every head."""
        return Grams(self, self)

    def mismatched(self, shift: int) -> Grams:
        """Return the matrices of heads with the queries and keys of one head and the values and outputs of the one ``shift`` later."""
        rolled = {name: getattr(self, name).roll(-shift, 0) for name in ("value", "output")}
        return Grams(self, replace(self, **rolled))


@dataclass(frozen=True, eq=False)
class Grams:
    """Matrices of the size of a head, (n, size, size), from queries and keys of ``scores`` and values and outputs of ``moves``."""

    scores: Factors
    moves: Factors

    @property
    def dim(self) -> int:
        return self.scores.dim

    @property
    def members(self) -> tuple[int, ...]:
        return self.scores.members

    @property
    def rank(self) -> int:
        return self.moves.rank

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows of queries and of values."""
        return self.scores.query.shape[-2], self.rank

    @cached_property
    def norms(self) -> tuple[Tensor, Tensor]:
        """The Frobenius norms of W and of the value map, (n,) each."""
        query = self.scores.query @ self.scores.query.mT
        interaction = (query * self._keys).sum((-2, -1)).clamp_min(0.0).sqrt()
        return interaction, torch.linalg.vector_norm(self.moves.value, dim=(-2, -1))

    @cached_property
    def reduced_query(self) -> Tensor:
        """(n, k, r)"""
        return self.scores.query @ self.moves.output

    @cached_property
    def reduced_key(self) -> Tensor:
        """(n, k, r)"""
        return self.scores.key @ self.moves.output

    @cached_property
    def reduced_value(self) -> Tensor:
        """(n, r, r): the value map restricted to the range of its output."""
        return self.moves.value @ self.moves.output

    @cached_property
    def reduced_interaction(self) -> Tensor:
        """(n, r, r): the interaction restricted to that range."""
        return self.reduced_query.mT @ self.reduced_key

    @cached_property
    def reduced_metric(self) -> Tensor:
        """(n, r, r): congruent to the metric of the reduced system."""
        return self.reduced_value.mT @ self.reduced_interaction

    @cached_property
    def triangles(self) -> tuple[Tensor, Tensor]:
        """W is Z R_1' R_2 Z', up to the rotation Z: R_1' and R_2', (n, min(2k, d), k)."""
        query, key = self.scores.query, self.scores.key
        if 2 * query.shape[-2] >= query.shape[-1]:
            return query.mT, key.mT
        grams = query @ query.mT, query @ key.mT, self._keys
        return triangles_from_grams(*grams, lambda rows: torch.cat((query[rows], key[rows]), -2))

    @cached_property
    def interaction(self) -> Tensor:
        """(n, s, s), s = min(2k, d): W up to a rotation and zeros."""
        left, right = self.triangles
        return left @ right.mT

    @cached_property
    def metric(self) -> Tensor:
        """(n, s, s): V'W likewise, V'W = L' K with L = Q Z V'."""
        key, value = self.scores.key, self.moves.value
        if 2 * key.shape[-2] >= key.shape[-1]:
            return compress_product(self.reduced_query @ value, key)
        inner = self.reduced_query @ (value @ value.mT) @ self.reduced_query.mT
        cross = self.reduced_query @ (value @ key.mT)
        exact = lambda rows: torch.cat((self.reduced_query[rows] @ value[rows], key[rows]), -2)  # noqa: E731
        left, right = triangles_from_grams(inner, cross, self._keys, exact)
        return left @ right.mT

    @cached_property
    def _keys(self) -> Tensor:
        return self.scores.key @ self.scores.key.mT


# smallest distance of a unit row from the span of the earlier ones: below it digits are lost and factors are used instead
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
        return cls(*(part.double().cpu() for part in parts), exact=query.dtype)  # small matrices, for LAPACK


@dataclass(frozen=True, eq=False)
class WideHeads:
    """The matrices of ``Grams``, computed from inner products, for heads much narrower than ``dim``."""

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
        return self.scale * self.query_parts, _pad_rows(self.key_factor, self.query_parts.shape[-2])

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
        """Return scale * parts @ T' padded with zeros to (n, s, s), in the precision of the eigenvalue computation."""
        size, k = parts.shape[-2:]
        whole = torch.zeros(len(parts), size, size, dtype=self.products.exact)
        whole[..., :k] = self.scale * (parts @ self.key_factor.mT)
        return whole

    def _reduced(self, rows: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.output_factor, rows, upper=True, left=False)


SmallMatrices = Grams | WideHeads


def _pad_rows(factor: Tensor, rows: int) -> Tensor:
    return torch.nn.functional.pad(factor, (0, 0, 0, rows - factor.shape[-2]))


def reduce_products(products: Products, scale: float, dim: int, members: Sequence[int]) -> WideHeads | None:
    """Return the small matrices of heads from their inner products; None where nearly dependent rows have lost digits."""
    n, g, k = len(products.queries), len(products.keys), products.queries.shape[-1]
    near = NEAREST[products.exact]
    joint = _join_grams(products.keys, products.mixed, products.values)
    kept, output = _cholesky(joint, near), _cholesky(products.outputs, near)
    if kept is None or output is None:
        return None
    kept = kept.repeat_interleave(n // g, 0)
    key, value = kept[..., :k, :k].contiguous(), kept[..., k:]
    within = torch.linalg.solve_triangular(key.mT, products.scores, upper=False)
    rest = products.queries - within.mT @ within
    beyond = _cholesky(rest, near, products.queries)
    if beyond is None:
        return None
    parts = torch.cat((within, beyond), -2)
    return WideHeads(products, scale, dim, tuple(members), output, key, parts, value.contiguous())


def _join_grams(first: Tensor, cross: Tensor, second: Tensor) -> Tensor:
    return torch.cat((torch.cat((first, cross), -1), torch.cat((cross.mT, second), -1)), -2)


def _cholesky(gram: Tensor, near: float, lengths: Tensor | None = None) -> Tensor | None:
    """Return the upper Cholesky factor of Gram matrices of rows; None if a row is too close to the span of the earlier ones,
    relative to its length or to that in ``lengths``."""
    sizes = (gram if lengths is None else lengths).diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    if not bool((sizes > 0).all()):
        return None
    factor, failed = torch.linalg.cholesky_ex(gram / sizes[..., None] / sizes[..., None, :], upper=True)
    if bool((failed != 0).any()) or not bool((factor.diagonal(dim1=-2, dim2=-1) > near).all()):
        return None
    return factor * sizes[..., None, :]


def is_narrow(key: int, rank: int, dim: int) -> bool:
    """Return whether heads are so much narrower than the tokens that inner products are cheaper than factors."""
    return 4 * (key + rank) <= dim


def reduce_law(law: Attention) -> WideHeads | None:
    """Return the small matrices of a law from inner products; None where heads are wide or digits are lost."""
    if law.output is None or law.query.ndim != 3 or law.query.dtype not in NEAREST:
        return None
    query, key, value = (getattr(law, name).detach() for name in ("query", "key", "value"))
    if not is_narrow(key.shape[-2], value.shape[-2], law.dim):
        return None
    products = Products.of(query, key, value, law.output.detach()[:, :, None])
    return reduce_products(products, law.scale, law.dim, range(len(query)))


RANK = 1e-12  # singular values below this share of the largest count as zero


def separate_heads(groups: list[Factors]) -> list[Factors]:
    """Return the heads of several groups one by one, in order; their tensors have no head axis."""
    found = {
        member: Factors(group.query[index], group.key[index], group.value[index], group.output[index], (member,))
        for group in groups
        for index, member in enumerate(group.members)
    }
    return [found[member] for member in sorted(found)]


def factorize(law: Attention) -> list[Factors]:
    """Return the heads of a law in float64, grouped by the rank of their values."""
    if law.query.ndim > 3:
        raise UnsupportedError("the law has parameters for several ensemble members: use law.member(...) for one")
    query, key, value = (getattr(law, name).detach().double().cpu() for name in ("query", "key", "value"))
    d = law.dim
    query, key = (law.scale * query).reshape(-1, *query.shape[-2:]), key.reshape(-1, *key.shape[-2:])
    value = value.reshape(-1, *value.shape[-2:])
    if law.output is None:
        return _group_by_rank(query, key, [_factor_dense(matrix) for matrix in value])
    output = law.output.detach().double().cpu().reshape(-1, d, value.shape[-2])
    if output.shape[-1] <= d and (parts := orthonormalize(value, output)) is not None:
        return [Factors(query, key, *parts, tuple(range(len(query))))]
    return _group_by_rank(
        query, key, [_factor_product(inner, outer) for inner, outer in zip(value, output, strict=True)]
    )


def _group_by_rank(query: Tensor, key: Tensor, parts: list[tuple[Tensor, Tensor]]) -> list[Factors]:
    ranks = [len(value) for value, _ in parts]
    groups = []
    for rank in sorted(set(ranks)):
        members = [index for index, size in enumerate(ranks) if size == rank]
        stacked = (torch.stack([parts[index][part] for index in members]) for part in (0, 1))
        groups.append(Factors(query[members], key[members], next(stacked), next(stacked), tuple(members)))
    return groups


def orthonormalize(value: Tensor, output: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the same maps with orthonormal output columns (n, d, r), by two rounds of Cholesky QR, which is as accurate as a
    QR while columns are far from dependent; None where some are not."""
    for _ in range(2):
        triangle, failed = torch.linalg.cholesky_ex(output.mT @ output, upper=True)
        pivots = triangle.diagonal(dim1=-2, dim2=-1)
        if bool((failed != 0).any()) or not bool((pivots.amin(-1) > PIVOT * pivots.amax(-1)).all()):
            return None
        output = torch.linalg.solve_triangular(triangle, output, upper=True, left=False)
        value = triangle @ value
    return value, output


def _factor_dense(value: Tensor) -> tuple[Tensor, Tensor]:
    """Factor a (d, d) value through its range; a value of full rank stays unchanged."""
    left, sizes, _ = torch.linalg.svd(value)
    rank = max(1, int((sizes > RANK * sizes[0]).sum()))
    if rank == len(value):
        return value, torch.eye(rank, dtype=value.dtype)
    basis = left[:, :rank]
    return basis.mT @ value, basis


def _factor_product(value: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Factor output @ value so that the columns of the output are orthonormal and span its range."""
    left, sizes, right = torch.linalg.svd(output, full_matrices=False)
    rank = max(1, int((sizes > RANK * sizes[0]).sum()))
    return sizes[:rank, None] * (right[:rank] @ value), left[:, :rank]


def fold_norm(law: Attention, norm: Norm) -> Attention:
    """Return the law with the gain, centring and bias of a preceding norm folded into its weights (pre-norm blocks).

    The division by the token norm is not linear and is left out: regimes of the folded law concern directions.
    """
    if not isinstance(law, Attention) or not isinstance(norm, Norm):
        raise InputError(f"fold_norm takes an Attention and a norm, got {type(law).__name__} and {type(norm).__name__}")
    changed: dict[str, Tensor] = {}
    for name, bias_name in (("query", "query_bias"), ("key", "key_bias"), ("value", "value_bias")):
        if name == "value" and law.output is None:
            inner, outer = law.value, torch.eye(law.dim).to(law.value).expand_as(law.value)
            changed["output"] = outer.contiguous()
        else:
            inner = getattr(law, name)
        if norm.bias is not None:
            shift = inner @ norm.bias.to(inner)
            bias = getattr(law, bias_name)
            changed[bias_name] = shift if bias is None else shift + bias
        folded = inner if norm.gain is None else inner * norm.gain.to(inner)
        changed[name] = folded - folded.mean(-1, keepdim=True) if isinstance(norm, LayerNorm) else folded
    return replace(law, **changed)
