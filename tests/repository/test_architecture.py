"""The architecture: imports point down without cycles, packages have a public interface, no name hides a module."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "attractor"
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
NEEDS_TRITON = ("attractor.engines.triton.", "attractor.nn.fused_concatenation")  # imported only where the kernels run


@cache
def modules() -> dict[str, Path]:
    """All modules of the package, with their files."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of the package that a module imports, at the top or inside functions; not for type checkers alone."""
    return frozenset(_imports(ast.parse(modules()[module].read_text(encoding="utf-8")))) - {module}


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield from (name for name in ((full if full in modules() else node.module),) if name in modules())
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules())
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def test_there_are_no_import_cycles() -> None:
    left = {name: set(imports(name)) for name in modules()}
    while free := [name for name in left if not left[name] & left.keys() or name not in set().union(*left.values())]:
        for name in free:
            del left[name]
    assert not left, f"modules in import cycles, or between two of them: {sorted(left)}"


def test_packages_import_each_other_through_their_interface() -> None:
    """``from attractor.laws import Attention``, not ``from attractor.laws.attention import Attention``, from outside."""
    deep = [
        f"{name}: from {node.module} import ..."
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("attractor.")
        and str(node.module).count(".") > 1
        and name.split(".")[1:2] not in (str(node.module).split(".")[1:2], ["__main__"])
    ]
    assert deep == []


def test_no_name_hides_a_module() -> None:
    for name in modules():
        if name.startswith(NEEDS_TRITON) or name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        package, _, last = name.rpartition(".")
        if package:
            assert getattr(importlib.import_module(package), last) is module, f"{name} is hidden by another object"


def test_names_of_modules_say_something() -> None:
    assert not [path for path in modules().values() if path.stem in VAGUE]


def test_tests_mirror_the_package() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages
    assert {name for name in packages if not list((ROOT / "tests" / name).glob("test_*.py"))} == set()


def test_contributing_lists_the_layers_in_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    layout = page.partition("```text\n")[2].partition("```")[0]
    assert re.findall(r"^(\w+)(?:/|\.py) ", layout, re.MULTILINE) == layers


REGISTRIES = (
    r"pypi\.org|pythonhosted\.org|anaconda\.(org|com)|download\.pytorch\.org|registry\.npmjs\.org|deb\.debian\.org"
)
INDEX_SETTINGS = r"index[-_]url|find[-_]links|trusted[-_]host|--registry|(?:^|\s)-[if]\s+\S*://|\[\[?tool\.(uv\.index|poetry\.source)"


def test_no_registry_is_configured() -> None:
    """Installs use whatever index the machine is set up with; links such as those of [project.urls] are fine."""
    for name in ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run", ".pre-commit-config.yaml"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.findall(f"(?:{REGISTRIES}|{INDEX_SETTINGS}).*", text, re.IGNORECASE | re.MULTILINE), name
