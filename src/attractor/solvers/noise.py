r"""Noise of tokens: its strength, its kind, and the random numbers of each step.

Tokens with noise of the kind "space" solve, with the tangent velocity :math:`\Pi_x v` of the law,

.. math:: dx_i = \Pi_{x_i} v_i\,dt + \sqrt{2\epsilon_i}\,dB_i + \sqrt{2\epsilon_c}\,\Pi_{x_i}\circ dB,

where the :math:`B_i` are independent Brownian motions of the space's own metric and B is one Brownian motion of the ambient space
that all tokens share. In flat space the noise is additive, so that the Ito and the Stratonovich equations are the same. On the
sphere of radius r, with the projection :math:`\Pi_x = I - xx^\top/r^2`,

.. math:: \sqrt{2\epsilon}\,dB_i = \sqrt{2\epsilon}\,\Pi_x\circ d\beta = \sqrt{2\epsilon}\,\Pi_x\,d\beta - \epsilon(d-1)\frac{x}{r^2}\,dt

for a Brownian motion :math:`\beta` of the ambient space: the Ito equation has a drift towards the center, which keeps tokens on the
sphere. On the ellipsoid :math:`\{x^\top W x = 1\}` the map :math:`y = W^{1/2}x` carries the noise to that of the unit sphere, so that
increments of x have the covariance :math:`2\epsilon h\,\Pi_x W^{-1}\Pi_x^\top`. (The Brownian motion of the metric that the ellipsoid
inherits from its ambient space is another process.)

Noise of the kind "layer" is what a layer that adds noise before its normalization does:
:math:`x^+ = N(x + h v + \sqrt{2\epsilon_i h}\,\xi_i + \sqrt{2\epsilon_c h}\,\xi)`, with standard normal :math:`\xi` in the ambient
space. In flat space and on spheres it is the same as the noise of the space. On an ellipsoid its limit :math:`h\to0` in y, with
:math:`C = 2\epsilon W`, has the Ito drift :math:`-\Pi C y - \tfrac12\operatorname{tr}(\Pi C)\,y`; the Stratonovich equation
:math:`dy = \Pi_y\circ C^{1/2}d\beta` has :math:`-\tfrac12\Pi C y` in place of the first term, and so is another process.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Closure, Law
from attractor.random_numbers import COMMON, WEIGHTS, normals
from attractor.serialization import Record
from attractor.spaces import Space
from attractor.states import Gaussian, Tokens, check_finite, factor_of, to_float_tensor

if TYPE_CHECKING:
    from attractor.solvers.steppers.stepper import Field

KINDS = ("space", "layer")
MAX_SEED, MAX_MEMBER = 2**63 - 1, 2**32 - 1

Strength = float | Tensor | Callable[[float], Any]
Deviations = tuple[Tensor, float]  # of independent noise (1 or members, 1 or n, 1), and of common noise


@dataclass(frozen=True, eq=False)
class Noise(Record):
    r"""The random part of the motion: Brownian motion of strength :math:`\epsilon`.

    A free token in flat space has the variance :math:`2\epsilon t` per direction. With the projection :math:`\Pi_x` on the tangent
    space,

    .. math:: dx_i = \Pi_{x_i} v_i\,dt + \sqrt{2\epsilon_i}\,dB_i + \sqrt{2\epsilon_c}\,\Pi_{x_i}\circ dB

    with independent Brownian motions :math:`B_i` of the space's own metric, and one Brownian motion B of the ambient space that all
    tokens share. Random numbers depend on the seed, the step, the token, the member of the ensemble and the coordinate only (see
    ``attractor.random_numbers``). A run that is resumed, split over processes, moved to a GPU or computed in other batches has the
    same path.

    Parameters
    ----------
    strength : :math:`\epsilon_i \ge 0` of independent noise: a number; one for each token (n,), or for each member and token
        (..., n); or a function of time that returns one of these.
    common : :math:`\epsilon_c \ge 0` of noise that all tokens of a member share, a number or a function of time.
    kind : "space", Brownian motion of the space's own metric, or "layer", ambient noise that is added before normalization.
    seed : of the random numbers, from 0 to 2^63 - 1.
    members : index of each member of the flattened ensemble in the random numbers, (members,); 0, 1, ... by default. Members 50 to 99
        of a large ensemble have the paths that they have in it if they are computed with ``members=range(50, 100)``.
    times : of a piecewise linear schedule, see ``interpolate``; strengths then have an additional first axis.

    References
    ----------
    [kloeden1992numerical]_, [salmon2011parallel]_
    """

    strength: Strength = 0.0
    common: Strength = 0.0
    kind: str = "space"
    seed: int = 0
    members: Tensor | None = None
    times: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"noise is of the kind 'space' or 'layer', got {self.kind!r}")
        _check_seed(self.seed)
        object.__setattr__(self, "times", tuple(float(time) for time in self.times))
        for name in ("strength", "common"):
            value = getattr(self, name)
            if not callable(value):
                value = _checked(value, f"the {name} of noise")
                object.__setattr__(self, name, value if self.times or value.ndim else float(value))
        if self.times:
            self._check_times()
        elif isinstance(self.common, Tensor):
            raise InputError(f"common noise has one strength for all tokens, got shape {tuple(self.common.shape)}")
        object.__setattr__(self, "members", _as_members(self.members))

    def _check_times(self) -> None:
        if len(self.times) < 2 or not all(math.isfinite(time) for time in self.times):
            raise InputError("a schedule of noise needs at least two finite times")
        if any(later <= earlier for earlier, later in zip(self.times, self.times[1:], strict=False)):
            raise InputError(f"the times of a schedule of noise must increase, got {self.times}")
        for name in ("strength", "common"):
            value = getattr(self, name)
            if not isinstance(value, Tensor) or not value.ndim or len(value) != len(self.times):
                raise InputError(f"a schedule of noise at {len(self.times)} times needs as many values of {name}")

    @classmethod
    def interpolate(
        cls,
        times: Sequence[float],
        strengths: Any,
        common: Any = None,
        *,
        kind: str = "space",
        seed: int = 0,
        members: Any = None,
    ) -> Noise:
        """Linear interpolation of the strengths given at some times, constant outside them: ``strengths`` (len(times), ...)."""
        strengths = _checked(strengths, "the strength of noise")
        common = torch.zeros(len(tuple(times)), dtype=torch.float64) if common is None else common
        return cls(strengths, common, kind, seed, members, tuple(times))

    def citations(self) -> tuple[str, ...]:
        return ("kloeden1992numerical", "salmon2011parallel")

    @property
    def constant(self) -> bool:
        """Whether the strengths do not depend on time."""
        return not self.times and not callable(self.strength) and not callable(self.common)

    @property
    def draws_increments(self) -> bool:
        """Whether the increments of tokens do not depend on the tokens, apart from the projection on tangent spaces."""
        return True

    @property
    def has_common(self) -> bool:
        """Whether there may be common noise."""
        return callable(self.common) or bool(torch.as_tensor(self.common).any())

    def at(self, time: float) -> tuple[Tensor, float]:
        """Strengths of independent noise, (), (n,) or (..., n), and that of common noise, at one time."""
        if self.times:
            index = min(max(bisect_right(self.times, time) - 1, 0), len(self.times) - 2)
            share = (time - self.times[index]) / (self.times[index + 1] - self.times[index])
            share = min(max(share, 0.0), 1.0)
            strength, common = (
                (1.0 - share) * value[index] + share * value[index + 1]  # type: ignore[index]
                for value in (self.strength, self.common)
            )
            return strength, float(common)
        strength, common = (
            _checked(value(time), f"the {name} of noise at t = {time:g}")
            if callable(value)
            else torch.as_tensor(value, dtype=torch.float64)
            for name, value in (("strength", self.strength), ("common", self.common))
        )
        if common.ndim:
            raise InputError(f"common noise has one strength for all tokens, got shape {tuple(common.shape)}")
        return strength, float(common)

    def breaks(self, start: float, end: float) -> list[float]:
        """Times strictly inside (start, end) where the strengths are not smooth in time; steps end there."""
        return [time for time in self.times if start < time < end]

    def check(self, state: Tokens | Gaussian, start: float) -> None:
        """Raise for a state that the noise does not fit."""
        strength, _ = self.at(start)
        if isinstance(state, Gaussian):
            if strength.ndim:
                raise InputError("the noise of a Gaussian has one strength, got one for each token")
            if self.has_common:
                raise UnsupportedError(
                    "common noise makes the mean of a Gaussian random: give independent noise, or sample tokens"
                )
            return
        allowed = {(), (state.n,), (*state.batch_shape, state.n)}
        if tuple(strength.shape) not in allowed:
            words = " or ".join(str(shape) for shape in sorted(allowed - {()}, key=len))
            raise InputError(f"strengths of noise must be a number or have shape {words}, got {tuple(strength.shape)}")
        _check_count(self.members, state)

    def check_law(self, law: Law) -> None:
        """Every law may have noise."""

    def weak_order_obstacle(self, space: Space) -> str:
        """Why there is no method of weak order 2; empty if there is."""
        if self.kind == "layer":
            return "noise of the kind 'layer' is defined by its step, which has weak order 1"
        if self.has_common and space.is_curved:
            return f"common noise has weak order 1 on the {space.name}"
        return ""

    def merge_obstacle(self) -> str:
        """Why tokens are not merged."""
        independent = callable(self.strength) or bool(torch.as_tensor(self.strength).any())
        return "independent noise moves them apart again" if independent else "noise takes fixed steps"

    def restrict(self, index: Tensor) -> Noise:
        """The noise of some members of the flattened ensemble, whose paths stay the same."""
        members = index.to(torch.int64) if self.members is None else self.members[index]
        first, strength = len(self.times) > 0, self.strength

        def rows(value: Any) -> Any:
            tensor = torch.as_tensor(value)
            if tensor.ndim - first <= 1:
                return value
            flat = tensor.reshape(*tensor.shape[:first], -1, tensor.shape[-1])
            return flat[:, index] if first else flat[index]

        if callable(strength):
            return replace(self, strength=lambda time: rows(strength(time)), members=members)
        return replace(self, strength=rows(strength), members=members)

    def select(self, tokens: Tokens) -> Source:
        """The random increments of tokens with points (members, n, d)."""
        members = torch.arange(len(tokens.points)) if self.members is None else self.members
        return Source(self, members.to(tokens.points.device), tokens.n, tokens.dim)


@dataclass(frozen=True, eq=False)
class DiffusingClosure(Law):
    r"""The closure of a Gaussian with independent noise, on rows (..., 1 + d, d): the mean, then the covariance.

    :math:`\dot\Sigma = B\Sigma + \Sigma B^\top + 2\epsilon I`. Noise makes the covariance regular, so its factor does not follow
    :math:`\dot L = BL`.
    """

    closure: Closure
    noise: Noise

    @property
    def autonomous(self) -> bool:  # type: ignore[override]
        return self.closure.autonomous and self.noise.constant

    @property
    def dim(self) -> int | None:
        return self.closure.dim

    def breaks(self, start: float, end: float) -> list[float]:
        return sorted({*self.closure.breaks(start, end), *self.noise.breaks(start, end)})

    def between(self, start: float, end: float) -> Law:
        return replace(self, closure=self.closure.between(start, end))

    def merge_obstacle(self) -> str | None:
        return self.closure.merge_obstacle()

    def member(self, index: Tensor) -> Law:
        return replace(self, closure=self.closure.member(index))

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        mean, covariance = tokens.points[..., 0, :], tokens.points[..., 1:, :]
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if bool(failed.any()):  # singular, or a trial step left the covariances
            factor = torch.where(failed.view(*failed.shape, 1, 1) > 0, factor_of(covariance), factor)
        slope, drift = self.closure.rates(mean, factor, time)
        pushed = slope @ covariance
        noise = 2.0 * self.noise.at(time)[0].to(covariance) * torch.eye(covariance.shape[-1]).to(covariance)
        return torch.cat((drift.unsqueeze(-2), pushed + pushed.mT + noise), dim=-2)


@dataclass(frozen=True, eq=False)
class Redrawn(Record):
    r"""Values that are redrawn in every layer.

    Step k of length h, :math:`x_i^+ = N(x_i + h\,v_i + \sigma\sqrt h \sum_h G_{k,h}\, m_i^h)`, adds to the velocity v of the law the
    means :math:`m_i^h = \sum_j w^h_{ij} x_j` of each head, multiplied by a matrix of independent standard normal entries that all
    tokens share: the value of a head is :math:`V_h + \sigma G_{k,h}/\sqrt h`. With value 0 the law has redrawn values only. As
    :math:`h \to 0` tokens of one head on the unit sphere solve, with one matrix B of Brownian motions for all,

    .. math:: dx_i = \Pi_{x_i} v_i\,dt + \sigma\,\Pi_{x_i}\,dB\,m_i - \tfrac12\sigma^2(d-1)\,|m_i|^2 x_i\,dt .

    Two tokens with :math:`V = 0`, :math:`t = \langle x_1, x_2\rangle`, :math:`p = 1/(1 + e^{-\beta(1-t)})` and
    :math:`A = p^2 + (1-p)^2` follow :math:`dt = \sigma^2(1-t^2)[(d-2)(1-A) - At]\,ds + \sigma\sqrt{2A}\,(1-t^2)\,dW`. Consensus
    attracts at rate :math:`(d-1)\sigma^2`, and antipodes attract if and only if :math:`\tanh^2\beta > (d-3)/(d-1)`.

    Parameters
    ----------
    strength : :math:`\sigma \ge 0`.
    seed : of the random numbers, from 0 to 2^63 - 1.
    members : index of each member of the flattened ensemble in the random numbers, see :class:`attractor.Noise`.

    References
    ----------
    [kloeden1992numerical]_, [salmon2011parallel]_
    """

    strength: float = 1.0
    seed: int = 0
    members: Tensor | None = None
    kind: ClassVar[str] = "layer"
    constant: ClassVar[bool] = True
    draws_increments: ClassVar[bool] = False

    def __post_init__(self) -> None:
        strength = _checked(self.strength, "the strength of redrawn values")
        if strength.ndim:
            raise InputError(f"redrawn values have one strength, got shape {tuple(strength.shape)}")
        object.__setattr__(self, "strength", float(strength))
        _check_seed(self.seed)
        object.__setattr__(self, "members", _as_members(self.members))

    def citations(self) -> tuple[str, ...]:
        return ("kloeden1992numerical", "salmon2011parallel")

    def breaks(self, start: float, end: float) -> list[float]:
        return []

    def check(self, state: Tokens | Gaussian, start: float) -> None:
        """Raise for a state that redrawn values do not fit."""
        if isinstance(state, Gaussian):
            raise UnsupportedError("redrawn values make the measure random: sample tokens from the Gaussian")
        _check_count(self.members, state)

    def check_law(self, law: Law) -> None:
        """Raise for a law whose values cannot be redrawn."""
        if type(law) is not Attention:
            raise UnsupportedError(f"redrawn values are those of one Attention(...), got {type(law).__name__}")
        absent = [name for name in ("output", "value_bias", "output_bias") if getattr(law, name) is not None]
        if absent:
            raise UnsupportedError(f"redrawn values need a plain value matrix, and the law has {', '.join(absent)}")

    def weak_order_obstacle(self, space: Space) -> str:
        return "redrawn values are defined by layers, which have weak order 1"

    def merge_obstacle(self) -> str:
        return "noise takes fixed steps"

    def restrict(self, index: Tensor) -> Redrawn:
        """The same for some members of the flattened ensemble, whose paths stay the same."""
        return replace(self, members=index.to(torch.int64) if self.members is None else self.members[index])

    def select(self, tokens: Tokens) -> RedrawnSource:
        """The random values of tokens with points (members, n, d)."""
        members = torch.arange(len(tokens.points)) if self.members is None else self.members
        return RedrawnSource(self, members.to(tokens.points.device), tokens.n, tokens.dim)


class AbsentNoise(Noise):
    """Stands for noise of a stored run that is a Python function: the run can be read, but not continued."""


@dataclass(frozen=True)
class Source:
    """Noise of some members of an ensemble.

    Attributes
    ----------
    noise : strengths and seed.
    members : indices of the members in the random numbers, (members,).
    n, dim : numbers of tokens and of coordinates.
    rows : indices of the members in the flattened ensemble, for strengths of each member; None for all of them.
    """

    noise: Noise
    members: Tensor
    n: int
    dim: int
    rows: Tensor | None = None

    def strengths(self, time: float, like: Tensor) -> tuple[Tensor, float]:
        """Strengths at a time as (1 or members, 1 or n, 1) in float64, and that of common noise."""
        strength, common = self.noise.at(time)
        strength = strength.to(like.device)
        if strength.ndim > 1:
            strength = strength.reshape(-1, self.n)
            strength = strength if self.rows is None else strength[self.rows]
        return strength.reshape(*((1,) * (2 - min(strength.ndim, 2))), *strength.shape, 1), common

    def normals(self, step: int) -> Tensor:
        """Standard normal vectors of one step, one for each token, (members, n, d) in float64."""
        return normals(self.noise.seed, step, self.members, self.n, self.dim)

    def common_normals(self, step: int) -> Tensor:
        """Standard normal vectors that tokens share, (members, 1, d) in float64."""
        return normals(self.noise.seed, step, self.members, 1, self.dim, COMMON)

    def deviations(self, time: float, h: float, like: Tensor) -> Deviations:
        r"""Standard deviations :math:`\sqrt{2\epsilon_i h}` and :math:`\sqrt{2\epsilon_c h}` of increments."""
        strength, common = self.strengths(time, like)
        return (2.0 * h * strength).sqrt(), math.sqrt(2.0 * h * common)

    def geodesic_deviations(self, time: float, h: float, like: Tensor, space: Space) -> Deviations:
        r"""Standard deviations :math:`\sqrt{2\epsilon_i hF}` of ``strang2``.

        On curvature :math:`\kappa` the factor :math:`F = 1 - (d-2)\,\epsilon_i h\kappa/3` makes the geodesic step of weak order 2.
        Common noise is that of flat space, where it is additive.
        """
        strength, common = self.strengths(time, like)
        factor = 1.0 - (self.dim - 2) * h * space.curvature / 3.0 * strength
        if not bool((factor > 0).all()):
            raise InputError(
                f"the step {h:g} is too long for noise of strength {float(strength.max()):g} in dimension {self.dim} on the "
                f"{space.name}: (d - 2) times strength times step must be below {3.0 / space.curvature:g}"
            )
        return (2.0 * h * strength * factor).sqrt(), math.sqrt(2.0 * h * common)

    def increment(self, step: int, deviations: Deviations, like: Tensor) -> Tensor:
        r"""Ambient increments :math:`a_i\xi_i + b\xi` with the deviations a, b, (members, n, d)."""
        each, common = deviations
        total = each * self.normals(step) if bool(each.any()) else None
        if common > 0:
            shared = common * self.common_normals(step)
            total = shared.expand(-1, self.n, -1) if total is None else total + shared
        return torch.zeros_like(like) if total is None else total.to(like)

    def displacement(self, field: Field, step: int, deviations: Deviations, x: Tensor) -> Tensor:
        """What noise adds to tokens at x before they are retracted."""
        increment = self.increment(step, deviations, x)
        return increment if self.noise.kind == "layer" else field.space.white_noise(x, increment)

    def select(self, index: Tensor | slice) -> Source:
        """Keep some members only."""
        rows = torch.arange(len(self.members), device=self.members.device) if self.rows is None else self.rows
        return replace(self, members=self.members[index], rows=rows[index])


@dataclass(frozen=True)
class RedrawnSource(Source):
    """Redrawn values of some members of an ensemble."""

    noise: Redrawn  # type: ignore[assignment]

    def deviations(self, time: float, h: float, like: Tensor) -> Deviations:
        return torch.full((1, 1, 1), self.noise.strength * math.sqrt(h), dtype=torch.float64), 0.0

    def values(self, step: int, heads: int) -> Tensor:
        """Standard normal matrices of one step, (members, heads, d, d) in float64."""
        rows = normals(self.noise.seed, step, self.members, heads * self.dim, self.dim, WEIGHTS)
        return rows.view(-1, heads, self.dim, self.dim)

    def displacement(self, field: Field, step: int, deviations: Deviations, x: Tensor) -> Tensor:
        law, count = field.law, len(x)
        assert isinstance(law, Attention)

        def expand(matrix: Tensor) -> Tensor:
            lead = (1,) * (4 - matrix.ndim)
            return matrix.reshape(*lead, *matrix.shape).expand(count, -1, -1, -1)

        query, key = expand(law.query), expand(law.key)
        value = (float(deviations[0]) * self.values(step, query.shape[1])).to(x)
        biases = {}
        for name in ("query_bias", "key_bias"):
            bias = getattr(law, name)
            if bias is not None:
                lead = (1,) * (3 - bias.ndim)
                biases[name] = bias.reshape(*lead, *bias.shape).expand(count, query.shape[1], -1)
        drawn = replace(law, query=query, key=key, value=value, **biases)
        field.evaluations += count
        return drawn.velocity(Tokens.unchecked(x, field.masses, field.positions))


def _check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"the seed of noise must be an integer from 0 to 2^63 - 1, got {seed!r}")


def _as_members(given: Any) -> Tensor | None:
    """Indices of members in the random numbers as a tensor of int64."""
    if given is None:
        return None
    members = torch.as_tensor(list(given) if isinstance(given, range) else given)
    if members.ndim != 1 or members.is_floating_point() or bool(((members < 0) | (members > MAX_MEMBER)).any()):
        raise InputError("members of noise are integers from 0 to 2^32 - 1, one for each member of the ensemble")
    return members.to(torch.int64)


def _check_count(members: Tensor | None, state: Tokens) -> None:
    count = state.batch_shape.numel()
    if members is not None and len(members) != count:
        raise InputError(f"noise needs one index for each of {count} members, got {len(members)}")


def _checked(value: Any, name: str) -> Tensor:
    """A strength as a tensor in float64; raise if it is negative or not finite."""
    tensor = check_finite(to_float_tensor(value, name, torch.float64), name)
    if bool((tensor < 0).any()):
        raise InputError(f"{name} must not be negative, got {float(tensor.min()):g}")
    return tensor
