"""The page's integrator, theorems and copied texts, run by Node, against the package."""

from __future__ import annotations

import itertools
import json
import math
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
from attractor.explorer import System
from attractor.explorer.static_page import tableau
from attractor.theory import list_theorems

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not installed")
PAGE = Path(at.__file__).parent / "explorer" / "page"
EYE2, EYE3 = np.eye(2).tolist(), np.eye(3).tolist()
GENERAL2, VALUE2 = [[0.9, 0.4], [-0.2, 1.1]], [[0.7, -0.3], [0.5, 0.8]]
GENERAL3 = [[0.9, 0.4, 0.1], [-0.2, 1.1, 0.3], [0.2, 0.0, -0.6]]
VALUE3 = [[0.7, -0.3, 0.0], [0.5, 0.8, 0.1], [0.0, -0.2, -0.4]]
ELLIPSOID2, ELLIPSOID3 = [[1.0, 0.2], [0.2, 0.4]], [[1.0, 0.2, 0.0], [0.2, 0.5, 0.1], [0.0, 0.1, 2.0]]


def integrate(*runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Integrate systems in Node: each a mapping with ``system`` and ``times``."""
    assert NODE is not None
    text = json.dumps({"tableau": tableau(), "runs": runs})
    script = Path(__file__).with_name("integrate.js")
    done = subprocess.run(
        [NODE, str(script), str(PAGE)],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def describe(dim: int = 2, tokens: int = 9, **parts: Any) -> dict[str, Any]:
    general = {2: (GENERAL2, VALUE2), 3: (GENERAL3, VALUE3)}[dim]
    law = {"heads": [{"interaction": general[0], "value": general[1]}]}
    start = {"kind": "uniform", "tokens": tokens, "seed": 3}
    base = {"schema": "attractor.system/1", "space": "sphere", "dim": dim, "start": start, "masses": None}
    base |= {"kernel": "softmax", "beta": 2.0, "mask": None, "positions": None, "noise": 0.0, "layers": None}
    return base | {"until": 6.0, "rtol": 1e-12, "atol": 1e-13, "merge": 0, "reverse": False} | law | parts


def run_package(system: dict[str, Any], start: list[float], times: list[float]) -> at.Trajectory:
    """The same system by ``attractor.flow``, written out here independently of the page's own Python code."""
    dim, sign = system["dim"], -1.0 if system["reverse"] else 1.0
    heads = [
        torch.tensor([head[part] for head in system["heads"]], dtype=torch.float64) for part in ("interaction", "value")
    ]
    eye = torch.eye(dim, dtype=torch.float64).expand_as(heads[0])
    mask = system["mask"] if not isinstance(system["mask"], dict) else f"window:{system['mask']['window']}"
    positions = None if system["positions"] is None else at.Rotary(system["positions"]["rotary"])
    law = at.Attention(
        eye, heads[0], sign * heads[1], kernel=system["kernel"], mask=mask, positions=positions, scale=system["beta"]
    )
    space = at.Ellipsoid(system["space"]["ellipsoid"]) if isinstance(system["space"], dict) else system["space"]
    tokens = at.Tokens(torch.tensor(start, dtype=torch.float64).view(-1, dim), masses=system["masses"])
    options: dict[str, Any] = {"save": times, "until": system["until"], "stop": ()}
    if system["noise"]:
        options |= {"noise": at.Noise(system["noise"], seed=system.get("noise_seed", 0)), "step": system["step"]}
    elif system["layers"]:
        options |= {"method": "layers", "step": system["layers"]}
    else:
        options |= {"rtol": system["rtol"], "atol": system["atol"], "merge": system["merge"] or False}
    return at.flow(law, tokens, space=space, **options)


def compare(systems: list[dict[str, Any]], times: list[float], bound: float = 1e-9) -> None:
    for system, found in zip(
        systems, integrate(*({"system": system, "times": times} for system in systems)), strict=True
    ):
        expected = run_package(system, found["start"], times)
        points = np.array([frame["points"] for frame in found["frames"]]).reshape(expected.points.shape)
        assert [frame["t"] for frame in found["frames"]] == expected.times.tolist()
        size = max(1.0, float(expected.points.abs().max()))
        missed = float(np.abs(points - expected.points.numpy()).max()) / size
        assert missed < bound, (missed, system)
        assert found["outcome"]["name"] == "reached"


TIMES = [0.0, 0.1, 0.73, 2.5, 6.0]
SPACES = [
    (2, "sphere"),
    (3, "sphere"),
    (2, {"ellipsoid": ELLIPSOID2}),
    (3, {"ellipsoid": ELLIPSOID3}),
    (2, "euclidean"),
    (3, "euclidean"),
]


@pytest.mark.parametrize("kernel", ["softmax", "exponential", "l2", "sigmoid"])
def test_trajectories_agree_with_the_package(kernel: str) -> None:
    systems = []
    for (dim, space), mask in itertools.product(SPACES, [None, "causal", {"window": 3}]):
        flat = space == "euclidean"
        beta, until = (0.4, 0.8) if flat and kernel == "exponential" else (2.0, 6.0)
        systems.append(describe(dim, space=space, kernel=kernel, mask=mask, beta=beta, until=until))
    short = [system for system in systems if system["until"] < 6]
    compare([system for system in systems if system["until"] == 6], TIMES)
    compare(short, [0.0, 0.1, 0.73, 0.8])


def test_positions_heads_masses_and_reversal_agree_with_the_package() -> None:
    second = {"interaction": VALUE2, "value": GENERAL2}
    two_heads = [describe(2)["heads"][0], second]
    masses = (np.arange(1, 10) / 45).tolist()
    plain: dict[str, Any] = {"heads": [{"interaction": EYE3, "value": EYE3}]}
    systems = [
        describe(2, positions={"rotary": 100.0}),
        describe(2, positions={"rotary": 100.0}, mask="causal", kernel="l2"),
        describe(2, heads=two_heads),
        describe(2, heads=two_heads, kernel="sigmoid", masses=masses),
        describe(3, masses=masses, kernel="exponential", **plain),
        describe(3, masses=masses, **plain),
        describe(3, kernel="l2", masses=masses, mask="causal"),
        describe(3, reverse=True),
        describe(2, start={"kind": "polygon", "tokens": 7}, heads=[{"interaction": EYE2, "value": [[0, -1], [1, 0]]}]),
        describe(3, start={"kind": "hemisphere", "tokens": 8, "seed": 1}, **plain),
        describe(3, start={"kind": "clusters", "tokens": 8, "seed": 1}, **plain),
    ]  # fmt: skip
    compare(systems, TIMES)


def test_layers_and_hardmax_agree_with_the_package() -> None:
    layers = [
        describe(dim, space=space, kernel=kernel, layers=0.25, mask=mask)
        for (dim, space), kernel, mask in itertools.product(SPACES, ["softmax", "l2", "hardmax"], [None, "causal"])
    ]
    compare(layers, [0.0, 0.25, 1.0, 6.0])


def test_noise_has_the_random_numbers_of_the_package() -> None:
    systems = [describe(dim, space=space, noise=0.05, step=0.02, noise_seed=5, until=1.0) for dim, space in SPACES]
    compare(systems, [0.0, 0.1, 0.5, 1.0])


def test_merging_agrees_with_the_package() -> None:
    plain: dict[str, Any] = {"heads": [{"interaction": EYE3, "value": EYE3}]}
    systems = [
        describe(3, tokens=24, beta=5.0, until=30.0, merge=1e-4, **plain),
        describe(3, tokens=24, beta=5.0, until=30.0, merge=1e-4, masses=(np.arange(1, 25) / 300).tolist(), **plain),
        describe(2, tokens=24, beta=12.0, until=30.0, merge=1e-4, heads=[{"interaction": EYE2, "value": EYE2}]),
    ]
    times = [0.0, 1.0, 5.0, 12.0, 30.0]
    compare(systems, times, 1e-9)
    for system, found in zip(
        systems, integrate(*({"system": system, "times": times} for system in systems)), strict=True
    ):
        merges = [event for event in run_package(system, found["start"], times).events if event.kind == "merge"]
        assert len(merges) == len(found["events"]) > 5
        assert sorted(event.size for event in merges) == sorted(event["size"] for event in found["events"])
        ours, theirs = (
            [sorted(part)] for part in ([event.time for event in merges], [event["time"] for event in found["events"]])
        )
        assert np.allclose(ours, theirs, rtol=0.2, atol=0.2)


def test_bad_systems_raise() -> None:
    assert NODE is not None
    for wrong in (
        describe(3, positions={"rotary": 10.0}),
        describe(2, start={"kind": "points", "points": [[0.0, 0.0]]}),
    ):
        with pytest.raises(AssertionError, match=r"rotary|origin"):
            integrate({"system": wrong, "times": [0.0]})


def test_steps_are_those_of_the_package() -> None:
    system = describe(3, tokens=30, rtol=1e-8, atol=1e-10, until=20.0)
    (found,) = integrate({"system": system, "times": [0.0, 20.0]})
    expected = run_package(system, found["start"], [0.0, 20.0])
    assert math.isclose(found["steps"], expected.stats.accepted, abs_tol=2)


PRESETS = {preset["key"]: preset for preset in json.loads((PAGE / "presets.json").read_text(encoding="utf-8"))}
OTHERS = [
    {"space": {"ellipsoid": [[1, 0], [0, 0.36]]}, "dim": 2, "kernel": "l2", "mask": {"window": 4}, "until": 5},
    {"kernel": "sigmoid", "reverse": True, "masses": [0.25, 0.25, 0.5], "until": 3,
     "start": {"kind": "points", "points": [[1, 0, 0], [0, 0.6, 0.8], [-0.123456, 1, 0]]}},
    {"layers": 0.5, "until": 10, "dim": 2, "positions": {"rotary": 50}, "start": {"kind": "polygon", "tokens": 7}},
    {"start": {"kind": "clusters:4,0.25", "tokens": 20, "seed": 3}, "until": 4, "noise": 0.1, "noise_seed": 2},
    {"start": {"kind": "hemisphere", "tokens": 9, "seed": 3}, "until": 4, "pinned": [2, 5]},
]  # fmt: skip


@pytest.fixture(scope="module")
def shown() -> list[dict[str, Any]]:
    """What the page computes and copies for every preset and for some other systems."""
    systems = [preset["system"] for preset in PRESETS.values()] + OTHERS
    return integrate(*({"system": system, "times": [0.0, system["until"]], "complete": True} for system in systems))


def run_code(code: str) -> at.Trajectory:
    """Run copied Python."""
    names: dict[str, Any] = {}
    exec(compile(code, "copied", "exec"), names)
    return names["run"]


def test_copied_python_ends_in_the_state_that_the_page_shows(shown: list[dict[str, Any]], capsys: Any) -> None:
    for found in shown:
        run = run_code(found["python"])
        assert isinstance(run.final, at.Tokens)
        points = np.array(found["frames"][-1]["points"]).reshape(run.final.points.shape)
        size = max(1.0, float(np.abs(points).max()))
        missed = float(np.abs(points - run.final.points.numpy()).max()) / size
        assert missed < 1e-5, (missed, found["system"])
        assert run.outcome.name in ("reached", "consensus"), run.outcome
    assert "reached" in capsys.readouterr().out


def test_the_page_writes_what_python_writes(shown: list[dict[str, Any]]) -> None:
    """``System`` of Python is the reference for the texts; it does not pin tokens."""
    for found in shown[:-1]:
        system = System.from_json({name: value for name, value in found["system"].items() if name != "view"})
        assert found["python"] == system.python()
        assert shlex.split(found["command"]) == shlex.split(system.command())


def draw_system(seed: int) -> dict[str, Any]:
    """A random system near the hypotheses of several theorems."""
    rng = np.random.default_rng(seed)
    dim = int(rng.integers(2, 4))
    eye, drawn = np.eye(dim), np.round(rng.normal(size=(dim, dim)), 2)
    values = [eye, -eye, 0.5 * eye, np.diag(np.round(rng.uniform(-1, 1.5, dim), 2)), drawn + drawn.T, drawn]
    interactions = [eye, eye, -eye, drawn, drawn @ drawn.T]
    heads = [
        {"interaction": interactions[rng.integers(5)].tolist(), "value": values[rng.integers(10) % 6].tolist()}
        for _ in range(1 + (rng.random() < 0.2))
    ]
    return {
        "space": ["sphere", "sphere", "euclidean", {"ellipsoid": ELLIPSOID2 if dim == 2 else ELLIPSOID3}][rng.integers(4)],
        "dim": dim, "heads": heads, "kernel": (["softmax"] * 5 + ["l2", "sigmoid"])[rng.integers(7)],
        "start": {"kind": ["uniform", "hemisphere", "polygon"][rng.integers(3)], "tokens": int(rng.integers(2, 9)), "seed": seed},
        "beta": float(np.round(rng.uniform(-3, 20), 2)), "mask": [None, None, "causal", {"window": 2}][rng.integers(4)],
        "until": 0.01, "positions": {"rotary": 10} if dim == 2 and rng.random() < 0.15 else None,
    }  # fmt: skip


def test_theorems_of_the_page_exist_and_apply_where_the_package_says(shown: list[dict[str, Any]]) -> None:
    titles = {theorem.key: theorem.title for theorem in list_theorems()}
    assert {key: titles.get(key) for key in shown[0]["titles"]} == shown[0]["titles"]
    drawn = integrate(*({"system": draw_system(seed), "times": [0.0], "complete": True} for seed in range(200)))
    assert sum(theorem["applies"] for found in drawn for theorem in found["theorems"]) >= 20
    for found in [*shown[: len(PRESETS)], *drawn]:
        system = System.from_json(found["system"])
        if system.noise or system.start.kind == "gaussian":
            continue
        predicted = at.predict(system.law(), system.tokens(), system.build_space())
        applying = {finding.theorem.key for finding in predicted.applicable}
        ours = {theorem["key"] for theorem in found["theorems"] if theorem["applies"]}
        assert ours <= applying, (ours - applying, found["system"])
