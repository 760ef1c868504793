"""What a law must offer, and the sum of laws."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attractor.errors import InputError
from attractor.html_repr import record_html
from attractor.serialization import Record
from attractor.spaces import Space
from attractor.states import Tokens


class Law(Record):
    """Gives every token its velocity.

    ``velocity`` is the drive in the ambient space; ``flow`` makes it tangent to the space. ``autonomous`` laws do not
    depend on time.
    """

    autonomous: bool = True

    @property
    def dim(self) -> int | None:
        """Dimension of the tokens, or None where any will do."""
        return None

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        return record_html(self)

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        """Velocity of every token, (..., n, d).

        ``skip_self`` allows a law to leave out terms that are exactly parallel to the token they move:
        they have no tangent part on a sphere or an ellipsoid.
        """
        raise NotImplementedError

    def layer(self, tokens: Tokens, step: float, space: Space, time: float = 0.0) -> Tensor:
        """Points after the discrete residual layer N(x + step * velocity)."""
        return space.retract(tokens.points + step * self.velocity(tokens, time))

    def enter(self, tokens: Tokens) -> Tokens:
        """Tokens as they enter a flow (positions that are added once at the input)."""
        return tokens

    def between(self, start: float, end: float) -> Law:
        """The law on an interval without breaks inside."""
        return self

    def breaks(self, start: float, end: float) -> list[float]:
        """Times strictly inside (start, end) where the law is not smooth in time; steps end there."""
        return []

    def merge_obstacle(self) -> str | None:
        """Why coinciding tokens may not be replaced by one weighted token, or None if they may."""
        return None

    def is_attracting(self) -> bool:
        """Whether tokens that are close to each other come closer, so that it is safe to merge them unasked."""
        return False

    def member(self, index: Tensor) -> Law:
        """The law restricted to some ensemble members, for laws with an ensemble axis."""
        return self

    def check(self, tokens: Tokens) -> None:
        """Raise for tokens that the law cannot move."""
        if self.dim is not None and tokens.dim != self.dim:
            raise InputError(f"the law moves tokens of dimension {self.dim}, the state has dimension {tokens.dim}")

    def __add__(self, other: Law) -> Total:
        if not isinstance(other, Law):
            return NotImplemented
        mine = self.laws if isinstance(self, Total) else (self,)
        theirs = other.laws if isinstance(other, Total) else (other,)
        return Total((*mine, *theirs))


class CompositeLaw(Law):
    """A law made of other laws, ``components``: what holds for each of them holds for the whole."""

    @property
    def components(self) -> tuple[Law, ...]:
        raise NotImplementedError

    @property
    def dim(self) -> int | None:
        return next((law.dim for law in self.components if law.dim is not None), None)

    def check_dimensions(self, what: str) -> None:
        """Raise InputError if the laws are for tokens of different dimensions."""
        dims = {law.dim for law in self.components if law.dim is not None}
        if len(dims) > 1:
            raise InputError(f"{what} move tokens of different dimensions: {sorted(dims)}")

    def breaks(self, start: float, end: float) -> list[float]:
        return sorted({time for law in self.components for time in law.breaks(start, end)})

    def merge_obstacle(self) -> str | None:
        return next((reason for law in self.components if (reason := law.merge_obstacle())), None)

    def check(self, tokens: Tokens) -> None:
        for law in self.components:
            law.check(tokens)


@dataclass(frozen=True, eq=False)
class Total(CompositeLaw):
    """The sum of laws, for instance attention plus feed-forward: written ``law + law``."""

    laws: tuple[Law, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "laws", tuple(self.laws))
        if not self.laws:
            raise InputError("a sum of laws needs at least one")
        self.check_dimensions("laws that are added")

    @property
    def components(self) -> tuple[Law, ...]:
        return self.laws

    @property
    def autonomous(self) -> bool:  # type: ignore[override]
        return all(law.autonomous for law in self.laws)

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        total = self.laws[0].velocity(tokens, time, skip_self=skip_self)
        for law in self.laws[1:]:
            total = total + law.velocity(tokens, time, skip_self=skip_self)
        return total

    def enter(self, tokens: Tokens) -> Tokens:
        for law in self.laws:
            tokens = law.enter(tokens)
        return tokens

    def between(self, start: float, end: float) -> Law:
        return Total(tuple(law.between(start, end) for law in self.laws))

    def member(self, index: Tensor) -> Law:
        return Total(tuple(law.member(index) for law in self.laws))
