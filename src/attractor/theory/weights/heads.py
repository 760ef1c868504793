r"""One head in factors, and the system it is by itself.

A head moves tokens by :math:`V_h = O_h V'_h` with scores :math:`x^\top W_h y`, :math:`W_h = \text{scale}\,Q_h^\top K_h`. Alone it
keeps the range of :math:`O_h`: with orthonormal columns Z of that range and x = Zy, the reduced system has
:math:`\tilde W = Z^\top W_h Z` and :math:`\tilde V = Z^\top V_h Z`, of the size of the head; :math:`\tilde B = \tilde V^\top\tilde W`
is congruent to its metric :math:`\tilde A = \tilde W\tilde V^{-1}` and needs no inverse. Changes of gauge (Q to SQ and K to S^-T K,
V' to SV' and O to OS^-1) change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attractor.attention import Attention, LayerNorm
from attractor.attention.norms import Norm
from attractor.errors import InputError, UnsupportedError
from attractor.theory.weights.factors import Factors
from attractor.theory.weights.forms import PIVOT

RANK = 1e-12  # singular values below this share of the largest count as zero


@dataclass(frozen=True, eq=False)
class Head:
    """Query and key (k, d), scale in the query, value (r, d) and output (d, r) with orthonormal columns; r is the value's rank."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    @property
    def dim(self) -> int:
        return self.query.shape[-1]

    @property
    def rank(self) -> int:
        return self.value.shape[-2]

    @property
    def reduced_query(self) -> Tensor:
        """(k, r)"""
        return self.query @ self.output

    @property
    def reduced_key(self) -> Tensor:
        """(k, r)"""
        return self.key @ self.output

    @property
    def reduced_interaction(self) -> Tensor:
        """(r, r)"""
        return self.reduced_query.mT @ self.reduced_key

    @property
    def reduced_value(self) -> Tensor:
        """(r, r)"""
        return self.value @ self.output


def heads_of(law: Attention) -> list[Head]:
    """Every head of a law in float64, the value map as a product through its rank."""
    return heads_in(factors_of(law))


def heads_in(groups: list[Factors]) -> list[Head]:
    """The heads of several groups, in order."""
    found = {
        member: Head(group.query[index], group.key[index], group.value[index], group.output[index])
        for group in groups
        for index, member in enumerate(group.members)
    }
    return [found[member] for member in sorted(found)]


def factors_of(law: Attention) -> list[Factors]:
    """The heads of a law in float64, those whose values have the same rank together."""
    if law.query.ndim > 3:
        raise UnsupportedError("the law has parameters for several ensemble members: ask about law.member(...) of one")
    query, key, value = (getattr(law, name).detach().double().cpu() for name in ("query", "key", "value"))
    d = law.dim
    query, key = (law.scale * query).reshape(-1, *query.shape[-2:]), key.reshape(-1, *key.shape[-2:])
    value = value.reshape(-1, *value.shape[-2:])
    if law.output is None:
        return _grouped(query, key, [_dense(matrix) for matrix in value])
    output = law.output.detach().double().cpu().reshape(-1, d, value.shape[-2])
    if output.shape[-1] <= d and (parts := orthonormal(value, output)) is not None:
        return [Factors(query, key, *parts, tuple(range(len(query))))]
    return _grouped(query, key, [_factored(inner, outer) for inner, outer in zip(value, output, strict=True)])


def _grouped(query: Tensor, key: Tensor, parts: list[tuple[Tensor, Tensor]]) -> list[Factors]:
    ranks = [len(value) for value, _ in parts]
    groups = []
    for rank in sorted(set(ranks)):
        members = [index for index, size in enumerate(ranks) if size == rank]
        stacked = (torch.stack([parts[index][part] for index in members]) for part in (0, 1))
        groups.append(Factors(query[members], key[members], next(stacked), next(stacked), tuple(members)))
    return groups


def orthonormal(value: Tensor, output: Tensor) -> tuple[Tensor, Tensor] | None:
    """The same maps with outputs (n, d, r) whose columns are orthonormal, by Cholesky factors of their Gram matrices, twice, which is as
    good as a QR where columns are far from dependent; None where some are not."""
    for _ in range(2):
        triangle, failed = torch.linalg.cholesky_ex(output.mT @ output, upper=True)
        pivots = triangle.diagonal(dim1=-2, dim2=-1)
        if bool((failed != 0).any()) or not bool((pivots.amin(-1) > PIVOT * pivots.amax(-1)).all()):
            return None
        output = torch.linalg.solve_triangular(triangle, output, upper=True, left=False)
        value = triangle @ value
    return value, output


def _dense(value: Tensor) -> tuple[Tensor, Tensor]:
    """A (d, d) value of full rank stays as it is; else it is a product through its range."""
    left, sizes, _ = torch.linalg.svd(value)
    rank = max(1, int((sizes > RANK * sizes[0]).sum()))
    if rank == len(value):
        return value, torch.eye(rank, dtype=value.dtype)
    basis = left[:, :rank]
    return basis.mT @ value, basis


def _factored(value: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """The same map with an output whose columns are orthonormal and span its range."""
    left, sizes, right = torch.linalg.svd(output, full_matrices=False)
    rank = max(1, int((sizes > RANK * sizes[0]).sum()))
    return sizes[:rank, None] * (right[:rank] @ value), left[:, :rank]


def fold(law: Attention, norm: Norm) -> Attention:
    """The law that acts on tokens before a norm's gain, centring and bias, as it does after them (pre-norm blocks).

    The division by the length of a token is not linear and stays outside: what is said of the folded law concerns directions.
    """
    if not isinstance(law, Attention) or not isinstance(norm, Norm):
        raise InputError(f"fold takes an Attention and a norm, got {type(law).__name__} and {type(norm).__name__}")
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
