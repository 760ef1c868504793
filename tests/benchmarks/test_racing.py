"""Turns, ratios, targets, and what becomes of a contender that is absent, wrong or broken."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.program import is_missed, summary
from benchmarks.racing import engine, import_peer, ratio, run_contest, time_interleaved

from benchmarks import Contender, Contest, Ready, Settings, Skip

SETTINGS = Settings(rounds=3, turn=0.0)
LOG: list[str] = []


class Fake:
    """A contender that takes the seconds it is told to, one after the other, and answers with its error."""

    def __init__(self, name: str, seconds: list[float], error: float = 0.0) -> None:
        self.name, self.seconds, self.error = name, iter(seconds), error

    def __call__(self) -> tuple[float, float]:
        LOG.append(self.name)
        return next(self.seconds), self.error


def fake_clock(call: Callable[[], Any]) -> tuple[float, Any]:
    return call()


def contender(name: str, seconds: list[float], error: float = 0.0, **options: Any) -> Contender:
    """Its first two calls are the check and the estimate; neither counts."""
    return Contender(name, lambda: Ready(Fake(name, [0.1, 0.1, *seconds], error), {"rtol": 1.0}), **options)


def raising(name: str, error: Exception, **options: Any) -> Contender:
    def build() -> Ready:
        raise error

    return Contender(name, build, **options)


def held(ours: Contender, *peers: Contender, limit: float | None = None, **options: Any) -> dict[str, dict[str, Any]]:
    made_up = Contest("made up", "made up", ours, peers, error=float, tolerance=1e-6, timer=fake_clock, **options)
    LOG.clear()
    return {entry["name"]: entry for entry in run_contest(made_up, SETTINGS, limit)["contenders"]}


def test_the_ratio_is_the_median_of_ratios_within_rounds() -> None:
    ours, theirs = [1.0, 10.0, 2.0, 4.0, 1.0], [8.0, 20.0, 10.0, 16.0, 3.0]  # 8, 2, 5, 4, 3
    found = ratio(theirs, ours)
    assert found == {"median": 4.0, "low": 3.0, "high": 5.0, "least": 2.0, "most": 8.0}
    # a slow round of the machine moves the times but not the ratio
    assert statistics.median(theirs) / statistics.median(ours) != found["median"]
    assert ratio([3.0], [2.0])["median"] == 1.5


def test_contenders_take_turns_and_another_starts_each_round() -> None:
    LOG.clear()
    calls = {name: Fake(name, [1.0] * 9) for name in "abc"}
    times = time_interleaved(calls, 3, fake_clock, {"a": 1, "b": 2, "c": 1})
    assert "".join(LOG) == "abbc" + "bbca" + "cabb"
    assert times == {name: [1.0] * 3 for name in "abc"}


def test_a_turn_of_several_calls_counts_as_their_mean() -> None:
    times = time_interleaved({"a": Fake("a", [1.0, 2.0, 3.0])}, 1, fake_clock, {"a": 3})
    assert times == {"a": [2.0]}


def test_short_calls_are_repeated_until_the_turn_is_long_enough() -> None:
    busy = Contender("ours", lambda: Ready(Fake("ours", [0.1] * 100)))
    contest = Contest("made up", "made up", busy, (), error=float, tolerance=1.0, timer=fake_clock)
    LOG.clear()
    run_contest(contest, Settings(rounds=2, turn=0.45))
    assert len(LOG) == 2 + 2 * 5


def test_targets_are_judged_by_the_median() -> None:
    found = held(
        contender("ours", [1.0, 1.0, 1.0]),
        contender("easy", [2.0, 4.0, 9.0], target=4.0),
        contender("hard", [2.0, 4.0, 9.0], target=4.1),
        contender("free", [2.0, 4.0, 9.0]),
    )
    assert (found["easy"]["met"], found["hard"]["met"], found["free"]["met"]) == (True, False, None)
    assert found["easy"]["ratio"]["median"] == 4.0
    assert found["easy"]["note"] == {"rtol": 1.0}
    assert found["ours"]["ratio"] is None
    assert [is_missed(entry) for entry in found.values()] == [False, False, True, False]


def test_a_quick_run_judges_nothing() -> None:
    ours, slow = contender("ours", [1.0]), contender("slow", [1.0], target=2.0)
    contest = Contest("made up", "made up", ours, (slow,), error=float, tolerance=1.0, timer=fake_clock)
    found = run_contest(contest, Settings(rounds=1, quick=True, turn=0.0))
    assert found["contenders"][1]["target"] == {"what": "ratio", "least": 2.0}
    assert found["contenders"][1]["met"] is None


def test_rates_and_the_share_of_the_limit() -> None:
    found = held(contender("ours", [2.0, 2.0, 2.0]), contender("peer", [8.0] * 3), pairs=1e6, limit=1e6, rate=4e5)
    assert found["ours"]["rate"] == 5e5
    assert found["ours"]["percent_of_limit"] == 50.0
    assert found["ours"]["target"] == {"what": "rate", "least": 4e5}
    assert found["ours"]["met"] is True
    assert found["peer"]["percent_of_limit"] == 12.5
    assert found["peer"]["target"] is None


def test_who_cannot_take_part_is_reported_with_the_reason_and_is_not_timed() -> None:
    found = held(
        contender("ours", [1.0] * 3),
        raising("absent", Skip("it is not installed"), target=2.0),
        raising("broken", RuntimeError("out of\nluck"), target=2.0),
        contender("wrong", [1.0] * 3, error=1e-3, target=2.0),
        contender("no number", [1.0] * 3, error=float("nan"), target=2.0),
        contender("coarse", [1.0] * 3, error=1e-3, tolerance=1e-2),
    )
    assert {name: entry["status"] for name, entry in found.items()} == {
        "ours": "timed",
        "absent": "skipped",
        "broken": "failed",
        "wrong": "wrong",
        "no number": "wrong",
        "coarse": "timed",
    }
    assert found["absent"]["reason"] == "it is not installed"
    assert found["broken"]["reason"] == "RuntimeError: out of luck"
    assert "1.0e-03" in found["wrong"]["reason"]
    assert found["no number"]["error"] is None
    assert all(found[name]["met"] is None and not found[name]["seconds"] for name in ("absent", "broken", "wrong"))
    assert LOG.count("wrong") == 2  # the check and the estimate, and never again
    assert summary([{"contenders": list(found.values())}]) == {
        "met": 0,
        "missed": 0,
        "skipped": 1,
        "wrong": 2,
        "failed": 1,
    }


@pytest.mark.parametrize(("ours", "misses"), [(raising("ours", Skip("not built")), 0), (contender("ours", [], 1.0), 1)])
def test_without_ours_nobody_is_timed(ours: Contender, misses: int) -> None:
    found = held(ours, contender("peer", [1.0] * 3, target=2.0))
    assert found["peer"]["status"] == "skipped"
    assert "not there to compare with" in found["peer"]["reason"]
    assert "peer" not in LOG
    # being absent is no miss; being wrong is
    assert summary([{"contenders": list(found.values())}])["missed"] == misses


def test_a_doubtful_reference_stops_the_contest() -> None:
    def check() -> dict[str, Any]:
        raise Skip("the reference solution is not sure")

    found = held(contender("ours", []), contender("peer", []), check=check)
    assert {entry["status"] for entry in found.values()} == {"skipped"}
    assert LOG == []


def test_missing_peers_and_engines_say_how_to_get_them() -> None:
    with pytest.raises(Skip, match=r"no_such_peer is not installed: pip install 'attractor\[peers\]'"):
        import_peer("no_such_peer")
    with pytest.raises(Skip, match="has no engine warp"):
        engine("warp")
    assert engine("reference") == "reference"
