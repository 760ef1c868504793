"""Checks of what laws and kernels from outside the package declare, on the state from which a run starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws.law import Law
from attractor.laws.schedules import Schedule
from attractor.serialization import Record
from attractor.states import Tokens

Evaluate = Callable[[Law, Tokens, float], Tensor]  # velocities, or the points after a layer

MEMBERS = 8  # members of an ensemble that are evaluated one by one
DIFFERENCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # of velocities relative to the largest, far above rounding


def is_external(law: Law, time: float = 0.0) -> bool:
    """Whether the law, or a part of it such as its kernel, is of a class from outside the package."""
    return any(type(part).__module__.partition(".")[0] != "attractor" for part in _parts(law, time))


def _parts(value: Any, time: float) -> Iterator[Record]:
    if isinstance(value, Record):
        yield value
        if isinstance(value, Schedule) and value.function is not None:
            yield from _parts(value.at(time), time)
        for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
            yield from _parts(getattr(value, field.name), time)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _parts(item, time)


def check_velocities(law: Law, tokens: Tokens, times: Sequence[float], evaluate: Evaluate) -> None:
    """Raise InputError where velocities contradict what a law declares.

    Parameters
    ----------
    tokens : the start of a run, points (members, n, d).
    times : the start of the run, and later times.
    evaluate : the velocities under a law.

    Notes
    -----
    Each member of an ensemble must have the velocities that it has alone, whether its points are (1, n, d) or (n, d); and an
    autonomous law must give the same velocities at all times.
    """
    name, points = type(law).__name__, tokens.points
    given = points.detach().clone()
    together = evaluate(law, tokens, times[0])
    if not isinstance(together, Tensor):
        raise InputError(f"the velocity of {name} is of the type {type(together).__name__}; it must be a torch.Tensor")
    if not torch.equal(points.detach().nan_to_num(), given.nan_to_num()):
        raise InputError(
            f"{name} changes the tokens it is given; let velocity return new values and leave tokens as they are"
        )
    together = together.detach()
    if together.shape != points.shape:
        raise InputError(
            f"the velocity of {name} has shape {tuple(together.shape)} for tokens (members, n, d) of shape {tuple(points.shape)}; "
            "both must be the same"
        )
    for member in np.unique(np.linspace(0, len(points) - 1, MEMBERS).astype(int)).tolist():
        alone = law.member(torch.tensor([member]))
        for one in (_member(tokens, slice(member, member + 1)), _member(tokens, member)):
            try:
                found = evaluate(alone, one, times[0]).detach()
            except Exception:
                if one.points.ndim == 2:  # only ``velocity`` uses this shape; ``flow`` has a member axis
                    continue
                raise
            if found.shape.numel() != points[member].numel() or _differs(
                together[member], found.reshape(points.shape[1:])
            ):
                raise InputError(
                    f"{name} gives member {member} of tokens (members, n, d) = {tuple(points.shape)} other velocities than the same "
                    f"tokens alone as {tuple(one.points.shape)}: reduce over the axes -2 and -1 only, give parameters with a member "
                    "axis two further axes (parameter[:, None, None]), and select their rows in member(index)"
                )
    if law.autonomous:
        for time in times[1:]:
            if _differs(together, evaluate(law, tokens, time).detach()):
                raise InputError(
                    f"{name} gives other velocities at t = {time:g} than at t = {times[0]:g}: a law that depends on time declares "
                    "autonomous = False"
                )


def merging_changes(law: Law, tokens: Tokens, time: float, evaluate: Evaluate) -> str | None:
    """Why tokens of an external law must not be merged, or None.

    The first member's last token is put where its first one is. The velocities must be those of the state in which one token
    has the mass of both, also with a further token without mass, as members of an ensemble with fewer tokens have.
    """
    if tokens.n < 2:
        return None
    name = type(law).__name__
    law, first = law.member(torch.tensor([0])), _member(tokens, slice(0, 1))
    masses = first.weights.expand(first.points.shape[:-1]).clone()
    if not bool((masses[:, [0, -1]] > 0).all()):
        masses = torch.full_like(masses, 1.0 / tokens.n)
    points, merged = first.points.clone(), masses[:, :-1].clone()
    points[:, -1] = points[:, 0]
    merged[:, 0] += masses[:, -1]
    padded = torch.cat((merged, torch.zeros_like(merged[:, :1])), dim=-1)
    wanted = evaluate(law, Tokens.unchecked(points, masses, first.positions), time).detach()[:, :-1]
    for rows, weights in ((points[:, :-1], merged), (points, padded)):
        try:
            found = evaluate(law, Tokens.unchecked(rows, weights, first.positions), time).detach()[:, : tokens.n - 1]
        except Exception as error:  # whatever a law does with fewer tokens than it was made for
            return f"{name} cannot move fewer tokens of larger mass ({type(error).__name__}: {error})"
        if found.shape != wanted.shape or _differs(wanted, found):
            return f"{name} gives other velocities when two tokens at one point are replaced by one of their total mass"
    return None


def _member(tokens: Tokens, index: int | slice) -> Tokens:
    rows = (row if row is None or row.ndim == 1 else row[index] for row in (tokens.masses, tokens.positions))
    return Tokens.unchecked(tokens.points[index], *rows)


def _differs(first: Tensor, second: Tensor) -> bool:
    """Whether finite entries of two velocities differ by more than rounding."""
    both = torch.isfinite(first) & torch.isfinite(second)
    if not bool(both.any()):
        return False
    first, second = first[both], second[both]
    return bool((first - second).abs().max() > DIFFERENCE[first.dtype] * torch.maximum(first.abs(), second.abs()).max())
