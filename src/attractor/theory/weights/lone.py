r"""Each head by itself: the forms of its interaction and metric, the spectrum of its value, and the label of the system it is alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.attention import Rotary
from attractor.theory.weights.forms import Form, Spectrum, forms, spectra
from attractor.theory.weights.labels import Label, Setting, label
from attractor.theory.weights.offsets import Offset, families
from attractor.theory.weights.products import SmallMatrices

SINGULAR = 1e12  # condition number beyond which a value has no inverse


@dataclass(frozen=True)
class HeadRegime:
    """One head by itself. ``interaction`` and ``metric`` are the forms of W and V'W in all d dimensions, where a head of k < d/2 rows
    is never definite; ``reduced_interaction``, ``reduced_metric`` and ``value`` are those of the system on the range of its output,
    which the label speaks about. ``metric_asymmetry`` is that of A itself, None where the value is singular."""

    layer: int | None
    head: int
    dim: int
    rank: int
    interaction: Form
    metric: Form
    reduced_interaction: Form
    reduced_metric: Form
    metric_asymmetry: float | None
    value: Spectrum
    offsets: tuple[Offset, ...]
    label: Label

    @property
    def growing(self) -> float:
        """The share of positive directions of the reduced metric."""
        return self.reduced_metric.inertia[0] / self.rank

    def row(self) -> dict[str, Any]:
        """Flat but for the offsets, ready for JSON and tables."""
        forms = ("interaction", "metric", "reduced_interaction", "reduced_metric", "value")
        parts = [getattr(self, name).row(f"{name}_") for name in forms]
        head = {"layer": self.layer, "head": self.head, "dim": self.dim, "rank": self.rank, **words(self.label)}
        row = {key: value for part in (head, *parts) for key, value in part.items()}
        own = {"growing": self.growing, "metric_asymmetry": self.metric_asymmetry}
        return {**row, **own, "offsets": [offset.row() for offset in self.offsets]}


def words(found: Label) -> dict[str, Any]:
    """A label in a row."""
    return {"label": found.name, "certificate": found.certificate, "why": found.why}


def metric_asymmetries(grams: SmallMatrices) -> list[float | None]:
    """The asymmetry of the metric W V^-1 of each reduced system; None where the value is singular."""
    value = grams.reduced_value
    inverse, failed = torch.linalg.inv_ex(value)
    condition = _size(value) * _size(inverse)
    metric = grams.reduced_interaction @ inverse
    share = _size(metric - metric.mT) / 2 / _size(metric).clamp_min(1e-300)
    sound = (failed == 0) & (condition < SINGULAR)
    return [one if fine else None for one, fine in zip(share.tolist(), sound.tolist(), strict=True)]


def _size(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=(-2, -1))


def head_regimes(
    grams: SmallMatrices,
    setting: Setting,
    positions: Rotary | None,
    offsets: Sequence[int],
    band: float,
    single: bool,
    layer: int | None,
) -> list[HeadRegime]:
    """Every head of a group; ``single`` says that weights have the digits of float32 only."""
    dim, members = grams.dim, grams.members
    # under a causal mask the label asks for no offsets
    still = positions is None or (setting.causal and not offsets)
    turned = (
        [()] * len(members) if still or positions is None else families(grams, positions, setting.causal, offsets, band)
    )
    columns = (
        members,
        forms(grams.interaction, dim - grams.interaction.shape[-1], band),
        forms(grams.metric, dim - grams.metric.shape[-1], band),
        forms(grams.reduced_interaction, 0, band),
        forms(grams.reduced_metric, 0, band),
        metric_asymmetries(grams),
        spectra(grams.reduced_value, 0, band),
        turned,
    )
    tolerance = 1e-5 if single else 1e-9
    rows = []
    for member, interaction, metric, small, small_metric, asymmetry, value, around in zip(*columns, strict=True):
        named = label(small_metric, small, value, setting, offsets=around, tolerance=tolerance)
        sizes = layer, member, dim, grams.rank
        rows.append(HeadRegime(*sizes, interaction, metric, small, small_metric, asymmetry, value, around, named))
    return rows
