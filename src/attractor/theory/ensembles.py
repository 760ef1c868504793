"""Many small systems as few flows: cases of one shape become members of an ensemble."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attractor.attention import Attention
from attractor.flow import Trajectory, flow
from attractor.states import Tokens

if TYPE_CHECKING:
    from attractor.theory.theorem import Case

TOLERANCES = {"rtol": 1e-10, "atol": 1e-13}
SAVED = 100
EVALUATIONS = 30_000  # for each member: more than any instance of a theorem needs, an end for those that violate one
RANKS = {"query": 3, "key": 3, "value": 3, "output": 3, "query_bias": 2, "key_bias": 2, "value_bias": 2}


def integrate(cases: Sequence[Case]) -> list[Trajectory]:
    """The trajectory of every case, at tolerances that leave a conclusion nothing to blame on the integrator."""
    runs: list[Trajectory | None] = [None] * len(cases)
    groups: dict[Any, list[int]] = {}
    for index, case in enumerate(cases):
        groups.setdefault(_shape(case) or index, []).append(index)
    for members in groups.values():
        group = [cases[index] for index in members]
        if len(group) == 1:
            runs[members[0]] = _flow(group[0].law, group[0].state, group[0])
            continue
        points = torch.stack([case.tokens.points for case in group])
        run = _flow(_stacked([case.attention for case in group]), Tokens(points), group[0])
        for place, index in enumerate(members):
            runs[index] = run.member(place)
    return [run for run in runs if run is not None]


def _flow(law: Any, state: Any, case: Case) -> Trajectory:
    members = 1 if not isinstance(state, Tokens) else state.batch_shape.numel()
    budget = {"max_evaluations": EVALUATIONS * members}
    options = {"save": SAVED, "merge": False, **TOLERANCES, **budget, **case.options}
    return flow(law, state, space=case.space, until=case.horizon, stop=options.pop("stop", ()), **options)


def _shape(case: Case) -> Any:
    """What two cases must share to run together, or None for a case that runs alone."""
    law, state = case.law, case.state
    if not isinstance(law, Attention) or not isinstance(state, Tokens) or state.batch_shape:
        return None
    if law.query.ndim > 3 or law.output_bias is not None or state.masses is not None or state.positions is not None:
        return None
    shapes = tuple(None if (part := getattr(law, name)) is None else tuple(part.shape) for name in RANKS)
    # parts that hold tensors (a boolean mask, a table of positions, an ellipsoid) are equal only to themselves
    form = (law.kernel, law.mask, law.positions, law.scale, shapes, case.space)
    return (*form, tuple(state.points.shape), case.horizon, repr(sorted(case.options.items())))


def _stacked(laws: list[Attention]) -> Attention:
    """One law whose leading axis holds the parameters of each."""
    parts: dict[str, Tensor] = {}
    for name, rank in RANKS.items():
        rows = [getattr(law, name) for law in laws]
        if rows[0] is not None:
            parts[name] = torch.stack([row if row.ndim == rank else row.unsqueeze(0) for row in rows])
    return dataclasses.replace(laws[0], **parts)
