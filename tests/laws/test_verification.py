"""Laws of one's own: what they declare is checked as a run starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError, UnsupportedError
from attractor.laws import Pairing, is_external


@dataclass(frozen=True, eq=False)
class Mean(at.Law):
    """The template of the how-to page: a rate for every member, or one."""

    rate: torch.Tensor | float = 1.0
    mergeable: ClassVar[bool] = True

    def velocity(self, tokens, time=0.0, *, skip_self=False):
        weights = tokens.weights.unsqueeze(-1)
        mean = (weights * tokens.points).sum(-2, keepdim=True)
        rate = self.rate if isinstance(self.rate, float) else self.rate[:, None, None]
        return rate * (mean - tokens.points)

    def member(self, index):
        return self if isinstance(self.rate, float) else Mean(self.rate[index])


@dataclass(frozen=True, eq=False)
class Mixing(Mean):
    """Multiplies coordinates by the rates of members."""

    def velocity(self, tokens, time=0.0, *, skip_self=False):
        return self.rate * tokens.points.mean(-2, keepdim=True).expand_as(tokens.points)

    def member(self, index):
        return Mixing(self.rate[index])


@dataclass(frozen=True, eq=False)
class FirstAxis(at.Law):
    """Takes the mean over the first axis, which is that of the members."""

    def velocity(self, tokens, time=0.0, *, skip_self=False):
        return tokens.points.mean(0, keepdim=True).expand_as(tokens.points)


@dataclass(frozen=True, eq=False)
class Unweighted(at.Law):
    """Ignores the masses."""

    mergeable: ClassVar[bool] = True

    def velocity(self, tokens, time=0.0, *, skip_self=False):
        return tokens.points.mean(-2, keepdim=True).expand_as(tokens.points)


@dataclass(frozen=True, eq=False)
class Undeclared(Mean):
    mergeable: ClassVar[bool] = False


@dataclass(frozen=True, eq=False)
class Ordered(at.Law):
    """Sums over the tokens before each one, with their masses: the order matters."""

    mergeable: ClassVar[bool] = True

    def velocity(self, tokens, time=0.0, *, skip_self=False):
        return (tokens.weights.unsqueeze(-1) * tokens.points).cumsum(-2)


@dataclass(frozen=True, eq=False)
class Clocked(at.Law):
    """Depends on time; ``honest`` ones say so."""

    honest: bool = False

    @property
    def autonomous(self):
        return not self.honest

    def velocity(self, tokens, time=0.0, *, skip_self=False):
        return np.cos(time) * tokens.points


@dataclass(frozen=True, eq=False)
class OneAxis(at.Law):
    """Returns velocities without the axis of members."""

    def velocity(self, tokens, time=0.0, *, skip_self=False):
        return tokens.points.reshape(-1, tokens.dim)


@dataclass(frozen=True, eq=False)
class InArrays(at.Law):
    """Returns an array instead of a tensor."""

    def velocity(self, tokens, time=0.0, *, skip_self=False):
        return -tokens.points.numpy()


@dataclass(frozen=True, eq=False)
class InPlace(at.Law):
    """Changes the tokens."""

    def velocity(self, tokens, time=0.0, *, skip_self=False):
        return tokens.points.mul_(-1.0)


def test_the_template_moves_every_member_as_if_it_were_alone() -> None:
    rates = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    for masses in (None, np.random.default_rng(0).random((3, 6))):
        tokens = at.Tokens(at.Tokens.gaussian(6, 3, seed=1, ensemble=3).points, masses=masses)
        run = at.flow(Mean(rates), tokens, until=2.0, stop=())
        for k in range(3):
            one = at.Tokens(tokens.points[k], masses=None if masses is None else masses[k])
            single = at.flow(Mean(float(rates[k])), one, until=2.0, stop=())
            torch.testing.assert_close(run.final.points[k], single.final.points, rtol=0, atol=1e-8)


@pytest.mark.parametrize("members", [1, 2, 3, 40])
def test_a_law_that_mixes_members_is_an_error_in_one_sentence(members: int) -> None:
    tokens = at.Tokens.gaussian(5, 3, seed=0, ensemble=members)
    with pytest.raises(InputError, match=r"FirstAxis gives member 0 of tokens .* other velocities") as caught:
        at.flow(FirstAxis(), tokens, until=1.0)
    assert "\n" not in str(caught.value)


def test_rates_that_multiply_coordinates_instead_of_members_are_an_error() -> None:
    tokens = at.Tokens.gaussian(5, 3, seed=0, ensemble=3)
    rates = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    with pytest.raises(InputError, match=r"Mixing gives member .*parameter\[:, None, None\]"):
        at.flow(Mixing(rates), tokens, until=1.0)


def test_a_reduction_over_the_wrong_axis_is_an_error_for_a_single_system_too() -> None:
    with pytest.raises(InputError, match=r"FirstAxis gives member 0 .* alone as \(5, 3\)"):
        at.flow(FirstAxis(), at.Tokens.gaussian(5, 3, seed=0), until=1.0)


def test_a_velocity_of_another_shape_is_an_error() -> None:
    with pytest.raises(InputError, match=r"velocity of OneAxis has shape \(10, 3\) for tokens \(members, n, d\)"):
        at.flow(OneAxis(), at.Tokens.gaussian(5, 3, seed=0, ensemble=2), until=1.0)


def test_a_velocity_that_is_no_tensor_is_an_error() -> None:
    with pytest.raises(InputError, match="velocity of InArrays is of the type ndarray"):
        at.flow(InArrays(), at.Tokens.gaussian(5, 3, seed=0), until=1.0)


def test_a_law_that_changes_the_tokens_is_an_error() -> None:
    with pytest.raises(InputError, match="InPlace changes the tokens it is given"):
        at.flow(InPlace(), at.Tokens.gaussian(5, 3, seed=0), until=1.0, max_seconds=1.0)


def test_a_law_that_uses_time_must_say_so() -> None:
    tokens = at.Tokens.gaussian(5, 3, seed=0)
    with pytest.raises(InputError, match=r"Clocked gives other velocities at t = 0.37 .* autonomous = False"):
        at.flow(Clocked(), tokens, until=1.0)
    run = at.flow(Clocked(honest=True), tokens, until=1.0, stop=())
    torch.testing.assert_close(run.final.points, tokens.points * np.exp(np.sin(1.0)), rtol=1e-7, atol=0)


@pytest.mark.parametrize("law", [Unweighted(), Ordered()])
def test_merging_a_law_that_counts_tokens_or_their_order_is_an_error(law: at.Law) -> None:
    tokens = at.Tokens.hemisphere(6, 3, seed=0)
    with pytest.raises(InputError, match=r"gives other velocities when two tokens at one point"):
        at.flow(law, tokens, space="sphere", until=1.0, merge=1e-3)
    assert at.flow(law, tokens, space="sphere", until=1.0).stats.merges == 0


def test_merging_is_off_unless_a_law_says_that_it_is_safe() -> None:
    tokens = at.Tokens.hemisphere(6, 3, seed=0)
    with pytest.raises(UnsupportedError, match="Undeclared does not declare mergeable = True"):
        at.flow(Undeclared(), tokens, space="sphere", until=1.0, merge=1e-3)
    with pytest.raises(UnsupportedError, match="Undeclared does not declare"):
        at.flow(at.Attention.isotropic(3, 1.0) + Undeclared(), tokens, space="sphere", until=1.0, merge=1e-3)


@pytest.mark.parametrize("members", [(), 3])
def test_a_mergeable_law_merges_as_its_own_unmerged_run(members) -> None:
    """Members with different numbers of merges have rows without mass, which must not count."""
    tokens = at.Tokens.gaussian(8, 2, seed=3, ensemble=members)
    options = {"until": 6.0, "stop": (), "save": 6}
    merged, plain = (at.flow(Mean(1.0), tokens, merge=merge, **options) for merge in (1e-2, False))
    assert merged.stats.merges > 0
    torch.testing.assert_close(merged.points, plain.points, rtol=0, atol=1e-2)


@dataclass(frozen=True)
class Counting(at.laws.Softmax):
    """Softmax weights that ignore the masses; derived from a kernel, so that it has no name in the list of kernels."""

    def attend(self, pairing: Pairing, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(pairing.scaled_query @ pairing.k.mT, dim=-1) @ v


def test_a_kernel_that_ignores_masses_is_not_merged_by_default_and_not_on_request() -> None:
    law, tokens = at.Attention.isotropic(3, 2.0, kernel=Counting()), at.Tokens.hemisphere(12, 3, seed=0)
    options = {"space": "sphere", "until": 30.0, "stop": ()}
    found, wanted = (at.flow(law, tokens, merge=merge, **options) for merge in (None, False))
    assert found.stats.merges == 0
    torch.testing.assert_close(found.final.points, wanted.final.points, rtol=0, atol=0)
    with pytest.raises(InputError, match="other velocities when two tokens"):
        at.flow(law, tokens, merge=1e-3, **options)


def test_what_is_external() -> None:
    plain = at.Attention.isotropic(3, 2.0)
    inside = (plain, plain + plain, at.Schedule(lambda time: plain), at.laws.Stack((plain, plain)))
    outside = (Mean(), plain + Mean(), at.Schedule(lambda time: Mean()), at.laws.Stack((plain, Mean())))
    assert not any(map(is_external, inside))
    assert all(map(is_external, (*outside, at.Attention.isotropic(3, 2.0, kernel=Counting()))))


def test_gradients_flow_through_a_checked_law() -> None:
    points = at.Tokens.gaussian(5, 3, seed=0).points.requires_grad_()
    run = at.flow(Mean(1.0), at.Tokens(points), until=1.0, stop=())
    (gradient,) = torch.autograd.grad(run.final.points.square().sum(), points)
    assert bool(torch.isfinite(gradient).all())
    assert float(gradient.abs().max()) > 0
