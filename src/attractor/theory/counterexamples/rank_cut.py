"""Ranks of limits by a fixed cut depend on the time of measurement, because eigenvalues fall like 1/t."""

import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Gaussian
from attractor.theory.claims import CounterExample, Evidence


def run() -> Evidence:
    """V = I, S = -diag(1, 0.02, 0): the limit has rank 1, reached like 1/t."""
    drop = torch.diag(torch.tensor([-1.0, -0.02, 0.0], dtype=torch.float64))
    eye = torch.eye(3, dtype=torch.float64)
    start = Gaussian(
        torch.zeros(3, dtype=torch.float64), torch.diag(torch.tensor([1.0, 1.0, 0.08], dtype=torch.float64))
    )
    times = [0.0, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5]
    found = flow(Attention(eye, drop, eye), start, save=times, rtol=1e-9, stop=())
    values = torch.linalg.eigvalsh(found.covariances).flip(-1)
    cut = [int((row > 0.1).sum()) for row in values]
    late, later = values[-2], values[-1]
    kept = int(((later > 1e-7 * later[0]) & ((later / late).log10() > -0.3)).sum())
    facts = {"rank_of_the_limit": 1, "rank_by_the_slope_over_a_decade": kept}
    facts |= {f"rank_by_a_cut_at_0.1_at_t_{time:g}": count for time, count in zip(times, cut, strict=True)}
    sentence = (
        f"a cut at 0.1 counts {', '.join(map(str, cut))} at t = {', '.join(f'{time:g}' for time in times)} where the limit has rank "
        f"1 (its eigenvalue is 0.08); the slope over a decade counts {kept}"
    )
    panel = Panel(
        (
            *(Curve(times[1:], values[1:, k].clamp_min(1e-12).tolist(), f"eigenvalue {k + 1}") for k in range(3)),
            Curve([times[1], times[-1]], [0.1, 0.1], "cut", dashed=True),
        ),
        log_x=True,
        log_y=True,
    )
    return Evidence(facts, kept == 1 and cut[-1] != 1 and len(set(cut)) > 1, sentence, (panel,))


EXAMPLE = CounterExample(
    key="meanfield.rank-cut",
    title="Ranks by a fixed cut",
    claim="Counting eigenvalues above 0.1 at a late time gives the rank of the limit covariance.",
    source="castin2025unified",
    place="the rank histograms of its released code, which also leave out runs of higher rank",
    basis="code",
    verdict="misleading",
    truth="Dropped eigenvalues fall like 1/t and kept ones may be small: keep those above 1e-7 of the largest that "
    "lose less than half in the last decade of time.",
    run=run,
    theorems=("meanfield.T5", "meanfield.T7"),
)
