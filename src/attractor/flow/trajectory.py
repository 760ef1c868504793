"""What a flow returns: times, states, events, statistics, and an outcome that explains itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attractor.attention import Law
from attractor.errors import InputError, UnsupportedError
from attractor.flow.forest import Log
from attractor.flow.outcome import Event, Outcome, Statistics
from attractor.observables import named
from attractor.records import moved
from attractor.spaces import Space
from attractor.states import Gaussian, Tokens

PAIRS = 1 << 22  # pairs of tokens an observable may hold at once


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Tokens along depth.

    ``times`` (S,), ``points`` (S, ..., n, d) with the ensemble axes of the start between (for a Gaussian the rows are its mean
    and the columns of its covariance factor); ``outcomes`` has one entry for each
    member of the ensemble, ``ends`` its end time. A member that ended before the others is held at its last state.
    """

    times: Tensor
    points: Tensor
    final: Tokens | Gaussian
    outcomes: tuple[Outcome, ...]
    stats: Statistics
    law: Law | None
    space: Space
    initial: Tokens | Gaussian
    events: Sequence[Event] = ()
    definition: dict[str, Any] = field(default_factory=dict, repr=False)
    integration: Any = field(default=None, repr=False)

    def to(self, device: str | torch.device) -> Trajectory:
        """The same with its tensors on a device; what can go on from there stays behind."""
        device = torch.device(device)
        if self.points.device == device:
            return self
        names = ("points", "final", "law", "space", "initial")
        return replace(self, integration=None, **{name: moved(getattr(self, name), device) for name in names})

    @property
    def outcome(self) -> Outcome:
        """How the run ended; for an ensemble, what its members have in common."""
        if len(self.outcomes) == 1:
            return self.outcomes[0]
        last = max(outcome.time for outcome in self.outcomes)
        names = sorted({outcome.name for outcome in self.outcomes})
        counts = ", ".join(f"{sum(outcome.name == name for outcome in self.outcomes)} {name}" for name in names)
        return Outcome(names[0] if len(names) == 1 else "mixed", last, f"{len(self.outcomes)} members: {counts}")

    @property
    def tokens(self) -> Tokens:
        """The tokens at the start; a run of a Gaussian has none."""
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
        """One member of an ensemble as a run of its own; ``index`` counts through the flattened ensemble axes."""
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
        start = Tokens.trusted(initial.points.reshape(-1, *initial.points.shape[-2:])[index], *rows)
        final = Tokens.trusted(self.final.points.reshape(-1, self.n, self.dim)[index], *rows)  # type: ignore[union-attr]
        events = Log.from_events(self.events).of(index)
        return Trajectory(self.times, flat, final, (self.outcomes[index],), self.stats, law, self.space, start, events)

    def state(self, index: int) -> Tokens | Gaussian:
        """The state at one saved time."""
        return self.initial.moved(self.points[index])

    def _slice(self, rows: slice) -> Tokens:
        """Saved states as one ensemble, time first."""
        points, masses, positions = self.points[rows], self.tokens.masses, self.tokens.positions
        if masses is not None and masses.ndim > 1:
            masses = masses.expand(points.shape[:-1])
        if positions is not None and positions.ndim > 1:
            positions = positions.expand(points.shape[:-1])
        return Tokens.trusted(points, masses, positions)

    def observe(self, observable: str | Callable[..., Tensor], **options: Any) -> Tensor:
        """An observable along time, (S, ...): a function of ``attractor.observables``, its name, or your own f(tokens, law, space)."""
        function = named(observable) if isinstance(observable, str) else observable
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
        """BibTeX of what this run used."""
        from attractor.flow.citing import bibtex

        return bibtex(self)

    def save(self, path: str | Path) -> None:
        """Write the run to a Zarr store that ``attractor.load`` reads."""
        from attractor.flow.stored import write

        write(self, path)

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Draw the run: .html (interactive), .png/.pdf/.svg, .gif/.mp4; without a path the figure itself."""
        from attractor.flow.drawing import plot

        return plot(self, path, **options)

    def summary(self) -> dict[str, Any]:
        """The run in numbers, ready for JSON."""
        from attractor.flow.summary import summary

        return summary(self)

    def _repr_html_(self) -> str:
        """A card for notebooks: the outcome, and how far apart tokens were (or how large the covariance was) along time."""
        from attractor.flow.carding import trajectory_card

        return trajectory_card(self)

    def __repr__(self) -> str:
        shape = "x".join(str(size) for size in self.points.shape)
        return f"Trajectory({shape}, {self.outcome.name} at t = {self.outcome.time:.6g}, {self.stats.evaluations} evaluations)"


def law_at(law: Law, time: float) -> Law:
    """The law in force at one time."""
    at = getattr(law, "at", None)
    return at(time) if at is not None else law
