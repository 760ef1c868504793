"""Observables that are evaluated during a run."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import attractor as at
from attractor.errors import AttractorError
from attractor.solvers import observation

OPTIONS = {"space": "sphere", "until": 4.0, "save": [0.0, 0.5, 2.0, 4.0]}


def ensemble(shape: tuple[int, ...] = (3, 4)) -> tuple[at.Attention, at.Tokens]:
    """Members with their own temperatures and masses, some of which merge."""
    tokens = at.Tokens.uniform(6, 3, seed=1, ensemble=shape)
    masses = torch.rand(*shape, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    count = tokens.batch_shape.numel()
    root = torch.linspace(0.5, 4.0, count, dtype=torch.float64).sqrt()[:, None, None, None]
    eye = torch.eye(3, dtype=torch.float64).expand(count, 1, 3, 3)
    return at.Attention(root * eye, root * eye, eye.clone()), at.Tokens(tokens.points, masses=masses)


def gram(tokens: at.Tokens, law: at.Law | None = None, space: at.Space | None = None) -> Tensor:
    return tokens.points @ tokens.points.mT


@pytest.mark.parametrize("members", [1, 5, 100])
def test_values_are_those_of_a_run_that_keeps_its_points(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    law, tokens = ensemble()
    monkeypatch.setattr(observation, "CHUNK", members * 4 * 6 * 3 * 8)
    events = (
        (at.Event(lambda tokens, time: tokens.points[0, 0] - 0.1, "crossing", terminal=False),) if members == 5 else ()
    )
    whole = at.flow(law, tokens, events=events, **OPTIONS)
    run = at.flow(law, tokens, observe=["cosine", gram, "energy"], events=events, **OPTIONS)
    assert torch.equal(run.times, whole.times)
    assert list(run.observed) == ["cosine", "gram", "energy"]
    assert torch.equal(run.observe("cosine"), whole.observe("cosine"))
    torch.testing.assert_close(run.observed["gram"], whole.observe(gram), rtol=0, atol=1e-15)
    assert run.observed["gram"].shape == (4, 3, 4, 6, 6)
    assert run.points.shape == (0, 3, 4, 6, 3)
    assert torch.equal(run.final.points, whole.final.points)  # type: ignore[union-attr]
    assert run.outcomes == whole.outcomes
    assert run.events == whole.events
    assert events or run.stats.evaluations == whole.stats.evaluations  # the loop in Python counts members that wait
    assert torch.equal(run.member(7).observed["cosine"], whole.observe("cosine").reshape(4, 12)[:, 7])


def test_a_law_of_its_member_is_given_to_the_observable() -> None:
    law, tokens = ensemble((4,))
    run = at.flow(law, tokens, observe="attention_entropy", **OPTIONS)
    assert isinstance(run.final, at.Tokens)
    expected = at.observables.attention_entropy(run.final, law)
    torch.testing.assert_close(run.observed["attention_entropy"][-1], expected, rtol=1e-12, atol=0)


def test_gradients_flow_through_observed_values() -> None:
    points = at.Tokens.uniform(4, 3, seed=2).points.requires_grad_()
    law = at.Attention.isotropic(3, 2.0)
    observed = at.flow(law, at.Tokens(points), observe="cosine", **OPTIONS).observed["cosine"]
    kept = at.flow(law, at.Tokens(points), **OPTIONS).observe("cosine")
    first, second = (torch.autograd.grad(values.sum(), points)[0] for values in (observed, kept))
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-14)


def test_options_are_bound_and_names_are_chosen() -> None:
    law, tokens = ensemble((2,))
    run = at.flow(law, tokens, observe={"near": partial(at.clusters, radius=0.5), "far": "diameter"}, **OPTIONS)
    assert set(run.observed) == {"near", "far"}
    assert list(at.flow(law, tokens, observe=partial(at.clusters, radius=0.5), **OPTIONS).observed) == ["clusters"]


@pytest.mark.parametrize(
    ("observe", "options"),
    [
        ("cosin", {}),
        ([], {}),
        (3, {}),
        ([3], {}),
        (["clusters", partial(at.clusters, radius=0.5)], {}),
        ({"cosine": gram}, {}),
        (lambda tokens, **_: tokens.points.sum(), {}),
        ("cosine", {"save": None}),
        ("cosine", {"save": []}),
        ("cosine", {"store": "runs/never"}),
    ],
)
def test_bad_requests_raise(observe: object, options: dict) -> None:
    law, tokens = ensemble((2,))
    with pytest.raises(AttractorError):
        at.flow(law, tokens, observe=observe, **{**OPTIONS, **options})


def test_a_gaussian_has_no_observables() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    with pytest.raises(AttractorError):
        at.flow(at.Attention(eye, eye, -eye), at.Gaussian(torch.zeros(2), eye), until=1.0, save=2, observe="cosine")


def test_what_needs_points_says_that_none_were_kept(tmp_path: object) -> None:
    law, tokens = ensemble((2,))
    run = at.flow(law, tokens, observe="cosine", **OPTIONS)
    for call in (lambda: run.observe("clusters"), run.plot, lambda: run.save(f"{tmp_path}/run")):
        with pytest.raises(AttractorError, match="no points"):
            call()
    assert "cosine" in run.summary(["cosine"])["observables"]
    assert run._repr_html_()


def test_budgets_hold_for_the_whole_ensemble(monkeypatch: pytest.MonkeyPatch) -> None:
    law, tokens = ensemble()
    monkeypatch.setattr(observation, "CHUNK", 1)
    run = at.flow(law, tokens, observe="cosine", max_evaluations=200, **OPTIONS)
    names = [outcome.name for outcome in run.outcomes]
    assert names[0] == "reached"
    assert names[-1] == "budget"
    assert run.observed["cosine"].isfinite().all()
