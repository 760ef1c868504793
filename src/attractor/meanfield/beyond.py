r"""Past the blow-up: tokens at and after the time at which the Gaussian with their law is infinite.

A Gaussian can reach infinity in finite time under softmax attention because it has tokens arbitrarily far out. Finitely many tokens
cannot (``growth``), so their variance stays finite at the blow-up time :math:`T^*`. How large it is there is decided by the few
longest tokens of the draw, so it depends on the seed as much as on n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attractor.attention import Law
from attractor.errors import InputError
from attractor.flow import Trajectory, flow
from attractor.meanfield.sampling import sample
from attractor.observables import covariance
from attractor.states import Gaussian

HORIZON = 1e3  # time within which a Gaussian must blow up to be of use here
SHARES = (*np.linspace(0.0, 0.8, 9), 0.85, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.15, 1.2)  # of the blow-up time


@dataclass(frozen=True)
class Beyond:
    """Total variance of the tokens, (sizes, repeats, times), and of the Gaussian, (times), infinite from ``blow_up`` on.

    ``run`` and ``gaussian_run`` are one run of the largest system and that of the Gaussian, for pictures of densities.
    """

    blow_up: float
    times: np.ndarray
    sizes: tuple[int, ...]
    variance: np.ndarray
    gaussian: np.ndarray
    run: Trajectory
    gaussian_run: Trajectory
    notes: tuple[str, ...] = ()

    @property
    def median(self) -> np.ndarray:
        """Over repeats, (sizes, times)."""
        return np.median(self.variance, axis=1)

    def plot(self, path: Any = None) -> Any:
        """Variance along time for every n beside the Gaussian's: .png, .pdf or .svg, or the figure itself."""
        from attractor.meanfield.beyond_picture import draw_beyond

        return draw_beyond(self, path)


def past_blow_up(
    law: Law,
    gaussian: Gaussian,
    *,
    sizes: Sequence[int] = (200, 1000, 5000),
    repeats: int = 5,
    shares: Sequence[float] = SHARES,
    seed: int = 0,
    watch: Callable[[float, str], None] = lambda share, text: None,
    **options: Any,
) -> Beyond:
    """Follow tokens drawn from a Gaussian to and past the time at which the Gaussian itself blows up.

    ``shares`` are the saved times in units of the blow-up time. Draws are raw, not whitened: their longest tokens matter.
    """
    if not isinstance(gaussian, Gaussian) or gaussian.batch_shape:
        raise InputError("past_blow_up starts from one Gaussian(mean, covariance)")
    sizes = tuple(int(n) for n in sizes)
    if not sizes or min(sizes) < 2 or repeats < 1:
        raise InputError(
            f"past_blow_up needs numbers of tokens of at least 2 and a repeat, got {list(sizes)} and {repeats}"
        )
    blow_up = blow_up_time(law, gaussian)
    times = blow_up * np.unique(np.asarray(shares, dtype=float))
    if len(times) == 0 or times[0] < 0 or not np.all(np.isfinite(times)):
        raise InputError("the shares of the blow-up time must be finite and not negative")
    before = times[times < blow_up * (1 - 1e-9)]
    if len(before) == 0 or before[-1] == 0:
        raise InputError("at least one share of the blow-up time must lie between 0 and 1, where the Gaussian exists")
    limit = flow(law, gaussian, save=before.tolist(), stop=())
    curve = np.full(len(times), np.inf)
    curve[: len(before)] = torch.diagonal(limit.covariances, dim1=-2, dim2=-1).sum(-1).numpy()
    variance, run = [], None
    work = [float(n) * n for n in sizes]
    for index, n in enumerate(sizes):
        watch(sum(work[:index]) / sum(work), f"{repeats} runs of {n:,} tokens")
        tokens = sample(gaussian, n, int(np.random.SeedSequence([seed, n]).generate_state(1)[0]), ensemble=repeats)
        run = flow(law, tokens, save=times.tolist(), **{"rtol": 1e-6, "atol": 1e-8, "stop": (), **options})
        variance.append(_variance(run, len(times)))
    assert run is not None
    return Beyond(blow_up, times, sizes, np.stack(variance), curve, run.member(0), limit)


def blow_up_time(law: Law, gaussian: Gaussian) -> float:
    """When the Gaussian reaches infinity under a law, or a sentence if it does not."""
    run = flow(law, gaussian, until=HORIZON, save=[HORIZON], stop=())
    if run.outcome.name != "blow_up":
        raise InputError(
            f"the Gaussian does not blow up before t = {HORIZON:g} under this law (it ends {run.outcome.name}); "
            "take softmax attention whose Q'K and value stretch in a common direction"
        )
    return float(run.outcome.time)


def _variance(run: Trajectory, times: int) -> np.ndarray:
    """Total variance (repeats, times)."""
    values = torch.diagonal(torch.as_tensor(run.observe(covariance)), dim1=-2, dim2=-1).sum(-1)
    if len(values) != times:
        raise InputError(f"tokens did not reach the last time: {run.outcome.message}")
    return values.T.numpy()


def median_at(found: Beyond, share: float) -> dict[int, float]:
    """Median variance for every n at a saved share of the blow-up time."""
    index = int(np.abs(found.times - share * found.blow_up).argmin())
    return {n: float(value) for n, value in zip(found.sizes, found.median[:, index], strict=True)}
