"""The doctor tells what works, and notices what does not."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attractor as at
from attractor.cli import doctor as selftest
from attractor.cli.environment import DEVELOPMENT_EXTRAS

Command = Callable[[str], Any]


def test_the_report(command: Command) -> None:
    report = command("doctor --json").json
    assert report["schema"] == "attractor.doctor/2"
    assert {"python", "attractor", "torch", "numpy", "scipy", "typer", "rich"} <= report["packages"].keys()
    assert report["extras"]["store"] == {
        "packages": {"zarr": report["extras"]["store"]["packages"]["zarr"]},
        "install": "pip install 'attractor[store]'",
    }
    assert {"cores", "threads", "gpu"} <= report["machine"].keys()
    assert set(report["programs"]) == {"chromium", "ffmpeg"}
    engines = {engine["name"]: engine for engine in report["engines"]}
    assert set(engines) == {engine.name for engine in at.engines.available()}
    assert engines["reference"]["passed"] is True
    assert engines["reference"]["error"] < 1e-8
    assert report["native_loop"]["name"] == "native"
    assert report["native_loop"]["works"] is not report["native_loop"]["message"].startswith("does not work here")
    assert report["native_loop"]["passed"] is (True if report["native_loop"]["works"] else None)
    assert report["device_loop"]["name"] == "device"
    assert report["device_loop"]["passed"] is (True if report["device_loop"]["works"] else None)
    assert all(engine["passed"] is True for engine in engines.values() if engine["works"])


def test_people_are_told_how_to_get_what_is_missing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attractor.cli.environment.version", lambda name: None if name == "zarr" else "1.0")
    done = command("doctor")
    assert done.code == 0
    assert done.err == ""
    assert "extra store (install it with pip install 'attractor[store]')\n  zarr  not installed" in done.out


def test_an_engine_that_does_not_work_says_why(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = at.engines.Engine(
        "broken", lambda problem: (None, None), lambda problem: True, lambda problem: 0.0, "no such device"
    )
    monkeypatch.setattr("attractor.engines.available", lambda: [broken])
    done = command("doctor")
    assert done.code == 0
    assert "broken  does not work here: no such device" in done.out


def test_extras_are_of_use() -> None:
    root = Path(__file__).parents[2]
    offered = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    modules = {
        "pillow": "PIL", "POT": "ot", "scikit-learn": "sklearn", "imageio-ffmpeg": "imageio_ffmpeg",
        "accelerate": "transformers", "tensorboard": "tensorboard",
    }  # fmt: skip
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (root / "src").rglob("*.py"))
    for extra in offered.keys() - DEVELOPMENT_EXTRAS:
        for requirement in offered[extra]:
            name = re.match(r"[A-Za-z0-9_-]+", requirement)
            assert name is not None
            module = modules.get(name[0], name[0])
            assert re.search(rf"(import|from|import_module\(\W) ?{module}\b|[\"']{module}[\"']", sources), (
                extra,
                module,
            )


@pytest.mark.parametrize("part", ["closed_form_error", "attention_error"])
def test_a_wrong_engine_fails_the_self_test(command: Command, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(selftest, part, lambda engine: 1e-3)
    done = command("doctor")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "FAILS" in done.out


@pytest.mark.theorem
def test_the_closed_form(engine: str) -> None:
    assert selftest.closed_form_error(engine) < 1e-8
