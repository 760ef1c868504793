"""Simulations of published results on tokens: verdicts follow the data, and numbers those of SciPy."""

from __future__ import annotations

import numpy as np
import pytest

from attractor.papers import find_figure
from attractor.papers.consensus import build_law, make_settings
from attractor.papers.consensus_gpt import judge_random, judge_trained
from attractor.papers.token_dynamics import convergence_runs, turn


@pytest.mark.parametrize("name", ["convergence", "divergence", "rotary", "absolute"])
def test_claims_about_tokens_need_a_correction(name: str) -> None:
    entry = find_figure(f"tokens-{name}")
    data = entry.reproduce()
    assert entry.verdict(data).outcome == "reproduced with a correction"
    assert len(entry.compare(data)) == 3
    still = {**data, "rows": [{**row, "power": 0.0, "size": [1.0] * len(row["size"])} for row in data["rows"]]}
    assert entry.verdict(still).outcome == "differs"


def test_rotations_satisfy_the_conditions_of_the_paper() -> None:
    """A_sym < 0 and W_sym > 0 for both angles; the value of one is stable, that of the other is not."""
    for run in convergence_runs(0, 3)[1:]:
        assert np.linalg.eigvalsh(run.metric + run.metric.T)[-1] < 0
        assert np.linalg.eigvalsh(run.interaction + run.interaction.T)[0] > 0
    stable, unstable = (np.linalg.eigvals(run.value).real.max() for run in convergence_runs(0, 3)[1:])
    assert stable < 0 < unstable
    np.testing.assert_allclose(turn(90.0), [[0.0, -1.0], [1.0, 0.0]], atol=1e-15)


def test_consensus_simulations_satisfy_their_hypotheses() -> None:
    made = make_settings(0)
    for chosen in made.values():
        np.testing.assert_allclose(((chosen.start @ chosen.shape) * chosen.start).sum(-1), 1.0)
        assert build_law(chosen).dim == 3
    assert (made["hemisphere"].start[:, 0] > 0).all()
    value = made["symmetric value"].value
    top = np.linalg.eigh(value)[1][:, -1]
    sides = made["symmetric value"].start @ top
    assert (sides > 0).all() or (sides < 0).all()


def test_a_wrong_rate_of_consensus_is_noticed() -> None:
    entry = find_figure("consensus-ellipsoid")
    row = {"name": "gradient", "last": 1e-9, "rate": -1.0, "predicted": -1.0, "times": [0.0, 26.0]}
    assert entry.verdict({"rows": [row]}).outcome == "reproduced with a correction"
    assert entry.verdict({"rows": [{**row, "rate": -0.9}]}).outcome == "differs"
    assert entry.verdict({"rows": [{**row, "last": 0.1}]}).outcome == "differs"


def test_verdicts_on_models_follow_their_curves() -> None:
    def row(norm: bool, decay: str, end: float, redrawn: bool = False) -> dict[str, object]:
        return {
            "final_norm": norm,
            "redrawn": redrawn,
            "decay": decay,
            "metric": [1.0, end],
            "least": [0.0, -0.9],
            "name": "m",
            "norm": "n",
        }

    good = [row(True, "exponential", 0.1), row(False, "power", 0.3), row(True, "none", 0.9, redrawn=True)]
    assert judge_random({"rows": good}).outcome == "reproduced with a correction"
    assert "0.9 after 1 passes" in judge_random({"rows": good}).reason
    assert judge_random({"rows": [row(True, "none", 0.9), *good]}).outcome == "differs"
    verdict = judge_trained({"rows": good})
    assert verdict.outcome == "no published result"
    assert verdict.reason.startswith("0 of 3 runs reach consensus")
