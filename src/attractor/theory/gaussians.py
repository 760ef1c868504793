"""Gaussian measures under attention: hypotheses and random cases for theorems of the mean field."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Attention, Kernel, has_kernel
from attractor.solvers import Trajectory, flow
from attractor.states import Gaussian
from attractor.theory import hypotheses as given
from attractor.theory.conditions import Hypothesis, Margin, decided, strictly, vanishing, weakly
from attractor.theory.sampling import Draw, definite, law_of
from attractor.theory.theorem import Case, Citation
from attractor.weights import asymmetry, extremes, symmetric

TOLERANCES: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-13}
CITATION_KEY = "castin2025unified"
SYMBOLS = "its A = K'Q is the transpose of our Q'K, with the scale in it; V is its V; Sigma its covariance"


def cite(place: str) -> Citation:
    """The mean-field paper, at a place."""
    return Citation(CITATION_KEY, place, SYMBOLS)


def kernels(*names: str) -> Hypothesis:
    """The kernel is one of these."""

    def margin(case: Case) -> Margin:
        law = case.law
        if not isinstance(law, Attention) or not isinstance(law.kernel, Kernel) or law.query.ndim > 3:
            return decided(False, f"the law is {type(law).__name__}")
        return decided(has_kernel(law, *names), f"the kernel is {law.kernel.name}")

    label = f"{names[0]} attention" if len(names) == 1 else "kernel"
    return Hypothesis(label, r"\text{" + ", ".join(names) + "}", margin, structural=True)


def _gaussian(case: Case) -> Margin:
    word = f"{type(case.state).__name__} in a space that is {case.space.name}"
    return decided(isinstance(case.state, Gaussian) and not case.state.batch_shape and not case.space.curved, word)


def _bare(case: Case) -> Margin:
    law = case.attention
    extra = [name for name in given.BIASES if getattr(law, name) is not None]
    extra += [] if law.positions is None else ["positions"]
    return decided(not extra, ", ".join(extra) or "no biases, no positions")


def start_of(case: Case) -> Gaussian:
    assert isinstance(case.state, Gaussian)
    return case.state


def crossed(case: Case) -> Tensor:
    """A = K'Q of one head, scale included: the transpose of the interaction."""
    return case.matrices.interactions[0].mT


def _identity(case: Case) -> Margin:
    value = case.matrices.values[0]
    eye = torch.eye(len(value), dtype=value.dtype)
    return vanishing(float((value - eye).norm() / eye.norm()))


def _value_definite(case: Case) -> Margin:
    value = case.matrices.values[0]
    return vanishing(asymmetry(value)) if asymmetry(value) > 1e-9 else strictly(extremes(value)[0])


GAUSSIAN = Hypothesis("Gaussian measure", r"\mu = N(\alpha, \Sigma)", _gaussian, structural=True)
BARE = Hypothesis("no biases, no positions", r"s(x, y) = \langle Qx, Ky\rangle", _bare, structural=True)
IDENTITY_VALUE = Hypothesis("identity value", "V = I", _identity)
DEFINITE_VALUE = Hypothesis("value positive", r"V = V^\top \succ 0", _value_definite)
SYMMETRIC_POSITIVE = Hypothesis(
    "interaction positive", r"S = \operatorname{sym} A \succ 0", lambda case: strictly(extremes(crossed(case))[0])
)
SYMMETRIC_NEGATIVE = Hypothesis(
    "interaction negative", r"S = \operatorname{sym} A \preceq 0", lambda case: weakly(-extremes(crossed(case))[1])
)
FULL_RANK = Hypothesis(
    "covariance invertible", r"\Sigma_0 \succ 0", lambda case: strictly(extremes(start_of(case).covariance)[0])
)
SOFTMAX_GAUSSIAN = (kernels("softmax"), GAUSSIAN, given.FULL, BARE, given.ONE_HEAD)


def follow(case: Case) -> Trajectory:
    """The Gaussian along time."""
    return flow(case.law, start_of(case), until=case.horizon, **{"save": 40, "stop": (), **TOLERANCES, **case.options})


def normal(draw: Draw, d: int, low: float = 0.3, high: float = 1.5, mean: float = 0.0) -> Gaussian:
    """A Gaussian with a random covariance."""
    return Gaussian(torch.from_numpy(mean * draw.standard_normal(d)), definite(draw, d, 1.0, low, high))


def softmax_law(draw: Draw, crossed_form: Tensor, value: Tensor, **options: Any) -> Attention:
    """The law with this A = K'Q and V."""
    return law_of(draw, crossed_form.mT, value, **options)


def sizes_of(covariances: Tensor) -> Tensor:
    """Spectral norms (S,)."""
    return torch.linalg.eigvalsh(symmetric(covariances))[..., -1]


def seeded(draw: Draw) -> int:
    """A seed from the draw."""
    return int(draw.integers(0, np.iinfo(np.int32).max))
