r"""Lyapunov exponents along a flow or along layers, by Benettin's method.

Tangent vectors Q are carried along by the variational equation :math:`\dot Q = J(x(t))\,Q`, or multiplied by the Jacobian of every
layer, and made orthonormal by a QR decomposition at equal intervals; the exponents are the mean growth rates
:math:`\frac1T\sum\log|R_{aa}|` after a transient that is left out. With all exponents, their sum is the mean divergence of the field,
which is computed separately as a check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Law
from attractor.solvers.linear_stability import Jacobian, check_linearised, differentiated, tangent_basis
from attractor.solvers.run import space_of
from attractor.solvers.steppers.jacobian import MemberField
from attractor.solvers.steppers.stepper import Field
from attractor.spaces import Space
from attractor.states import Tokens

MAX_STEPS = 1e7
DENSE = 512  # coordinates up to which the whole Jacobian carries tangent vectors
COUNT = 6  # exponents of larger systems


@dataclass(frozen=True, eq=False)
class Lyapunov:
    """Lyapunov exponents in descending order.

    Attributes
    ----------
    exponents : (k,), growth rates per unit of time, or per layer.
    errors : (k,), standard errors of the mean growth over ten parts of the run; what drifts slowly is not in them.
    history : (m, k), the mean rates after every QR decomposition that counts.
    times : (m,), the times of those.
    divergence : mean divergence of the field along the run, which all exponents add up to; None if only some were computed.
    final : tokens at the end.
    time : the length of the part of the run that was measured.
    """

    exponents: np.ndarray
    errors: np.ndarray
    history: np.ndarray
    times: np.ndarray
    divergence: float | None
    final: Tokens
    time: float

    @property
    def dimension(self) -> float | None:
        """The Kaplan-Yorke dimension; None if too few exponents were computed to tell."""
        sums = np.cumsum(self.exponents)
        if self.exponents[0] < 0:
            return 0.0
        below = np.flatnonzero(sums < 0)
        if not len(below):
            return None if self.divergence is None else float(len(sums))
        last = int(below[0])
        return last + float(sums[last - 1] / -self.exponents[last])

    def __repr__(self) -> str:
        shown = ", ".join(f"{value:.4g}" for value in self.exponents[:8])
        return f"Lyapunov({shown}{', ...' if len(self.exponents) > 8 else ''}; measured over {self.time:g})"


class TangentStep:
    """One step of tokens and tangent vectors: Runge-Kutta of fourth order for the variational equation, or a layer."""

    def __init__(self, law: Law, tokens: Tokens, space: Space, step: float, layers: bool) -> None:
        self.law, self.tokens, self.space, self.step, self.layers = law, tokens, space, step, layers
        self.to_sphere = space.sphere_matrix(tokens.dim).to(tokens.points)
        self.from_sphere = space.sphere_matrix(tokens.dim, inverse=True).to(tokens.points)
        self.dense = not layers and tokens.points.numel() <= DENSE
        if self.dense:
            self.member = MemberField(Field(law, space, tokens), 0, 1)
            self.dense = self.member.derivative(0.0, tokens.points) is not None
            if not self.dense:
                raise UnsupportedError("the law cannot be differentiated, so it has no Lyapunov exponents")

    def __call__(self, t: float, x: Tensor, Q: Tensor) -> tuple[Tensor, Tensor, float]:
        """Points after a step, the tangent vectors (k, n, d) carried along, and the trace of the Jacobian at its start."""
        if not self.dense:
            return *self._by_products(t, x, Q @ self.from_sphere), 0.0
        h, shape = self.step, Q.shape
        rate, moved, trace = 0.0 * x, torch.zeros_like(Q), 0.0
        points, vectors, slopes, turns = x, Q @ self.from_sphere, [], []
        start = vectors
        for stage, share in enumerate((0.0, 0.5, 0.5, 1.0)):
            points, vectors = (x, start) if stage == 0 else (x + share * h * rate, start + share * h * moved)
            when = t + share * h
            J = self.member.derivative(when, points)
            assert J is not None
            if stage == 0:
                trace = self._trace(J, x)
            rate = self.member.field.lifted_velocity(np.array([when]), points[None])[0]
            moved = (vectors.reshape(shape[0], -1) @ torch.from_numpy(J.T).to(vectors)).reshape(shape)
            slopes.append(rate)
            turns.append(moved)
        y = x + h / 6.0 * (slopes[0] + 2 * slopes[1] + 2 * slopes[2] + slopes[3])
        vectors = start + h / 6.0 * (turns[0] + 2 * turns[1] + 2 * turns[2] + turns[3])
        stretch = self.space.stretch(y)
        x = y / stretch
        return x, self.space.tangent(x, vectors / stretch) @ self.to_sphere, trace

    def _by_products(self, t: float, x: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        def step(points: Tensor) -> Tensor:
            return self._layer(t, points) if self.layers else self._classic(t, points)

        with differentiated():
            pairs = [torch.func.jvp(step, (x,), (vector,)) for vector in vectors]
        image = pairs[0][0]
        return image, self.space.tangent(image, torch.stack([pair[1] for pair in pairs])) @ self.to_sphere

    def _layer(self, t: float, points: Tensor) -> Tensor:
        return self.law.layer(self.tokens.with_points(points), self.step, self.space, t)

    def _classic(self, t: float, x: Tensor) -> Tensor:
        def slope(time: float, points: Tensor) -> Tensor:
            return self.space.tangent(points, self.law.velocity(self.tokens.with_points(points), time))

        h = self.step
        first = slope(t, x)
        second = slope(t + h / 2, x + h / 2 * first)
        third = slope(t + h / 2, x + h / 2 * second)
        fourth = slope(t + h, x + h * third)
        y = x + h / 6.0 * (first + 2 * second + 2 * third + fourth)
        return y / self.space.stretch(y)

    def _trace(self, J: np.ndarray, x: Tensor) -> float:
        """Trace of the Jacobian on tangent vectors."""
        trace = float(np.trace(J))
        surface = self.space.surface(x.shape[-1])
        if surface is None:
            return trace
        n, d = x.shape
        normal = (x @ surface.to(x)).double().cpu().numpy()
        blocks = J.reshape(n, d, n, d)[np.arange(n), :, np.arange(n), :]
        return trace - float(np.einsum("ia,iab,ib->", normal, blocks, x.double().cpu().numpy()))


def lyapunov(
    law: Law,
    state: Tokens,
    space: Space | str | None = None,
    *,
    until: float,
    start: float = 0.0,
    step: float | None = None,
    method: str = "rk4",
    count: int | None = None,
    burn_in: float | None = None,
    every: int = 10,
    seed: int = 0,
) -> Lyapunov:
    """Measure the Lyapunov exponents of a law along the flow from a state.

    Parameters
    ----------
    law, state, space : as in ``flow``; one state, without ensemble axes.
    until, start : the interval of time; with ``method="layers"`` in units of the step, as in ``flow``.
    step : of the method; 0.02 for "rk4" and 1 for "layers" by default.
    method : "rk4" for continuous time, "layers" for discrete layers, whose exponents are per layer.
    count : number of exponents; all of them for at most 512 coordinates, otherwise 6.
    burn_in : time at the start that does not count, by default a fifth; tangent vectors turn to their directions during it.
    every : steps between two QR decompositions.
    seed : of the first tangent vectors.
    """
    place = space_of(space)
    if method not in ("rk4", "layers"):
        raise InputError(f"method must be 'rk4' or 'layers', got {method!r}")
    tokens = check_linearised(law, state, place, "a Lyapunov exponent")
    step = (1.0 if method == "layers" else 0.02) if step is None else float(step)
    if not (math.isfinite(step) and step > 0):
        raise InputError(f"step must be positive, got {step:g}")
    if not (math.isfinite(until) and until > start):
        raise InputError(f"until must be a finite time after the start at t = {start:g}, got {until:g}")
    steps = round((until - start) / step)
    if steps > MAX_STEPS or steps < 1:
        raise InputError(f"steps of {step:g} until t = {until:g} are {steps:.3g} steps; a run takes 1 to {MAX_STEPS:g}")
    burn_in = (until - start) / 5 if burn_in is None else float(burn_in)
    if not 0 <= burn_in < until - start:
        raise InputError(f"burn_in must be at least 0 and end before the run of {until - start:g}, got {burn_in:g}")
    if int(every) != every or every < 1:
        raise InputError(f"every must be a whole number of at least 1, got {every}")
    size = Jacobian(law, tokens, place).size
    most = size if tokens.points.numel() <= DENSE else min(COUNT, size)
    if count is not None and not 1 <= count <= size:
        raise InputError(f"there are {size} exponents; count must be between 1 and that, got {count}")
    count = most if count is None else int(count)
    advance = TangentStep(law, tokens, place, step, method == "layers")
    x = tokens.points
    draw = torch.from_numpy(
        np.random.default_rng(seed).standard_normal((count, tokens.n, tangent_basis(place, x).shape[-1]))
    )
    Q = _orthonormal(torch.einsum("nda,kna->knd", tangent_basis(place, x), draw.to(x)))[0]
    warm = min(steps - 1, round(burn_in / step))
    rates, times, traces = [], [], []
    for index in range(steps):
        x, Q, trace = advance(start + index * step, x, Q)
        done = index + 1
        if index >= warm:
            traces.append(trace)
        if not bool(torch.isfinite(x).all() and torch.isfinite(Q).all()):
            raise InputError(
                f"the tokens or their deviations are not finite at t = {start + done * step:g}: end the run earlier"
            )
        if done % every and done not in (warm, steps):
            continue
        Q, growth = _orthonormal(Q)
        if done > warm:
            rates.append(growth)
            times.append(start + done * step)
    divergence = None
    if count == size and advance.dense:
        traces.append(advance(times[-1], x, Q)[2])
        divergence = float(np.trapezoid(traces)) / (steps - warm)
    begin = start + warm * step
    spans = np.diff(np.array([begin, *times])) / (step if method == "layers" else 1.0)
    sums = np.cumsum(rates, axis=0)
    with np.errstate(invalid="ignore"):
        history = sums / np.cumsum(spans)[:, None]
        parts = [rows.sum(0) for rows in np.array_split(np.array(rates), min(10, len(rates)))]
        lengths = [part.sum() for part in np.array_split(spans, min(10, len(rates)))]
        pieces = np.array(parts) / np.array(lengths)[:, None]
        errors = pieces.std(0, ddof=1) / len(pieces) ** 0.5 if len(pieces) > 1 else np.full(count, np.nan)
    order = np.argsort(-history[-1], kind="stable")
    return Lyapunov(
        history[-1][order],
        errors[order],
        history[:, order],
        np.array(times),
        divergence,
        tokens.with_points(x),
        times[-1] - begin,
    )


def _orthonormal(Q: Tensor) -> tuple[Tensor, np.ndarray]:
    """Orthonormal vectors (k, n, d) with the same span, and the logarithms (k,) of the lengths that they had."""
    basis, R = torch.linalg.qr(Q.reshape(len(Q), -1).mT)
    with np.errstate(divide="ignore"):
        sizes = np.log(R.diagonal().abs().double().cpu().numpy())
    return basis.mT.reshape(Q.shape), sizes
