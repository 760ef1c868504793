"""Behaviour lives with its class: no code outside ``laws/kernels`` distinguishes kernels by type or name, and none outside ``laws``
distinguishes positional encodings or masks."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import torch

import attractor
from attractor import laws

ROOT = Path(attractor.__file__).parent
KERNELS = set(laws.KERNELS)
POSITIONS = {"Absolute", "Alibi", "Relative", "Rotary", "ScaledRotary"}
MASKS = {"Causal", "Window", "Visible"}
NAMES = {kernel.name for kernel in laws.list_kernels()}


def sources() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if "laws/kernels" not in path.as_posix())


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def type_tests(tree: ast.AST, classes: set[str], module_names: set[str]) -> list[str]:
    """isinstance, type(...) is and match tests against one of the classes."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func) in ("isinstance", "issubclass"):
            tested = {_last(part) for part in ast.walk(node.args[1])} if len(node.args) > 1 else set()
        elif isinstance(node, ast.Compare) and any(
            _last(getattr(part, "func", part)) == "type" for part in ast.walk(node)
        ):
            tested = {_last(part) for part in ast.walk(node)}
        elif isinstance(node, ast.MatchClass):
            tested = {_last(node.cls)}
        elif isinstance(node, ast.Dict):
            tested = {_last(key) for key in node.keys if key is not None}
        else:
            continue
        found += [f"{name}, line {node.lineno}" for name in tested & classes & module_names]
    return found


def name_tests(tree: ast.AST) -> list[str]:
    """Comparisons of ``kernel.name`` (or what is called kernel) with the name of a kernel."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        named = any(
            isinstance(part, ast.Attribute) and part.attr == "name" and "kernel" in ast.dump(part.value)
            for part in ast.walk(node)
        )
        if named and any(isinstance(part, ast.Constant) and part.value in NAMES for part in ast.walk(node)):
            found.append(f"line {node.lineno}")
    return found


def imported(tree: ast.AST) -> set[str]:
    """Names that a module has from ``attractor.laws``; ``torch.nn.Linear`` is another class."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attractor")
        for alias in node.names
    }


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_switch_on_kernels(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = imported(tree)
    assert type_tests(tree, KERNELS, names) == []
    assert name_tests(tree) == []
    if "laws/" not in path.relative_to(ROOT).as_posix():
        assert type_tests(tree, POSITIONS | MASKS, names) == []


def test_the_check_finds_switches() -> None:
    tree = ast.parse(
        "from attractor.laws import Softmax, L2\n"
        "isinstance(law.kernel, (Softmax, int))\n"
        "type(kernel) is L2\n"
        "{Softmax: 1}\n"
        "law.kernel.name == 'l2'\n"
    )
    assert len(type_tests(tree, KERNELS, imported(tree))) == 3
    assert name_tests(tree) == ["line 5"]


@pytest.mark.parametrize("kernel", laws.list_kernels(), ids=lambda kernel: kernel.name)
def test_every_kernel_is_exported_and_documented(kernel: type[laws.Kernel]) -> None:
    assert getattr(attractor, kernel.__name__, kernel) is kernel
    assert inspect.getdoc(kernel)
    assert laws.kernel_named(kernel.name) == kernel()


def test_a_subclass_with_its_own_attend_leaves_the_compiled_loop() -> None:
    class Scaled(laws.Softmax):
        def attend(self, pairing, v):  # type: ignore[no-untyped-def]
            return 2.0 * super().attend(pairing, v)

    class Named(laws.Softmax):
        pass

    assert Scaled.mode is None
    assert Named.mode == "softmax"


def test_an_attend_from_a_mixin_leaves_the_compiled_loop() -> None:
    class Doubling:
        def attend(self, pairing, v):  # type: ignore[no-untyped-def]
            return 2.0 * super().attend(pairing, v)  # type: ignore[misc]

    class Doubled(Doubling, laws.Softmax):
        pass

    class Renamed(Doubled):
        pass

    tokens = attractor.Tokens(torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    for kernel in (Doubled, Renamed):
        assert kernel.mode is None
        assert not kernel.scaled_dot_product  # a layer must not compute plain softmax in its place
        law = attractor.Attention.isotropic(dim=3, beta=1.0, kernel=kernel())
        default, reference = (attractor.flow(law, tokens, until=0.5, engine=name) for name in (None, "reference"))
        torch.testing.assert_close(default.final.points, reference.final.points, rtol=1e-7, atol=1e-9)


def test_a_law_shows_the_parameters_of_its_kernel_and_its_scale() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    assert "kernel=softmax, beta=1)" in repr(laws.Attention(eye, eye, eye))
    shown = repr(laws.Attention(eye, eye, eye, kernel=laws.Sinkhorn(eps=0.7), scale=0.5))
    assert "kernel=sinkhorn(eps=0.7), beta=0.5, scale=0.5)" in shown
