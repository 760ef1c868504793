r"""A norm's gain, bias and centring folded into the law that reads its output.

Attention reads :math:`N(x) = \Gamma \hat x + \beta` with :math:`\hat x = \Pi x/\sigma` of length about :math:`\sqrt d`, where
:math:`\Pi` removes the mean (LayerNorm) or is the identity (RMSNorm). So :math:`Q N(x) + b = (Q\Gamma\Pi)\hat x + (Q\beta + b)`,
and likewise for keys and values; the output projection is unchanged. The folded law moves the unit-gain tokens
:math:`\hat x`, which is what its spectra speak of.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from attractor.attention import Attention, LayerNorm, Norm


def folded(law: Attention, norm: Norm | None) -> Attention:
    """The law that does to :math:`\\hat x` what ``law`` does to N(x)."""
    if norm is None:
        return law
    parts = {}
    for name in ("query", "key", "value"):
        matrix = getattr(law, name)
        parts[name] = _columns(matrix, norm)
        if norm.bias is not None:
            shift = matrix @ norm.bias.to(matrix)
            bias = getattr(law, f"{name}_bias")
            parts[f"{name}_bias"] = shift if bias is None else bias + shift
    return dataclasses.replace(law, **parts)


def bare(norm: Norm | None) -> Norm | None:
    """The norm without gain and bias: the map from x to :math:`\\hat x`."""
    return None if norm is None else type(norm)(None, None, norm.eps)


def _columns(matrix: Tensor, norm: Norm) -> Tensor:
    scaled = matrix if norm.gain is None else matrix * norm.gain.to(matrix)
    return scaled - scaled.mean(-1, keepdim=True) if isinstance(norm, LayerNorm) else scaled
