"""Exact reduction of dimension: tokens that stay in the span of their start are integrated in coordinates of that span.

If velocities are sums of tokens (V = c I), of the columns of a factored output and of fixed vectors, all tokens stay in
S = span{x_i(0)} plus these. With orthonormal columns B of S and x = B z the tokens z obey the law with Q B, K B, B'V B on the space
with B'W B: inner products, norms and therefore all weights are the same. QR of the starting points gives B and z to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws import Law, is_external
from attractor.solvers.integration import Plan
from attractor.solvers.saving import Recorder
from attractor.solvers.store import RunRecord
from attractor.solvers.termination import Collapse, Consensus, Steady
from attractor.spaces import Ellipsoid, Euclidean, Space, Sphere
from attractor.states import Tokens

LEAST_DIM = 32  # below, a reduction saves nothing
SHARE = 0.5  # of the dimension that is at most left, for a reduction that was not asked for
RULES = (Consensus, Collapse, Steady)  # that depend on distances alone


@dataclass(frozen=True)
class Span:
    """A subspace with orthonormal ``basis`` (d, r), or (members, d, r), and the tokens in its coordinates."""

    basis: Tensor
    tokens: Tokens

    @property
    def dim(self) -> int:
        return self.basis.shape[-1]

    def restrict_plan(self, plan: Plan) -> Plan:
        """The plan of the run in coordinates of the subspace."""
        space: Space = plan.space
        if isinstance(space, Ellipsoid):
            basis = self.basis.to(space.W.device)
            space = Ellipsoid(basis.mT @ space.W.double() @ basis)
        return replace(plan, law=plan.law.restrict(self.basis), space=space)

    def lift(self, points: Tensor) -> Tensor:
        """Points (..., n, d) of coordinates (..., n, r); members are the axis before the tokens."""
        return points @ self.basis.to(points).mT

    def lift_record(self, record: RunRecord) -> RunRecord:
        """What a run has produced, in all coordinates."""
        old = record.recorder
        recorder = Recorder(old.times, old.explicit, len(old.ends), self.tokens.points[:, :0])
        recorder.next, recorder.reached, recorder.ends = old.next, old.reached, old.ends
        recorder.points = self.lift(old.points)
        finals = tuple(None if final is None else self._lift_one(final, k) for k, final in enumerate(record.finals))
        return replace(record, recorder=recorder, finals=finals)

    def _lift_one(self, points: Tensor, member: int) -> Tensor:
        basis = self.basis if self.basis.ndim == 2 else self.basis[member]
        return points @ basis.to(points).mT


def find_span(
    law: Law, state: Tokens, plan: Plan, wanted: bool | None, obstacle: str = "", *, enter: Callable[[], Tokens]
) -> Span | None:
    """Return the subspace in which a run is integrated, or None for all coordinates.

    Parameters
    ----------
    law, state : of the run; ``enter()`` returns its tokens on the space, with points (members, n, d).
    wanted : True to raise where there is none, False for None, and None to reduce where it saves work.
    obstacle : why this run cannot be reduced, if that is known already.
    """
    if wanted is False:
        return None
    n, d = state.n, state.dim
    if wanted is None and (d < LEAST_DIM or n > SHARE * d):
        return None
    tokens = enter()
    members = len(tokens.points)
    obstacle = obstacle or _find_obstacle(law, plan)
    vectors = None if obstacle else law.added_vectors(tokens)
    if vectors is not None and len(vectors) > 1:
        vectors = torch.unique(vectors, dim=0)  # norms of a block may be the same
    if not obstacle and vectors is None:
        obstacle = "the law is not known to keep tokens in the span of their start (values V = c I or factored, no feed-forward, no gains)"
    if not obstacle and members > 1 and (len(vectors) or isinstance(plan.space, Ellipsoid)):  # type: ignore[arg-type]
        obstacle = "members of an ensemble have different spans, and the law or the space has vectors of its own"
    rows = n if vectors is None else n + len(vectors)
    if not obstacle and rows >= d:
        obstacle = f"{rows} vectors span all {d} dimensions"
    if obstacle:
        if wanted:
            raise UnsupportedError(f"the dimension cannot be reduced: {obstacle}; leave out reduce=True")
        return None
    if wanted is None and rows > SHARE * d:
        return None
    assert vectors is not None
    columns = torch.cat((tokens.points.double(), vectors.double().expand(members, *vectors.shape)), dim=-2).mT
    basis, coordinates = torch.linalg.qr(columns)
    points = coordinates[..., :n].mT.to(tokens.points.dtype).contiguous()
    found = Tokens.unchecked(points, tokens.masses, tokens.positions)
    return Span(basis[0] if members == 1 else basis, found)


def _find_obstacle(law: Law, plan: Plan) -> str:
    """Why a plan cannot be carried out in other coordinates; empty if it can."""
    if plan.noise is not None:
        return "noise leaves the span of the start"
    if plan.events:
        return "events read the tokens in their own coordinates"
    if type(plan.space) not in (Euclidean, Sphere, Ellipsoid):
        return f"the {plan.space.name} is not known to have the same form in a subspace"
    if is_external(law, plan.start):
        return "a law or kernel from outside the package may read coordinates"
    if any(type(rule) not in RULES for rule in plan.rules):
        return "a rule of one's own may read coordinates"
    return ""
