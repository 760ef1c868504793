"""A Transformer block: attention, feed-forward and where the normalisation stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from attractor.attention.law import Law
from attractor.attention.norms import Norm
from attractor.errors import InputError
from attractor.spaces import Space
from attractor.states import Tokens

Placement = Literal["none", "pre", "post", "peri"]


@dataclass(frozen=True, eq=False)
class Block(Law):
    r"""A real block, as a law and as a discrete layer. With attention a, feed-forward f and norms N:

    =========  ==========================================  ==============================================
    placement  layer, attention part (f likewise)          velocity
    =========  ==========================================  ==============================================
    none       :math:`x + h\,a(x)`                         :math:`a(x) + f(x)`
    pre        :math:`x + h\,a(N_1 x)`                     :math:`a(N_1 x) + f(N_2 x)`
    post       :math:`N_1(x + h\,a(x))`                    the tangent part of a + f on the image of N
    peri       :math:`x + h\,N_3(a(N_1 x))`                :math:`N_3(a(N_1 x)) + N_4(f(N_2 x))`
    =========  ==========================================  ==============================================

    ``norms`` are (N1, N2) or, for peri, (N1, N2, N3, N4); one norm serves all places. ``parallel`` blocks feed both parts the
    same input (GPT-J, NeoX). The continuous post model needs one image: N1 and N2 with the same gain and bias, or N2 alone
    is used. Its layer is exact; for gains other than one constant the layer does not tend to the identity as h tends to 0.
    """

    attention: Law
    feedforward: Law | None = None
    placement: Placement = "none"
    norms: tuple[Norm, ...] | Norm = ()
    parallel: bool = False

    def __post_init__(self) -> None:
        if self.placement not in ("none", "pre", "post", "peri"):
            raise InputError(f"placement {self.placement!r} is not known; give none, pre, post or peri")
        wanted = {"none": 0, "pre": 2, "post": 2, "peri": 4}[self.placement]
        norms = (self.norms,) * wanted if isinstance(self.norms, Norm) else tuple(self.norms)
        if len(norms) == 1:
            norms = norms * wanted
        if len(norms) != wanted:
            raise InputError(f"placement {self.placement!r} needs {wanted} norms (or one for all), got {len(norms)}")
        object.__setattr__(self, "norms", norms)
        dims = {law.dim for law in self._parts if law.dim is not None}
        if len(dims) > 1:
            raise InputError(f"attention and feed-forward move tokens of different dimensions: {sorted(dims)}")
        for norm in norms:
            if None not in (norm.dim, self.dim) and norm.dim != self.dim:
                raise InputError(
                    f"a norm of the block has dimension {norm.dim}, its laws move tokens of dimension {self.dim}"
                )
        if self.parallel and self.placement == "post":
            raise InputError("a parallel block has no post placement: both parts read the same input")

    @property
    def _parts(self) -> tuple[Law, ...]:
        return (self.attention,) if self.feedforward is None else (self.attention, self.feedforward)

    @property
    def autonomous(self) -> bool:  # type: ignore[override]
        return all(law.autonomous for law in self._parts)

    @property
    def dim(self) -> int | None:
        return next((law.dim for law in self._parts if law.dim is not None), None)

    def _part(self, index: int, tokens: Tokens, time: float, skip_self: bool = False) -> Tensor:
        """What part ``index`` adds to the residual stream."""
        norms = self.norms
        assert isinstance(norms, tuple)
        law = self._parts[index]
        if self.placement in ("none", "post"):
            return law.velocity(tokens, time, skip_self=skip_self)
        moved = law.velocity(tokens.moved(norms[index](tokens.points)), time)
        return norms[2 + index](moved) if self.placement == "peri" else moved

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        if self.placement == "post":
            # a biased norm's image is not centred at 0: there the self term has a tangent part
            assert isinstance(self.norms, tuple)
            skip_self = skip_self and self.norms[len(self._parts) - 1].bias is None
        total = self._part(0, tokens, time, skip_self)
        for index in range(1, len(self._parts)):
            total = total + self._part(index, tokens, time, skip_self)
        if self.placement == "post":
            assert isinstance(self.norms, tuple)
            return self.norms[len(self._parts) - 1].tangent(tokens.points, total)
        return total

    def layer(self, tokens: Tokens, step: float, space: Space, time: float = 0.0) -> Tensor:
        if self.parallel:
            return super().layer(tokens, step, space, time)
        for index in range(len(self._parts)):
            points = tokens.points + step * self._part(index, tokens, time)
            if self.placement == "post":
                assert isinstance(self.norms, tuple)
                points = self.norms[index](points)
            tokens = tokens.moved(space.retract(points))
        return tokens.points

    def enter(self, tokens: Tokens) -> Tokens:
        return self.attention.enter(tokens)

    def between(self, start: float, end: float) -> Law:
        if not self.breaks(start - 1, end + 1):
            return self
        parts = [law.between(start, end) for law in self._parts]
        return Block(parts[0], parts[1] if len(parts) > 1 else None, self.placement, self.norms, self.parallel)

    def breaks(self, start: float, end: float) -> list[float]:
        return sorted({time for law in self._parts for time in law.breaks(start, end)})

    def member(self, index: Tensor) -> Law:
        return Block(
            *(law.member(index) for law in self._parts),
            placement=self.placement,
            norms=self.norms,
            parallel=self.parallel,
        )

    def merge_obstacle(self) -> str | None:
        return next((reason for law in self._parts if (reason := law.merge_obstacle())), None)

    def check(self, tokens: Tokens) -> None:
        for law in self._parts:
            law.check(tokens)
