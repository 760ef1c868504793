"""Observables are found by name; each says what it needs."""

from __future__ import annotations

import inspect

import pytest
import torch

from attractor import observables
from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Block, Schedule, Stack
from attractor.states import Tokens

NEED_A_LAW = ["attention_entropy", "energy", "energy_rate", "partition", "self_weight"]


def test_names_are_those_of_the_functions() -> None:
    assert observables.list_observables() == sorted(observables.list_observables())
    for name in observables.list_observables():
        assert observables.find_observable(name) is getattr(observables, name)
        assert name in observables.__all__


@pytest.mark.parametrize("name", observables.list_observables())
def test_every_observable_has_the_one_signature(name: str) -> None:
    function = observables.find_observable(name)
    parameters = list(inspect.signature(function).parameters.values())
    assert [parameter.name for parameter in parameters[:3]] == ["tokens", "law", "space"]
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters[3:])
    assert function.__doc__


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'diameter'"):
        observables.find_observable("diametre")
    with pytest.raises(InputError, match="the observables are"):
        observables.find_observable("zzz")


def test_a_new_function_becomes_known_and_a_taken_name_is_refused() -> None:
    from attractor.observables import registry

    def first_coordinate(tokens: Tokens, law=None, space=None) -> torch.Tensor:
        return tokens.points[..., 0, 0]

    def diameter(tokens: Tokens, law=None, space=None) -> torch.Tensor:
        return tokens.points[..., 0, 0]

    try:
        assert observables.observable(first_coordinate) is first_coordinate
        assert observables.find_observable("first_coordinate") is first_coordinate
        with pytest.raises(InputError, match="already an observable"):
            observables.observable(diameter)
    finally:
        registry._registry.pop("first_coordinate", None)


@pytest.mark.parametrize("name", NEED_A_LAW)
def test_a_law_is_asked_for(name: str) -> None:
    function = observables.find_observable(name)
    tokens, law = Tokens.uniform(4, 3), Attention.isotropic(3, 1.0)
    with pytest.raises(InputError, match=f"{name}\\(tokens, law\\)"):
        function(tokens)
    with pytest.raises(UnsupportedError, match="Block has no weights of its own"):
        function(tokens, Block(law))
    with pytest.raises(UnsupportedError, match="Total has no weights of its own"):
        function(tokens, law + law)
    with pytest.raises(InputError, match="dimension 2"):
        function(tokens, Attention.isotropic(2, 1.0))


@pytest.mark.parametrize("name", NEED_A_LAW)
def test_laws_in_time_need_the_time(name: str) -> None:
    function = observables.find_observable(name)
    run = Tokens.uniform(5, 3, ensemble=3)
    first, second = Attention.isotropic(3, 1.0), Attention.isotropic(3, 2.0)
    schedule = Schedule(lambda time: Attention.isotropic(3, 1.0 + time))
    with pytest.raises(InputError, match="the option time"):
        function(run, schedule)
    with pytest.raises(InputError, match="one for each entry"):
        function(run, schedule, time=[0.0, 1.0])
    torch.testing.assert_close(function(run, schedule, time=1.0), function(run, second))
    along = function(run, Stack((first, second)), time=torch.tensor([0.0, 1.0, 5.0]))
    torch.testing.assert_close(along[0], function(run, first)[0])
    torch.testing.assert_close(along[1:], function(run, second)[1:])


def test_a_block_inside_a_schedule_is_refused_too() -> None:
    with pytest.raises(UnsupportedError, match="Block has no weights"):
        observables.energy(Tokens.uniform(4, 3), Stack((Block(Attention.isotropic(3, 1.0)),)), time=0.0)
