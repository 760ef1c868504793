"""What the native loop can march, and the parts of it that stay as they are: method, law, space and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from attractor.attention import Attention
from attractor.attention.kernels import L2, Exponential, Linear, Sigmoid, Softmax
from attractor.engines import native
from attractor.engines.contract import MODES
from attractor.flow.control import GROW, SAFETY, SHRINK
from attractor.flow.stops import Collapse, Consensus, Steady
from attractor.flow.watch import NOISE, PATIENCE, REST
from attractor.spaces import Ellipsoid, Euclidean, Sphere
from attractor.states import Tokens

if TYPE_CHECKING:
    from attractor.flow.integration import Integration, Plan

MODE = {Softmax: "softmax", L2: "softmax", Exponential: "exponential", Sigmoid: "sigmoid", Linear: "linear"}
RULES, NAMES = (Consensus, Collapse, Steady), ("consensus", "collapse", "steady")  # numbered as in cpp/watch.h
SPACES = (Euclidean, Sphere, Ellipsoid)  # numbered as in cpp/march.h
FEATURES = 32  # of tokens and of heads: above, matrix products are the work, and libraries do them better
LARGEST = 1024  # tokens of a system: above, Python takes no time beside the evaluations


def fits(run: Integration) -> bool:
    """Whether the native loop knows everything that the run asks for."""
    return run.plan.native and run.y.dtype == torch.float64 and suits(run.plan, run.y)


def suits(plan: Plan, y: Tensor) -> bool:
    """Whether the native loop could march such points, were they in float64."""
    n, dim = y.shape[-2:]
    return (
        not native.reason
        and plan.adaptive
        and plan.stepper.coefficients is not None
        and not plan.events
        and y.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and _knows_law(plan.law)
        and type(plan.space) in SPACES
        and all(type(rule) in RULES for rule in plan.rules)
        and len({type(rule) for rule in plan.rules}) == len(plan.rules)
        and dim <= FEATURES
        and n <= LARGEST
    )


def _knows_law(law: Any) -> bool:
    absent = ("positions", "output", "query_bias", "key_bias", "value_bias", "output_bias")
    return (
        type(law) is Attention
        and type(law.kernel) in MODE
        and all(getattr(law, name) is None for name in absent)
        and isinstance(law.scale, float)
        and law.query.shape[-2] <= FEATURES
    )


def set_plan(loop: native.Loop, plan: Plan, skip_self: bool) -> None:
    """All that does not change while a run marches."""
    assert plan.stepper.coefficients is not None
    loop.set_method(plan.stepper.error_order, plan.stepper.coefficients)
    kinds = [RULES.index(type(rule)) for rule in plan.rules]  # type: ignore[arg-type]
    loop.set_rules(kinds)
    loop.set(**{NAMES[kind]: rule.tolerance for kind, rule in zip(kinds, plan.rules, strict=True)})  # type: ignore[attr-defined]
    loop.set(
        start=plan.start, end=plan.until, rtol=plan.rtol, atol=plan.atol, first_step=plan.step or 0.0, bound=plan.bound
    )
    loop.set(safety=SAFETY, shrink=SHRINK, grow=GROW)
    loop.set(noise=NOISE, patience=float(PATIENCE), enough_rest=float(REST))
    law = plan.law
    assert isinstance(law, Attention)
    loop.set(mode=MODES.index(MODE[type(law.kernel)]), squared=isinstance(law.kernel, L2), scale=law.scale)  # type: ignore[index, arg-type]
    loop.set(averaged=not law.kernel.normalised, bias=getattr(law.kernel, "bias", 0.0))  # type: ignore[union-attr]
    loop.set(skip_self=skip_self and law._value_scalars is not None)
    loop.set(space=SPACES.index(type(plan.space)), radius=getattr(plan.space, "radius", 1.0))  # type: ignore[arg-type]
    if isinstance(plan.space, Ellipsoid):
        loop.hold(matrix=plan.space.W.to(torch.float64).contiguous())


def set_law(loop: native.Loop, law: Attention, tokens: Tokens) -> None:
    """Parameters, of each member or of all, and the mask."""
    contents = tuple(matrix.detach().numpy().tobytes() for matrix in (law.query, law.key, law.value))
    known = _known.get(law)
    if known is None or known[0] != contents:  # parameters may be changed in place
        _known[law] = known = (contents, *_parameters(law))
    _, arrays, numbers = known
    loop.hold(**arrays)
    loop.set(**numbers)
    hide = {} if law.mask is None else law.mask.hide(tokens)
    window, visible = hide.get("window"), hide.get("visible")
    loop.set(causal=hide.get("causal", False), window=0 if window is None else min(window, 2 * tokens.n))
    if visible is not None:
        visible = visible.reshape(-1, tokens.n, tokens.n).contiguous()
        loop.hold(visible=visible)
        loop.set(visible_stride=0 if len(visible) == 1 else tokens.n**2)


_known: WeakKeyDictionary[Attention, tuple[tuple[bytes, ...], dict[str, np.ndarray], dict[str, float]]] = (
    WeakKeyDictionary()
)


def _parameters(law: Attention) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Arrays and numbers that the loop is told of a law."""
    query, key, value = (_four(matrix) for matrix in (law.query, law.key, law.value))
    _, heads, e, d = query.shape
    diagonal = e == d and _diagonal(query) and _diagonal(key)
    uniform = diagonal and _uniform(query) and _uniform(key)
    arrays = {"query": query, "key": key}
    numbers = {"heads": heads, "e": e, "query_stride": _stride(query), "diagonal": diagonal, "uniform": uniform}
    if law._value_scalars is None:
        return {**arrays, "value": value}, {**numbers, "value_stride": _stride(value)}
    factors = np.ascontiguousarray(value[..., 0, 0])
    return {**arrays, "factors": factors}, {**numbers, "factor_stride": _stride(factors)}


def _four(matrix: Tensor) -> np.ndarray:
    """(members or 1, heads, rows, d)."""
    array = np.ascontiguousarray(matrix.detach().numpy(), dtype=np.float64)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _stride(array: np.ndarray) -> int:
    return 0 if len(array) == 1 else array[0].size


def _uniform(matrix: np.ndarray) -> bool:
    """Whether diagonal matrices are multiples of the identity."""
    return bool((matrix.diagonal(axis1=-2, axis2=-1) == matrix[..., :1, 0]).all())


def _diagonal(matrix: np.ndarray) -> bool:
    return bool(np.count_nonzero(matrix) == np.count_nonzero(matrix.diagonal(axis1=-2, axis2=-1)))
