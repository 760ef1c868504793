"""Transformer blocks: feed-forward laws, norms and their placement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from attractor.errors import InputError, UnsupportedError
from attractor.laws.equiangular import check_equiangular
from attractor.laws.law import CompositeLaw, Law
from attractor.registry import check_name, find
from attractor.serialization import Record
from attractor.spaces import Space
from attractor.states import (
    Tokens,
    check_finite,
    convert_parameters,
    in_range,
    is_in_range,
    split_size,
    to_float_tensor,
)


@dataclass(frozen=True, eq=False)
class Norm(Record):
    r"""``gain`` (d,) or None for ones, ``bias`` (d,) or None for zeros, ``eps`` inside the root.

    The image of a norm with gain g is an ellipsoid (RMSNorm: :math:`E_W` with :math:`W = \mathrm{diag}(g)^{-2}/d`) or a slice of one
    (LayerNorm, where the coordinates divided by g have mean zero); ``tangent`` projects a velocity to it.
    """

    gain: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gain", "bias"):
            given = getattr(self, name)
            if given is not None:
                tensor = check_finite(to_float_tensor(given, f"the norm's {name}"), f"the norm's {name}")
                if tensor.ndim != 1:
                    raise InputError(f"a norm's {name} has shape (d,), got {tuple(tensor.shape)}")
                object.__setattr__(self, name, tensor)
        if self.gain is not None and self.bias is not None and self.gain.shape != self.bias.shape:
            raise InputError(f"a norm's gain has shape {tuple(self.gain.shape)} but its bias {tuple(self.bias.shape)}")
        if self.eps < 0:
            raise InputError(f"a norm's eps must not be negative, got {self.eps}")

    @property
    def dim(self) -> int | None:
        """Dimension of the tokens, or None where any will do."""
        part = self.bias if self.gain is None else self.gain
        return None if part is None else part.shape[0]

    def centre(self, x: Tensor) -> Tensor:
        return x

    def __call__(self, x: Tensor) -> Tensor:
        x = self._normalise(x)
        x = x if self.gain is None else x * self.gain.to(x)
        return x if self.bias is None else x + self.bias.to(x)

    def _normalise(self, x: Tensor) -> Tensor:
        """x divided by its root mean square, for x of any size; zero where eps is zero too, the limit of a small eps."""
        centred = self.centre(x)
        root = ((centred * centred).mean(-1, keepdim=True) + self.eps).sqrt()
        if is_in_range(root):
            return centred / root
        unit, size = split_size(x)
        unit = self.centre(unit)
        unit_root = ((unit * unit).mean(-1, keepdim=True) + (self.eps**0.5 / size) ** 2).sqrt()
        scaled = unit / torch.where(unit_root > 0, unit_root, 1.0)
        return torch.where(in_range(root), centred / torch.where(root > 0, root, 1.0), scaled)

    def added_vectors(self, tokens: Tokens) -> Tensor | None:
        """Vectors (m, d) that span, together with its argument, a subspace that contains the image; None if none is known."""
        if type(self) not in (RMSNorm, LayerNorm) or not (self.gain is None or bool((self.gain == self.gain[0]).all())):
            return None
        parts = [tokens.points.new_zeros((0, tokens.dim))]
        parts += [] if self.bias is None else [self.bias.to(parts[0])[None]]
        parts += [tokens.points.new_ones((1, tokens.dim))] if type(self) is LayerNorm else []
        return torch.cat(parts)

    def restrict(self, basis: Tensor) -> Norm:
        """The norm for coordinates z of points x = basis z, basis (d, r): the mean over d coordinates is not that over r."""
        d, r = basis.shape
        gain = (1.0 if self.gain is None else float(self.gain[0])) * (d / r) ** 0.5
        gains = torch.full((r,), gain, dtype=torch.float64, device=basis.device)
        bias = None if self.bias is None else self.bias.to(basis) @ basis
        if type(self) is LayerNorm:
            return SpanNorm(gains, bias, self.eps * d / r, basis.sum(0) / d**0.5)
        return RMSNorm(gains, bias, self.eps * d / r)

    def for_equiangular(self, n: int, dim: int) -> Norm:
        """The norm of tokens of a dimension, in the coordinates of ``Equiangular``."""
        why = "" if type(self) is RMSNorm else "it reads single coordinates"
        why = why or ("" if self.bias is None else "its bias singles out a direction")
        even = self.gain is None or bool((self.gain == self.gain[0]).all())
        check_equiangular(f"a {type(self).__name__}", why or ("" if even else "its gains differ"))
        gain = 1.0 if self.gain is None else float(self.gain[0])
        return EquiangularNorm(torch.full((2,), gain, dtype=torch.float64), None, self.eps, n, dim)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The part of v tangent to the norm's image at a point x of it."""
        u = x if self.bias is None else x - self.bias.to(x)
        if self.gain is not None:
            if bool((self.gain == 0).any()):
                raise InputError("a norm with a zero gain flattens a coordinate; its image has no tangent projection")
            u, v = u / self.gain.to(x), v / self.gain.to(x)
        v = self.centre(v)
        v = v - u * ((u * v).sum(-1, keepdim=True) / (u * u).sum(-1, keepdim=True))
        return v if self.gain is None else v * self.gain.to(x)


@dataclass(frozen=True, eq=False)
class LayerNorm(Norm):
    r""":math:`g \odot (x - \bar x)/\sqrt{\mathrm{var}(x) + \epsilon} + b` [ba2016layer]."""

    def centre(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    def citations(self) -> tuple[str, ...]:
        return ("ba2016layer",)


@dataclass(frozen=True, eq=False)
class RMSNorm(Norm):
    r""":math:`g \odot x/\sqrt{\mathrm{mean}(x^2) + \epsilon}` [zhang2019root]."""

    def citations(self) -> tuple[str, ...]:
        return ("zhang2019root",)


@dataclass(frozen=True, eq=False)
class SpanNorm(Norm):
    """A LayerNorm in coordinates of a subspace: ``centre`` removes the part along a unit vector, ``direction`` (r,)."""

    direction: Tensor | None = None

    def centre(self, x: Tensor) -> Tensor:
        assert self.direction is not None
        direction = self.direction.to(x)
        return x - (x @ direction).unsqueeze(-1) * direction


@dataclass(frozen=True, eq=False)
class EquiangularNorm(Norm):
    """An RMSNorm of n equiangular tokens of dimension ``size``, whose coordinates a and b have |x|^2 = ((n-1) a^2 + b^2) / n."""

    n: int = 2
    size: int = 2

    def _normalise(self, x: Tensor) -> Tensor:
        root = (self._inner(x, x) / (self.n * self.size) + self.eps).sqrt()
        return x / torch.where(root > 0, root, 1.0)

    def _inner(self, x: Tensor, y: Tensor) -> Tensor:
        return (x * y * x.new_tensor([self.n - 1.0, 1.0])).sum(-1, keepdim=True)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return v - x * (self._inner(x, v) / self._inner(x, x))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


@dataclass(frozen=True, eq=False, repr=False)
class Affine(Law):
    r"""The affine field :math:`F(x) = W x + c`: ``matrix`` W (d, d), ``offset`` c (d,) or None for zero."""

    matrix: Tensor
    offset: Tensor | None = None
    mergeable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_parameters(self, ("matrix", "offset"))
        matrix, offset = tuple(self.matrix.shape), None if self.offset is None else tuple(self.offset.shape)
        if len(matrix) != 2 or matrix[0] != matrix[1] or offset not in (None, matrix[:1]):
            given = f"{matrix}" if offset is None else f"{matrix} and {offset}"
            raise InputError(f"an affine law needs a (d, d) matrix and a (d,) offset, got {given}")

    @property
    def dim(self) -> int:
        return self.matrix.shape[-1]

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        moved = tokens.points @ self.matrix.to(tokens.points).mT
        return moved if self.offset is None else moved + self.offset.to(moved)

    def added_vectors(self, tokens: Tokens) -> Tensor | None:
        multiple = self.matrix[0, 0] * torch.eye(self.dim, dtype=self.matrix.dtype, device=self.matrix.device)
        if not torch.equal(self.matrix, multiple):
            return None
        nothing = tokens.points.new_zeros((0, self.dim))
        return nothing if self.offset is None else self.offset.to(nothing)[None]

    def for_equiangular(self, n: int) -> Affine:
        multiple = self.matrix[0, 0] * torch.eye(self.dim, dtype=self.matrix.dtype, device=self.matrix.device)
        even = torch.equal(self.matrix, multiple) and (self.offset is None or not bool(self.offset.any()))
        check_equiangular("an affine law", "" if even else "its matrix must be w I, without an offset")
        return Affine(self.matrix[0, 0].double() * torch.eye(2, dtype=torch.float64, device=self.matrix.device))

    def restrict(self, basis: Tensor, linear: bool = False) -> Affine:
        matrix = self.matrix[0, 0].double() * torch.eye(basis.shape[-1], dtype=torch.float64, device=basis.device)
        return Affine(matrix, None if self.offset is None else self.offset.double() @ basis)

    def jacobian(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        own = torch.eye(tokens.n, dtype=tokens.points.dtype, device=tokens.points.device)
        return torch.einsum("ik,ab->iakb", own, self.matrix.to(tokens.points))


@dataclass(frozen=True, eq=False, repr=False)
class MLP(Law):
    r""":math:`F(x) = W_2\,\sigma(W_1 x + b_1) + b_2`; with ``gate`` G (m, d):
    :math:`W_2\,(\sigma(G x) \odot (W_1 x + b_1)) + b_2`.

    Shapes: w1 (m, d), b1 (m,), w2 (d, m), b2 (d,). Activations: relu, gelu, gelu_tanh, silu, tanh, identity.

    Symbols: w1 and w2 are the transposes of :math:`W_1, W_2` in [vaswani2017attention], where tokens are rows. In gated units
    written :math:`(\sigma(xW) \odot xV)W_2`, ``gate`` is W' and ``w1`` is V'.
    """

    w1: Tensor
    b1: Tensor | None
    w2: Tensor
    b2: Tensor | None = None
    activation: str = "gelu"
    gate: Tensor | None = None
    mergeable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_parameters(self, ("w1", "b1", "w2", "b2", "gate"))
        check_name(self.activation, ACTIVATIONS, "activation")
        if self.w1.ndim != 2:
            raise InputError(f"w1 must be (m, d), got {tuple(self.w1.shape)}")
        m, d = self.w1.shape
        wanted = {"b1": (m,), "w2": (d, m), "b2": (d,), "gate": (m, d)}
        for name, shape in wanted.items():
            part = getattr(self, name)
            if part is not None and tuple(part.shape) != shape:
                raise InputError(f"{name} must be {shape} to go with w1 {(m, d)}, got {tuple(part.shape)}")

    @property
    def dim(self) -> int:
        return self.w1.shape[-1]

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        x, like = tokens.points, tokens.points
        hidden = functional.linear(x, self.w1.to(like), None if self.b1 is None else self.b1.to(like))
        activate = ACTIVATIONS[self.activation]
        hidden = activate(hidden) if self.gate is None else activate(x @ self.gate.to(like).mT) * hidden
        return functional.linear(hidden, self.w2.to(like), None if self.b2 is None else self.b2.to(like))


PLACEMENTS = {"none": 0, "pre": 2, "post": 2, "peri": 4, "ngpt": 4, "sqrt": 2, "mix": 2}  # and their numbers of norms


@dataclass(frozen=True, eq=False)
class Block(CompositeLaw):
    r"""A real block, as a law and as a discrete layer. With attention a, feed-forward f and norms N:

    =========  ============================================  ==============================================
    placement  layer, attention part (f likewise)            velocity
    =========  ============================================  ==============================================
    none       :math:`x + h\,a(x)`                           :math:`a(x) + f(x)`
    pre        :math:`x + h\,a(N_1 x)`                       :math:`a(N_1 x) + f(N_2 x)`
    post       :math:`N_1(x + h\,a(x))`                      the tangent part of a + f on the image of N
    peri       :math:`x + h\,N_3(a(N_1 x))`                  :math:`N_3(a(N_1 x)) + N_4(f(N_2 x))`
    ngpt       :math:`N_1(x + h\alpha(N_3(a(x)) - x))`       the tangent part of :math:`\alpha(N_3 a + N_4 f)`
    sqrt       :math:`N_1(x + h\,a(x)/\sqrt{1+t})`           the tangent part of :math:`(a + f)/\sqrt{1+t}`
    mix        post before the time :math:`\tau`, then pre   the same
    =========  ============================================  ==============================================

    ``placement`` "ngpt:0.3" has :math:`\alpha = 0.3` (1 without a number), "mix:12" has :math:`\tau = 12`; t is the time at the start
    of the layer. [karagodin2025normalization] compares these placements. ``norms`` are (N1, N2) or, for peri and ngpt, (N1, N2, N3, N4);
    one norm serves all places. ``parallel`` blocks feed both parts the same input (GPT-J, NeoX).

    The continuous models of post, ngpt and sqrt need one image: N1 and N2 with the same gain and bias, or N2 alone is used. Their layers
    are exact; with a bias, or gains other than one constant, the layer does not tend to the identity as h tends to 0.
    """

    attention: Law
    feedforward: Law | None = None
    placement: str = "none"
    norms: tuple[Norm, ...] | Norm = ()
    parallel: bool = False

    def __post_init__(self) -> None:
        wanted = find(self.kind, PLACEMENTS, "placement")
        self._check_number()
        norms = (self.norms,) * wanted if isinstance(self.norms, Norm) else tuple(self.norms)
        if len(norms) == 1:
            norms = norms * wanted
        if len(norms) != wanted:
            raise InputError(f"placement {self.placement!r} needs {wanted} norms (or one for all), got {len(norms)}")
        object.__setattr__(self, "norms", norms)
        self.check_dimensions("attention and feed-forward")
        for norm in norms:
            if None not in (norm.dim, self.dim) and norm.dim != self.dim:
                raise InputError(
                    f"a norm of the block has dimension {norm.dim}, its laws move tokens of dimension {self.dim}"
                )
        if self.parallel and self.kind not in ("none", "pre", "peri"):
            raise InputError(f"a parallel block has no {self.kind} placement: both parts read the same input")

    def _check_number(self) -> None:
        name, _, text = self.placement.partition(":")
        wants = {"ngpt": "alpha, as in ngpt:0.3", "mix": "the time of the change, as in mix:12"}.get(name)
        try:
            number = float(text) if text else None
        except ValueError:
            number = -1.0
        wrong = number is not None and not (0 < number < float("inf"))
        if (":" in self.placement and wants is None) or wrong or (name == "mix" and number is None):
            takes = f"takes a positive number, {wants}" if wants else "takes no number"
            raise InputError(f"the placement {name!r} {takes}; got {self.placement!r}")

    @property
    def kind(self) -> str:
        """The placement without its number."""
        return self.placement.partition(":")[0]

    @property
    def number(self) -> float:
        """alpha of ngpt, the time of the change of mix."""
        return float(self.placement.partition(":")[2] or 1.0)

    def _at(self, time: float) -> Block:
        """The block at a time: with the placement post or pre, if it is mixed."""
        if self.kind != "mix":
            return self
        return replace(self, placement="post" if time < self.number else "pre")

    @property
    def _normalises(self) -> bool:
        """Whether norms follow the sum with the stream, so that tokens stay on their image."""
        return self.kind in ("post", "ngpt", "sqrt")

    @property
    def components(self) -> tuple[Law, ...]:
        return (self.attention,) if self.feedforward is None else (self.attention, self.feedforward)

    @property
    def autonomous(self) -> bool:  # type: ignore[override]
        return self.kind not in ("sqrt", "mix") and all(law.autonomous for law in self.components)

    def breaks(self, start: float, end: float) -> list[float]:
        change = [self.number] if self.kind == "mix" and start < self.number < end else []
        return sorted({*super().breaks(start, end), *change})

    def _part(self, index: int, tokens: Tokens, time: float, skip_self: bool = False) -> Tensor:
        """What part ``index`` adds to the residual stream."""
        norms = self.norms
        assert isinstance(norms, tuple)
        law = self.components[index]
        if self.kind == "none" or self._normalises:
            moved = law.velocity(tokens, time, skip_self=skip_self and self.kind != "ngpt")
            if self.kind == "ngpt":
                return self.number * norms[2 + index](moved)
            return moved / (1.0 + time) ** 0.5 if self.kind == "sqrt" else moved
        moved = law.velocity(tokens.with_points(norms[index](tokens.points)), time)
        return norms[2 + index](moved) if self.kind == "peri" else moved

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        if self.kind == "mix":
            return self._at(time).velocity(tokens, time, skip_self=skip_self)
        if self._normalises:
            # a biased norm's image is not centred at 0: there the self term has a tangent part
            assert isinstance(self.norms, tuple)
            skip_self = skip_self and self.norms[len(self.components) - 1].bias is None
        total = self._part(0, tokens, time, skip_self)
        for index in range(1, len(self.components)):
            total = total + self._part(index, tokens, time, skip_self)
        if self._normalises:
            assert isinstance(self.norms, tuple)
            return self.norms[len(self.components) - 1].tangent(tokens.points, total)
        return total

    def layer(self, tokens: Tokens, step: float, space: Space, time: float = 0.0) -> Tensor:
        if self.kind == "mix":
            return self._at(time).layer(tokens, step, space, time)
        if self.parallel:
            return super().layer(tokens, step, space, time)
        for index in range(len(self.components)):
            keep = 1.0 - step * self.number if self.kind == "ngpt" else 1.0
            points = keep * tokens.points + step * self._part(index, tokens, time)
            if self._normalises:
                assert isinstance(self.norms, tuple)
                points = self.norms[index](points)
            tokens = tokens.with_points(space.retract(points))
        return tokens.points

    def added_vectors(self, tokens: Tokens) -> Tensor | None:
        assert isinstance(self.norms, tuple)
        parts = [super().added_vectors(tokens), *(norm.added_vectors(tokens) for norm in self.norms)]
        known = [part for part in parts if part is not None]
        return torch.cat(known) if len(known) == len(parts) else None

    def for_equiangular(self, n: int) -> Block:
        assert isinstance(self.norms, tuple)
        if self.norms and self.dim is None:
            raise UnsupportedError("the norms of a block need the dimension of its laws, and these take any")
        norms = tuple(norm.for_equiangular(n, self.dim or 2) for norm in self.norms)
        parts = [law.for_equiangular(n) for law in self.components]
        return Block(*parts, placement=self.placement, norms=norms, parallel=self.parallel)

    def restrict(self, basis: Tensor, linear: bool = False) -> Block:
        assert isinstance(self.norms, tuple)
        if basis.ndim == 3 and self.norms:  # a norm has no axis of members; only its size depends on the basis
            norms = tuple(norm.restrict(basis[0]) for norm in self.norms)
        else:
            norms = tuple(norm.restrict(basis) for norm in self.norms)
        parts = [law.restrict(basis, linear) for law in self.components]
        return Block(*parts, placement=self.placement, norms=norms, parallel=self.parallel)

    def enter(self, tokens: Tokens) -> Tokens:
        return self.attention.enter(tokens)

    def between(self, start: float, end: float) -> Law:
        if self.kind == "mix":
            return self._at((start + end) / 2).between(start, end)
        if not self.breaks(start - 1, end + 1):
            return self
        parts = [law.between(start, end) for law in self.components]
        return Block(parts[0], parts[1] if len(parts) > 1 else None, self.placement, self.norms, self.parallel)

    def member(self, index: Tensor) -> Law:
        return Block(
            *(law.member(index) for law in self.components),
            placement=self.placement,
            norms=self.norms,
            parallel=self.parallel,
        )
