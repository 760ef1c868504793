"""Kernel: how scores become attention weights, and everything that depends on that choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.engines import Mode, Problem, attend
from attractor.errors import InputError, UnsupportedError
from attractor.laws.masks import Visibility
from attractor.registry import find
from attractor.serialization import Record

Moments = tuple[Any, Any]  # B (..., d, d) and the velocity of the mean (..., d), tensors or arrays
PAIRS = 1 << 22  # pairs whose scores are held at once
SUMMED = 16  # dimensions up to which exact scores are summed coordinate by coordinate


def exact_scores(q: Tensor, k: Tensor) -> Tensor:
    """Inner products (..., rows, n) in which equal rows have equal products: the rounding of a matrix product depends on the place."""
    if k.shape[-1] > SUMMED:
        return q @ k.mT
    columns = (q[..., c, None] * k[..., None, :, c] for c in range(k.shape[-1]))
    scores = next(columns)
    for column in columns:
        scores = scores + column
    return scores


@dataclass(frozen=True)
class Pairing:
    """Projected queries and keys, with scale, masses and mask.

    Attributes
    ----------
    q, k : (..., h, n, k).
    scale : factor of every score.
    masses : (..., 1, n), or None for 1/n each.
    hide : the mask, as keyword arguments of ``engines.attend``; empty if every key is visible.
    skip_self : whether the term j = i may be left out of the sums (not out of the normaliser).
    symmetric : whether the score matrix is known to be symmetric positive semi-definite.
    """

    q: Tensor
    k: Tensor
    scale: Tensor | float
    masses: Tensor | None = None
    hide: Visibility = field(default_factory=Visibility)
    skip_self: bool = False
    symmetric: bool = False

    @property
    def scaled_query(self) -> Tensor:
        return self.q if isinstance(self.scale, float) and self.scale == 1.0 else self.q * self.scale

    @property
    def log_masses(self) -> Tensor | None:
        return None if self.masses is None else self.masses.log()

    def attend(self, q: Tensor, v: Tensor, key_bias: Tensor | None, mode: Mode) -> Tensor:
        """Weighted sums of v from one call of the engine, the queries replaced by q."""
        output, _ = attend(q, self.k, v, key_bias, mode, skip_self=self.skip_self, **self.hide)
        assert output is not None
        return output

    def average(self, q: Tensor, v: Tensor, key_bias: Tensor | None, mode: Mode) -> Tensor:
        """Sums of v weighted by mass times the engine's weights, for kernels whose rows are not normalised."""
        if self.masses is None:
            return self.attend(q, v, key_bias, mode) / self.k.shape[-2]
        return self.attend(q, v * self.masses.unsqueeze(-1), key_bias, mode)

    def log_partition(self, masses: Tensor) -> Tensor:
        r""":math:`\log\sum_j m_j e^{s_{ij}}` over the visible keys, (..., h, n)."""
        _, values = attend(self.scaled_query, self.k, None, masses.log(), "softmax", **self.hide)
        assert values is not None
        return values

    def row_blocks(self, q: Tensor, k: Tensor, pairs: int) -> Iterator[tuple[slice, Tensor | None]]:
        """Blocks of rows with about ``pairs`` (query, key) pairs, each with its table of hidden keys (None: all are visible)."""
        hide = {"causal": False, "window": None, "visible": None, **self.hide}
        problem = Problem(q, k, None, None, "softmax", skip_self=False, **hide)
        n, keys = problem.queries, problem.keys
        height = max(1, pairs // max(1, problem.batch.numel() * keys))
        for start in range(0, n, height):
            rows = slice(start, min(start + height, n))
            yield rows, problem.hidden_pairs(rows, slice(0, keys))

    def sum_pairs(self, function: Callable[[Tensor], Tensor], masses: Tensor) -> Tensor:
        r""":math:`\sum_{hij} m_i m_j \varphi(s_{ij})` over the visible pairs, (...), ``PAIRS`` of them held at once."""
        q, sums = self.scaled_query, []
        for rows, hidden in self.row_blocks(q, self.k, PAIRS):
            values = function(q[..., rows, :] @ self.k.mT)
            values = values if hidden is None else values.masked_fill(hidden, 0.0)
            sums.append((masses[..., rows] * (values * masses.unsqueeze(-2)).sum(-1)).sum((-2, -1)))
        return torch.stack(sums).sum(0)


@dataclass(frozen=True)
class Logits:
    r"""Log weights up to a term of the row: :math:`\log w_{ij} = \psi(\langle q_i, k_j\rangle) + b_j`, b (..., h, n)."""

    q: Tensor
    k: Tensor
    bias: Tensor
    function: Callable[[Tensor], Tensor] = lambda scores: scores


@dataclass(frozen=True)
class HeadMatrices:
    """V, A = scale K'Q and sqrt(2 |scale|) K of every head, tensors or arrays; ``library`` is torch or numpy."""

    value: Any
    interaction: Any
    sharp_key: Any
    library: Any


@dataclass(frozen=True)
class HeadNorms:
    """Spectral norms (h,) of V, of A = scale K'Q and of Q and K, and the scale."""

    value: np.ndarray
    interaction: np.ndarray
    query: np.ndarray
    key: np.ndarray
    scale: float


def option(default: Any, help: str) -> Any:
    """A parameter of a kernel that the command line offers as ``--name``."""
    return field(default=default, metadata={"help": help})


class Kernel(Record):
    r"""How scores :math:`s_{ij}` become weights :math:`w_{ij}`, and everything that depends on that choice.

    A kernel defines ``name`` and ``attend``. All other attributes and methods have defaults that claim nothing: what a kernel does
    not define is reported as not known (``UnsupportedError``). The attributes:

    ``normalised``
        rows of weights sum to one; otherwise weights are averages over the measure.
    ``signed``
        weights can be negative.
    ``bounded``
        row sums of absolute weights are at most 1 (normalised) or the total mass, so tokens stay finite for all times.
    ``smooth``
        weights are continuously differentiable in the scores.
    ``exact``
        equal tokens must have equal scores bit for bit, wherever they stand; projections are then ``exact_scores``.
    ``bilinear``
        scores are :math:`\text{scale}\langle Qx, Ky\rangle`, to which positions and refinements may add; False for distances.
    ``exponential``
        weights are :math:`m_j e^{s_{ij}}`, divided by the partition function or not.
    ``pairwise``
        ``logits`` gives log weights that are, before rows are normalised, functions of one query and one key each.
    ``mode``
        the engine mode that gives the weights in one call, which the compiled loop needs; None if there is none. A class with
        another ``attend`` than its base declares its own mode.
    ``score_bias``
        constant added to every score.
    ``temperature``
        scores are divided by it before they are exponentiated.
    ``scaled_dot_product``
        PyTorch's ``scaled_dot_product_attention`` computes the kernel; not inherited by a class with another ``attend``.
    ``reads_values``
        an evaluation copies values to the host (to stop an iteration, or to check), so no CUDA graph can record it.
    ``uses_symmetry``
        ``attend`` is faster if ``Pairing.symmetric`` is known.
    ``sees_hidden_keys``
        hidden keys influence the weights of visible ones, so a causal mask does not make a model autoregressive.
    ``token_metric``, ``token_obstacle``
        metric ("wasserstein", "twisted") in which tokens follow the gradient of ``energy`` if V = c K'Q is symmetric, or why none is known.
    ``covariance_gradient``
        on Gaussians the gradient structure is that of the covariance alone, and V = c I has an affine-invariant one.
    """

    name: ClassVar[str] = ""
    normalised: ClassVar[bool] = True
    signed: ClassVar[bool] = False
    smooth: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    bilinear: ClassVar[bool] = True
    exponential: ClassVar[bool] = False
    pairwise: ClassVar[bool] = False
    mode: ClassVar[Mode | None] = None
    scaled_dot_product: ClassVar[bool] = False
    reads_values: ClassVar[bool] = False
    uses_symmetry: ClassVar[bool] = False
    sees_hidden_keys: ClassVar[bool] = False
    token_metric: ClassVar[str | None] = None
    token_obstacle: ClassVar[str] = "its kernel has no known energy"
    covariance_gradient: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # also an ``attend`` from a mixin, which precedes the class that declares the mode
        attend = _definer(cls, "attend")
        for name, unknown in (("mode", None), ("scaled_dot_product", False)):
            if attend < _definer(cls, name):
                setattr(cls, name, unknown)

    @property
    def device_mode(self) -> str | None:
        """Name of the weights in the CUDA kernels of runs, None if they do not compute them."""
        return self.mode

    @classmethod
    def options(cls) -> dict[str, dataclasses.Field[Any]]:
        """Parameters that the command line offers, by name; ``metadata["help"]`` says what each does."""
        parts = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        return {part.name: part for part in parts if "help" in part.metadata}

    @property
    def label(self) -> str:
        """The name, with the parameters that differ from their defaults: ``sinkhorn(eps=0.7)``."""
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, part in self.options().items()
            if getattr(self, name) != part.default
        ]
        return f"{self.name}({', '.join(changed)})" if changed else self.name

    @property
    def plain(self) -> bool:
        """Whether statements about the kernel of this name hold, for these parameters."""
        return True

    @property
    def bounded(self) -> bool:
        return self.normalised and not self.signed

    @property
    def score_bias(self) -> float:
        return 0.0

    @property
    def temperature(self) -> float:
        return 1.0

    def project(self, points: Tensor, matrix: Tensor) -> Tensor:
        """Queries or keys (..., h, n, k) of points (..., 1, n, d), given Q or K (h, k, d)."""
        return exact_scores(points, matrix) if self.exact else points @ matrix.mT

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        """Weighted sums of v (..., h, n, c) for every query."""
        raise NotImplementedError

    def score_derivatives(self, pairing: Pairing) -> tuple[Tensor, Tensor] | None:
        """Weights (..., h, n, n) and their derivatives by their own scores (for normalised rows: before the normalisation), for
        kernels with a ``mode``; None if they have no closed form."""
        if self.mode is None:
            return None
        n = pairing.k.shape[-2]
        weights = self.attend(
            pairing, torch.eye(n, dtype=pairing.k.dtype, device=pairing.k.device).expand(*pairing.k.shape[:-1], n)
        )
        if self.mode in ("softmax", "exponential"):
            return weights, weights
        mass = 1.0 / n if pairing.masses is None else pairing.masses.unsqueeze(-2)
        if self.mode == "sigmoid":
            return weights, weights * (1.0 - weights / mass)
        visible = torch.ones_like(weights) * mass
        for rows, hidden in pairing.row_blocks(pairing.q, pairing.k, visible.numel()):
            if hidden is not None:
                visible[..., rows, :] = visible[..., rows, :].masked_fill(hidden, 0.0)
        return weights, visible

    def logits(self, pairing: Pairing, log_masses: Tensor) -> Logits | None:
        """Log weights as a function of inner products, or None where only the weights themselves are known."""
        return None

    def merge_obstacle(self) -> str | None:
        """Why coinciding tokens cannot be replaced by one of their total mass, or None if they can."""
        return None

    def energy_obstacle(self, total: bool = False, log: bool = False) -> str | None:
        """Why the interaction energy is not defined (with these options of ``energy``), or None if it is."""
        return f"no interaction energy is known for the {self.name} kernel"

    def energy(self, pairing: Pairing, masses: Tensor) -> Tensor:
        """Interaction energy (...), heads summed."""
        raise UnsupportedError(self.energy_obstacle() or "")

    def log_energy(self, pairing: Pairing, masses: Tensor) -> Tensor:
        """Logarithm of the interaction energy."""
        return self.energy(pairing, masses).log()

    def energy_sums(self, pairing: Pairing, values: Tensor, masses: Tensor) -> tuple[Tensor, Tensor | None]:
        r"""Sums :math:`\sum_j m_j\varphi'(s_{ij}) v_j` with :math:`\varphi` the energy of a pair; for exponential weights divided by
        the partition function, whose logarithm (..., h, n) is then the second part."""
        return self.attend(pairing, values), None

    @property
    def has_gaussian_energy(self) -> bool:
        return type(self).gaussian_energy is not Kernel.gaussian_energy

    def gaussian_energy(self, mean: Tensor, factor: Tensor, A: Tensor) -> Tensor:
        """Energy (..., h) of a Gaussian with mean (..., 1, d, 1) and factor (..., 1, d, r), A = scale K'Q (h, d, d)."""
        raise UnsupportedError(f"no energy of Gaussians is known for the {self.name} kernel")

    @property
    def has_closure(self) -> bool:
        return type(self).gaussian_moments is not Kernel.gaussian_moments

    def closure_obstacle(self, scale: float, masked: bool) -> str:
        """Why a Gaussian does not stay Gaussian under attention with this scale, with or without a causal mask; "" if it does."""
        return "" if self.has_closure else f"the {self.name} kernel gives a field that is not affine"

    def gaussian_moments(self, heads: HeadMatrices, mean: Any, factor: Any) -> Moments:
        """B (..., h, d, d) and the velocity of the mean (..., h, d, 1) of a Gaussian, for mean (..., 1, d, 1) and factor (..., 1, d, r)."""
        raise UnsupportedError(self.closure_obstacle(1.0, False))

    @property
    def has_moment_closure(self) -> bool:
        return type(self).expected_field is not Kernel.expected_field

    def expected_field(
        self, A: np.ndarray, mean: np.ndarray, factor: np.ndarray, order: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """E[f(x)] (d,) and E[f(x) z'] (d, r) of the field f before V, x = mean + factor z Gaussian: for moment closures."""
        raise UnsupportedError(f"no moment closure is known for the {self.name} kernel")

    def lipschitz(self, norms: HeadNorms, radius: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray | None]:
        """Lipschitz constants of the field in the point and in the measure, at radii (..., 1); None where no formula is known."""
        known = [kernel.name for kernel in list_kernels() if kernel.lipschitz is not Kernel.lipschitz]
        raise UnsupportedError(
            f"a stability constant is known for {_list(known, 'and')} attention, not for {self.name}"
        )

    def causal_factor(self, p: float) -> float | None:
        """Factor of the influence of the measure under a causal mask in W_p, p > 1 (Hardy's inequality); None if not known."""
        if p <= 1.0:
            raise InputError(
                "causal attention is stable for orders p > 1; at p = 1 the constant grows with the logarithm of n"
            )
        return p / (p - 1.0)

    def covariance_growth(self, value: np.ndarray, query: np.ndarray, key: np.ndarray) -> float:
        r"""The share r of one head in :math:`|\Sigma_t| \le |\Sigma_0|e^{rt}`."""
        raise UnsupportedError(f"{self.name} attention has no exponential bound of its covariance: it may blow up")

    def gaussian_gradient_obstacle(self, query: Tensor, key: Tensor, scale: float, symmetry: Symmetry) -> str:
        """Why Gaussians do not follow the gradient of ``gaussian_energy`` in the Bures metric where V = c (K'Q)'; "" if they do."""
        return "" if symmetry.symmetric else "K'Q is not symmetric"


def _definer(cls: type, name: str) -> int:
    """Place in the method resolution order of the class that defines an attribute."""
    return next(place for place, base in enumerate(cls.__mro__) if name in vars(base))


@dataclass(frozen=True)
class Symmetry:
    """Whether K'Q is symmetric in every head, and whether it is symmetric or antisymmetric in each."""

    symmetric: bool
    either: bool


def list_kernels() -> list[type[Kernel]]:
    """All kernels, in alphabetical order of their names."""
    return sorted(Kernel.__subclasses__(), key=lambda kernel: kernel.name)


def kernel_named(kernel: str | Kernel) -> Kernel:
    """A kernel by name, or the kernel itself."""
    if isinstance(kernel, Kernel):
        return kernel
    return find(kernel, {found.name: found for found in list_kernels()}, "kernel")()


def has_kernel(law: Any, *names: str) -> bool:
    """Whether a law is attention with one of these kernels, for theorems that are stated for them."""
    kernel = getattr(law, "kernel", None)
    return isinstance(kernel, Kernel) and kernel.name in names and kernel.plain


def _list(names: list[str], last: str) -> str:
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else "".join(names)
