"""Predictions of proved theorems and what runs show: the same, or the difference is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import attractor as at
from attractor.theory import prediction as module
from attractor.theory.conditions import are_exclusive, find_contradiction
from attractor.theory.prediction import measure_agreement

EYE = torch.eye(3, dtype=torch.float64)


@pytest.mark.theorem
def test_no_proved_prediction_is_contradicted() -> None:
    """An economy of ``attractor check --systems 200``."""
    found = measure_agreement(24, seed=0)
    assert found.disputes == ()
    assert found.covered >= 12
    assert set(found.kinds) >= {"metric", "shared", "sphere"}


def test_a_contradicted_prediction_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of reversed laws, asked about the laws as they were."""
    from attractor.theory.theorem import reverse_velocity

    honest = module.integrate
    monkeypatch.setattr(module, "integrate", lambda cases: honest([reverse_velocity(case) for case in cases]))
    monkeypatch.setattr(
        "attractor.theory.prediction.list_theorems",
        lambda: (replace(at.theory.find_theorem("regimes.T0"), gather=module.integrate),),
    )
    assert len(measure_agreement(8, seed=1).disputes) > 0


@pytest.mark.parametrize(
    ("fate", "value", "wrong"),
    [("collapse", 3.0, True), ("divergence", 3.0, False), ("divergence", -1.0, True), ("collapse", -1.0, False)],
)
def test_outcomes_contradict_fates(fate: str, value: float, wrong: bool) -> None:
    """One token under V = c I grows or shrinks like e^{ct}."""
    run = at.flow(at.Attention(EYE, EYE, value * EYE), at.Tokens([[1.0, 0.0, 0.0]]), until=100.0)
    assert run.outcome.name == ("diverged" if value > 0 else "collapsed")
    assert (find_contradiction(fate, run) is not None) == wrong


def test_fates_that_exclude_each_other() -> None:
    assert are_exclusive("collapse", "divergence")
    assert not are_exclusive("collapse", "contraction")


def test_predictions() -> None:
    tokens = at.Tokens.gaussian(5, 3, seed=0)
    collapse = at.predict(at.Attention(EYE, EYE, -EYE), tokens)
    assert {"regimes.T1", "regimes.T2"} <= set(collapse.fates["collapse"])
    assert collapse.contradictions == ()
    causal = at.predict(at.Attention(EYE, EYE, -EYE, mask="causal"), tokens)
    assert causal.fates["collapse"] == ["regimes.T8"]
    nearest = at.predict(at.Attention(EYE, EYE, -EYE, positions=at.Rotary(dim=2)), tokens, paper="regimes").nearest
    assert nearest is not None
    assert nearest.missing


def test_an_undecidable_hypothesis_is_undetermined() -> None:
    tiny = torch.diag(EYE.new_tensor([1.0, 1.0, 1e-13]))
    found = at.predict(at.Attention(EYE, tiny, -EYE), at.Tokens.gaussian(5, 3, seed=0), paper="regimes")
    undecided = {item.theorem.key: item for item in found.undetermined}
    assert "regimes.T1" in undecided
    (missing,) = [item for item in undecided["regimes.T1"].missing if item.name == "interaction positive"]
    assert abs(missing.margin.value) < 1e-10


def test_bad_questions_get_a_sentence() -> None:
    law = at.Attention(EYE, EYE, EYE)
    with pytest.raises(at.errors.InputError, match="needs a law"):
        at.predict("law", at.Tokens.gaussian(3, 3))  # type: ignore[arg-type]
    with pytest.raises(at.errors.InputError, match="dimension"):
        at.predict(law, at.Tokens.gaussian(3, 4))
    with pytest.raises(at.errors.InputError, match="Tokens"):
        at.predict(law, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(at.errors.InputError, match="instances"):
        at.check("regimes.T5", instances=0)


def test_layers_and_flows_are_different_questions() -> None:
    """T1 is about flows: with a step beyond the limit it must not be offered."""
    law, tokens = at.Attention(EYE, EYE, -EYE), at.Tokens.gaussian(5, 3, seed=0, scale=0.1)
    flowing, layered, far = (at.predict(law, tokens, step=step, paper="regimes") for step in (None, 1.0, 3.0))
    assert "regimes.T1" in flowing.fates["collapse"]
    assert "regimes.D1" not in flowing.fates["collapse"]
    assert layered.fates == {"collapse": ["regimes.D1"]}
    assert far.fates == {}


def test_positions_that_are_added_once_move_the_start() -> None:
    """T6 looks at the tokens as they enter."""
    law = at.Attention(EYE, EYE, EYE, positions=at.Absolute(torch.full((4, 3), 9.0), when="input"))
    assert "regimes.T6" in at.predict(law, at.Tokens.gaussian(4, 3, seed=0)).fates["divergence"]
