"""Trajectory: times, states, events, summary, figure and citations of a run."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.files import to_json
from attractor.html_repr import curve, html_card
from attractor.laws import Attention, Law, Rescaled
from attractor.observables import find_observable, pairwise_distance
from attractor.registry import check_name
from attractor.serialization import citations, move_tensors
from attractor.solvers.log_time import format_log_time
from attractor.solvers.merging import EventLog
from attractor.solvers.noise import Noise, Redrawn
from attractor.solvers.outcome import EventRecord, Outcome, Statistics
from attractor.solvers.steppers.stepper import method_citations
from attractor.solvers.store import Definition, RunRecord, write_log_run, write_run
from attractor.spaces import Space
from attractor.states import Density, Equiangular, Gaussian, Tokens, grid_values

if TYPE_CHECKING:
    from attractor.plotting import Scene

PAIRS, GPU_PAIRS = 1 << 22, 1 << 26  # pairs of tokens in one call of an observable
MAX_DRAWN = 1 << 24  # numbers in a run above which a curve shows only some of the saved times
SUMMARISED = ("clusters", "token_norm", "pairwise_distance", "cosine", "effective_rank")  # none of them costs n^2
LISTED = 64  # tokens of a merge that are listed in a summary
MERGES = 2000  # merges that are listed in a summary; of more, the first and the last ENDS are
ENDS = 100
OF_POINTS = (  # observables that mean nothing for the grid of a density
    *("clusters", "cluster_sizes", "cluster_entropy", "kernel_clusters", "consensus_gap", "consensus_metric"),
    *("cosine_min", "diameter", "hemisphere_margin", "leaders", "self_weight", "pair_fraction", "attention_entropy"),
)
SPHERE_CURVES = ("clusters", "consensus_gap", "hemisphere_margin")
FLAT_CURVES = ("token_norm", "pairwise_distance", "clusters")
CHEAP_CURVES = ("consensus_gap", "token_norm", "pairwise_distance")
MARKED = 4000  # events marked in a figure
CLOCKS = {  # label of the axis, and symbol
    "time": ("time", "t"),
    "log_time": ("log of time", "log t"),
    "exponent": ("log of time / beta", "log t / β"),
    "arc_length": ("arc length", "s"),
    "sigma": ("clock of the fastest pair", "σ"),
}
MATRIX = 1024  # tokens up to which attention is drawn as a matrix
LARGE = 4096  # tokens above which only cheap curves are drawn
SHARED_CLOCKS = ("time", "log_time", "exponent")  # clocks that all members of an ensemble have in common
LEVEL, MOST_MEMBERS, BAND_NUMBERS = 0.9, 64, 2_000_000  # of bands over members: share, members and coordinates


@dataclass(frozen=True)
class Band:
    """An observable over the members of an ensemble, along time.

    Attributes
    ----------
    times : (S,).
    mean, error : mean over members and its standard error, (S,).
    low, high : the quantiles between which the part ``level`` of the members lies, (S,).
    """

    times: Tensor
    mean: Tensor
    error: Tensor
    low: Tensor
    high: Tensor
    level: float

    def plot(self, path: str | Path | None = None, *, name: str = "", title: str = "", caption: str = "") -> Any:
        """Draw the mean with the band around it; return the figure, or the path it was written to."""
        from attractor.plotting import Curve, Panel, draw_panels

        times, mean, low, high = (part.tolist() for part in (self.times, self.mean, self.low, self.high))
        curve = Curve(times, mean, f"mean, and {self.level:.0%} of the members", low=low, high=high)
        return draw_panels([Panel((curve,), y=name)], title or name, caption, path)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A run: states along time, how it ended, what it cost and what happened.

    Attributes
    ----------
    times : (S,), saved times.
    points : (S, ..., n, d), saved states, with the ensemble axes of the initial state. Of a Gaussian: its mean, then the columns
        of its covariance factor, (S, ..., 1 + d, d). Of a density: real and imaginary parts of its Fourier coefficients,
        (S, ..., order + 1, 2). A member that ended before the others keeps its last state.
    final : last state of every member.
    outcomes : one for each member of the flattened ensemble.
    stats : evaluations, steps, seconds, method, engine.
    law, space, initial : what was integrated; ``law`` is None for a stored Python function.
    events : merges and events of the user, in the order of time.
    definition, record : what ``save`` writes; None for a trajectory that does not come from ``flow``.
    observed : values (S, ...) of the observables that were evaluated during the run, by name; the run then kept no points.
    given_log_times, given_sigma : logarithms of ``times``, and the clock sigma (S, ...), of a run in logarithmic time; ``times`` are
        infinite beyond floating point.
    """

    times: Tensor
    points: Tensor
    final: Tokens | Gaussian | Density | Equiangular
    outcomes: tuple[Outcome, ...]
    stats: Statistics
    law: Law | None
    space: Space
    initial: Tokens | Gaussian | Density | Equiangular
    events: Sequence[EventRecord] = ()
    definition: Definition | None = field(default=None, repr=False)
    record: RunRecord | None = field(default=None, repr=False)
    observed: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    given_log_times: Tensor | None = field(default=None, repr=False)
    given_sigma: Tensor | None = field(default=None, repr=False)

    def to(self, device: str | torch.device) -> Trajectory:
        """Return the trajectory with its tensors on a device; it can no longer be saved."""
        device = torch.device(device)
        if self.points.device == device:
            return self
        names = ("points", "final", "law", "space", "initial", "observed")
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
        """The initial tokens; raises for a run of another state."""
        if isinstance(self.initial, Gaussian):
            raise UnsupportedError("this run moved a Gaussian, which has no tokens; it has means and covariances")
        if isinstance(self.initial, Density):
            raise UnsupportedError("this run moved a density, which has no tokens; it has densities and modes")
        if isinstance(self.initial, Equiangular):
            raise UnsupportedError(
                "this run moved equiangular tokens in two coordinates; it has cosines and radii, and run.state(k).tokens()"
            )
        return self.initial

    @property
    def noise(self) -> Noise | Redrawn | None:
        """The noise of the run."""
        return None if self.definition is None else self.definition.noise

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
                f"this run moved {_kind_of(self.initial)}; means and covariances along time belong to runs of a Gaussian"
            )
        return self.points

    @property
    def modes(self) -> Tensor:
        """Fourier coefficients of a density along time, (S, ..., order + 1), complex."""
        if not isinstance(self.initial, Density):
            raise UnsupportedError(
                f"this run moved {_kind_of(self.initial)}; densities and modes along time belong to runs of a Density"
            )
        return torch.view_as_complex(self.points.contiguous())

    @property
    def densities(self) -> Tensor:
        """Values of a density along time on its grid of angles, (S, ..., N)."""
        modes = self.modes
        assert isinstance(self.initial, Density)
        return torch.from_numpy(grid_values(modes.numpy(), self.initial.size))

    @property
    def cosines(self) -> Tensor:
        """Cosines of two equiangular tokens along time, (S, ...)."""
        return self._equiangular.with_points(self.points).rho

    @property
    def radii(self) -> Tensor:
        """Lengths of equiangular tokens along time, (S, ...)."""
        return self._equiangular.with_points(self.points).radius

    @property
    def _equiangular(self) -> Equiangular:
        if not isinstance(self.initial, Equiangular):
            raise UnsupportedError(
                f"this run moved {_kind_of(self.initial)}; cosines and radii along time belong to runs of Equiangular tokens"
            )
        return self.initial

    @property
    def log_times(self) -> Tensor:
        """Logarithms of the saved times, (S,): finite also where the times are beyond floating point; minus infinity at zero."""
        return self.times.log() if self.given_log_times is None else self.given_log_times

    def clock(self, name: str = "time") -> Tensor:
        r"""The saved times in another clock, (S,) or (S, ...).

        Parameters
        ----------
        name : "time" t; "log_time" log t; "exponent" :math:`l = \log t/\beta`, in which the limit of low temperature is piecewise constant;
            "arc_length" :math:`\int(\sum_i m_i|\dot x_i|^2)^{1/2}dt`, summed over the distances of saved states;
            "sigma" with :math:`dt = e^{-g}d\sigma/c`, :math:`g = \log\sum_{i\ne j}w_{ij}`, in which the fastest pair of clusters moves at a
            speed of order one, of runs in logarithmic time.
        """
        check_name(name, CLOCKS, "clock")
        if name == "time":
            return self.times
        if name == "log_time":
            return self.log_times
        if name == "exponent":
            beta = getattr(self.law, "beta", None)
            if beta is None or not beta > 0:
                raise UnsupportedError(
                    "the clock log t / beta is that of isotropic attention with beta > 0, Q'K = beta I: take another clock"
                )
            return self.log_times / (float(beta) * self.space.size**2)
        if name == "sigma":
            if self.given_sigma is None:
                raise UnsupportedError(
                    "the clock sigma is that of runs in logarithmic time: give until=exp(...) or method='clusters', or take another clock"
                )
            return self.given_sigma
        self._check_points("arc length is measured along them")
        moved = self.space.distance(self.points[1:], self.points[:-1])
        steps = (self.masses.to(moved) * moved.square()).sum(-1).sqrt()
        return torch.cat((steps.new_zeros((1, *steps.shape[1:])), steps.cumsum(0)))[: len(self.times)]

    @property
    def n(self) -> int:
        return self.initial.n if isinstance(self.initial, Equiangular) else self.points.shape[-2]

    @property
    def dim(self) -> int:
        return self.points.shape[-1]

    def member(self, index: int) -> Trajectory:
        """Return one member of an ensemble as a trajectory; ``index`` refers to the flattened ensemble."""
        if not self.initial.batch_shape:
            return self
        members = self.initial.batch_shape.numel()
        flat = self.points.reshape(len(self.points), members, *self.points.shape[-2:])[:, index]
        if isinstance(self.initial, Density) and isinstance(self.final, Density):
            starts, ends = (
                replace(state, values=state.values.reshape(members, -1)[index]) for state in (self.initial, self.final)
            )
            return Trajectory(self.times, flat, ends, (self.outcomes[index],), self.stats, self.law, self.space, starts)
        law = self.law if self.law is None else self.law.member(torch.tensor([index]))
        if isinstance(self.initial, Equiangular):
            start, end = (
                replace(state, rho=state.rho.reshape(-1)[index], radius=state.radius.reshape(-1)[index])
                for state in (self.initial, self.initial.with_points(self.final.rows()))  # type: ignore[union-attr]
            )
            return Trajectory(self.times, flat, end, (self.outcomes[index],), self.stats, law, self.space, start)
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
        axes = len(self.initial.batch_shape)
        observed = {
            name: found.reshape(len(found), members, *found.shape[1 + axes :])[:, index]
            for name, found in self.observed.items()
        }
        return Trajectory(
            self.times,
            flat,
            final,
            (self.outcomes[index],),
            self.stats,
            law,
            self.space,
            start,
            events,
            observed=observed,
            given_log_times=self.given_log_times,
            given_sigma=None
            if self.given_sigma is None
            else self.given_sigma.reshape(len(self.times), members)[:, index],
        )

    def rescaled(self) -> Trajectory:
        r"""Return the run with every token replaced by :math:`z_i(t) = e^{-tV}x_i(t)`, V the value of the law [geshkovski2023emergence].

        For one head in flat space. The velocity of z is V times a weighted mean of differences of tokens, so that limits of z exist where
        tokens diverge. Components of x that e^(-tV) enlarges carry their absolute error of integration with them: choose ``atol``
        accordingly.
        """
        if self.law is None or not isinstance(self.final, Tokens) or self.space.is_curved:
            raise UnsupportedError(
                "tokens are rescaled by e^(-tV) for runs of Tokens(...) under attention in flat space"
            )
        self._check_points("rescaling acts on them")
        if self.given_log_times is not None:
            raise UnsupportedError("times of this run are beyond floating point: its tokens cannot be rescaled")
        law = Rescaled(self.law)  # type: ignore[arg-type]
        points = [law.rescale(self.points[row], float(time)) for row, time in enumerate(self.times)]
        final = self.final.points.clone()
        flat = final.reshape(-1, *final.shape[-2:])
        for row, outcome in enumerate(self.outcomes):
            flat[row] = law.rescale(flat[row], outcome.time)
        # a member that ended before the others keeps its last state
        ends = torch.tensor([outcome.time for outcome in self.outcomes], dtype=torch.float64)
        stacked = torch.stack(points).reshape(len(points), -1, *final.shape[-2:]) if points else self.points
        for row, time in enumerate(self.times):
            for member in torch.nonzero(ends < time).flatten().tolist():
                stacked[row, member] = flat[member]
        return replace(
            self,
            points=stacked.reshape(self.points.shape),
            final=self.final.with_points(flat.reshape(final.shape)),
            law=law,
            definition=None,
            record=None,
            observed={},
        )

    def state(self, index: int) -> Tokens | Gaussian | Density | Equiangular:
        """The state at one saved time."""
        return self.initial.with_points(self.points[index])

    def _slice(self, rows: slice) -> Tokens:
        """Saved states as one ensemble, time first; a density as weighted tokens on its grid."""
        if isinstance(self.initial, Density):
            return self.initial.with_points(self.points[rows]).tokens()
        points, masses, positions = self.points[rows], self.tokens.masses, self.tokens.positions
        if masses is not None and masses.ndim > 1:
            masses = masses.expand(points.shape[:-1])
        if positions is not None and positions.ndim > 1:
            positions = positions.expand(points.shape[:-1])
        return Tokens.unchecked(points, masses, positions)

    def band(self, observable: str | Callable[..., Tensor], level: float = 0.9, **options: Any) -> Band:
        """Summarize an observable over the members of an ensemble, along time.

        Parameters
        ----------
        observable, options : see ``observe``; one number for each member and time.
        level : part of the members that lie between ``low`` and ``high``, between 0 and 1.

        Returns
        -------
        Band
        """
        if not 0.0 < level < 1.0:
            raise InputError(f"the level of a band lies between 0 and 1, got {level}")
        values = torch.as_tensor(self.observe(observable, **options)).double()
        ensemble = tuple(self.initial.batch_shape)
        if tuple(values.shape[1:]) != ensemble or math.prod(ensemble) < 2:
            raise InputError(
                f"a band is over an ensemble of two members or more, with one number each; got values of shape {tuple(values.shape[1:])} "
                f"and an ensemble of shape {ensemble}"
            )
        values = values.flatten(1)
        tail = torch.tensor([(1.0 - level) / 2.0, (1.0 + level) / 2.0], dtype=torch.float64)
        low, high = torch.quantile(values, tail.to(values.device), dim=1)
        error = values.std(1) / values.shape[1] ** 0.5
        return Band(self.times, values.mean(1), error, low, high, level)

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
        if isinstance(observable, str) and observable in self.observed and not options:
            return self.observed[observable]
        function = find_observable(observable) if isinstance(observable, str) else observable
        if len(self.times) == 0:
            raise InputError("the run has no saved states to observe; give save times")
        self._check_points("further observables need them")
        if isinstance(self.initial, Equiangular):
            raise UnsupportedError(
                "observables are those of tokens: equiangular tokens have run.cosines and run.radii, and run.state(k).tokens()"
            )
        if isinstance(self.initial, Density) and getattr(function, "__name__", "") in OF_POINTS:
            raise UnsupportedError(
                f"{function.__name__} counts or compares single tokens, and a density has none; its clusters are Density.peaks()"
            )
        if self.law is not None and not self.law.autonomous:
            states = [
                function(self.state(k), law=self._law_at(float(t)), space=self.space, **options)
                for k, t in enumerate(self.times)
            ]
            return torch.stack([torch.as_tensor(state) for state in states])
        n = self.initial.size if isinstance(self.initial, Density) else self.n
        pairs = GPU_PAIRS if self.points.device.type == "cuda" else PAIRS
        step = max(1, pairs // (n * n * max(1, self.initial.batch_shape.numel())))
        parts = [
            torch.as_tensor(function(self._slice(slice(k, k + step)), law=self.law, space=self.space, **options))
            for k in range(0, len(self.times), step)
        ]
        if any(part.ndim == 0 for part in parts):
            raise InputError(
                "an observable gives one value (or array) for each state, and this one gave a single number for several"
            )
        return torch.cat(parts)

    def _check_points(self, why: str) -> None:
        if len(self.points) < len(self.times):
            kept = ", ".join(self.observed) or "none"
            raise UnsupportedError(
                f"this run kept observables ({kept}) and no points, and {why}: give them to flow(..., observe=[...]), or leave out "
                "observe to keep the points"
            )

    def cite(self) -> str:
        """Return BibTeX entries of the toolkit, the law, the space and the method of this run."""
        keys = ["attractor", *citations(self.law), *citations(self.space)]
        keys += ["abella2024asymptotic"] if self.space.is_curved else []
        keys += ["castin2025unified"] if isinstance(self.initial, Gaussian) else []
        keys += citations(self.initial)
        keys += [] if self.noise is None else citations(self.noise)
        keys += method_citations(self.stats.method)
        known = read_bibliography()
        return "\n\n".join(known[key] for key in dict.fromkeys(keys)) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the run to a Zarr store, for ``attractor.load``."""
        self._check_points("a store holds points")
        if self.given_log_times is not None and self.definition is not None:
            write_log_run(self, path)
            return
        if self.record is None or self.definition is None:
            raise UnsupportedError("this trajectory did not come from a flow, so there is no run to store")
        write_run(self.record, self.definition, path)

    def plot(
        self,
        path: str | Path | None = None,
        *,
        member: int = 0,
        curves: Sequence[str] | None = None,
        title: str | None = None,
        clock: str = "time",
        **options: Any,
    ) -> Any:
        """Draw one member of the run.

        Parameters
        ----------
        path : file to write: .html (interactive), .png, .pdf, .svg, .gif, .webp or .mp4; None returns the figure.
        member : index in the flattened ensemble.
        curves : names of observables to show beside the tokens; None chooses by the space.
        clock : the time axis, see :meth:`clock`; a run in logarithmic time has "log_time" instead of "time".
        title : of the figure; by default the number of tokens and the law with its parameters, "" for none.
        options : see ``attractor.plotting.draw``.
        """
        from attractor.plotting import draw, draw_circle  # not needed to compute a flow

        if isinstance(self.initial, Equiangular):
            return self._plot_equiangular(path, member, title, clock)
        if isinstance(self.initial, Density):
            run, title = self.member(member), title or f"A density under {_describe_law(self.law)}"
            values, modes = run.densities.numpy(), run.modes.abs().numpy()
            return draw_circle(
                run.times.numpy(), values, modes, path, title=title, caption=run.outcome.sentence, **options
            )
        return draw(self.scene(member, curves, title, clock), path, **options)

    def plot_attention(
        self,
        path: str | Path | None = None,
        *,
        times: Sequence[float] | None = None,
        member: int = 0,
        head: int = 0,
        title: str | None = None,
    ) -> Any:
        """Draw the attention weights of one head as matrices, row i for the query of token i.

        Parameters
        ----------
        path : .png, .pdf or .svg file to write; None returns the figure.
        times : for which the nearest saved times are taken; by default four that are evenly spaced among the saved ones.
        member, head : index in the flattened ensemble, and of the head.
        title : of the figure; by default the law with its parameters, "" for none.
        """
        from attractor.plotting import Panel, draw_panels

        run = self.member(member)
        run._check_points("weights are those of tokens")
        if not isinstance(run.initial, Tokens) or run.n > MATRIX:
            raise UnsupportedError(
                f"attention is drawn for at most {MATRIX} tokens, not for {run.n:,} of a {type(run.initial).__name__}"
            )
        saved = run.times.double()
        if times is None:
            rows = torch.linspace(0, len(saved) - 1, min(4, len(saved))).round().long()
        else:
            wanted = torch.as_tensor(times, dtype=torch.float64)
            if not len(wanted) or float(wanted.min()) < float(saved[0]) or float(wanted.max()) > float(saved[-1]):
                raise InputError(
                    f"times must lie between {float(saved[0]):g} and {float(saved[-1]):g}, the times of the run"
                )
            rows = (saved[:, None] - wanted).abs().argmin(0)
        panels, heads = [], 1
        for row in rows.tolist():
            law = run._law_at(float(saved[row]))
            if isinstance(law, Rescaled):
                points, law = law.rescale(run.points[row], -float(saved[row])), law.law
            else:
                points = run.points[row]
            if not hasattr(law, "weights"):
                raise UnsupportedError(f"a {type(law).__name__} has no attention weights to draw")
            weights = law.weights(run.initial.with_points(points))  # type: ignore[union-attr]
            weights = weights.reshape(-1, run.n, run.n)
            heads = len(weights)
            if not 0 <= head < heads:
                raise InputError(f"the law has {heads} heads, numbered from 0; there is no head {head}")
            rank = int(torch.linalg.matrix_rank(weights[head].double(), rtol=1e-3))
            panels.append(
                Panel(
                    (),
                    x="key",
                    y="query",
                    title=f"t = {float(saved[row]):.4g}, rank {rank}",
                    matrix=weights[head].tolist(),
                )
            )
        title = f"Attention weights of {run.n} tokens under {_describe_law(run.law)}" if title is None else title
        which = f" of head {head}" if heads > 1 else ""
        caption = f"Weights{which}: row i shows how token i attends. Rank: singular values above 0.001 of the largest."
        return draw_panels(panels, title, caption, path)

    def _plot_equiangular(self, path: Any, member: int, title: str | None, clock: str) -> Any:
        from attractor.plotting import Curve, Panel, draw_panels

        label, _ = CLOCKS[clock]
        times = self.clock(clock).reshape(len(self.times), -1)[:, 0].tolist()
        panels = []
        curves = [("cosine of two tokens", self.cosines)]
        curves += [] if self.space.is_curved else [("length of a token", self.radii)]
        for name, values in curves:
            column = values.reshape(len(values), -1)[:, member].tolist()
            panels.append(Panel((Curve(times, column),), x=label, title=name))
        title = title or f"{self.n:,} equiangular tokens under {_describe_law(self.law)}"
        return draw_panels(panels, title, self.outcomes[member].sentence, path)

    def scene(
        self, member: int = 0, curves: Sequence[str] | None = None, title: str | None = None, clock: str = "time"
    ) -> Scene:
        """Return what a figure of one member shows; see ``plot``."""
        from attractor.plotting import Scene

        if isinstance(self.initial, Gaussian):
            raise UnsupportedError("a run of a Gaussian has no tokens to draw; plot its means and covariances instead")
        if isinstance(self.initial, Equiangular):
            raise UnsupportedError("a run of equiangular tokens has no scene; run.plot draws their cosine and radius")
        if isinstance(self.initial, Density):
            raise UnsupportedError("a run of a density has no tokens to draw; run.plot draws the density")
        if len(self.times) == 0:
            raise InputError("the run has no saved states to draw; give save times")
        self._check_points("a figure shows them")
        if not 0 <= member < len(self.outcomes):
            raise InputError(f"the run has {len(self.outcomes)} members, numbered from 0; there is no member {member}")
        run, space, surface = self.member(member), self.space, self.space.surface(self.dim)
        if curves is None:
            curves = SPHERE_CURVES if space.is_curved else FLAT_CURVES
            curves = [name for name in curves if self.n <= LARGE or name in CHEAP_CURVES]
        words = tuple(getattr(self, "words", ()))  # of a trace of a model
        # every k-th of very many merges; they are in the order of time, and the last are the largest
        log = EventLog.from_events(run.events)
        events = log.thin(lambda merges: merges[:: -(-len(merges) // MARKED) or 1])
        place = f" on the {space.name}" if space.is_curved else ""
        clock = "log_time" if clock == "time" and run.given_log_times is not None else clock
        axis = run.clock(clock).detach().cpu().double().numpy()
        kept, place_of = np.isfinite(axis), _clock_map(run, axis)
        label, symbol = CLOCKS[clock]
        bands, words_of_bands = self._curve_bands(curves) if clock in SHARED_CLOCKS else ({}, "")
        return Scene(
            times=axis[kept],
            points=run.points.detach().cpu().double().numpy()[kept],
            masses=run.masses.detach().cpu().double().numpy(),
            surface=None if surface is None else surface.detach().cpu().double().numpy(),
            curves={name.replace("_", " "): _mean_curve(run, name)[kept] for name in curves},
            title=f"{self.n} tokens under {_describe_law(self.law)}{place}" if title is None else title,
            caption=_caption(run, log.merges) + words_of_bands,
            bands={name.replace("_", " "): ends[:, kept] for name, ends in bands.items()},
            events=[
                (
                    place_of(log_or_time(run, event)),
                    f"{event.size} tokens become one" if event.kind == "merge" else event.kind,
                )
                for event in events
            ],
            outcome="" if self.stats.method == "blocks" else run.outcome.name,  # a model always reaches its last block
            labels=words if len(words) == self.n else (),
            outcome_time=place_of(log_or_time(run, run.outcome)),
            clock=label,
            symbol=symbol,
        )

    def _curve_bands(self, curves: Sequence[str]) -> tuple[dict[str, np.ndarray], str]:
        """The part of the members of an ensemble between which observables lie, (2, S) by name, and what the caption says of it."""
        members = len(self.outcomes)
        if members < 2 or self.n > LARGE:
            return {}, ""
        most = min(members, MOST_MEMBERS, BAND_NUMBERS // max(1, self.points.numel() // members))
        if most < 2:
            return {}, ""
        chosen = np.linspace(0, members - 1, most).round().astype(int).tolist()
        found = {}
        for name in curves:
            values = np.stack([_mean_curve(self.member(index), name) for index in chosen])
            found[name] = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        of = f"{members}" if len(chosen) == members else f"{len(chosen)} of {members}"
        return found, f" Curves are those of one member; bands hold the middle {LEVEL:.0%} of {of}."

    def summary(self, observe: Sequence[str] = ()) -> dict[str, Any]:
        """Return outcome, costs, events and observables of the run, for JSON.

        Observables are evaluated at the start and at the end; those named in ``observe`` also at every saved time, under
        ``values``. Of very many merges only the first and the last are listed, and ``events_left_out`` counts the others.
        Ensemble axes become nested lists; numbers that are not finite become None.
        """
        log = EventLog.from_events(self.events)
        few = log.merges <= MERGES
        events = log if few else log.thin(lambda merges: np.concatenate([merges[:ENDS], merges[-ENDS:]]))
        ensemble, tokens = (
            list(self.initial.batch_shape),
            self.n if isinstance(self.initial, (Tokens, Equiangular)) else None,
        )
        grid = {"angles": self.initial.size} if isinstance(self.initial, Density) else {}
        report: dict[str, Any] = {
            "outcome": asdict(self.outcome),
            "sizes": {**grid, "tokens": tokens, "dim": self.dim, "ensemble": ensemble, "saved": len(self.times)},
            "law": None if self.law is None else repr(self.law),
            "space": self.space.name,
            "stats": asdict(self.stats),
            "events": [_event_row(event) for event in events],
            "events_left_out": len(self.events) - len(events),
            "times": self.times,
            **({} if self.given_log_times is None else {"log_times": self.given_log_times}),
            "observables": self._evaluate(observe),
        }
        if ensemble:
            report["outcomes"] = dict(Counter(outcome.name for outcome in self.outcomes).most_common())
            report["members"] = [asdict(outcome) for outcome in self.outcomes]
        return to_json(report)

    def _evaluate(self, observe: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Observables of tokens at the start and the end, and those of ``observe`` at every saved time."""
        if not isinstance(self.initial, Tokens) or not isinstance(self.final, Tokens):
            return {}
        # the initial state of the flow: positions added by the law, and put on the space
        start = self.initial if self.law is None else self.law.enter(self.initial)
        start = start.with_points(self.space.enter(start.points))
        first = float(self.times[0]) if len(self.times) else 0.0
        states = {"start": (start, first), "end": (self.final, self.outcome.time)}
        report: dict[str, dict[str, Any]] = {}
        for name in dict.fromkeys((*SUMMARISED, *observe)):
            function = find_observable(name)
            report[name] = {
                when: function(tokens, law=self._law_at(time), space=self.space)
                if bool(torch.isfinite(tokens.points).all())
                else None
                for when, (tokens, time) in states.items()
            }
            if name in observe and len(self.times):
                report[name]["values"] = self.observe(name)
        return report

    def _law_at(self, time: float) -> Law | None:
        at = getattr(self.law, "at", None)
        return at(time) if at is not None else self.law

    def draw_curve(self) -> str:
        """Return an SVG of the pairwise distance of tokens, the trace of the covariance or the first coefficient of a density."""
        if len(self.points) < 2:
            return ""
        step = max(1, self.points.numel() // MAX_DRAWN)
        rows = self.points[::step].detach()
        points = rows.reshape(len(rows), -1, *self.points.shape[-2:])[:, 0].cpu().double()
        if isinstance(self.initial, Density):
            return curve(torch.linalg.vector_norm(points[:, 1], dim=-1), "first Fourier coefficient of the density")
        if isinstance(self.initial, Gaussian):
            sizes = points[:, 1:].square().sum((-2, -1)).clamp_min(1e-300)
            if self.outcome.name == "blow_up":  # the last state is the blow-up itself
                sizes = sizes[:-1]
            return curve(sizes.log10(), "log10 of the trace of the covariance")
        if isinstance(self.initial, Equiangular):
            return curve(self.initial.with_points(points).rho, "cosine of two tokens")
        distances = torch.as_tensor(pairwise_distance(Tokens.unchecked(points)))
        return curve(distances, "mean squared distance of two tokens") if points.shape[1] > 1 else ""

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: outcome, sizes, costs and one curve."""
        end, stats = self.outcome, self.stats
        members = "".join(f"{size} x " for size in self.initial.batch_shape)
        what = f"{self.n:,} tokens of dimension {self.dim}"
        if isinstance(self.initial, Gaussian):
            what = f"a Gaussian of dimension {self.dim}"
        elif isinstance(self.initial, Equiangular):
            what = f"{self.n:,} equiangular tokens"
        elif isinstance(self.initial, Density):
            what = f"a density at {self.initial.size} angles"
        rows: dict[str, Any] = {
            "outcome": f"{end.name.replace('_', ' ')} at t = {end.when}",
            "": end.message,
            "state": members + what,
            "space": self.space.name,
            "law": "a function" if self.law is None else repr(self.law),
            "saved": f"{len(self.times):,} times",
            **({"merges": stats.merges} if stats.merges else {}),
            "took": f"{stats.evaluations:,} evaluations, {stats.seconds:.3g} s ({stats.method})",
        }
        return html_card(type(self).__name__, rows, self.draw_curve())

    def __repr__(self) -> str:
        shape = "x".join(str(size) for size in self.points.shape)
        return (
            f"Trajectory({shape}, {self.outcome.name} at t = {self.outcome.when}, {self.stats.evaluations} evaluations)"
        )


def read_bibliography() -> dict[str, str]:
    """Return the entries of ``references.bib`` by key."""
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


def describe_source(key: str) -> str:
    """Return authors, year, title and preprint number of a work by its key in ``references.bib``; the key itself if it is not there."""
    entry = read_bibliography().get(key)
    if entry is None:
        return key
    parts = dict(re.findall(r"^\s*(\w+)\s*=\s*[{\"](.*)[}\"],?\s*$", entry, flags=re.MULTILINE))
    names = [name.split(",")[0].strip("{} ") for name in parts.get("author", key).split(" and ")]
    authors = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    place = f", arXiv {parts['eprint']}" if "eprint" in parts else ""
    return _read_latex(f"{authors} {parts.get('year', '')}, {parts.get('title', '')}{place}")


ACCENTS = {"'": "\u0301", "`": "\u0300", '"': "\u0308", "^": "\u0302", "~": "\u0303"}


def _read_latex(text: str) -> str:
    """Return text without the braces, accents and dashes of LaTeX."""
    accented = re.sub(r"\\(['`\"^~])\{?\\?(\w)\}?", lambda found: normalize("NFC", found[2] + ACCENTS[found[1]]), text)
    return accented.replace("{", "").replace("}", "").replace("---", "-").replace("--", "-")


def _event_row(event: EventRecord) -> dict[str, Any]:
    """An event for JSON; the members of a large merge are not listed."""
    row: dict[str, Any] = {"kind": event.kind, "time": event.time, "member": event.member}
    if event.log_time is not None:
        row |= {"log_time": event.log_time, "log_error": event.log_error, "certified": event.certified}
    if event.kind == "merge":
        members = list(event.members) if event.size <= LISTED else None
        row |= {"size": event.size, "mass": event.mass, "members": members}
    return row


def _kind_of(state: Tokens | Gaussian | Density | Equiangular) -> str:
    return "tokens" if isinstance(state, Tokens) else f"a {type(state).__name__}"


def log_or_time(run: Trajectory, what: EventRecord | Outcome) -> float:
    """The time of an event or an outcome, as the saved times of the run are given: its logarithm in logarithmic time."""
    return what.time if run.given_log_times is None or what.log_time is None else what.log_time


def _clock_map(run: Trajectory, axis: np.ndarray) -> Callable[[float], float]:
    """A function from times, as ``log_or_time`` gives them, to a clock: interpolation between the saved times."""
    times = (run.times if run.given_log_times is None else run.given_log_times).detach().cpu().double().numpy()
    sound = np.isfinite(times) & np.isfinite(axis)
    if np.array_equal(times[sound], axis[sound]):
        return float
    return lambda time: float(np.interp(time, times[sound], axis[sound]))


def _mean_curve(run: Trajectory, name: str) -> np.ndarray:
    values = run.observe(name).detach().cpu().double()
    return values.reshape(len(run.times), -1).mean(-1).numpy()


def _describe_law(law: Law | None) -> str:
    if isinstance(law, (Attention, Rescaled)):
        return law.describe()
    kernel = getattr(getattr(law, "kernel", None), "name", None)
    if kernel is None:
        return "a law of motion" if law is None else type(law).__name__.lower()
    heads = getattr(law, "heads", 1)
    mask = getattr(law, "mask", None)
    return f"{'' if mask is None else mask.name + ' '}{kernel} attention" + (
        f" with {heads} heads" if heads > 1 else ""
    )


def _caption(run: Trajectory, merges: int) -> str:
    """The caption of a figure, in two sentences."""
    first, last = f"{float(run.times[0]):g}", f"{float(run.times[-1]):.6g}"
    if run.given_log_times is not None:
        last = format_log_time(float(run.given_log_times[-1]))
    count = int(run.observe("clusters")[-1]) if run.n <= LARGE else None
    end = "" if count is None else f", where {'one cluster is' if count == 1 else f'{count} clusters are'} left"
    if run.outcome.name not in ("reached", "consensus"):
        end += f"; {run.outcome.message}"
    merged = f" {merges} merges of coinciding tokens are marked." if merges else ""
    if run.stats.method == "blocks":
        return (
            f"Tokens pass the blocks of a model, from the stream before block {first} to that after block {float(last) - 1:g}{end}; "
            "time is the number of blocks passed."
        )
    what = "Tokens move" if not isinstance(run.law, Rescaled) else "Drawn is e^(-tV) x of tokens x that move"
    return f"{what} with the velocity that attention gives them, from t = {first} to t = {last}{end}.{merged}"
