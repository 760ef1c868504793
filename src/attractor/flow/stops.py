"""When a run may end before its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.records import Record
from attractor.spaces import Space
from attractor.states import Tokens


@dataclass(frozen=True)
class View:
    """What a rule looks at after a step: times (members,), points and velocities (members, n, d).

    ``alive`` marks rows that are tokens (rows of merged tokens are not), ``size`` is the largest token norm at the start.
    """

    t: np.ndarray
    points: Tensor
    velocities: Tensor
    alive: Tensor | None
    space: Space
    until: float
    size: np.ndarray

    def largest(self, values: Tensor) -> np.ndarray:
        """Largest value over the tokens of each member."""
        values = values.detach() if self.alive is None else values.detach().masked_fill(~self.alive, 0.0)
        return values.amax(-1).cpu().double().numpy()

    def norms(self) -> np.ndarray:
        return self.largest(torch.linalg.vector_norm(self.points, dim=-1))

    def speeds(self) -> np.ndarray:
        return self.largest(torch.linalg.vector_norm(self.velocities, dim=-1))


class Rule(Record):
    """A reason to stop: ``measure`` falls below one when it holds; an ``urgent`` one ends a Gaussian that owes saved times too."""

    name: ClassVar[str] = ""
    urgent: ClassVar[bool] = False

    def measure(self, view: View) -> np.ndarray:
        """How far from stopping each member is, as a multiple of what counts as there."""
        raise NotImplementedError

    def message(self, view: View, index: int) -> str:
        raise NotImplementedError

    def limit(self, view: View) -> Tensor | None:
        """The state (members, n, d) that a run approaches when the rule holds, if it may still travel; else None."""
        return None


@dataclass(frozen=True)
class Consensus(Rule):
    """All tokens within ``tolerance`` of each other, relative to their size."""

    tolerance: float = 1e-6
    name: ClassVar[str] = "consensus"

    def measure(self, view: View) -> np.ndarray:
        points = view.points.detach()
        # twice the distance to any one token bounds the diameter; row 0 always stands for a token
        gap = 2.0 * view.largest(torch.linalg.vector_norm(points - points[:, :1], dim=-1))
        return gap / (self.tolerance * np.maximum(view.norms(), 1e-300))

    def message(self, view: View, index: int) -> str:
        return f"all tokens came together, within {self.tolerance:.3g} of each other"

    def limit(self, view: View) -> Tensor:
        return view.points.detach()[:, :1].expand_as(view.points)


@dataclass(frozen=True)
class Collapse(Rule):
    """All tokens within ``tolerance`` times the initial size of zero, and as slow."""

    tolerance: float = 1e-6
    name: ClassVar[str] = "collapsed"

    def measure(self, view: View) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # both are infinite once squares overflow; NaN does not stop a run
            # tokens that pass through zero, or start there, are on their way elsewhere: they must be slow as well
            return np.maximum(view.norms(), view.speeds()) / (self.tolerance * np.maximum(view.size, 1e-300))

    def message(self, view: View, index: int) -> str:
        return f"all tokens went to zero: no norm is above {self.tolerance:.3g} of the largest at the start"

    def limit(self, view: View) -> Tensor:
        return torch.zeros_like(view.points)


@dataclass(frozen=True)
class Steady(Rule):
    """No token moves any more: at its present speed none moves by ``tolerance`` of its size before the end and speeds do not
    grow; or all have stayed within the integrator's own noise for as long as there is time left."""

    tolerance: float = 1e-10
    name: ClassVar[str] = "steady"

    def measure(self, view: View) -> np.ndarray:
        left = np.maximum(view.until - view.t, 1.0)
        return view.speeds() * left / (self.tolerance * np.maximum(view.norms(), 1e-300))

    def message(self, view: View, index: int) -> str:
        speed, time = float(view.speeds()[index]), float(view.t[index])
        return f"no token moves any more: the largest speed is {speed:.3g} at t = {time:.6g}, of t = {view.until:g} asked for"


@dataclass(frozen=True)
class Event(Rule):
    """A stop of the user's: ``function(tokens, time) -> float`` for one member; the run ends when it falls to zero or below.

    With ``terminal=False`` the crossing is only logged.
    """

    function: Callable[[Tokens, float], Any]
    label: str = "event"
    terminal: bool = True
    name: ClassVar[str] = "event"

    def message(self, view: View, index: int) -> str:
        return f"the event {self.label!r} happened"

    def value(self, tokens: Tokens, time: float) -> float:
        return float(self.function(tokens, time))


def rules_from(
    stop: Sequence[str | Rule] | None, space: Space, autonomous: bool, rtol: float, atol: float, n: int
) -> list[Rule]:
    """The rules that apply: the space's own by default, or those named.

    Below the tolerance of the integrator distances are noise, so the defaults stay above it.
    """
    consensus = Consensus(max(1e-9, 20.0 * rtol))
    collapse = Collapse(max(1e-7, 100.0 * atol))
    named: dict[str, Rule] = {"consensus": consensus, "collapsed": collapse, "steady": Steady()}
    if stop is None:
        default = ([consensus] if space.curved and n > 1 else []) + ([] if space.curved else [collapse])
        return [*default, *([Steady()] if autonomous else [])]
    rules: list[Rule] = []
    for rule in [stop] if isinstance(stop, (str, Rule)) else stop:
        if isinstance(rule, str) and rule not in named:
            raise InputError(f"stop {rule!r} is not known; the stops are {', '.join(named)} (or a Rule)")
        if isinstance(rule, Event):
            raise InputError(f"the event {rule.label!r} was given as a stop; give it as events=[...]")
        if not isinstance(rule, (str, Rule)):
            raise InputError(f"a stop is one of {', '.join(named)} or a Rule, got {type(rule).__name__}")
        rules.append(named[rule] if isinstance(rule, str) else rule)
    return rules
