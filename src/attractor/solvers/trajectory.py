"""Trajectory: times, states, events, summary, figure and citations of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor import observables
from attractor.errors import InputError, UnsupportedError
from attractor.files import to_json
from attractor.html_repr import curve, html_card
from attractor.laws import Law
from attractor.observables import find_observable
from attractor.plotting import Scene, draw
from attractor.serialization import citations, move_tensors
from attractor.solvers.merging import EventLog
from attractor.solvers.outcome import EventRecord, Outcome, Statistics
from attractor.solvers.steppers.stepper import stepper_named
from attractor.solvers.store import RunRecord, write_run
from attractor.spaces import Space
from attractor.states import Gaussian, Tokens

PAIRS = 1 << 22  # pairs of tokens in one call of an observable


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A run: states along time, how it ended, what it cost and what happened.

    Attributes
    ----------
    times : (S,), saved times.
    points : (S, ..., n, d), saved states, with the ensemble axes of the initial state. Of a Gaussian: its mean, then the columns
        of its covariance factor, (S, ..., 1 + d, d). A member that ended before the others keeps its last state.
    final : last state of every member.
    outcomes : one for each member of the flattened ensemble.
    stats : evaluations, steps, seconds, method, engine.
    law, space, initial : what was integrated; ``law`` is None for a stored Python function.
    events : merges and events of the user, in the order of time.
    definition : law, state, space, options and events, as a store holds them.
    record : what ``save`` writes; None for a trajectory that does not come from ``flow``.
    """

    times: Tensor
    points: Tensor
    final: Tokens | Gaussian
    outcomes: tuple[Outcome, ...]
    stats: Statistics
    law: Law | None
    space: Space
    initial: Tokens | Gaussian
    events: Sequence[EventRecord] = ()
    definition: dict[str, Any] = field(default_factory=dict, repr=False)
    record: RunRecord | None = field(default=None, repr=False)

    def to(self, device: str | torch.device) -> Trajectory:
        """Return the trajectory with its tensors on a device; it can no longer be saved."""
        device = torch.device(device)
        if self.points.device == device:
            return self
        names = ("points", "final", "law", "space", "initial")
        return replace(self, record=None, **{name: move_tensors(getattr(self, name), device) for name in names})

    @property
    def outcome(self) -> Outcome:
        """How the run ended; for an ensemble "mixed" if its members ended in different ways."""
        if len(self.outcomes) == 1:
            return self.outcomes[0]
        last = max(outcome.time for outcome in self.outcomes)
        names = sorted({outcome.name for outcome in self.outcomes})
        counts = ", ".join(f"{sum(outcome.name == name for outcome in self.outcomes)} {name}" for name in names)
        return Outcome(names[0] if len(names) == 1 else "mixed", last, f"{len(self.outcomes)} members: {counts}")

    @property
    def tokens(self) -> Tokens:
        """The initial tokens; raises for a run of a Gaussian."""
        if not isinstance(self.initial, Tokens):
            raise UnsupportedError("this run moved a Gaussian, which has no tokens; it has means and covariances")
        return self.initial

    @property
    def masses(self) -> Tensor:
        """Mass of each original token."""
        return self.tokens.weights

    @property
    def means(self) -> Tensor:
        """Means of a Gaussian along time, (S, ..., d)."""
        return self._gaussian[..., 0, :]

    @property
    def covariances(self) -> Tensor:
        """Covariances of a Gaussian along time, (S, ..., d, d)."""
        factors = self._gaussian[..., 1:, :]
        return factors.mT @ factors

    @property
    def _gaussian(self) -> Tensor:
        if not isinstance(self.initial, Gaussian):
            raise UnsupportedError(
                "this run moved tokens; means and covariances along time belong to runs of a Gaussian"
            )
        return self.points

    @property
    def n(self) -> int:
        return self.points.shape[-2]

    @property
    def dim(self) -> int:
        return self.points.shape[-1]

    def member(self, index: int) -> Trajectory:
        """Return one member of an ensemble as a trajectory; ``index`` refers to the flattened ensemble."""
        if not self.initial.batch_shape:
            return self
        flat = self.points.reshape(len(self.times), -1, *self.points.shape[-2:])[:, index]
        law = self.law if self.law is None else self.law.member(torch.tensor([index]))
        initial = self.tokens if isinstance(self.initial, Tokens) else None
        if initial is None:
            raise UnsupportedError("members of an ensemble of Gaussians are read from means and covariances")
        rows = [
            row if row is None or row.ndim == 1 else row.reshape(-1, self.n)[index]
            for row in (initial.masses, initial.positions)
        ]
        start = Tokens.unchecked(initial.points.reshape(-1, *initial.points.shape[-2:])[index], *rows)
        final = Tokens.unchecked(self.final.points.reshape(-1, self.n, self.dim)[index], *rows)  # type: ignore[union-attr]
        events = EventLog.from_events(self.events).select(index)
        return Trajectory(self.times, flat, final, (self.outcomes[index],), self.stats, law, self.space, start, events)

    def state(self, index: int) -> Tokens | Gaussian:
        """The state at one saved time."""
        return self.initial.with_points(self.points[index])

    def _slice(self, rows: slice) -> Tokens:
        """Saved states as one ensemble, time first."""
        points, masses, positions = self.points[rows], self.tokens.masses, self.tokens.positions
        if masses is not None and masses.ndim > 1:
            masses = masses.expand(points.shape[:-1])
        if positions is not None and positions.ndim > 1:
            positions = positions.expand(points.shape[:-1])
        return Tokens.unchecked(points, masses, positions)

    def observe(self, observable: str | Callable[..., Tensor], **options: Any) -> Tensor:
        """Evaluate an observable along time.

        Parameters
        ----------
        observable : a function of ``attractor.observables``, its name, or any ``f(tokens, law=..., space=..., **options)``.

        Returns
        -------
        Tensor
            (S, ...), one value (or array) for each saved time and member.
        """
        function = find_observable(observable) if isinstance(observable, str) else observable
        if len(self.times) == 0:
            raise InputError("the run has no saved states to observe; give save times")
        if self.law is not None and not self.law.autonomous:
            states = [
                function(self.state(k), law=law_at(self.law, float(t)), space=self.space, **options)
                for k, t in enumerate(self.times)
            ]
            return torch.stack([torch.as_tensor(state) for state in states])
        step = max(1, PAIRS // (self.n * self.n * max(1, self.initial.batch_shape.numel())))
        parts = [
            torch.as_tensor(function(self._slice(slice(k, k + step)), law=self.law, space=self.space, **options))
            for k in range(0, len(self.times), step)
        ]
        return torch.cat(parts)

    def cite(self) -> str:
        """Return BibTeX entries of what this run used."""
        return bibtex(self)

    def save(self, path: str | Path) -> None:
        """Write the run to a Zarr store, for ``attractor.load``."""
        if self.record is None:
            raise UnsupportedError("this trajectory did not come from a flow, so there is no run to store")
        write_run(self.record, self.definition, path)

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Draw the run to .html (interactive), .png, .pdf, .svg, .gif or .mp4; without a path return the figure."""
        return plot(self, path, **options)

    def summary(self) -> dict[str, Any]:
        """Return the run in numbers, for JSON."""
        return summarise(self)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the outcome, and pairwise distance (or size of the covariance) along time."""
        return render_html(self)

    def __repr__(self) -> str:
        shape = "x".join(str(size) for size in self.points.shape)
        return f"Trajectory({shape}, {self.outcome.name} at t = {self.outcome.time:.6g}, {self.stats.evaluations} evaluations)"


def law_at(law: Law, time: float) -> Law:
    """The law in force at one time."""
    at = getattr(law, "at", None)
    return at(time) if at is not None else law


def entries() -> dict[str, str]:
    """All entries of the one bibliography, by key."""
    text = (files("attractor") / "references.bib").read_text(encoding="utf-8")
    found = {}
    for match in re.finditer(r"^@\w+\s*\{\s*([^,\s]+)\s*,", text, flags=re.MULTILINE):
        depth, end = 0, match.start()
        for end in range(text.index("{", match.start()), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                break
        found[match.group(1)] = text[match.start() : end + 1]
    return found


def keys(run: Trajectory) -> list[str]:
    """Citation keys of the toolkit, the law, the space and the method."""
    used = ["attractor", *citations(run.law), *citations(run.space)]
    if run.space.is_curved:
        used.append("abella2024asymptotic")
    if isinstance(run.initial, Gaussian):
        used.append("castin2025unified")
    if run.stats.method:
        used += stepper_named(run.stats.method).cites
    return list(dict.fromkeys(used))


def bibtex(run: Trajectory) -> str:
    """The entries of what a run used, ready for a .bib file."""
    known = entries()
    return "\n\n".join(known[key] for key in keys(run)) + "\n"


MOST = 1 << 24  # numbers in a run above which only a few saved times are looked at


def render_html(run: Trajectory) -> str:
    """HTML of a run: outcome, sizes, costs and one curve."""
    end, gaussian = run.outcome, isinstance(run.initial, Gaussian)
    rows: dict[str, Any] = {"outcome": f"{end.name.replace('_', ' ')} at t = {end.time:.6g}", "": end.message}
    members = "".join(f"{size} x " for size in run.initial.batch_shape)
    what = f"a Gaussian of dimension {run.dim}" if gaussian else f"{run.n:,} tokens of dimension {run.dim}"
    rows |= {
        "state": members + what,
        "space": run.space.name,
        "law": "a function" if run.law is None else repr(run.law),
    }
    rows |= {"saved": f"{len(run.times):,} times"}
    if run.stats.merges:
        rows["merges"] = run.stats.merges
    rows["took"] = f"{run.stats.evaluations:,} evaluations, {run.stats.seconds:.3g} s ({run.stats.method})"
    return html_card(type(run).__name__, rows, drawing(run))


def drawing(run: Trajectory) -> str:
    """Pairwise distance of tokens, or the trace of a covariance, at the saved times of the first member."""
    if len(run.times) < 2:
        return ""
    step = max(1, run.points.numel() // MOST)
    points = (
        run.points[::step].detach().reshape(len(run.times[::step]), -1, *run.points.shape[-2:])[:, 0].cpu().double()
    )
    if isinstance(run.initial, Gaussian):
        sizes = points[:, 1:].square().sum((-2, -1)).clamp_min(1e-300)
        if run.outcome.name == "blow_up":  # the last state is the blow-up itself
            sizes = sizes[:-1]
        return curve(sizes.log10(), "log10 of the trace of the covariance")
    from attractor.observables import pairwise_distance

    distances = pairwise_distance(Tokens.unchecked(points, None, None))
    return curve(torch.as_tensor(distances), "mean squared distance of two tokens") if points.shape[1] > 1 else ""


LOOKED_AT = ("clusters", "token_norm", "pairwise_distance", "cosine", "effective_rank")  # none of them costs n^2
LISTED = 64  # original tokens of a merge that are listed one by one
MERGES = 2000  # merges that are listed one by one; of more, the first and the last are
ENDS = 100  # of either


def summarise(run: Trajectory, observe: Sequence[str] = ()) -> dict[str, Any]:
    """How a run ended, what it cost, what happened on the way, and observables at its start and end.

    ``observe`` names further observables; those are given at every saved time too, under ``values``. Of very many merges
    only the first and the last are listed, and ``events_left_out`` says how many are not. Ensemble axes become nested
    lists. A number that JSON cannot hold (an infinite norm) is None.
    """
    events = listed(run.events)
    ensemble, gaussian = list(run.initial.batch_shape), isinstance(run.initial, Gaussian)
    report: dict[str, Any] = {
        "outcome": asdict(run.outcome),
        "sizes": {"tokens": None if gaussian else run.n, "dim": run.dim, "ensemble": ensemble, "saved": len(run.times)},
        "law": None if run.law is None else repr(run.law),
        "space": run.space.name,
        "stats": asdict(run.stats),
        "events": [described(event) for event in events],
        "events_left_out": len(run.events) - len(events),
        "times": run.times,
        "observables": measured(run, observe),
    }
    if ensemble:
        report["outcomes"] = dict(Counter(outcome.name for outcome in run.outcomes).most_common())
        report["members"] = [asdict(outcome) for outcome in run.outcomes]
    return to_json(report)


def measured(run: Trajectory, observe: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Observables of tokens at the start and the end, and those of ``observe`` at every saved time."""
    if not isinstance(run.initial, Tokens) or not isinstance(run.final, Tokens):
        return {}
    first = float(run.times[0]) if len(run.times) else 0.0
    moments = {"start": (entered(run, run.initial), first), "end": (run.final, run.outcome.time)}
    report: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys((*LOOKED_AT, *observe)):
        function = observables.find_observable(name)
        report[name] = {
            when: function(tokens, law=_law(run, time), space=run.space) if finite(tokens) else None
            for when, (tokens, time) in moments.items()
        }
        if name in observe and len(run.times):
            report[name]["values"] = run.observe(function)
    return report


def entered(run: Trajectory, tokens: Tokens) -> Tokens:
    """The tokens as the flow began with them: positions of the input added, put on the space."""
    tokens = tokens if run.law is None else run.law.enter(tokens)
    return tokens.with_points(run.space.enter(tokens.points))


def _law(run: Trajectory, time: float) -> Law | None:
    return None if run.law is None else law_at(run.law, time)


def finite(tokens: Tokens) -> bool:
    return bool(torch.isfinite(tokens.points).all())


def listed(events: Sequence[EventRecord]) -> Sequence[EventRecord]:
    """All events, but of very many merges the first and the last; ``stats.merges`` counts all."""
    log = EventLog.from_events(events)
    if log.merges <= MERGES:
        return log
    return log.thin(lambda merges: np.concatenate([merges[:ENDS], merges[-ENDS:]]))


def described(event: EventRecord) -> dict[str, Any]:
    """An event; the members of a large merge are not listed, ``size`` says how many they are."""
    words: dict[str, Any] = {"kind": event.kind, "time": event.time, "member": event.member}
    if event.kind == "merge":
        members = list(event.members) if event.size <= LISTED else None
        words |= {"size": event.size, "mass": event.mass, "members": members}
    return words


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
    surface = space.surface(run.dim)
    if curves is None:
        curves = SPHERE_CURVES if space.is_curved else FLAT_CURVES
        curves = [
            name for name in curves if run.n <= LARGE or name in ("consensus_gap", "token_norm", "pairwise_distance")
        ]
    words = tuple(getattr(run, "words", ()))  # of a trace of a model
    # of a million merges some show where all are; they come in the order of time, and the last ones are the largest
    log = EventLog.from_events(single.events)
    events = log.thin(lambda merges: merges[:: -(-len(merges) // MARKED) or 1])
    return Scene(
        times=single.times.numpy(),
        points=single.points.detach().cpu().double().numpy(),
        masses=single.masses.detach().cpu().double().numpy(),
        surface=None if surface is None else surface.detach().cpu().double().numpy(),
        curves={name.replace("_", " "): _curve(single, name) for name in curves},
        title=title
        or f"{run.n} tokens under {_drawing_law(run)}" + (f" on the {space.name}" if space.is_curved else ""),
        caption=_caption(single, log.merges),
        events=[(event.time, _words(event)) for event in events],
        outcome="" if run.stats.method == "blocks" else outcome.name,  # a model always comes to its last block
        labels=words if len(words) == run.n else (),
        outcome_time=outcome.time,
    )


def _words(event: EventRecord) -> str:
    return f"{event.size} tokens become one" if event.kind == "merge" else event.kind


def _curve(run: Trajectory, name: str) -> np.ndarray:
    values = run.observe(name).detach().cpu().double()
    return values.reshape(len(run.times), -1).mean(-1).numpy()


def _drawing_law(run: Trajectory) -> str:
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
