"""What a law must offer, and the sum of laws."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.html_repr import record_html
from attractor.serialization import Record, move_tensors, parse_targets
from attractor.spaces import Space
from attractor.states import Tokens


class Law(Record):
    """Gives every token its velocity.

    ``velocity`` is the drive in the ambient space; ``flow`` makes it tangent to the space. What a law declares:

    ``autonomous``
        the velocity does not depend on time.
    ``mergeable``
        tokens at one point may be replaced by one token of their total mass: all other velocities stay the same. Such a law
        reads the masses (``tokens.weights``), treats tokens alike whatever their order and allows any number of them.
    """

    autonomous: bool = True
    mergeable: ClassVar[bool] = False

    @property
    def dim(self) -> int | None:
        """Dimension of the tokens, or None where any will do."""
        return None

    def __repr__(self) -> str:
        """The fields that are not None, tensors as their shape, (for dataclasses declared with ``repr=False``)."""
        fields = [part.name for part in dataclasses.fields(self)] if dataclasses.is_dataclass(self) else []
        given = {name: getattr(self, name) for name in fields if getattr(self, name) is not None}
        words = (
            f"{name}={'x'.join(map(str, value.shape)) if isinstance(value, Tensor) else repr(value)}"
            for name, value in given.items()
        )
        return f"{type(self).__name__}({', '.join(words)})"

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        return record_html(self)

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        """Velocity of every token, (..., n, d).

        Parameters
        ----------
        tokens : points (..., n, d). In ``flow`` there is always one leading axis, (members, n, d), also for a single system;
            masses and positions are None, (n,) or (members, n).
        time : of all members.
        skip_self : whether the law may leave out terms that are exactly parallel to the token they move, which have no tangent
            part on a sphere or an ellipsoid: rounding in a large term of this kind would hide small velocities. A law may
            ignore it.
        """
        raise NotImplementedError

    def jacobian(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor | None:
        """Derivative of the velocities of one state (1, n, d) with respect to its points, (n, d, n, d); None if there is no closed form.

        Implicit methods differentiate a law without closed form automatically, or take differences if that is not possible.
        """
        return None

    def is_smooth(self) -> bool:
        """Whether velocities are continuously differentiable, so that implicit methods apply."""
        return True

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
        if self.mergeable:
            return None
        return (
            f"{type(self).__name__} does not declare mergeable = True (that its velocity counts tokens by their masses)"
        )

    def is_attracting(self) -> bool:
        """Whether tokens that are close to each other come closer, so that it is safe to merge them unasked."""
        return False

    def added_vectors(self, tokens: Tokens) -> Tensor | None:
        """Vectors (m, d) that span, together with the tokens, a subspace that no token ever leaves; None if none is known.

        For a law that defines it, ``restrict`` gives the law in coordinates of such a subspace.
        """
        return None

    def restrict(self, basis: Tensor, linear: bool = False) -> Law:
        """The law for coordinates z of tokens x = basis z in a subspace that contains ``added_vectors``.

        Parameters
        ----------
        basis : orthonormal columns (d, r), or (members, d, r).
        linear : whether parameters are restricted by linear maps alone, so that laws can be interpolated afterwards.
        """
        raise NotImplementedError

    def for_equiangular(self, n: int) -> Law:
        """The law for n equiangular tokens, in the coordinates (..., 1, 2) of ``Equiangular``."""
        raise UnsupportedError(
            f"{type(self).__name__} is not known to keep tokens equiangular: give Tokens(...) as the state"
        )

    def member(self, index: Tensor) -> Law:
        """The law restricted to some ensemble members, for laws whose parameters have a leading member axis."""
        return self

    def to(
        self,
        *targets: torch.device | torch.dtype | str,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Return the law with its tensors on a device, in a floating-point type, or both: ``law.to("cuda", torch.float32)``."""
        named = [target for target in (device, dtype) if target is not None]
        device, dtype = parse_targets((*targets, *named))
        return self._moved(device, dtype)

    def _moved(self, device: torch.device | None, dtype: torch.dtype | None) -> Self:
        try:
            return move_tensors(self, device, dtype)
        except (RuntimeError, AssertionError) as error:
            why = str(error).splitlines()[0]
            raise InputError(f"the law cannot be put on {device}: {why}") from None

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


def join_vectors(laws: Sequence[Law], tokens: Tokens) -> Tensor | None:
    """The added vectors of several laws; None if one of them has none that are known."""
    parts = [law.added_vectors(tokens) for law in laws]
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None


class AbsentLaw(Law):
    """Stands for the law of a stored run whose function or class is not there: the run can be read, but not continued."""

    mergeable: ClassVar[bool] = True


class CompositeLaw(Law):
    """A law made of other laws, ``components``: what holds for each of them holds for the whole."""

    @property
    def components(self) -> tuple[Law, ...]:
        raise NotImplementedError

    @property
    def dim(self) -> int | None:
        return next((law.dim for law in self.components if law.dim is not None), None)

    def added_vectors(self, tokens: Tokens) -> Tensor | None:
        return None if type(self).restrict is Law.restrict else join_vectors(self.components, tokens)

    def check_dimensions(self, what: str) -> None:
        """Raise InputError if the laws are for tokens of different dimensions."""
        dims = {law.dim for law in self.components if law.dim is not None}
        if len(dims) > 1:
            raise InputError(f"{what} move tokens of different dimensions: {sorted(dims)}")

    def breaks(self, start: float, end: float) -> list[float]:
        return sorted({time for law in self.components for time in law.breaks(start, end)})

    def merge_obstacle(self) -> str | None:
        return next((reason for law in self.components if (reason := law.merge_obstacle())), None)

    def is_smooth(self) -> bool:
        return all(law.is_smooth() for law in self.components)

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

    def jacobian(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor | None:
        parts = [law.jacobian(tokens, time, skip_self=skip_self) for law in self.laws]
        known = [part for part in parts if part is not None]
        return sum(known[1:], known[0]) if len(known) == len(parts) else None

    def enter(self, tokens: Tokens) -> Tokens:
        for law in self.laws:
            tokens = law.enter(tokens)
        return tokens

    def restrict(self, basis: Tensor, linear: bool = False) -> Law:
        return Total(tuple(law.restrict(basis, linear) for law in self.laws))

    def for_equiangular(self, n: int) -> Law:
        return Total(tuple(law.for_equiangular(n) for law in self.laws))

    def between(self, start: float, end: float) -> Law:
        return Total(tuple(law.between(start, end) for law in self.laws))

    def member(self, index: Tensor) -> Law:
        return Total(tuple(law.member(index) for law in self.laws))
