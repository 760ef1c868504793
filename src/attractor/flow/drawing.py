"""A run as a picture: which curves, which words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import InputError, UnsupportedError
from attractor.flow.forest import Log
from attractor.flow.outcome import Event
from attractor.flow.trajectory import Trajectory
from attractor.pictures import Scene, draw
from attractor.spaces import Ellipsoid, Sphere
from attractor.states import Gaussian

SPHERE_CURVES = ("clusters", "consensus_gap", "hemisphere_margin")
FLAT_CURVES = ("token_norm", "pairwise_distance", "clusters")
MARKED = 4000  # events marked in a picture
LARGE = 4096  # tokens above which observables that search neighbours or hulls are left out of pictures


def plot(
    run: Trajectory,
    path: str | Path | None = None,
    *,
    member: int = 0,
    curves: Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """Draw one member of a run; ``curves`` names the observables to show beside the tokens."""
    return draw(scene(run, member, curves, options.pop("title", None)), path, **options)


def scene(run: Trajectory, member: int = 0, curves: Sequence[str] | None = None, title: str | None = None) -> Scene:
    """What the picture of one member of a run shows."""
    if isinstance(run.initial, Gaussian):
        raise UnsupportedError("a run of a Gaussian has no tokens to draw; plot its means and covariances instead")
    if len(run.times) == 0:
        raise InputError("the run has no saved states to draw; give save times")
    if not 0 <= member < len(run.outcomes):
        raise InputError(f"the run has {len(run.outcomes)} members, numbered from 0; there is no member {member}")
    single = run.member(member)
    outcome, space = single.outcome, run.space
    if curves is None:
        curves = SPHERE_CURVES if space.curved else FLAT_CURVES
        curves = [
            name for name in curves if run.n <= LARGE or name in ("consensus_gap", "token_norm", "pairwise_distance")
        ]
    words = tuple(getattr(run, "words", ()))  # of a trace of a model
    # of a million merges some show where all are; they come in the order of time, and the last ones are the largest
    log = Log.from_events(single.events)
    events = log.some(lambda merges: merges[:: -(-len(merges) // MARKED) or 1])
    return Scene(
        times=single.times.numpy(),
        points=single.points.detach().cpu().double().numpy(),
        masses=single.masses.detach().cpu().double().numpy(),
        space_name=space.name,
        ellipsoid=space.W.detach().cpu().double().numpy() if isinstance(space, Ellipsoid) else None,
        space_radius=space.radius if isinstance(space, Sphere) else 1.0,
        curves={name.replace("_", " "): _curve(single, name) for name in curves},
        title=title or f"{run.n} tokens under {_law(run)}" + (f" on the {space.name}" if space.curved else ""),
        caption=_caption(single, log.merges),
        events=[(event.time, _words(event)) for event in events],
        outcome="" if run.stats.method == "blocks" else outcome.name,  # a model always comes to its last block
        labels=words if len(words) == run.n else (),
        outcome_time=outcome.time,
    )


def _words(event: Event) -> str:
    return f"{event.size} tokens become one" if event.kind == "merge" else event.kind


def _curve(run: Trajectory, name: str) -> np.ndarray:
    values = run.observe(name).detach().cpu().double()
    return values.reshape(len(run.times), -1).mean(-1).numpy()


def _law(run: Trajectory) -> str:
    law = run.law
    kernel = getattr(getattr(law, "kernel", None), "name", None)
    if kernel is None:
        return "a law of motion" if law is None else type(law).__name__.lower()
    heads = getattr(law, "heads", 1)
    mask = getattr(law, "mask", None)
    return f"{'' if mask is None else mask.name + ' '}{kernel} attention" + (
        f" with {heads} heads" if heads > 1 else ""
    )


def _caption(run: Trajectory, merges: int) -> str:
    """What the picture shows, in two sentences."""
    first, last = float(run.times[0]), float(run.times[-1])
    count = int(run.observe("clusters")[-1]) if run.n <= LARGE else None
    end = "" if count is None else f", where {'one cluster is' if count == 1 else f'{count} clusters are'} left"
    if run.outcome.name not in ("reached", "consensus"):
        end += f"; {run.outcome.message}"
    merged = f" {merges} merges of coinciding tokens are marked." if merges else ""
    if run.stats.method == "blocks":
        return (
            f"Tokens pass the blocks of a model, from the stream before block {first:g} to that after block {last - 1:g}{end}; "
            "time is the number of blocks passed."
        )
    return (
        f"Tokens move with the velocity that attention gives them, from t = {first:g} to t = {last:.6g}{end}.{merged}"
    )
