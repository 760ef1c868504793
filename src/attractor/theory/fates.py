"""Where tokens may go, which fates exclude each other, and what a run shows."""

from __future__ import annotations

import torch

from attractor.flow import Trajectory
from attractor.states import Tokens

FATES = {
    "collapse": "every token tends to zero",
    "divergence": "token norms are unbounded",
    "bounded": "token norms stay bounded",
    "consensus": "all tokens tend to one point",
    "equilibrium": "every token tends to a limit",
    "separation": "no pair of tokens comes closer, in the metric of the theorem",
    "contraction": "no pair of tokens moves apart, in the metric of the theorem",
    "bipartite": "tokens tend to two opposite points",
    "blow-up": "norms become infinite in finite time",
    "monotone": "a quantity of the theorem never decreases",
    "identity": "an equation or inequality, without a fate of its own",
}
# pairs of fates that no run of distinct tokens can have together
EXCLUSIVE = (
    {"collapse", "divergence"},
    {"collapse", "separation"},
    {"collapse", "bipartite"},
    {"collapse", "blow-up"},
    {"bounded", "divergence"},
    {"bounded", "blow-up"},
    {"consensus", "bipartite"},
    {"equilibrium", "divergence"},
    {"equilibrium", "blow-up"},
)


def exclusive(first: str, second: str) -> bool:
    """Whether one run cannot have both fates."""
    return {first, second} in EXCLUSIVE


def contradiction(fate: str, run: Trajectory) -> str | None:
    """Why a finished run shows that a predicted fate is wrong, or None. A run that merely reached its time shows nothing."""
    name, end = run.outcome.name, run.final
    if not isinstance(end, Tokens):
        return None
    size = float(end.points.norm(dim=-1).max())
    gap = float((end.points - end.points[..., :1, :]).norm(dim=-1).max())
    start = float(run.points[0].norm(dim=-1).max()) if len(run.times) else size
    grown = name in ("diverged", "blow_up")
    resting = name == "steady" and size > 1e-3 * max(start, torch.finfo(end.points.dtype).tiny)
    if fate in ("collapse", "bounded", "equilibrium") and grown:
        return f"{FATES[fate]} was predicted, but {run.outcome.message}"
    if fate == "collapse" and resting:
        return f"{FATES[fate]} was predicted, but the tokens rest at a norm of {size:.3g}"
    if fate in ("divergence", "blow-up") and (name == "collapsed" or resting):
        return f"{FATES[fate]} was predicted, but {run.outcome.message}"
    if fate == "consensus" and resting and gap > 1e-3 * size:
        return f"{FATES[fate]} was predicted, but the tokens rest at a distance of {gap:.3g}"
    if fate == "bipartite" and name == "consensus":
        return f"{FATES[fate]} was predicted, but {run.outcome.message}"
    return None
