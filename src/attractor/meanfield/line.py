r"""Transport on the line, exact: :math:`W_p^p = \int_0^1 |F^{-1}(u) - G^{-1}(u)|^p\,du`, with any leading axes.

Against a normal law the integral is closed as well. With cells :math:`[u_{i-1}, u_i]` of width :math:`w_i` under the sorted
points, :math:`z_i = \Phi^{-1}(u_i)` and :math:`e_i = (\varphi(z_{i-1}) - \varphi(z_i))/w_i` the mean of a standard normal over
its cell, :math:`W_2^2 = \sum_i w_i (x_i - m - \sigma e_i)^2 + \sigma^2 (1 - \sum_i w_i e_i^2)`: a distance of means of cells, and
what remains however well the points are placed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def quantile_distance(x: Tensor, x_weights: Tensor | None, y: Tensor, y_weights: Tensor | None, p: float) -> Tensor:
    """W_p^p (...) of points x (..., n) and y (..., m) on the line; weights sum to one, None are all equal."""
    if x_weights is None and y_weights is None and x.shape[-1] == y.shape[-1]:
        return ((x.sort(-1).values - y.sort(-1).values).abs() ** p).mean(-1)
    x, x_levels = _ordered(x, x_weights)
    y, y_levels = _ordered(y, y_weights)
    batch = torch.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    x, x_levels, y, y_levels = (part.expand(*batch, -1).contiguous() for part in (x, x_levels, y, y_levels))
    levels = torch.cat((x_levels, y_levels), -1).sort(-1).values
    widths = torch.diff(levels, dim=-1, prepend=torch.zeros_like(levels[..., :1]))
    there = (_at(x, x_levels, levels) - _at(y, y_levels, levels)).abs() ** p
    return (widths * there).sum(-1)


def normal_distance(x: Tensor, weights: Tensor | None, mean: Tensor, deviation: Tensor) -> Tensor:
    """W_2^2 (...) of points x (..., n) on the line and the normal law of a mean and a standard deviation (...)."""
    x, levels = _ordered(x, weights)
    widths = torch.diff(levels, dim=-1, prepend=torch.zeros_like(levels[..., :1]))
    z = torch.special.ndtri(levels)  # infinite at one, where the density vanishes
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    masses = torch.diff(-density, dim=-1, prepend=torch.zeros_like(density[..., :1]))
    cells = torch.where(widths > 0, masses / torch.where(widths > 0, widths, 1.0), 0.0)
    offset = x - mean.unsqueeze(-1) - deviation.unsqueeze(-1) * cells
    rest = (1.0 - (widths * cells**2).sum(-1)).clamp_min(0.0)
    return (widths * offset**2).sum(-1) + deviation**2 * rest


def line_energy(x: Tensor, x_weights: Tensor | None, y: Tensor, y_weights: Tensor | None) -> Tensor:
    r""":math:`2\int (F - G)^2`, which on the line is :math:`2E|X-Y| - E|X-X'| - E|Y-Y'|`; weights as above."""
    x, x_levels = _ordered(x, x_weights)
    y, y_levels = _ordered(y, y_weights)
    places = torch.cat((x, y), -1).sort(-1).values
    gap = _distribution(x, x_levels, places) - _distribution(y, y_levels, places)
    return 2.0 * (gap[..., :-1] ** 2 * places.diff(dim=-1)).sum(-1)


def _ordered(x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Points in order and the distribution function after each, which ends at exactly one."""
    x, order = x.sort(-1)
    if weights is None:
        levels = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device).expand(x.shape) / x.shape[-1]
        return x, levels
    levels = weights.expand(x.shape).gather(-1, order).cumsum(-1)
    return x, levels / levels[..., -1:]


def _at(x: Tensor, x_levels: Tensor, levels: Tensor) -> Tensor:
    """The quantile just below each level."""
    index = torch.searchsorted(x_levels, levels.contiguous()).clamp_max(x.shape[-1] - 1)
    return x.gather(-1, index)


def _distribution(x: Tensor, x_levels: Tensor, places: Tensor) -> Tensor:
    """Mass at or left of each place."""
    count = torch.searchsorted(x.contiguous(), places.contiguous(), right=True)
    padded = torch.cat((torch.zeros_like(x_levels[..., :1]), x_levels), -1)
    return padded.gather(-1, count)
