"""A machine without peers, whatever this environment has."""

from __future__ import annotations

import sys

import pytest

PEERS = ("jax", "jaxlib", "diffrax", "equinox", "torchdiffeq", "pykeops", "keopscore")


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PEERS:
        monkeypatch.setitem(sys.modules, name, None)
