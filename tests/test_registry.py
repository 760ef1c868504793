"""Lookup by name."""

from __future__ import annotations

import pytest

from attractor.errors import InputError
from attractor.registry import check_name, closest, find

KNOWN = {"softmax": 1, "sigmoid": 2}


def test_a_known_name_is_found() -> None:
    assert find("sigmoid", KNOWN, "kernel") == 2
    check_name("sigmoid", KNOWN, "kernel")


def test_a_close_name_is_suggested() -> None:
    with pytest.raises(InputError, match="kernel 'sofmax' is not known; did you mean 'softmax'"):
        find("sofmax", KNOWN, "kernel")


def test_otherwise_all_names_are_listed() -> None:
    with pytest.raises(InputError, match="study 'x' is not known; the studies are softmax, sigmoid"):
        check_name("x", KNOWN, "study", "studies")
    with pytest.raises(InputError, match="kernel 3 is not known"):
        find(3, KNOWN, "kernel")


def test_similarity_is_bounded_below() -> None:
    assert closest("sofmax", KNOWN) == "softmax"
    assert closest("sofmax", KNOWN, cutoff=0.99) is None
