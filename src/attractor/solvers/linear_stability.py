r"""The Jacobian of a law at a state, and what it says about a rest.

Small deviations :math:`\delta` of tokens obey :math:`\dot\delta = J\delta`. On a curved space J acts on tangent vectors; coordinates
are orthonormal in the metric of the space, k = d - 1 for each token (k = d in flat space). With scores
:math:`s_{ij} = \langle x_i, P x_j\rangle`, :math:`\bar x_i = \sum_j w_{ij}x_j` and softmax weights

.. math:: db_i = V\sum_j w_{ij}\,dx_j + V C_i P^\top dx_i + \sum_j w_{ij}\,V(x_j - \bar x_i)\,x_i^\top P\,dx_j,

:math:`C_i` the covariance of the keys under the weights of token i, and on the sphere :math:`\Pi\,db_i - \langle x_i, b_i\rangle dx_i`.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor import engines
from attractor.errors import InputError, UnsupportedError
from attractor.laws import Law
from attractor.solvers.density_integration import DensityField
from attractor.solvers.noise import Noise
from attractor.solvers.run import enter_space, space_of
from attractor.solvers.steppers.jacobian import MemberField
from attractor.solvers.steppers.stepper import Field
from attractor.solvers.trajectory import Trajectory
from attractor.spaces import Space
from attractor.states import Density, Tokens

DENSE = 1536  # coordinates up to which the matrix is computed and all eigenvalues are found
LEADING = 6  # eigenvalues of a larger system
NEUTRAL = 1e-8  # rate, relative to the norm of the Jacobian, that is not told from zero
RESTING = 1e-6  # speed, relative to the size of the tokens and the norm of the Jacobian, up to which a state rests
KREISS_RANGE = (
    1e-7,
    1e2,
)  # real parts, relative to the norm of the Jacobian, among which the Kreiss constant is searched


@dataclass(frozen=True, eq=False, repr=False)
class Jacobian:
    """Derivative of the velocities of one state by its points, or of one layer, in orthonormal coordinates of the space.

    Attributes
    ----------
    law, tokens, space, time : where it was taken; the tokens are on the space.
    step : size of the discrete layer that is differentiated, None for the velocity.
    """

    law: Law
    tokens: Tokens
    space: Space
    time: float = 0.0
    step: float | None = None

    @property
    def size(self) -> int:
        """Number of coordinates, n d in flat space and n (d - 1) on a curved one."""
        return self.tokens.n * self.basis.shape[-1]

    @cached_property
    def basis(self) -> Tensor:
        """Orthonormal tangent vectors at every token, (n, d, k), in coordinates where the space is a unit sphere or flat."""
        return tangent_basis(self.space, self.tokens.points)

    def _map(self, points: Tensor) -> Tensor:
        """The tangent velocity at points near the tokens, or the points after the layer."""
        tokens = self.tokens.with_points(points)
        if self.step is not None:
            return self.law.layer(tokens, self.step, self.space, self.time)
        return self.space.tangent(points, self.law.velocity(tokens, self.time))

    def apply(self, directions: Any) -> Tensor:
        """J times displacements of the tokens, (n, d), in ambient coordinates and tangent to the space; matrix-free."""
        given = torch.as_tensor(directions, dtype=self.tokens.points.dtype)
        if given.shape != self.tokens.points.shape:
            raise InputError(
                f"directions have the shape of the tokens, {tuple(self.tokens.points.shape)}, got {tuple(given.shape)}"
            )
        points = self.tokens.points
        with differentiated():
            image, moved = torch.func.jvp(self._map, (points,), (self.space.tangent(points, given),))[:2]
        return self.space.tangent(points if self.step is None else image, moved)

    def _to_points(self, coordinates: Tensor) -> Tensor:
        flat = torch.einsum("nda,na->nd", self.basis, coordinates.reshape(self.tokens.n, -1))
        return flat @ self._sphere_matrix(inverse=True)

    def _sphere_matrix(self, inverse: bool = False) -> Tensor:
        """From the space to the unit sphere, or back; the identity in flat space."""
        return self.space.sphere_matrix(self.tokens.dim, inverse).to(self.tokens.points)

    def matvec(self, coordinates: np.ndarray) -> np.ndarray:
        """J times a vector (size,) of tangent coordinates."""
        given = torch.from_numpy(np.ascontiguousarray(coordinates)).to(self.tokens.points)
        moved = self.apply(self._to_points(given)) @ self._sphere_matrix()
        return torch.einsum("nda,nd->na", self.basis, moved).reshape(-1).double().cpu().numpy()

    def rmatvec(self, coordinates: np.ndarray) -> np.ndarray:
        """The transpose of J times a vector (size,) of tangent coordinates."""
        points = self.tokens.points
        given = torch.from_numpy(np.ascontiguousarray(coordinates)).to(points).reshape(self.tokens.n, -1)
        covector = torch.einsum("nda,na->nd", self.basis, given) @ self._sphere_matrix()
        with differentiated():
            pull = torch.func.vjp(self._map, points)[1]
            (found,) = pull(covector)
        flat = found @ self._sphere_matrix(inverse=True)
        return torch.einsum("nda,nd->na", self.basis, flat).reshape(-1).double().cpu().numpy()

    @cached_property
    def matrix(self) -> np.ndarray:
        """The matrix (size, size); for at most DENSE coordinates."""
        if self.size > DENSE:
            raise UnsupportedError(
                f"the matrix has {self.size:,} x {self.size:,} entries, and at most {DENSE:,} rows are computed: use matvec and eigenvalues"
            )
        if self.step is not None:
            return np.stack([self.matvec(row) for row in np.eye(self.size)], axis=1)
        member = MemberField(Field(self.law, self.space, self.tokens), 0, 1)
        ambient = member.derivative(self.time, self.tokens.points)
        if ambient is None:
            raise UnsupportedError("the law cannot be differentiated, so it has no Jacobian")
        n, d = self.tokens.points.shape
        forward = torch.einsum("nda,de->nea", self.basis, self._sphere_matrix()).double().cpu().numpy()
        back = torch.einsum("nda,de->nea", self.basis, self._sphere_matrix(inverse=True)).double().cpu().numpy()
        found = np.einsum("iea,iejf,jfb->iajb", forward, ambient.reshape(n, d, n, d), back, optimize=True)
        return found.reshape(self.size, self.size)

    def _operator(self, symmetric: bool = False) -> Any:
        from scipy.sparse.linalg import LinearOperator

        def both(vector: np.ndarray) -> np.ndarray:
            return (self.matvec(vector) + self.rmatvec(vector)) / 2

        shape = (self.size, self.size)
        if symmetric:
            return LinearOperator(shape, matvec=both, dtype=np.float64)  # type: ignore[call-arg]
        return LinearOperator(shape, matvec=self.matvec, rmatvec=self.rmatvec, dtype=np.float64)  # type: ignore[call-arg]

    def eigenvalues(self, count: int | None = None) -> np.ndarray:
        """Eigenvalues of largest real part (for layers: of largest modulus), in descending order.

        All of them for at most DENSE coordinates; ``count`` (default 6) by Arnoldi's method for larger systems.
        """
        if count is not None and count < 1:
            raise InputError(f"count must be at least 1, got {count}")
        if self.size <= DENSE:
            values = np.linalg.eigvals(self.matrix)
        else:
            from scipy.sparse.linalg import eigs

            which = "LR" if self.step is None else "LM"
            start = np.random.default_rng(0).standard_normal(self.size)
            values = np.asarray(eigs(self._operator(), k=count or LEADING, which=which, v0=start)[0])
        size = values.real if self.step is None else np.abs(values)
        values = values[np.lexsort((values.imag, -size))]
        values = values.real if not np.abs(values.imag).any() else values
        return values if count is None else values[:count]

    @property
    def spectral_abscissa(self) -> float:
        """Largest real part of an eigenvalue: the growth rate at late times."""
        self._check_continuous("the spectral abscissa")
        return float(self.eigenvalues(None if self.size <= DENSE else 1)[0].real)

    @property
    def numerical_abscissa(self) -> float:
        r"""Largest eigenvalue of :math:`(J + J^\top)/2`: the fastest growth of a deviation at first."""
        self._check_continuous("the numerical abscissa")
        if self.size <= DENSE:
            return float(np.linalg.eigvalsh((self.matrix + self.matrix.T) / 2)[-1])
        from scipy.sparse.linalg import eigsh

        start = np.random.default_rng(0).standard_normal(self.size)
        return float(eigsh(self._operator(symmetric=True), k=1, which="LA", v0=start, return_eigenvectors=False)[0])

    def growth(self, times: Any) -> np.ndarray:
        """Largest factor :math:`|e^{tJ}|_2` by which a deviation has grown at given times."""
        from scipy.linalg import expm

        self._check_continuous("growth along time")
        times = np.atleast_1d(np.asarray(times, dtype=np.float64))
        return np.array([float(np.linalg.norm(expm(time * self.matrix), 2)) for time in times])

    def kreiss_constant(self) -> float:
        r"""A lower bound :math:`\sup_{\mathrm{Re}\,z > 0}\mathrm{Re}\,z\,|(z - J)^{-1}|_2 \le \sup_t|e^{tJ}|_2` of transient growth.

        The largest growth is at most e times the number of coordinates times this constant. Infinite where a deviation grows at late
        times. The supremum is searched on a grid of the half-plane and refined, so that the number is a lower bound too.
        """
        from scipy.optimize import minimize

        J, norm = self.matrix, float(np.linalg.norm(self.matrix, 2))
        self._check_continuous("the Kreiss constant")
        if norm == 0.0:
            return 1.0
        values = np.linalg.eigvals(J)
        if values.real.max() > NEUTRAL * norm:
            return np.inf
        eye = np.eye(self.size)

        def negative(place: np.ndarray) -> float:
            x = norm * np.exp(np.clip(place[0], *np.log(KREISS_RANGE)))
            smallest = np.linalg.svd((x + 1j * norm * place[1]) * eye - J, compute_uv=False)[-1]
            return -float(x / max(smallest, 1e-300))

        heights = np.unique(np.abs(values.imag) / norm)
        heights = np.unique(np.concatenate((heights[:: max(1, len(heights) // 8)], [0.0])))
        grid = [
            np.array([x, y])
            for x in np.linspace(float(np.log(KREISS_RANGE[0])), float(np.log(KREISS_RANGE[1])), 45)
            for y in heights
        ]
        best = min(grid, key=negative)
        found = minimize(negative, best, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-12})
        return max(1.0, -float(found.fun), -negative(best))

    def _check_continuous(self, what: str) -> None:
        if self.step is not None:
            raise UnsupportedError(f"{what} belongs to a velocity; leave out step, or take eigenvalues of the layer")

    def __repr__(self) -> str:
        what = "velocity" if self.step is None else f"layer of size {self.step:g}"
        return f"Jacobian({self.size}x{self.size}, of a {what}, on {self.space.name})"


def tangent_basis(space: Space, points: Tensor) -> Tensor:
    """Orthonormal tangent vectors (n, d, k) at points of a space, in coordinates where it is flat or a unit sphere."""
    if not space.is_curved:
        return torch.eye(points.shape[-1], dtype=points.dtype, device=points.device).expand(len(points), -1, -1)
    return torch.linalg.qr(space.to_sphere(points).unsqueeze(-1), mode="complete")[0][..., 1:]


class differentiated:
    """Context in which attention is computed by the reference engine, which has derivatives in both directions."""

    def __enter__(self) -> None:
        with warnings.catch_warnings():  # torch compiles these with a function that it deprecates
            warnings.simplefilter("ignore", DeprecationWarning)
            importlib.import_module("torch._decomp.decompositions_for_jvp")
        self._engine = engines.using("reference")
        self._engine.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._engine.__exit__(kind, error, trace)
        if isinstance(error, NotImplementedError) or (isinstance(error, RuntimeError) and "forward" in str(error)):
            reason = str(error).splitlines()[0]
            raise UnsupportedError(f"the law has no derivative of this kind: {reason}") from None


def check_linearised(law: Law, state: Any, space: Space, what: str, entered: bool = False) -> Tokens:
    """The tokens on the space, where a law has a derivative at one state; raise otherwise.

    The last state of a run has ``entered``: positions of the input are in its points.
    """
    if not isinstance(law, Law):
        raise InputError(f"{what} needs a law such as Attention(...), got {type(law).__name__}")
    if not isinstance(state, Tokens):
        raise InputError(f"{what} is that of Tokens(...), got {type(state).__name__}")
    if state.batch_shape:
        raise InputError(f"{what} is that of one state, got an ensemble of shape {tuple(state.batch_shape)}")
    if not law.is_smooth():
        kernel = getattr(getattr(law, "kernel", None), "name", "this law")
        raise UnsupportedError(
            f"{kernel} has no Jacobian: its weights are piecewise constant, so the derivative is zero or does not exist"
        )
    law.check(state)
    space.check_dimension(state.dim)
    points = space.enter(state.points) if entered else enter_space(law, state, space).points[0]
    return state.with_points(points.detach())


def jacobian(
    law: Law, state: Tokens, space: Space | str | None = None, *, time: float = 0.0, step: float | None = None
) -> Jacobian:
    """Linearise a law at a state.

    Parameters
    ----------
    law, state, space : as in ``flow``; one state, without ensemble axes.
    time : for laws that depend on time.
    step : size of a discrete layer, whose Jacobian is returned instead of that of the velocity.

    Returns
    -------
    Jacobian
        Its matrix, eigenvalues, products with vectors, numerical abscissa and Kreiss constant, computed when they are read.
    """
    place = space_of(space)
    if step is not None and not (np.isfinite(step) and step > 0):
        raise InputError(f"step must be positive, got {step:g}")
    return Jacobian(law, check_linearised(law, state, place, "a Jacobian"), place, float(time), step)


@dataclass(frozen=True, eq=False)
class LinearStability:
    """What the Jacobian says about a rest.

    Attributes
    ----------
    name : "stable" (all deviations decay), "neutral" (none grows, some neither grow nor decay), "saddle" (some grow, some decay) or
        "unstable" (some grow, none decays).
    unstable, neutral, decaying : number of eigenvalues with positive, zero and negative real part; those that rounding and the
        remaining speed of the state cannot tell from zero count as neutral. Of large systems only the leading ones are counted.
    eigenvalues : in descending order of their real parts; all of them if ``complete``.
    numerical_abscissa : the fastest growth of a deviation at first.
    kreiss_constant : lower bound of the largest growth of a deviation; None for large systems.
    speed : velocity that is left, relative to the size of the tokens (of a run: at its start, if they were larger).
    message : one sentence.
    """

    name: str
    unstable: int
    neutral: int
    decaying: int
    eigenvalues: np.ndarray
    complete: bool
    numerical_abscissa: float
    kreiss_constant: float | None
    speed: float
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def stability(
    run: Trajectory | Law,
    state: Tokens | Density | None = None,
    space: Space | str | None = None,
    *,
    noise: Noise | None = None,
) -> LinearStability:
    """Say whether the last state of a run, or a given state, is a stable rest.

    Parameters
    ----------
    run : a trajectory of one member, whose final state is examined; or a law, with ``state`` and ``space`` as in ``flow``.
    noise : for a law and a Density on the circle, whose rests are those with noise; a run has its own.

    Raises
    ------
    InputError
        If the state moves: then ``lyapunov`` is what describes the growth of deviations.
    """
    if isinstance(run, Trajectory):
        if state is not None or space is not None:
            raise InputError("stability takes a run, or a law with a state and a space; give one or the other")
        if isinstance(run.final, Density):
            if noise is not None:
                raise InputError("a run has its own noise: leave out noise")
            if run.law is None:
                raise InputError("the law of this run is not known, so that its stability is not either")
            return _density_stability(run.law, run.final, run.noise)
        if run.noise is not None:
            raise UnsupportedError(
                "tokens with noise do not rest; take stability(law, state, space) at a rest of the law without noise"
            )
        if run.law is None or not isinstance(run.final, Tokens):
            raise InputError("the stability of a run is that of tokens under a law, which this run does not have")
        if not run.law.autonomous:
            raise InputError("the law depends on time, so that no state rests; take lyapunov(...) along the flow")
        law, state, place = run.law, run.final, run.space
        if state.batch_shape:
            raise InputError("the run is an ensemble: take stability(run.member(i))")
        tokens = check_linearised(law, state, place, "stability", entered=True)
    else:
        law, place = run, space_of(space)
        if state is None:
            raise InputError("stability needs a state: stability(law, state, space)")
        if isinstance(state, Density):
            return _density_stability(law, state, noise)
        if noise is not None:
            raise UnsupportedError("tokens with noise do not rest: leave out noise, or take the stability of a Density")
        tokens = check_linearised(law, state, place, "stability")
    found = Jacobian(law, tokens, place)
    started = run.tokens.points if isinstance(run, Trajectory) else tokens.points
    size = max(float(part.norm(dim=-1).max()) for part in (tokens.points, started)) or 1.0
    speed = float(place.tangent(tokens.points, law.velocity(tokens)).norm(dim=-1).max()) / size
    complete = found.size <= DENSE
    values: Any
    if complete:
        import scipy.linalg

        parts: Any = scipy.linalg.eig(found.matrix, left=True, right=True)
        left, right = (np.asarray(part) for part in parts[1:])
        values = np.asarray(parts[0])
        overlap = np.abs((left.conj() * right).sum(0))
        condition = 1.0 / np.maximum(overlap, 1e-300)
        norm = float(np.linalg.norm(found.matrix, 2))
    else:
        values = found.eigenvalues()
        condition, norm = np.ones(len(values)), float(np.abs(values).max())
    if speed > RESTING * max(norm, 1e-300) and speed > 0:
        raise InputError(
            f"the state moves at {speed:.3g} of its size per unit of time, so it is no rest: run longer, or take lyapunov(...)"
        )
    kreiss = found.kreiss_constant() if complete and found.size <= 256 else None
    return _judge(values, condition, norm, speed, found.size, complete, found.numerical_abscissa, kreiss)


def _density_stability(law: Law, state: Density, noise: Any) -> LinearStability:
    """The same for a density on the circle with noise, in its Fourier coefficients."""
    import scipy.linalg

    if state.batch_shape:
        raise InputError(f"stability is that of one density, got an ensemble of shape {tuple(state.batch_shape)}")
    if not isinstance(noise, Noise) or not noise.constant or noise.has_common or not float(noise.at(0.0)[0]) > 0:
        raise UnsupportedError(
            "the stability of a density needs constant independent noise of a positive strength: without noise its spectrum is "
            "continuous"
        )
    field = DensityField(law, state.size, noise)
    modes = state.modes
    speed = float(np.abs(field.total_rate(0.0, modes[None])).max())
    if speed > RESTING:
        raise InputError(
            f"the density moves: a Fourier coefficient changes by {speed:.3g} per unit of time, so it is no rest; run longer"
        )
    matrix = field.derivative(0.0, modes)
    values, left, right = scipy.linalg.eig(matrix, left=True, right=True)  # type: ignore[misc]
    condition = 1.0 / np.maximum(np.abs((left.conj() * right).sum(0)), 1e-300)
    abscissa = float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[-1])
    norm = float(np.linalg.norm(matrix, 2))
    return _judge(np.asarray(values), condition, norm, speed, len(matrix), True, abscissa, None)


def _judge(
    values: Any,
    condition: np.ndarray,
    norm: float,
    speed: float,
    size: int,
    complete: bool,
    abscissa: float,
    kreiss: float | None,
) -> LinearStability:
    """Count eigenvalues by the signs of their real parts, as far as these can be told from zero."""
    # an eigenvalue moves by its condition number times the change of the matrix, in a Jordan block of two by a root of that change
    change = NEUTRAL * norm + speed
    band = np.minimum(condition * change, np.sqrt(change * max(norm, change)))
    unstable, decaying = int((values.real > band).sum()), int((values.real < -band).sum())
    neutral = len(values) - unstable - decaying
    name = ("saddle" if decaying or not complete else "unstable") if unstable else "neutral" if neutral else "stable"
    order = np.lexsort((values.imag, -values.real))
    values = values[order].real if not np.abs(values.imag).any() else values[order]
    parts = [f"{count} {word}" for count, word in ((unstable, "grow"), (neutral, "neither grow nor decay")) if count]
    rate = f", the fastest at {float(values[0].real):.4g}" if unstable else ""
    among = "" if complete else f" among the {len(values)} leading ones"
    rest = "the others decay" if decaying else "no other is left"
    message = (
        f"of {size} directions {' and '.join(parts)}{rate}{among}; {rest}"
        if parts
        else (f"all {size if complete else len(values)} directions decay, the slowest at {-float(values[0].real):.4g}")
    )
    return LinearStability(name, unstable, neutral, decaying, values, complete, abscissa, kreiss, speed, message)
