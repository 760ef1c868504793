"""The log of merges: arrays inside, events outside."""

from __future__ import annotations

import numpy as np
import torch

import attractor as at
from attractor.solvers.merging import EventLog, MergeTree, RowMap
from attractor.solvers.outcome import EventRecord


def tree() -> MergeTree:
    made = MergeTree(5)
    assert made.extend(1.0, np.array([0, 2]), np.array([1, 3]), np.array([0.4, 0.4])).tolist() == [5, 6]
    assert made.extend(2.0, np.array([5]), np.array([4]), np.array([0.6])).tolist() == [7]
    return made


def test_a_tree_knows_sizes_and_members() -> None:
    made = tree()
    assert len(made) == 3
    assert made.sizes().tolist() == [2, 2, 3]
    assert [made.leaves(k) for k in range(3)] == [(0, 1), (2, 3), (0, 1, 4)]
    assert MergeTree(5, made.rows).leaves(2) == (0, 1, 4)


def test_events_come_in_the_order_of_time() -> None:
    log = EventLog([EventRecord("noon", 1.5, member=1), EventRecord("dawn", 0.5)], [tree(), tree()])
    assert [event.time for event in log] == [0.5, 1.0, 1.0, 1.0, 1.0, 1.5, 2.0, 2.0]
    assert [event.member for event in log] == [0, 0, 0, 1, 1, 1, 0, 1]
    assert log[-1].members == (0, 1, 4)
    assert (log[-1].size, log[-1].mass, log[0].kind) == (3, 0.6, "dawn")
    assert [event.kind for event in log[5:7]] == ["noon", "merge"]
    assert [event.kind for event in log.select(1)] == ["merge", "merge", "noon", "merge"]
    assert {event.member for event in log.select(1)} == {1}


def test_two_changes_of_rows_after_each_other_are_one() -> None:
    first = RowMap(torch.tensor([[0, 1, 0, 2], [0, 1, 3, 3]]), torch.tensor([[0.25, 1, 0.75, 1], [1, 1, 1, 1.0]]), 3)
    second = RowMap(torch.tensor([[0, 0, 1], [0, 0, 2]]), torch.tensor([[0.5, 0.5, 1], [0.1, 0.9, 1.0]]), 2)
    points = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(first.then(second)(points), second(first(points)))


def test_thousands_of_tokens_that_start_together_become_one_at_once() -> None:
    """More than are looked up one by one, so they are found in cells: still one merge less than tokens."""
    tokens = at.Tokens(torch.ones(9000, 2, dtype=torch.float64))
    run = at.flow(at.Attention.isotropic(2, 1.0), tokens, space=at.Sphere(), until=1.0)
    assert run.outcome.name == "consensus"
    assert run.stats.merges == len(run.events) == 8999
    assert run.events[-1].size == 9000
    assert run.events[-1].members == tuple(range(9000))
    assert abs(run.events[-1].mass - 1.0) < 1e-12


def test_a_log_equals_a_list_of_its_events() -> None:
    still = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3), until=0.1)
    assert still.events == []
    law = at.Attention.isotropic(3, 1.0)
    merged = at.flow(law, at.Tokens.uniform(4, 3), space="sphere", until=100.0, merge=1e-2)
    assert merged.events == list(merged.events)
    assert merged.events != []
