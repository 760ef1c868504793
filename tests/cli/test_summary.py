"""A run in numbers."""

from __future__ import annotations

import json

import torch

import attractor as at
from attractor.files import to_json
from attractor.solvers.trajectory import ENDS, LISTED, MERGES, SUMMARISED


def test_a_summary_is_json() -> None:
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(8, 3), space=at.Sphere(), until=1e3)
    report = json.loads(json.dumps(run.summary(), allow_nan=False))
    assert report["outcome"]["name"] == "consensus"
    assert report["sizes"] == {"tokens": 8, "dim": 3, "ensemble": [], "saved": len(run.times)}
    assert set(report["observables"]) == set(SUMMARISED)
    assert report["observables"]["clusters"] == {"start": 8, "end": 1}
    assert [event["time"] for event in report["events"]] == [event.time for event in run.events]


def test_members_of_large_merges_are_counted_not_listed() -> None:
    tokens = at.Tokens(torch.ones(100, 2, dtype=torch.float64))
    events = at.flow(at.Attention.isotropic(2, 1.0), tokens, space=at.Sphere(), until=1.0, merge=1e-3).summary()[
        "events"
    ]
    assert max(event["size"] for event in events) == 100
    for event in events:
        assert (event["members"] is None) == (event["size"] > LISTED)


def test_of_very_many_merges_the_first_and_the_last_are_listed() -> None:
    """And every event of the user; what is left out is counted."""
    tokens = at.Tokens(torch.eye(3, dtype=torch.float64)[torch.arange(2 * MERGES) % 3])
    event = at.Event(lambda tokens, time: 0.05 - time, label="soon", terminal=False)
    options = {"space": at.Sphere(), "until": 0.1, "events": [event]}
    run = at.flow(at.Attention.isotropic(3, 1.0), tokens, **options)
    report = run.summary()
    assert run.stats.merges == 2 * MERGES - 3
    assert [event["kind"] for event in report["events"]] == ["merge"] * 2 * ENDS + ["soon"]
    assert report["events_left_out"] == len(run.events) - 2 * ENDS - 1
    assert report["events"][0]["size"] == 2
    assert report["events"][2 * ENDS - 1]["size"] == run.events[-2].size > 2 * MERGES / 4


def test_few_merges_are_all_listed() -> None:
    tokens = at.Tokens(torch.ones(100, 2, dtype=torch.float64))
    report = at.flow(at.Attention.isotropic(2, 1.0), tokens, space=at.Sphere(), until=1.0).summary()
    assert len(report["events"]) == 99
    assert report["events_left_out"] == 0


def test_the_start_is_where_the_flow_began() -> None:
    """Tokens are put on the space, and positions of the input added, before anything moves."""
    table = torch.eye(3, dtype=torch.float64)
    law = at.Attention.isotropic(3, 1.0, positions=at.Absolute(table, when="input"))
    tokens = at.Tokens(2.0 * torch.eye(3, dtype=torch.float64))
    flat = at.flow(law, tokens, until=0.1).summary()["observables"]["token_norm"]["start"]
    assert abs(flat - 3.0) < 1e-12
    on_sphere = at.flow(law, tokens, space=at.Sphere(), until=0.1).summary()["observables"]["token_norm"]["start"]
    assert abs(on_sphere - 1.0) < 1e-12


def test_events_of_the_user() -> None:
    event = at.Event(lambda tokens, time: 0.5 - time, label="half way", terminal=False)
    run = at.flow(at.Attention.isotropic(2, 1.0), at.Tokens.uniform(3, 2), until=1.0, events=[event])
    (seen,) = run.summary()["events"]
    assert seen["kind"] == "half way"
    assert set(seen) == {"kind", "time", "member"}
    assert abs(seen["time"] - 0.5) < 1e-9


def test_what_is_not_finite_is_none() -> None:
    assert to_json({"norm": [1.0, float("inf")], 2: (float("nan"), True, "x", None)}) == {
        "norm": [1.0, None],
        "2": [None, True, "x", None],
    }
