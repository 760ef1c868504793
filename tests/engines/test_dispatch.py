"""The engine is chosen by size and need of gradients, and can be asked for by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from attractor import engines
from attractor.engines import Engine, Problem, attend, available, choose, dispatch, reference, using
from attractor.errors import AttractorError, InputError, UnsupportedError


@pytest.fixture(autouse=True)
def without_compiled_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice between the engines that are always there; test_fused.py has the other."""
    everywhere = {name: dispatch._engines[name] for name in ("reference", "blockwise")}
    monkeypatch.setattr(dispatch, "_engines", everywhere)


def problem(n: int, gradient: bool = False, heads: int = 1) -> Problem:
    x = torch.zeros(heads, 1, 1, dtype=torch.float64).expand(heads, n, 1)
    q = torch.zeros(heads, 1, 1, dtype=torch.float64, requires_grad=gradient).expand(heads, n, 1)
    return Problem(q, x, x, None, "softmax", False, None, None, False)


def test_small_problems_and_gradients_go_to_the_reference() -> None:
    side = int(reference.LARGEST**0.5)
    assert choose(problem(side)).name == "reference"
    assert choose(problem(side + 1)).name != "reference"
    assert choose(problem(side, heads=2)).name != "reference"
    assert choose(problem(side + 1, gradient=True)).name == "reference"
    with torch.no_grad():
        assert choose(problem(side + 1, gradient=True)).name != "reference"


def test_a_name_decides() -> None:
    assert choose(problem(3), "blockwise").name == "blockwise"
    with using("blockwise") as seen:
        assert choose(problem(3)).name == "blockwise"
        assert choose(problem(3), "reference").name == "reference"
        assert seen == set()
        x = torch.ones(2, 1)
        attend(x, x, x)
        attend(x, x, x, engine="reference")
        with using("reference") as inner:
            attend(x, x, x)
        with using(None):
            assert choose(problem(3)).name == "reference"
        assert inner == {"reference"}
    assert seen == {"blockwise", "reference"}
    assert choose(problem(3)).name == "reference"


def test_a_failure_inside_leaves_no_trace() -> None:
    with pytest.raises(RuntimeError, match="stop"), using("blockwise"):
        raise RuntimeError("stop")
    assert choose(problem(3)).name == "reference"


def test_unknown_engines_are_named_with_the_known_ones() -> None:
    x = torch.ones(2, 1)
    for call in (lambda: attend(x, x, x, engine="quantum"), lambda: using("quantum").__enter__()):
        with pytest.raises(InputError, match=r"'quantum' is not known.*blockwise, reference"):
            call()


def test_unknown_modes_are_refused() -> None:
    x = torch.ones(2, 1)
    with pytest.raises(
        InputError, match="mode 'cubic' is not known; the modes are softmax, exponential, sigmoid, linear"
    ):
        attend(x, x, x, mode="cubic")  # type: ignore[arg-type]


def test_an_engine_that_does_not_work_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Engine("broken", reference.run, lambda problem: True, lambda problem: 99.0, reason="no such chip")
    monkeypatch.setitem(dispatch._engines, "broken", broken)
    assert choose(problem(3)).name == "reference"
    assert available()[-1] is broken
    assert not broken.works
    x = torch.ones(2, 1)
    for call in (lambda: attend(x, x, x, engine="broken"), lambda: using("broken").__enter__()):
        with pytest.raises(UnsupportedError, match="does not work here: no such chip"):
            call()


def test_a_registered_engine_runs_when_it_ranks_highest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_engines", dict(dispatch._engines))
    picky = Engine("picky", reference.run, lambda problem: problem.mode == "linear", lambda problem: 99.0)
    engines.register(picky)
    x = torch.ones(2, 1)
    with using(None) as seen:
        attend(x, x, x, mode="linear")
        attend(x, x, x)
    assert seen == {"picky", "reference"}
    with pytest.raises(UnsupportedError, match=r"'picky' cannot run this problem .mode softmax"):
        attend(x, x, x, engine="picky")


def test_the_engines_that_work_everywhere() -> None:
    assert {"blockwise", "reference"} <= {engine.name for engine in available() if engine.works}
    assert issubclass(InputError, AttractorError)


@pytest.mark.parametrize("name", [None, "reference", "blockwise"])
def test_shapes_that_do_not_belong_together(name: str | None) -> None:
    x = torch.randn(64, 3, dtype=torch.float64)
    with pytest.raises(InputError, match="as many columns"):
        attend(x, x[:, :2], x, engine=name)
    with pytest.raises(InputError, match="a row for each of 64 keys"):
        attend(x, x, x[:8], engine=name)
    with pytest.raises(InputError, match="a number for each of 64 keys"):
        attend(x, x, x, x[:7, 0], engine=name)


def test_a_mask_of_one_row_serves_all() -> None:
    x = torch.randn(300, 3, dtype=torch.float64)
    row = torch.rand(1, 300) < 0.5
    for name in ("reference", "blockwise", None):
        found, _ = attend(x, x, x, visible=row, engine=name)
        wanted, _ = attend(x, x, x, visible=row.expand(300, 300).contiguous(), engine="reference")
        torch.testing.assert_close(found, wanted)


FORK = """
import os, signal, torch
torch.set_num_threads(2)
import attractor as at
entries = torch.randn(1500, 1500)
law, tokens = at.Attention.isotropic(3, 1.0), at.Tokens.uniform(2000, 3)

def work():
    (entries @ entries).sum(), entries.exp().sum()
    at.velocity(law, tokens)
    at.flow(law, at.Tokens.uniform(300, 3, ensemble=4), space="sphere", until=0.1)

work()
child = os.fork()
if child == 0:
    signal.alarm(60)
    work()
    os._exit(0 if torch.get_num_threads() == 1 else 3)
print("status", os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_forked_child_does_not_wait_for_threads_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "status 0\n", done.stderr
