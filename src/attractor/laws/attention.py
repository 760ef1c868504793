"""Attention as a law of motion."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from attractor.errors import InputError
from attractor.html_repr import SHOWN, html_card
from attractor.laws.equiangular import EquiangularAttention, check_equiangular, find_obstacle
from attractor.laws.kernels.kernel import Kernel, Pairing, kernel_named
from attractor.laws.law import Law
from attractor.laws.masks import Mask, Visibility, as_mask
from attractor.laws.positions.combined import acts_on_heads, as_positions, encodings_of
from attractor.laws.positions.position import Positions
from attractor.states import Tokens, convert_parameters, tensor_state

Projection = Callable[[Tensor], tuple[Tensor, Tensor]]  # points to queries and keys


@dataclass(frozen=True, eq=False)
class Attention(Law):
    r"""Velocity of token i: :math:`\dot x_i = \sum_h \sum_j w^h_{ij}\, V_h x_j`, the weights from scores
    :math:`s^h_{ij} = \text{scale}\,\langle Q_h x_i, K_h x_j\rangle`.

    Parameters
    ----------
    query, key : (k, d), or (h, k, d) for h heads; k may be below d.
    value : (d, d) or (h, d, d), the output projection folded in; or (h, r, d) together with ``output`` (h, d, r), which
        keeps the value map factored, :math:`V_h = O_h V_h'`.
    kernel : a Kernel or its name: "softmax", "l2", "sinkhorn", "sigmoid", "exponential", "linear", "capped", "hardmax", ...
    mask : None, "causal", "window:64", a boolean (n, n) matrix (True: visible), or a Mask.
    positions : None, Absolute(...), Rotary(...), Alibi(...) or Relative(...), or a list: points are shifted before they are
        rotated (see Combined).
    scale : multiplies every score.
    query_bias, key_bias : (k,) or (h, k); value_bias : (r,) or (h, r); output_bias : (d,): as in trained models.

    A further leading axis, (members, h, k, d), gives every ensemble member its own parameters.

    Symbols: ``interaction`` :math:`Q^\top K` is W in [pham2025dynamical], P in [abella2024asymptotic], and
    :math:`A^\top` of [castin2025unified] (their :math:`A = K^\top Q`); ``value`` is their :math:`V^\top`, U and V in turn.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    kernel: Kernel | Any = "softmax"
    mask: Mask | Any = None
    positions: Positions | Any = None
    scale: float = 1.0
    output: Tensor | None = None
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None

    def __post_init__(self) -> None:
        convert_parameters(
            self, ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias")
        )
        object.__setattr__(self, "scale", _number(self.scale))
        object.__setattr__(self, "kernel", kernel_named(self.kernel))
        object.__setattr__(self, "mask", as_mask(self.mask))
        self._check_shapes()
        object.__setattr__(self, "positions", as_positions(self.positions))
        if self.positions is not None:
            self.positions.check(self.dim, self.query.shape[-2])
            if self.positions.adds_to_scores and not self.kernel.bilinear:
                raise InputError(
                    f"{self.positions.name} positions add to scores, and the {self.kernel.name} kernel has distances instead: "
                    "take another kernel"
                )

    def _check_shapes(self) -> None:
        query, key, value = self.query.shape, self.key.shape, self.value.shape
        if len(query) < 2 or len(query) > 4 or query != key:
            raise InputError(f"query and key must both be (k, d) or (h, k, d), got {tuple(query)} and {tuple(key)}")
        d, heads = query[-1], query[:-2]
        if self.output is None and (value[-2:] != (d, d) or value[:-2] != heads):
            raise InputError(
                f"value must be {(*heads, d, d)} to go with a query of shape {tuple(query)}, got {tuple(value)}"
            )
        if self.output is not None:
            wanted = (*heads, d, value[-2])
            if value[:-2] != heads or value[-1] != d or tuple(self.output.shape) != wanted:
                raise InputError(
                    f"a factored value is (h, r, d) with output (h, d, r), got {tuple(value)} and {tuple(self.output.shape)}"
                )
        sizes = {"query_bias": query[-2], "key_bias": query[-2], "value_bias": value[-2]}
        for name, size in sizes.items():
            bias = getattr(self, name)
            if bias is not None and tuple(bias.shape) not in ((*heads, size), (size,)):
                raise InputError(f"{name} must be {(*heads, size)}, got {tuple(bias.shape)}")
        if self.output_bias is not None and tuple(self.output_bias.shape) != (d,):
            raise InputError(f"output_bias must be {(d,)}, got {tuple(self.output_bias.shape)}")

    @classmethod
    def isotropic(cls, dim: int, beta: float, **options: Any) -> Attention:
        """Return attention with Q'K = beta I and V = I, the model of most results on clustering."""
        root = abs(float(beta)) ** 0.5 * torch.eye(dim, dtype=torch.float64)
        return cls(root if beta >= 0 else -root, root, torch.eye(dim, dtype=torch.float64), **options)

    @classmethod
    def random(cls, dim: int, heads: int = 1, head_dim: int | None = None, seed: int = 0, **options: Any) -> Attention:
        """Independent normal entries of variance 1/dim in Q, K (h, k, d) and V (h, d, d); k is dim / heads unless given."""
        if head_dim is None:
            if heads < 1 or dim % heads:
                raise InputError(f"dimension {dim} does not split into {heads} heads: give head_dim=... too")
            head_dim = dim // heads
        draw = np.random.default_rng(seed).standard_normal
        shapes = ((heads, head_dim, dim), (heads, head_dim, dim), (heads, dim, dim))
        query, key, value = (torch.from_numpy(draw(shape) / dim**0.5) for shape in shapes)
        return cls(query, key, value, **options)

    @property
    def dim(self) -> int:
        return self.query.shape[-1]

    @property
    def heads(self) -> int:
        return self.query.shape[-3] if self.query.ndim > 2 else 1

    @property
    def interaction(self) -> Tensor:
        """Q'K, (d, d) or (h, d, d), without the scale."""
        return self.query.mT @ self.key

    @property
    def value_map(self) -> Tensor:
        """The value with its output projection, (d, d) or (h, d, d)."""
        return self.value if self.output is None else self.output @ self.value

    @property
    def metric(self) -> Tensor:
        r"""The papers' A: ``interaction @ inv(value)``, with metric @ velocity = gradient of the log-partition function."""
        value = self.value_map
        singular = torch.linalg.svdvals(value.detach())
        if bool((singular[..., -1] <= 1e-14 * singular[..., 0]).any()):
            raise InputError("the value is singular, so the metric Q'K inv(V) does not exist")
        return torch.linalg.solve(value, self.interaction, left=False)

    @property
    def _value_scalars(self) -> Tensor | None:
        """c (..., h) where every head's value is exactly c I and needs no gradient, else None."""
        if self.output is not None or self.value_bias is not None:
            return None
        return self._scalars("value")[0]

    def _scalars(self, name: str) -> tuple[Tensor | None, bool]:
        """c (..., h) where every head's parameter is exactly c I and nothing is differentiated or traced, else None; and whether
        all c are 1. It is looked at again when it was changed in place."""
        matrix: Tensor = getattr(self, name)
        if _watched(matrix):
            return None, False
        now, known = tensor_state(matrix), self._multiples.get(name)
        if known is None or known[0] != now or now is None:
            scalars = _multiple(matrix)
            known = self._multiples[name] = (now, scalars, scalars is not None and bool((scalars == 1).all()))
        return known[1:]

    @cached_property
    def _multiples(self) -> dict[str, tuple[tuple[int, bytes] | None, Tensor | None, bool]]:
        """What is known of parameters, and in which state."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: nothing that was found out about other tensors."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    @property
    def _symmetric_scores(self) -> bool:
        """Whether scores form a symmetric positive semi-definite matrix for any tokens, and stay so where gradients look. It is looked
        at again when parameters were changed in place."""
        if self.positions is not None or self.query_bias is not None or self.key_bias is not None or self.scale < 0:
            return False
        if self.query.requires_grad or self.key.requires_grad:
            return False
        known = self.__dict__.get("_known_symmetry")
        if known is not None and _watched(self.query):
            return known[1]
        now = () if _watched(self.query) else (tensor_state(self.query), tensor_state(self.key))
        if known is None or known[0] != now:
            known = self.__dict__["_known_symmetry"] = (now, self._has_symmetric_scores())
        return known[1]

    def _has_symmetric_scores(self) -> bool:
        interaction = self.interaction.detach()
        if not bool(torch.isfinite(interaction).all()) or not torch.equal(interaction, interaction.mT):
            return False
        return bool((torch.linalg.eigvalsh(interaction) >= 0).all())

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        return self._move(tokens, skip_self)

    def _move(
        self,
        tokens: Tokens,
        skip_self: bool,
        project: Projection | None = None,
        map_values: Callable[[Tensor], Tensor] | None = None,
        gate: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The velocity; ``map_values`` acts on values (..., h, n, r), and ``gate`` maps points to factors of their averages."""
        scalars = self._value_scalars
        pairing, points = self._pairing(tokens, skip_self and scalars is not None, project)
        kernel = self.kernel
        if self.output is not None or self.value_bias is not None:
            values = points.unsqueeze(-3) @ _with_heads(self.value).to(points).mT
            if self.value_bias is not None:
                values = values + self.value_bias.to(points).unsqueeze(-2)
            moved = kernel.attend(pairing, values if map_values is None else map_values(values))
            moved = moved if gate is None else moved * gate(points)
            moved = moved if self.output is None else moved @ _with_heads(self.output).to(points).mT
        else:
            moved = kernel.attend(pairing, points.unsqueeze(-3))
            if scalars is None:
                moved = moved @ _with_heads(self.value).to(points).mT
            elif not self._scalars("value")[1]:
                moved = moved * scalars.to(points)[..., None, None]
        moved = moved.squeeze(-3) if moved.shape[-3] == 1 else moved.sum(-3)
        return moved if self.output_bias is None else moved + self.output_bias.to(moved)

    def jacobian(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor | None:
        r"""With weights w, their derivatives g by the scores and the means :math:`m_i = \sum_j w_{ij} x_j`:
        :math:`\partial v_i/\partial x_k = V(w_{ik} + u_{ik} b_{ik}^\top) + \delta_{ik} V\sum_j u_{ij} a_{ij}^\top`, where
        :math:`ds_{ij} = a_{ij}\cdot dx_i + b_{ij}\cdot dx_j`, and :math:`u_{ij} = w_{ij}(x_j - m_i)` if rows are normalised,
        :math:`g_{ij} x_j` otherwise."""
        plain = (self.positions, self.value_bias, self.query_bias, self.key_bias)
        if any(part is not None for part in plain) or self.kernel.mode is None:
            return None
        pairing, points = self._pairing(tokens, False)
        parts = self.kernel.score_derivatives(pairing)
        if parts is None:
            return None
        x, scale = points[0], float(self.scale)
        w, g = (part.reshape(-1, *part.shape[-2:]) for part in parts)
        query, key, value = (
            _with_heads(part)[0] if part.ndim == 4 else _with_heads(part)
            for part in (self.query.to(x), self.key.to(x), self.value_map.to(x))
        )
        if self.kernel.bilinear:
            interaction = scale * query.mT @ key
            a, b = (x @ interaction.mT)[:, None], (x @ interaction)[:, :, None]
        else:
            q, k = x @ query.mT, x @ key.mT
            apart = -2.0 * scale * (q[:, :, None] - k[:, None])
            a, b = torch.einsum("hije,hed->hijd", apart, query), -torch.einsum("hije,hed->hijd", apart, key)
        seen = x.expand(len(w), len(x), *x.shape)
        if skip_self and self._value_scalars is not None:
            own = torch.eye(len(x), dtype=torch.bool, device=x.device)
            seen = seen.masked_fill(own[..., None], 0.0)
            kept = w.masked_fill(own, 0.0)
        else:
            kept = w
        if self.kernel.normalised:
            u = w[..., None] * (seen - torch.einsum("hij,hijd->hid", w, seen)[:, :, None])
        else:
            u = g[..., None] * seen
        own = torch.einsum("hijc,hijd->hicd", u, a.expand_as(u))
        J = torch.einsum("hijc,hijd->hicjd", u, b.expand_as(u))
        rows = torch.arange(len(x), device=x.device)
        J[:, rows, :, rows, :] += own.transpose(0, 1)
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        J = J + torch.einsum("hij,cd->hicjd", kept, eye)
        return torch.einsum("hac,hicjd->iajd", value, J)

    def is_smooth(self) -> bool:
        return self.kernel.smooth

    def weights(self, tokens: Tokens, time: float = 0.0) -> Tensor:
        """The weights w (..., h, n, n) themselves; masses included."""
        return self._weigh(tokens)

    def _weigh(self, tokens: Tokens, project: Projection | None = None) -> Tensor:
        pairing, points = self._pairing(tokens, False, project)
        return self.kernel.attend(pairing, torch.eye(tokens.n, dtype=points.dtype, device=points.device))

    def _pairing(self, tokens: Tokens, skip_self: bool, project: Projection | None = None) -> tuple[Pairing, Tensor]:
        """Return the projected queries and keys, and the points that the values are computed from; ``project`` maps points to both."""
        paired, points = (tokens.points, tokens.points) if self.positions is None else self.positions.shift(tokens)
        q, k = (project or self._project)(paired)
        if self.positions is not None:
            q, k = self.positions.pair(q, k, tokens, self.scale)
        # where positions shift the values, the self term c (x_i + p_i) is not parallel to x_i
        skip_self = skip_self and points is tokens.points
        masses = None if tokens.masses is None else tokens.masses.unsqueeze(-2)
        hide = Visibility() if self.mask is None else self.mask.hide(tokens)
        # computed only where it is used: it needs a (d, d) matrix for every head
        symmetric = project is None and self.kernel.uses_symmetry and self._symmetric_scores
        return Pairing(q, k, self.scale, masses, hide, skip_self, symmetric), points

    def _project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys (..., h, n, k), before positions."""
        q, k = (self._times(name, points.unsqueeze(-3)) for name in ("query", "key"))
        q = q if self.query_bias is None else q + self.query_bias.to(points).unsqueeze(-2)
        return q, k if self.key_bias is None else k + self.key_bias.to(points).unsqueeze(-2)

    def _times(self, name: str, points: Tensor) -> Tensor:
        """Points times a parameter; where that is a multiple of the identity no product is needed."""
        scalars, ones = self._scalars(name)
        if scalars is None:
            return self.kernel.project(points, _with_heads(getattr(self, name)).to(points))
        return points if ones else points * scalars.to(points)[..., None, None]

    def enter(self, tokens: Tokens) -> Tokens:
        return tokens if self.positions is None else tokens.with_points(self.positions.enter(tokens))

    def added_vectors(self, tokens: Tokens) -> Tensor | None:
        # velocities are sums of V x_j + b: with V = c I in the span of the tokens, with V = O V' in the image of O
        if type(self) is not Attention or not self.kernel.smooth:
            return None
        if self.output is None and self._scalars("value")[0] is None:
            return None
        parts = [tokens.points.new_zeros((0, self.dim))]
        if self.output is not None:
            parts += [_with_heads(self.output).mT]
        elif self.value_bias is not None:
            parts += [self.value_bias]
        parts += [] if self.output_bias is None else [self.output_bias]
        if self.positions is not None:
            shifts = self.positions.added_vectors(tokens)
            if shifts is None:
                return None
            parts += [shifts]
        return torch.cat([part.to(parts[0]).reshape(-1, self.dim) for part in parts])

    def restrict(self, basis: Tensor, linear: bool = False) -> Attention:
        rows, batched = basis.shape[-1], basis.ndim == 3
        basis = basis.to(self.query.device, torch.float64)
        # encodings that only shift points leave queries and keys free to be rotated
        free = not linear and not any(acts_on_heads(encoding) for encoding in encodings_of(self.positions))
        multiples = all(self._scalars(name)[0] is not None for name in ("query", "key"))
        parts: dict[str, Any] = {"value": _identity_of(self.value, rows)}
        if free and multiples and self.query_bias is None and self.key_bias is None:
            # <a B z, b B z'> = a b <z, z'>, the same for all members
            parts |= {name: _identity_of(getattr(self, name), rows) for name in ("query", "key")}
        else:
            inner = basis.unsqueeze(-3) if batched else basis
            for name in ("query", "key"):
                matrix = getattr(self, name).double()
                parts[name] = (_with_heads(matrix) if batched else matrix) @ inner
            if free:
                self._compress_heads(parts)
            if batched:
                parts["value"] = _with_heads(parts["value"]).expand(*parts["query"].shape[:-2], rows, rows)
        if self.output is not None:
            parts |= {"value": self.value.double() @ basis, "output": basis.mT @ self.output.double()}
        elif self.value_bias is not None:
            parts["value_bias"] = self.value_bias.double() @ basis
        if self.output_bias is not None:
            parts["output_bias"] = self.output_bias.double() @ basis
        positions = self.positions if self.positions is None or batched else self.positions.restrict(basis)
        return dataclasses.replace(self, **parts, positions=positions)

    def for_equiangular(self, n: int) -> Law:
        check_equiangular(
            type(self).__name__, find_obstacle(self) if type(self) is Attention else "its form is not known to allow it"
        )
        return EquiangularAttention(self, n)

    def _compress_heads(self, parts: dict[str, Any]) -> None:
        """Give queries and keys (..., k, r) of a head fewer rows, where k is large.

        Inner products need r rows: <Q z, K z'> = <K'Q z, z'>. Distances and biases need a rotation: Q and K lie in a space of dimension
        2 r, biases in 2 more.
        """
        columns = [parts["query"], parts["key"]]
        rows = parts["query"].shape[-1]
        biases = [name for name in ("query_bias", "key_bias") if getattr(self, name) is not None]
        if self.kernel.bilinear and not biases:
            if parts["query"].shape[-2] > rows:
                parts["query"] = parts["key"].mT @ parts["query"]
                parts["key"] = torch.eye(rows, dtype=torch.float64, device=parts["key"].device).expand_as(
                    parts["query"]
                )
            return
        for name in biases:
            columns.append(getattr(self, name).double().unsqueeze(-1).expand(*parts["query"].shape[:-1], 1))
        joined = torch.cat(columns, dim=-1)
        if joined.shape[-2] <= joined.shape[-1]:
            return
        upper = torch.linalg.qr(joined, mode="r").R
        parts["query"], parts["key"] = upper[..., :rows], upper[..., rows : 2 * rows]
        parts |= {name: upper[..., 2 * rows + place] for place, name in enumerate(biases)}

    def merge_obstacle(self) -> str | None:
        if self.mask is not None:
            return f"under a {self.mask.name} mask a token's multiplicity depends on its place in the sequence"
        if self.positions is not None and self.positions.changes_dynamics:
            return f"{self.positions.name} positions make tokens at the same point different"
        return self.kernel.merge_obstacle()

    def is_attracting(self) -> bool:
        scalars = self._value_scalars
        attracts = scalars is not None and bool((scalars > 0).all())
        attracts = attracts and (self.positions is None or not self.positions.shifts_values)
        return attracts and self.kernel.smooth and not self.kernel.signed

    def member(self, index: Tensor) -> Attention:
        if self.query.ndim < 4:
            return self
        ranks = {"query": 4, "key": 4, "value": 4, "output": 4, "query_bias": 3, "key_bias": 3, "value_bias": 3}
        parts = {name: getattr(self, name) for name in ranks}
        # a bias of lower rank is shared by all members
        rows = {name: part[index] for name, part in parts.items() if part is not None and part.ndim == ranks[name]}
        return dataclasses.replace(self, **rows)

    def check(self, tokens: Tokens) -> None:
        super().check(tokens)
        if self.mask is not None:
            self.mask.hide(tokens)
        if self.positions is not None:
            self.positions.enter(tokens)
            self.positions.shift(tokens)
        if self.query.ndim == 4 and tokens.points.shape[:-2].numel() != self.query.shape[0]:
            raise InputError(
                f"the law has parameters for {self.query.shape[0]} ensemble members, the state has {tokens.points.shape[:-2].numel()}"
            )

    def citations(self) -> tuple[str, ...]:
        return ("geshkovski2023mathematical",)

    def _repr_html_(self) -> str:
        """A card for notebooks; small matrices are written out."""
        rows = {"moves": "token i by the sum over j of w_ij V x_j", "dimension": self.dim, "heads": self.heads}
        rows |= {"head dimension": self.query.shape[-2], "kernel": self.kernel.name, "scale": float(self.scale)}
        rows |= {} if self.mask is None else {"mask": self.mask.name}
        rows |= {} if self.positions is None else {"positions": self.positions.name}
        single = self.query.ndim == 2 or self.query.shape[0] == 1
        if single and self.dim <= SHOWN:
            rows |= {
                "Q'K": self.interaction.reshape(self.dim, self.dim),
                "V": self.value_map.reshape(self.dim, self.dim),
            }
        return html_card("Attention", rows)

    def __repr__(self) -> str:
        mask = "" if self.mask is None else f", mask={self.mask.name}"
        positions = "" if self.positions is None else f", positions={self.positions.name}"
        scale = "" if isinstance(self.scale, float) and self.scale == 1.0 else f", scale={float(self.scale):.6g}"
        size = f"dim={self.dim}, heads={self.heads}, head_dim={self.query.shape[-2]}"
        matrices = "".join(f", {name}={text}" for name, text in self._parameters().items())
        return f"Attention({size}, kernel={self.kernel.label}{matrices}{scale}{mask}{positions})"

    def _parameters(self) -> dict[str, str]:
        """beta or Q'K with the scale, and V unless it is I, as text, for one head of small matrices."""
        single = self.query.numel() == self.query.shape[-2] * self.dim
        if (
            not single
            or _watched(self.query)
            or _watched(self.key)
            or _watched(self.value)
            or self.query.device.type == "meta"
        ):
            return {}
        found = {} if self.beta is None else {"beta": f"{self.beta:.6g}"}
        if not found and self.query_bias is None and self.key_bias is None:
            name = "Q'K" if self.scale == 1.0 else "scale Q'K"
            found = {name: _format_matrix(float(self.scale) * self.interaction.detach())}
        value = _format_matrix(self.value_map.detach())
        found |= {} if value == "I" else {"V": value}
        return {name: text for name, text in found.items() if text}

    @property
    def beta(self) -> float | None:
        """The number beta of one head with scale Q'K = beta I; None for other laws, ensembles and heads with biases."""
        if (
            self.query.numel() != self.query.shape[-2] * self.dim
            or self.query_bias is not None
            or self.key_bias is not None
        ):
            return None
        if _watched(self.query) or _watched(self.key) or self.query.device.type == "meta":
            return None
        k, d = self.query.shape[-2:]
        product = float(self.scale) * self.query.reshape(k, d).double().T @ self.key.reshape(k, d).double()
        beta = float(product[0, 0])
        away = product - beta * torch.eye(d, dtype=torch.float64, device=product.device)
        # a root of beta is not exact, so that neither is its square
        return float(f"{beta:.12g}") if float(away.abs().max()) <= 1e-12 * max(abs(beta), 1e-300) else None

    def describe(self) -> str:
        """The law in words, for titles and captions: ``causal softmax attention with beta = 4``."""
        mask = "" if self.mask is None else f"{self.mask.name} "
        heads = f" with {self.heads} heads" if self.heads > 1 else ""
        parameters = ", ".join(f"{name} = {text}" for name, text in self._parameters().items())
        parameters = f" with {parameters}" if parameters else ""
        positions = "" if self.positions is None else f" and {self.positions.name} positions"
        return f"{mask}{self.kernel.label} attention{heads}{parameters}{positions}"


def _format_matrix(matrix: Tensor) -> str:
    """A matrix in one line: a multiple of I, rows of at most three numbers, and nothing for larger ones."""
    matrix = matrix.reshape(matrix.shape[-2:]).double().cpu()
    scalar, size = float(matrix[0, 0]), len(matrix)
    if bool((matrix - scalar * torch.eye(size, dtype=torch.float64)).abs().max() <= 1e-12 * abs(scalar)):
        return {1.0: "I", -1.0: "-I"}.get(scalar, f"{scalar:.6g} I" if scalar else "0")
    if size > 3:
        return ""
    return "[" + ", ".join("[" + ", ".join(f"{float(entry):.4g}" for entry in row) + "]" for row in matrix) + "]"


def _number(scale: Any) -> Any:
    """A finite number as a float; a tensor that needs a gradient stays one."""
    try:
        finite_number = abs(float(scale.detach() if isinstance(scale, Tensor) else scale)) < float("inf")
    except (TypeError, ValueError):
        finite_number = False
    if not finite_number:
        raise InputError(f"scale must be a finite number, got {scale!r}")
    return scale if isinstance(scale, Tensor) and scale.requires_grad else float(scale)


def _watched(matrix: Tensor) -> bool:
    """Whether a derivative with respect to the matrix may be needed, in either direction, or its use is being traced."""
    return (
        matrix.requires_grad
        or torch.compiler.is_compiling()
        or forward_ad._current_level >= 0
        or torch._C._functorch.maybe_current_level() is not None  # type: ignore[attr-defined]
    )


def _multiple(matrix: Tensor) -> Tensor | None:
    """c (..., h) where every head's matrix is exactly c I, else None."""
    if matrix.shape[-1] != matrix.shape[-2]:
        return None
    matrix = _with_heads(matrix)
    scalars = matrix[..., 0, 0]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return scalars if torch.equal(matrix, scalars[..., None, None] * identity) else None


def _identity_of(matrix: Tensor, rows: int) -> Tensor:
    """The multiple of the identity c I (..., rows, rows) for matrices that are c I."""
    eye = torch.eye(rows, dtype=torch.float64, device=matrix.device)
    return matrix[..., :1, :1].double() * eye


def _with_heads(matrix: Tensor) -> Tensor:
    return matrix.unsqueeze(0) if matrix.ndim == 2 else matrix
