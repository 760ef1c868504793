"""Files with one damage, anywhere: what is read is what was written, or an error of one sentence.

``make fuzz OPTIONS="-k damaged"`` runs the long setting.
"""

from __future__ import annotations

import operator
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import AttractorError, StoreError
from attractor.training import Config, train
from attractor.training.run_folder import History, RunFolder

KINDS = ("flip", "flip", "flip", "flip", "byte", "cut", "zero", "empty", "delete")


def damage(root: Path, random: np.random.Generator) -> str:
    """Damage one file of a folder, chosen by its size or among all alike; return what was done."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    sizes = np.array([path.stat().st_size for path in files], dtype=float)
    weights = sizes / sizes.sum() if random.random() < 0.5 else np.full(len(files), 1 / len(files))
    path = files[random.choice(len(files), p=weights)]
    data, kind = bytearray(path.read_bytes()), str(random.choice(KINDS))
    place = int(random.integers(len(data)))
    if kind == "flip":
        data[place] ^= 1 << int(random.integers(8))
    elif kind == "byte":
        data[place] = (data[place] + int(random.integers(1, 256))) % 256
    elif kind == "cut":
        del data[place:]
    elif kind == "zero":
        data[place:] = bytes(len(data) - place)
    if kind == "delete":
        path.unlink()
    else:
        path.write_bytes(b"" if kind == "empty" else bytes(data))
    return f"{kind} at {place} of {path.relative_to(root)}"


def same(run: at.Trajectory, other: at.Trajectory) -> bool:
    """Whether two runs have the same data, apart from what they cost."""
    final, last = run.final, other.final
    states = [(final.points, last.points)] if isinstance(final, at.Tokens) else []  # type: ignore[union-attr]
    return (
        all(torch.equal(*pair) for pair in [(run.times, other.times), (run.points, other.points), *states])
        and run.outcomes == other.outcomes
        and [(e.time, e.mass, e.members) for e in run.events] == [(e.time, e.mass, e.members) for e in other.events]
        and repr(run.law) == repr(other.law)
        and type(run.space) is type(other.space)
    )


def check(
    read: Callable[[Path], Any], place: Path, is_same: Callable[[Any, Any], bool], expected: Any, what: str
) -> bool:
    """Whether a damage was found; fails if it was not, and did harm, or was found by an error of another kind."""
    message = ""
    try:
        found = read(place)
    except AttractorError as error:
        message = str(error)
    except Exception as error:
        pytest.fail(f"{what}: {type(error).__name__}: {error}")
    else:
        assert is_same(found, expected), f"{what}: other data"
    assert "\n" not in message, what
    return message != ""


LAWS = {
    "tokens": lambda: (
        at.Attention.isotropic(3, 4.0),
        at.Tokens.uniform(6, 3, seed=1),
        dict(space=at.Sphere(), until=50.0, merge=1e-3),
    ),
    "ensemble": lambda: (
        at.Attention.isotropic(2, 2.0, mask="causal"),
        at.Tokens.uniform(4, 2, seed=2, ensemble=3),
        dict(space=at.Ellipsoid(torch.diag(torch.tensor([1.0, 2.0]))), until=5.0, save=9, engine="reference"),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_damaged_store(name: str, fuzz: Any, tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    law, state, options = LAWS[name]()
    whole = at.flow(law, state, store=tmp_path / "ended", **options)
    part = at.flow(law, state, store=tmp_path / "part", max_evaluations=whole.stats.evaluations // 2, **options)
    assert part.outcome.name in ("budget", "mixed")
    part = at.load(tmp_path / "part")
    found = 0
    for seed in fuzz.seeds(60, 500):
        random, place = np.random.default_rng(seed), tmp_path / "damaged"
        source, expected = [("ended", whole), ("part", part)][int(random.integers(2))]
        shutil.copytree(tmp_path / source, place)
        what = f"seed {seed}, {source}: {damage(place, random)}"
        found += check(at.load, place, same, expected, what)
        check(at.resume, place, same, whole, what)
        shutil.rmtree(place)
    assert found > 0.8 * len(fuzz.seeds(60, 500))  # the lock, and the layout of JSON, do not matter


def test_a_damaged_training_checkpoint(fuzz: Any, tmp_path: Path) -> None:
    """Checked as a resumed run does it before it reads anything."""
    pytest.importorskip("accelerate")
    (tmp_path / "text.txt").write_text("The tokens gather, and where they gather they stay. " * 40, encoding="utf-8")
    small: dict[str, Any] = dict(layers=1, dim=8, heads=1, context=8, batch=2, steps=4, warmup=1, evaluate=2)
    config = Config(str(tmp_path / "text.txt"), **small, evaluations=1, checkpoint=2)
    train(config, tmp_path / "run", cache=tmp_path / "cache")
    (tmp_path / "run" / "changed.json").unlink()  # names that only a message shows

    def read(place: Path) -> Any:
        folder = RunFolder(place)
        folder.check_config(config)
        folder.check()
        contents = {path.name: path.read_bytes() for path in folder.checkpoint.glob("*") if path.name != "step.json"}
        return folder.last_step(), contents, History.read(place).steps

    whole = read(tmp_path / "run")
    found = 0
    for seed in fuzz.seeds(60, 500):
        random, place = np.random.default_rng(seed), tmp_path / "damaged"
        shutil.copytree(tmp_path / "run", place)
        what = f"seed {seed}: {damage(place, random)}"
        found += check(read, place, operator.eq, whole, what)
        shutil.rmtree(place)
    assert found > 0.8 * len(fuzz.seeds(60, 500))


def test_a_damaged_iteration(fuzz: Any, tmp_path: Path) -> None:
    from attractor.models.iteration import StoredRun, load_run, save_run

    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    definition: dict[str, Any] = {"model": "m", "prompts": ["a", "b"], "lengths": [5, 5], "passes": 9, "weights": "w"}
    curves = {"cosine": np.linspace(0.0, 1.0, 14)}
    run = StoredRun(definition, 7, states, curves, [[0.5]], [[0.25]], {3: ("x", "y")}, None, {"seed": 1})
    (tmp_path / "whole").mkdir()
    save_run(tmp_path / "whole" / "run.npz", run)

    def read(place: Path) -> StoredRun:
        return load_run(place / "run.npz", definition)

    def is_same(one: StoredRun, other: StoredRun) -> bool:
        same_states = all(torch.equal(a, b) for a, b in zip(one.states, other.states, strict=True))
        words = [(each.done, each.normed, each.by_layer, each.texts, each.request) for each in (one, other)]
        return same_states and np.array_equal(one.curves["cosine"], other.curves["cosine"]) and words[0] == words[1]

    for seed in fuzz.seeds(100, 1000):
        random, place = np.random.default_rng(seed), tmp_path / "damaged"
        shutil.copytree(tmp_path / "whole", place)
        what = f"seed {seed}: {damage(place, random)}"
        check(read, place, is_same, run, what)
        shutil.rmtree(place)


def test_an_error_of_a_damaged_store_is_a_store_error(fuzz: Any, tmp_path: Path) -> None:
    """Points of a store: every flipped byte of a chunk is found."""
    pytest.importorskip("zarr")
    law, state, options = LAWS["tokens"]()
    at.flow(law, state, store=tmp_path / "run", **options)
    path = tmp_path / "run" / "points" / "c.0.0.0"
    data = path.read_bytes()
    for seed in fuzz.seeds(40, 1000):
        random = np.random.default_rng(seed)
        place, bit = int(random.integers(len(data))), 1 << int(random.integers(8))
        path.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        with pytest.raises(StoreError, match="saved states cannot be read"):
            at.load(tmp_path / "run")
