r"""Lyapunov, angle and gradient exponents of a real model along depth.

A block maps the residual stream :math:`x_l` of all tokens, (n, d), to :math:`x_{l+1}`, with the Jacobian :math:`J_l`. Tangent vectors
Q are carried through the blocks by products of :math:`J_l` with vectors (forward differentiation), and made orthonormal after each:
:math:`J_l Q_l = Q_{l+1}R_l`. The Lyapunov exponents per block are the means of :math:`\log R_{aa}` over the blocks. Tangent vectors
start in random directions, so that the first blocks turn them towards the directions that grow.

Two more exponents describe what training needs [cowsik2024geometric]: the angle exponent is the change of
:math:`\log(1-\cos)` between tokens over a block, negative where they become parallel; the gradient exponent is the change of the
logarithm of the length of a gradient that passes a block backwards.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.models.checkpoints import Checkpoint
from attractor.models.family import get_hidden_states, get_output
from attractor.models.loading import choose_run
from attractor.models.opening import checkpoint as open_checkpoint
from attractor.models.random_init import initialize
from attractor.models.tracing import SMALL_MODEL, Session
from attractor.plotting import Curve, Panel, draw_panels
from attractor.serialization import to_frame

COUNT = 8  # tangent vectors, and gradients
CACHES = ("past_key_values", "past_key_value", "layer_past", "cache_params")
ALIKE = 1e-3  # relative difference of a block's output from the input of the next

Block = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class DepthExponents:
    """Exponents of one model that reads one text.

    Attributes
    ----------
    model : its name.
    tokens : number of tokens.
    exponents : the leading Lyapunov exponents per block, (k,), in descending order.
    growth : logarithms of the growth of each tangent vector over each block, (blocks, k), whose means are the exponents.
    angle : change of log(1 - cos) over each block, mean cosine over the pairs of tokens (without the first of three or more).
    gradient : change of the logarithm of the length of a gradient that passes each block backwards, mean over random gradients.
    norm : change of the logarithm of the root mean square norm of the tokens.
    random : the same of models with the same configuration and random weights.
    """

    model: str
    tokens: int
    exponents: np.ndarray
    growth: np.ndarray
    angle: np.ndarray
    gradient: np.ndarray
    norm: np.ndarray
    random: tuple[DepthExponents, ...] = ()

    @property
    def blocks(self) -> int:
        return len(self.growth)

    def sentence(self) -> str:
        """What the numbers say, beside those of random weights."""
        text = (
            f"over {self.blocks} blocks the leading exponent is {self.exponents[0]:.3f} per block, gradients grow by "
            f"{self.gradient.mean():.3f} towards the input, 1 - cos of tokens changes by {self.angle.mean():.3f} and norms by "
            f"{self.norm.mean():.3f}"
        )
        if not self.random:
            return text
        rows = self.random
        exponent, gradient, angle, norm = (
            float(np.mean([value(row) for row in rows]))
            for value in (
                lambda row: row.exponents[0],
                lambda row: row.gradient.mean(),
                lambda row: row.angle.mean(),
                lambda row: row.norm.mean(),
            )
        )
        return f"{text}; with random weights {exponent:.3f}, {gradient:.3f}, {angle:.3f} and {norm:.3f}"

    def row(self) -> dict[str, Any]:
        """The exponents for JSON."""
        found: dict[str, Any] = {"model": self.model, "tokens": self.tokens, "blocks": self.blocks}
        for name in ("exponents", "growth", "angle", "gradient", "norm"):
            found[name] = getattr(self, name).tolist()
        return found | {"random": [one.row() for one in self.random], "sentence": self.sentence()}

    def frame(self) -> Any:
        """A pandas DataFrame with one row for each block."""
        return to_frame(
            {
                "block": k,
                "growth": self.growth[k, 0],
                "angle": self.angle[k],
                "gradient": self.gradient[k],
                "norm": self.norm[k],
            }
            for k in range(self.blocks)
        )

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw growth of the leading tangent vector, of gradients and of angles along depth, dashed with random weights."""
        depth = list(range(self.blocks))

        def panel(title: str, values: Callable[[DepthExponents], np.ndarray]) -> Panel:
            curves = [Curve(depth, values(self).tolist(), "model")]
            curves += [
                Curve(depth, values(one).tolist(), "random weights" if k == 0 else "", dashed=True)
                for k, one in enumerate(self.random)
            ]
            return Panel(tuple(curves), x="block", y="per block", title=title)

        spectrum = [Curve(list(range(1, len(self.exponents) + 1)), self.exponents.tolist(), "model")]
        spectrum += [
            Curve(
                list(range(1, len(one.exponents) + 1)),
                one.exponents.tolist(),
                "random weights" if k == 0 else "",
                dashed=True,
            )
            for k, one in enumerate(self.random)
        ]
        panels = [
            Panel(tuple(spectrum), x="index", y="exponent per block", title="Lyapunov exponents"),
            panel("largest growth of a deviation", lambda one: one.growth[:, 0]),
            panel("growth of gradients", lambda one: one.gradient),
            panel("change of log(1 - cos)", lambda one: one.angle),
        ]
        title = f"{'/'.join(Path(self.model).parts[-2:])}: exponents along depth, {self.tokens} tokens"
        return draw_panels(panels, title, f"{self.sentence().capitalize()}.", path)


def depth_exponents(
    source: Any,
    text: Any,
    *,
    count: int = COUNT,
    seed: int = 0,
    nulls: int | None = None,
    stack: str | None = None,
    tokenizer: Any = None,
    max_tokens: int | None = None,
    device: Any = None,
    dtype: Any = None,
    layers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DepthExponents:
    """Measure Lyapunov, angle and gradient exponents of a model along its blocks, for one text.

    Parameters
    ----------
    source, text, stack, tokenizer, max_tokens, device, layers : as for ``trace``; the model needs a family.
    dtype : "float32" or "float64"; None for that of a model in memory, and for float32 otherwise. Derivatives in 16 bits are not exact
        enough.
    count : number of Lyapunov exponents, and of random gradients.
    seed : of tangent vectors and gradients.
    nulls : number of models with random weights that read the same text; None for one if the model has at most 3e8 parameters.
    progress : called with (blocks done, all blocks).

    Returns
    -------
    DepthExponents

    References
    ----------
    [cowsik2024geometric]_
    """
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source, structural=True)
    if checkpoint.model is None and dtype is None:
        dtype = torch.float32
    precision = choose_run(checkpoint, device, dtype)[1]
    if precision.itemsize < 4:
        name = str(precision).removeprefix("torch.")
        raise InputError(f"exponents need float32 or float64, and {checkpoint.name} would run in {name}")
    session = Session.open(checkpoint, tokenizer, (), stack, device, dtype, layers)
    if session.structural:
        raise UnsupportedError(
            f"{session.checkpoint.name} has no family, and exponents need one: the blocks could be others"
        )
    inputs, _ = session.inputs(text, max_tokens)
    if nulls is None:
        nulls = int(sum(part.numel() for part in session.model.parameters()) <= SMALL_MODEL)
    total = (1 + nulls) * 2 * _count_blocks(session)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    def measure(one: Session, name: str) -> DepthExponents:
        blocks, states = record_calls(one, inputs)
        return _measure(name, blocks, states, count, seed, step)

    found = measure(session, session.checkpoint.name)
    random = []
    for index in range(nulls):
        model = initialize(session.checkpoint.config, index, dtype=torch.float32).to(session.device, precision)
        random.append(
            measure(Session.open(model, None, (), session.stack, layers=session.layers), f"random weights {index}")
        )
    return DepthExponents(
        **{
            name: getattr(found, name)
            for name in ("model", "tokens", "exponents", "growth", "angle", "gradient", "norm")
        },
        random=tuple(random),
    )


def _count_blocks(session: Session) -> int:
    """The number of blocks that are measured."""
    count = session.checkpoint.stacks[session.stack or ""]
    return count if session.layers is None else min(count, session.layers)


def record_calls(session: Session, inputs: dict[str, Tensor]) -> tuple[list[Block], list[Tensor]]:
    """The blocks as functions of hidden states (k, n, d), with the other arguments of this input, and the residual stream."""
    model, stack, family = session.model, session.stack or "", session.checkpoint.family
    inputs = {name: session.convert(part) for name, part in inputs.items()}
    count = _count_blocks(session)
    names = list(dict.fromkeys(family.hooked(session.checkpoint.config, stack, index).block for index in range(count)))
    blocks: list[Block] = []
    states: list[Tensor] = []

    def begin(module: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        states.append(get_hidden_states(given, options).detach())
        kept = {name: None if name in CACHES else value for name, value in options.items()}
        blocks.append(lambda x: _call(module, x, given, kept))

    def end(_module: Any, _given: Any, out: Any) -> None:
        last[:] = [get_output(out).detach()]

    last: list[Tensor] = []
    parts = [model.get_submodule(name) for name in names]
    handles = [part.register_forward_pre_hook(begin, with_kwargs=True) for part in parts]
    handles += [part.register_forward_hook(end) for part in parts]
    try:
        with torch.no_grad(), _without_cache(model):
            family.run(model, stack, inputs)
    finally:
        for handle in handles:
            handle.remove()
    states.append(last[0])
    if states[0].ndim != 3 or any(state.shape != states[0].shape for state in states):
        raise UnsupportedError(f"the blocks of {session.checkpoint.name} do not map tokens (1, n, d) to the same shape")
    return blocks, states


def _call(module: Any, x: Tensor, given: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    if given:
        return get_output(module(x, *given[1:], **options))
    return get_output(module(**{**options, "hidden_states": x}))


@contextmanager
def _without_cache(model: Any) -> Iterator[None]:
    """Models that keep keys and values for the next token do not."""
    config: Any = getattr(model, "config", None)
    before = getattr(config, "use_cache", None)
    if before is not None:
        config.use_cache = False
    try:
        yield
    finally:
        if before is not None:
            config.use_cache = before


@contextmanager
def _differentiable() -> Iterator[None]:
    """Attention by plain products, whose fused versions have no derivatives in forward direction."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with warnings.catch_warnings():  # torch compiles these with a function that it deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")
    with sdpa_kernel([SDPBackend.MATH]):
        yield


def _measure(
    name: str, blocks: Sequence[Block], states: list[Tensor], count: int, seed: int, step: Callable[[], None]
) -> DepthExponents:
    """Carry tangent vectors forwards and gradients backwards through the blocks."""
    n, d = states[0].shape[1:]
    if n < 2:
        raise InputError(f"exponents need at least two tokens, got {n}")
    if not 1 <= count <= n * d:
        raise InputError(
            f"{n} tokens of dimension {d} have {n * d} exponents; count must be between 1 and that, got {count}"
        )
    draws = torch.randn(2, count, n, d, generator=torch.Generator().manual_seed(seed)).to(states[0])
    Q = _orthonormal(draws[0])[0]
    growth = []
    with _differentiable():
        for index, block in enumerate(blocks):
            image, moved = push_forward(block, states[index], Q)
            change = float((image - states[index + 1]).norm() / states[index + 1].norm())
            if not change < ALIKE:
                raise UnsupportedError(
                    f"block {index} of {name} called alone differs from the block in the model by {change:.2g}: its exponents "
                    "cannot be measured"
                )
            Q, sizes = _orthonormal(moved)
            growth.append(sizes)
            step()
        w, gradient = draws[1] / draws[1].flatten(1).norm(dim=1)[:, None, None], []
        for index in reversed(range(len(blocks))):
            w = pull_back(blocks[index], states[index], w)
            sizes = w.flatten(1).norm(dim=1)
            gradient.append(float(sizes.double().log().mean()))
            w = w / sizes[:, None, None]
            step()
    rates = np.array(growth)
    means = rates.mean(0)
    order = np.argsort(-means, kind="stable")
    angles = [_log_distance(state[0]) for state in states]
    norms = [0.5 * float(state.double().square().sum(-1).mean().log()) for state in states]
    return DepthExponents(
        name, n, means[order], rates[:, order], np.diff(angles), np.array(gradient[::-1]), np.diff(norms)
    )


def push_forward(block: Block, state: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """The output of a block (1, n, d), and the product of its Jacobian with directions (k, n, d)."""
    import torch.autograd.forward_ad as forward

    with torch.no_grad(), forward.dual_level():
        dual = forward.make_dual(state.expand(len(directions), -1, -1).contiguous(), directions.contiguous())
        image, moved = forward.unpack_dual(block(dual))
        if moved is None:
            raise UnsupportedError("a block has no derivative in forward direction")
        return image[:1].detach(), moved.detach()


def pull_back(block: Block, state: Tensor, gradients: Tensor) -> Tensor:
    """The gradients (k, n, d) by the input of a block, from those by its output."""
    with torch.enable_grad():
        x = state.expand(len(gradients), -1, -1).clone().requires_grad_(True)
        (found,) = torch.autograd.grad(block(x), x, gradients)
    return found.detach()


def _orthonormal(vectors: Tensor) -> tuple[Tensor, np.ndarray]:
    """Orthonormal vectors (k, n, d) with the same span, and the logarithms (k,) of the lengths that they had."""
    basis, R = torch.linalg.qr(vectors.flatten(1).mT.double())
    sizes = np.log(R.diagonal().abs().clamp_min(1e-300).cpu().numpy())
    return basis.mT.reshape(vectors.shape).to(vectors), sizes


def _log_distance(tokens: Tensor) -> float:
    """log(1 - mean cosine) of the pairs of tokens (n, d), without the first of three or more, in which attention often sinks."""
    rest = tokens[1:] if len(tokens) > 2 else tokens
    unit = torch.nn.functional.normalize(rest.double(), dim=-1)
    gaps = 0.5 * torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist").square()
    return float((gaps.sum() / (len(rest) * (len(rest) - 1))).clamp_min(1e-300).log())
