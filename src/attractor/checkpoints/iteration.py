"""What an iteration is asked to do, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attractor.checkpoints.decays import Decay, decay
from attractor.errors import InputError


@dataclass(frozen=True)
class Protocol:
    """What is done in every pass, in the words of the scripts.

    ``random`` draws the model's weights anew before the run, ``redraw`` before every pass (seed + 1 + pass); ``init`` says from
    what distribution. ``seed`` also draws random prompts.
    """

    passes: int = 100
    feedforward: bool = True
    final_norm: bool = True
    random: bool = False
    redraw: bool = False
    init: str = "family"
    seed: int = 0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise InputError(f"passes must be at least 1, got {self.passes}")
        if not self.dtype.is_floating_point:
            raise InputError(f"dtype must be a floating type, got {self.dtype}")


@dataclass(frozen=True)
class Iteration:
    """Curves of all prompts, (prompts, passes + 1) each, of the tokens that the next pass takes.

    ``normed`` is the official metric after the final norm (from the first pass on; the same where that norm stands between passes),
    ``by_layer`` the metric after every block, (prompts, passes x layers + 1). ``words`` has the decoded text of every prompt at
    chosen passes. ``final`` are the last tokens.
    """

    model: str
    layers: int
    protocol: Protocol
    prompts: tuple[str, ...]
    lengths: tuple[int, ...]
    curves: dict[str, np.ndarray]
    normed: np.ndarray
    by_layer: np.ndarray
    words: dict[int, tuple[str, ...]]
    notes: tuple[str, ...]
    seconds: float
    final: tuple[Tensor, ...] = field(repr=False, default=())

    @property
    def metric(self) -> np.ndarray:
        """The official metric, its mean over prompts, (passes + 1,)."""
        return self.curves["consensus_metric"].mean(0)

    @property
    def floor(self) -> float:
        """Where rounding of the tokens hides the metric, which is a squared distance."""
        return float((100 * torch.finfo(self.protocol.dtype).eps) ** 2)

    @property
    def law(self) -> Decay:
        """The law of the mean over prompts."""
        return decay(self.metric, self.floor)

    @property
    def laws(self) -> tuple[Decay, ...]:
        """The law of every prompt."""
        return tuple(decay(row, self.floor) for row in self.curves["consensus_metric"])
