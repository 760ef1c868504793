"""Attention layers whose regime is fixed by their parameterisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attractor.errors import InputError
from attractor.nn.layer import AttentionLayer
from attractor.nn.parameters import PIVOT, Formed, Signed, Weights, split_heads, split_output, working_dtype
from attractor.registry import check_name

Solve = Literal["quotient", "product"]
SMALLEST = 1e-2  # lower bound of the eigenvalues of the initial symmetric part


class Official(Formed):
    """The published parameterisation: free query and output (d, d), definite ``interaction`` and ``metric`` (d, d).

    It starts as the published code does. With an initial matrix M, that of ``nn.Linear`` for the interaction and an orthogonal one for
    the metric, the strictly lower triangle of L is that of the Cholesky factor of the symmetric part of M with eigenvalues of at least
    0.01, and the skew part is T - T' with a second such matrix T. At d = 192 the skew part of the interaction is then 4.4 times as
    large as the symmetric one in Frobenius norm, and the value has a spectral norm of about 6.
    """

    def __init__(self, signs: Tensor, inner: Tensor, heads: int, skew: bool, solve: Solve, pivot: float) -> None:
        super().__init__()
        if solve not in ("quotient", "product"):
            raise InputError(f"solve must be 'quotient' or 'product', got {solve!r}")
        dim = signs.shape[0]
        self.heads, self.solve = heads, solve
        self.query, self.output = (nn.Parameter(nn.init.orthogonal_(torch.empty(dim, dim))) for _ in range(2))
        self.interaction = Signed(inner.flatten(), skew=skew, pivot=pivot)
        self.metric = Signed(signs, skew=skew, pivot=pivot)
        for part, draw in ((self.interaction, _draw_linear), (self.metric, nn.init.orthogonal_)):
            first, second = (draw(torch.empty(dim, dim)) for _ in range(2))
            part.start(_lower(first), second - second.mT)
        self.mark_form()

    @property
    def form(self) -> str:
        return f"layer of official orientation with solve={self.solve!r}"

    def weights(self, dtype: torch.dtype | None = None) -> Weights:
        wide = working_dtype(self.query.dtype, dtype)
        with torch.autocast(self.query.device.type, enabled=False):
            query, interaction, metric = self.query.to(wide), self.interaction(wide), self.metric(wide)
            # the variant without a check of singularity: it does not wait for the device, and a singular factor shows as NaN
            key = torch.linalg.solve_ex(query, interaction).result.mT
            left, right = (metric, interaction) if self.solve == "quotient" else (interaction, metric)
            value = torch.linalg.solve_ex(left, right).result
            value = value if self.solve == "quotient" else value.mT
            query, key, value = (split_heads(part, self.heads) for part in (query, key, value))
            return Weights(query, key, value, split_output(self.output.to(wide), self.heads))


def _draw_linear(matrix: Tensor) -> Tensor:
    """Fill a matrix as ``nn.Linear`` does."""
    return nn.init.kaiming_uniform_(matrix, a=5**0.5)


def _lower(matrix: Tensor) -> Tensor:
    """The Cholesky factor of the symmetric part with clipped eigenvalues."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    return torch.linalg.cholesky((vectors * values.clamp_min(SMALLEST)) @ vectors.mT)


Regime = Literal["convergent", "divergent", "intermediate"]
Skew = Literal["none", "interaction", "both"]


class DefiniteAttention(AttentionLayer):
    r"""Self-attention that is convergent, divergent or intermediate for all values of its parameters.

    Head h has a key map :math:`P_h` (k, d) and a matrix :math:`S_h` (k, k) whose symmetric part is definite; all heads share a symmetric
    :math:`B` (d, d):

    .. math:: K_h = P_h,\quad Q_h = S_h^\top P_h,\quad V_h = S_h P_h,\quad O_h = B P_h^\top.

    So :math:`W_h = Q_h^\top K_h = P_h^\top S_h P_h` and :math:`O_h V_h = B W_h`: the metric :math:`A = B^{-1}` is the same for all heads.
    The signs of :math:`S_h` and :math:`B` are those of the pivots of an LDL' factorisation, which training cannot change.

    Parameters
    ----------
    dim, heads : width d and number of heads.
    regime : "convergent" (B negative definite), "divergent" (positive definite) or "intermediate" (indefinite).
    head_dim : dimension k; heads * head_dim must be at least dim, otherwise the sum of interactions cannot be definite.
    negative : share of negative directions of the metric in the intermediate regime.
    signs : signs (+1 or -1) of the d pivots of the metric, instead of those of the regime, with the same number of negative ones.
    interaction : "positive" or "negative", the sign of all S_h; a negative interaction polarises with a positive metric and escapes with
        a negative one. Or signs (heads, head_dim) of all pivots: the metric and the interactions then have together as many
        negative signs as the regime, at any place, and the layer has no regime. This is a control for the parameterisation.
    skew : "interaction" (or True) adds a skew part to every S_h, which the theorems allow; "both" also to B, as in the published
        experiments, and then no theorem applies; "none" (or False) has symmetric S_h.
    metric : "full" or "diagonal" B.
    relaxed : value and output are free parameters that start as the regime defines them; only the interactions stay definite.
    orientation : "token", or "official" for the published (d, d) parameterisation, which makes Wq Wk' definite instead of Wq' Wk,
        ignores heads and output, and so guarantees nothing about tokens.
    solve : definition of the value in the official orientation: "quotient" (EnWik8, ImageNet) or "product" (WikiText-103).
    pivot : initial size of the pivots.

    Other options (causal, positions, scale, refinement, dropout, kernel) are those of ``AttentionLayer``.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        regime: Regime = "convergent",
        *,
        head_dim: int | None = None,
        negative: float = 0.5,
        signs: Sequence[int] | None = None,
        interaction: Literal["positive", "negative"] | Sequence[Sequence[int]] = "positive",
        skew: Skew | bool = "interaction",
        metric: Literal["full", "diagonal"] = "full",
        relaxed: bool = False,
        orientation: Literal["token", "official"] = "token",
        solve: Solve = "quotient",
        pivot: float = PIVOT,
        **options: Any,
    ) -> None:
        super().__init__(dim, heads, head_dim=head_dim, **options)
        self.regime, self.orientation, self.relaxed = regime, orientation, bool(relaxed)
        inner, skew = _interaction(interaction, heads, self.head_dim), _skew(skew)
        elsewhere = 0 if isinstance(interaction, str) else int((inner < 0).sum())
        chosen = _signs(regime, dim, negative, signs, elsewhere)
        if metric not in ("full", "diagonal"):
            raise InputError(f"metric must be 'full' or 'diagonal', got {metric!r}")
        if not 0 < pivot < float("inf"):
            raise InputError(f"pivots start at a positive number, got {pivot}")
        if orientation == "official":
            if relaxed or metric == "diagonal" or self.head_dim * heads != dim:
                raise InputError(
                    "the official orientation has d x d matrices: no relaxed version, no diagonal metric, head_dim = dim / heads"
                )
            self.core: Token | Official = Official(chosen, inner, heads, skew != "none", solve, pivot)
        elif orientation == "token":
            self.core = Token(chosen, inner, heads, self.head_dim, skew, metric == "diagonal", self.relaxed, pivot)
        else:
            raise InputError(f"orientation must be 'token' or 'official', got {orientation!r}")
        if self.refinement is not None:
            self.refinement.check_metric(self.metric_diagonal())

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **options: Any) -> None:
        """Raise before loading if the signs differ: weights of another regime have the same shapes."""
        for name, own in self.named_buffers():
            if not name.endswith("signs"):
                continue
            given = state_dict.get(prefix + name)
            if own.is_meta or not isinstance(given, Tensor) or given.shape != own.shape:
                continue
            if bool((given.to(own) != own).any()):
                part = "metric" if "metric" in name else "interactions"
                raise InputError(
                    f"the weights have {_negatives(given)} of the {part} and this {self.regime} layer has {_negatives(own)}"
                    f"{'' if int((given < 0).sum()) != int((own < 0).sum()) else ' at other places'}: they are of another "
                    "regime; make the layer with the regime, signs and interaction that they were trained with"
                )
        super()._load_from_state_dict(state_dict, prefix, *args, **options)

    def weights(self, dtype: torch.dtype | None = None) -> Weights:
        return self.core.weights(dtype)

    def inverse_metric(self, dtype: torch.dtype | None = None) -> Tensor:
        """B (d, d), the inverse of the metric A shared by all heads."""
        if not isinstance(self.core, Token) or self.core.inverse_metric is None:
            kind = "relaxed layer" if self.relaxed else "layer of official orientation"
            raise InputError(f"a {kind} has no metric that its heads share; exact layers of token orientation do")
        return self.core.inverse_metric(dtype)

    def metric_diagonal(self, dtype: torch.dtype | None = None) -> Tensor | None:
        found = self.core.inverse_metric if isinstance(self.core, Token) else None
        return 1.0 / found.scaled_pivots(dtype) if found is not None and found.diagonal and found.skew is None else None

    def extra_repr(self) -> str:
        kind = "official orientation" if self.orientation == "official" else "relaxed" if self.relaxed else "exact"
        return f"regime={self.regime} ({kind}), {super().extra_repr()}"


class Token(nn.Module):
    """Parameters P (h, k, d), S (h, k, k) and B (d, d); relaxed: value and output instead of B."""

    def __init__(
        self,
        signs: Tensor,
        inner: Tensor,
        heads: int,
        head_dim: int,
        skew: Skew,
        diagonal: bool,
        relaxed: bool,
        pivot: float,
    ) -> None:
        super().__init__()
        dim = signs.shape[0]
        if heads * head_dim < dim:
            raise InputError(
                f"{heads} heads of dimension {head_dim} span {heads * head_dim} of {dim} dimensions, so their interactions cannot "
                f"add up to a definite one: head_dim must be at least {-(-dim // heads)}"
            )
        # entries of variance 1/d, as for independent normal ones, but well conditioned
        start = nn.init.orthogonal_(torch.empty(heads * head_dim, dim))
        self.projection = nn.Parameter((start * (heads * head_dim / dim) ** 0.5).unflatten(0, (heads, head_dim)))
        self.interaction = Signed(inner, heads, skew=skew != "none", pivot=pivot)
        metric = Signed(signs, diagonal=diagonal, skew=skew == "both", pivot=pivot)
        self.inverse_metric = None if relaxed else metric
        if relaxed:
            with torch.no_grad():
                projection = self.projection.detach()
                self.value = nn.Parameter(self.interaction() @ projection)
                self.output = nn.Parameter(metric() @ projection.mT)

    def weights(self, dtype: torch.dtype | None = None) -> Weights:
        wide = working_dtype(self.projection.dtype, dtype)
        with torch.autocast(self.projection.device.type, enabled=False):
            projection, inner = self.projection.to(wide), self.interaction(wide)
            query = inner.mT @ projection
            if self.inverse_metric is None:
                return Weights(query, projection, self.value.to(wide), self.output.to(wide))
            if self.inverse_metric.diagonal and self.inverse_metric.skew is None:
                output = self.inverse_metric.scaled_pivots(wide).unsqueeze(-1) * projection.mT
            else:
                output = self.inverse_metric(wide) @ projection.mT
            return Weights(query, projection, inner @ projection, output)


def _signs(regime: str, dim: int, negative: float, signs: Sequence[int] | None, elsewhere: int) -> Tensor:
    """Signs of the metric's pivots, negative ones first by default; ``elsewhere`` is the number of negative signs of the interactions."""
    check_name(regime, ("convergent", "divergent", "intermediate"), "regime")
    if not 0 <= negative <= 1:
        raise InputError(f"negative is a share of directions, between 0 and 1, got {negative}")
    count = {"convergent": dim, "divergent": 0, "intermediate": int(negative * dim)}[regime] - elsewhere
    if signs is None and count >= 0:
        return torch.cat((-torch.ones(count), torch.ones(dim - count)))
    try:
        found = torch.zeros(0) if signs is None else torch.tensor([float(sign) for sign in signs])
    except (TypeError, ValueError):
        found = torch.zeros(0)
    if found.shape != (dim,) or not bool((found.abs() == 1).all()) or int((found < 0).sum()) != count:
        more = f" (beside {elsewhere} of the interactions)" if elsewhere else ""
        given = "none" if signs is None else signs if isinstance(signs, str) else found.tolist() or signs
        raise InputError(
            f"signs must be {dim} numbers +1 or -1, {max(count, 0)} of them negative for this regime{more}, got {given}"
        )
    return found


def _negatives(signs: Tensor) -> str:
    return f"{int((signs < 0).sum())} of {signs.numel()} negative signs"


def _interaction(given: str | Sequence[Sequence[int]], heads: int, head_dim: int) -> Tensor:
    """Signs (heads, head_dim) of the pivots of every S_h."""
    if isinstance(given, str) and given in ("positive", "negative"):
        return (1.0 if given == "positive" else -1.0) * torch.ones(heads, head_dim)
    try:
        signs = torch.tensor([[float(sign) for sign in row] for row in given])
    except (TypeError, ValueError):  # a word, a number, rows of different lengths
        signs = torch.zeros(0)
    if signs.shape != (heads, head_dim):
        raise InputError(
            f"interaction must be 'positive', 'negative' or {heads} rows of {head_dim} signs +1 or -1, got {given!r}"
        )
    if not bool((signs.abs() == 1).all()):
        raise InputError(f"the signs of an interaction are +1 or -1, got {given!r}")
    return signs


def _skew(skew: Skew | bool) -> Skew:
    if isinstance(skew, bool):
        return "interaction" if skew else "none"
    if skew not in ("none", "interaction", "both"):
        raise InputError(f"skew must be 'none', 'interaction' or 'both', got {skew!r}")
    return skew
