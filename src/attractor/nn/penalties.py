"""Soft regimes: penalties on the weights and the tokens of a model, as terms of its training loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attractor.errors import InputError, UnsupportedError
from attractor.nn.attention_sites import AttentionSite, find_attention_sites
from attractor.nn.layer import AttentionLayer
from attractor.nn.parameters import Weights
from attractor.registry import check_name

Number = float | Sequence[float] | Callable[[int, int], float]
TERMS = ("form", "growth", "cosine")
REGIMES = {"convergent": -1.0, "divergent": 1.0}


@dataclass(frozen=True)
class Penalties:
    """Values of the terms of a ``RegimeLoss``, for every layer (layers,), without their coefficients.

    Attributes
    ----------
    form : smallest (or largest) eigenvalue of the symmetric part of V'W, relative to its Frobenius norm.
    growth : largest real part of the eigenvalues of the value map.
    cosine : mean cosine of tokens after the layer; NaN where the model has not run.
    """

    form: Tensor
    growth: Tensor
    cosine: Tensor


class RegimeLoss:
    """See ``regime_loss``."""

    def __init__(
        self,
        model: nn.Module,
        regime: str | None,
        form: Number,
        growth: Number,
        cosine: Number,
        margin: Number,
        growth_target: Number,
        cosine_target: Number,
    ) -> None:
        if regime is not None:
            check_name(regime, REGIMES, "regime")
        self.layers = find_attention_layers(model)
        self.regime = regime
        targets: dict[str, Number] = {"form": margin, "growth": growth_target, "cosine": cosine_target}
        names = {"form": "margin", "growth": "growth_target", "cosine": "cosine_target"}
        self.targets = {
            name: _check_numbers(names[name], one, len(self.layers), False) for name, one in targets.items()
        }
        if regime is None and not _is_zero(form):
            raise InputError(
                "the penalty on sym(V'W) pushes it to a sign: give regime='convergent' or 'divergent', or form=0"
            )
        given: dict[str, Number] = {"form": form, "growth": growth, "cosine": cosine}
        self.coefficients = {name: _check_numbers(name, one, len(self.layers), True) for name, one in given.items()}
        self._states: dict[int, Tensor] = {}
        self._handles = [] if _is_zero(cosine) else self._listen(model)

    def __call__(self, step: int = 0) -> Tensor:
        """The weighted sum of all terms, differentiable; ``step`` is that of schedules.

        The term of cosines belongs to the last forward pass of the model.
        """
        total: Tensor | None = None
        for index, layer in enumerate(self.layers):
            factors = {name: one(step, index) for name, one in self.coefficients.items()}
            targets = {name: one(step, index) for name, one in self.targets.items()}
            terms: list[Tensor] = []
            if factors["form"] or factors["growth"]:
                weights = layer.read()
                if factors["form"]:
                    sign = REGIMES[str(self.regime)]
                    terms.append(
                        factors["form"] * functional.relu(targets["form"] - sign * extreme_form(weights, sign))
                    )
                if factors["growth"]:
                    terms.append(factors["growth"] * self._growth_term(value_abscissa(weights) - targets["growth"]))
            if factors["cosine"]:
                terms.append(factors["cosine"] * functional.relu(self._cosine(index) - targets["cosine"]))
            for term in terms:
                total = term if total is None else total + term.to(total.device)
        return torch.zeros(()) if total is None else total

    def _growth_term(self, excess: Tensor) -> Tensor:
        """The excess of the largest real part over its target, or what is missing in the divergent regime."""
        return functional.relu(-excess if self.regime == "divergent" else excess)

    def _cosine(self, index: int) -> Tensor:
        if index not in self._states:
            raise InputError(
                "the penalty on cosines needs the tokens of a forward pass: call the model before the penalty"
            )
        return mean_cosine(self._states[index])

    def measure(self) -> Penalties:
        """The quantities that are penalised, without gradients; cosines of the last forward pass."""
        with torch.no_grad():
            forms, growths, cosines = [], [], []
            for index, layer in enumerate(self.layers):
                weights = layer.read()
                forms.append(extreme_form(weights, REGIMES.get(str(self.regime), 1.0)))
                growths.append(value_abscissa(weights))
                known = index in self._states
                cosines.append(mean_cosine(self._states[index]) if known else torch.tensor(math.nan))
        return Penalties(
            *(torch.stack([one.detach().cpu().float() for one in part]) for part in (forms, growths, cosines))
        )

    def remove(self) -> None:
        """Remove the hooks from the model."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._states = [], {}

    def _listen(self, model: nn.Module) -> list[Any]:
        """Keep the tokens after the block of every attention layer in training, or in any mode with gradients."""
        names = {id(module): name for name, module in model.named_modules()}
        handles = []
        for index, layer in enumerate(self.layers):
            block = model.get_submodule(_block_name(names[id(layer.module)]))
            handles.append(block.register_forward_hook(self._keep(index)))
        return handles

    def _keep(self, index: int) -> Callable[..., None]:
        def keep(_module: nn.Module, _given: Any, out: Any) -> None:
            hidden = out if isinstance(out, Tensor) else out[0]
            if hidden.requires_grad or index not in self._states:
                self._states[index] = hidden

        return keep


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """One attention layer of a model: its module, and where its projections are."""

    module: Any
    site: AttentionSite | None = None

    def read(self) -> Weights:
        """The weights now, differentiable, with a refinement in the interactions."""
        if self.site is None:
            weights, refinement = self.module.weights(), self.module.refinement
            if refinement is None:
                return weights
            return refinement.merge(weights, self.module.metric_diagonal())
        weights = self.site.weights(self.module)
        if "refined" not in vars(self.module):
            return weights
        from attractor.nn.attention_interface import get_refinement

        return get_refinement(self.module).merge(weights, None)


def find_attention_layers(model: nn.Module) -> list[AttentionMaps]:
    """The self-attention layers of a model: those of ``attractor.nn``, or of the families that ``refine`` knows."""
    own = [AttentionMaps(part) for part in model.modules() if isinstance(part, AttentionLayer)]
    found = own or [AttentionMaps(module, site) for _, module, site in find_attention_sites(model)]
    if not found:
        raise UnsupportedError(
            f"a {type(model).__name__} has no attention layer of attractor.nn and none of the families that refine knows, so its "
            "regime cannot be penalised"
        )
    return found


def extreme_form(weights: Weights, sign: float) -> Tensor:
    """The smallest eigenvalue of the mean over heads of sym(V'W), for ``sign`` > 0, or the largest, relative to its Frobenius norm."""
    values, interactions = _widen(weights.value_map()), _widen(weights.interaction())
    form = (values.mT @ interactions).mean(0)
    form = (form + form.mT) / 2
    eigenvalues = torch.linalg.eigvalsh(form)
    norm = form.norm().clamp_min(torch.finfo(form.dtype).tiny)
    return (eigenvalues[0] if sign > 0 else eigenvalues[-1]) / norm


def value_abscissa(weights: Weights) -> Tensor:
    """The largest real part of the eigenvalues of the value map of the layer, the sum over heads."""
    return torch.linalg.eigvals(_widen(weights.value_map()).sum(0)).real.max()


def _widen(x: Tensor) -> Tensor:
    """Numbers in float32 at least."""
    return x if x.dtype == torch.float64 else x.float()


def mean_cosine(tokens: Tensor) -> Tensor:
    """The mean cosine of different tokens, over sequences (..., n, d)."""
    unit = functional.normalize(_widen(tokens), dim=-1)
    n = unit.shape[-2]
    return ((unit.sum(-2).square().sum(-1) - n) / max(n * (n - 1), 1)).mean()


def _block_name(attention: str) -> str:
    """The name of the block of an attention module: what stands in the innermost numbered list."""
    parts = attention.split(".")
    numbered = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbered[-1] + 1]) if numbered else attention


def _is_zero(given: Any) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and given == 0


def _check_numbers(name: str, given: Any, layers: int, positive: bool) -> Callable[[int, int], float]:
    """A function of step and layer from a number, one number for each layer, or a function."""
    if callable(given):

        def scheduled(step: int, layer: int) -> float:
            return _check_number(name, given(step, layer), positive)

        return scheduled
    if isinstance(given, Iterable) and not isinstance(given, (str, Mapping)):
        values = [_check_number(name, one, positive) for one in given]
        if len(values) != layers:
            raise InputError(f"{name} must be one number or one for each of {layers} layers, got {len(values)}")
        return lambda step, layer: values[layer]
    value = _check_number(name, given, positive)
    return lambda step, layer: value


def _check_number(name: str, value: Any, positive: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{name} of a penalty must be a finite number, got {value!r}")
    if positive and value < 0:
        raise InputError(
            f"the weight {name} of a penalty must be at least 0, got {value!r}: a negative one would reward what it penalises"
        )
    return float(value)


def regime_loss(
    model: nn.Module,
    regime: str | None = None,
    *,
    form: Number = 0.0,
    growth: Number = 0.0,
    cosine: Number = 0.0,
    margin: Number = 0.0,
    growth_target: Number = 0.0,
    cosine_target: Number = 0.0,
) -> RegimeLoss:
    r"""Penalties that move the attention of a model towards a regime, as a term of the loss.

    With :math:`F_l` the symmetric part of the mean over heads of :math:`V_h^\top W_h`, divided by its Frobenius norm,
    :math:`a_l = \max \Re\,\mathrm{spec}(\sum_h V_h)` and :math:`c_l` the mean cosine of tokens after the block of layer l, the loss is

    .. math:: \sum_l \alpha_l\,[m - \sigma\lambda(F_l)]_+ + \beta_l\,[\pm(a_l - a)]_+ + \gamma_l\,[c_l - c]_+ ,

    where :math:`\sigma\lambda(F)` is :math:`\lambda_{\min}(F)` for the divergent regime and :math:`-\lambda_{\max}(F)` for the
    convergent one. A refinement is contained in :math:`W_h`. Call the result once in every step and add it to the loss:
    ``loss = model(...).loss + penalty(step)``.

    Parameters
    ----------
    model : a model with layers of ``attractor.nn``, or one that ``refine`` takes.
    regime : "convergent" or "divergent"; not needed without ``form``.
    form, growth, cosine : the coefficients :math:`\alpha, \beta, \gamma` of the three terms: a number, one for each layer, or a function
        of step and layer.
    margin, growth_target, cosine_target : the targets m, a and c, each a number, one for each layer, or a function of step and layer. Real
        parts above a are penalised, in the divergent regime those below.

    Notes
    -----
    The eigenvalue of a rank-deficient form is 0 at best: a margin above 0 can only be reached where the values and interactions of a layer
    span all d dimensions. Rotary positions are left out of W, so the form is that of tokens at equal positions.
    """
    return RegimeLoss(model, regime, form, growth, cosine, margin, growth_target, cosine_target)


UNDECAYED = ("pivots", "lower", "skew", "theta", "log_temperature", "log_gain")


def param_groups(model: nn.Module, decay: float = 0.01) -> list[dict[str, Any]]:
    """Groups of parameters for an optimiser: matrices with weight decay; vectors, and what decay would change the meaning of, without.

    The second group has all parameters with fewer than two axes (biases and norms), the signs and triangular factors of
    ``DefiniteAttention``, learned temperatures and gains, and the parameters of refinements. Decay of the parameter theta of a refinement
    of sign "+" raises its strength: :math:`\\mathrm{softplus}(0) = 0.69`, and strengths usually start at 0.05. Parameters that need no
    gradient are left out, and shared ones occur once.

    Parameters
    ----------
    model : any module.
    decay : the ``weight_decay`` of the first group.
    """
    if isinstance(decay, (str, bool)) or not isinstance(decay, (int, float)) or not 0 <= decay < math.inf:
        raise InputError(f"decay must be a finite number of at least 0, got {decay!r}")
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[parameter.ndim > 1 and name.rpartition(".")[2] not in UNDECAYED].append(parameter)
    return [{"params": groups[True], "weight_decay": float(decay)}, {"params": groups[False], "weight_decay": 0.0}]
