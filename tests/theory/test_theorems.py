"""Every theorem: its files are well formed, its samplers keep their word, its conclusion holds and can fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

import attractor as at
from attractor.solvers.trajectory import read_bibliography
from attractor.theory import Case, Theorem, Verdict, find_theorem, list_theorems
from attractor.theory.checking import check_theorem, draw_cases, draw_violating
from attractor.theory.sampling import Rng

INSTANCES = 3


def every(test):
    return pytest.mark.parametrize("statement", list_theorems(), ids=lambda statement: statement.key)(test)


@every
def test_it_says_what_it_is(statement: Theorem) -> None:
    assert statement.title
    assert statement.statement.count(r"\(") == statement.statement.count(r"\)")
    assert statement.citation.key in read_bibliography()
    assert statement.citation.symbols
    assert statement.hypotheses
    assert statement.violate or statement.fate == "identity"


@every
@pytest.mark.theorem
def test_it_holds_on_random_instances(statement: Theorem) -> None:
    checked = check_theorem(statement, INSTANCES, violated=0, seed=1)
    assert checked.instances == INSTANCES
    if statement.status.is_proved:
        assert checked.violations == 0, f"{checked.conclusion}: {checked.worst}"


@every
def test_its_check_can_fail(statement: Theorem) -> None:
    """Evidence from a law that was broken on purpose, measured against the law as it was; mostly the first instance is enough."""

    def sabotage(cases: Sequence[Case]) -> Sequence[Any]:
        return statement.gather([statement.break_case(case) for case in cases])

    broken = dataclasses.replace(statement, gather=sabotage)
    assert any(check_theorem(broken, count, violated=0, seed=2).violations for count in (1, INSTANCES))


@every
def test_instances_satisfy_the_hypotheses(statement: Theorem) -> None:
    for case in draw_cases(statement, INSTANCES, seed=3):
        assert {condition.verdict for condition in statement.examine(case)} == {Verdict.HOLDS}


@every
def test_violating_samplers_violate_one_hypothesis(statement: Theorem) -> None:
    for name in statement.violate:
        case = draw_violating(statement, name, Rng.from_seed(4))
        missing = [condition for condition in statement.examine(case) if condition.verdict is not Verdict.HOLDS]
        assert [condition.name for condition in missing] == [name]


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(at.errors.InputError, match=r"did you mean 'regimes\.T1'"):
        find_theorem("regime.T1")


def test_instances_do_not_depend_on_their_number() -> None:
    statement = find_theorem("regimes.T1")
    few, many = draw_cases(statement, 2, seed=5), draw_cases(statement, 3, seed=5)
    for one, other in zip(few, many, strict=False):
        assert bool((one.tokens.points == other.tokens.points).all())


def test_an_asymptotic_conclusion_is_measured_again_at_longer_times() -> None:
    """A slow instance of a proved theorem is not reported as a violation because its transient outlasts the horizon."""
    from attractor.theory import checking

    theorem = at.theory.find_theorem("regimes.T2")
    case = checking.draw_cases(theorem, 45, seed=3)[44]
    result = checking.measure(theorem, [case])[0]
    assert [item.asymptotic for item in result if not item.holds] == [True]
    assert all(item.holds for item in checking._measure_longer(theorem, case, result))


def test_a_theorem_is_found_by_the_number_of_its_source() -> None:
    numbered = [statement for statement in list_theorems() if statement.alias]
    assert {find_theorem(statement.alias).key for statement in numbered} == {statement.key for statement in numbered}
    assert find_theorem("geshkovski2023emergence:4.2").key == "regimes.hyperplanes"
    assert all(statement.citation.number in statement.citation.place for statement in numbered)
